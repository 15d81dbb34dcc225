"""The batch reader, and the task that batch and stream share. Data plane: no object per message.

The way of a slice through a task, each step in the one before it:

    read_partition           Spark's schema
    _read_columns            columns that the store does not have by itself
    read_matching            rows for which all conditions hold; heavy columns are read only of those
    _read_what_exists        ranges that retention removed since the plan are reported
    _read_around_damage      with onCorruption=skip only: pieces, and reports of lost and damaged messages
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_rmq.access.store_location import location_of
from pyspark_rmq.access.store_reader import StoreReader
from pyspark_rmq.options.options import DLQ_PREFIX, SourceOptions
from pyspark_rmq.position.planning import QueueSlice, split
from pyspark_rmq.read import starting_offsets
from pyspark_rmq.read.loss_detection import existing_or_fail, existing_within, report_damage
from pyspark_rmq.schema.schema import source_columns

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    from pyspark_rmq.access.store_reader import Redriven
    from pyspark_rmq.schema.row_filters import Condition

    Read = Callable[[QueueSlice, np.ndarray | None], Iterator[pa.RecordBatch]]


_log = logging.getLogger(__name__)


class SlicePartition(InputPartition):
    """The part of a queue that one task reads: all of it, or just the queue offsets `rows`, (n,) int64, ascending."""

    def __init__(self, part: QueueSlice, rows: np.ndarray | None = None) -> None:
        super().__init__(part)
        self.part = part
        self.rows = rows


class RmqReader(DataSourceReader):
    """`spark.read`: the range is fixed when the query is planned; nothing is committed."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._lookup = options.lookup
        self._conditions: Sequence[Condition] = ()
        source_columns(schema)

    def partitions(self) -> Sequence[InputPartition]:
        """Plan the tasks. Raises `UnknownTopicError`, `UsageError`, `DataLossError` and what `Store.open` raises."""
        options = self._options
        with location_of(options).open_to_read() as store:
            existing = self._planned(store)
            if self._lookup is not None:
                from pyspark_rmq.read.lookup import found_partitions

                return found_partitions(store, options, self._lookup, existing)
        del store  # what it knows of thousands of queues makes room for their partitions
        return [SlicePartition(part) for part in split(existing, options.min_partitions)]

    def _planned(self, store: StoreReader) -> list[QueueSlice]:
        options = self._options
        starting_offsets.warn_of_unlisted(store, options.subscription)
        ranges = starting_offsets.subscribed(store, options.subscription)
        start = starting_offsets.batch_start(store, options, ranges)
        end = starting_offsets.batch_end(store, options, ranges)
        wanted = [QueueSlice(*queue, start[queue], end[queue]) for queue in ranges]
        return self._narrow(existing_or_fail(wanted, ranges, options))

    def _narrow(self, parts: list[QueueSlice]) -> list[QueueSlice]:
        """Leave out what is certainly not wanted."""
        return parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of one task as record batches of the declared schema."""
        conditions = self._conditions
        if self._lookup is not None and isinstance(partition, SlicePartition) and partition.rows is None:
            from pyspark_rmq.schema.row_filters import MatchesLookup

            conditions = [MatchesLookup(self._lookup), *conditions]
        return read_partition(self._options, self._schema, partition, conditions)


def read_partition(
    options: SourceOptions, schema: StructType, partition: InputPartition, conditions: Sequence[Condition] = ()
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a partition for which all conditions hold, in queue order.

    Spark checks the first batch against the declared schema: types, order and nullability must be exactly those.
    """
    # Spark makes a partition of its own if a batch plan has none.
    if not isinstance(partition, SlicePartition):
        return
    from pyspark.sql.pandas.types import to_arrow_schema

    expected = to_arrow_schema(schema, timezone="UTC")
    with location_of(options).in_task() as store:
        for batch in _read_columns(store, options, partition, conditions, schema.fieldNames()):
            yield batch if batch.schema.equals(expected) else batch.cast(expected)


def _read_columns(
    store: StoreReader,
    options: SourceOptions,
    partition: SlicePartition,
    conditions: Sequence[Condition],
    names: Sequence[str],
) -> Iterator[pa.RecordBatch]:
    """Yield the columns `names` of a partition, also those that the store does not have by itself."""
    from pyspark_rmq.schema import origin_columns

    part = partition.part
    own = part.topic == options.subscription.of_group
    if own and options.group is not None:
        # DefaultMQPushConsumerImpl.copySubscription: all of it. It has passed the filter before.
        options = replace(options, tags=None)
    stored = origin_columns.stored_columns(names, restore_topic=own)
    redriven = _redriven(store, part) if "redriven" in names else None
    for batch in read_matching(store, options, part, stored, conditions, partition.rows):
        if stored == list(names):
            yield batch
        else:
            yield origin_columns.complete(batch, names, store_topic=part.topic, restore_topic=own, redriven=redriven)


def _redriven(store: StoreReader, part: QueueSlice) -> Redriven | None:
    """Which messages of a dead-letter topic's queue were moved on; None for other topics, or if that is damaged."""
    from pyspark_rmq.schema import origin_columns
    from rmq_store.errors import CorruptionError

    if not part.topic.startswith(DLQ_PREFIX):
        return None
    try:
        return store.redriven(part.topic.removeprefix(DLQ_PREFIX)).get(part.queue_id, origin_columns.NothingRedriven())
    except CorruptionError as error:
        _log.warning("the column redriven of %s is NULL: %s", part.topic, error)
        return None


