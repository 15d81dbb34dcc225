"""Whole tasks of a sink through outages: nothing is stored twice, and an error names the broker and the option."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest

from helpers.cluster.simulated import SimulatedCluster
from rmq_store.client.cluster_sink.pipeline import PipelineSettings
from rmq_store.client.cluster_sink.record_topic import RECORD_TOPIC, RecordTopic
from rmq_store.client.cluster_sink.records import Offsets, Record, WritePart
from rmq_store.client.cluster_sink.row_encoder import EncoderSettings
from rmq_store.client.cluster_sink.task import SinkReport, SinkSettings, SinkTask
from rmq_store.protocol.errors import SendInDoubtError
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.request_codes import RequestCode
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.transport.settings import ClusterSettings

A, B = "broker-000", "broker-001"
ROWS = pa.RecordBatch.from_pydict({"body": [b"a", b"b", b"c"]})


@pytest.fixture
def brokers() -> Iterator[SimulatedCluster]:
    with SimulatedCluster(2) as brokers:
        for topic in ("Orders", RECORD_TOPIC):
            brokers.create_topic(topic, queue_count=1)
        yield brokers


def run(brokers: SimulatedCluster, batch: int, patience_ms: int = 300) -> SinkReport:
    settings = SinkSettings(
        EncoderSettings("Orders"), PipelineSettings(away_timeout_ms=patience_ms),
        settle_ms=0, patience_ms=patience_ms,
    )  # fmt: skip
    with Cluster(ClusterSettings.of_text(brokers.name_server)) as cluster:
        with SinkTask(cluster, settings, WritePart("query/q", batch, 0)) as task:
            task.write(ROWS)
            return task.finish()


def stored(brokers: SimulatedCluster) -> int:
    return sum(one.queues.topics["Orders"][0].end for one in brokers.brokers.values())


def test_a_batch_is_stored_once_though_both_masters_were_killed_in_turn(
    brokers: SimulatedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(brokers, 0).rows == 3
    real = RecordTopic.add

    def killed_before_the_record(self: RecordTopic, record: Record) -> Offsets:
        brokers.leave(A)
        return real(self, record)

    monkeypatch.setattr(RecordTopic, "add", killed_before_the_record)
    assert run(brokers, 1, 5_000).rows == 3
    monkeypatch.setattr(RecordTopic, "add", real)
    brokers.leave(B)
    brokers.come_back(A)
    with pytest.raises(SendInDoubtError, match=rf"{B} may hold one.*option brokerAwayTimeout.*forget-broker"):
        run(brokers, 1)
    brokers.come_back(B)
    again = run(brokers, 1)
    assert (again.rows, again.skipped, stored(brokers)) == (0, 3, 6)


def lose_an_answer(brokers: SimulatedCluster) -> None:
    """The first batch that a broker stores has no answer, and the broker shuts down with it."""
    gone: list[str] = []
    for broker in brokers.brokers.values():
        answer = broker._answerers[RequestCode.SEND_BATCH_MESSAGE]

        def stores_and_goes(request: RemotingCommand, answer=answer, broker=broker):  # type: ignore[no-untyped-def]
            found = answer(request)
            if gone:
                return found
            gone.append(broker.name)
            for code in (RequestCode.GET_MAX_OFFSET, RequestCode.GET_MIN_OFFSET, RequestCode.PULL_MESSAGE):
                broker.refuse(code, 14)
            return (1, {}, b"")

        broker.answer(RequestCode.SEND_BATCH_MESSAGE, stores_and_goes)


def test_rows_in_doubt_wait_for_their_broker(brokers: SimulatedCluster) -> None:
    lose_an_answer(brokers)

    def back() -> None:
        for broker in brokers.brokers.values():
            broker._refusals.clear()

    timer = threading.Timer(1.5, back)
    timer.start()
    report = run(brokers, 0, 30_000)
    timer.join()
    assert (report.rows + report.found, report.found, stored(brokers)) == (3, 3, 3)


def test_rows_in_doubt_fail_by_name_and_option(brokers: SimulatedCluster) -> None:
    lose_an_answer(brokers)
    with pytest.raises(SendInDoubtError, match=r"queues of broker-00. are read.*300 ms \(option brokerAwayTimeout\)"):
        run(brokers, 0)
    assert stored(brokers) == 3
