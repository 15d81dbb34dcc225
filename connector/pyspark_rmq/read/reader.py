"""The batch reader, and the task that batch and stream share. Data plane: no object per message.

A task reads a slice in these steps, each of which calls the next one:

    read_partition           Spark's schema
    _read_columns            columns that the store does not have by itself
    read_matching            rows for which all conditions hold; heavy columns are read only of those
    read_slice               pieces are planned, read and reported: `slice_reader`
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_rmq.access.store_location import location_of
from pyspark_rmq.access.store_reader import StoreReader
from pyspark_rmq.options.options import DLQ_PREFIX, SourceOptions
from pyspark_rmq.position.planning import QueueSlice, split
from pyspark_rmq.read import away_brokers, starting_offsets
from pyspark_rmq.read.loss_detection import existing_or_fail
from pyspark_rmq.read.slice_reader import read_slice
from pyspark_rmq.schema.schema import source_columns

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    from pyspark_rmq.access.store_reader import Redriven
    from pyspark_rmq.schema.row_filters import Condition


_log = logging.getLogger(__name__)


class SlicePartition(InputPartition):
    """The part of a queue that one task reads: all of it, or the queue offsets `rows`, (n,) int64, ascending."""

    def __init__(self, part: QueueSlice, rows: np.ndarray | None = None) -> None:
        super().__init__(part)
        self.part = part
        self.rows = rows


class RmqReader(DataSourceReader):
    """The reader of `spark.read`: the range is fixed when the query is planned; nothing is committed."""

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
        starting_offsets.require_brokers(store, options)
        starting_offsets.warn_of_unlisted(store, options.subscription)
        ranges = starting_offsets.subscribed(store, options.subscription)
        away_brokers.warn(store, options, ranges)
        start = starting_offsets.batch_start(store, options, ranges)
        end = starting_offsets.batch_end(store, options, ranges)
        wanted = [QueueSlice(*queue, start[queue], end[queue]) for queue in ranges]
        return self._narrow(existing_or_fail(wanted, ranges, options))

    def _narrow(self, parts: list[QueueSlice]) -> list[QueueSlice]:
        """Leave out slices that certainly have no wanted row."""
        return parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of one task as record batches of the declared schema."""
        conditions = self._conditions
        # A store's index has compared the texts of its rows; brokers compare hashes.
        is_compared = isinstance(partition, SlicePartition) and partition.rows is not None
        if self._lookup is not None and (not is_compared or self._options.cluster is not None):
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
        options = replace(options, tags=None, sql92=None)
    if options.sql92 is not None:
        from pyspark_rmq.schema.row_filters import MatchesSql92

        conditions = [MatchesSql92(options.sql92), *conditions]
    stored = origin_columns.stored_columns(names, restore_topic=own)
    redriven = _redriven(store, part) if "redriven" in names else None
    for batch in read_matching(store, options, part, stored, conditions, partition.rows):
        if stored == list(names):
            yield batch
        else:
            yield origin_columns.complete(batch, names, store_topic=part.topic, restore_topic=own, redriven=redriven)


def _redriven(store: StoreReader, part: QueueSlice) -> Redriven | None:
    """Which messages of a dead-letter topic's queue were moved on; None for other topics, or if that is damaged."""
    if not part.topic.startswith(DLQ_PREFIX):
        return None
    from pyspark_rmq.schema import origin_columns
    from rmq_store.cluster import MQBrokerError, RemotingError, SlaveBehindError
    from rmq_store.errors import CorruptionError

    try:
        return store.redriven(part.topic.removeprefix(DLQ_PREFIX)).get(part.queue_id, origin_columns.NothingRedriven())
    except (CorruptionError, RemotingError, MQBrokerError, SlaveBehindError) as error:
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
    """Yield the messages of a slice (only its queue offsets `rows`, if given) for which all conditions hold.

    Columns that the conditions need are read of all messages, the others only of those for which they hold.
    """
    if not conditions:
        yield from read_slice(store, options, part, columns, rows)
        return
    from pyspark_rmq.schema.row_filters import where_all_hold

    filter_columns = dict.fromkeys(["queueOffset", *(name for condition in conditions for name in condition.columns)])
    # Brokers are asked once: what they send costs more than what is decoded.
    if options.cluster is not None or not _HEAVY.intersection(columns):
        filter_columns |= dict.fromkeys(columns)
    for batch in read_slice(store, options, part, list(filter_columns), rows):
        batch = where_all_hold(conditions, batch)
        if not batch.num_rows:
            continue
        if filter_columns.keys() >= set(columns):
            yield batch.select(columns)
            continue
        offsets = batch.column("queueOffset").to_numpy()
        rest = part._replace(start=int(offsets[0]), end=int(offsets[-1]) + 1)
        yield from read_slice(store, options, rest, columns, offsets)


# Worth a second read of the rows that are wanted.
_HEAVY = frozenset({"body", "properties"})
