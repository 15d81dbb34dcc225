"""Writing with the option `sendBack` to the brokers of a cluster: each task sends its messages back by itself. Data
plane in `write`.

As for new messages (`cluster_writer`), nothing is left to the commit, and a repetition leaves out what is sent back. So
a batch that fails has sent some of its messages back, and those come again while its repetition runs.
"""

from __future__ import annotations

import contextlib
import logging
import time
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
from pyspark_rmq.schema.schema import send_back_columns
from pyspark_rmq.write.send_back_writer import query_reasons, send_back_rows
from pyspark_rmq.write.writer import refuse_table, stream_ids

if TYPE_CHECKING:
    import pyarrow as pa

    from rmq_store.cluster import SendBackReport, SendBackSettings

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SentBack(WriterCommitMessage):
    """A task's report to the driver."""

    report: SendBackReport


class ClusterSendBackWriter(DataSourceArrowWriter):
    """The writer of `df.write`."""

    def __init__(self, options: SinkOptions, names: Sequence[str]) -> None:
        self._options = options
        self._names = names
        if options.transaction is not None:
            application, version = options.transaction
            self._write, self._batch = _write_of(options, application), version
        else:
            self._write, self._batch = _write_of(options, uuid.uuid4().hex), 0

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send back the messages that the rows of one task name."""
        refuse_table()
        return SentBack(_send_back(self._options, self._names, self._write, self._batch, iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Log what the tasks have reported."""
        _summarize(self._options, messages)


class ClusterSendBackStreamWriter(DataSourceStreamArrowWriter):
    """The writer of `df.writeStream`."""

    def __init__(self, options: SinkOptions, names: Sequence[str]) -> None:
        self._options = options
        self._names = names

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send back the messages that the rows of one task of a micro-batch name."""
        query_id, batch_id, _ = stream_ids()
        write = _write_of(self._options, query_id)
        return SentBack(_send_back(self._options, self._names, write, int(batch_id), iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Log what the tasks have reported."""
        _summarize(self._options, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing to do: a repetition leaves out what is sent back."""


def batch_cluster_send_back_writer(options: SinkOptions, schema: StructType, overwrite: bool) -> ClusterSendBackWriter:
    """Check a batch write on the driver and return its writer. Raises `UsageError`."""
    return ClusterSendBackWriter(options, _names(schema, overwrite))


def stream_cluster_send_back_writer(
    options: SinkOptions, schema: StructType, overwrite: bool
) -> ClusterSendBackStreamWriter:
    """Check a streaming write on the driver and return its writer. Raises `UsageError`."""
    return ClusterSendBackStreamWriter(options, _names(schema, overwrite))


def _names(schema: StructType, overwrite: bool) -> tuple[str, ...]:
    if overwrite:
        refuse("with sendBack messages are added to a retry topic and nothing is replaced; use mode append")
    return send_back_columns(schema, of_cluster=True)


def _write_of(options: SinkOptions, name: str) -> str:
    """The write that records belong to. No group name has a "/" in it."""
    return f"back/{options.send_back}/{name}"


def send_back_settings(options: SinkOptions) -> SendBackSettings:
    """The same as the engine's settings."""
    from rmq_store.cluster import SendBackSettings

    assert options.cluster is not None and options.cluster_sink is not None  # options checked it
    assert options.send_back is not None
    sink = options.cluster_sink
    return SendBackSettings(
        options.send_back,
        options.max_reconsume_times,
        replay_check=sink.replay_check,
        resend_unknown=sink.resend_unknown,
        settle_ms=sink.settle_ms,
        send_timeout_ms=sink.send_timeout_ms,
        record_path=sink.marker_path,
        pull_group=options.cluster.pull_group,
        fail_on_weak_status=sink.fail_on_weak_status,
    )


def _send_back(
    options: SinkOptions, names: Sequence[str], write: str, batch: int, batches: Iterator[pa.RecordBatch]
) -> SendBackReport:
    from pyspark import TaskContext

    from rmq_store.cluster import SendBackTask, WritePart

    spare_modules()
    context = TaskContext.get()
    assert context is not None  # Spark calls write() in tasks only
    assert options.cluster is not None  # options checked it
    given = query_reasons(context)
    cluster = take(options.cluster)
    with contextlib.ExitStack() as stack:
        stack.callback(give_back, options.cluster)
        part = WritePart(write, batch, context.partitionId())
        task = stack.enter_context(SendBackTask(cluster, send_back_settings(options), part))
        for rows in batches:
            if rows.num_rows:
                task.write(_named(rows, names, send_back_rows(rows, names, given, time.time_ns() // 1_000_000)))
        return task.finish()


def _named(rows: pa.RecordBatch, names: Sequence[str], to_send: pa.RecordBatch) -> pa.RecordBatch:
    assert "brokerName" in names  # send_back_columns checked it
    return to_send.append_column("brokerName", rows.column("brokerName"))


def _summarize(options: SinkOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    reports = [message.report for message in messages if isinstance(message, SentBack)]
    assert options.cluster is not None  # options checked it
    place, group = options.cluster.name_server, options.send_back
    weak: dict[str, int] = {}
    for report in reports:
        for status, rows in report.weak.items():
            weak[status] = weak.get(status, 0) + rows
    for status, rows in weak.items():
        _log.warning("cluster of %s: %d messages of %s are sent back with status %s", place, rows, group, status)
    if found := sum(report.found for report in reports):
        _log.info("cluster of %s: %d messages of %s were sent back by an earlier try", place, found, group)
    if without := sum(report.without_reasons for report in reports):
        _log.warning("cluster of %s: %d messages of %s are sent back without their reasons", place, without, group)
