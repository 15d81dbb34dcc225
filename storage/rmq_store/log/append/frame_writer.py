"""Copies frames piece by piece out of encoded batches, and completes them on the way (data plane).

An append holds one piece of frames in memory for each writing thread, however large the append is.

    encoded batch   | f0 f1 f2 f3 f4 f5 f6 f7 ...          never written: it may be a mapped file
    pieces          | f0 f1 f2 |  f3 f4 f5 |  f6 ...       up to PIECE_BYTES, at least one frame
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from rmq_store.format.batches.frame_patch import patch_frames

# Small enough to stay in the processor's cache from the copy to the write.
PIECE_BYTES = 1 << 20
# For less, a second thread does not pay: where other processes want the processors, its turn comes milliseconds later.
FOR_TWO_PIECES = 4
# Large enough that to punch a hole does not cut the kernel's memory into pieces (large folios).
USED_BYTES = 8 << 20


class Piece(NamedTuple):
    """Frames of the rows [first, first + n) of an append: frame i is `frames[starts[i]:starts[i + 1]]`, uint8; `starts`
    is int64 (n + 1,). Valid until its thread asks for the next piece.
    """

    first: int
    starts: np.ndarray
    frames: np.ndarray


class _Source(NamedTuple):
    """A piece where it comes from: `bounds`, int64 (n + 1,), lie in `data`; `crc0` as `patch_frames` takes it.
    `used_up`: frames of its batch that are all copied with it and those before it: nothing, until they are worth
    telling of.
    """

    first: int
    data: np.ndarray
    bounds: np.ndarray
    crc0: np.ndarray | None
    used_up: np.ndarray


def frame_bounds(batch: pa.RecordBatch) -> np.ndarray:
    """int64 (n + 1,): where the frames of an encoded batch begin and end in its data buffer."""
    frames = batch.column("frame")
    return np.frombuffer(frames.buffers()[1], dtype=np.int64, count=len(frames) + 1, offset=8 * frames.offset)


class FrameWriter:
    """The complete frames of encoded batches (ENCODED_SCHEMA), for any number of threads; each piece goes to one
    thread.

    `queue_offsets` and `log_offsets` are int64 (n,), for the rows of all batches; `has_crc`: the frames end with a CRC
    property. Pieces may be finished in any order, but rows count only when all rows before them are finished. `through`
    is called with their number. `on_copied` is called with their bytes, USED_BYTES at a time or the rest of a batch;
    these bytes are not read again.
    """

    def __init__(
        self,
        batches: Sequence[pa.RecordBatch],
        queue_offsets: np.ndarray,
        log_offsets: np.ndarray,
        store_timestamp_ms: int,
        *,
        has_crc: bool,
        on_copied: Callable[[np.ndarray], None] = lambda source: None,
        through: Callable[[int], None] = lambda row_count: None,
    ) -> None:
        self._sources = list(_sources(batches, has_crc=has_crc))
        self._left = deque(range(len(self._sources)))
        self._offsets = queue_offsets, log_offsets
        self._store_timestamp_ms = store_timestamp_ms
        self._on_copied = on_copied
        self._through = through
        self._done: set[int] = set()
        self._first_open = 0
        self._lock = threading.Lock()

    def is_for_two(self) -> bool:
        """True if the frames are enough work for a second thread."""
        size_bytes = sum(int(source.bounds[-1] - source.bounds[0]) for source in self._sources)
        return len(self._sources) > 1 and size_bytes >= FOR_TWO_PIECES * PIECE_BYTES

    def pieces(self) -> Iterator[Piece]:
        """Yield, to one thread, pieces that no other thread gets, until none is left. Asking for the next piece
        finishes the last one.
        """
        buffer = np.empty(0, np.uint8)
        while True:
            try:
                number = self._left.popleft()
            except IndexError:
                return
            first, data, bounds, crc0, _ = self._sources[number]
            starts = bounds - bounds[0]
            size, rows = int(starts[-1]), slice(first, first + len(bounds) - 1)
            if len(buffer) < size:
                buffer = np.empty(max(size, min(PIECE_BYTES, len(data))), np.uint8)
            frames = buffer[:size]
            np.copyto(frames, data[bounds[0] : bounds[-1]])
            queue_offsets, log_offsets = (offsets[rows] for offsets in self._offsets)
            patch_frames(
                frames, starts[:-1], np.diff(starts), queue_offsets, log_offsets, self._store_timestamp_ms, crc0
            )
            yield Piece(first, starts, frames)
            self._finish(number)

    def stop(self) -> None:
        """Give out no more pieces."""
        self._left.clear()

    def _finish(self, number: int) -> None:
        with self._lock:
            self._done.add(number)
            first = behind = self._first_open
            while behind in self._done:
                self._done.remove(behind)
                behind += 1
            self._first_open = behind
        for source in self._sources[first:behind]:
            if len(source.used_up):
                self._on_copied(source.used_up)
        if behind > first:
            last = self._sources[behind - 1]
            self._through(last.first + len(last.bounds) - 1)


def _sources(batches: Sequence[pa.RecordBatch], *, has_crc: bool) -> Iterator[_Source]:
    first = 0
    for batch in batches:
        bounds = frame_bounds(batch)
        count = len(bounds) - 1
        data = np.frombuffer(batch.column("frame").buffers()[2], dtype=np.uint8) if count else np.empty(0, np.uint8)
        crc0 = batch.column("crc").to_numpy(zero_copy_only=False) if has_crc else None
        row, used_end = 0, int(bounds[0])
        while row < count:
            fits = int(np.searchsorted(bounds, bounds[row] + PIECE_BYTES, side="right")) - 1
            behind = max(row + 1, fits)
            used_up = data[used_end : bounds[behind]]
            if behind < count and len(used_up) < USED_BYTES:
                used_up = data[:0]
            used_end += len(used_up)
            crcs = None if crc0 is None else crc0[row:behind]
            yield _Source(first + row, data, bounds[row : behind + 1], crcs, used_up)
            row = behind
        first += count
