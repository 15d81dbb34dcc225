"""The work of a task, of a batch and of a stream. Data plane: no object per message.

Each step calls the next one, and none of those before:

    read_partition     Spark's schema
    _read_columns      columns that the engine does not have by itself; the read becomes a `SliceRead`
    read_matching      rows for which all conditions hold; heavy columns are read only of those
    read_slice         the messages, and what is lost of them: `slice_reader`
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from pyspark_rmq.access.queue_source import Brokers, QueueSource, SliceRead
from pyspark_rmq.access.store_location import location_of
from pyspark_rmq.options.options import DLQ_PREFIX, SourceOptions
from pyspark_rmq.position.planning import QueueSlice
from pyspark_rmq.read.slice_reader import read_slice

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    from pyspark_rmq.access.queue_source import Redriven
    from pyspark_rmq.position.queue_ids import QueueId
    from pyspark_rmq.schema.row_filters import Condition
    from rmq_store.cluster import KnownRoutes

_log = logging.getLogger(__name__)

# Worth a second read of the rows that are wanted.
_HEAVY = frozenset({"body", "properties"})


class SlicePartition(InputPartition):
    """The part of a queue that one task reads: all of it, or the queue offsets `rows`, (n,) int64, ascending. `known`:
    how the planning process finds the broker of the queue; None: there is no broker.
    """

    def __init__(self, part: QueueSlice, rows: np.ndarray | None = None, known: KnownRoutes | None = None) -> None:
        super().__init__(part)
        self.part = part
        self.rows = rows
        self.known = known


def known_brokers(store: QueueSource, parts: Iterable[QueueSlice]) -> Mapping[QueueId, KnownRoutes]:
    """The known addresses of the brokers of slices, by queue id; none of a store in a directory."""
    return store.known_brokers(part.queue for part in parts) if isinstance(store, Brokers) else {}


def with_brokers(
    partitions: Iterable[SlicePartition], known: Mapping[QueueId, KnownRoutes]
) -> list[InputPartition]:
    """The partitions, with what is known of their brokers: a task then asks no name server, and needs none."""
    made: list[InputPartition] = []
    for partition in partitions:
        partition.known = known.get(partition.part.queue_id)
        made.append(partition)
    return made


def read_partition(
    options: SourceOptions, schema: StructType, partition: InputPartition, conditions: Sequence[Condition] = ()
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a partition for which all conditions hold, in queue order.

    Spark checks the first batch against the declared schema: types, order and nullability must be exactly those.
    """
    # Spark makes a partition of its own if a batch plan has none.
    if not isinstance(partition, SlicePartition):
        return
    from pyspark_rmq.access.spark_api import arrow_schema

    expected = arrow_schema(schema)
    with location_of(options).in_task() as store:
        if partition.known is not None and isinstance(store, Brokers):
            store.take_over(partition.known)
        for batch in _read_columns(store, options, partition, conditions, schema.fieldNames()):
            yield batch if batch.schema.equals(expected) else batch.cast(expected)


def _read_columns(
    store: QueueSource,
    options: SourceOptions,
    partition: SlicePartition,
    conditions: Sequence[Condition],
    names: Sequence[str],
) -> Iterator[pa.RecordBatch]:
    """Yield the columns `names` of a partition, also those that the store does not have by itself."""
    from pyspark_rmq.schema import origin_columns

    part = partition.part
    own = part.topic == options.subscription.of_group
    # DefaultMQPushConsumerImpl.copySubscription: all of what came back. It has passed the filter before.
    is_filtered = not (own and options.group is not None)
    if is_filtered and options.sql92 is not None:
        from pyspark_rmq.schema.row_filters import MatchesSql92

        conditions = [MatchesSql92(options.sql92), *conditions]
    stored = origin_columns.stored_columns(names, restore_topic=own)
    redriven: Redriven | None = None
    wanted = SliceRead(part, stored, options.tags if is_filtered else None, options.raw_body, partition.rows)
    has_rows = False
    for batch in read_matching(store, options, wanted, conditions):
        if "redriven" in names and not has_rows:
            # Now the broker is there, if it was waited for.
            redriven, has_rows = _redriven(store, part), True
        if stored == list(names):
            yield batch
        else:
            yield origin_columns.complete(batch, names, store_topic=part.topic, restore_topic=own, redriven=redriven)


def _redriven(store: QueueSource, part: QueueSlice) -> Redriven | None:
    """Flags of a dead-letter queue's messages that were moved on; None for other topics, or if that is damaged."""
    if not part.topic.startswith(DLQ_PREFIX):
        return None
    from pyspark_rmq.schema import origin_columns
    from rmq_store.cluster import MQBrokerError, RemotingError, SlaveBehindError
    from rmq_store.errors import CorruptionError

    try:
        found = store.redriven_of(part.topic.removeprefix(DLQ_PREFIX), part.queue_id)
        return origin_columns.NothingRedriven() if found is None else found
    except (CorruptionError, RemotingError, MQBrokerError, SlaveBehindError) as error:
        _log.warning("the column redriven of %s is NULL: %s", part.topic, error)
        return None


def read_matching(
    store: QueueSource, options: SourceOptions, wanted: SliceRead, conditions: Sequence[Condition]
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a slice for which all conditions hold. `options` say what happens when some are lost.

    Columns that the conditions need are read of all messages, the others only of those for which they hold.
    """
    if not conditions:
        yield from read_slice(store, options, wanted)
        return
    from pyspark_rmq.schema.row_filters import where_all_hold

    columns = wanted.columns
    filter_columns = dict.fromkeys(["queueOffset", *(name for condition in conditions for name in condition.columns)])
    if not store.second_read_is_cheap or not _HEAVY.intersection(columns):
        filter_columns |= dict.fromkeys(columns)
    for batch in read_slice(store, options, replace(wanted, columns=list(filter_columns))):
        batch = where_all_hold(conditions, batch)
        if not batch.num_rows:
            continue
        if filter_columns.keys() >= set(columns):
            yield batch.select(columns)
            continue
        offsets = batch.column("queueOffset").to_numpy()
        rest = wanted.part._replace(start=int(offsets[0]), end=int(offsets[-1]) + 1)
        yield from read_slice(store, options, replace(wanted, part=rest, only=offsets))
