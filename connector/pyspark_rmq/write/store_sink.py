"""The sinks of a store: tasks stage encoded messages, the driver appends all of them as one unit. Data plane in
`write_task`.

Nothing is visible before the append, and no message is lost or doubled, whatever runs twice:

    a task runs again, or a zombie continues   it writes another file; only files that the end of the write names count.
                                               Files of killed drivers of a query are removed at the next end
    a stream's batch is repeated               its marker (query id, batch id) is already stored: nothing is added
    a batch write is run again                 a new write, unless txnAppId and txnVersion give it a marker

The copies of messages that failed (`StoreSendBacks`) take the same way. `commitLogOffset` and `msgId` identify such a
message, so rows of another store, or of a store that was rolled back, are refused.
"""

from __future__ import annotations

import abc
import logging
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import StructType

from pyspark_rmq.access.store_location import StoreDirectory
from pyspark_rmq.access.store_writer import (
    SEND_BACK,
    Marker,
    append_staged,
    is_there_to_write,
    prepare_batch,
    prepare_to_send_back,
    prepare_to_write,
    stage,
    stage_send_backs,
    sweep_staged,
)
from pyspark_rmq.options.options import SinkOptions
from pyspark_rmq.position.position import refuse
from pyspark_rmq.schema.schema import send_back_columns, sink_columns
from pyspark_rmq.write.sink import BatchWrite, MicroBatch, TaskReport, Unit, transaction_key

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import TaskContext

    from rmq_store import StagedFile

_log = logging.getLogger(__name__)


class _StoreSink(abc.ABC):
    """Shared by both sinks of a store: the staged files, and their one unit."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write_task(self, unit: Unit, rows: Iterator[pa.RecordBatch]) -> StagedFile | None:
        """Encode the rows of a task into a file of its own; None if there are none. If that fails, the file is removed.

        Raises:
            NotAStoreError: there is no store, and this write does not make one.
        """
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None  # Spark calls write() in tasks only
        self._prepare(unit)
        staged_of = self._input(context)
        with self._area(_write_id(unit), context) as area:
            for batch in rows:
                if batch.num_rows:
                    area.write(staged_of(batch))
            staged: StagedFile | None = area.finish()
        return staged

    def finish(self, reports: Sequence[TaskReport], missing: int, batch_id: int | None) -> None:
        """Append all staged rows, unless this batch was appended before. Raises what `store_writer.append_staged`
        raises. After such an error nothing is written, except after a StoreFailedError: then the disk failed, and it is
        unknown whether the rows are stored.

        Raises:
            StagingError: a report is missing, because its rows would be missing.
            MarkerError: the query has committed a later batch, or other rows for this one: its checkpoint was rewound
                or copied.
        """
        if missing:
            from rmq_store import StagingError

            raise StagingError(f"{missing} of {missing + len(reports)} tasks did not report what they staged")
        marker, is_over = self._marker_of(reports, batch_id)
        files: list[Any] = [report.result for report in reports if report.result is not None]
        if not files:
            return

        def sweeping() -> None:
            try:
                sweep_staged(self._options, _write_ids(report.unit for report in reports), is_over)
            except Exception:  # the rows are appended: an error would have them written twice
                _log.exception(
                    "%s: what was staged could not be swept; the next commit does it", self._options.path
                )

        appended = append_staged(self._options, files, marker, sweeping, stays_open=batch_id is not None)
        if not appended and marker is not None:
            _log.info("%s %s was committed before as %d: nothing added", marker.purpose, marker.key, marker.value)

    def discard(self, units: Collection[Unit]) -> None:
        """Remove the staged files of these writes. Those of others are swept when they are old."""
        sweep_staged(self._options, _write_ids(units))

    def _marker_of(
        self, reports: Sequence[TaskReport], batch_id: int | None
    ) -> tuple[Marker | None, Callable[[str], bool] | None]:
        """The marker of a write, and a function that tells which write ids are over with it."""
        if batch_id is None:
            if self._options.transaction is None:
                return None, None
            application, version = self._options.transaction
            return self._marker("txn", application, version), None
        # The process that ends a batch does not learn the id of the query; the tasks do.
        query_ids = {report.unit.query_id for report in reports if isinstance(report.unit, MicroBatch)}
        if len(query_ids) > 1:
            refuse(f"tasks of more than one query report to batch {batch_id}: {sorted(query_ids)}")
        if not query_ids:
            return None, None
        (query_id,) = query_ids
        return self._marker("sink", query_id, batch_id), _is_over(query_id, batch_id)

    @abc.abstractmethod
    def _marker(self, purpose: str, name: str, value: int) -> Marker:
        """The marker of the application or query `name`. `purpose` is that of new messages."""

    @abc.abstractmethod
    def _prepare(self, unit: Unit) -> None:
        """Make sure, in a task, that there is a store to stage for."""

    @abc.abstractmethod
    def _area(self, write_id: str, context: TaskContext) -> Any:
        """Begin the staged file of this attempt of a task."""

    @abc.abstractmethod
    def _input(self, context: TaskContext) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
        """The function that makes the rows of the staging area of rows of Spark."""


class StoreRows(_StoreSink):
    """New messages. Raises `UsageError` and `NotAStoreError` when it is made."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        super().__init__(options)
        self._columns = sink_columns(schema, topic_given=options.topic is not None, use_queue_id=options.use_queue_id)
        # The driver looks for the store here, and does not know the number of the batch yet. If there is no store, the
        # tasks make it: they know the number, and only they learn whether the write is refused.
        self._is_there = is_there_to_write(options)

    def _marker(self, purpose: str, name: str, value: int) -> Marker:
        key = transaction_key(self._options, name) if purpose == "txn" else name
        return Marker(purpose, key, value, self._options.repeatable)

    def _prepare(self, unit: Unit) -> None:
        if self._is_there:
            return
        if isinstance(unit, MicroBatch):
            prepare_batch(self._options, unit.batch_id)
        else:
            prepare_to_write(self._options)

    def _area(self, write_id: str, context: TaskContext) -> Any:
        dropped = self._columns.dropped_properties(keep_uniq_key=self._options.keep_uniq_key)
        return stage(self._options, write_id, context.partitionId(), context.taskAttemptId(), dropped)

    def _input(self, context: TaskContext) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
        return self._columns.input_of


