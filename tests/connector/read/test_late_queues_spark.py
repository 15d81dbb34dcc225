"""A broker that is away when Spark reads a cluster: `requiredBrokers` and `onLateQueue` as users meet them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers.cluster.simulated import SimulatedCluster
from helpers.cluster.simulated.queues import SentMessage
from pyspark_rmq.access import cluster_pool
from pyspark_rmq.access.spark_api import offset_of

BOTH = "broker-000,broker-001"
AWAY = r"required brokers are away.*broker-001: no name server of \S+ knows it"
pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(300)]

# Runs the stream with more options until it has read what is there: (bodies by broker, last progress).
Run = Callable[..., tuple[dict[str, list[str]], Any]]


@pytest.fixture
def brokers() -> Iterator[SimulatedCluster]:
    """Orders with one queue and five old messages at each of two brokers."""
    with SimulatedCluster(brokers=2) as brokers:
        brokers.create_topic("Orders", queue_count=1, message_count=5)
        yield brokers
        cluster_pool.close_unused()


@pytest.fixture
def run(spark: Any, brokers: SimulatedCluster, tmp_path: Path) -> Run:
    def run(**options: str) -> tuple[dict[str, list[str]], Any]:
        found: dict[str, list[str]] = {}

        def add(batch: Any, _: int) -> None:
            for row in batch.select("brokerName", "body").collect():
                found.setdefault(row.brokerName, []).append(bytes(row.body).decode())

        frame = spark.readStream.format("rmq").option("nameServer", brokers.name_server).option("subscribe", "Orders")
        writer = frame.options(**options).load().writeStream.foreachBatch(add)
        query = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
        query.awaitTermination()
        return found, query.lastProgress

    return run


def put(brokers: SimulatedCluster, broker: str, body: str) -> None:
    queue = brokers.brokers[broker].queues.topics["Orders"][0]
    queue.append(SentMessage(body.encode(), store_ms=time.time_ns() // 1_000_000))


def test_a_batch_fails_by_the_name_of_the_broker_or_has_all_rows(spark: Any, brokers: SimulatedCluster) -> None:
    reader = spark.read.format("rmq").option("nameServer", brokers.name_server).option("subscribe", "Orders")
    brokers.leave("broker-001")
    assert reader.load().count() == 5, "never refused by default"
    with pytest.raises(Exception, match=AWAY) as raised:
        reader.option("requiredBrokers", BOTH).load().count()
    assert "BrokerAwayError" in str(raised.value)
    brokers.come_back("broker-001")
    assert reader.option("requiredBrokers", BOTH).load().count() == 10


def test_a_stream_fails_at_its_start_and_goes_on_when_the_broker_is_back(brokers: SimulatedCluster, run: Run) -> None:
    brokers.leave("broker-001")
    with pytest.raises(Exception, match=AWAY):
        run(startingOffsets="earliest", requiredBrokers=BOTH, onBrokerAway="fail")
    brokers.come_back("broker-001")
    found, _ = run(startingOffsets="earliest", requiredBrokers=BOTH)
    assert {broker: len(bodies) for broker, bodies in found.items()} == {"broker-000": 5, "broker-001": 5}
    put(brokers, "broker-000", "new")
    brokers.leave("broker-001")
    with pytest.raises(Exception, match=AWAY):
        run(requiredBrokers=BOTH, onBrokerAway="fail")
    brokers.come_back("broker-001")
    assert run(requiredBrokers=BOTH)[0] == {"broker-000": ["new"]}


@pytest.mark.parametrize(("on_late_queue", "old"), [(None, []), ("read", [f"message {number}" for number in range(5)])])
def test_a_latest_stream_begins_in_a_late_queue_at_its_own_start(
    brokers: SimulatedCluster, run: Run, on_late_queue: str | None, old: list[str]
) -> None:
    """Also after a restart, which finds the start in the checkpoint only."""
    brokers.leave("broker-001")
    assert run(startingOffsets="latest")[0] == {}
    put(brokers, "broker-000", "new")
    put(brokers, "broker-001", "came while it was away")
    brokers.come_back("broker-001")
    options = {} if on_late_queue is None else {"onLateQueue": on_late_queue}
    found, progress = run(startingOffsets="latest", **options)
    assert found == {"broker-000": ["new"], "broker-001": [*old, "came while it was away"]}
    assert offset_of(progress.sources[0], "endOffset")["began"] == {"Orders": {"broker-001:0": 0 if old else 5}}
    assert run(startingOffsets="latest", **options)[0] == {}, "once"
