"""Streams of every kind over one store: `python examples/recipes.py`. Needs Spark and a minute.

docs/spark.md explains each function, docs/python.md what they call. It makes a new store whose delays are 1 s.
"""

from __future__ import annotations

import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

import pyspark_rmq
from rmq_store import Message, Store, StoreConfig


def orders_per_hour(spark: SparkSession, store: str, checkpoint: str) -> StreamingQuery:
    """Event time: storeTimestamp never runs backwards, bornTimestamp does."""
    orders = spark.readStream.format("rmq").options(path=store, subscribe="Orders", startingOffsets="earliest").load()
    late = orders.withWatermark("storeTimestamp", "10 minutes")
    counts = late.groupBy(F.window("storeTimestamp", "1 hour"), "tags").count()
    rows = counts.selectExpr("tags AS keys", "to_json(struct(window.start AS hour, count)) AS body")
    sink = rows.writeStream.format("rmq").options(path=store, topic="OrdersPerHour", checkpointLocation=checkpoint)
    return sink.trigger(availableNow=True).start()


def running_totals(spark: SparkSession, store: str, checkpoint: str) -> StreamingQuery:
    """Output mode update: the new total of each key that has changed, once for each batch."""

    def write(totals: DataFrame, batch_id: int) -> None:
        rows = totals.selectExpr("tags AS keys", "CAST(count AS STRING) AS body")
        marked = rows.write.format("rmq").options(txnAppId="totals", txnVersion=batch_id)
        marked.options(path=store, topic="Totals").mode("append").save()

    orders = spark.readStream.format("rmq").options(path=store, subscribe="Orders", startingOffsets="earliest").load()
    totals = orders.groupBy("tags").count()
    query = totals.writeStream.outputMode("update").foreachBatch(write).option("checkpointLocation", checkpoint)
    return query.trigger(availableNow=True).start()


def two_sinks(spark: SparkSession, store: str, checkpoint: str) -> StreamingQuery:
    """One read, two topics: each message is read once, and each write is stored once."""

    def write(orders: DataFrame, batch_id: int) -> None:
        orders.persist()
        for topic, rows in (("Paid", orders.where("tags = 'paid'")), ("Open", orders.where("tags = 'open'"))):
            marked = rows.select("keys", "tags", "body").write.format("rmq")
            marked = marked.options(txnAppId="orders-by-state", txnVersion=batch_id)
            marked.options(path=store, topic=topic).mode("append").save()
        orders.unpersist()

    orders = spark.readStream.format("rmq").options(path=store, subscribe="Orders", group="cg_states").load()
    query = orders.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint)
    return query.trigger(availableNow=True).start()


def reminders(spark: SparkSession, store: str) -> None:
    """Delayed writes: by delay level, or at a time. A row has one of the two, or none."""
    orders = spark.read.format("rmq").options(path=store, subscribe="Orders").load()
    rows = orders.where("tags = 'open'").selectExpr(
        "keys",
        "concat('please pay for ', CAST(body AS STRING)) AS body",
        "CASE WHEN keys = 'ORD-1' THEN 1 END AS delayLevel",
        "CASE WHEN keys != 'ORD-1' THEN current_timestamp() + INTERVAL 1 SECOND END AS deliverTimestamp",
    )
    rows.write.format("rmq").options(path=store, topic="Reminders").mode("append").save()


def write_in_a_thread(spark: SparkSession, store: str) -> None:
    """A driver thread of your own: Spark finds Python data sources only where a session is active."""

    def write() -> None:
        pyspark_rmq.register(spark)  # makes the session active in this thread
        rows = spark.createDataFrame([("ORD-9", "from a thread")], "keys string, body string")
        rows.write.format("rmq").options(path=store, topic="Notes").mode("append").save()

    thread = threading.Thread(target=write)
    thread.start()
    thread.join()


def consume_with_a_breaker(spark: SparkSession, store: str, checkpoint: str) -> StreamingQuery:
    """Open orders become dead letters. Above 90 % of a batch, or 100 a minute, the query stops before they are made."""

    def bill(row: Row) -> str:
        return pyspark_rmq.SUCCESS if row["tags"] == "paid" else pyspark_rmq.DLQ

    def write(results: DataFrame, batch_id: int) -> None:
        results.groupBy("result").count().show()

    orders = spark.readStream.format("rmq").options(path=store, subscribe="Orders", group="cg_bills").load()
    breaker = pyspark_rmq.FloodBreaker(max_percent=90, max_per_minute=100, min_rows=10)
    query = pyspark_rmq.consume(orders, bill, group="cg_bills", path=store, on_results=write, breaker=breaker)
    return query.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()


