"""Writing with the option `sendBack`: rows name messages that failed, and the engine copies these messages. Data plane
in `write`.

Tasks stage the copies, the driver commits them as one unit, as for new messages: see `writer`. `commitLogOffset` and
`msgId` identify a message, so rows of another store, or of a store that was rolled back, are refused. Bodies and
properties of the rows are ignored: the stored message is sent back.

A row has reasons if its errorClass, errorMessage or stackHash is not NULL. These three are stored, lastFailureTime
(now, if there is no such column), and the query and batch that Spark names. The engine keeps the time and place of the
first failure.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from pyspark_rmq.access.store_location import StoreDirectory
from pyspark_rmq.access.store_writer import SEND_BACK, Marker, prepare_to_send_back, stage_send_backs
from pyspark_rmq.options.options import SinkOptions
from pyspark_rmq.position.position import refuse
from pyspark_rmq.schema.schema import SinkColumns, send_back_columns
from pyspark_rmq.write.writer import RmqStreamWriter, RmqWriter, Staged, refuse_table, stream_ids

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import TaskContext

    from rmq_store import StagedFile

_log = logging.getLogger(__name__)

_FIXED = ("commitLogOffset", "msgId", "delayLevel")
_SAYS_WHY = ("errorClass", "errorMessage", "stackHash")


class SendBackWriter(RmqWriter):
    """The writer of `df.write`: one write, all or nothing."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the copies of the messages that the rows of one task name. Raises as `RmqWriter.write`."""
        refuse_table()
        return Staged(self._write_id, None, _stage(self._options, self._columns.used, self._write_id, iterator))

    def _marker(self) -> Marker | None:
        if self._options.transaction is None:
            return None
        application, version = self._options.transaction
        return Marker(SEND_BACK, f"{self._options.send_back}/{application}", version, self._options.repeatable)


class SendBackStreamWriter(RmqStreamWriter):
    """The writer of `df.writeStream`: all messages that a micro-batch sends back are one unit."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the copies of the messages that the rows of one task name. Raises as `RmqWriter.write`."""
        query_id, batch_id, run_id = stream_ids()
        write_id = f"{query_id}-{batch_id}-{run_id}"
        return Staged(write_id, query_id, _stage(self._options, self._columns.used, write_id, iterator))

    def _marker(self, query_id: str | None, batch_id: int) -> Marker | None:
        if query_id is None:
            return None
        return Marker(SEND_BACK, f"{self._options.send_back}/{query_id}", batch_id, self._options.repeatable)


def batch_send_back_writer(options: SinkOptions, schema: StructType, overwrite: bool) -> SendBackWriter:
    """Check a batch write on the driver and return its writer. Raises `UsageError`, `NotAStoreError`."""
    return SendBackWriter(options, _columns(options, schema, overwrite))


def stream_send_back_writer(options: SinkOptions, schema: StructType, overwrite: bool) -> SendBackStreamWriter:
    """Check a streaming write on the driver and return its writer. Raises `UsageError`, `NotAStoreError`."""
    return SendBackStreamWriter(options, _columns(options, schema, overwrite))


def _columns(options: SinkOptions, schema: StructType, overwrite: bool) -> SinkColumns:
    if overwrite:
        refuse("with sendBack messages are added to a retry topic and nothing is replaced; use mode append")
    names = send_back_columns(schema)
    if not prepare_to_send_back(options):
        # As a broker: it answers SUCCESS and stores nothing (AbstractSendMessageProcessor.consumerSendMsgBack).
        _log.warning(
            "%s: group %r has retryQueueNums=0: messages that are sent back are dropped, they neither come back nor "
            "become dead letters; rmq updateSubGroup changes that",
            options.path, options.send_back,
        )  # fmt: skip
    return SinkColumns("", names)  # no body: the message's own is copied


def _stage(
    options: SinkOptions, names: Sequence[str], write_id: str, batches: Iterator[pa.RecordBatch]
) -> StagedFile | None:
    """Encode the copies of a task into a file of its own. If that fails, the file is removed."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None  # Spark calls write() in tasks only
    given = query_reasons(context)
    clock = StoreDirectory(options.path).clock()
    with stage_send_backs(options, write_id, context.partitionId(), context.taskAttemptId()) as area:
        for batch in batches:
            if batch.num_rows:
                area.write(send_back_rows(batch, names, given, clock()))
        staged: StagedFile | None = area.finish()
    return staged


def query_reasons(context: TaskContext) -> dict[str, str | None]:
    """The reasons that Spark knows of a task: its query and batch; None where it runs in none."""
    from rmq_store import failure

    return {
        failure.QUERY_ID: context.getLocalProperty("sql.streaming.queryId"),
        failure.BATCH_ID: context.getLocalProperty("streaming.sql.batchId"),
    }


def send_back_rows(
    batch: pa.RecordBatch, names: Sequence[str], of_query: Mapping[str, str | None], now_ms: int
) -> pa.RecordBatch:
    """Return rows of the sink as `rmq_store.SEND_BACK_SCHEMA`. All rows get `of_query`, without None values."""
    import pyarrow as pa

    columns = {name: batch.column(name) for name in _FIXED if name in names}
    columns["properties"] = _reasons(batch, names, of_query, now_ms)
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _reasons(
    batch: pa.RecordBatch, names: Sequence[str], of_query: Mapping[str, str | None], now_ms: int
) -> pa.MapArray:
    """The reasons of each row by property; null for rows without a reason."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from rmq_store import failure

    count = batch.num_rows
    properties = {"errorClass": failure.ERROR_CLASS, "errorMessage": failure.ERROR_MESSAGE}
    properties["stackHash"] = failure.STACK_HASH
    given = {properties[name]: batch.column(name).cast(pa.string()) for name in _SAYS_WHY if name in names}
    says_why = np.zeros(count, np.bool_)
    for values in given.values():
        says_why |= values.is_valid().to_numpy(zero_copy_only=False)
    failed_ms = pa.repeat(pa.scalar(now_ms), count)
    if "lastFailureTime" in names:
        given_ms = pc.divide(batch.column("lastFailureTime").cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()), 1000)
        failed_ms = pc.coalesce(given_ms, failed_ms)
    given[failure.FIRST_FAILURE_MS] = given[failure.LAST_FAILURE_MS] = failed_ms.cast(pa.string())
    given |= {name: pa.repeat(pa.scalar(value, pa.string()), count) for name, value in of_query.items()}
    # Row by row: the i-th of `width` values belongs to the i-th name. A null value is no property. A null row has no
    # values at all: Arrow would give them to the row before it.
    width, rows = len(given), np.flatnonzero(says_why)
    order = (rows[:, None] + np.arange(width) * count).ravel()
    values = pa.concat_arrays(list(given.values())).take(pa.array(order))
    keys = pa.array(list(given)).take(pa.array(np.tile(np.arange(width), len(rows))))
    starts = np.concatenate(([0], np.cumsum(says_why) * width)).astype(np.int32)
    return pa.MapArray.from_arrays(pa.array(starts, mask=np.append(~says_why, False)), keys, values)
