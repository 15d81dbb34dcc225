"""Orders of a topic in a database, each once, by Spark: `python examples/reliable/stock_in_spark.py`. Half a minute.

One query writes orders to a table (`write_once`), another takes them from stock with a handler (`consume`). Every order
is in the topic twice, as after a resend. Both use a new SQLite file; set SHOP_DB for another database.
"""

from __future__ import annotations

import os
import tempfile
from typing import Any

import sqlalchemy as sa
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming import StreamingQuery

import pyspark_rmq
from rmq_store import Message, Store, StoreConfig
from rmq_store.reliable import OUTBOX_ID, UNIQUE_KEY, Tables, open_engine

shop = Tables().metadata  # the kit's tables, and the shop's
orders = sa.Table("orders", shop, sa.Column("number", sa.String(20)), sa.Column("item", sa.String(20)))
stock = sa.Table("stock", shop, sa.Column("item", sa.String(20), primary_key=True), sa.Column("pieces", sa.Integer))


def orders_to_a_table(spark: SparkSession, store: str, checkpoint: str) -> StreamingQuery:
    """A row per order, even if Spark repeats a batch, or the message comes several times."""
    read = spark.readStream.format("rmq").options(path=store, subscribe="Orders", group="cg_orders").load()
    rows = read.selectExpr("*", "keys AS number", "CAST(body AS STRING) AS item")
    query = pyspark_rmq.write_once(rows, "env:SHOP_DB", group="cg_orders", table="orders")
    return query.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()


def orders_by_a_function(spark: SparkSession, store: str, checkpoint: str) -> StreamingQuery:
    """The same with a function. It gets a thousand rows at a time, and writes only through the connection."""

    def write(connection: sa.Connection, rows: list[dict[str, Any]]) -> None:
        values = [{"number": row["keys"], "item": row["body"].decode()} for row in rows]
        connection.execute(sa.insert(orders), values)

    read = spark.readStream.format("rmq").options(path=store, subscribe="Orders", group="cg_more").load()
    query = pyspark_rmq.write_once(read, "env:SHOP_DB", group="cg_more", write=write)
    return query.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()


def take_from_stock(spark: SparkSession, store: str, checkpoint: str) -> StreamingQuery:
    """A handler for each order, in the executors. Without stock it fails, and RocketMQ retries the order."""

    def take(connection: sa.Connection, order: Row) -> str:
        one_less = sa.text("UPDATE stock SET pieces = pieces - 1 WHERE item = :item AND pieces > 0")
        if not connection.execute(one_less, {"item": order["body"].decode()}).rowcount:
            return pyspark_rmq.RECONSUME_LATER
        return pyspark_rmq.SUCCESS

    read = spark.readStream.format("rmq").options(path=store, subscribe="Orders", group="cg_stock").load()
    once = pyspark_rmq.SparkIdempotency(database="env:SHOP_DB")
    query = pyspark_rmq.consume(read, take, group="cg_stock", path=store, idempotency=once)
    return query.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="rmq-stock-") as directory:
        # Set before Spark starts: its workers inherit it. On a cluster: spark.executorEnv.SHOP_DB.
        os.environ.setdefault("SHOP_DB", f"sqlite:///{directory}/shop.db")
        store = f"{directory}/store"
        engine = open_engine("env:SHOP_DB")
        shop.create_all(engine)
        with engine.begin() as connection:
            connection.execute(sa.insert(stock), [{"item": "tea", "pieces": 20}, {"item": "milk", "pieces": 4}])
        # Small files, because the directory is temporary.
        config = StoreConfig(mapped_file_size_commit_log=1 << 20, max_hash_slot_num=500, max_index_num=2000)
        with Store.open(store, create=True, config=config) as opened:
            opened.create_topic("Orders", queue_count=4)
            for _ in range(2):
                for number in range(10):
                    item = b"tea" if number % 2 else b"milk"
                    ids = {OUTBOX_ID: f"ORD-{number}", UNIQUE_KEY: f"ORD-{number}"}
                    opened.send(Message("Orders", item, keys=f"ORD-{number}", properties=ids), as_given=True)
        spark = SparkSession.builder.master("local[2]").appName("stock").getOrCreate()
        for number, query in enumerate((orders_to_a_table, orders_by_a_function, take_from_stock)):
            query(spark, store, f"{directory}/checkpoint{number}").awaitTermination()
        with engine.connect() as connection:
            print("orders", connection.scalar(sa.select(sa.func.count()).select_from(orders)))
            print("stock", dict(map(tuple, connection.execute(sa.select(stock).order_by(stock.c.item)))))
        engine.dispose()
        spark.stop()


if __name__ == "__main__":
    main()
