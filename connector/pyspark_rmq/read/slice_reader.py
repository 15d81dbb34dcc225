"""Reads a slice: it is planned in pieces, each piece is read, and what is lost of it is reported. Data plane.

    plan      `plan_pieces`: what the queue says is lost is in the list of its piece, and is not read
    read      `_read_piece`: a damaged piece is halved until single damaged messages are left; they join the list
    report    `_reporting`: the list, when the piece is over, also if retention takes the rest of the piece. And what
              retention removed since the plan: then the loop of `read_slice` goes on after it

Without onCorruption=skip a slice is one piece. With it a piece is small enough to be held in memory, because a piece is
known to be sound only after it was read to its end.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark_rmq.access.queue_source import LostOffsets, QueueSource, Sizes, SliceRead
from pyspark_rmq.options.options import SourceOptions
from pyspark_rmq.position.planning import QueueSlice
from pyspark_rmq.read.loss_detection import existing_within, report_damage

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    from rmq_store.errors import OffsetOutOfRangeError

# Queue entries that are asked at once for lost messages. Bounds the memory for them, and the ranges of one report.
_LOST_ROWS = 1 << 18

# The size of a piece.
_PIECE_ROWS = 8192
_PIECE_BYTES = 32 << 20


def read_slice(store: QueueSource, options: SourceOptions, wanted: SliceRead) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a slice in queue order.

    Raises:
        DataLossError: messages are gone or damaged, and failOnDataLoss is on.
        CorruptionError: a message is damaged, and onCorruption is not skip.
    """
    from rmq_store.errors import OffsetOutOfRangeError

    rest: SliceRead | None = wanted
    while rest is not None:
        wanted = rest
        try:
            if not options.skip_corruption:
                yield from store.read_slice(wanted)
                return
            for piece in plan_pieces(store, wanted):
                with _reporting(piece, options):
                    yield from _read_piece(store, piece)
            return
        except OffsetOutOfRangeError as error:
            rest = _rest_after(error, wanted, options)


def _rest_after(error: OffsetOutOfRangeError, wanted: SliceRead, options: SourceOptions) -> SliceRead | None:
    """The rest to read after retention, or a crash, took messages of the slice: they are reported. Raises the error
    again if none is missing.
    """
    part = wanted.part
    # In the middle of the slice: the first message that was not read. Before it: an end of the slice itself.
    if error.requested < part.end:
        part = part._replace(start=max(part.start, error.requested))
    unread = replace(wanted, part=part)
    existing = existing_within(_ranges_of(unread), {part.queue: (error.minimum, error.maximum)}, options)
    if not existing:
        return None
    left = part._replace(start=existing[0].start, end=existing[-1].end)
    if left == part:
        raise error
    return replace(wanted, part=left)


def _ranges_of(wanted: SliceRead) -> list[QueueSlice]:
    """The ranges of a slice that are to be read."""
    part, rows = wanted.part, wanted.only
    if rows is None:
        return [part]
    import numpy as np

    rows = rows[np.searchsorted(rows, part.start) : np.searchsorted(rows, part.end)]
    runs = np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1)
    return [part._replace(start=int(run[0]), end=int(run[-1]) + 1) for run in runs if len(run)]


# -- plan -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Piece:
    """Messages that are read at once. The slice of `wanted` is empty if nothing of the piece can be read. `missing` has
    the queue offsets that are known to be lost, ascending; the read adds those that are damaged.
    """

    wanted: SliceRead
    missing: list[int]


def plan_pieces(store: QueueSource, wanted: SliceRead) -> Iterator[Piece]:
    """Plan the pieces of a slice, each when it is asked for.

    Raises:
        OffsetOutOfRangeError: retention removed messages since the slice was planned; names the first one that is not
            in an earlier piece.
        CorruptionError: the queue itself is damaged.
    """
    part, rows = wanted.part, wanted.only
    start = part.start
    while (start := _first_from(rows, start)) < part.end:
        end = min(start + _LOST_ROWS, part.end)
        if rows is not None:
            end = int(rows[rows.searchsorted(end) - 1]) + 1
        yield from _pieces(store, replace(wanted, part=part._replace(start=start, end=end)))
        start = end


