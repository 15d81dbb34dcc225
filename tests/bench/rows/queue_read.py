"""Reading whole queues into record batches, beside a copy of the same bytes of the log."""

from __future__ import annotations

import contextlib
import mmap
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from bench.case import Case, Pair
from bench.messages import BODY_BYTES, TOPIC
from bench.scratch import Scratch
from bench.stores import QUEUES, log_pieces, make
from rmq_store import MESSAGE_SCHEMA, Store

ROWS = {100: 1_000_000, 1024: 400_000}
COPY_BYTES = 32 << 20
ALL_COLUMNS = tuple(MESSAGE_SCHEMA.names)


def read_rows(store: Store, columns: Sequence[str] = ALL_COLUMNS) -> int:
    """Read every queue of the topic from its beginning to its end, one after the other; returns how many rows."""
    return sum(
        batch.num_rows
        for queue_id, (start, end) in store.queue_ranges(TOPIC).items()
        for batch in store.read(TOPIC, queue_id, start, end, columns=columns)
    )


def copy_log(root: Path, start: int, end: int) -> None:
    """Copy [start, end) of the mapped log with numpy, 32 MiB at a time, into one buffer."""
    buffer = np.empty(COPY_BYTES, np.uint8)
    for path, position, size in log_pieces(root, start, end):
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
            source = np.frombuffer(mapped, np.uint8)
            for at in range(position, position + size, COPY_BYTES):
                part = source[at : min(at + COPY_BYTES, position + size)]
                buffer[: len(part)] = part
            del source, part  # or the map could not be closed


@contextlib.contextmanager
def reading(scratch: Scratch, body_bytes: int) -> Iterator[Pair]:
    """Messages per second."""
    rows = scratch.rows(ROWS[body_bytes])
    root = make(scratch.directory / "store", rows, body_bytes, scratch)
    with Store.open(root, read_only=True) as store:
        start, end = store.log_range()

        def ours() -> float:
            begin = time.perf_counter()
            read = read_rows(store)
            seconds = time.perf_counter() - begin
            assert read == rows
            return rows / seconds

        def yardstick() -> float:
            begin = time.perf_counter()
            copy_log(root, start, end)
            return rows / (time.perf_counter() - begin)

        yield Pair(ours, yardstick)


LIMIT = (
    "One pass over the frames in C is three quarters of the time: copying bodies at 1 KiB, splitting and copying "
    "properties at 100 B. The rest reads queue entries and builds columns. A second thread makes every other "
    "batch and gains a quarter to a third; outside of C Python runs one thread at a time."
)

CASES = tuple(
    Case(
        name=f"queue-read-{body_bytes}",
        title="queue read to record batches, all 17 columns",
        group="queue read",
        body_bytes=body_bytes,
        yardstick="a numpy copy of the same bytes of the log",
        unit="msgs/s",
        target=None,
        settings=(
            f"{ROWS[body_bytes]:,} messages in {QUEUES} queues that were appended in turn, read queue by queue.",
            "Page cache warm; body checksums are not compared. The copy goes through the mapped log once, 32 MiB at a "
            "time.",
        ),
        prepare=partial(reading, body_bytes=body_bytes),
        limit=LIMIT,
    )
    for body_bytes in BODY_BYTES
)