def redrive_one_customer(spark: SparkSession, store: str) -> DataFrame:
    """Choose dead letters by a query. First show the outcome for each, then redrive them."""
    dead = spark.read.format("rmq").options(path=store, dlq="cg_bills").load()
    chosen = dead.where("keys = 'ORD-1'")
    pyspark_rmq.redrive(chosen, path=store, group="cg_bills", dry_run=True).show()
    return pyspark_rmq.redrive(chosen, path=store, group="cg_bills", rate_per_second=100)


def watch_lag(spark: SparkSession, store: str, checkpoint: str) -> list[dict[str, Any]]:
    """The lag of each query, as rows and as a file for Prometheus' textfile collector."""
    listener = pyspark_rmq.LagListener(openmetrics_file=Path(checkpoint).parent / "rmq.prom")
    spark.streams.addListener(listener)
    try:
        orders_per_hour(spark, store, checkpoint).awaitTermination()
        rows = listener.table().to_pylist()
    finally:
        spark.streams.removeListener(listener)
        listener.close()
    return rows


def why_it_failed(spark: SparkSession, store: str, checkpoint: str) -> str:
    """The Python error of a failed query, without the stack of Java around it."""

    def write(orders: DataFrame, batch_id: int) -> None:
        raise LookupError("no such customer")

    orders = spark.readStream.format("rmq").options(path=store, subscribe="Orders", startingOffsets="earliest").load()
    query = orders.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint)
    running = query.trigger(availableNow=True).start()
    try:
        running.awaitTermination()
    except Exception:
        return str(pyspark_rmq.failure(running))
    return "it did not fail"


def make_store(path: str) -> None:
    """Four orders and delays of one second. The files are small, because the directory is temporary."""
    config = StoreConfig(
        message_delay_level=" ".join(["1s"] * 18),
        mapped_file_size_commit_log=1 << 20,
        mapped_file_size_consume_queue=20_000,
        max_hash_slot_num=500,
        max_index_num=2000,
    )
    with Store.open(path, create=True, config=config) as store:
        store.create_topic("Orders", queue_count=2)
        for number, state in enumerate(("paid", "open", "open", "paid")):
            store.send(Message("Orders", f"order {number}".encode(), tags=state, keys=f"ORD-{number}"))


def main() -> None:
    """Run each recipe on a new store and print the messages that it stored."""
    work = tempfile.mkdtemp(prefix="rmq-recipes-")
    store = f"{work}/store"
    make_store(store)
    spark = SparkSession.builder.appName("recipes").config("spark.sql.shuffle.partitions", "2").getOrCreate()

    def rows_of(**options: str) -> list[tuple[str, str]]:
        rows = spark.read.format("rmq").options(path=store, **options).load()
        return sorted((row["keys"], row["body"].decode()) for row in rows.select("keys", "body").collect())

    def say(what: str, found: object) -> None:
        print(f"{what}: {found}", flush=True)

    running_totals(spark, store, f"{work}/totals").awaitTermination()
    say("Totals", rows_of(subscribe="Totals"))
    two_sinks(spark, store, f"{work}/states").awaitTermination()
    say("Paid", rows_of(subscribe="Paid"))
    say("Open", rows_of(subscribe="Open"))
    reminders(spark, store)
    time.sleep(1.5)
    with Store.open(store) as opened:
        opened.schedule.deliver_due()
    say("Reminders", rows_of(subscribe="Reminders"))
    write_in_a_thread(spark, store)
    say("Notes", rows_of(subscribe="Notes"))
    consume_with_a_breaker(spark, store, f"{work}/bills").awaitTermination()
    say("dead letters", [keys for keys, _ in rows_of(dlq="cg_bills")])
    say("redriven", [row["outcome"] for row in redrive_one_customer(spark, store).collect()])
    lag = watch_lag(spark, store, f"{work}/watched")
    say("lag", f"{sum(row['position'] for row in lag)} messages read, {sum(row['lag'] for row in lag)} behind")
    say("failed with", why_it_failed(spark, store, f"{work}/failed"))
    spark.stop()


if __name__ == "__main__":
    main()
