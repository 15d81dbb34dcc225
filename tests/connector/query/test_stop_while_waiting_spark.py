"""`query.stop()` while a task, or a plan, waits for a broker or for name servers that are away."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from helpers.cluster.simulated import SimulatedCluster
from helpers.cluster.simulated.server import CountingServer
from pyspark_rmq.access import cluster_pool
from rmq_store.protocol.wire.request_codes import RequestCode

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(300)]

# A stop that waits for the broker takes so long, and the test ends by its own limit. Spark itself takes 2 to 4 s to end
# a worker whose task was cancelled.
WAITS: Final = {"brokerAwayTimeout": "10m"}
DEADLINE_S: Final = 60.0


@pytest.fixture
def cluster() -> Iterator[SimulatedCluster]:
    with SimulatedCluster(brokers=2) as made:
        made.create_topic("Orders", 1, 10)
        yield made
        cluster_pool.close_unused()


def until(holds: Callable[[], bool]) -> None:
    until_s = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < until_s
        time.sleep(0.05)


def silence(server: CountingServer, *codes: int) -> None:
    """The server counts requests of these codes, all without any, and answers none of them."""
    answer = server.server.handler

    def silent(connection: Any, request: Any) -> Any:
        if codes and request.code not in codes:
            return answer(connection, request)
        server.calls[request.code] += 1
        return None

    server.server.handler = silent


def reads(spark: Any, cluster: SimulatedCluster) -> Any:
    options = {"nameServer": cluster.name_server, "subscribe": "Orders", "startingOffsets": "earliest", **WAITS}
    return spark.readStream.format("rmq").options(**options).load().writeStream.format("noop")


def writes(spark: Any, cluster: SimulatedCluster) -> Any:
    rows = spark.readStream.format("rate").option("rowsPerSecond", 5).load().selectExpr("cast(value as string) value")
    return rows.writeStream.format("rmq").options(
        nameServer=cluster.name_server, topic="Orders", sendTimeout="10m", **WAITS
    )


def a_task_reads_from_a_silent_broker(spark: Any, cluster: SimulatedCluster) -> tuple[Any, Callable[[], bool]]:
    broker = cluster.brokers["broker-001"]
    silence(broker, RequestCode.PULL_MESSAGE)
    return reads(spark, cluster), lambda: broker.calls[RequestCode.PULL_MESSAGE] > 0


def a_task_reads_from_a_broker_that_is_gone(spark: Any, cluster: SimulatedCluster) -> tuple[Any, Callable[[], bool]]:
    broker = cluster.brokers["broker-001"]
    silence(broker, RequestCode.PULL_MESSAGE)

    def is_gone() -> bool:
        if broker.calls[RequestCode.PULL_MESSAGE] == 0:
            return False
        broker.stop()
        return True

    return reads(spark, cluster), is_gone


def a_task_writes_to_silent_brokers(spark: Any, cluster: SimulatedCluster) -> tuple[Any, Callable[[], bool]]:
    for broker in cluster.brokers.values():
        silence(broker, RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.GET_MAX_OFFSET)
    return writes(spark, cluster), lambda: any(broker.calls[RequestCode.GET_MAX_OFFSET] for broker in brokers(cluster))


def a_plan_asks_silent_brokers_and_name_servers(
    spark: Any, cluster: SimulatedCluster
) -> tuple[Any, Callable[[], bool]]:
    def are_silent() -> bool:
        if not all(broker.calls[RequestCode.PULL_MESSAGE] for broker in brokers(cluster)):
            return False
        for server in (cluster, *brokers(cluster)):
            silence(server)
            server.calls.clear()
        until(lambda: all(sum(broker.calls.values()) for broker in brokers(cluster)))
        return True

    return reads(spark, cluster), are_silent


def brokers(cluster: SimulatedCluster) -> list[Any]:
    return list(cluster.brokers.values())


def nobody_asks(cluster: SimulatedCluster) -> bool:
    """No worker goes on to wait: it would ask again after 3 s without an answer, and a pause of 2.5 s at most."""
    before = [dict(broker.calls) for broker in brokers(cluster)]
    time.sleep(6)
    return before == [dict(broker.calls) for broker in brokers(cluster)]


@pytest.mark.parametrize(
    "waits",
    [
        a_task_reads_from_a_silent_broker, a_task_reads_from_a_broker_that_is_gone, a_task_writes_to_silent_brokers,
        a_plan_asks_silent_brokers_and_name_servers,
    ],
)  # fmt: skip
def test_a_stop_does_not_wait_for_brokers(
    spark: Any, cluster: SimulatedCluster, tmp_path: Path, waits: Callable[..., Any]
) -> None:
    writer, is_waiting = waits(spark, cluster)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    until(is_waiting)
    time.sleep(1)
    query.stop()
    assert query.exception() is None
    until(lambda: nobody_asks(cluster))
