"""`consume`: a handler for each message of a stream, and RocketMQ's retries for failed messages. Control plane.

`batch_consumer` has the steps of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame
from pyspark.sql.types import IntegerType, StringType, StructField, StructType, TimestampType

from pyspark_rmq.older_spark.group_listener import listen
from pyspark_rmq.options.option_values import group_name
from pyspark_rmq.position.position import refuse
from pyspark_rmq.query import connect_query, foreach_batch
from pyspark_rmq.retry.batch_consumer import BatchConsumer
from pyspark_rmq.retry.consumed_from import consumed_from
from pyspark_rmq.retry.flood_breaker import FloodBreaker, FloodWatch
from pyspark_rmq.retry.handler_runner import MODES, REASON_COLUMNS, RESULT_COLUMNS, Mode
from pyspark_rmq.retry.idempotency import NEEDED as ID_COLUMNS
from pyspark_rmq.retry.idempotency import SparkIdempotency
from rmq_store.arguments import instance

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter

# How often a message was tried.
_NEEDED = {"reconsumeTimes": "int"}

_RESULT_FIELDS = (
    StructField("result", StringType()),
    StructField("delayLevel", IntegerType()),
    StructField("errorClass", StringType()),
    StructField("errorMessage", StringType()),
    StructField("stackHash", StringType()),
    StructField("lastFailureTime", TimestampType()),
)
assert tuple(field.name for field in _RESULT_FIELDS) == (*RESULT_COLUMNS, *REASON_COLUMNS)


def consume(
    stream: DataFrame,
    handler: Callable[..., Any],
    *,
    group: str,
    path: str | None = None,
    options: Mapping[str, str] | None = None,
    max_reconsume_times: int | None = None,
    mode: Mode = "row",
    on_results: Callable[[DataFrame, int], None] | None = None,
    reasons: bool = True,
    breaker: FloodBreaker | None = None,
    idempotency: SparkIdempotency | None = None,
) -> DataStreamWriter:
    """Hand each message of a stream to a handler; those on which it fails come back later, in the end as dead letters.

    `stream` was read with `format("rmq")` and the option `group`, from the store at `path`, or with `options` such as
    {"nameServer": "ns1:9876"} from a cluster: those of the stream that name the cluster, and options of a write to it
    (`settleTime`, `markerPath`, ...). It may have been filtered
    and given more columns, but a message has one row. The handler runs in the executors, and gets with `mode`

        "row"      one `pyspark.sql.Row`, maps as dicts and times with time zone: its answer is the result of this row
        "pandas"   a `pandas.DataFrame`   } of up to spark.sql.execution.arrow.maxRecordsPerBatch rows: the answer has
        "arrow"    a `pyarrow.RecordBatch` } a result for each of them, in their order; None: all are done

    A result is SUCCESS, RECONSUME_LATER, a delay level from 1 on, or DLQ; an exception is RECONSUME_LATER with a
    reason. None in a row's place is RECONSUME_LATER, too: most often a `return` was forgotten, so the query warns once,
    and the reason of these rows is NoResult. **At least once**: a handler sees a row again if its task or its batch is
    repeated, and handlers for batches also when they raised an exception: then the batch is halved to find the guilty
    rows. The failed rows of a batch are sent back exactly once; in a cluster, effectively once (docs/cluster.md).

    With `idempotency` the handler is `handler(connection, row or batch)`, writes its effect through the connection, and
    sees only what the group has not done: **exactly once**, because effect and mark commit together. A transaction is a
    row, or a batch; rows of a batch on which the handler fails by its answer are rolled back with the rest, which it
    then sees again. `SparkIdempotency(outside=True)` is for effects elsewhere: `handler(row)`, at least once. A message
    that another worker has comes back later, and so does one without an id (OUTBOX_ID, else UNIQ_KEY), until it is a
    dead letter.

    `max_reconsume_times` becomes the setting of the whole group; None leaves that as it is (16). Brokers of a cluster
    are told it with each message instead; with None each broker's own setting decides, and the handler's results are
    counted by that of the first broker that tells it. `on_results(rows, batch_id)` is called with all rows of each
    batch before any is sent back; `rows` has the stream's columns and result ("SUCCESS", "RECONSUME_LATER", "DLQ"),
    delayLevel, errorClass, errorMessage, stackHash, lastFailureTime.
    `reasons=False` leaves out why a message failed: what is stored then has the bytes that RocketMQ would store.

    Returns the writer of the query, to which `checkpointLocation` and a trigger are added; then `start()`.

    On Spark Connect the query gets a name, if `queryName` gives it none: its batches find their query by it.

    Raises:
        UsageError: pandas 2.2 is missing, which PySpark asks for whatever the mode; not a stream, no column
            commitLogOffset, msgId or reconsumeTimes (in a cluster also brokerName), or a column of a result's name;
            with `idempotency` no column brokerName, topic, queueId, queueOffset or properties.
        NotAStoreError, StoreLockedError, ReadOnlyError: `path` cannot be written.

    The query fails with:
        UsageError: the handler answers what is no result, or not one for each row; a message has several rows; the
            stream was read without the group, for another one, or from another store; `idempotency` leads nowhere in an
            executor, or to a database without the tables (SchemaMismatchError).
        FloodBreakerError: see `FloodBreaker`.
        MarkerError: the checkpoint was set back or copied, or a repeated batch has lost messages.
    """
    place, group = consumed_from(path, options, "consume"), group_name(instance("group", group, str), "group")
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
    needed = place.columns | _NEEDED
    for name, expected in (needed if idempotency is None else needed | ID_COLUMNS).items():
        if types.get(name) != expected:
            found = f"it is {types[name]}" if name in types else f"given: {', '.join(types)}"
            refuse(f"consume needs the column {name} {expected} as it was read; {found}")
    for name in RESULT_COLUMNS:
        if name in types:
            refuse(f"the stream has a column {name!r}, which is the name of a column of results: rename it")
    place.prepare(group, max_reconsume_times)
    listen(stream.sparkSession)
    passed_columns = tuple(needed)
    if on_results is not None:
        passed_columns = tuple(name for name in types if name not in REASON_COLUMNS)
    consumer = BatchConsumer(
        handler, mode, place, group, max_reconsume_times, on_results, reasons, passed_columns,
        StructType([*(stream.schema[name] for name in passed_columns), *_RESULT_FIELDS]),
        FloodWatch(breaker) if breaker is not None else None, idempotency,
    )  # fmt: skip
    return connect_query.batch_writer(stream, f"consume {group}", consumer)
