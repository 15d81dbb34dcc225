"""Everything that a driver does with the data source, through Spark Connect: one server for all of it, because it takes
a JVM of its own. usage: connect_surface.py DIRECTORY; prints {step: what came out, or the error} as JSON.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import pyspark_rmq
from pyspark_rmq.access.spark_api import TELLS_STARTS
from rmq_store import Message, Store

ROOT = Path(sys.argv[1])
STORE, GROUP = str(ROOT / "store"), "cg"

steps: dict[str, Callable[[], Any]] = {}


def step(work: Callable[[], Any]) -> Callable[[], Any]:
    steps[work.__name__] = work
    return work


def read(**options: str) -> Any:
    return spark.read.format("rmq").options(path=STORE, **options).load()


def bodies(frame: Any) -> list[str]:
    return sorted(bytes(row["body"]).decode() for row in frame.select("body").collect())


def streamed(frame: Any, name: str, **options: str) -> Any:
    writer = frame.writeStream.format("rmq").options(path=STORE, **options)
    query = writer.option("checkpointLocation", str(ROOT / name)).trigger(availableNow=True).start()
    query.awaitTermination()
    return query


def stream(**options: str) -> Any:
    return spark.readStream.format("rmq").options(path=STORE, **options).load()


def refusal(work: Callable[[], Any]) -> str:
    try:
        work()
    except Exception as error:
        return str(error)
    return "not refused"


@step
def batch_read() -> Any:
    return bodies(read(subscribe="Orders"))


@step
def look_up() -> Any:
    return [bodies(read(subscribe="Orders", key="k2")), bodies(read(subscribe="Orders", uniqKey=unique_key))]


@step
def pushed_filter() -> Any:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        return bodies(read(subscribe="Orders", filterPushdown="true").where("keys = 'k1'"))
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")


@step
def batch_write() -> Any:
    frame = spark.createDataFrame([("x",), ("y",)], "body string")
    for _ in range(2):
        writer = frame.write.format("rmq").options(path=STORE, topic="Batch", txnAppId="a", txnVersion="1")
        writer.mode("append").save()
    return bodies(read(subscribe="Batch"))


@step
def write_in_a_thread() -> Any:
    """Without `register`, and with it."""
    failed: list[str] = []

    def write() -> None:
        try:
            frame = spark.createDataFrame([("t",)], "body string")
            for _ in range(2):
                frame.write.format("rmq").options(path=STORE, topic="Threads").mode("append").save()
                pyspark_rmq.register(spark)
        except Exception:
            failed.append(traceback.format_exc())

    thread = threading.Thread(target=write)
    thread.start()
    thread.join()
    return failed or bodies(read(subscribe="Threads"))


def committed(group: str) -> int | None:
    with Store.open(STORE, read_only=True) as store:
        return store.committed_offsets(group).get(("Orders", 0))


@step
def stream_with_a_group() -> Any:
    """A Spark that does not ask the source at the end has the listener that `register` added above."""
    listener = pyspark_rmq.LagListener()
    spark.streams.addListener(listener)
    try:
        query = streamed(stream(subscribe="Orders", group="streaming"), "cp-stream", topic="Copied")
        deadline = time.monotonic() + 30
        while not (listener.rows() and (TELLS_STARTS or committed("streaming"))) and time.monotonic() < deadline:
            time.sleep(0.1)
    finally:
        spark.streams.removeListener(listener)
    return [
        str(pyspark_rmq.failure(query)), bodies(read(subscribe="Copied")), committed("streaming"),
        sorted({row.topic for row in listener.rows()}),
    ]  # fmt: skip


@step
def foreach_batch_with_a_transaction() -> Any:
    path = STORE

    def write(rows: Any, batch_id: int) -> None:
        options = {"path": path, "topic": "Each", "txnAppId": "each", "txnVersion": str(batch_id)}
        rows.select("body").write.format("rmq").options(**options).mode("append").save()

    frame = stream(subscribe="Orders", startingOffsets="earliest")
    query = frame.writeStream.foreachBatch(write).option("checkpointLocation", str(ROOT / "cp-each"))
    query.trigger(availableNow=True).start().awaitTermination()
    return bodies(read(subscribe="Each"))


@step
def options_refused_at_load() -> Any:
    """Connect does nothing before it needs the columns."""
    return [
        refusal(lambda: stream(subscribe="Orders", txnAppId="x").columns),
        refusal(lambda: stream(subscribe="Orders", group="cg bills").columns),
        refusal(lambda: read(subscribe="Orders", minPartitions="many").columns),
    ]


@step
def failure_of_a_query() -> Any:
    query = stream(subscribe="Orders", key="x").writeStream.format("noop")
    query = query.option("checkpointLocation", str(ROOT / "cp-fails")).trigger(availableNow=True).start()
    refusal(query.awaitTermination)
    return str(pyspark_rmq.failure(query))


@step
def table() -> Any:
    statement = f"CREATE TABLE o USING rmq OPTIONS (path '{STORE}', subscribe 'Orders')"
    return refusal(lambda: spark.sql(statement).collect())


@step
def temporary_view() -> Any:
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW v USING rmq OPTIONS (path '{STORE}', subscribe 'Orders')").collect()
    return spark.sql("SELECT count(*) AS n FROM v").collect()[0]["n"]


@step
def send_back() -> Any:
    """Batch and stream: all of them as dead letters."""
    failed = read(subscribe="Orders").selectExpr("commitLogOffset", "msgId", "-1 AS delayLevel", "'E' AS errorClass")
    failed.write.format("rmq").options(path=STORE, sendBack=GROUP).mode("append").save()
    frame = stream(subscribe="Batch", group=GROUP, consumeFromWhere=FIRST, retryTopic="false")
    streamed(frame.selectExpr("commitLogOffset", "msgId", "-1 AS delayLevel"), "cp-back", sendBack=GROUP)
    return [(row["originTopic"], row["errorClass"]) for row in read(dlq=GROUP).orderBy("queueOffset").collect()]


@step
def redrive() -> Any:
    dead = read(dlq=GROUP)
    outcomes = []
    for dry_run in (True, False):
        result = pyspark_rmq.redrive(dead, path=STORE, group=GROUP, dry_run=dry_run)
        outcomes.append(result.count())
    back = read(subscribe="%RETRY%" + GROUP)
    return [*outcomes, bodies(back)]


@step
def report_of_losses() -> Any:
    return read(dataLoss="true").count()


FIRST = "CONSUME_FROM_FIRST_OFFSET"

if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR)
    with Store.open(STORE, create=True) as store:
        store.create_topic("Orders", 1)
        sent = [store.send(Message("Orders", b"Orders-%d" % n, keys=f"k{n}")) for n in range(3)]
        unique_key = sent[1].msg_id
    spark = SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    results: dict[str, Any] = {}
    for name, work in steps.items():
        try:
            results[name] = work()
        except Exception:
            results[name] = traceback.format_exc()
    sys.stdout.write("\n" + json.dumps(results) + "\n")
    sys.stdout.flush()
    spark.stop()
