"""Writes a topic to a database in a Spark of its own, and dies: `killed_writer.py STORE CHECKPOINT WHEN`.

WHEN is `before` or `after`: whether the database has committed by then. Its URL is in ORDERS_DB.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from pyspark.sql import SparkSession

import pyspark_rmq
from rmq_store.reliable import shared_engine

store, checkpoint, when = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[2,4]")
    .config("spark.ui.enabled", "false")
    .config("spark.log.level", "OFF")
    .getOrCreate()
)
driver = spark._jvm.java.lang.ProcessHandle.current().pid()
engine = shared_engine("env:ORDERS_DB")
commit = engine.dialect.do_commit
rows_written = False


def die(connection: Any) -> None:
    """SIGKILL the JVM and this process at the first commit behind an INSERT."""
    if not rows_written:
        return commit(connection)
    if when == "after":
        commit(connection)
    os.kill(driver, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def write(connection: Any, rows: Any) -> None:
    """Insert them."""
    global rows_written
    from sqlalchemy import text

    connection.execute(text("INSERT INTO orders VALUES (:body, :keys)"), rows)
    rows_written = True


engine.dialect.do_commit = die  # type: ignore[method-assign]
orders = spark.readStream.format("rmq").options(path=store, subscribe="Orders", group="cg").load()
query = pyspark_rmq.write_once(orders, "env:ORDERS_DB", group="cg", write=write)
query.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
