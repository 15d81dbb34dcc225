"""A streaming job and its test: an order that nobody can read goes through all 16 retries to the dead-letter queue.

    pip install '.[spark]' pytest
    pytest examples/test_orders_job.py

On a broker that takes 4 h 46 min. Here it takes some seconds: the fixtures `rmq_store`, `rmq_topic` and `rmq_group`
come with the package, and the test moves the clock.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession

import pyspark_rmq


def start_job(spark: SparkSession, store: Path, topic: str, group: str, checkpoint: Path) -> Any:
    # Inside of another function, so that Spark's workers need not import this file.
    def bill(order: Row) -> str:
        items = json.loads(order.body)["items"]
        print("to pay:", sum(item["qty"] * item["price"] for item in items))
        return pyspark_rmq.SUCCESS

    orders = (
        spark.readStream.format("rmq")
        .options(path=str(store), subscribe=topic, group=group)
        .load()
    )  # fmt: skip
    return (
        pyspark_rmq.consume(orders, bill, group=group, path=str(store))
        .option("checkpointLocation", str(checkpoint))
        .start()
    )


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    session = builder.config("spark.sql.shuffle.partitions", "1").getOrCreate()
    yield session
    session.stop()


def test_an_order_that_nobody_can_read(spark, rmq_store, rmq_topic, rmq_group, tmp_path):
    rmq_store.produce(rmq_topic, '{"items": [{"qty": 2, "price": 9.5}]}', "no JSON", keys="ORD-1")
    begin = rmq_store.clock.now()

    job = start_job(spark, rmq_store.path, rmq_topic, rmq_group, tmp_path / "checkpoint")
    try:
        job.processAllAvailable()
        while rmq_store.advance_to_next_due():
            job.processAllAvailable()
    finally:
        job.stop()

    (dead,) = rmq_store.dead_letters(rmq_group)
    assert (dead["topic"], dead["body"]) == (rmq_topic, b"no JSON")
    assert dead["reconsumeTimes"] == 17
    assert dead["properties"]["PYRMQ_ERROR_CLASS"] == "json.decoder.JSONDecodeError"
    assert rmq_store.clock.now() - begin == timedelta(hours=4, minutes=45, seconds=40)
