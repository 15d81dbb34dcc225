"""`consume`: a handler for each message of a stream, and RocketMQ's retries for failed messages. Control plane.

The steps of a batch, in the driver:

    C1  a batch that an earlier run completed, but that Spark did not log, is skipped: its marker is stored
    C2  the handler runs in the executors (`handler_runner`); its results are persisted, so it runs once per attempt
    C3  the flood breaker checks the results
    C4  `on_results` gets all rows with their results
    C5  the failed rows are sent back as one unit, together with the marker of this batch
    C6  Spark logs the batch; the next poll for messages commits the group's offsets

After a failure before C5 nothing is stored: Spark repeats the batch, handler and `on_results` included. After C5 no
step runs again. A batch without failed rows has no marker, and may be repeated as a whole after C4.
"""

from __future__ import annotations

import copy
import logging
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame
from pyspark.sql.types import IntegerType, StringType, StructField, StructType, TimestampType

from pyspark_rmq.access import store_writer
from pyspark_rmq.access.store_location import StoreDirectory
from pyspark_rmq.options.option_table import group_name, local_path
from pyspark_rmq.position.position import refuse
from pyspark_rmq.query import connect_query, foreach_batch
from pyspark_rmq.retry.failure_reason import NO_RESULT
from pyspark_rmq.retry.flood_breaker import FloodBreaker, FloodWatch
from pyspark_rmq.retry.handler_runner import DLQ, MODES, REASON_COLUMNS, RESULT_COLUMNS, SUCCESS, HandlerRunner, Mode
from pyspark_rmq.retry.idempotency import NEEDED as ID_COLUMNS
from pyspark_rmq.retry.idempotency import SparkIdempotency, TaskIdempotency
from rmq_store.arguments import instance, path_text

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_log = logging.getLogger(__name__)

# What says which message a row is, and how often it was tried.
_NEEDED = {"commitLogOffset": "bigint", "msgId": "string", "reconsumeTimes": "int"}

_RESULT_FIELDS = (
    StructField("result", StringType()),
    StructField("delayLevel", IntegerType()),
    StructField("errorClass", StringType()),
    StructField("errorMessage", StringType()),
    StructField("stackHash", StringType()),
    StructField("lastFailureTime", TimestampType()),
)
assert tuple(field.name for field in _RESULT_FIELDS) == (*RESULT_COLUMNS, *REASON_COLUMNS)

# A marker's value is the batch id and, below it, so many bits that tell its rows from others.
_DIGEST_BITS = 31


