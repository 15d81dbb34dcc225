"""A batch that the sink has and Spark does not know of comes again, after its source has lost messages of it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql.types import StructType

from pyspark_rmq.access.spark_api import ReadAllAvailable
from pyspark_rmq.options.options import source_options
from pyspark_rmq.read.stream_reader import RmqStreamReader
from pyspark_rmq.schema.schema import SOURCE_SCHEMA
from pyspark_rmq.source import DefaultSource
from rmq_store import MarkerError, Store, recorded_losses

Make = Callable[..., Any]
BODY = StructType([SOURCE_SCHEMA["body"]])
COUNT = 1000


@pytest.fixture(autouse=True)
def in_task() -> Iterator[None]:
    yield
    TaskContext._setTaskContext(None)


def reader_of(source: Path) -> RmqStreamReader:
    asked = {"path": str(source), "subscribe": "T", "startingOffsets": "earliest", "failOnDataLoss": "false"}
    return RmqStreamReader(source_options(asked, "stream read", 0), BODY)


def planned(source: Path, start: Any = None) -> tuple[Any, Any]:
    """Where the batch begins and ends that Spark would write down now."""
    reader = reader_of(source)
    begin = reader.initialOffset() if start is None else start
    end = reader.latestOffset(begin, ReadAllAvailable())
    reader.stop()
    return json.loads(json.dumps(begin)), json.loads(json.dumps(end))


def run(source: Path, target: Path, batch: int, start: Any, end: Any, **options: str) -> None:
    """One micro-batch of query q1, from store to store, as a new start of the query would run it."""
    context = TaskContext._getOrCreate()
    ids = {"sql.streaming.queryId": "q1", "streaming.sql.batchId": str(batch), "spark.jobGroup.id": "run-1"}
    context._partitionId, context._taskAttemptId, context._localProperties = 0, 0, ids
    writer = DefaultSource({"path": str(target), "topic": "T"} | options).streamWriter(BODY, False)
    reader = reader_of(source)
    rows = (part for partition in reader.partitions(start, end) for part in reader.read(partition))
    try:
        writer.commit([writer.write(rows)], batch)
    finally:
        reader.stop()


def fill(path: Path, first: int, last: int) -> None:
    with Store.open(path) as store:
        store.append(pa.record_batch({"body": pa.array([f"{n:04}".ljust(2000) for n in range(first, last)])}), "T")


def test_a_repeated_batch_that_lost_messages_is_refused_until_its_owner_says_that_it_is_the_same(
    make_store: Make, bodies: Make
) -> None:
    source, target = make_store("source"), make_store("target")
    fill(source, 0, COUNT)
    start, end = planned(source)
    run(source, target, 0, start, end)  # the driver dies here: Spark will repeat the batch
    with Store.open(source) as store:
        os.utime(min((source / "commitlog").iterdir()), (1, 1))
        store.retention.run(manual=True)
    fill(source, COUNT, COUNT + 10)
    refused = rf"other rows \(\d+ now, {COUNT} committed\).*lost messages of it.*once with option repeatable=false"
    with pytest.raises(MarkerError, match=refused):
        run(source, target, 0, start, end)
    assert {(loss.query, loss.batch) for loss in recorded_losses(source)} == {("q1", 0)}
    run(source, target, 0, start, end, repeatable="false")
    run(source, target, 1, *planned(source, end))
    assert [int(body) for body in bodies(target, "T")] == list(range(COUNT + 10))
