"""A task whose only broker is killed waits for it, and takes its topics as they are."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pytest

from helpers.cluster.simulated import SimulatedCluster
from rmq_store.client.cluster_sink.records import WritePart
from rmq_store.client.cluster_sink.row_encoder import EncoderSettings
from rmq_store.client.cluster_sink.task import SinkSettings, SinkTask
from rmq_store.client.delivery import queue_reading
from rmq_store.errors import UsageError
from rmq_store.protocol.bodies.routes import ClusterInfo
from rmq_store.protocol.errors import BrokerAwayError, SendInDoubtError
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.request_codes import RequestCode
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.cluster.routes import BrokerAddresses, TopicQueues, TopicRoute
from rmq_store.remoting.transport.settings import ClusterSettings

ROWS = pa.RecordBatch.from_pydict({"body": [b"a", b"b"]})
NOT_EXIST = 17


@pytest.fixture
def brokers() -> Iterator[SimulatedCluster]:
    with SimulatedCluster() as brokers:
        brokers.create_topic("Orders", queue_count=2)
        yield brokers


def hide(brokers: SimulatedCluster, questions: int) -> None:
    """The name server shows no broker until it was asked for them so often."""
    asked = itertools.count()
    route, info = (brokers._answerers[code] for code in (RequestCode.GET_ROUTEINFO_BY_TOPIC, CLUSTER_INFO))
    is_hidden = True

    def shown_info(request: RemotingCommand):  # type: ignore[no-untyped-def]
        nonlocal is_hidden
        is_hidden = next(asked) < questions
        return (0, {}, ClusterInfo().encode()) if is_hidden else info(request)

    brokers._answerers[CLUSTER_INFO] = shown_info
    brokers._answerers[RequestCode.GET_ROUTEINFO_BY_TOPIC] = (
        lambda request: (NOT_EXIST, {}, b"") if is_hidden else route(request)
    )


CLUSTER_INFO = RequestCode.GET_BROKER_CLUSTER_INFO


def test_a_task_waits_for_a_broker_and_makes_no_topic_anew(
    brokers: SimulatedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_reading, "_PAUSE_S", 0.01)
    hide(brokers, 3)
    with Cluster(ClusterSettings.of_text(brokers.name_server)) as cluster:
        settings = SinkSettings(EncoderSettings("Orders"), patience_ms=20_000, new_topic_queues=0)
        with SinkTask(cluster, settings, WritePart("w", 0, 0)) as task:
            task.write(ROWS)
            assert task.finish().rows == 2
    assert len(brokers.brokers["broker-000"].queues.topics["Orders"]) == 2


def test_a_task_without_any_broker_fails_in_time(brokers: SimulatedCluster) -> None:
    hide(brokers, 1 << 30)
    with Cluster(ClusterSettings.of_text(brokers.name_server)) as cluster:
        settings = SinkSettings(EncoderSettings("Orders"), patience_ms=100)
        with SinkTask(cluster, settings, WritePart("w", 0, 0)) as task:
            with pytest.raises(SendInDoubtError, match="no broker is registered"):
                task.write(ROWS)


def only_slaves(topic: str, perm: int = 6) -> TopicRoute:
    name = "broker-000"
    return TopicRoute(topic, {name: BrokerAddresses(name, "c", {1: "127.0.0.1:9"})}, {name: TopicQueues(2, 2, perm)})


@pytest.mark.parametrize("questions", [3, 1 << 30])
def test_a_task_waits_for_a_master_while_only_slaves_are_registered(
    brokers: SimulatedCluster, monkeypatch: pytest.MonkeyPatch, questions: int
) -> None:
    """Name servers drop a killed master at once, and go on to show its slave."""
    monkeypatch.setattr(queue_reading, "_PAUSE_S", 0.01)
    with Cluster(ClusterSettings.of_text(brokers.name_server)) as cluster:
        asked = itertools.count()
        refresh, route = cluster.refresh_route, cluster.route
        monkeypatch.setattr(
            cluster, "refresh_route",
            lambda topic: only_slaves(topic) if next(asked) < questions else refresh(topic),
        )  # fmt: skip
        monkeypatch.setattr(cluster, "route", lambda topic: only_slaves(topic) if topic == "Orders" else route(topic))
        patience_ms = 20_000 if questions == 3 else 100
        settings = SinkSettings(EncoderSettings("Orders"), patience_ms=patience_ms, new_topic_queues=0)
        with SinkTask(cluster, settings, WritePart("w", 0, 0)) as task:
            if questions == 3:
                task.write(ROWS)
                assert task.finish().rows == 2
            else:
                with pytest.raises(BrokerAwayError, match=r"of broker-000 only slaves .* within 100 ms \(option"):
                    task.write(ROWS)


def test_a_topic_that_is_closed_to_writers_is_no_outage(
    brokers: SimulatedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Cluster(ClusterSettings.of_text(brokers.name_server)) as cluster:
        known = cluster.known_route("Orders")
        closed = replace(known, queues={name: replace(one, perm=4) for name, one in known.queues.items()})
        monkeypatch.setattr(cluster, "route", lambda topic: closed)
        settings = SinkSettings(EncoderSettings("Orders"), patience_ms=60_000, new_topic_queues=0)
        with SinkTask(cluster, settings, WritePart("w", 0, 0)) as task:
            with pytest.raises(UsageError, match="'Orders' has no queue that may be written"):
                task.write(ROWS)