def read_matching(
    store: StoreReader,
    options: SourceOptions,
    part: QueueSlice,
    columns: Sequence[str],
    conditions: Sequence[Condition],
    rows: np.ndarray | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a slice (of these just `rows`) for which all conditions hold.

    Columns that the conditions need are read of all messages, the others only of those for which they hold.
    """
    if not conditions:
        yield from _read_what_exists(store, options, part, columns, rows)
        return
    from pyspark_rmq.schema.row_filters import where_all_hold

    filter_columns = dict.fromkeys(["queueOffset", *(name for condition in conditions for name in condition.columns)])
    if not _HEAVY.intersection(columns):
        filter_columns |= dict.fromkeys(columns)
    for batch in _read_what_exists(store, options, part, list(filter_columns), rows):
        batch = where_all_hold(conditions, batch)
        if not batch.num_rows:
            continue
        if filter_columns.keys() >= set(columns):
            yield batch.select(columns)
            continue
        offsets = batch.column("queueOffset").to_numpy()
        rest = part._replace(start=int(offsets[0]), end=int(offsets[-1]) + 1)
        yield from _read_what_exists(store, options, rest, columns, offsets)


def _read_what_exists(
    store: StoreReader, options: SourceOptions, part: QueueSlice, columns: Sequence[str], rows: np.ndarray | None
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a slice. What was removed since it was planned is reported, and the rest is read."""
    from rmq_store.errors import OffsetOutOfRangeError

    def read(part: QueueSlice, only: np.ndarray | None) -> Iterator[pa.RecordBatch]:
        return store.read(
            *part, columns=columns, tags=options.tags, raw_body=options.raw_body, only=only,
            two_threads=False,  # Spark runs a task for each processor
        )  # fmt: skip

    rest = [part]
    while rest:
        part = rest.pop()
        try:
            around = options.skip_corruption
            yield from _read_around_damage(store, options, part, rows, read) if around else read(part, rows)
        except OffsetOutOfRangeError as error:
            # In the middle of the slice: the first message that was not read. Before it: an end of the slice itself.
            if error.requested < part.end:
                part = part._replace(start=max(part.start, error.requested))
            existing = existing_within(_wanted(part, rows), {part.queue: (error.minimum, error.maximum)}, options)
            rest = [part._replace(start=existing[0].start, end=existing[-1].end)] if existing else []
            if rest == [part]:
                raise


def _wanted(part: QueueSlice, rows: np.ndarray | None) -> list[QueueSlice]:
    """What of a slice is to be read."""
    if rows is None:
        return [part]
    import numpy as np

    rows = rows[np.searchsorted(rows, part.start) : np.searchsorted(rows, part.end)]
    runs = np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1)
    return [part._replace(start=int(run[0]), end=int(run[-1]) + 1) for run in runs if len(run)]


def _read_around_damage(
    store: StoreReader, options: SourceOptions, part: QueueSlice, rows: np.ndarray | None, read: Read
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a slice but the damaged ones, which are reported. Pieces are held in memory, because only
    one that was read to its end is known to be sound. What the queue entries tell to be lost is not asked for.
    """
    start = part.start
    while (start := _first_from(rows, start)) < part.end:
        end = min(start + _LOST_ROWS, part.end)
        if rows is not None:
            end = int(rows[rows.searchsorted(end) - 1]) + 1
        yield from _read_around_lost(store, options, part._replace(start=start, end=end), rows, read)
        start = end


def _read_around_lost(
    store: StoreReader, options: SourceOptions, part: QueueSlice, rows: np.ndarray | None, read: Read
) -> Iterator[pa.RecordBatch]:
    import numpy as np

    from rmq_store.errors import OffsetOutOfRangeError

    with _naming_first(part.start):
        lost = store.lost_offsets(*part, tags=options.tags)
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
            with _naming_first(first):
                end = store.offset_after_bytes(*part.queue, first, min(first + _PIECE_ROWS, part.end), _PIECE_BYTES)
            end = _after_lost(lost, end)  # so that a range that is lost as a whole is reported as one
        damaged: list[int] = lost[lost.searchsorted(start) : lost.searchsorted(end)].tolist()
        try:
            if first < end:
                yield from _sound(part._replace(start=first, end=end), rows, read, damaged)
        except OffsetOutOfRangeError as error:
            damaged = [offset for offset in damaged if offset < error.requested]  # the others are lost to retention
            raise
        finally:
            # Also if retention takes the rest of the piece: what lies before it is not read again.
            if damaged:
                report_damage(part.queue, sorted(damaged), options)
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


def _sound(
    part: QueueSlice, rows: np.ndarray | None, read: Read, damaged: list[int]
) -> Iterator[pa.RecordBatch]:
    """Yield what can be read of a slice, halving it around what can not; adds the offsets of that to `damaged`."""
    from rmq_store.errors import CorruptionError, OffsetOutOfRangeError

    batches: list[pa.RecordBatch] = []
    try:
        with _naming_first(part.start):
            reading = read(part, rows)
        for batch in reading:
            batches.append(batch)  # noqa: PERF402 - what was read before an error is wanted
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


@contextlib.contextmanager
def _naming_first(start: int) -> Iterator[None]:
    """Have an error that names the end of a piece, because the queue ends before, name its first message instead: that
    is the first one that was not read.
    """
    from rmq_store.errors import OffsetOutOfRangeError

    try:
        yield
    except OffsetOutOfRangeError as error:
        if error.requested <= error.maximum:
            raise
        raise OffsetOutOfRangeError(str(error), start, error.minimum, error.maximum) from error


# What is worth a second look at the rows that are wanted.
_HEAVY = frozenset({"body", "properties"})

# Queue entries that are asked at once for what is lost: bounds what is held of them, and what one report can name.
_LOST_ROWS = 1 << 18

# What is read at once around damage.
_PIECE_ROWS = 8192
_PIECE_BYTES = 32 << 20
