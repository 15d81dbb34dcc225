"""A task whose only broker is killed waits for it, and takes its topics as they are."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pyarrow as pa
import pytest

from helpers.cluster.simulated import SimulatedCluster
from rmq_store.client.cluster_sink.records import WritePart
from rmq_store.client.cluster_sink.row_encoder import EncoderSettings
from rmq_store.client.cluster_sink.task import SinkSettings, SinkTask
from rmq_store.client.delivery import queue_reading
from rmq_store.protocol.bodies.routes import ClusterInfo
from rmq_store.protocol.errors import SendInDoubtError
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.request_codes import RequestCode
from rmq_store.remoting.cluster.cluster import Cluster
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