def consume(
    stream: DataFrame,
    handler: Callable[..., Any],
    *,
    group: str,
    path: str,
    max_reconsume_times: int | None = None,
    mode: Mode = "row",
    on_results: Callable[[DataFrame, int], None] | None = None,
    reasons: bool = True,
    breaker: FloodBreaker | None = None,
    idempotency: SparkIdempotency | None = None,
) -> DataStreamWriter:
    """Hand each message of a stream to a handler; those on which it fails come back later, in the end as dead letters.

    `stream` was read with `format("rmq")` and the option `group`, from the store at `path`; it may have been filtered
    and given more columns, but a message has one row. The handler runs in the executors, and gets with `mode`

        "row"      one `pyspark.sql.Row`, maps as dicts and times with time zone: its answer is the result of this row
        "pandas"   a `pandas.DataFrame`   } of up to spark.sql.execution.arrow.maxRecordsPerBatch rows: the answer has
        "arrow"    a `pyarrow.RecordBatch` } a result for each of them, in their order; None: all are done

    A result is SUCCESS, RECONSUME_LATER, a delay level from 1 on, or DLQ; an exception is RECONSUME_LATER with a
    reason. None in a row's place is RECONSUME_LATER, too: most often a `return` was forgotten, so the query warns once,
    and the reason of these rows is NoResult. **At least once**: a handler sees a row again if its task or its batch is
    repeated, and handlers for batches also when they raised an exception: then the batch is halved to find the guilty
    rows. The failed rows of a batch are sent back exactly once.

    With `idempotency` the handler is `handler(connection, row or batch)`, writes its effect through the connection, and
    sees only what the group has not done: **exactly once**, because effect and mark commit together. A transaction is a
    row, or a batch; rows of a batch on which the handler fails by its answer are rolled back with the rest, which it
    then sees again. `SparkIdempotency(outside=True)` is for effects elsewhere: `handler(row)`, at least once. A message
    that another worker has comes back later, and so does one without an id (OUTBOX_ID, else UNIQ_KEY), until it is a
    dead letter.

    `max_reconsume_times` becomes the setting of the whole group; None leaves that as it is (16). `on_results(rows,
    batch_id)` is called with all rows of each batch before any is sent back; `rows` has the stream's columns and
    result ("SUCCESS", "RECONSUME_LATER", "DLQ"), delayLevel, errorClass, errorMessage, stackHash, lastFailureTime.
    `reasons=False` leaves out why a message failed: what is stored then has the bytes that RocketMQ would store.

    Returns the writer of the query, to which `checkpointLocation` and a trigger are added; then `start()`.

    On Spark Connect the query gets a name, if `queryName` gives it none: its batches find their query by it.

    Raises:
        UsageError: pandas 2.2 is missing, which PySpark asks for whatever the mode; not a stream, no column
            commitLogOffset, msgId or reconsumeTimes, or a column of a result's name; with `idempotency` no column
            brokerName, topic, queueId, queueOffset or properties.
        NotAStoreError, StoreLockedError, ReadOnlyError: `path` cannot be written.

    The query fails with:
        UsageError: the handler answers what is no result, or not one for each row; a message has several rows; the
            stream was read without the group, for another one, or from another store; `idempotency` leads nowhere in an
            executor, or to a database without the tables (SchemaMismatchError).
        FloodBreakerError: see `FloodBreaker`.
        MarkerError: the checkpoint was set back or copied, or a repeated batch has lost messages.
    """
    path, group = local_path(path_text("path", path), "path"), group_name(instance("group", group, str), "group")
    if not isinstance(stream, DataFrame):
        refuse(f"stream of consume is a {type(stream).__name__}, not a DataFrame")
    if not (on_results is None or callable(on_results)):
        refuse(f"on_results={on_results!r} of consume cannot be called")
    if not isinstance(reasons, bool):
        refuse(f"reasons={reasons!r} of consume is neither True nor False")
    if not isinstance(breaker, FloodBreaker | None):
        refuse(f"breaker of consume is a {type(breaker).__name__}, not a FloodBreaker")
    if not callable(handler):
        refuse(f"handler={handler!r} of consume cannot be called")
    if mode not in MODES:
        refuse(f"mode={mode!r} of consume is none of {', '.join(MODES)}")
    foreach_batch.check_pandas("consume")
    if not stream.isStreaming:
        refuse("consume needs a stream: read it with spark.readStream")
    if max_reconsume_times is not None and (type(max_reconsume_times) is not int or max_reconsume_times < 0):
        refuse(f"max_reconsume_times={max_reconsume_times!r} is no integer of at least 0 (0: no retries)")
    if not isinstance(idempotency, SparkIdempotency | None):
        refuse(f"idempotency of consume is a {type(idempotency).__name__}, not a SparkIdempotency")
    if idempotency is not None and idempotency.outside and mode != "row":
        refuse(f"mode={mode!r} of consume: effects outside of the database need mode='row'")
    types = {field.name: field.dataType.simpleString() for field in stream.schema}
    for name, expected in (_NEEDED if idempotency is None else _NEEDED | ID_COLUMNS).items():
        if types.get(name) != expected:
            found = f"it is {types[name]}" if name in types else f"given: {', '.join(types)}"
            refuse(f"consume needs the column {name} {expected} as it was read; {found}")
    for name in RESULT_COLUMNS:
        if name in types:
            refuse(f"the stream has a column {name!r}, which is the name of a column of results: rename it")
    store_writer.prepare_to_consume(path, group, max_reconsume_times)
    passed_columns = tuple(_NEEDED)
    if on_results is not None:
        passed_columns = tuple(name for name in types if name not in REASON_COLUMNS)
    consumer = _BatchConsumer(
        handler, mode, path, group, max_reconsume_times, on_results, reasons, passed_columns,
        StructType([*(stream.schema[name] for name in passed_columns), *_RESULT_FIELDS]),
        FloodWatch(breaker) if breaker is not None else None, idempotency,
    )  # fmt: skip
    if connect_query.is_connect(stream):
        return connect_query.named_writer(stream, f"consume {group}", consumer.of_query)
    return stream.writeStream.foreachBatch(consumer.consume)


