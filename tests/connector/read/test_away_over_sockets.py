"""A stream whose broker goes and comes back, over sockets of this host."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from threading import Event
from typing import Any, Final

import pytest

from helpers.cluster.simulated import SimulatedCluster
from pyspark_rmq.access import cluster_pool
from pyspark_rmq.position.queue_ids import BrokerQueueId
from rmq_store.client.group import lease_taking
from rmq_store.protocol.wire.request_codes import RequestCode

from ..planned_batches import LIMIT, planned, through_spark

pytestmark = pytest.mark.long
Make = Callable[..., Any]
A0, B0 = BrokerQueueId("broker-000", 0), BrokerQueueId("broker-001", 0)
DEADLINE_S = 60.0


@pytest.fixture
def cluster() -> Iterator[SimulatedCluster]:
    with SimulatedCluster(brokers=2) as made:
        made.create_topic("T", 1, 10)
        yield made


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
    cluster: SimulatedCluster, over_sockets: Make, goes: Callable[[SimulatedCluster], Callable[[], None]]
) -> None:
    reader = over_sockets(cluster)
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


LEASE: Final = {
    "lock": RequestCode.LOCK_BATCH_MQ, "members": RequestCode.GET_CONSUMER_CONNECTION_LIST,
    "heartbeat": RequestCode.HEART_BEAT, "offsets": RequestCode.QUERY_CONSUMER_OFFSET,
    "commit": RequestCode.UPDATE_CONSUMER_OFFSET,
}  # fmt: skip


@pytest.mark.parametrize("question", LEASE)
def test_a_broker_that_stands_still_at_a_question_of_the_lease_is_asked_no_more(
    cluster: SimulatedCluster, over_sockets: Make, monkeypatch: pytest.MonkeyPatch, question: str
) -> None:
    """Each plan would wait for it: for the lock, the heartbeat, and the offset of a batch that is done."""
    settings_of = cluster_pool.settings_of
    monkeypatch.setattr(cluster_pool, "settings_of", lambda options: replace(settings_of(options), timeout_ms=500))
    monkeypatch.setattr(lease_taking, "WATCH_S", 0.1)
    for each in cluster.brokers.values():
        each.groups.add("g")
    reader = over_sockets(cluster, group="g", retryTopic="false")
    broker, answers, silent = cluster.brokers["broker-001"], cluster.brokers["broker-001"].server.handler, Event()

    def stands_still(connection: Any, request: Any) -> Any:
        if request.code == LEASE[question]:
            silent.set()
        if not silent.is_set():
            return answers(connection, request)
        broker.calls[request.code] += 1
        return None

    broker.server.handler = stands_still
    position = through_spark(reader.initialOffset())
    read: list[tuple[Any, ...]] = []

    def trigger() -> None:
        nonlocal position
        start, position = position, through_spark(reader.latestOffset(position, LIMIT))
        if position != start:
            read.extend(planned(reader, start, position))
            reader.commit(position)

    def until(found: tuple[Any, ...]) -> None:
        until_s = time.monotonic() + DEADLINE_S
        while found not in read:
            assert time.monotonic() < until_s, read
            trigger()

    until(("T", A0, 0, 10))
    trigger()
    assert silent.is_set()
    broker.calls.clear()
    for end in range(11, 21):
        cluster.brokers["broker-000"].queues.topics["T"][0].generated = end
        until(("T", A0, end - 1, end))
    assert broker.calls.keys() <= {RequestCode.GET_BROKER_RUNTIME_INFO}, "probes only"
    broker.server.handler = answers
    broker.queues.topics["T"][0].generated = 12
    until(("T", B0, 10, 12) if ("T", B0, 0, 10) in read else ("T", B0, 0, 12))
    until_s = time.monotonic() + DEADLINE_S
    while {name: each.offsets.get(("g", "T", 0)) for name, each in cluster.brokers.items()} != {
        "broker-000": 20, "broker-001": 12
    }:  # fmt: skip
        assert time.monotonic() < until_s, "offsets that were owed are committed"
        trigger()
    assert set(broker.locks.values()) == set(cluster.brokers["broker-000"].locks.values()) == broker.members["g"]


@pytest.mark.parametrize("goes", [stop, leave, stand_still])
def test_a_query_with_a_group_that_is_started_again_meanwhile_reads_the_others(
    cluster: SimulatedCluster, over_sockets: Make, monkeypatch: pytest.MonkeyPatch,
    goes: Callable[[SimulatedCluster], Callable[[], None]],
) -> None:  # fmt: skip
    """It watches members beside its plans, and does not wait for them."""
    monkeypatch.setattr(lease_taking, "WATCH_S", 3600.0)
    for each in cluster.brokers.values():
        each.groups.add("g")
    first = over_sockets(cluster, group="g", retryTopic="false")
    position = through_spark(first.latestOffset(through_spark(first.initialOffset()), LIMIT))
    comes_back = goes(cluster)
    first.stop()
    for each in cluster.brokers.values():
        each.queues.topics["T"][0].generated = 15
    again = over_sockets(cluster, group="g", retryTopic="false")
    read: list[tuple[Any, ...]] = []

    def until(found: tuple[Any, ...]) -> None:
        nonlocal position
        until_s = time.monotonic() + DEADLINE_S
        while found not in read:
            assert time.monotonic() < until_s, read
            start, position = position, through_spark(again.latestOffset(position, LIMIT))
            if position != start:
                read.extend(planned(again, start, position))

    until(("T", A0, 10, 15))
    # It was not told that the first one has ended. A broker forgets such a lock after 60 s.
    cluster.brokers["broker-001"].locks.clear()
    comes_back()
    until(("T", B0, 10, 15))
    owners = {owner for each in cluster.brokers.values() for owner in each.locks.values()}
    assert len(owners) == 1 and cluster.brokers["broker-000"].members["g"] == owners
