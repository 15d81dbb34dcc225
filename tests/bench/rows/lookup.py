"""Look-ups in 10 M messages, beside the same in 100 k."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

from bench.case import Case, Pair, Target
from bench.messages import TOPIC, key_of
from bench.rows.one_message import percentiles_us
from bench.scratch import Scratch
from bench.stores import into_page_cache, make
from rmq_store import Store

MANY, FEW = 10_000_000, 100_000
BODY_BYTES = 100
ONE_BY_ONE = 2_000
AT_ONCE = 10_000
KINDS = ("key", "unique-key", "offset")


def many(directory: Path, scratch: Scratch) -> Path:
    """The large store, for `Scratch.once`."""
    return make(directory / "store", scratch.rows(MANY), BODY_BYTES, scratch)


def few(directory: Path, scratch: Scratch) -> Path:
    """The small one."""
    return make(directory / "store", scratch.rows(FEW), BODY_BYTES, scratch)


class Lookups:
    """Look-ups of random messages of one store with keys 0 to `key_count` (default: as many as there are messages);
    other ones each time.
    """

    def __init__(self, store: Store, key_count: int | None = None) -> None:
        self._store = store
        self._ends = {queue_id: end for queue_id, (_, end) in store.queue_ranges(TOPIC).items()}
        self._key_count = key_count or sum(self._ends.values())
        self._chance = random.Random(1)
        into_page_cache(store.path)

    def keys(self, count: int) -> list[str]:
        return [key_of(self._chance.randrange(self._key_count)) for _ in range(count)]

    def unique_keys(self, count: int) -> list[str]:
        found: list[str] = []
        share = -(-count // len(self._ends))
        for queue_id, end in self._ends.items():
            offsets = np.unique(np.array([self._chance.randrange(end) for _ in range(share)]))
            for batch in self._store.read(TOPIC, queue_id, 0, end, columns=["msgId"], only=offsets):
                found += batch.column("msgId").to_pylist()
        self._chance.shuffle(found)
        return found[:count]

    def places(self, count: int) -> list[tuple[int, int]]:
        """(queue id, queue offset)"""
        queues = [self._chance.choice(list(self._ends)) for _ in range(count)]
        return [(queue_id, self._chance.randrange(self._ends[queue_id])) for queue_id in queues]

    def one_by_one_us(self, kind: str, count: int) -> tuple[float, float]:
        """p50 and p99 of one look-up, in microseconds: the whole message as it is stored."""
        query = self._store.query
        once: Callable[[], object]
        if kind == "key":
            keys = iter(self.keys(count))
            once = lambda: _found(query.by_key(TOPIC, next(keys)))  # noqa: E731
        elif kind == "unique-key":
            unique_keys = self.unique_keys(count)
            count = len(unique_keys)
            ids = iter(unique_keys)
            once = lambda: _found(query.by_unique_key(TOPIC, next(ids)))  # noqa: E731
        else:
            places = iter(self.places(count))
            once = lambda: query.by_queue_offset(TOPIC, *next(places))  # noqa: E731
        return percentiles_us(once, count)

    def at_once_us(self, kind: str, count: int) -> float:
        """Microseconds per key of looking up so many keys with one call, which answers with their places."""
        keys = self.keys(count) if kind == "key" else self.unique_keys(count)
        begin = time.perf_counter()
        found = self._store.query.find(TOPIC, keys, unique=kind == "unique-key")
        seconds = time.perf_counter() - begin
        assert found.num_rows == len(set(keys))
        return seconds * 1e6 / len(keys)


def _found(messages: list[object]) -> None:
    assert len(messages) == 1


@contextlib.contextmanager
def looking_up(scratch: Scratch, kind: str, *, at_once: bool) -> Iterator[Pair]:
    """Microseconds."""
    roots = scratch.once(many), scratch.once(few)
    with Store.open(roots[0]) as large, Store.open(roots[1]) as small:
        lookups = Lookups(large), Lookups(small)
        if at_once:
            count = scratch.rows(AT_ONCE)
            yield Pair(*(partial(each.at_once_us, kind, count) for each in lookups))
        else:
            count = scratch.rows(ONE_BY_ONE)
            yield Pair(*(partial(each.one_by_one_us, kind, count) for each in lookups))


_NAMES = {"key": "key", "unique-key": "unique key", "offset": "queue offset"}
_STORES = (
    f"Stores of {MANY:,} and {FEW:,} messages of {BODY_BYTES} B, a key of its own and one of five tags each. All "
    "files were read before, so they are in the page cache."
)

ONE_LIMIT = (
    "Python: a call or two for each step from the key to the message. One native call searches all eight index "
    "files of 10 M messages; their cache misses overlap. The difference between the stores is memory: of 10 M "
    "messages each look-up meets cache lines and pages that the processor does not have."
)
AT_ONCE_LIMIT = (
    "Scattered memory: each key touches a slot and an entry or more in each of eight index files, and one record. "
    "Of 26 ms for 10,000 keys, slots and chains take 5, sizes of records 1.4, copying records 6, comparing keys "
    "4; the rest makes and sorts arrays. Java has one index file and reads no record."
)

CASES = (
    *(
        Case(
            name=f"lookup-{kind}",
            title=f"look-up by {_NAMES[kind]} in 10 M messages, one at a time",
            group="lookup",
            body_bytes=BODY_BYTES,
            yardstick="the same in 100 k messages",
            unit="us",
            target=Target(1.25, at_least=False),
            settings=(_STORES, f"{ONE_BY_ONE:,} random messages; each look-up returns the whole message."),
            prepare=partial(looking_up, kind=kind, at_once=False),
            figures=("p50", "p99"),
            limit=ONE_LIMIT,
        )
        for kind in KINDS
    ),
    *(
        Case(
            name=f"lookup-{kind}-at-once",
            title=f"look-up by {_NAMES[kind]} in 10 M messages, 10,000 at once, per key",
            group="lookup",
            body_bytes=BODY_BYTES,
            yardstick="the same in 100 k messages",
            unit="us",
            target=None,
            settings=(_STORES, f"One call of `Query.find` with {AT_ONCE:,} random keys."),
            prepare=partial(looking_up, kind=kind, at_once=True),
            limit=AT_ONCE_LIMIT,
        )
        for kind in KINDS[:2]
    ),
)
