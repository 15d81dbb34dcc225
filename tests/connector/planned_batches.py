"""What Spark's planning process asks of a stream reader, for tests."""

from __future__ import annotations

import json
from typing import Any

from pyspark_rmq.access.spark_api import ReadMaxRows
from pyspark_rmq.position.position import Queue

T0, T1 = Queue("T", 0), Queue("T", 1)
LIMIT = ReadMaxRows(1)  # only says that it is not Trigger.Once


def through_spark(offset: dict[str, Any]) -> dict[str, Any]:
    """What comes back from the JVM, or from the checkpoint."""
    value: dict[str, Any] = json.loads(json.dumps(offset))
    return value


def planned(reader: Any, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[str, int, int, int]]:
    """The slices that the tasks of a batch read."""
    return [tuple(partition.part) for partition in reader.partitions(start, end)]


def first_batch(reader: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Where a new query starts, and where its first batch ends."""
    start = through_spark(reader.initialOffset())
    return start, through_spark(reader.latestOffset(start, LIMIT))
