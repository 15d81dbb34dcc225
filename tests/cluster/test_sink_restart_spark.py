"""A streaming sink with default options outlives the restart of one of two masters that have no slaves: it waits for
the records that may be there, and no row is lost or stored twice.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helpers.cluster.brokers import RocketmqCluster

from ..connector.conftest import spark

__all__ = ["spark"]

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(900)]
NewName = Callable[[str], str]

_log = logging.getLogger(__name__)

GONE = "broker-a"
AWAY_S = 60
PATIENCE_S = 240


def wait_for(query: Any, fulfilled: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not fulfilled():
        if query.exception() is not None:
            raise query.exception()
        assert time.monotonic() < deadline_s, f"{what} did not come within {PATIENCE_S} s"
        time.sleep(0.2)


@pytest.mark.parametrize("is_killed", [False, True], ids=["stopped", "killed"])
def test_a_sink_waits_for_one_of_two_masters(
    spark: Any, two_masters: RocketmqCluster, new_name: NewName, tmp_path: Path, is_killed: bool
) -> None:
    topic = two_masters.create_topic(new_name("Bills"), queue_count=2)
    options = {"nameServer": two_masters.name_server, "topic": topic}
    rows = spark.readStream.format("rate").option("rowsPerSecond", 50).option("numPartitions", 2).load()
    rows = rows.selectExpr("CAST(value AS STRING) AS body")
    writer = rows.writeStream.format("rmq").options(**options)
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(processingTime="2 seconds").start()

    def batches() -> int:
        return -1 if query.lastProgress is None else int(query.lastProgress["batchId"])

    try:
        wait_for(query, lambda: batches() >= 3, "the fourth batch")
        before = batches()
        process = two_masters.broker(GONE)
        (process.kill if is_killed else process.stop)()
        went_s = time.monotonic()
        while time.monotonic() < went_s + AWAY_S:
            assert query.exception() is None
            time.sleep(0.5)
        while_away = batches() - before
        process.start()
        two_masters.await_registered((GONE, 0))
        back_s = time.monotonic()
        wait_for(query, lambda: batches() >= before + while_away + 3, "batches after the return")
        after_s = time.monotonic() - back_s
        _log.warning("%d batches while it was away; three more %.1f s after its return", while_away, after_s)
        longest_ms = max(one["batchDuration"] for one in query.recentProgress)
        _log.warning("longest batch: %d ms", longest_ms)
        last = batches()
    finally:
        query.stop()
    read = spark.read.format("rmq").options(nameServer=two_masters.name_server, subscribe=topic).load()
    stored = Counter(int(row.body) for row in read.select(read.body.cast("string").alias("body")).collect())
    assert [number for number, times in stored.items() if times > 1] == []
    planned = sum(one["numInputRows"] for one in query.recentProgress if one["batchId"] <= last)
    assert set(range(planned)) <= stored.keys()
