"""Whole tasks of a sink through outages: nothing is stored twice, and an error names the broker and the option."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from helpers.cluster.simulated import SimulatedBroker, SimulatedCluster
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


def run(
    brokers: SimulatedCluster, batch: int, patience_ms: int = 300, rows: pa.RecordBatch = ROWS,
    resend_unknown: bool = False,
) -> SinkReport:  # fmt: skip
    settings = SinkSettings(
        EncoderSettings("Orders"), PipelineSettings(away_timeout_ms=patience_ms),
        settle_ms=0, patience_ms=patience_ms, resend_unknown=resend_unknown,
    )  # fmt: skip
    with Cluster(ClusterSettings.of_text(brokers.name_server)) as cluster:
        with SinkTask(cluster, settings, WritePart("query/q", batch, 0)) as task:
            task.write(rows)
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


# -- three masters, of which one is away -------------------------------------------------------------------------------

C = "broker-002"
OLD = 1_000


@pytest.fixture
def three() -> Iterator[SimulatedCluster]:
    """The list of brokers with records has all of them. The queue of C has many messages of others."""
    with SimulatedCluster(3) as brokers:
        for topic in ("Orders", RECORD_TOPIC):
            brokers.create_topic(topic, queue_count=1)
        brokers.brokers[C].queues.topics["Orders"][0].generated = OLD
        assert run(brokers, 0, 5_000).rows == 3
        yield brokers


def stand_still(broker: SimulatedBroker) -> Callable[[], None]:
    answers, broker.server.handler = broker.server.handler, lambda connection, request: None
    return lambda: setattr(broker.server, "handler", answers)


def stop(broker: SimulatedBroker) -> Callable[[], None]:
    broker.stop()
    return broker.start


@pytest.mark.parametrize("goes", [stop, pytest.param(stand_still, marks=pytest.mark.long)])
def test_a_master_that_is_away_gets_no_new_rows_and_holds_up_nobody(
    three: SimulatedCluster, goes: Callable[[SimulatedBroker], Callable[[], None]]
) -> None:
    """Name servers show it for 30 s, and for 120 s if it stands still."""
    before, at_c = stored(three), three.brokers[C].queues.topics["Orders"][0].end
    comes_back = goes(three.brokers[C])
    for batch in (1, 2, 3):
        # One that was waited for would use up this time, and end the task.
        assert run(three, batch, 4_000).rows == 3
    comes_back()
    assert (stored(three), three.brokers[C].queues.topics["Orders"][0].end) == (before + 9, at_c)
    three.brokers[C].calls.clear()
    again = run(three, 3, 5_000)
    assert (again.rows, again.skipped, stored(three)) == (0, 3, before + 9)
    pulls = three.brokers[C].calls[RequestCode.PULL_MESSAGE]
    assert pulls <= 2, "of records; its old messages are no rows of this task, and are not read"


def test_rows_that_a_repetition_sends_to_a_master_that_was_left_out_are_found_there(three: SimulatedCluster) -> None:
    before = stored(three)
    comes_back = stop(three.brokers[C])
    assert run(three, 1, 5_000, ROWS.slice(0, 1)).rows == 1
    comes_back()
    for name in (A, B):
        three.brokers[name].refuse(RequestCode.SEND_BATCH_MESSAGE, 2)
    at_c = three.brokers[C].queues.topics["Orders"][0].end
    report = run(three, 1, 20_000)
    assert (report.rows, report.skipped, three.brokers[C].queues.topics["Orders"][0].end) == (2, 1, at_c + 2)
    for name in (A, B):
        three.brokers[name]._refusals.clear()
    comes_back = stop(three.brokers[C])
    with pytest.raises(SendInDoubtError, match=rf"{C}.*option brokerAwayTimeout"):
        run(three, 1)
    comes_back()
    again = run(three, 1, 5_000)
    assert (again.rows, again.skipped, stored(three)) == (0, 3, before + 3)


def test_rows_with_queues_of_their_own_wait_for_every_master(three: SimulatedCluster) -> None:
    stop(three.brokers[C])
    keyed = pa.RecordBatch.from_pydict({"body": [b"a", b"b"], "shardingKey": ["x", "y"]})
    with pytest.raises(SendInDoubtError, match=rf"{C}.*300 ms \(option brokerAwayTimeout\)"):
        run(three, 1, rows=keyed)


@pytest.mark.long
def test_batches_are_stored_once_though_two_of_three_masters_were_killed_in_turn(three: SimulatedCluster) -> None:
    before = stored(three)
    stop_c = stop(three.brokers[C])
    assert run(three, 1, 5_000).rows == 3
    stop_c()
    for name in (A, B):
        comes_back = stop(three.brokers[name])
        try:
            found = run(three, 1, 1_000)
            assert (found.rows, found.skipped) == (0, 3)
        except SendInDoubtError:
            pass  # it has recorded queues
        comes_back()
        assert stored(three) == before + 3, "never new"
    assert (run(three, 1, 5_000).skipped, stored(three)) == (3, before + 3)


def test_a_broker_without_its_last_messages_fails_the_batch_until_the_user_has_it_sent_again(
    brokers: SimulatedCluster,
) -> None:
    """The queue stays shorter, so that no repetition of its own gets any further."""
    brokers.leave(B)
    assert run(brokers, 0).rows == 3
    lose_an_answer(brokers)
    with pytest.raises(SendInDoubtError):
        run(brokers, 1)
    for broker in brokers.brokers.values():
        broker._refusals.clear()
    del brokers.brokers[A].queues.topics["Orders"][0].sent[1:]
    for _ in range(2):
        with pytest.raises(SendInDoubtError, match=r"ends at 1, and ended at 3 before.* With onUnknownOutcome=resend"):
            run(brokers, 1)
    assert (run(brokers, 1, resend_unknown=True).rows, stored(brokers)) == (3, 4)
    assert (run(brokers, 2).rows, stored(brokers)) == (3, 7)
