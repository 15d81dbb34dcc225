"""No record is missed: brokers that are away in turn, brokers that show a message late, busy ones."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from helpers.cluster.simulated import SimulatedBroker, SimulatedCluster
from helpers.cluster.simulated.queues import START_MS
from rmq_store.client.cluster_sink.record_topic import RECORD_TOPIC, RecordTopic
from rmq_store.client.cluster_sink.records import Record, WritePart
from rmq_store.client.delivery import journal_topic
from rmq_store.client.delivery.queue_reading import QueueReading
from rmq_store.errors import CorruptRecordError
from rmq_store.protocol.errors import (
    MQBrokerError,
    MQClientError,
    QueueHoleError,
    RemotingTimeoutError,
    SendInDoubtError,
)
from rmq_store.protocol.messages import MessageQueue
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.request_codes import RequestCode
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.transport.settings import ClusterSettings

from ...remoting.cluster.fake_cluster import FakeNet

PART = WritePart("query", 7, 3)
ORDERS = MessageQueue("Orders", "broker-000", 0)


@pytest.fixture(params=[2, 3])
def brokers(request: pytest.FixtureRequest) -> Iterator[SimulatedCluster]:
    with SimulatedCluster(request.param) as brokers:
        brokers.create_topic(RECORD_TOPIC, queue_count=1)
        yield brokers


def records(brokers: SimulatedCluster) -> Iterator[RecordTopic]:
    """Those of one task after another; each has connections of its own."""
    while True:
        with Cluster(ClusterSettings.of_text(brokers.name_server)) as cluster:
            yield RecordTopic(cluster, QueueReading(cluster, 300), group="pg")


@pytest.fixture
def tasks(brokers: SimulatedCluster) -> Iterator[Iterator[RecordTopic]]:
    made = records(brokers)
    yield made
    made.close()  # type: ignore[attr-defined]


def record(offset: int, attempt: str) -> Record:
    return Record(PART, {ORDERS: offset}, attempt)


def record_count(broker: SimulatedBroker) -> int:
    """The records of batches; lists of brokers (`holders`) are in the topic as well."""
    return sum(b'"attempt"' in one for one in broker.queues.topics[RECORD_TOPIC][0].sent)


def holders(brokers: SimulatedCluster) -> list[SimulatedBroker]:
    return [one for one in brokers.brokers.values() if record_count(one)]


def test_a_record_is_found_by_the_next_task(brokers: SimulatedCluster, tasks: Iterator[RecordTopic]) -> None:
    first = next(tasks)
    assert first.find(PART) == {}
    assert first.add(record(5, "a")) == {}
    assert len(holders(brokers)) == 2
    assert next(tasks).find(PART) == {ORDERS: 5}


def test_brokers_that_are_away_in_turn_never_hide_a_record(
    brokers: SimulatedCluster, tasks: Iterator[RecordTopic]
) -> None:
    for away in brokers.brokers.values():
        away.stop()
        try:
            next(tasks).add(record(5, "a"))
        except MQClientError:
            pytest.fail("one broker that is away keeps nobody from making a record")
        away.start()
        for gone in brokers.brokers.values():
            gone.stop()
            try:
                assert next(tasks).find(PART) == {ORDERS: 5}
            except SendInDoubtError as error:
                assert len(brokers.brokers) == 2, "a third broker has a copy"
                assert "markerPath" in str(error) or "is unknown" in str(error)
            gone.start()
        for one in brokers.brokers.values():
            one.queues.create(RECORD_TOPIC, 1)


def test_a_record_that_a_broker_shows_late_is_found_by_the_own_one(
    brokers: SimulatedCluster, tasks: Iterator[RecordTopic]
) -> None:
    next(tasks).add(record(5, "dead"))
    late = itertools.count()
    for broker in brokers.brokers.values():
        answer = broker._answerers[RequestCode.GET_MAX_OFFSET]

        def shows_nothing_at_first(request: RemotingCommand, answer=answer):  # type: ignore[no-untyped-def]
            code, fields, body = answer(request)
            return (code, {"offset": "0"}, body) if next(late) < len(brokers.brokers) + 2 else (code, fields, body)

        broker._answerers[RequestCode.GET_MAX_OFFSET] = shows_nothing_at_first
    second = next(tasks)
    assert second.find(PART) == {}
    assert second.add(record(9, "alive")) == {ORDERS: 5}
    assert second.add(Record(PART, {MessageQueue("Bills", "broker-000", 0): 1}, "alive")) == {}


def test_a_busy_broker_is_asked_again(brokers: SimulatedCluster, tasks: Iterator[RecordTopic]) -> None:
    for broker in brokers.brokers.values():
        broker.refuse(RequestCode.SEND_MESSAGE_V2, 2, count=2)
    next(tasks).add(record(5, "a"))
    assert len(holders(brokers)) == 2


def test_too_few_copies_are_refused(brokers: SimulatedCluster, tasks: Iterator[RecordTopic]) -> None:
    for broker in list(brokers.brokers.values())[1:]:
        broker.refuse(RequestCode.SEND_MESSAGE_V2, 14)
    if len(brokers.brokers) == 2:
        assert next(tasks).add(record(5, "a")) == {}
    else:
        with pytest.raises(MQClientError, match=r"1 of 3 brokers take the record .* and 2 must"):
            next(tasks).add(record(5, "a"))


ACL_4X = "org.apache.rocketmq.acl.common.AclException: No default permission for topic:T"


@pytest.mark.parametrize("code", [2, 14, 1500])
def test_a_record_waits_for_its_only_master_as_long_as_rows_would(code: int) -> None:
    """It was tried once, and the write failed."""
    with SimulatedCluster(1) as brokers, Cluster(ClusterSettings.of_text(brokers.name_server)) as cluster:
        brokers.create_topic(RECORD_TOPIC, queue_count=1)
        (broker,) = brokers.brokers.values()
        broker.refuse(RequestCode.SEND_MESSAGE_V2, code, count=6)
        topic = RecordTopic(cluster, QueueReading(cluster, 60_000), group="pg", sleep=lambda _: None)
        assert topic.add(record(5, "a")) == {}
        assert broker.queues.topics[RECORD_TOPIC][0].end == 1


def test_a_record_waits_for_its_only_master_to_come_back() -> None:
    with SimulatedCluster(1) as brokers, Cluster(ClusterSettings.of_text(brokers.name_server)) as cluster:
        brokers.create_topic(RECORD_TOPIC, queue_count=1)
        (broker,) = brokers.brokers.values()
        pauses = itertools.count()

        def sleep(_: float) -> None:
            if next(pauses) == 3:
                broker.start()

        topic = RecordTopic(cluster, QueueReading(cluster, 60_000), group="pg", sleep=sleep)
        topic._queues(PART)  # the route is known
        broker.stop()
        assert topic.add(record(5, "a")) == {}
        assert broker.queues.topics[RECORD_TOPIC][0].end == 1


@pytest.mark.parametrize(("code", "remark"), [(16, None), (1, ACL_4X), (13, None), (17, None)])
def test_a_record_that_is_refused_ends_the_task_at_once(code: int, remark: str | None) -> None:
    with SimulatedCluster(1) as brokers, Cluster(ClusterSettings.of_text(brokers.name_server)) as cluster:
        brokers.create_topic(RECORD_TOPIC, queue_count=1)
        (broker,) = brokers.brokers.values()
        broker.refuse(RequestCode.SEND_MESSAGE_V2, code)
        if remark is not None:
            broker.remarks[RequestCode.SEND_MESSAGE_V2] = remark
        with pytest.raises(MQBrokerError) as caught:
            RecordTopic(cluster, QueueReading(cluster, 60_000), group="pg").add(record(5, "a"))
        assert (caught.value.response_code, caught.value.broker_name) == (code, "broker-000")
        assert broker.calls[RequestCode.SEND_MESSAGE_V2] == 1


def test_an_own_record_that_was_stored_twice_is_of_no_other_task(
    brokers: SimulatedCluster, tasks: Iterator[RecordTopic]
) -> None:
    for broker in brokers.brokers.values():
        answer = broker._answerers[RequestCode.SEND_MESSAGE_V2]
        calls = itertools.count()

        def stores_and_fails_once(request: RemotingCommand, answer=answer, calls=calls):  # type: ignore[no-untyped-def]
            stored = answer(request)
            # Of the list and the record: the first answer for each is lost.
            return stored if next(calls) not in (0, 2) else (1, {}, b"")

        broker._answerers[RequestCode.SEND_MESSAGE_V2] = stores_and_fails_once
    task = next(tasks)
    assert task.find(PART) == {}
    assert task.add(record(5, "a")) == {}
    assert sum(record_count(one) for one in holders(brokers)) == 4
    assert next(tasks).find(PART) == {ORDERS: 5}


def test_a_broker_that_is_away_is_not_waited_for_where_its_records_are_elsewhere() -> None:
    with SimulatedCluster(3) as brokers:
        brokers.create_topic(RECORD_TOPIC, queue_count=1)
        for away in brokers.brokers.values():
            waits_s: list[float] = []
            with Cluster(ClusterSettings.of_text(brokers.name_server)) as cluster:
                reading = QueueReading(cluster, 60_000, sleep=waits_s.append)
                topic = RecordTopic(cluster, reading, group="pg", sleep=waits_s.append)
                part = WritePart(f"query {away.name}", 0, 0)
                topic._queues(part)  # the route is known
                away.stop()
                assert topic.find(part) == {}
                assert topic.add(Record(part, {ORDERS: 5}, "a")) == {}
                assert waits_s == []
            away.start()


@pytest.mark.parametrize("not_before_ms", [None, 1_700_000_000_000])
@pytest.mark.parametrize("is_silent_for", [31, 29])
def test_a_search_stops_where_the_master_begins_since_a_slave_may_have_come_later(
    monkeypatch: pytest.MonkeyPatch, not_before_ms: int | None, is_silent_for: int
) -> None:
    net = FakeNet()
    broker = net.add_broker(slaves=1)
    broker.put(RECORD_TOPIC, 0, 9)
    broker.processes[1].begin = 6
    topic = RecordTopic(net.cluster(), QueueReading(net.cluster(), 60_000, sleep=lambda _: None), group="pg")
    looked_at: list[int] = []
    monkeypatch.setattr(
        topic._journal, "texts", lambda queue, start, end, owner: looked_at.extend(range(start, end)) or ()
    )
    call, silences = net.call, [is_silent_for] * 2

    def silent_at_first(address: str, command: RemotingCommand, timeout_ms: int) -> RemotingCommand:
        if address == broker.processes[0].address and command.code in silences:
            silences.remove(command.code)
            raise RemotingTimeoutError("slow")
        return call(address, command, timeout_ms)

    monkeypatch.setattr(net, "call", silent_at_first)
    assert topic._search(MessageQueue(RECORD_TOPIC, "broker-a", 0), 9, PART, not_before_ms) == ([], None)
    assert looked_at == list(range(9))


def test_the_first_search_of_a_write_reads_few_of_the_records_of_others() -> None:
    with SimulatedCluster(2) as brokers:
        brokers.create_topic(RECORD_TOPIC, queue_count=1, message_count=20_000)
        with Cluster(ClusterSettings.of_text(brokers.name_server)) as cluster:
            first = RecordTopic(cluster, QueueReading(cluster, 300), group="pg")
            first.add(record(5, "a"))
            brokers.forget_calls()
            assert RecordTopic(cluster, QueueReading(cluster, 300), group="pg").find(PART) == {ORDERS: 5}
        # 32 messages in each would make 1,250. Sixteen are under way at a time.
        assert brokers.total_calls[RequestCode.PULL_MESSAGE] < 150
        assert brokers.bytes_of_answers < 100_000


@pytest.mark.parametrize("is_there", [False, True])
def test_a_task_without_an_earlier_record_looks_through_very_many_in_few_pulls(is_there: bool) -> None:
    """None of them is too old to count, wherever it is: here it is the first of 100,000."""
    with SimulatedCluster(2) as brokers:
        brokers.create_topic(RECORD_TOPIC, queue_count=1)
        with Cluster(ClusterSettings.of_text(brokers.name_server)) as cluster:
            if is_there:
                RecordTopic(cluster, QueueReading(cluster, 300), group="pg").add(record(5, "a"))
            for broker in brokers.brokers.values():
                queue = broker.queues.topics[RECORD_TOPIC][0]
                queue.sent += [b"of another task"] * 100_000
                queue.store_times_ms += [START_MS] * 100_000
            brokers.forget_calls()
            found = RecordTopic(cluster, QueueReading(cluster, 300), group="pg").find(PART)
        assert found == ({ORDERS: 5} if is_there else {})
        # 1,024 records in each would make 200.
        assert brokers.total_calls[RequestCode.PULL_MESSAGE] < 30
        assert brokers.bytes_of_answers < 20_000


@pytest.mark.parametrize(
    "damage", [QueueHoleError("a hole", ("T", "b", 0), 1, 2), CorruptRecordError("a pull", 7, "no frame")]
)
def test_damage_in_the_queues_of_records_leaves_the_batch_in_doubt(
    tasks: Iterator[RecordTopic], monkeypatch: pytest.MonkeyPatch, damage: Exception
) -> None:
    def read_range(*args: object, **given: object) -> Iterator[bytes]:
        raise damage

    next(tasks).add(record(5, "a"))
    monkeypatch.setattr(journal_topic, "read_range", read_range)
    with pytest.raises(SendInDoubtError, match="its records cannot be read") as caught:
        next(tasks).find(PART)
    assert caught.value.__cause__ is damage
