"""Delivery of delayed messages that are all due, beside a plain append of the same messages."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from bench.case import Case, Pair, Target
from bench.messages import BODY_BYTES, TOPIC, plain
from bench.rows.append import append_seconds
from bench.scratch import Scratch
from bench.stores import QUEUES, chunk_rows
from rmq_store import Store

ROWS = 1_000_000
DELAY_LEVEL = 1
DELAY_MS = 1000

# The larger ones take the disk too long.
_ROWS = {100: ROWS, 1024: 300_000}


def deliver_seconds(root: Path, chunk: pa.RecordBatch, row_count: int) -> float:
    """Seconds of delivering `row_count` messages of a new store that are all due. The store is removed."""
    now_ms = int(time.time() * 1000)
    delayed = chunk.append_column("delayLevel", pa.array(np.full(chunk.num_rows, DELAY_LEVEL, np.int32)))
    with Store.open(root, create=True, clock=lambda: now_ms) as store:
        store.create_topic(TOPIC, queue_count=QUEUES)
        for first in range(0, row_count, chunk.num_rows):
            store.append(delayed.slice(0, row_count - first), TOPIC)
        store.flush()
        now_ms += DELAY_MS
        begin = time.perf_counter()
        delivered = store.schedule.deliver_due().delivered
        seconds = time.perf_counter() - begin
    assert delivered == row_count
    shutil.rmtree(root)
    return seconds


@contextlib.contextmanager
def delivering(scratch: Scratch, body_bytes: int) -> Iterator[Pair]:
    """Messages per second."""
    rows = scratch.rows(_ROWS[body_bytes])
    chunk = plain(min(chunk_rows(body_bytes), rows), body_bytes)
    scratch.touch_memory(3 * rows * (body_bytes + 400))
    yield Pair(
        ours=lambda: rows / deliver_seconds(scratch.directory / "delayed", chunk, rows),
        yardstick=lambda: rows / append_seconds(scratch.directory / "plain", chunk, rows)[0],
    )


LIMIT = (
    "0.86 us of processor time for a message of 100 B: the copy in C 0.16, checking the frames 0.13, finding "
    "their topic and queue in the properties 0.14, the append 0.34. Frames are checked and copied on all "
    "processors; the append has a second thread. A plain append neither reads nor checks."
)

CASES = tuple(
    Case(
        name=f"delivery-{body_bytes}",
        title=f"delivery of {_ROWS[body_bytes]:,} due delayed messages",
        group="delivery",
        body_bytes=body_bytes,
        yardstick="our own bulk append of the same messages",
        unit="msgs/s",
        target=Target(0.33),
        settings=(
            f"Level {DELAY_LEVEL}, all due at once by the store's clock, on disk before. One call of `deliver_due` "
            "reads them and appends them to their own queues."
        ),
        prepare=partial(delivering, body_bytes=body_bytes),
        limit=LIMIT,
    )
    for body_bytes in BODY_BYTES
)
