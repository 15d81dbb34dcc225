"""A broker that goes while Spark runs a query: what a query with state loses, what a user sees, and how a wait ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers.cluster.simulated import SimulatedCluster
from helpers.cluster.simulated.queues import SentMessage
from pyspark_rmq import LagListener
from pyspark_rmq.access import cluster_pool
from pyspark_rmq.access.spark_api import TELLS_STARTS, offset_of

from ..conftest import worker_environment
from ..spark_lacks import needs_spark

DEADLINE_S = 120.0
STAYS, GOES = "broker-000", "broker-001"
pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(600)]


@pytest.fixture
def brokers() -> Iterator[SimulatedCluster]:
    with SimulatedCluster(brokers=2) as brokers:
        brokers.create_topic("Orders", queue_count=1)
        yield brokers
        cluster_pool.close_unused()


def put(brokers: SimulatedCluster, broker: str, body: object) -> None:
    queue = brokers.brokers[broker].queues.topics["Orders"][0]
    queue.append(SentMessage(str(body).encode(), store_ms=time.time_ns() // 1_000_000))


def until(is_so: Callable[[], bool], told: Callable[[], object] = lambda: None) -> None:
    end_s = time.monotonic() + DEADLINE_S
    while not is_so():
        assert time.monotonic() < end_s, told()
        time.sleep(0.1)


def source(spark: Any, brokers: SimulatedCluster, **options: str) -> Any:
    frame = spark.readStream.format("rmq").option("nameServer", brokers.name_server).option("subscribe", "Orders")
    return frame.option("startingOffsets", "earliest").options(**options).load()


def away(query: Any) -> list[str]:
    """Only of a Spark that asks a source for its report (docs/spark.md, the lag of a cluster)."""
    progress = query.lastProgress
    return [] if progress is None else offset_of(progress.sources[0], "latestOffset").get("away", [])


@pytest.mark.parametrize(("policy", "count"), [("goOn", 2), ("wait", 3)])
def test_a_window_has_the_rows_of_a_broker_that_was_away_only_if_the_query_waits(
    spark: Any, brokers: SimulatedCluster, tmp_path: Path, policy: str, count: int,
) -> None:  # fmt: skip
    """The body is the time of an event in seconds. The watermark is 10 s behind the latest one."""
    windows: dict[int, int] = {}

    def add(batch: Any, _: int) -> None:
        windows.update({row.start: row["count"] for row in batch.collect()})

    for broker in (STAYS, GOES):
        put(brokers, broker, 1000)
    events = source(spark, brokers, onBrokerAway=policy).selectExpr("timestamp_seconds(CAST(CAST(body AS STRING) AS "
                                                                    "BIGINT)) AS at")  # fmt: skip
    marked = events.withWatermark("at", "10 seconds")
    counts = marked.groupBy(_window(marked)).count()
    listener = LagListener()
    spark.streams.addListener(listener)
    query = (
        counts.selectExpr("unix_timestamp(window.start) AS start", "count").writeStream.outputMode("append")
        .option("checkpointLocation", str(tmp_path / "c")).foreachBatch(add).start()
    )  # fmt: skip
    try:
        position = {STAYS: 0, GOES: 0}

        def is_read(broker: str, offset: int) -> bool:
            progress = query.lastProgress
            if progress is not None and (end := offset_of(progress.sources[0], "endOffset")):
                queues = end["topics"]["Orders"]
                position.update({name.partition(":")[0]: offset for name, offset in queues.items()})
            return position[broker] >= offset

        until(lambda: is_read(STAYS, 1) and is_read(GOES, 1), lambda: query.lastProgress)
        brokers.leave(GOES)
        put(brokers, GOES, 1005)
        put(brokers, STAYS, 2000)
        asked = sum(brokers.brokers[STAYS].calls.values())
        until(lambda: sum(brokers.brokers[STAYS].calls.values()) > asked + 5, lambda: brokers.brokers[STAYS].calls)
        if TELLS_STARTS:
            until(lambda: away(query) == [GOES], lambda: query.lastProgress)
        if policy == "goOn":
            until(lambda: windows.get(1000) == 2, lambda: (windows, query.lastProgress))
        else:
            assert not is_read(STAYS, 2)
            if TELLS_STARTS:
                until(lambda: listener.sources()[0].away_brokers == (GOES,), listener.sources)
        until(lambda: {row.broker_name: row.lag for row in listener.rows()}[GOES] is None, listener.rows)
        brokers.come_back(GOES)
        until(lambda: is_read(GOES, 2) and is_read(STAYS, 2), lambda: query.lastProgress)
        put(brokers, STAYS, 3000)
        until(lambda: 2000 in windows, lambda: (windows, query.lastProgress))
        assert windows[1000] == count
        assert query.exception() is None
    finally:
        query.stop()
        spark.streams.removeListener(listener)


def _window(events: Any) -> Any:
    from pyspark.sql.functions import window

    return window(events.at, "10 seconds")


AWAITING = [{"onBrokerAway": "wait"}, {"requiredBrokers": f"{STAYS},{GOES}", "brokerAwayTimeout": "10m"}]


@needs_spark("admission control")
@pytest.mark.parametrize("options", AWAITING)
def test_a_query_that_waits_for_a_broker_can_be_stopped(
    spark: Any, brokers: SimulatedCluster, tmp_path: Path, options: dict[str, str]
) -> None:
    """AvailableNow waits within a call of the source."""
    put(brokers, STAYS, 1)

    def started() -> Any:
        writer = source(spark, brokers, **options).writeStream.format("noop")
        return writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()

    started().awaitTermination()
    put(brokers, STAYS, 2)
    brokers.leave(GOES)
    query = started()
    assert not query.awaitTermination(15), "it waits"
    query.stop()
    assert not query.isActive
    brokers.come_back(GOES)
    query = started()
    query.awaitTermination()
    assert offset_of(query.lastProgress.sources[0], "endOffset")["topics"]["Orders"][f"{STAYS}:0"] == 2


@needs_spark("admission control", lacks=True)
@pytest.mark.parametrize("options", AWAITING)
def test_a_run_that_cannot_wait_for_a_broker_reads_nothing_and_the_next_one_reads_all(
    spark: Any, brokers: SimulatedCluster, tmp_path: Path, options: dict[str, str]
) -> None:
    """The source is not told of AvailableNow; the trigger asks it once."""

    def position() -> dict[str, int]:
        writer = source(spark, brokers, **options).writeStream.format("noop")
        writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start().awaitTermination()
        planned = max((tmp_path / "c" / "offsets").glob("[0-9]*"), key=lambda entry: int(entry.name))
        found: dict[str, int] = json.loads(planned.read_text().splitlines()[-1])["topics"]["Orders"]
        return found

    put(brokers, STAYS, 1)
    assert position() == {f"{STAYS}:0": 1, f"{GOES}:0": 0}
    put(brokers, STAYS, 2)
    put(brokers, GOES, 2)
    brokers.leave(GOES)
    assert position() == {f"{STAYS}:0": 1, f"{GOES}:0": 0}
    brokers.come_back(GOES)
    assert position() == {f"{STAYS}:0": 2, f"{GOES}:0": 1}


DRIVER = """
import json, sys
from pyspark.sql import SparkSession
from pyspark_rmq.access.spark_api import offset_of

