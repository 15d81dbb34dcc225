"""The sinks of a cluster: each task sends its own rows, and nothing is left to the end of the write. Data plane in
`write_task`.

    a stream, and a batch write with txnAppId     a task that was tried before leaves out what is stored already
    another batch write, or replayCheck=false     at least once: a task that runs again sends all of its rows again

Readers see rows as soon as a broker has stored them, also those of a batch that fails later. For messages that are sent
back that means: they come again while a repetition of the batch that failed still runs.
"""

from __future__ import annotations

import abc
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import StructType

from pyspark_rmq.access.cluster_pool import give_back, known_routes, take
from pyspark_rmq.access.spark_worker import spare_modules
from pyspark_rmq.options.cluster_options import ClusterSinkOptions
from pyspark_rmq.options.options import RETRY_PREFIX, SinkOptions
from pyspark_rmq.schema.schema import SinkColumns, send_back_columns, sink_columns
from pyspark_rmq.write.sink import BatchWrite, TaskReport, Unit, transaction_key

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import TaskContext

    from rmq_store.cluster import Cluster, SendBackReport, SendBackSettings, SinkReport, SinkSettings, WritePart

_log = logging.getLogger(__name__)


class _ClusterSink(abc.ABC):
    """Shared by both sinks of a cluster: tasks that send by themselves."""

    def __init__(self, options: SinkOptions) -> None:
        assert options.cluster is not None and options.cluster_sink is not None  # options checked it
        self._options = options
        self._cluster_options = options.cluster
        self._sink_options = options.cluster_sink
        # For tasks that begin while no name server answers.
        self._known = known_routes(options.cluster, _topics_of(options, options.cluster_sink))

    def write_task(self, unit: Unit, rows: Iterator[pa.RecordBatch]) -> object:
        """Send the rows of one task; on return brokers have stored them. Returns the engine's report."""
        from pyspark import TaskContext

        from rmq_store.cluster import WritePart

        spare_modules()
        context = TaskContext.get()
        assert context is not None  # Spark calls write() in tasks only
        sent_of = self._input(context)
        with contextlib.ExitStack() as stack:
            cluster = take(self._cluster_options)
            stack.callback(give_back, self._cluster_options)
            if self._known is not None:
                cluster.routes.take_over(self._known)
            part = WritePart(*self._write_of(unit), context.partitionId())
            task = stack.enter_context(self._task(cluster, part))
            for batch in rows:
                if batch.num_rows:
                    task.write(sent_of(batch))
            return task.finish()

    def discard(self, units: Collection[Unit]) -> None:  # noqa: B027 - the same for both sinks
        """Nothing to do: a repetition leaves out what is stored."""

    def _write_of(self, unit: Unit) -> tuple[str, int]:
        """The name of the write and the number of the batch that the records of a task belong to."""
        if not isinstance(unit, BatchWrite):
            return self._name("query", unit.query_id), unit.batch_id
        if self._options.transaction is None:
            return self._name("write", unit.write_uuid), 0
        application, version = self._options.transaction
        return self._name("txn", application), version

    def _log_weak(self, what: str, reports: Sequence[SinkReport] | Sequence[SendBackReport]) -> None:
        weak: Counter[str] = Counter()
        for report in reports:
            weak.update(report.weak)
        for status, rows in weak.items():
            _log.warning("cluster of %s: %d %s with status %s", self._servers, rows, what, status)

    @property
    def _servers(self) -> str:
        return self._cluster_options.name_server

    @abc.abstractmethod
    def finish(self, reports: Sequence[TaskReport], missing: int, batch_id: int | None) -> None:
        """Log what the tasks have reported: they have sent everything."""

    @abc.abstractmethod
    def _name(self, kind: str, name: str) -> str:
        """The name of a write: `kind` is txn, write or query."""

    @abc.abstractmethod
    def _task(self, cluster: Cluster, part: WritePart) -> Any:
        """The engine's task: a context manager with `write` and `finish`."""

    @abc.abstractmethod
    def _input(self, context: TaskContext) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
        """The function that makes the rows of the engine's task of rows of Spark."""


def _topics_of(options: SinkOptions, sink: ClusterSinkOptions) -> list[str]:
    """The topics that a write is known to need before it has rows."""
    from rmq_store.cluster import RECORD_TOPIC

    topics = [] if options.topic is None else [options.topic]
    topics += [] if options.send_back is None else [RETRY_PREFIX + options.send_back]
    return topics + ([RECORD_TOPIC] if sink.replay_check and not sink.marker_path else [])


