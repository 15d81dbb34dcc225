"""Spark over a replica that is being fed: batches, streams, and writes, which are refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from helpers.replicas import FedReplica
from rmq_store import StoreConfig

pytestmark = pytest.mark.spark


@pytest.fixture
def replica(tmp_path: Path) -> Iterator[FedReplica]:
    with FedReplica(tmp_path / "replica", StoreConfig(1 << 20, 20_000, 1000, 10_000)) as made:
        made.add("T", 60)
        made.add("T", 40, queue_id=1)
        yield made


def test_a_batch_and_a_stream_read_a_replica_while_it_grows(
    spark: SparkSession, replica: FedReplica, tmp_path: Path
) -> None:
    rows = spark.read.format("rmq").option("path", str(replica.root)).option("subscribe", "T").load()
    assert rows.count() == 100
    assert {row.queueId for row in rows.select("queueId").distinct().collect()} == {0, 1}

    def run() -> int:
        stream = (
            spark.readStream.format("rmq").option("path", str(replica.root)).option("subscribe", "T")
            .option("startingOffsets", "earliest").load()
        )  # fmt: skip
        query = (
            stream.writeStream.format("parquet").option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        )  # fmt: skip
        query.awaitTermination()
        return spark.read.parquet(str(tmp_path / "out")).count()

    assert run() == 100
    replica.add("T", 5)
    assert run() == 105


def test_a_write_is_refused_by_name_and_changes_nothing(
    spark: SparkSession, replica: FedReplica
) -> None:
    before = {path: path.stat().st_mtime_ns for path in replica.root.rglob("*") if path.is_file()}
    rows = spark.createDataFrame([(bytearray(b"x"),)], "body binary")
    with pytest.raises(Exception, match="replica of broker 'broker-a'"):
        rows.write.format("rmq").option("path", str(replica.root)).option("topic", "T").mode("append").save()
    assert {path: path.stat().st_mtime_ns for path in replica.root.rglob("*") if path.is_file()} == before
    numbers = spark.readStream.format("rate").load()
    stream = numbers.selectExpr("cast(cast(value as string) as binary) as body").writeStream
    options = {"path": str(replica.root), "topic": "T", "checkpointLocation": str(replica.root.parent / "sink")}
    with pytest.raises(Exception, match="replica of broker 'broker-a'"):
        stream.format("rmq").options(**options).start().awaitTermination()
    assert {path: path.stat().st_mtime_ns for path in replica.root.rglob("*") if path.is_file()} == before
    with pytest.raises(Exception, match="option nameServer, beside path"):
        spark.readStream.format("rmq").option("path", str(replica.root)).option("subscribe", "T").option(
            "group", "g"
        ).load().writeStream.format("noop").option("checkpointLocation", str(replica.root.parent / "c")).start(
        ).awaitTermination()
