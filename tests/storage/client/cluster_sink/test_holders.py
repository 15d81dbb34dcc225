"""Which brokers may hold a record is on a list that no route makes shorter: a search waits for them, and only a command
takes one off.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from helpers.cluster.simulated import SimulatedCluster
from rmq_store.client.cluster_sink import holders as holders_module
from rmq_store.client.cluster_sink import record_topic
from rmq_store.client.cluster_sink.holders import Holders
from rmq_store.client.cluster_sink.record_topic import RECORD_TOPIC, RecordTopic
from rmq_store.client.cluster_sink.records import Record, WritePart
from rmq_store.client.delivery.queue_reading import QueueReading
from rmq_store.errors import UsageError
from rmq_store.protocol.errors import MQClientError, SendInDoubtError
from rmq_store.protocol.messages import MessageQueue
from rmq_store.protocol.wire.request_codes import RequestCode
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.transport.settings import ClusterSettings

A, B, C = "broker-000", "broker-001", "broker-002"
ORDERS = MessageQueue("Orders", A, 0)
FIRST, SECOND, THIRD = (WritePart("query/q", batch, 3) for batch in (6, 7, 8))


@pytest.fixture
def two() -> Iterator[SimulatedCluster]:
    with SimulatedCluster(2) as brokers:
        brokers.create_topic(RECORD_TOPIC, queue_count=1)
        yield brokers


@pytest.fixture
def three() -> Iterator[SimulatedCluster]:
    with SimulatedCluster(3) as brokers:
        brokers.create_topic(RECORD_TOPIC, queue_count=1)
        yield brokers


class Task:
    """One task, with connections and routes of its own."""

    def __init__(self, brokers: SimulatedCluster, patience_ms: int = 300) -> None:
        self.cluster = Cluster(ClusterSettings.of_text(brokers.name_server))
        reading = QueueReading(self.cluster, patience_ms, option="brokerAwayTimeout")
        self.records = RecordTopic(self.cluster, reading, group="pg")

    def __enter__(self) -> RecordTopic:
        return self.records

    def __exit__(self, *exc_info: object) -> None:
        self.cluster.close()


def write(brokers: SimulatedCluster, part: WritePart, offset: int = 5) -> None:
    """A batch in which nothing happens."""
    with Task(brokers) as records:
        assert records.find(part) == {}
        assert records.add(Record(part, {ORDERS: offset}, f"attempt {offset}")) == {}


def write_when(brokers: SimulatedCluster, part: WritePart, gone: str) -> None:
    """A batch whose task has searched when a broker goes: its record is at the others."""
    with Task(brokers) as records:
        assert records.find(part) == {}
        brokers.leave(gone)
        records.add(Record(part, {ORDERS: 5}, "attempt"))


def found(brokers: SimulatedCluster, part: WritePart, patience_ms: int = 300) -> int | None:
    """The offset that a new task finds."""
    with Task(brokers, patience_ms) as records:
        return records.find(part).get(ORDERS)


def record_count(brokers: SimulatedCluster, name: str) -> int:
    texts = brokers.brokers[name].queues.topics[RECORD_TOPIC][0].sent
    return sum(b'"attempt"' in text for text in texts)


# -- masters that go in turn ------------------------------------------------------------------------------------------


def test_two_masters_that_are_killed_in_turn_hide_no_record(two: SimulatedCluster) -> None:
    """The name server shows one master only, and this one has no record: the batch counted as new."""
    write(two, FIRST)
    write_when(two, SECOND, gone=A)
    two.leave(B)
    two.come_back(A)
    with pytest.raises(SendInDoubtError) as caught:
        found(two, SECOND)
    text = str(caught.value)
    assert f"{B} may hold one" in text
    assert "300 ms (option brokerAwayTimeout)" in text
    assert f"rmq checkpoint forget-broker CHECKPOINT {B}" in text
    two.come_back(B)
    assert found(two, SECOND) == 5


@pytest.mark.parametrize("part", [SECOND, WritePart("query/q", 7, 99), WritePart("query/other", 0, 0)])
def test_a_task_without_an_earlier_record_knows_the_list_as_well(two: SimulatedCluster, part: WritePart) -> None:
    write(two, FIRST)
    two.leave(B)
    with pytest.raises(SendInDoubtError, match=f"{B} may hold one"):
        found(two, part)


def test_the_search_waits_for_the_master_and_goes_on(two: SimulatedCluster) -> None:
    write(two, FIRST)
    write_when(two, SECOND, gone=A)
    two.leave(B)
    two.come_back(A)
    timer = threading.Timer(1.0, two.come_back, [B])
    timer.start()
    try:
        assert found(two, SECOND, 30_000) == 5
    finally:
        timer.join()


def test_of_three_masters_the_route_shows_the_one_that_has_no_copy(three: SimulatedCluster) -> None:
    write(three, FIRST)
    write(three, SECOND)
    (without,) = [name for name in three.brokers if not record_count(three, name)]
    for name in three.brokers.keys() - {without}:
        three.leave(name)
    with pytest.raises(SendInDoubtError, match="may hold one"):
        found(three, SECOND)


def test_one_of_three_masters_is_waited_for_by_nobody(three: SimulatedCluster) -> None:
    write(three, FIRST)
    for gone in three.brokers:
        three.leave(gone)
        assert found(three, FIRST) == 5
        assert found(three, SECOND) is None
        three.come_back(gone)


def test_a_list_that_a_master_did_not_take_stops_the_first_record(two: SimulatedCluster) -> None:
    """It would know no other master when it is back alone."""
    with Task(two) as records:
        assert records.find(FIRST) == {}
        two.leave(A)
        with pytest.raises(MQClientError, match="the list of brokers that may hold records"):
            records.add(Record(FIRST, {ORDERS: 5}, "attempt"))
    assert record_count(two, B) == 0


# -- masters that are added -------------------------------------------------------------------------------------------


def test_a_record_with_one_copy_is_found_after_a_third_master_came(three: SimulatedCluster) -> None:
    """Of three masters a search may leave out one: this one may have the only copy of then."""
    three.leave(C)
    write(three, FIRST)
    write_when(three, SECOND, gone=A)
    three.come_back(A)
    three.come_back(C)
    write(three, WritePart("query/other", 0, 0))  # makes the list longer
    three.leave(B)
    with pytest.raises(SendInDoubtError, match=f"{B} may hold one"):
        found(three, SECOND)
    three.come_back(B)
    assert found(three, SECOND) == 5


def test_batches_under_the_longer_list_wait_for_one_master_less(three: SimulatedCluster) -> None:
    three.leave(C)
    write(three, FIRST)
    three.come_back(C)
    write(three, SECOND)
    three.leave(B)
    assert found(three, THIRD) is None
    with pytest.raises(SendInDoubtError):  # it may be older than the third master
        found(three, WritePart("query/another", 1, 0))


def test_a_master_is_on_the_list_before_it_gets_a_record(two: SimulatedCluster) -> None:
    """While an old member cannot take the longer list, records go where the old one says."""
    two.leave(B)
    write(two, FIRST)
    two.come_back(B)
    with Task(two) as records:
        assert records.find(SECOND) == {}
        two.brokers[A].refuse(RequestCode.SEND_MESSAGE_V2, 13, count=1)
        records.add(Record(SECOND, {ORDERS: 5}, "attempt"))
    assert (record_count(two, A), record_count(two, B)) == (2, 0)
    two.leave(A)
    with pytest.raises(SendInDoubtError, match=f"{A} may hold one"):
        found(two, SECOND)


def test_a_longer_list_between_search_and_record_brings_the_record_there(three: SimulatedCluster) -> None:
    three.leave(C)
    write(three, FIRST)
    with Task(three) as records:
        assert records.find(SECOND) == {}
        three.come_back(C)
        write(three, WritePart("query/other", 0, 0))
        records.add(Record(SECOND, {ORDERS: 5}, "attempt"))
    sent = [text for one in three.brokers.values() for text in one.queues.topics[RECORD_TOPIC][0].sent]
    own = [text for text in sent if b'"batch":7' in text]
    assert any(b'"holders":{"number":2,"brokers":["broker-000","broker-001","broker-002"]' in text for text in own)


# -- older versions and time ------------------------------------------------------------------------------------------


def test_records_without_a_list_are_found_and_finished(two: SimulatedCluster) -> None:
    with Task(two) as records:
        records.add(Record(FIRST, {ORDERS: 5}, "of an older version"))
    assert found(two, FIRST) == 5
    write(two, SECOND)
    two.leave(B)
    with pytest.raises(SendInDoubtError, match=f"{B} may hold one"):
        found(two, SECOND)


def test_a_record_whose_list_cannot_be_read_is_a_record() -> None:
    text = Record(FIRST, {ORDERS: 5}, "a", Holders.first([A], 1)).to_json().replace(b'"number":1', b'"number":"?"')
    assert Record.from_json(text) == Record(FIRST, {ORDERS: 5}, "a", None)


def test_the_list_is_written_again_before_retention_takes_it(
    two: SimulatedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lists() -> int:
        return sum(b'"attempt"' not in text for text in two.brokers[A].queues.topics[RECORD_TOPIC][0].sent)

    write(two, FIRST)
    write(two, SECOND)
    assert lists() == 1
    monkeypatch.setattr(holders_module, "REFRESH_AFTER_MS", 0)
    write(two, THIRD)
    assert lists() == 2


def test_the_list_that_counts() -> None:
    one, two = Holders.first([A], 5), Holders.first([B, A], 7)
    assert one.merged(two) == two.merged(one) == Holders(1, (A, B), 1, 7)
    longer = two.with_brokers([C, A], 9)
    assert longer == Holders(2, (A, B, C), 1, 9)
    assert longer.with_brokers([A], 10) is longer
    assert longer.merged(two) == two.merged(longer) == longer
    assert Holders.from_json(longer.to_json()) == longer
    assert Holders.first([A, B, C], 0).copies == 2
    assert Holders.from_json(b'{"version": 2, "holders": {}}') is None


@pytest.mark.parametrize(
    ("brokers", "before", "must_have"), [(1, None, 1), (2, None, 2), (3, None, 2), (3, 2, 3), (4, 3, 3), (2, 1, 2)]
)
def test_so_many_must_have_a_list(brokers: int, before: int | None, must_have: int) -> None:
    names = [f"b{number}" for number in range(brokers)]
    known = None if before is None else Holders.first(names[:before], 0)
    assert Holders.first(names, 0).brokers_that_must_have(known) == must_have


# -- a broker that is busy behind its end -----------------------------------------------------------------------------


@pytest.mark.parametrize("code", [RequestCode.GET_MIN_OFFSET, RequestCode.PULL_MESSAGE])
@pytest.mark.parametrize("answer", [2, 14, 215, 1500])
def test_a_broker_that_is_busy_behind_its_end_is_asked_again(
    two: SimulatedCluster, monkeypatch: pytest.MonkeyPatch, code: int, answer: int
) -> None:
    write(two, FIRST)
    monkeypatch.setattr(record_topic, "_TURN_MS", 0)
    for broker in two.brokers.values():
        broker.refuse(code, answer, count=3)
    assert found(two, FIRST, 30_000) == 5


@pytest.mark.parametrize("answer", [2, 14, 215, 1500])
def test_a_broker_that_is_busy_at_a_look_by_time_is_asked_again(two: SimulatedCluster, answer: int) -> None:
    write(two, FIRST)
    for broker in two.brokers.values():
        broker.refuse(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, answer, count=3)
    assert found(two, SECOND, 30_000) is None


# -- a broker that never returns --------------------------------------------------------------------------------------


def test_a_broker_is_taken_off_the_list_by_the_command_alone(two: SimulatedCluster) -> None:
    write(two, FIRST)
    two.leave(B)
    with Task(two) as records:
        assert records.holders() == Holders.first([A, B], records._holders.listed_ms)  # type: ignore[union-attr]
        assert records.forget(B).brokers == (A,)
    assert found(two, FIRST) == 5
    assert found(two, SECOND) is None
    with Task(two) as records:
        records.holders()
        with pytest.raises(UsageError, match="is not on the list"):
            records.forget(B)


def test_a_new_broker_of_the_same_name_is_added_again(two: SimulatedCluster) -> None:
    write(two, FIRST)
    two.leave(B)
    with Task(two) as records:
        records.holders()
        records.forget(B)
    two.brokers[B].queues.topics.pop(RECORD_TOPIC)
    two.brokers[B].queues.create(RECORD_TOPIC, 1)
    two.come_back(B)
    write(two, SECOND)
    assert record_count(two, B) == 1
    two.leave(B)
    with pytest.raises(SendInDoubtError, match=f"{B} may hold one"):
        found(two, THIRD)


def test_after_a_broker_is_forgotten_one_copy_may_be_all_there_is() -> None:
    with SimulatedCluster(4) as brokers:
        brokers.create_topic(RECORD_TOPIC, queue_count=1)
        write(brokers, FIRST)
        write(brokers, SECOND)
        gone, holder = [name for name in brokers.brokers if record_count(brokers, name)]
        brokers.leave(gone)
        with Task(brokers) as records:
            records.holders()
            records.forget(gone)
        brokers.leave(holder)  # of three brokers a search may leave out one
        with pytest.raises(SendInDoubtError, match=f"{holder} may hold one"):
            found(brokers, SECOND)


def test_the_last_broker_of_a_list_is_forgotten_for_those_of_the_route(two: SimulatedCluster) -> None:
    two.leave(B)
    write(two, FIRST)
    two.leave(A)
    two.come_back(B)
    with Task(two) as records:
        records._holders = Holders.first([A], 0)
        assert records.forget(A).brokers == (B,)


def test_a_list_that_not_all_others_take_is_not_shorter(three: SimulatedCluster) -> None:
    write(three, FIRST)
    three.leave(C)
    with Task(three) as records:
        records.holders()
        three.brokers[A].refuse(RequestCode.SEND_MESSAGE_V2, 13)
        with pytest.raises(Exception, match="the list of brokers that may hold records"):
            records.forget(C)