def _pieces(store: QueueSource, wanted: SliceRead) -> Iterator[Piece]:
    import numpy as np

    part, rows = wanted.part, wanted.only
    lost = np.empty(0, np.int64)
    if isinstance(store, LostOffsets):
        with _naming_first(part.start):
            lost = store.lost_offsets(*part, tags=wanted.tags)
    if rows is not None:
        rows = rows[slice(*rows.searchsorted([part.start, part.end]))]
        lost = np.intersect1d(lost, rows, assume_unique=True)
    if len(lost):
        chosen = np.arange(part.start, part.end) if rows is None else rows
        rows = np.setdiff1d(chosen, lost, assume_unique=True)
    start = part.start
    while start < part.end:
        end = part.end
        if (first := _first_from(rows, start)) < part.end:
            with _naming_first(first):
                end = _piece_end(store, part, first)
            end = _after_lost(lost, end)  # so that a range that is lost as a whole is reported as one
        lost_here: list[int] = lost[lost.searchsorted(start) : lost.searchsorted(end)].tolist()
        yield Piece(replace(wanted, part=part._replace(start=min(first, end), end=end), only=rows), lost_here)
        start = end


def _piece_end(store: QueueSource, part: QueueSlice, first: int) -> int:
    end = min(first + _PIECE_ROWS, part.end)
    return store.offset_after_bytes(*part.queue, first, end, _PIECE_BYTES) if isinstance(store, Sizes) else end


def _first_from(rows: np.ndarray | None, start: int) -> int:
    """The first queue offset that is to be read, from `start` on."""
    if rows is None:
        return start
    at = int(rows.searchsorted(start))
    return int(rows[at]) if at < len(rows) else sys.maxsize


def _after_lost(lost: np.ndarray, start: int) -> int:
    """The first queue offset from `start` on that is not in `lost`, (n,) int64, ascending."""
    import numpy as np

    run = lost[lost.searchsorted(start) :]
    return start + int(np.count_nonzero(run == start + np.arange(len(run))))


@contextlib.contextmanager
def _naming_first(start: int) -> Iterator[None]:
    """Let an OffsetOutOfRangeError name the first message of the piece, if it names the end of the piece because the
    queue ends before that. The named message is the first one that was not read.
    """
    from rmq_store.errors import OffsetOutOfRangeError

    try:
        yield
    except OffsetOutOfRangeError as error:
        if error.requested <= error.maximum:
            raise
        raise OffsetOutOfRangeError(str(error), start, error.minimum, error.maximum) from error


# -- read -------------------------------------------------------------------------------------------------------------


def _read_piece(store: QueueSource, piece: Piece) -> Iterator[pa.RecordBatch]:
    """Yield the sound messages of a piece, halving it around damaged ones; adds the offsets of those to `missing`."""
    from rmq_store.errors import CorruptionError, OffsetOutOfRangeError

    part = piece.wanted.part
    if part.start >= part.end:
        return
    batches: list[pa.RecordBatch] = []
    try:
        with _naming_first(part.start):
            reading = store.read_slice(piece.wanted)
        for batch in reading:
            batches.append(batch)  # noqa: PERF402 - the batches before an error are wanted
    except OffsetOutOfRangeError:  # retention was faster
        yield from batches
        raise
    except CorruptionError:
        if part.end - part.start == 1:
            piece.missing.append(part.start)
            return
        middle = (part.start + part.end) // 2
        for half in (part._replace(end=middle), part._replace(start=middle)):
            yield from _read_piece(store, replace(piece, wanted=replace(piece.wanted, part=half)))
        return
    yield from batches


# -- report -----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _reporting(piece: Piece, options: SourceOptions) -> Iterator[None]:
    """Report the lost and damaged messages of a piece at the end of the block, that of a read."""
    from rmq_store.errors import OffsetOutOfRangeError

    missing = piece.missing
    try:
        yield
    except OffsetOutOfRangeError as error:
        missing = [offset for offset in missing if offset < error.requested]  # the others are lost to retention
        raise
    finally:
        # Also if retention takes the rest of the piece: earlier messages are not read again.
        if missing:
            report_damage(piece.wanted.part.queue, sorted(missing), options)
