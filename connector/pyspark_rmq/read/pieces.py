"""The plan of a slice: the pieces that are read one after the other, each with its messages that are known to be lost.
Data plane.

Without onCorruption=skip a slice is one piece. With it a piece is small enough to be held in memory, because a piece is
known to be sound only after it was read to its end. The queue entries tell which messages are lost (`lost_offsets`):
those are reported, and not read. Damage inside a record is found only by reading it: see `slice_reader`.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from pyspark_rmq.access.store_reader import StoreReader
from pyspark_rmq.position.planning import QueueSlice

if TYPE_CHECKING:
    import numpy as np

# Queue entries that are asked at once for lost messages. Bounds the memory for them, and the ranges of one report.
_LOST_ROWS = 1 << 18

# The size of a piece.
_PIECE_ROWS = 8192
_PIECE_BYTES = 32 << 20


class Piece(NamedTuple):
    """Messages that are read at once: the slice `part`, or only its queue offsets `rows`, (n,) int64, ascending (None:
    all).

    `part` is empty if nothing of the piece can be read. `lost` has the queue offsets that are not read, ascending.
    """

    part: QueueSlice
    rows: np.ndarray | None
    lost: list[int]


def pieces_around_loss(
    store: StoreReader, part: QueueSlice, rows: np.ndarray | None, tags: str | None
) -> Iterator[Piece]:
    """Plan the pieces of a slice, or only of its queue offsets `rows`, each piece when it is asked for.

    Raises:
        OffsetOutOfRangeError: retention removed messages since the slice was planned; names the first one that is not
            in an earlier piece.
        CorruptionError: the queue itself is damaged.
    """
    start = part.start
    while (start := _first_from(rows, start)) < part.end:
        end = min(start + _LOST_ROWS, part.end)
        if rows is not None:
            end = int(rows[rows.searchsorted(end) - 1]) + 1
        yield from _pieces(store, part._replace(start=start, end=end), rows, tags)
        start = end


def _pieces(store: StoreReader, part: QueueSlice, rows: np.ndarray | None, tags: str | None) -> Iterator[Piece]:
    import numpy as np

    with naming_first(part.start):
        lost = store.lost_offsets(*part, tags=tags)
    if rows is not None:
        rows = rows[slice(*rows.searchsorted([part.start, part.end]))]
        lost = np.intersect1d(lost, rows, assume_unique=True)
    if len(lost):
        wanted = np.arange(part.start, part.end) if rows is None else rows
        rows = np.setdiff1d(wanted, lost, assume_unique=True)
    start = part.start
    while start < part.end:
        end = part.end
        if (first := _first_from(rows, start)) < part.end:
            with naming_first(first):
                end = store.offset_after_bytes(*part.queue, first, min(first + _PIECE_ROWS, part.end), _PIECE_BYTES)
            end = _after_lost(lost, end)  # so that a range that is lost as a whole is reported as one
        lost_here: list[int] = lost[lost.searchsorted(start) : lost.searchsorted(end)].tolist()
        yield Piece(part._replace(start=min(first, end), end=end), rows, lost_here)
        start = end


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
def naming_first(start: int) -> Iterator[None]:
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
