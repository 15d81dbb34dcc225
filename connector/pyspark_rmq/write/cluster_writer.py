"""Writing to the brokers of a cluster: each task sends its own rows, and nothing is left to the commit. Data plane in
`write`.

    a stream, and a batch write with txnAppId     a task that was tried before leaves out what is stored already
    another batch write, or replayCheck=false     at least once: a task that runs again sends all of its rows again

Readers see rows as soon as a broker has stored them, also those of a batch that fails later.
"""

from __future__ import annotations

import contextlib
import logging
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pyspark_rmq.access.cluster_pool import give_back, take
from pyspark_rmq.access.spark_worker import spare_modules
from pyspark_rmq.options.options import SinkOptions
from pyspark_rmq.position.position import refuse
from pyspark_rmq.schema.schema import SinkColumns, sink_columns
from pyspark_rmq.write.writer import refuse_table, stream_ids

if TYPE_CHECKING:
    import pyarrow as pa

    from rmq_store.cluster import SinkReport, SinkSettings

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Sent(WriterCommitMessage):
    """A task's report to the driver."""

    report: SinkReport


class ClusterWriter(DataSourceArrowWriter):
    """`df.write`: each task sends its rows."""

    def __init__(self, options: SinkOptions, columns: SinkColumns) -> None:
        self._options = options
        self._columns = columns
        if options.transaction is not None:
            application, version = options.transaction
            # Each target counts for itself, as in a store. No topic name has a "/" in it.
            self._write, self._batch = f"txn/{options.topic or ''}/{application}", version
        else:
            self._write, self._batch = f"write/{uuid.uuid4().hex}", 0

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send the rows of one task. Raises `UsageError` in a write that would also make a table."""
        refuse_table()
        return Sent(_send(self._options, self._columns, self._write, self._batch, iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Log what the tasks have reported."""
        _summarize(self._options, messages)


class ClusterStreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream`: each task sends its rows."""

    def __init__(self, options: SinkOptions, columns: SinkColumns) -> None:
        self._options = options
        self._columns = columns

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send the rows of one task of a micro-batch."""
        query_id, batch_id, _ = stream_ids()
        return Sent(_send(self._options, self._columns, f"query/{query_id}", int(batch_id), iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Log what the tasks have reported."""
        _summarize(self._options, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing to do: a repetition leaves out what is stored."""


def batch_cluster_writer(options: SinkOptions, schema: StructType, overwrite: bool) -> ClusterWriter:
    """Check a batch write on the driver and return its writer. Raises `UsageError`."""
    if overwrite:
        refuse("mode overwrite is not possible: messages of a topic cannot be replaced; use mode append")
    return ClusterWriter(options, _columns(options, schema))


def stream_cluster_writer(options: SinkOptions, schema: StructType, overwrite: bool) -> ClusterStreamWriter:
    """Check a streaming write on the driver and return its writer. Raises `UsageError`."""
    if overwrite:
        refuse("output mode complete is not possible: messages of a topic cannot be replaced; use output mode append")
    return ClusterStreamWriter(options, _columns(options, schema))


def _columns(options: SinkOptions, schema: StructType) -> SinkColumns:
    columns = sink_columns(schema, topic_given=options.topic is not None, use_queue_id=options.use_queue_id)
    if options.use_queue_id and "brokerName" in schema.fieldNames():
        return SinkColumns(columns.body, (*columns.used, "brokerName"))
    return columns


def sink_settings(options: SinkOptions, columns: SinkColumns) -> SinkSettings:
    """The same as the engine's settings."""
    from rmq_store.cluster import EncoderSettings, PipelineSettings, SinkSettings

    assert options.cluster is not None and options.cluster_sink is not None  # options checked it
    sink = options.cluster_sink
    return SinkSettings(
        EncoderSettings(
            options.topic, options.use_queue_id, options.keep_uniq_key, options.compress_over_bytes,
            columns.dropped_properties(keep_uniq_key=options.keep_uniq_key),
        ),
        PipelineSettings(send_timeout_ms=sink.send_timeout_ms, fail_on_weak_status=sink.fail_on_weak_status),
        replay_check=sink.replay_check,
        resend_unknown=sink.resend_unknown,
        settle_ms=sink.settle_ms,
        patience_ms=sink.send_timeout_ms,
        record_path=sink.marker_path,
        new_topic_queues=4 if sink.create_topic else 0,
        pull_group=options.cluster.pull_group,
    )  # fmt: skip


def _send(
    options: SinkOptions, columns: SinkColumns, write: str, batch: int, batches: Iterator[pa.RecordBatch]
) -> SinkReport:
    from pyspark import TaskContext

    from rmq_store.cluster import SinkTask, WritePart

    spare_modules()
    context = TaskContext.get()
    assert context is not None  # Spark calls write() in tasks only
    assert options.cluster is not None  # options checked it
    cluster = take(options.cluster)
    with contextlib.ExitStack() as stack:
        stack.callback(give_back, options.cluster)
        part = WritePart(write, batch, context.partitionId())
        task = stack.enter_context(SinkTask(cluster, sink_settings(options, columns), part))
        for rows in batches:
            if rows.num_rows:
                task.write(columns.input_of(rows))
        return task.finish()


def _summarize(options: SinkOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    reports = [message.report for message in messages if isinstance(message, Sent)]
    weak: dict[str, int] = {}
    for report in reports:
        for status, rows in report.weak.items():
            weak[status] = weak.get(status, 0) + rows
    assert options.cluster is not None  # options checked it
    place = options.cluster.name_server
    for status, rows in weak.items():
        _log.warning("cluster of %s: %d rows are stored with status %s", place, rows, status)
    if skipped := sum(report.skipped + report.found for report in reports):
        _log.info("cluster of %s: %d rows were stored by an earlier try", place, skipped)
    if late := sum(report.late for report in reports):
        _log.error("cluster of %s: %d rows of a dead attempt came late, and may be stored twice", place, late)
