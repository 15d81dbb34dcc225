"""A streaming job whose failed messages come back: `python examples/retry.py`. Needs Spark and half a minute.

It makes a new store with retry delays of 1 s instead of RocketMQ's 10 s, 30 s and more, so that you can watch them.
"""

from __future__ import annotations

import tempfile
import time

from pyspark.sql import DataFrame, Row, SparkSession

import pyspark_rmq
from rmq_store import Message, Store, StoreConfig

directory = tempfile.mkdtemp(prefix="rmq-retry-")
store, checkpoint = f"{directory}/store", f"{directory}/checkpoint"
# Small files, because the directory is temporary.
config = StoreConfig(
    message_delay_level=" ".join(["1s"] * 18),
    mapped_file_size_commit_log=1 << 20,
    mapped_file_size_consume_queue=20_000,
    max_hash_slot_num=500,
    max_index_num=2000,
)
with Store.open(store, create=True, config=config) as opened:
    opened.create_topic("Orders", queue_count=4)
    for number in range(8):
        opened.send(Message("Orders", b"order", keys=f"ORD-{number}"))
    opened.send(Message("Orders", b"an order without a key"))

spark = SparkSession.builder.appName("retry").getOrCreate()


def bill(row: Row) -> str:
    """Run in the executors; an exception is a failure of this row only."""
    if row["keys"] is None:
        return pyspark_rmq.DLQ  # no use to try again
    if row["keys"] == "ORD-7":
        raise LookupError("no such customer")
    return pyspark_rmq.SUCCESS  # RECONSUME_LATER, None: again; 5: again, after the fifth delay


orders = spark.readStream.format("rmq").options(path=store, subscribe="Orders", group="cg_bills").load()
query = pyspark_rmq.consume(orders, bill, group="cg_bills", path=store, max_reconsume_times=2)
running = query.option("checkpointLocation", checkpoint).start()


def dead_letters() -> DataFrame:
    """The current dead letters. A data frame keeps the messages that it found first, so make a new one each time."""
    return spark.read.format("rmq").options(path=store, dlq="cg_bills").load()


while (dead := dead_letters()).count() < 2:
    assert running.isActive, running.exception()
    time.sleep(0.5)
running.stop()
dead.select("topic", "keys", "reconsumeTimes", "errorClass", "errorMessage", "lastFailureTime").show()