@dataclass(frozen=True, slots=True)
class _Counts:
    """The handler's answers for a batch; `digest` tells its rows from those of another batch."""

    rows: int
    failed: int
    dead: int
    unanswered: int
    digest: int


class _BatchConsumer:
    """The function that runs in the driver for each batch of one query."""

    def __init__(
        self,
        handler: Callable[..., Any],
        mode: Mode,
        path: str,
        group: str,
        max_reconsume_times: int | None,
        on_results: Callable[[DataFrame, int], None] | None,
        reasons: bool,
        passed_columns: tuple[str, ...],
        schema: StructType,
        watch: FloodWatch | None,
        idempotency: SparkIdempotency | None,
    ) -> None:
        self._handler = handler
        self._mode: Mode = mode
        self._path = path
        self._group = group
        self._max_reconsume_times = max_reconsume_times
        self._on_results = on_results
        self._reasons = reasons
        self._passed_columns = passed_columns
        self._schema = schema
        self._watch = watch
        self._idempotency = idempotency
        self._query_id: Callable[[DataFrame], str] = foreach_batch.query_id
        self._run_began = False
        self._warned = False

    def of_query(self, query_id: Callable[[DataFrame], str]) -> Callable[[DataFrame, int], None]:
        """The same for batches whose query is found in another way."""
        other = copy.copy(self)
        other._query_id = query_id
        return other.consume

    def consume(self, batch: DataFrame, batch_id: int) -> None:
        """Steps C1 to C5 of the module's table."""
        foreach_batch.run(self._consume, batch, batch_id)

    def _consume(self, batch: DataFrame, batch_id: int) -> None:
        from pyspark import StorageLevel

        query_id = self._query_id(batch)
        if not self._run_began and not StoreDirectory(self._path).is_consuming(self._group):
            refuse(
                f"nobody reads as group {self._group!r} in {self._path}: what fails here would never come back. Give "
                "the stream the options path and group that consume has, and leave commitOffsets on"
            )
        if self._was_completed(batch, query_id, batch_id):
            _log.info("batch %d was completed before: its failed messages have been sent back", batch_id)
            return
        most = self._max_reconsume_times
        if most is None:
            most = StoreDirectory(self._path).retry_max_times(self._group)
        once = self._once(query_id, batch_id, most)
        runner = HandlerRunner(self._handler, self._mode, self._path, self._passed_columns, most, once)
        results = foreach_batch.map_in_arrow(batch, runner.__call__, self._schema).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            counts = _count(results)
            self._warn_of_unanswered(counts, batch_id)
            now_ms = StoreDirectory(self._path).clock()()
            if self._watch is not None:
                self._watch.check(counts.rows, counts.dead, now_ms)
            if self._on_results is not None:
                self._on_results(results, batch_id)
            if counts.failed:
                self._send_back(results, query_id, _marker_value(batch_id, counts.digest), most)
            if self._watch is not None:
                self._watch.count(counts.dead, now_ms)
        finally:
            results.unpersist()

    def _once(self, query_id: str, batch_id: int, max_reconsume_times: int) -> TaskIdempotency | None:
        if self._idempotency is None:
            return None
        ladder_ms = StoreDirectory(self._path).retry_ladder_ms()
        token = f"{query_id}/{batch_id}"
        return TaskIdempotency(self._idempotency, self._group, ladder_ms, max_reconsume_times, token)

    def _warn_of_unanswered(self, counts: _Counts, batch_id: int) -> None:
        if counts.unanswered and not self._warned:
            self._warned = True
            _log.warning(
                "group %r: the handler returned None for %d of %d rows of batch %d, which come back later as with "
                "RECONSUME_LATER; their reason is %s. Return SUCCESS for rows that are done",
                self._group, counts.unanswered, counts.rows, batch_id, NO_RESULT,
            )  # fmt: skip

    def _was_completed(self, batch: DataFrame, query_id: str, batch_id: int) -> bool:
        """Whether an earlier run has sent this batch's failures back. Only the first batch of a run can be repeated."""
        if self._run_began:
            return False
        newest = store_writer.last_sent_back(self._path, _key(self._group, query_id))
        found = -1 if newest is None else newest >> _DIGEST_BITS
        if found < batch_id:
            self._run_began = True
            return False
        if found == batch_id and newest == _marker_value(batch_id, _digest(batch)):
            self._run_began = True
            return True
        from rmq_store.errors import MarkerError

        other = "other rows than now" if found == batch_id else f"batch {found}"
        raise MarkerError(
            f"batch {batch_id} of query {query_id}: the store has {other} of this query for group {self._group!r}; its "
            "checkpoint was set back or copied, or messages of the batch are lost since. Start with a new checkpoint: "
            "the query then starts at the group's offsets"
        )

    def _send_back(self, results: DataFrame, query_id: str, value: int, max_reconsume_times: int) -> None:
        columns = ["commitLogOffset", "msgId", "delayLevel", *(REASON_COLUMNS if self._reasons else ())]
        writer = results.where(results["result"] != SUCCESS).select(*columns).write.format("rmq").mode("append")
        writer.options(
            path=self._path,
            sendBack=self._group,
            maxReconsumeTimes=str(max_reconsume_times),
            txnAppId=query_id,
            txnVersion=str(value),
            repeatable="false",
        ).save()


