"""Dead letters of simulated brokers are moved on: each once, by the rules of a store, whatever fails in between."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from helpers.cluster.simulated import SimulatedCluster
from helpers.cluster.simulated.retries import SimulatedRetries
from rmq_store.client.cluster_retry import redrive_lock
from rmq_store.client.cluster_retry.letters import CLUSTER_ROWS_SCHEMA
from rmq_store.client.cluster_retry.redrive import ClusterDeadLetters
from rmq_store.client.cluster_retry.redrive_ledger import LEDGER_TOPIC, RedriveLedger
from rmq_store.client.cluster_retry.single_sends import SingleSends
from rmq_store.errors import LeaseHeldError, StoreError, UnknownTopicError, UsageError
from rmq_store.format.frames.stored_message import StoredMessage
from rmq_store.protocol.messages import MessageQueue
from rmq_store.protocol.wire.request_codes import RequestCode
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.transport.settings import ClusterSettings

SEND = RequestCode.SEND_MESSAGE_V2
DLQ, RETRY = "%DLQ%g", "%RETRY%g"


class _Died(BaseException):
    """The process ends here."""


@pytest.fixture
def brokers() -> Iterator[SimulatedCluster]:
    with SimulatedCluster(brokers=2) as brokers:
        brokers.create_topic(LEDGER_TOPIC, 1)
        yield brokers


@pytest.fixture
def retries(brokers: SimulatedCluster) -> list[SimulatedRetries]:
    found = [SimulatedRetries(broker) for broker in brokers.brokers.values()]
    for one in found:
        for number in range(6):
            letter(one, number)
    return found


@pytest.fixture
def cluster(brokers: SimulatedCluster) -> Iterator[Cluster]:
    with Cluster(ClusterSettings.of_text(brokers.name_server)) as cluster:
        yield cluster


def letter(retries: SimulatedRetries, number: int, **properties: str) -> StoredMessage:
    own = {"UNIQ_KEY": f"{number:032X}", "KEYS": "k", "RETRY_TOPIC": "Orders", "DELAY": "0", "ORIGIN_MESSAGE_ID": "O"}
    return retries.store(DLQ, 0, b"bill %d" % number, own | properties, reconsume_times=17, flag=9, born_ms=1_234)


def rows(*places: tuple[str, int], ids: list[str] | None = None) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [
            {"brokerName": broker, "queueId": 0, "queueOffset": offset, "msgId": None if ids is None else ids[at]}
            for at, (broker, offset) in enumerate(places)
        ],
        CLUSTER_ROWS_SCHEMA,
    )


def all_rows() -> pa.RecordBatch:
    return rows(*((f"broker-00{broker}", offset) for broker in range(2) for offset in range(6)))


def letters(cluster: Cluster, **changes: Any) -> ClusterDeadLetters:
    return ClusterDeadLetters(cluster, **({"settle_ms": 0, "send_timeout_ms": 2_000} | changes))


def outcomes(answer: pa.RecordBatch) -> list[str]:
    return answer.column("outcome").to_pylist()


def bodies(retries: SimulatedRetries, topic: str) -> list[bytes]:
    return sorted(message.body for message in retries.messages(topic))


EXPECTED = [b"bill %d" % number for number in range(6)]


def test_letters_go_to_the_retry_topic_of_their_broker_and_begin_anew(
    cluster: Cluster, retries: list[SimulatedRetries]
) -> None:
    answer = letters(cluster).redrive("g", all_rows())
    assert outcomes(answer) == ["REDRIVEN"] * 12
    assert [bodies(one, RETRY) for one in retries] == [EXPECTED] * 2
    (copy, *_) = retries[1].messages(RETRY)
    assert (copy.reconsume_times, copy.flag, copy.born_timestamp_ms) == (0, 9, 1_234)
    assert copy.properties["PYRMQ_DEAD_LETTER"] == "%DLQ%g:broker-001:0:0"
    assert copy.properties["PYRMQ_REPLAYS"] == "1"
    assert (copy.properties["RETRY_TOPIC"], copy.properties["UNIQ_KEY"]) == ("Orders", "0" * 32)
    assert "DELAY" not in copy.properties
    first = answer.slice(0, 1).to_pylist()[0]
    assert (first["target"], first["targetBrokerName"], first["newQueueOffset"]) == (RETRY, "broker-000", 0)
    assert first["newCommitLogOffset"] == retries[0].messages(RETRY)[0].commit_log_offset


def test_a_second_call_moves_nothing_again(cluster: Cluster, retries: list[SimulatedRetries]) -> None:
    letters(cluster).redrive("g", rows(("broker-000", 1), ("broker-000", 2)))
    answer = letters(cluster).redrive("g", all_rows())
    assert outcomes(answer) == ["REDRIVEN", "ALREADY_REDRIVEN", "ALREADY_REDRIVEN", *["REDRIVEN"] * 9]
    assert [bodies(one, RETRY) for one in retries] == [EXPECTED] * 2
    assert letters(cluster).redriven("g", "broker-000")[0].pairs() == [(0, 6)]
    assert letters(cluster).redriven("other", "broker-000") == {}


def test_a_dry_run_sends_nothing_and_takes_no_lock(cluster: Cluster, retries: list[SimulatedRetries]) -> None:
    retries[0].broker.refuse(RequestCode.LOCK_BATCH_MQ, 1)
    answer = letters(cluster).plan("g", rows(("broker-000", 1)))
    assert outcomes(answer) == ["WOULD_REDRIVE"]
    assert retries[0].broker.calls[SEND] == 0


@pytest.mark.parametrize("point", ["nothing sent", "one sent", "all sent"])
def test_what_a_dead_process_has_moved_is_found_and_not_moved_again(
    cluster: Cluster, retries: list[SimulatedRetries], monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """Without the record before the sends, or without the look at it, letters would be there twice."""
    send_all, add = SingleSends.send_all, RedriveLedger.add

    def dying(self: SingleSends, sends: Any) -> Any:
        if point == "nothing sent":
            raise _Died
        send_all(self, sends)
        if point == "one sent":
            raise _Died
        return send_all(self, [])

    def dying_before_moved(self: RedriveLedger, broker_name: str, record: Any) -> None:
        if record.state == "moved":
            raise _Died
        add(self, broker_name, record)

    with monkeypatch.context() as patch:
        if point == "all sent":
            patch.setattr(RedriveLedger, "add", dying_before_moved)
        else:
            patch.setattr(SingleSends, "send_all", dying)
        with pytest.raises(_Died):
            letters(cluster).redrive("g", rows(*(("broker-000", offset) for offset in range(6))))
    sent = {"nothing sent": 0, "one sent": 1, "all sent": 6}[point]
    assert len(retries[0].messages(RETRY)) == sent
    answer = letters(cluster).redrive("g", all_rows())
    assert outcomes(answer)[:6] == ["ALREADY_REDRIVEN"] * sent + ["REDRIVEN"] * (6 - sent)
    assert [bodies(one, RETRY) for one in retries] == [EXPECTED] * 2


def test_a_lost_answer_is_looked_up_before_a_letter_is_sent_again(
    cluster: Cluster, retries: list[SimulatedRetries]
) -> None:
    letters(cluster).redrive("g", rows(("broker-000", 0)))
    retries[0].lose_answers(SEND, 3)
    answer = letters(cluster).redrive("g", all_rows())
    assert set(outcomes(answer)) == {"ALREADY_REDRIVEN", "REDRIVEN"}
    assert bodies(retries[0], RETRY) == EXPECTED


def test_only_one_process_moves_letters_of_a_group_at_a_broker(
    cluster: Cluster, retries: list[SimulatedRetries], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redrive_lock, "LOCK_LASTS_S", -1.0)
    broker = retries[0].broker
    queue = MessageQueue(LEDGER_TOPIC, broker.name, 0)
    broker.locks["g_rmq_redrive", queue] = "another one"
    with pytest.raises(LeaseHeldError, match="another process moves dead letters of group 'g' at broker 'broker-000'"):
        letters(cluster, sleep=lambda _: None).redrive("g", rows(("broker-000", 1)))
    del broker.locks["g_rmq_redrive", queue]
    letters(cluster).redrive("g", rows(("broker-000", 1)))
    assert broker.locks == {}, "the lock is given back"


def test_letters_of_a_group_that_holds_locks_are_not_sent_in_circles(
    cluster: Cluster, retries: list[SimulatedRetries]
) -> None:
    retries[0].holds_lock = True
    with pytest.raises(UsageError, match="members of group 'g' hold locks of queues"):
        letters(cluster).redrive("g", rows(*(("broker-000", offset) for offset in range(6))))
    assert len(retries[0].messages(DLQ)) == 7, "one of six was sent"
    retries[0].holds_lock = False
    answer = letters(cluster).redrive("g", rows(*(("broker-000", offset) for offset in range(7))))
    assert outcomes(answer) == ["ALREADY_REDRIVEN", *["REDRIVEN"] * 6]


def test_limits_and_replays_are_those_of_a_store(
    cluster: Cluster, brokers: SimulatedCluster, retries: list[SimulatedRetries]
) -> None:
    brokers.create_topic("Parked", 2)
    letter(retries[0], 6, PYRMQ_REPLAYS="2")
    letter(retries[0], 7, KAFKA_LETTER="x")
    ours = letters(cluster)
    places = rows(("broker-000", 7), ("broker-000", 6), ("broker-000", 0), ("broker-000", 0), ("broker-000", 1))
    assert outcomes(ours.redrive("g", places, max_replays=2)) == [
        "REFUSED", "REFUSED", "REDRIVEN", "ALREADY_REDRIVEN", "REDRIVEN"
    ]  # fmt: skip
    answer = ours.redrive("g", places, max_replays=2, parking_topic="Parked").to_pylist()
    assert [one["outcome"] for one in answer] == ["REFUSED", "PARKED", *["ALREADY_REDRIVEN"] * 3]
    assert answer[1]["target"] == "Parked"
    parked = [message for one in retries for message in one.messages("Parked")]
    assert [message.properties["PYRMQ_REPLAYS"] for message in parked] == ["2"]
    assert [message.properties["PYRMQ_ORIGIN_TOPIC"] for message in parked] == ["Orders"]
    some = rows(*(("broker-000", offset) for offset in range(6)))
    limited = ours.redrive("g", some, limit=2).to_pylist()
    assert [(one["queueOffset"], one["outcome"]) for one in limited] == [
        (0, "ALREADY_REDRIVEN"), (1, "ALREADY_REDRIVEN"), (2, "REDRIVEN"), (3, "REDRIVEN")
    ]  # fmt: skip


def test_another_topic_gets_the_letters_in_all_of_its_queues(
    cluster: Cluster, brokers: SimulatedCluster, retries: list[SimulatedRetries]
) -> None:
    brokers.create_topic("Again", 2)
    answer = letters(cluster).redrive("g", all_rows(), to_topic="Again")
    assert outcomes(answer) == ["REDRIVEN"] * 12
    assert len({(one["targetBrokerName"], one["targetQueueId"]) for one in answer.to_pylist()}) == 4
    (copy, *_) = retries[0].messages("Again")
    assert "RETRY_TOPIC" not in copy.properties
    assert copy.properties["PYRMQ_ORIGIN_TOPIC"] == "Orders"


def test_what_cannot_be_moved_is_refused_before_anything_is_sent(
    cluster: Cluster, retries: list[SimulatedRetries]
) -> None:
    ours = letters(cluster)
    with pytest.raises(UsageError, match="row 0: %DLQ%g queue 0 of broker 'broker-000' has no message 6: it ends at 6"):
        ours.redrive("g", rows(("broker-000", 6)))
    with pytest.raises(UnknownTopicError, match="to_topic='Nowhere'"):
        ours.redrive("g", all_rows(), to_topic="Nowhere")
    with pytest.raises(UsageError, match="retry topic of their own group"):
        ours.redrive("g", all_rows(), to_topic="%DLQ%g")
    with pytest.raises(UsageError, match="parking_topic needs max_replays"):
        ours.redrive("g", all_rows(), parking_topic="Nowhere")
    assert outcomes(ours.redrive("g", rows(("broker-000", 0), ids=["other"]))) == ["REFUSED"]
    assert retries[0].messages(RETRY) == []


def test_a_refusal_ends_the_call_and_what_was_moved_stays_known(
    cluster: Cluster, retries: list[SimulatedRetries]
) -> None:
    letters(cluster).redrive("g", rows(("broker-000", 0)))
    retries[0].broker.refuse(SEND, 13, count=5)  # so often a record is tried
    with pytest.raises(StoreError, match="13"):
        letters(cluster).redrive("g", all_rows())
    answer = letters(cluster).redrive("g", all_rows())
    assert outcomes(answer) == ["ALREADY_REDRIVEN", *["REDRIVEN"] * 11]
