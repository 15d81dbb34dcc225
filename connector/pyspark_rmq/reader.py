"""The batch reader, and what a task does in batch and stream alike. Data plane: no object per message."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_rmq import positions
from pyspark_rmq.continuity import keep_or_fail, keep_within, report_damage
from pyspark_rmq.home import Home, open_to_read
from pyspark_rmq.options import SourceOptions
from pyspark_rmq.planning import QueueSlice, split
from pyspark_rmq.schema import source_columns

if TYPE_CHECKING:
    import pyarrow as pa


class SlicePartition(InputPartition):
    """The part of a queue that one task reads."""

    def __init__(self, part: QueueSlice) -> None:
        super().__init__(tuple(part))
        self.part = part


class RmqReader(DataSourceReader):
    """`spark.read`: the range is fixed when the query is planned; nothing is committed."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        source_columns(schema)

    def partitions(self) -> Sequence[InputPartition]:
        """Plan the tasks. Raises `UnknownTopicError`, `UsageError`, `DataLossError` and what `Store.open` raises."""
        options = self._options
        with open_to_read(options) as home:
            ranges = positions.subscribed(home, options.subscription)
            start = positions.batch_start(home, options, ranges)
            end = positions.batch_end(home, options, ranges)
            wanted = [QueueSlice(*queue, start[queue], end[queue]) for queue in ranges]
        kept = keep_or_fail(wanted, ranges, options)
        return [SlicePartition(part) for part in split(kept, options.min_partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of one task as record batches of the declared schema."""
        return read_partition(self._options, self._schema, partition)


def read_partition(options: SourceOptions, schema: StructType, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a partition, in queue order.

    Spark checks the first batch against the declared schema: types, order and nullability must be exactly those.
    """
    # Spark makes a partition of its own if a batch plan has none.
    if not isinstance(partition, SlicePartition):
        return
    from pyspark.sql.pandas.types import to_arrow_schema

    expected = to_arrow_schema(schema, timezone="UTC")
    with open_to_read(options) as home:
        for batch in _read_columns(home, options, partition.part, schema.fieldNames()):
            yield batch if batch.schema.equals(expected) else batch.cast(expected)


def _read_columns(
    home: Home, options: SourceOptions, part: QueueSlice, names: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the columns `names` of a slice, also those that the store does not have by itself."""
    from pyspark_rmq import origin

    own = part.topic == options.subscription.of_group
    if own and options.group is not None:
        # DefaultMQPushConsumerImpl.copySubscription: all of it. It has passed the filter before.
        options = replace(options, tags=None)
    stored = origin.stored_columns(names, restore_topic=own)
    for batch in _read_what_exists(home, options, part, stored):
        if stored == list(names):
            yield batch
        else:
            yield origin.complete(batch, names, store_topic=part.topic, restore_topic=own)


def _read_what_exists(
    home: Home, options: SourceOptions, part: QueueSlice, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a slice. What was removed since it was planned is reported, and the rest is read."""
    from rmq_store.errors import OffsetOutOfRangeError

    read = _read_around_damage if options.skip_corruption else _read
    rest = [part]
    while rest:
        part = rest.pop()
        try:
            yield from read(home, options, part, columns)
        except OffsetOutOfRangeError as error:
            # In the middle of the slice: the first message that was not read. Before it: an end of the slice itself.
            if error.requested < part.end:
                part = part._replace(start=max(part.start, error.requested))
            rest = keep_within([part], {part.queue: (error.minimum, error.maximum)}, options)
            if rest == [part]:
                raise


def _read(home: Home, options: SourceOptions, part: QueueSlice, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    return home.read(*part, columns=columns, tags=options.tags, raw_body=options.raw_body)


def _read_around_damage(
    home: Home, options: SourceOptions, part: QueueSlice, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a slice but the damaged ones, which are reported. Pieces are held in memory, because only
    one that was read to its end is known to be sound.
    """
    start = part.start
    while start < part.end:
        end = home.offset_after_bytes(*part.queue, start, min(start + _PIECE_ROWS, part.end), _PIECE_BYTES)
        damaged: list[int] = []
        yield from _sound(home, options, part._replace(start=start, end=end), columns, damaged)
        if damaged:
            report_damage(part.queue, damaged, options)
        start = end


def _sound(
    home: Home, options: SourceOptions, part: QueueSlice, columns: Sequence[str], damaged: list[int]
) -> Iterator[pa.RecordBatch]:
    """Yield what can be read of a slice, halving it around what can not; adds the offsets of that to `damaged`."""
    from rmq_store.errors import CorruptionError

    try:
        batches = list(_read(home, options, part, columns))
    except CorruptionError:
        if part.end - part.start == 1:
            damaged.append(part.start)
            return
        middle = (part.start + part.end) // 2
        yield from _sound(home, options, part._replace(end=middle), columns, damaged)
        yield from _sound(home, options, part._replace(start=middle), columns, damaged)
        return
    yield from batches


# What is read at once around damage.
_PIECE_ROWS = 8192
_PIECE_BYTES = 32 << 20