class ClusterRows(_ClusterSink):
    """New messages. Raises `UsageError` when it is made."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        super().__init__(options)
        columns = sink_columns(schema, topic_given=options.topic is not None, use_queue_id=options.use_queue_id)
        if options.use_queue_id and "brokerName" in schema.fieldNames():
            columns = SinkColumns(columns.body, (*columns.used, "brokerName"))
        self._columns = columns

    def settings(self) -> SinkSettings:
        """The options as the engine's settings."""
        from rmq_store.cluster import EncoderSettings, PipelineSettings, SinkSettings

        options, sink = self._options, self._sink_options
        return SinkSettings(
            EncoderSettings(
                options.topic, options.use_queue_id, options.keep_uniq_key, options.compress_over_bytes,
                self._columns.dropped_properties(keep_uniq_key=options.keep_uniq_key),
            ),
            PipelineSettings(
                send_timeout_ms=sink.send_timeout_ms, away_timeout_ms=self._cluster_options.broker_away_timeout_ms,
                fail_on_weak_status=sink.fail_on_weak_status,
            ),
            replay_check=sink.replay_check,
            resend_unknown=sink.resend_unknown,
            settle_ms=sink.settle_ms,
            patience_ms=self._cluster_options.broker_away_timeout_ms,
            record_path=sink.marker_path,
            new_topic_queues=4 if sink.create_topic else 0,
            pull_group=self._cluster_options.pull_group,
        )  # fmt: skip

    def finish(self, reports: Sequence[TaskReport], missing: int, batch_id: int | None) -> None:
        """See `_ClusterSink.finish`."""
        results: list[Any] = [report.result for report in reports]
        self._log_weak("rows are stored", results)
        if skipped := sum(result.skipped + result.found for result in results):
            _log.info("cluster of %s: %d rows were stored by an earlier try", self._servers, skipped)
        if late := sum(result.late for result in results):
            _log.error(
                "cluster of %s: %d rows of a dead attempt came late, and may be stored twice", self._servers, late
            )

    def _name(self, kind: str, name: str) -> str:
        return f"{kind}/{transaction_key(self._options, name) if kind == 'txn' else name}"

    def _task(self, cluster: Cluster, part: WritePart) -> Any:
        from rmq_store.cluster import SinkTask

        return SinkTask(cluster, self.settings(), part)

    def _input(self, context: TaskContext) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
        return self._columns.input_of


class ClusterSendBacks(_ClusterSink):
    """Messages that failed: the brokers that have them send them back. Raises `UsageError` when it is made."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        super().__init__(options)
        assert options.send_back is not None  # `sink_of` has looked
        self._group = options.send_back
        self._names = send_back_columns(schema, of_cluster=True)

    def settings(self) -> SendBackSettings:
        """The options as the engine's settings."""
        from rmq_store.cluster import SendBackSettings

        sink = self._sink_options
        return SendBackSettings(
            self._group,
            self._options.max_reconsume_times,
            replay_check=sink.replay_check,
            resend_unknown=sink.resend_unknown,
            settle_ms=sink.settle_ms,
            send_timeout_ms=sink.send_timeout_ms,
            patience_ms=self._cluster_options.broker_away_timeout_ms,
            record_path=sink.marker_path,
            pull_group=self._cluster_options.pull_group,
            fail_on_weak_status=sink.fail_on_weak_status,
        )

    def finish(self, reports: Sequence[TaskReport], missing: int, batch_id: int | None) -> None:
        """See `_ClusterSink.finish`."""
        servers, group = self._servers, self._group
        results: list[Any] = [report.result for report in reports]
        self._log_weak(f"messages of {group} are sent back", results)
        if found := sum(result.found for result in results):
            _log.info("cluster of %s: %d messages of %s were sent back by an earlier try", servers, found, group)
        if without := sum(result.without_reasons for result in results):
            _log.warning(
                "cluster of %s: %d messages of %s are sent back without their reasons", servers, without, group
            )

    def _name(self, kind: str, name: str) -> str:
        # No group name has a "/" in it.
        return f"back/{self._group}/{name}"

    def _task(self, cluster: Cluster, part: WritePart) -> Any:
        from rmq_store.cluster import SendBackTask

        return SendBackTask(cluster, self.settings(), part)

    def _input(self, context: TaskContext) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
        from pyspark_rmq.write.send_back_rows import query_reasons, send_back_rows

        given = query_reasons(context)

        def rows_to_send(batch: pa.RecordBatch) -> pa.RecordBatch:
            rows = send_back_rows(batch, self._names, given, time.time_ns() // 1_000_000)
            # The engine of a store has no use for the broker's name; send_back_columns checked that it is there.
            return rows.append_column("brokerName", batch.column("brokerName"))

        return rows_to_send
