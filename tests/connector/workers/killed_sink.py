"""Streams a topic into another one in a Spark of its own, and dies: `killed_sink.py STORE CHECKPOINT WHEN`.

WHEN is `before` or `after`: whether the sink has committed the batch by then; Spark's log of commits never has it.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pyspark_rmq.source import DefaultSource
from pyspark_rmq.write.writer import RmqStreamWriter, stream_writer

DRIVER = "RMQ_TEST_DRIVER"
WHEN = "RMQ_TEST_WHEN"


class KilledWriter(RmqStreamWriter):
    """Kills the process group of the driver, beside the commit of the sink."""

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """As the sink's, or not."""
        if os.environ[WHEN] == "after":
            super().commit(messages, batchId)
        os.killpg(int(os.environ[DRIVER]), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


class KilledSource(DefaultSource):
    """`format("rmq_killed")`."""

    @classmethod
    def name(cls) -> str:
        """Its name."""
        return "rmq_killed"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """The sink of `format("rmq")`, which dies."""
        from pyspark_rmq.options.options import sink_options

        writer = stream_writer(sink_options(self.options, "stream write"), schema, overwrite)
        return KilledWriter(writer.sink)


if __name__ == "__main__":
    store, checkpoint, when = sys.argv[1:]
    os.environ |= {DRIVER: str(os.getpgid(0)), WHEN: when}
    spark = (
        SparkSession.builder.master("local[2,4]")
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "OFF")
        .getOrCreate()
    )
    spark.dataSource.register(KilledSource)
    orders = spark.readStream.format("rmq").options(path=store, subscribe="Orders", group="cg").load()
    query = orders.select("keys", "body").writeStream.format("rmq_killed").options(path=store, topic="Bills")
    query.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