class StoreSendBacks(_StoreSink):
    """Messages that failed: the stored messages that the rows name are copied. Bodies and properties of the rows are
    ignored. Raises `UsageError` and `NotAStoreError` when it is made.
    """

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        super().__init__(options)
        self._names = send_back_columns(schema)
        if not prepare_to_send_back(options):
            # As a broker: it answers SUCCESS and stores nothing (AbstractSendMessageProcessor.consumerSendMsgBack).
            _log.warning(
                "%s: group %r has retryQueueNums=0: messages that are sent back are dropped, they neither come back "
                "nor become dead letters; rmq updateSubGroup changes that",
                options.path, options.send_back,
            )  # fmt: skip

    def _marker(self, purpose: str, name: str, value: int) -> Marker:
        return Marker(SEND_BACK, f"{self._options.send_back}/{name}", value, self._options.repeatable)

    def _prepare(self, unit: Unit) -> None:
        """The store was there when the sink was made: no other has the messages."""

    def _area(self, write_id: str, context: TaskContext) -> Any:
        return stage_send_backs(self._options, write_id, context.partitionId(), context.taskAttemptId())

    def _input(self, context: TaskContext) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
        from pyspark_rmq.write.send_back_rows import query_reasons, send_back_rows

        given = query_reasons(context)
        clock = StoreDirectory(self._options.path).clock()
        return lambda batch: send_back_rows(batch, self._names, given, clock())


def _write_id(unit: Unit) -> str:
    """Names the staged files of a write."""
    if isinstance(unit, BatchWrite):
        return f"batch-{unit.write_uuid}"
    # With the run in it, what an earlier run left running cannot get in the way of this one.
    return f"{unit.query_id}-{unit.batch_id}-{unit.run_id}"


def _write_ids(units: Collection[Unit] | Iterator[Unit]) -> list[str]:
    return sorted({_write_id(unit) for unit in units})


def _is_over(query_id: str, batch_id: int) -> Callable[[str], bool]:
    """A function that tells whether a write id is an attempt at this batch of the query, or at an earlier one."""
    attempt = re.compile(rf"{re.escape(query_id)}-([0-9]{{1,18}})-.*", re.ASCII)

    def is_over(write_id: str) -> bool:
        match = attempt.fullmatch(write_id)
        return match is not None and int(match[1]) <= batch_id

    return is_over
