"""The writers of `df.write` and `df.writeStream`, for every `Sink`. Data plane in `write`.

A batch write must not use the query and batch id that Spark shows it inside `foreachBatch`. Two writes of one batch see
the same ids, and the second would be taken for a repetition of the first.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pyspark_rmq.access.executor_check import SentToExecutors
from pyspark_rmq.access.spark_api import DataSourceStreamArrowWriter
from pyspark_rmq.options.options import NO_TABLES, SinkOptions
from pyspark_rmq.position.position import refuse
from pyspark_rmq.write.sink import BatchWrite, MicroBatch, Sink, TaskReport, sink_of

if TYPE_CHECKING:
    import pyarrow as pa


class RmqWriter(SentToExecutors, DataSourceArrowWriter):
    """The writer of `df.write`."""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        # Made on the driver; the tasks and the commit get copies of this object.
        self._unit = BatchWrite(uuid.uuid4().hex)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task. Raises `UsageError` in a write that also creates a table (`refuse_table`)."""
        refuse_table()
        return TaskReport(self._unit, self.sink.write_task(self._unit, iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """End the write. Raises what `Sink.finish` raises."""
        reports = _reports(messages)
        self.sink.finish(reports, len(messages) - len(reports), None)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Remove what the tasks have left, whether they reported or not."""
        self.sink.discard([self._unit])


class RmqStreamWriter(SentToExecutors, DataSourceStreamArrowWriter):
    """The writer of `df.writeStream`. Each step is a process with its own object."""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task of a micro-batch."""
        query_id, batch_id, run_id = stream_ids()
        unit = MicroBatch(query_id, int(batch_id), run_id)
        return TaskReport(unit, self.sink.write_task(unit, iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """End the micro-batch. Raises what `Sink.finish` raises."""
        reports = _reports(messages)
        self.sink.finish(reports, len(messages) - len(reports), batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Remove what the tasks have left that reported."""
        self.sink.discard({report.unit for report in _reports(messages)})


def batch_writer(options: SinkOptions, schema: StructType, overwrite: bool) -> RmqWriter:
    """Check a batch write on the driver and return its writer. Raises `UsageError` and `NotAStoreError`."""
    return RmqWriter(sink_of(options, schema, "mode overwrite" if overwrite else None))


def stream_writer(options: SinkOptions, schema: StructType, overwrite: bool) -> RmqStreamWriter:
    """Check a streaming write on the driver and return its writer. Raises `UsageError` and `NotAStoreError`."""
    return RmqStreamWriter(sink_of(options, schema, "output mode complete" if overwrite else None))


def _reports(messages: Sequence[WriterCommitMessage | None]) -> list[TaskReport]:
    return [message for message in messages if isinstance(message, TaskReport)]


def refuse_table() -> None:
    """Raise `UsageError` in a task of `saveAsTable` or CREATE TABLE AS SELECT. Spark does not name the statement to the
    driver's side of a writer. It runs the write as a part of the statement that makes the table, and then drops the
    table. A write that makes no table is part of no statement, except in `foreachBatch`, where it is part of a stream's
    batch.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None  # Spark calls write() in tasks only
    own, root = (context.getLocalProperty(f"spark.sql.execution.{name}") for name in ("id", "root.id"))
    if own != root and root is not None and context.getLocalProperty("sql.streaming.queryId") is None:
        refuse(f"saveAsTable and the like write nothing: {NO_TABLES}")


def stream_ids() -> tuple[str, str, str]:
    """Query id, batch id and run id of the task that calls this. Raises `UsageError` if Spark does not provide them."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None  # Spark calls write() in tasks only
    query_id = context.getLocalProperty("sql.streaming.queryId")
    batch_id = context.getLocalProperty("streaming.sql.batchId")
    if query_id is None or batch_id is None:
        refuse("this Spark does not tell tasks which streaming query and batch they belong to; 4.0 or newer is needed")
    # StreamExecution: the job group of a query is its run id.
    return query_id, batch_id, context.getLocalProperty("spark.jobGroup.id") or "run"
