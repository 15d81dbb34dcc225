"""The batch reader: plans the tasks of `spark.read`. Control plane. `task` is what each of them does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_rmq.access.executor_check import SentToExecutors
from pyspark_rmq.access.queue_source import QueueSource
from pyspark_rmq.access.same_release import MadeBy
from pyspark_rmq.access.store_location import location_of
from pyspark_rmq.options.options import SourceOptions
from pyspark_rmq.position.planning import QueueSlice, split
from pyspark_rmq.read import away_brokers, starting_offsets
from pyspark_rmq.read.loss_detection import existing_or_fail
from pyspark_rmq.read.task import SlicePartition, known_brokers, read_partition, with_brokers
from pyspark_rmq.schema.schema import source_columns

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_rmq.schema.row_filters import Condition


class RmqReader(SentToExecutors, DataSourceReader):
    """The reader of `spark.read`: the range is fixed when the query is planned; nothing is committed."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._made_by = MadeBy()
        self._lookup = options.lookup
        self._conditions: Sequence[Condition] = ()
        source_columns(schema)

    def partitions(self) -> Sequence[InputPartition]:
        """Plan the tasks. Raises `UnknownTopicError`, `UsageError`, `DataLossError` and what `Store.open` raises."""
        options = self._options
        with location_of(options).open_to_read() as store:
            existing = self._planned(store)
            known = known_brokers(store, existing)
            if self._lookup is not None:
                from pyspark_rmq.read.lookup import found_partitions

                return with_brokers(found_partitions(store, options, self._lookup, existing), known)
        del store  # what it knows of thousands of queues makes room for their partitions
        return with_brokers((SlicePartition(part) for part in split(existing, options.min_partitions)), known)

    def _planned(self, store: QueueSource) -> list[QueueSlice]:
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
        is_found = isinstance(partition, SlicePartition) and partition.rows is not None
        # Rows that an exact index has found need no second look.
        if self._lookup is not None and not (is_found and location_of(self._options).index_is_exact):
            from pyspark_rmq.schema.row_filters import MatchesLookup

            conditions = [MatchesLookup(self._lookup), *conditions]
        return read_partition(self._options, self._schema, partition, conditions)
