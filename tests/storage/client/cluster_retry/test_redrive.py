"""Dead letters of simulated brokers are moved on: each once, by the rules of a store, whatever fails in between."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from helpers.cluster.simulated import SimulatedCluster
from helpers.cluster.simulated.retries import SimulatedRetries
from rmq_store.client.cluster_retry import dead_letter_reading, redrive, redrive_ledger, redrive_lock
from rmq_store.client.cluster_retry.dead_letters import CLUSTER_ROWS_SCHEMA
from rmq_store.client.cluster_retry.redrive import ClusterDeadLetters
from rmq_store.client.cluster_retry.redrive_ledger import LEDGER_TOPIC, RedriveLedger
from rmq_store.client.delivery import journal_topic
from rmq_store.client.delivery.deliver import Delivery
from rmq_store.errors import LeaseHeldError, UnknownTopicError, UsageError
from rmq_store.format.frames.stored_message import StoredMessage
from rmq_store.protocol.errors import MQBrokerError, MQClientError, RemotingTimeoutError, SendInDoubtError
from rmq_store.protocol.messages import MessageQueue
from rmq_store.protocol.wire.request_codes import RequestCode
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.transport.settings import ClusterSettings

from ...remoting.cluster.fake_cluster import FakeNet

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
    return ClusterDeadLetters(cluster, **({"settle_ms": 0, "send_timeout_ms": 20_000} | changes))


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
    send_all, add = Delivery.send_all, RedriveLedger.add

    def dying(self: Delivery, sends: Any) -> Any:
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
            patch.setattr(Delivery, "send_all", dying)
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
    for code, refused in ((13, MQBrokerError), (16, MQBrokerError), (17, MQBrokerError)):
        retries[0].broker.refuse(SEND, code, count=1)  # the record: a second try would be taken
        with pytest.raises(refused, match=str(code)):
            letters(cluster).redrive("g", all_rows())
    answer = letters(cluster).redrive("g", all_rows())
    assert outcomes(answer) == ["ALREADY_REDRIVEN", *["REDRIVEN"] * 11]


# -- the lock ---------------------------------------------------------------------------------------------------------


def lost_lock(retries: SimulatedRetries) -> Callable[..., None]:
    """The broker has forgotten our lock, and another process has got it."""
    key = ("g_rmq_redrive", MessageQueue(LEDGER_TOPIC, retries.broker.name, 0))

    def lose(*_: Any) -> None:
        retries.broker.locks[key] = "another one"

    return lose


def all_once(cluster: Cluster, retries: SimulatedRetries, places: pa.RecordBatch) -> None:
    """The next call moves what is left, and nothing a second time."""
    retries.broker.locks.clear()
    assert set(outcomes(letters(cluster).redrive("g", places))) <= {"ALREADY_REDRIVEN", "REDRIVEN"}
    assert bodies(retries, RETRY) == sorted(b"bill %d" % number for number in range(places.num_rows))


def test_a_sender_whose_lock_is_lost_in_a_chunk_stops_before_the_next_letters(
    cluster: Cluster, retries: list[SimulatedRetries]
) -> None:
    """Another process takes the open record for that of a dead one, and sends what is not there yet."""
    ours = retries[0]
    for number in range(6, 60):
        letter(ours, number)
    places = rows(*(("broker-000", offset) for offset in range(60)))
    send = ours.broker._answerers[SEND]

    def sent(request: Any) -> Any:
        if len(ours.messages(RETRY)) == 10:
            lost_lock(ours)()
        return send(request)

    ours.broker._answerers[SEND] = sent
    with pytest.raises(LeaseHeldError):
        letters(cluster).redrive("g", places)
    assert len(ours.messages(RETRY)) == 33, "the first one alone, and 32 that were under way"
    all_once(cluster, ours, places)


def test_a_lock_that_is_lost_during_a_look_for_copies_stops_the_sender(
    cluster: Cluster, retries: list[SimulatedRetries]
) -> None:
    places = rows(*(("broker-000", offset) for offset in range(6)))
    send = retries[0].broker._answerers[SEND]
    unknown = [RETRY]  # the first copy is not stored, and nobody says so

    def sent(request: Any) -> Any:
        if request.ext_fields["b"] in unknown:
            unknown.clear()
            return 1, {}, b""
        return send(request)

    retries[0].broker._answerers[SEND] = sent
    with pytest.raises(LeaseHeldError):
        letters(cluster, sleep=lost_lock(retries[0])).redrive("g", places)
    assert unknown == []
    assert retries[0].messages(RETRY) == []
    all_once(cluster, retries[0], places)


def test_a_lock_that_is_lost_while_a_dead_attempt_is_finished_stops_the_sender(
    cluster: Cluster, retries: list[SimulatedRetries], monkeypatch: pytest.MonkeyPatch
) -> None:
    places = rows(*(("broker-000", offset) for offset in range(6)))

    def die(*_: Any) -> Any:
        raise _Died

    with monkeypatch.context() as patch:
        patch.setattr(Delivery, "send_all", die)
        with pytest.raises(_Died):
            letters(cluster).redrive("g", places)
    with pytest.raises(LeaseHeldError):
        letters(cluster, sleep=lost_lock(retries[0])).redrive("g", places)
    states = [b'"moved"' in message.body for message in retries[0].messages(LEDGER_TOPIC)]
    assert states == [False, True], "no attempt was begun behind the finished one"
    all_once(cluster, retries[0], places)


# -- the ledger -------------------------------------------------------------------------------------------------------


def test_a_master_that_came_later_gets_a_ledger_of_its_own(
    cluster: Cluster, brokers: SimulatedCluster, retries: list[SimulatedRetries]
) -> None:
    del retries[1].broker.queues.topics[LEDGER_TOPIC]
    assert outcomes(letters(cluster).redrive("g", all_rows())) == ["REDRIVEN"] * 12
    assert len(retries[1].messages(LEDGER_TOPIC)) == 2
    assert brokers.total_calls[RequestCode.UPDATE_AND_CREATE_TOPIC] == 1


def test_a_name_server_that_has_just_started_hides_no_ledger(
    brokers: SimulatedCluster, cluster: Cluster, retries: list[SimulatedRetries]
) -> None:
    letters(cluster).redrive("g", all_rows())
    route = brokers._answerers[RequestCode.GET_ROUTEINFO_BY_TOPIC]
    brokers._answerers[RequestCode.GET_ROUTEINFO_BY_TOPIC] = lambda request: (
        (17, {}, b"") if request.ext_fields["topic"] == LEDGER_TOPIC else route(request)
    )
    with Cluster(ClusterSettings.of_text(brokers.name_server)) as another:
        assert outcomes(letters(another).redrive("g", all_rows())) == ["ALREADY_REDRIVEN"] * 12
    assert [bodies(one, RETRY) for one in retries] == [EXPECTED] * 2


def test_a_broker_that_never_shows_a_record_ends_the_call(cluster: Cluster, retries: list[SimulatedRetries]) -> None:
    code = RequestCode.GET_MAX_OFFSET
    end = retries[0].broker._answerers[code]
    retries[0].broker._answerers[code] = lambda request: (
        (0, {"offset": "0"}, b"") if request.ext_fields["topic"] == LEDGER_TOPIC else end(request)
    )
    sleeps: list[float] = []

    def sleep(duration_s: float) -> None:
        sleeps.append(duration_s)
        assert len(sleeps) < 10_000
        time.sleep(0.001)

    with pytest.raises(SendInDoubtError, match="has stored message 0 of topic 'PYRMQ_REDRIVEN', and does not show it"):
        letters(cluster, send_timeout_ms=300, sleep=sleep).redrive("g", rows(("broker-000", 0)))
    assert retries[0].messages(RETRY) == []


@pytest.mark.parametrize("code", [2, 14, 1500])
def test_a_record_waits_for_its_broker_as_long_as_letters_would(
    cluster: Cluster, retries: list[SimulatedRetries], code: int
) -> None:
    """Six times: more often than a record was tried."""
    retries[0].broker.refuse(SEND, code, count=6)
    places = rows(*(("broker-000", offset) for offset in range(6)))
    assert outcomes(letters(cluster, sleep=lambda _: None).redrive("g", places)) == ["REDRIVEN"] * 6


def test_a_record_that_no_broker_takes_in_time_ends_the_call(cluster: Cluster, retries: list[SimulatedRetries]) -> None:
    retries[0].broker.refuse(SEND, 14)
    text = r"0 of 1 brokers take the record of a redrive into topic 'PYRMQ_REDRIVEN' in 100 ms, and 1 must"
    with pytest.raises(MQClientError, match=text):
        letters(cluster, send_timeout_ms=100).redrive("g", rows(("broker-000", 0)))


def test_the_ledger_is_read_once_and_without_the_records_of_other_groups(
    cluster: Cluster, retries: list[SimulatedRetries], monkeypatch: pytest.MonkeyPatch
) -> None:
    for group in ("g", "h"):
        retries[0].broker.queues.create(f"%DLQ%{group}", 1)
    for number in range(6):
        retries[0].store("%DLQ%h", 0, b"bill %d" % number, {"UNIQ_KEY": f"{number:032X}"})
    monkeypatch.setattr(redrive, "_CHUNK_LETTERS", 1)
    places = rows(*(("broker-000", offset) for offset in range(6)))
    letters(cluster).redrive("h", places)
    parts: list[tuple[int, int]] = []
    texts: list[bytes] = []
    read_range, from_json = journal_topic.read_range, redrive_ledger.LedgerRecord.from_json

    def noting(ours: Cluster, queue: MessageQueue, start: int, end: int, *given: Any, **named: Any) -> Any:
        parts.append((start, end))
        return read_range(ours, queue, start, end, *given, **named)

    monkeypatch.setattr(journal_topic, "read_range", noting)
    monkeypatch.setattr(
        redrive_ledger.LedgerRecord, "from_json", lambda text: texts.append(text) or from_json(text)
    )
    letters(cluster).redrive("g", places)
    assert parts == [(0, 12), *((start, start + 2) for start in range(12, 22, 2))]
    assert len(texts) == 10
    assert all(b'"group":"g"' in text for text in texts)


# -- the first letter -------------------------------------------------------------------------------------------------


def refused_after(cluster: Cluster, ours: ClusterDeadLetters, group: str, places: pa.RecordBatch, **given: Any) -> None:
    with pytest.raises(UsageError, match=f"members of group '{group}' hold locks of queues"):
        ours.redrive(group, places, **given)


def test_a_letter_that_is_parked_shows_nothing_about_locks(
    cluster: Cluster, brokers: SimulatedCluster, retries: list[SimulatedRetries]
) -> None:
    brokers.create_topic("Parked", 1)
    letter(retries[0], 6, PYRMQ_REPLAYS="2")
    letter(retries[0], 7)
    letter(retries[0], 8)
    retries[0].holds_lock = True
    places = rows(("broker-000", 6), ("broker-000", 7), ("broker-000", 8))
    refused_after(cluster, letters(cluster), "g", places, max_replays=2, parking_topic="Parked")
    assert len(retries[0].messages(DLQ)) == 9 + 1


def test_another_topic_or_another_group_shows_nothing_about_locks(
    cluster: Cluster, brokers: SimulatedCluster, retries: list[SimulatedRetries]
) -> None:
    brokers.create_topic("Again", 1)
    retries[0].store("%DLQ%h", 0, b"bill of h", {"UNIQ_KEY": "A" * 32})
    ours = letters(cluster)
    ours.redrive("g", rows(("broker-000", 0)), to_topic="Again")
    ours.redrive("h", rows(("broker-000", 0)))
    retries[0].holds_lock = True
    refused_after(cluster, ours, "g", rows(*(("broker-000", offset) for offset in range(1, 6))))
    assert len(retries[0].messages(DLQ)) == 6 + 1


def test_a_letter_without_a_known_place_shows_nothing_about_locks(
    cluster: Cluster, retries: list[SimulatedRetries]
) -> None:
    retries[0].holds_lock = True
    retries[0].lose_answers(SEND, 1)
    refused_after(cluster, letters(cluster), "g", rows(*(("broker-000", offset) for offset in range(6))))
    assert len(retries[0].messages(DLQ)) == 6 + 2, "the next one was looked at"


# -- bounds -----------------------------------------------------------------------------------------------------------


def test_a_chunk_ends_at_a_size_and_messages_are_not_kept(
    cluster: Cluster, retries: list[SimulatedRetries], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letter_reading, "PART_BYTES", 1)
    result_of = redrive.result_of

    def checked(done: Any, renamed: Any) -> pa.RecordBatch:
        assert all(one.message is None and not one.judgement.properties for _, _, one in done.values())
        return result_of(done, renamed)

    monkeypatch.setattr(redrive, "result_of", checked)
    answer = letters(cluster).redrive("g", all_rows())
    assert outcomes(answer) == ["REDRIVEN"] * 12
    assert answer.column("msgId").to_pylist() == [one.msg_id for each in retries for one in each.messages(DLQ)]
    assert [bodies(one, RETRY) for one in retries] == [EXPECTED] * 2
    assert [len(one.messages(LEDGER_TOPIC)) for one in retries] == [12, 12], "two records for each letter"


def test_letters_that_retention_takes_before_they_are_read_are_gone(
    cluster: Cluster, retries: list[SimulatedRetries], monkeypatch: pytest.MonkeyPatch
) -> None:
    look_up = dead_letter_reading.queue_ranges

    def look_up_then_delete(cluster: Cluster, queues: Any) -> Any:
        ranges = look_up(cluster, queues)
        queue = retries[0].broker.queues.get(DLQ, 0)
        assert queue is not None
        queue.first = 2
        return ranges

    monkeypatch.setattr(dead_letter_reading, "queue_ranges", look_up_then_delete)
    answer = letters(cluster).redrive("g", rows(*(("broker-000", offset) for offset in range(6))))
    assert outcomes(answer) == ["GONE", "GONE", *["REDRIVEN"] * 4]
    assert bodies(retries[0], RETRY) == EXPECTED[2:]


def test_a_limit_that_is_reached_locks_no_other_broker(cluster: Cluster, retries: list[SimulatedRetries]) -> None:
    retries[1].broker.refuse(RequestCode.LOCK_BATCH_MQ, 1)
    assert outcomes(letters(cluster).redrive("g", all_rows(), limit=6)) == ["REDRIVEN"] * 6


def test_the_records_of_a_redrive_begin_where_the_master_says_since_a_slave_may_have_come_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Letters of records that were passed over would be moved twice."""
    net = FakeNet()
    broker = net.add_broker(slaves=1)
    broker.put(LEDGER_TOPIC, 0, 9)
    broker.processes[1].begin = 6
    ledger = RedriveLedger(net.cluster(), 60_000, sleep=lambda _: None)
    looked_at: list[int] = []
    monkeypatch.setattr(
        ledger._journal, "texts", lambda queue, start, end, owner: looked_at.extend(range(start, end)) or ()
    )
    broker.processes[0].answers += [RemotingTimeoutError("slow"), RemotingTimeoutError("slow")]
    ledger.read_on(redrive_ledger.BrokerLedger("g", "broker-a"), at_master=True)
    assert looked_at == list(range(9))
