"""Look-ups in our 10 M messages, beside RocketMQ's own in 1 M."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial

from bench.case import Case, Pair, Target
from bench.messages import TOPIC
from bench.rows.lookup import (
    AT_ONCE,
    AT_ONCE_LIMIT,
    BODY_BYTES,
    KINDS,
    MANY,
    ONE_BY_ONE,
    ONE_LIMIT,
    Lookups,
    many,
)
from bench.scratch import Scratch
from rmq_store import Store

JAVA_MESSAGES = 1_000_000
JAVA_QUERIES = 20_000
PUT_BATCH = 1000
# What the Java program calls them.
_BY = dict(zip(KINDS, ("key", "uniqueKey", "offset"), strict=True))


@contextlib.contextmanager
def looking_up(scratch: Scratch, kind: str, *, at_once: bool) -> Iterator[Pair]:
    """Microseconds: of one key of many, or p50 and p99 of one at a time."""
    root = scratch.once(many)
    peer = scratch.peer()
    with Store.open(root) as store, peer.store(scratch.directory / "java"):
        lookups = Lookups(store)
        sizes = {"topic": TOPIC, "bodyBytes": BODY_BYTES}
        peer.ask("store.putBatches", count=scratch.rows(JAVA_MESSAGES), batch=PUT_BATCH, **sizes)

        def yardstick() -> tuple[float, ...]:
            took = peer.ask("store.query", topic=TOPIC, count=scratch.rows(JAVA_QUERIES), by=_BY[kind])
            return (took["meanUs"],) if at_once else (took["p50Us"], took["p99Us"])

        if at_once:
            yield Pair(partial(lookups.at_once_us, kind, scratch.rows(AT_ONCE)), yardstick)
        else:
            yield Pair(partial(lookups.one_by_one_us, kind, scratch.rows(ONE_BY_ONE)), yardstick)


_JAVA = (
    f"Java: {JAVA_QUERIES:,} random messages of {JAVA_MESSAGES:,} of {BODY_BYTES} B, one at a time, page cache warm. "
    "RocketMQ 5.5.0, DefaultMessageStore in a JVM of 2 GiB (G1), its defaults. queryMessage neither decodes frames nor "
    "compares keys."
)

CASES = (
    *(
        Case(
            name=f"java-lookup-{kind}",
            title=f"look-up by {kind.replace('-', ' ')} in {MANY // 10**6} M messages, one at a time",
            group="lookup",
            body_bytes=BODY_BYTES,
            yardstick="Java's getMessage and decode" if kind == "offset" else "Java's queryMessage",
            unit="us",
            target=Target(50, at_least=False),
            settings=(f"Ours: {ONE_BY_ONE:,} random messages; each look-up returns the whole message.", _JAVA),
            prepare=partial(looking_up, kind=kind, at_once=False),
            figures=("p50", "p99"),
            limit=ONE_LIMIT,
            peers=True,
        )
        for kind in KINDS
    ),
    *(
        Case(
            name=f"java-lookup-{kind}-at-once",
            title=f"look-up by {kind.replace('-', ' ')} in {MANY // 10**6} M messages, {AT_ONCE:,} at once, per key",
            group="lookup",
            body_bytes=BODY_BYTES,
            yardstick="Java's queryMessage, mean of one at a time",
            unit="us",
            target=Target(1, at_least=False),
            settings=("Ours: one call of `Query.find`, which compares keys.", _JAVA),
            prepare=partial(looking_up, kind=kind, at_once=True),
            limit=AT_ONCE_LIMIT,
            peers=True,
        )
        for kind in KINDS[:2]
    ),
)
