"""Our sink beside Spark's for Kafka, whose broker runs on the same processors: what a user would otherwise take."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from bench.case import Case, Pair, Target
from bench.kafka_broker import add_connector, broker
from bench.messages import BODY_BYTES
from bench.null_source import PARTITIONS
from bench.rows.spark_write import (
    COLUMNS,
    ROWS,
    TUNED,
    TUNED_SPARK,
    TUNED_STORE,
    batch_run,
    columns,
    our_rows_per_second,
)
from bench.scratch import SPARK_SETTINGS, Scratch
from bench.spark_input import rows_per_second

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Literals, as those of our properties are; to look them up in the map would cost Spark more than Kafka.
_HEADERS = ", ".join(
    f"named_struct('key', '{name}', 'value', cast({value} as binary))"
    for name, value in (("TAGS", "tags"), ("region", "'eu-west'"), ("priority", "'7'"))
)
# What Kafka gets of our columns.
_SELECTED = {
    "5": ["keys as key", "body as value", f"array({_HEADERS}) as headers"],
    "2": ["body as value"],
}
_SENT = {"5": "key, value and 3 headers", "2": "value only"}
_PRODUCERS = {
    "default": {},
    "tuned": {"kafka.acks": "1", "kafka.linger.ms": "5", "kafka.batch.size": str(64 << 10)},
}
# The producer, and whether ours is tuned, too.
_VARIANTS = {"default": ("default", False), "tuned": ("tuned", False), "both-tuned": ("tuned", True)}
_SAID = {"default": "the default producer", "tuned": "acks=1, linger.ms=5, batch.size=64 KiB"}

_SETTINGS = (
    f"local[2]; the same rows from `spark.range` in {PARTITIONS} partitions for both, "
    + " and ".join(f"{rows:,} of {size:,} B" for size, rows in ROWS.items())
    + ". At least once there, exactly once here. The page cache is synced before each side begins."
)
_KAFKA = (
    f"Kafka and Spark's connector as released: one node on loopback, 1 GiB of heap, a new topic of {PARTITIONS} "
    "partitions for each measurement, no compression."
)
# The shares of the null sink were measured in one session with Kafka, in any order, 12 times each.
_LIMIT = (
    "Rows reach our sink through Python, and Kafka's inside the JVM. With 100 B and five columns the null sink "
    "alone, the cost of Python's API, needs three quarters of a tuned Kafka's time. There a tuned Kafka and our "
    "untuned sink are level: four runs gave 0.86 to 1.15."
)


def _beside_kafka(
    number: str, body_bytes: int, producer: str, *, is_ours_tuned: bool
) -> Callable[[Scratch], Iterator[Pair]]:
    store_settings = TUNED_STORE if is_ours_tuned else {}

    def prepare(scratch: Scratch) -> Iterator[Pair]:
        spark = scratch.spark(TUNED_SPARK if is_ours_tuned else SPARK_SETTINGS)
        rows = scratch.rows(ROWS[body_bytes])
        add_connector(spark)
        ours = batch_run(spark, rows, COLUMNS[number], body_bytes)
        frame = columns(spark.range(rows, numPartitions=PARTITIONS), "id", COLUMNS["5"], body_bytes)
        scratch.touch_memory(2 * rows * (body_bytes + 300))
        with broker(scratch.directory) as address:

            def theirs() -> float:
                os.sync()
                return _kafka_rows_per_second(spark, frame.selectExpr(*_SELECTED[number]), rows, address, producer)

            def of_ours() -> float:
                os.sync()
                return our_rows_per_second(scratch, rows, ours, store_settings)

            yield Pair(of_ours, theirs)

    return prepare


def _kafka_rows_per_second(spark: SparkSession, frame: DataFrame, rows: int, address: str, producer: str) -> float:
    topic = uuid.uuid4().hex
    servers = {"kafka.bootstrap.servers": address}

    def write(some: DataFrame) -> None:
        options = {**servers, **_PRODUCERS[producer], "topic": topic, "includeHeaders": "true"}
        some.write.format("kafka").options(**options).save()

    write(frame.limit(1))  # makes the topic, as ours is made before
    figure = rows_per_second(rows, lambda: write(frame))
    assert spark.read.format("kafka").options(**servers, subscribe=topic).load().count() == rows + 1
    return figure


def _cases() -> Iterator[Case]:
    for variant, (producer, is_ours_tuned) in _VARIANTS.items():
        for number, names in COLUMNS.items():
            for body_bytes in BODY_BYTES:
                yield Case(
                    f"write-beside-kafka-{variant}-{number}-columns-{body_bytes}",
                    f"batch write, exactly once, {'tuned, ' * is_ours_tuned}({names}), beside Kafka",
                    "write",
                    body_bytes,
                    f"Spark's sink for Kafka, {_SENT[number]}; {_SAID[producer]}",
                    "rows/s",
                    Target(1.0),
                    (*(TUNED,) * is_ours_tuned, _SETTINGS, _KAFKA),
                    contextmanager(_beside_kafka(number, body_bytes, producer, is_ours_tuned=is_ours_tuned)),
                    limit=_LIMIT,
                    peers=True,
                )


CASES = tuple(_cases())
