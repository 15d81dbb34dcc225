"""`query.stop()` ends each wait of a query: one of the planning process, one of a task that reads, one that writes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers.cluster.simulated import SimulatedCluster
from pyspark_rmq.access import cluster_pool
from pyspark_rmq.access.spark_api import offset_of
from rmq_store.protocol.wire.request_codes import RequestCode

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(600)]
DEADLINE_S = 120.0
STOPS_WITHIN_MS = 10_000


@pytest.fixture
def brokers() -> Iterator[SimulatedCluster]:
    with SimulatedCluster(brokers=2) as brokers:
        brokers.create_topic("Orders", 1, 10)
        brokers.create_topic("Copy", 1)
        for broker in brokers.brokers.values():
            broker.groups.add("g")
        yield brokers
        cluster_pool.close_unused()


@pytest.fixture
def stop_timeout(spark: Any) -> Iterator[None]:
    """Spark's own bound: `stop` fails if the query has not ended by then."""
    name = "spark.sql.streaming.stopTimeout"
    spark.conf.set(name, str(STOPS_WITHIN_MS))
    yield
    spark.conf.unset(name)


def until(is_so: Callable[[], bool]) -> None:
    end_s = time.monotonic() + DEADLINE_S
    while not is_so():
        assert time.monotonic() < end_s
        time.sleep(0.1)


def rows(spark: Any, brokers: SimulatedCluster, **options: str) -> Any:
    given = {"nameServer": brokers.name_server, "subscribe": "Orders", "startingOffsets": "earliest", **options}
    return spark.readStream.format("rmq").options(**given).load()


def stopped(query: Any) -> None:
    """Raises if that takes longer than `stop_timeout`."""
    query.stop()
    assert not query.isActive


@pytest.mark.usefixtures("stop_timeout")
def test_a_query_that_waits_for_an_earlier_run_of_its_own_is_stopped(
    spark: Any, brokers: SimulatedCluster, tmp_path: Path
) -> None:
    def started(**trigger: Any) -> Any:
        writer = rows(spark, brokers, group="g", retryTopic="false").writeStream.format("noop")
        return writer.option("checkpointLocation", str(tmp_path / "c")).trigger(**trigger).start()

    first = started(availableNow=True)
    first.awaitTermination()
    query_id = offset_of(first.lastProgress.sources[0], "endOffset")["query"]
    until(lambda: not any(broker.members["g"] for broker in brokers.brokers.values()))
    for broker in brokers.brokers.values():
        broker.members["g"].add(f"ghost#{query_id}-00000000")
        broker.calls.clear()
    query = started(processingTime="0 seconds")
    until(lambda: brokers.brokers["broker-000"].calls[RequestCode.GET_CONSUMER_CONNECTION_LIST] >= 3)
    assert query.isActive
    stopped(query)


@pytest.mark.usefixtures("stop_timeout")
def test_a_task_that_waits_for_a_broker_to_read_is_stopped(
    spark: Any, brokers: SimulatedCluster, tmp_path: Path
) -> None:
    for broker in brokers.brokers.values():
        broker.refuse(RequestCode.PULL_MESSAGE, 2)
    query = rows(spark, brokers).writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c")).start()
    until(lambda: brokers.brokers["broker-000"].calls[RequestCode.PULL_MESSAGE] >= 3)
    assert query.isActive
    stopped(query)


@pytest.mark.usefixtures("stop_timeout")
@pytest.mark.parametrize("code", [RequestCode.SEND_BATCH_MESSAGE, RequestCode.GET_MAX_OFFSET])
def test_a_task_that_waits_for_a_broker_to_write_is_stopped(
    spark: Any, brokers: SimulatedCluster, tmp_path: Path, code: int
) -> None:
    for broker in brokers.brokers.values():
        broker.refuse(code, 14)
    copy = rows(spark, brokers).select("body").writeStream.format("rmq").option("nameServer", brokers.name_server)
    query = copy.option("topic", "Copy").option("checkpointLocation", str(tmp_path / "c")).start()
    until(lambda: brokers.brokers["broker-000"].calls[code] >= 3)
    assert query.isActive
    stopped(query)
