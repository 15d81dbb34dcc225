"""Losses that a query passed over because failOnDataLoss is off: written to the log, and to a table that can be read.

Each range is one line of JSON in the logger `pyspark_rmq.dataloss`, and one row of the report in the store (not in one
that a broker made, or that cannot be written). `spark.read.format("rmq").option("dataLoss", "true")` reads the rows
(`reports.py`):

    time          TIMESTAMP  when it was noticed
    group         STRING     of the query, NULL if it has none
    topic         STRING
    queueId       INT
    startOffset   BIGINT     queue offsets, half open; the end of a deleted topic's queue is NULL, as nobody knows it
    endOffset     BIGINT
    messages      BIGINT     endOffset - startOffset
    reason        STRING     retention, rolled back, deleted topic, closed queue (readQueueNums was lowered), corruption
    queryId       STRING     known where a task noticed it; Spark does not tell the process that plans
    batchId       BIGINT

A batch that is repeated adds nothing. Over a cluster there are only the lines, also of messages that are older than a
stream (`away_brokers`), with the reason "before the start".
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType, TimestampType

from pyspark_rmq.access.store_location import LossReport, location_of
from pyspark_rmq.options.options import SourceOptions
from pyspark_rmq.position.queue_ids import QueueId, broker_of, number_of

if TYPE_CHECKING:
    import pyarrow as pa

    from rmq_store import Loss

_log = logging.getLogger("pyspark_rmq.dataloss")

RETENTION = "retention"
ROLLED_BACK = "rolled back"
DELETED_TOPIC = "deleted topic"
CLOSED_QUEUE = "closed queue"
CORRUPTION = "corruption"
BEFORE_START = "before the start"

LOSS_SCHEMA = StructType(
    [
        StructField("time", TimestampType()),
        StructField("group", StringType()),
        StructField("topic", StringType()),
        StructField("queueId", IntegerType()),
        StructField("startOffset", LongType()),
        StructField("endOffset", LongType()),
        StructField("messages", LongType()),
        StructField("reason", StringType()),
        StructField("queryId", StringType()),
        StructField("batchId", LongType()),
    ]
)


def record(options: SourceOptions, gone: Sequence[tuple[str, QueueId, int, int]], reasons: Sequence[str]) -> bool:
    """Record ranges `(topic, queue_id, start, end)` with a reason each. False if all of them were recorded before.
    Without a report nobody knows that, so a batch that is repeated logs its losses again.
    """
    from rmq_store import Loss

    query, batch = _query_and_batch()
    location = location_of(options)
    losses = [
        Loss(topic, number_of(queue_id), start, end if end > start else None, reason, options.group, query, batch)
        for (topic, queue_id, start, end), reason in zip(gone, reasons, strict=True)
    ]
    if isinstance(location, LossReport):
        logged: list[dict[str, object]] = [_columns(loss) for loss in location.record_losses(losses)]
    else:
        brokers = [broker_of(queue_id) for _, queue_id, _, _ in gone]
        logged = [{"brokerName": name} | _columns(loss) for name, loss in zip(brokers, losses, strict=True)]
    for loss in logged:
        _log.warning("%s", json.dumps(location.in_losses | loss))
    return bool(logged)


def loss_rows(location: LossReport) -> pa.RecordBatch:
    """The rows of the report, oldest first, at most 10,000. Raises what `Store.open` raises if there is no store."""
    import pyarrow as pa

    from pyspark_rmq.access.spark_api import arrow_schema

    rows = [_columns(loss) for loss in location.recorded_losses()]
    schema = arrow_schema(LOSS_SCHEMA)
    columns = [
        pa.array([row[field.name] for row in rows], pa.int64()).cast(pa.timestamp("ms", "UTC")).cast(field.type)
        if field.name == "time"
        else pa.array([row[field.name] for row in rows], field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _columns(loss: Loss) -> dict[str, object]:
    return {
        "time": loss.time_ms,
        "group": loss.group,
        "topic": loss.topic,
        "queueId": loss.queue_id,
        "startOffset": loss.start,
        "endOffset": loss.end,
        "messages": None if loss.end is None else loss.end - loss.start,
        "reason": loss.reason,
        "queryId": loss.query,
        "batchId": loss.batch,
    }


def _query_and_batch() -> tuple[str | None, int | None]:
    """Of the task that calls this; nothing elsewhere."""
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        return None, None
    batch = context.getLocalProperty("streaming.sql.batchId")
    return context.getLocalProperty("sql.streaming.queryId"), None if batch is None else int(batch)
