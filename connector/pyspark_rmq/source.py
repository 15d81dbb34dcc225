"""`format("rmq")`: the entry points of Spark's data source. Wiring only; everything is imported when it is needed.

Spark imports this module in every process that looks for data sources, so it must be light and must not fail.
"""

from __future__ import annotations

import time
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )


class DefaultSource(DataSource):
    """RocketMQ messages as rows: batch and stream, source and sink. Options are in docs/options.md."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        from pyspark_rmq.options.options import check_names

        super().__init__(options)
        check_names(options)

    def __reduce__(self) -> tuple[Any, ...]:
        """A task of a read unpickles the source before its reader."""
        from pyspark_rmq.access.executor_check import sent

        return sent(self)

    @classmethod
    def name(cls) -> str:
        """The name for `format(...)`."""
        return "rmq"

    def schema(self) -> StructType:
        """All columns of the source; with the options `group` and `dlq` also the origin columns."""
        from pyspark_rmq.access.spark_api import refuse_pushdown
        from pyspark_rmq.options.option_table import READ
        from pyspark_rmq.options.options import check_options, report_options
        from pyspark_rmq.schema.schema import source_schema

        # Spark calls this at load(), and of a read only; with a schema of the user's it calls nothing there.
        check_options(self.options, sorted(READ), _now_ms())
        refuse_pushdown(self.options)
        report = report_options(self.options)
        if report is not None:
            from pyspark_rmq.read.reports import report_schema

            return report_schema(report)
        return source_schema(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of `spark.read`."""
        from pyspark_rmq.access.spark_api import refuse_pushdown
        from pyspark_rmq.options.options import report_options, source_options
        from pyspark_rmq.read.reader import RmqReader

        refuse_pushdown(self.options)
        report = report_options(self.options)
        if report is not None:
            from pyspark_rmq.read.reports import ReportReader

            return ReportReader(report, schema)
        options = source_options(self.options, "batch read", _now_ms())
        if options.filter_pushdown:
            from pyspark_rmq.read.pushdown import PushingReader

            return PushingReader(options, schema)
        return RmqReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """The reader of `spark.readStream`."""
        from pyspark_rmq.access.spark_api import TELLS_STARTS
        from pyspark_rmq.older_spark.untold_reader import UntoldStreamReader
        from pyspark_rmq.options.options import commit_options, source_options
        from pyspark_rmq.read.refused_reader import RefusedStreamReader
        from pyspark_rmq.read.stream_reader import RmqStreamReader

        try:
            reader = RmqStreamReader(source_options(self.options, "stream read", _now_ms()), schema)
            return reader if TELLS_STARTS else UntoldStreamReader(reader, commit_options(self.options))
        except Exception as error:
            return RefusedStreamReader(error)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """The writer of `df.write`."""
        from pyspark_rmq.options.options import sink_options
        from pyspark_rmq.write.writer import batch_writer

        return batch_writer(sink_options(self.options, "batch write"), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """The writer of `df.writeStream`."""
        from pyspark_rmq.options.options import sink_options
        from pyspark_rmq.write.writer import stream_writer

        return stream_writer(sink_options(self.options, "stream write"), schema, overwrite)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