def _key(group: str, query_id: str) -> str:
    """As the sink makes it of sendBack and txnAppId."""
    return f"{group}/{query_id}"


def _marker_value(batch_id: int, digest: int) -> int:
    return batch_id << _DIGEST_BITS | digest


def _count(results: DataFrame) -> _Counts:
    """Run the handler on all rows, keep what it says, and count it."""
    from pyspark.sql import functions as F

    failed = F.count_if(results["result"] != SUCCESS)
    unanswered = F.count_if(results["errorClass"] == NO_RESULT)
    found = results.agg(*_fingerprint(results), failed, F.count_if(results["result"] == DLQ), unanswered).head()
    assert found is not None  # an aggregate without groups has one row
    rows, offsets, failed_rows, dead_rows, unanswered_rows = found
    return _Counts(rows, failed_rows, dead_rows, unanswered_rows, _digest_of(rows, offsets))


def _digest(batch: DataFrame) -> int:
    found = batch.agg(*_fingerprint(batch)).head()
    assert found is not None  # an aggregate without groups has one row
    return _digest_of(*found)


def _fingerprint(rows: DataFrame) -> list[Any]:
    from pyspark.sql import functions as F

    # The remainder keeps the sum of any batch far from the largest number.
    return [F.count("*"), F.coalesce(F.sum(rows["commitLogOffset"] % (1 << 31)), F.lit(0))]


def _digest_of(rows: int, offsets: int) -> int:
    return zlib.crc32(f"{rows} {offsets}".encode()) >> (32 - _DIGEST_BITS)
