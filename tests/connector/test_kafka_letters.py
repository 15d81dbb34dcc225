"""Dead letters of Kafka in the source for dead letters, and in `redrive`."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import pyspark_rmq
from rmq_store import Store
from rmq_store.bridge.dead_letters.letter_rows import LetterGroups, letter_rows
from rmq_store.bridge.record_batches.schema import RECORDS_SCHEMA
from rmq_store.bridge.records.route import Route
from rmq_store.bridge.records.to_rmq import RmqRules
from rmq_store.broker.dlq.redrive_batch import OF_KAFKA

pytestmark = [pytest.mark.spark]

CONNECT = {
    b"__connect.errors.topic": b"orders", b"__connect.errors.partition": b"1", b"__connect.errors.offset": b"41",
    b"__connect.errors.exception.class.name": b"org.apache.kafka.connect.errors.DataException",
    b"__connect.errors.exception.message": b"not JSON", b"__connect.errors.exception.stacktrace": b"\tat a.B.c(B:1)\n",
}  # fmt: skip


def test_triage_in_spark_shows_reason_and_origin_and_leaves_them_to_kafka(spark: SparkSession, tmp_path: Path) -> None:
    headers = [{"name": name, "value": value} for name, value in CONNECT.items()]
    record = {"offset": 7, "timestampMs": 1, "timestampType": 0, "key": b"k", "value": b"{", "headers": headers}
    rows = pa.RecordBatch.from_pylist([record], RECORDS_SCHEMA)
    route = Route("kafka", "letters", 0, "rocketmq", "", 0)
    path = str(tmp_path / "store")
    with Store.open(path, create=True) as store:
        store.create_topic("%DLQ%billing", 1)
        batches = letter_rows(rows, route, RmqRules("letters", 1), LetterGroups("billing")).batches
        store.append_unit(batches, purpose="mirror", key="k", value=1, expect=None, keep_unique_key=True)
    dead = spark.read.format("rmq").options(path=path, dlq="billing").load()
    [row] = dead.collect()
    assert (row["originTopic"], row["originQueueId"], row["originQueueOffset"]) == ("orders", 1, 41)
    assert (row["errorClass"], row["errorMessage"]) == ("org.apache.kafka.connect.errors.DataException", "not JSON")
    assert len(row["stackHash"]) == 16 and row["redriven"] is False
    [result] = pyspark_rmq.redrive(dead, path=path, group="billing").collect()
    assert (result["outcome"], result["reason"]) == ("REFUSED", OF_KAFKA)
