"""A stream whose broker goes and comes back, over sockets of this host."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from helpers.cluster.simulated import SimulatedCluster
from pyspark_rmq.access import cluster_pool, cluster_reader
from pyspark_rmq.cluster_read import look
from pyspark_rmq.options.options import source_options
from pyspark_rmq.position.queue_ids import BrokerQueueId
from pyspark_rmq.read.stream_reader import RmqStreamReader
from pyspark_rmq.schema.schema import SOURCE_SCHEMA
from rmq_store.backoff import Backoff
from rmq_store.protocol.wire.request_codes import RequestCode
from rmq_store.remoting.cluster import name_servers

from ..planned_batches import LIMIT, planned, through_spark

A0, B0 = BrokerQueueId("broker-000", 0), BrokerQueueId("broker-001", 0)
DEADLINE_S = 60.0


@pytest.fixture
def cluster() -> Iterator[SimulatedCluster]:
    with SimulatedCluster(brokers=2) as made:
        made.create_topic("T", 1, 10)
        yield made


@pytest.fixture
def reader(cluster: SimulatedCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[RmqStreamReader]:
    monkeypatch.setattr(cluster_reader, "Look", partial(look.Look, bound_ms=look.LEAST_MS))
    monkeypatch.setattr(name_servers, "PROBING", Backoff(first_ms=1000, max_ms=1000))
    given = {"nameServer": cluster.name_server, "subscribe": "T", "startingOffsets": "earliest"}
    made = RmqStreamReader(source_options(given, "stream read", 1_000_000), SOURCE_SCHEMA)
    yield made
    made.stop()
    cluster_pool.close_unused()


def stop(cluster: SimulatedCluster) -> Callable[[], None]:
    cluster.brokers["broker-001"].stop()
    return cluster.brokers["broker-001"].start


def leave(cluster: SimulatedCluster) -> Callable[[], None]:
    cluster.leave("broker-001")
    return partial(cluster.come_back, "broker-001")


def stand_still(cluster: SimulatedCluster) -> Callable[[], None]:
    server = cluster.brokers["broker-001"].server
    answers = server.handler

    def silent(connection: Any, request: Any) -> None:
        cluster.brokers["broker-001"].calls[request.code] += 1

    server.handler = silent

    def go_on() -> None:
        server.handler = answers

    return go_on


@pytest.mark.parametrize("goes", [stop, leave, stand_still])
def test_rows_of_the_others_go_on_and_those_of_the_broker_are_read_when_it_is_back(
    cluster: SimulatedCluster, reader: RmqStreamReader, goes: Callable[[SimulatedCluster], Callable[[], None]]
) -> None:
    position = through_spark(reader.initialOffset())
    read: list[tuple[Any, ...]] = []

    def trigger() -> None:
        nonlocal position
        start, position = position, through_spark(reader.latestOffset(position, LIMIT))
        if position != start:
            read.extend(planned(reader, start, position))

    def until(found: tuple[Any, ...]) -> None:
        until_s = time.monotonic() + DEADLINE_S
        while found not in read:
            assert time.monotonic() < until_s, read
            trigger()

    trigger()
    assert read == [("T", A0, 0, 10), ("T", B0, 0, 10)]
    comes_back = goes(cluster)
    for end in (11, 12, 13):
        cluster.brokers["broker-000"].queues.topics["T"][0].generated = end
        until(("T", A0, end - 1, end))
        if end == 11:
            cluster.brokers["broker-001"].calls.clear()
    assert position["topics"]["T"] == {"broker-000:0": 13, "broker-001:0": 10}
    assert cluster.brokers["broker-001"].calls.keys() <= {RequestCode.GET_BROKER_RUNTIME_INFO}, "probes only"
    cluster.brokers["broker-001"].queues.topics["T"][0].generated = 12
    comes_back()
    until(("T", B0, 10, 12))
    assert read.count(("T", B0, 10, 12)) == 1
