"""Frames on their way into the log: copied piece by piece out of the encoded batches, and completed there (data plane).

What an append holds of its frames is two pieces, however large it is: while one is being written, a second thread
copies and completes the next.

    encoded batch   | f0 f1 f2 f3 f4 f5 f6 f7 ...          never written: it may be a mapped file
    pieces          | f0 f1 f2 |  f3 f4 f5 |  f6 ...       up to PIECE_BYTES, at least one frame
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from rmq_store.format.frame_patch import patch_frames

# Small enough to stay in the processor's cache from the copy to the write.
PIECE_BYTES = 1 << 20
# Large enough that to punch a hole does not cut the kernel's memory into pieces (large folios).
USED_BYTES = 8 << 20


class Piece(NamedTuple):
    """Frames of the rows [first, first + n) of an append: frame i is `frames[starts[i]:starts[i + 1]]`, uint8; `starts`
    is int64 (n + 1,). Valid until the next piece is asked for.
    """

    first: int
    starts: np.ndarray
    frames: np.ndarray


class _Source(NamedTuple):
    """A piece where it comes from: `bounds`, int64 (n + 1,), lie in `data`; `crc0` as `patch_frames` takes it.
    `used_up`: frames of its batch that are all copied with it: nothing, until they are worth telling of.
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


def filled(
    batches: Sequence[pa.RecordBatch],
    queue_offsets: np.ndarray,
    log_offsets: np.ndarray,
    store_timestamp_ms: int,
    *,
    has_crc: bool,
    used: Callable[[np.ndarray], None] = lambda source: None,
) -> Generator[Piece, None, None]:
    """The frames of encoded batches (ENCODED_SCHEMA), complete. `queue_offsets` and `log_offsets` are int64 (n,), for
    the rows of all; `has_crc`: the frames end with a CRC property. `used` is told of bytes that were copied, USED_BYTES
    of them at a time or what is left of a batch: they are not looked at again.
    """
    sources = list(_sources(batches, has_crc=has_crc))
    buffers = [np.empty(0, np.uint8), np.empty(0, np.uint8)]

    def fill(number: int) -> Piece:
        first, data, bounds, crc0, used_up = sources[number]
        starts = bounds - bounds[0]
        size, rows = int(starts[-1]), slice(first, first + len(bounds) - 1)
        if len(buffers[number % 2]) < size:
            buffers[number % 2] = np.empty(max(size, min(PIECE_BYTES, len(data))), np.uint8)
        frames = buffers[number % 2][:size]
        np.copyto(frames, data[bounds[0] : bounds[-1]])
        if len(used_up):
            used(used_up)
        offsets = queue_offsets[rows], log_offsets[rows]
        patch_frames(frames, starts[:-1], np.diff(starts), *offsets, store_timestamp_ms, crc0)
        return Piece(first, starts, frames)

    if len(sources) < 2:
        yield from map(fill, range(len(sources)))
        return
    with ThreadPoolExecutor(1) as helper:
        ahead = helper.submit(fill, 0)
        for number in range(1, len(sources)):
            piece = ahead.result()
            ahead = helper.submit(fill, number)
            yield piece
        yield ahead.result()


def _sources(batches: Sequence[pa.RecordBatch], *, has_crc: bool) -> Iterator[_Source]:
    first = 0
    for batch in batches:
        bounds = frame_bounds(batch)
        count = len(bounds) - 1
        data = np.frombuffer(batch.column("frame").buffers()[2], dtype=np.uint8) if count else np.empty(0, np.uint8)
        crc0 = batch.column("crc").to_numpy(zero_copy_only=False) if has_crc else None
        row, told = 0, int(bounds[0])
        while row < count:
            fits = int(np.searchsorted(bounds, bounds[row] + PIECE_BYTES, side="right")) - 1
            behind = max(row + 1, fits)
            used_up = data[told : bounds[behind]]
            if behind < count and len(used_up) < USED_BYTES:
                used_up = data[:0]
            told += len(used_up)
            crcs = None if crc0 is None else crc0[row:behind]
            yield _Source(first + row, data, bounds[row : behind + 1], crcs, used_up)
            row = behind
        first += count
