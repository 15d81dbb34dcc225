"""Batch reads of reports: an option asks for one, and it has columns of its own.

    dataLoss       losses that queries of this store accepted                            `loss_report.py`
    brokerWaits    messages that only a broker delivers: its wheel's timers, half ones   `Store.broker_backlog`
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType, TimestampType

from pyspark_rmq.access.executor_check import SentToExecutors
from pyspark_rmq.access.store_location import StoreDirectory
from pyspark_rmq.options.options import ReportOptions
from pyspark_rmq.position.position import refuse
from pyspark_rmq.read.loss_report import LOSS_SCHEMA, loss_rows
from rmq_store.errors import did_you_mean

if TYPE_CHECKING:
    import pyarrow as pa

WAITS_SCHEMA: Final = StructType(
    [
        StructField("kind", StringType()),
        StructField("topic", StringType()),
        StructField("queueId", IntegerType()),
        StructField("msgId", StringType()),
        StructField("tags", StringType()),
        StructField("keys", StringType()),
        StructField("storeTimestamp", TimestampType()),
        StructField("dueTimestamp", TimestampType()),
        StructField("producerGroup", StringType()),
        StructField("checkTimes", IntegerType()),
        StructField("commitLogOffset", LongType()),
    ]
)

_SCHEMAS: Final = {"dataLoss": LOSS_SCHEMA, "brokerWaits": WAITS_SCHEMA}


def report_schema(options: ReportOptions) -> StructType:
    """All columns of the report."""
    return _SCHEMAS[options.name]


class ReportReader(SentToExecutors, DataSourceReader):
    """Reads a report in one task. `schema` has the wanted columns in any order.

    Raises (when constructed):
        UsageError: the report has no such column.
    """

    def __init__(self, options: ReportOptions, schema: StructType) -> None:
        known = _SCHEMAS[options.name].names
        unknown = [name for name in schema.fieldNames() if name not in known]
        if unknown or not schema.fields:
            hint = did_you_mean(unknown[0], known) if unknown else ""
            refuse(f"the report {options.name} has no column {unknown}; it has {', '.join(known)}{hint}")
        self._options = options
        self._names = schema.fieldNames()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows: losses oldest first; messages of a broker in the order of the log, timers first."""
        location = StoreDirectory(self._options.path, commit_log_paths=self._options.commit_log_paths)
        if self._options.name == "dataLoss":
            yield loss_rows(location).select(self._names)
        else:
            for batch in location.broker_backlog():
                yield batch.select(self._names)
