"""Consumes a topic in a Spark of its own and dies at the first send-back: `killed_consumer.py STORE CHECKPOINT WHEN`.

WHEN is `before` or `after`: whether the failed messages have been sent back by then.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from pyspark.sql import SparkSession

import pyspark_rmq
from pyspark_rmq.retry.batch_consumer import BatchConsumer

store, checkpoint, when = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[2,4]")
    .config("spark.ui.enabled", "false")
    .config("spark.log.level", "OFF")
    .getOrCreate()
)
driver = spark._jvm.java.lang.ProcessHandle.current().pid()
send_back = BatchConsumer._send_back


def die(*given: Any) -> None:
    """SIGKILL the JVM and this process."""
    if when == "after":
        send_back(*given)
    os.kill(driver, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def fail_at_seven(row: Any) -> str:
    """Fail on every message whose number ends in 7."""
    if row.body.endswith(b"7"):
        raise ValueError("seven")
    return pyspark_rmq.SUCCESS


BatchConsumer._send_back = die  # type: ignore[method-assign,assignment]
orders = spark.readStream.format("rmq").options(path=store, subscribe="Orders", group="cg").load()
query = pyspark_rmq.consume(orders, fail_at_seven, group="cg", path=store)
query.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
