"""Delivery of delayed messages that are all due, beside RocketMQ's schedule service."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from bench.case import Case, Pair, Target
from bench.messages import BODY_BYTES, TOPIC, plain
from bench.peer import BROKER_HEAP, Process
from bench.rows.delivery import LIMIT, ROWS, deliver_seconds
from bench.scratch import Scratch
from bench.stores import QUEUES, chunk_rows

BACKLOG = 200_000


@contextlib.contextmanager
def delivering(scratch: Scratch, *, warm: bool) -> Iterator[Pair]:
    """Messages per second."""
    body_bytes = BODY_BYTES[0]
    rows = scratch.rows(ROWS)
    chunk = plain(min(chunk_rows(body_bytes), rows), body_bytes)
    peer = scratch.peer()
    backlog = scratch.directory / "backlog"
    sizes = {"topic": TOPIC, "queues": QUEUES, "bodyBytes": body_bytes, "count": scratch.rows(BACKLOG), "settings": {}}
    with peer.process(BROKER_HEAP) as broker:
        broker.ask("delay.park", directory=str(backlog), **sizes)
    scratch.touch_memory(3 * rows * (body_bytes + 400))

    def rate(broker: Process) -> float:
        # A name of its own: threads of a broker that was stopped make files again behind its store.
        directory = _copy(backlog, scratch.directory / uuid.uuid4().hex)
        delivered = broker.ask("delay.deliver", directory=str(directory), **sizes)
        shutil.rmtree(directory, ignore_errors=True)
        return float(delivered["rate"])

    with contextlib.ExitStack() as ends:
        if warm:
            yardstick = partial(rate, ends.enter_context(peer.process(BROKER_HEAP)))
        else:

            def yardstick() -> float:
                with peer.process(BROKER_HEAP) as broker:
                    return rate(broker)

        yield Pair(lambda: rows / deliver_seconds(scratch.directory / "delayed", chunk, rows), yardstick)


def _copy(source: Path, target: Path) -> Path:
    # RocketMQ's files are as long as they can get and mostly holes.
    subprocess.run(["cp", "-a", "--sparse=always", str(source), str(target)], check=True)
    return target


CASES = tuple(
    Case(
        name=f"java-delivery-{'warm' if warm else 'restarted'}",
        title="delivery of 1 M due delayed messages",
        group="delivery",
        body_bytes=BODY_BYTES[0],
        yardstick=f"Java's schedule service, {'warm' if warm else 'started again'}",
        unit="msgs/s",
        target=None if warm else Target(20),
        settings=(
            f"Java: {BACKLOG:,} messages at level 1, put by a broker that was then stopped. "
            + ("The next broker in the same JVM" if warm else "A broker in a new JVM")
            + " delivers them when all are due; rate from the first message in its queue to the last.",
            "RocketMQ 5.5.0, broker without ports, 2 GiB (G1), its defaults: one task for a level, "
            "enableScheduleAsyncDeliver=false.",
        ),
        prepare=partial(delivering, warm=warm),
        limit=LIMIT,
        peers=True,
    )
    for warm in (False, True)
)
