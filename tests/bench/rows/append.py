"""Bulk append to a new store by one process, beside `pwrite` of the same bytes of the log."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from bench.case import Case, Pair, Target
from bench.messages import BODY_BYTES, TOPIC, plain
from bench.scratch import Scratch
from bench.stores import QUEUES, chunk_rows
from rmq_store import Store, StoreConfig

ROWS = {100: 1_000_000, 1024: 400_000}
SEGMENT_BYTES = StoreConfig().mapped_file_size_commit_log


def append_seconds(root: Path, chunk: pa.RecordBatch, row_count: int) -> tuple[float, int]:
    """Seconds of appending `chunk` to a new store until it has `row_count` messages, and how many bytes of the log
    that were. The store is removed.
    """
    with Store.open(root, create=True) as store:
        store.create_topic(TOPIC, queue_count=QUEUES)
        # Queue and index files are made.
        store.append(chunk.slice(0, 100), TOPIC)
        start = store.log_range()[1]
        begin = time.perf_counter()
        for first in range(0, row_count, chunk.num_rows):
            store.append(chunk.slice(0, row_count - first), TOPIC)
        seconds = time.perf_counter() - begin
        size_bytes = store.log_range()[1] - start
    shutil.rmtree(root)
    return seconds, size_bytes


def pwrite_seconds(directory: Path, chunk_bytes: np.ndarray, size_bytes: int) -> float:
    """Seconds of writing `size_bytes` to new files of a segment's size, preallocated, with one `pwrite` for each chunk
    and file. The files are removed.
    """
    directory.mkdir()
    data = memoryview(chunk_bytes)
    fd = -1
    begin = time.perf_counter()
    done = 0
    while done < size_bytes:
        position = done % SEGMENT_BYTES
        if not position:
            fd = _next_file(directory, fd, done)
        count = min(len(data) - done % len(data), SEGMENT_BYTES - position, size_bytes - done)
        os.pwrite(fd, data[done % len(data) : done % len(data) + count], position)
        done += count
    seconds = time.perf_counter() - begin
    os.close(fd)
    shutil.rmtree(directory)
    return seconds


def _next_file(directory: Path, fd: int, offset: int) -> int:
    if fd >= 0:
        os.close(fd)
    fd = os.open(directory / f"{offset:020d}", os.O_RDWR | os.O_CREAT, 0o600)
    os.posix_fallocate(fd, 0, SEGMENT_BYTES)
    return fd


@contextlib.contextmanager
def appending(scratch: Scratch, body_bytes: int) -> Iterator[Pair]:
    """Messages per second."""
    rows = scratch.rows(ROWS[body_bytes])
    chunk = plain(min(chunk_rows(body_bytes), rows), body_bytes)
    scratch.touch_memory(3 * rows * (body_bytes + 300))
    _, size_bytes = append_seconds(scratch.directory / "size", chunk, rows)
    chunk_bytes = np.random.default_rng(1).integers(0, 256, size_bytes * chunk.num_rows // rows, dtype=np.uint8)
    yield Pair(
        ours=lambda: rows / append_seconds(scratch.directory / "store", chunk, rows)[0],
        yardstick=lambda: rows / pwrite_seconds(scratch.directory / "files", chunk_bytes, size_bytes),
    )


LIMIT = (
    "The processors. Encoding with both checksums is two fifths of the time. Two threads then fill in offsets and "
    "write frames into the page cache, where the kernel lets one write to a file at a time. The cost of `pwrite` "
    "alone varies most: 1 to 7 GB/s, so ratios from 0.2 to 1.0 for the same code."
)

CASES = tuple(
    Case(
        name=f"append-bulk-{body_bytes}",
        title="bulk append, one process, with CRC, queues and index",
        group="append",
        body_bytes=body_bytes,
        yardstick="`pwrite` of the same bytes of the log",
        unit="msgs/s",
        target=Target(0.4) if body_bytes == 1024 else None,
        settings=(
            f"{ROWS[body_bytes]:,} messages in chunks of {chunk_rows(body_bytes):,} to a new store.",
            f"One topic, {QUEUES} queues, a tag and a key each; index entries for UNIQ_KEY, key and tag. Segments are "
            "created durably, and flushed every 500 ms.",
            "The yardstick writes the bytes of the log only, in the same chunks, to preallocated files of 64 MiB, and "
            "waits for no disk.",
        ),
        prepare=partial(appending, body_bytes=body_bytes),
        limit=LIMIT,
    )
    for body_bytes in BODY_BYTES
)
