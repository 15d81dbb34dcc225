"""Writing: tasks stage encoded messages, the driver commits all of them as one unit. Data plane in `write`.

Nothing is visible before the commit, and no message is lost or doubled, whatever runs twice:

    a task runs again, or a zombie continues   it writes another file; only files that the commit names count. Files of
                                               killed drivers of a query are removed by its next commit
    a stream's batch is repeated               its marker (query id, batch id) is already stored: nothing is added
    a batch write is run again                 a new write, unless txnAppId and txnVersion give it a marker

A batch write must not use the query and batch id that Spark shows it inside `foreachBatch`. Two writes of one batch see
the same ids, and the second would be taken for a repetition of the first.
"""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pyspark_rmq.access.store_writer import (
    Marker,
    commit_staged,
    is_there_to_write,
    prepare_batch,
    prepare_to_write,
    stage,
    sweep_staged,
)
from pyspark_rmq.options.options import NO_TABLES, SinkOptions
from pyspark_rmq.position.position import refuse
from pyspark_rmq.schema.schema import SinkColumns, sink_columns

if TYPE_CHECKING:
    import pyarrow as pa

    from rmq_store import StagedFile

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Staged(WriterCommitMessage):
    """A task's report to the driver. `file` is None if the task had no rows; `query_id` is set in a stream."""

    write_id: str
    query_id: str | None
    file: StagedFile | None