server, checkpoint = sys.argv[1:]
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").config("spark.log.level", "OFF")
spark = builder.config("spark.sql.streaming.noDataProgressEventInterval", "500").getOrCreate()
rows = spark.readStream.format("rmq").option("nameServer", server).option("subscribe", "Orders")
rows = rows.option("startingOffsets", "earliest").load()
query = rows.writeStream.format("noop").option("checkpointLocation", checkpoint).start()
for line in sys.stdin:
    progress = query.lastProgress
    source = None if progress is None else progress.sources[0]
    ends = [] if source is None else [offset_of(source, name) for name in ("endOffset", "latestOffset")]
    print(json.dumps(ends), flush=True)
query.stop()
print(query.exception(), flush=True)
"""


def test_the_log_of_a_driver_says_once_when_a_broker_goes_and_when_it_is_back(
    brokers: SimulatedCluster, tmp_path: Path
) -> None:
    put(brokers, STAYS, 1)
    put(brokers, GOES, 1)
    with (tmp_path / "stderr").open("w") as stderr:
        driver = subprocess.Popen(
            [sys.executable, "-c", DRIVER, brokers.name_server, str(tmp_path / "c")], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, env={**os.environ, **worker_environment()},
        )  # fmt: skip
    try:
        assert driver.stdin is not None and driver.stdout is not None

        def progress() -> str:
            driver.stdin.write("?\n")  # type: ignore[union-attr]
            driver.stdin.flush()  # type: ignore[union-attr]
            told.append(driver.stdout.readline().replace(" ", ""))  # type: ignore[union-attr]
            return told[-1]

        told: list[str] = []

        def log() -> str:
            return "\n".join([*told[-1:], (tmp_path / "stderr").read_text()])

        def has(*texts: str) -> Callable[[], bool]:
            return lambda: all(text in progress() for text in texts)

        until(has(f'"{STAYS}:0":1', f'"{GOES}:0":1'), log)
        assert log().count("set onBrokerAway=wait for such a query") == 1
        for number in range(4):
            brokers.leave(GOES)
            put(brokers, STAYS, number)
            until(has(f'"{STAYS}:0":{number + 2}', *([f'"away":["{GOES}"]'] if TELLS_STARTS else [])), log)
            until(lambda: f"broker {GOES} is away: " in log(), log)
            put(brokers, GOES, number)
            brokers.come_back(GOES)
            until(has(f'"{GOES}:0":{number + 2}'), log)
            if number == 0:
                first = log()
        assert (first.count(f"broker {GOES} is away: "), first.count(f"broker {GOES} is back after ")) == (1, 1)
        assert f"The stream goes on without it (onBrokerAway); its queues stay at Orders-{GOES}:0 1" in first
        assert f"the stream goes on in its queues at Orders-{GOES}:0 1" in first
        assert 1 <= log().count(f"broker {GOES} is away") <= 3, "bounded, although it comes and goes"
        driver.stdin.close()
        assert "None" in driver.stdout.read()
        assert driver.wait(60) == 0
    finally:
        driver.kill()
