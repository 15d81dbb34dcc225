"""The one loop that reads a slice, and the one place that reports its lost and damaged messages. Data plane.

    piece planned     `pieces`: messages that the queue entries say are lost are in its list
    piece read        a damaged piece is halved until single damaged messages are left; they join the list
    piece over        the list is reported, also if retention takes the rest of the piece
    retention         messages that it removed since the plan are reported, and the loop goes on after them
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark_rmq.access.store_reader import StoreReader
from pyspark_rmq.options.options import SourceOptions
from pyspark_rmq.position.planning import QueueSlice
from pyspark_rmq.read.loss_detection import existing_within, report_damage
from pyspark_rmq.read.pieces import Piece, naming_first, pieces_around_loss

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    Read = Callable[[QueueSlice, np.ndarray | None], Iterator[pa.RecordBatch]]


def read_slice(
    store: StoreReader, options: SourceOptions, part: QueueSlice, columns: Sequence[str], rows: np.ndarray | None
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a slice, or only of its queue offsets `rows`, in queue order.

    Raises:
        DataLossError: messages are gone or damaged, and failOnDataLoss is on.
        CorruptionError: a message is damaged, and onCorruption is not skip.
    """
    from rmq_store.errors import OffsetOutOfRangeError

    def read(part: QueueSlice, only: np.ndarray | None) -> Iterator[pa.RecordBatch]:
        return store.read(
            *part, columns=columns, tags=options.tags, raw_body=options.raw_body, only=only,
            two_threads=False,  # Spark runs a task for each processor
        )  # fmt: skip

    rest: QueueSlice | None = part
    while rest is not None:
        part = rest
        try:
            if not options.skip_corruption:
                yield from read(part, rows)
                return
            for piece in pieces_around_loss(store, part, rows, options.tags):
                yield from _read_piece(piece, read, options)
            return
        except OffsetOutOfRangeError as error:
            # In the middle of the slice: the first message that was not read. Before it: an end of the slice itself.
            if error.requested < part.end:
                part = part._replace(start=max(part.start, error.requested))
            existing = existing_within(_wanted(part, rows), {part.queue: (error.minimum, error.maximum)}, options)
            rest = part._replace(start=existing[0].start, end=existing[-1].end) if existing else None
            if rest == part:
                raise


def _read_piece(piece: Piece, read: Read, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """Yield the sound messages of a piece, and report the others."""
    from rmq_store.errors import OffsetOutOfRangeError

    missing = list(piece.lost)
    try:
        if piece.part.start < piece.part.end:
            yield from _sound(piece.part, piece.rows, read, missing)
    except OffsetOutOfRangeError as error:
        missing = [offset for offset in missing if offset < error.requested]  # the others are lost to retention
        raise
    finally:
        # Also if retention takes the rest of the piece: earlier messages are not read again.
        if missing:
            report_damage(piece.part.queue, sorted(missing), options)


def _sound(
    part: QueueSlice, rows: np.ndarray | None, read: Read, damaged: list[int]
) -> Iterator[pa.RecordBatch]:
    """Yield the sound messages of a slice, halving it around damaged ones; adds the offsets of those to `damaged`."""
    from rmq_store.errors import CorruptionError, OffsetOutOfRangeError

    batches: list[pa.RecordBatch] = []
    try:
        with naming_first(part.start):
            reading = read(part, rows)
        for batch in reading:
            batches.append(batch)  # noqa: PERF402 - the batches before an error are wanted
    except OffsetOutOfRangeError:  # retention was faster
        yield from batches
        raise
    except CorruptionError:
        if part.end - part.start == 1:
            damaged.append(part.start)
            return
        middle = (part.start + part.end) // 2
        yield from _sound(part._replace(end=middle), rows, read, damaged)
        yield from _sound(part._replace(start=middle), rows, read, damaged)
        return
    yield from batches


def _wanted(part: QueueSlice, rows: np.ndarray | None) -> list[QueueSlice]:
    """The ranges of a slice that are to be read."""
    if rows is None:
        return [part]
    import numpy as np

    rows = rows[np.searchsorted(rows, part.start) : np.searchsorted(rows, part.end)]
    runs = np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1)
    return [part._replace(start=int(run[0]), end=int(run[-1]) + 1) for run in runs if len(run)]