class RmqWriter(DataSourceArrowWriter):
    """The writer of `df.write`: one write, all or nothing."""

    def __init__(self, options: SinkOptions, columns: SinkColumns) -> None:
        self._options = options
        self._columns = columns
        # Made on the driver; the tasks and the commit get copies of this object.
        self._write_id = f"batch-{uuid.uuid4().hex}"
        # Where nothing is, the tasks make the store: only they learn whether the write is refused.
        self._is_there = is_there_to_write(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of one task. Raises `UsageError` in a write that also creates a table (`refuse_table`)."""
        refuse_table()
        if not self._is_there:
            prepare_to_write(self._options)
        return Staged(self._write_id, None, _stage(self._options, self._columns, self._write_id, iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Append all staged rows. Raises what `store_writer.commit_staged` raises. After such an error nothing is
        written, except after a StoreFailedError: then the disk failed, and it is unknown whether the rows are stored.
        """
        _commit(self._options, _all_reports(messages), self._marker())

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Remove the staged files."""
        sweep_staged(self._options, [self._write_id])

    def _marker(self) -> Marker | None:
        if self._options.transaction is None:
            return None
        application, version = self._options.transaction
        # Each target counts for itself, as a Delta table does. No topic name has a "/" in it.
        return Marker("txn", f"{self._options.topic or ''}/{application}", version, self._options.repeatable)


class RmqStreamWriter(DataSourceStreamArrowWriter):
    """The writer of `df.writeStream`: each micro-batch is one unit. Each step is a process with its own object."""

    def __init__(self, options: SinkOptions, columns: SinkColumns) -> None:
        self._options = options
        self._columns = columns
        # Looked at on the driver, which does not learn the number of the batch here; the tasks do.
        self._is_there = is_there_to_write(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of one task. Raises `NotAStoreError` if the store of earlier batches is gone."""
        query_id, batch_id, run_id = stream_ids()
        if not self._is_there:
            prepare_batch(self._options, int(batch_id))
        # With the run in it, what an earlier run left running cannot get in the way of this one.
        write_id = f"{query_id}-{batch_id}-{run_id}"
        return Staged(write_id, query_id, _stage(self._options, self._columns, write_id, iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Append all staged rows, unless this batch was committed before.

        Raises:
            MarkerError: the query has committed a later batch, or other rows for this one: its checkpoint was rewound
                or copied.
        """
        reports = _all_reports(messages)
        query_ids = {report.query_id for report in reports}
        if len(query_ids) > 1:
            refuse(f"tasks of more than one query report to batch {batchId}: {sorted(map(str, query_ids))}")
        query_id = query_ids.pop() if query_ids else None
        over = None if query_id is None else _is_over(query_id, batchId)
        _commit(self._options, reports, self._marker(query_id, batchId), over, stays_open=True)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Remove the staged files of the tasks that reported. Other files are swept when they are old."""
        sweep_staged(self._options, sorted({report.write_id for report in _reports(messages)}))

    def _marker(self, query_id: str | None, batch_id: int) -> Marker | None:
        return Marker("sink", query_id, batch_id, self._options.repeatable) if query_id is not None else None


def batch_writer(options: SinkOptions, schema: StructType, overwrite: bool) -> RmqWriter:
    """Check a batch write on the driver and return its writer. Raises `UsageError` and `NotAStoreError`."""
    if overwrite:
        refuse(
            "mode overwrite is not possible: messages of a topic cannot be replaced, other topics share their log and "
            "consumers have offsets in it; use mode append, or another topic"
        )
    return RmqWriter(options, _columns(options, schema))


def stream_writer(options: SinkOptions, schema: StructType, overwrite: bool) -> RmqStreamWriter:
    """Check a streaming write on the driver and return its writer. Raises `UsageError` and `NotAStoreError`."""
    if overwrite:
        refuse("output mode complete is not possible: messages of a topic cannot be replaced; use output mode append")
    return RmqStreamWriter(options, _columns(options, schema))


def _columns(options: SinkOptions, schema: StructType) -> SinkColumns:
    return sink_columns(schema, topic_given=options.topic is not None, use_queue_id=options.use_queue_id)


def _stage(
    options: SinkOptions, columns: SinkColumns, write_id: str, batches: Iterator[pa.RecordBatch]
) -> StagedFile | None:
    """Encode the rows of a task into a file of its own. If that fails, the file is removed."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None  # Spark calls write() in tasks only
    drop_properties = columns.dropped_properties(keep_uniq_key=options.keep_uniq_key)
    with stage(options, write_id, context.partitionId(), context.taskAttemptId(), drop_properties) as area:
        for batch in batches:
            if batch.num_rows:
                area.write(columns.input_of(batch))
        return area.finish()


def _is_over(query_id: str, batch_id: int) -> Callable[[str], bool]:
    """A function that tells whether a write id is an attempt at this batch of the query, or at an earlier one."""
    attempt = re.compile(rf"{re.escape(query_id)}-([0-9]{{1,18}})-.*", re.ASCII)

    def is_over(write_id: str) -> bool:
        match = attempt.fullmatch(write_id)
        return match is not None and int(match[1]) <= batch_id

    return is_over


def _commit(
    options: SinkOptions,
    reports: Sequence[Staged],
    marker: Marker | None,
    is_over: Callable[[str], bool] | None = None,
    *,
    stays_open: bool = False,
) -> None:
    files = [report.file for report in reports if report.file is not None]
    if not files:
        return

    def sweeping() -> None:
        try:
            sweep_staged(options, sorted({report.write_id for report in reports}), is_over)
        except Exception:  # the commit is done: an error would have it written twice
            _log.exception("%s: what was staged could not be swept; the next commit does it", options.path)

    if not commit_staged(options, files, marker, sweeping, stays_open=stays_open) and marker is not None:
        _log.info("%s %s was committed before as %d: nothing added", marker.purpose, marker.key, marker.value)


def _reports(messages: Sequence[WriterCommitMessage | None]) -> list[Staged]:
    return [message for message in messages if isinstance(message, Staged)]


def _all_reports(messages: Sequence[WriterCommitMessage | None]) -> list[Staged]:
    """The reports of all tasks. Raises `StagingError` if a report is missing, because its rows would be missing."""
    reports = _reports(messages)
    if len(reports) < len(messages):
        from rmq_store import StagingError

        raise StagingError(f"{len(messages) - len(reports)} of {len(messages)} tasks did not report what they staged")
    return reports


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
        refuse("this Spark does not tell tasks which streaming query and batch they belong to; 4.2 or newer is needed")
    # StreamExecution: the job group of a query is its run id.
    return query_id, batch_id, context.getLocalProperty("spark.jobGroup.id") or "run"
