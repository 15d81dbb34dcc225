"""How old a row is when a stream hands it over: ours, of a store that another process writes to, and the null source.

The floor is a source that makes its rows by the clock: it has neither a writer nor a store.
"""

from __future__ import annotations

import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from bench import births
from bench.case import Case, Pair, Target
from bench.null_source import PARTITIONS
from bench.scratch import Scratch
from bench.spark_input import TOPIC, filled

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming import StreamingQuery

ROWS_PER_SECOND = 1_000
SETTLE_S, MEASURED_S = 4.0, 8.0
QUICK_S = 2.0


@contextmanager
def _prepare(scratch: Scratch) -> Iterator[Pair]:
    spark = scratch.spark()
    # The null source's tasks hand over a part of the template: it must be as long as what any trigger brings.
    made = filled(scratch.directory, PARTITIONS * 10 * ROWS_PER_SECOND, births.BODY_BYTES)

    def ages(source: str, options: dict[str, str]) -> tuple[float, ...]:
        frame = spark.readStream.format(source).options(**options).load()
        return _quantiles_ms(frame, scratch)

    def ours() -> tuple[float, ...]:
        command = [sys.executable, "-m", "bench.births", str(made.store), TOPIC, str(ROWS_PER_SECOND)]
        with subprocess.Popen(command, stdin=subprocess.PIPE) as producer:
            try:
                return ages("rmq", made.ours() | {"startingOffsets": "latest"})
            finally:
                producer.communicate()
                assert producer.returncode == 0, producer.returncode

    yield Pair(ours, lambda: ages("null", made.null() | {"rowsPerSecond": str(ROWS_PER_SECOND)}))


def _quantiles_ms(frame: DataFrame, scratch: Scratch) -> tuple[float, ...]:
    """p50 and p99 of the ages of the rows of a running query, after a while."""
    ages_ms: list[float] = []

    def hand_over(batch: DataFrame, _: int) -> None:
        rows = batch.collect()
        ages_ms.extend(births.ages_ms((row.body for row in rows), time.time_ns()))

    checkpoint = scratch.directory / f"checkpoint-{uuid.uuid4().hex}"
    writer = frame.select("body").writeStream.foreachBatch(hand_over)
    query = writer.option("checkpointLocation", str(checkpoint)).start()
    try:
        _wait(query, ages_ms, SETTLE_S)
        ages_ms.clear()
        _wait(query, ages_ms, QUICK_S if scratch.quick else MEASURED_S)
        wanted = ages_ms.copy()
    finally:
        query.stop()
    return tuple(np.quantile(wanted, (0.5, 0.99)).tolist())


def _wait(query: StreamingQuery, ages_ms: list[float], seconds: float) -> None:
    """Until the time is over and rows have come."""
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s or not ages_ms:
        assert query.isActive, query.exception()
        time.sleep(0.05)


# Found with the durationMs of Spark's progress of both queries, and with a producer beside the null source, too.
_LIMIT = (
    "A row waits for the trigger that is under way, and then for its own: its age is 1.3 to 1.4 times a trigger's "
    "time, with either source. The producer beside ours takes a quarter of one processor; the null source's "
    "workers collect more garbage after each task."
)

CASES = (
    Case(
        "latency",
        "age of a row when a stream has it, end to end",
        "latency",
        births.BODY_BYTES,
        "null source whose rows are made by the clock",
        "ms",
        Target(1.15, at_least=False),
        f"local[2], {ROWS_PER_SECOND:,} rows/s, default trigger, {PARTITIONS} tasks; ours come from another process, "
        f"one by one. The rows are taken by `foreachBatch` and `collect`, over {MEASURED_S:g} s.",
        _prepare,
        figures=("p50", "p99"),
        limit=_LIMIT,
    ),
)
