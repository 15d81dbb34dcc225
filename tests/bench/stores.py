"""Stores to measure on: made by bulk appends, closed cleanly."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from bench.messages import TOPIC, numbered, plain
from bench.scratch import Scratch
from rmq_store import Store, StoreConfig

QUEUES = 4
GB = 10**9

# What a bulk append is given at once.
CHUNK_BYTES = 24 << 20

# A frame without its body, with topic, UNIQ_KEY, one key, one tag and the checksum of the properties.
FRAME_OVERHEAD_BYTES = 185

# Nobody flushes but a close: so much stays to be done after a kill as a measurement wants.
UNFLUSHED = StoreConfig(flush_interval_commit_log=3_600_000)


def chunk_rows(body_bytes: int) -> int:
    """How many messages of this size make a chunk."""
    return max(CHUNK_BYTES // (body_bytes + FRAME_OVERHEAD_BYTES), 1)


def rows_of(size_bytes: int, body_bytes: int) -> int:
    """How many messages take about so many bytes of the log."""
    return max(size_bytes // (body_bytes + FRAME_OVERHEAD_BYTES), 1)


def append_rows(store: Store, row_count: int, body_bytes: int, first: int = 0) -> Iterator[int]:
    """Append so many messages, keys counted from `first`; yields how many there are after each chunk."""
    chunk = plain(min(chunk_rows(body_bytes), row_count), body_bytes)
    done = 0
    while done < row_count:
        part = numbered(chunk, first + done).slice(0, row_count - done)
        store.append(part, TOPIC)
        done += part.num_rows
        yield done


def make(
    root: Path, row_count: int, body_bytes: int, scratch: Scratch, *,
    queues: int = QUEUES, config: StoreConfig | None = None,
) -> Path:  # fmt: skip
    """A new store of `row_count` messages in one topic."""
    with Store.open(root, create=True, config=config) as store:
        store.create_topic(TOPIC, queue_count=queues)
        for done in append_rows(store, row_count, body_bytes):
            scratch.tick(f"making a store: {done:,} of {row_count:,} messages")
    return root


def of_size(root: Path, size_bytes: int, scratch: Scratch) -> Path:
    """A new store of about so many bytes, 2 KiB bodies; a tenth of that if it is only to be seen whether it works."""
    wanted_bytes = size_bytes // 10 if scratch.quick else size_bytes
    return make(root, rows_of(wanted_bytes, 2048), 2048, scratch, config=UNFLUSHED)


def large(directory: Path, scratch: Scratch) -> Path:
    """20 GB, for `Scratch.once`."""
    return of_size(directory / "store", 20 * GB, scratch)


def log_pieces(root: Path, start: int, end: int) -> Iterator[tuple[Path, int, int]]:
    """(segment file, position, size) of each piece of [start, end) of a store's log."""
    for path in sorted((root / "commitlog").iterdir()):
        base, size = int(path.name), path.stat().st_size
        low, high = max(start, base), min(end, base + size)
        if low < high:
            yield path, low - base, high - low


def read_log(root: Path, start: int, end: int) -> int:
    """Read [start, end) of the log with pread, 1 MiB at a time, into one buffer; returns how many bytes there were."""
    buffer = bytearray(1 << 20)
    done = 0
    for path, position, size in log_pieces(root, start, end):
        fd = os.open(path, os.O_RDONLY)
        try:
            for at in range(position, position + size, len(buffer)):
                wanted = min(len(buffer), position + size - at)
                done += os.preadv(fd, [memoryview(buffer)[:wanted]], at)
        finally:
            os.close(fd)
    return done


def into_page_cache(root: Path) -> None:
    """Read every file of a store: some kernels take back what nobody has looked at for half a minute."""
    buffer = bytearray(1 << 20)
    for path in root.rglob("*"):
        if path.is_file():
            with path.open("rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass
