"""The broker of a test: what its clock moves, and what it leaves alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from helpers.patient import PATIENT
from rmq_store import Delivery, Message, NotAStoreError, Store, StoreConfig, UsageError
from rmq_store.broker.store import open_store
from rmq_store.broker.store.open_store import Make, OpenRequest
from rmq_store.client import (
    ConsumeConcurrentlyContext,
    ConsumeConcurrentlyStatus,
    ConsumeFromWhere,
    MessageExt,
    MessageListenerConcurrently,
    MessageQueue,
    Producer,
    PushConsumer,
    PushConsumerConfig,
)
from rmq_store.protocol.bodies.clients import LockBatchRequestBody, LockBatchResponseBody
from rmq_store.protocol.errors import ResponseCode
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.group_headers import LockBatchMqRequestHeader
from rmq_store.protocol.wire.header_fields import request
from rmq_store.remoting.admin.scope import ask, masters
from rmq_store.remoting.cluster import groups
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.questions.answer import checked
from rmq_store.remoting.questions.topics import ask_delete_topic
from rmq_store.remoting.transport.settings import ClusterSettings
from rmq_store.server.broker_server import BrokerServer
from rmq_store.server.scratch_store import SCRATCH_CONFIG
from rmq_store.server.virtual_clock import AdvanceClockRequestHeader, AdvanceClockResponseHeader
from rmq_store.testing import RmqTestBroker

# The first batch of a process loads pandas, by way of pyarrow.
FROM_FIRST = PushConsumerConfig(consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)


class Failing(MessageListenerConcurrently):
    """Fails on every message, and counts."""

    def __init__(self) -> None:
        self.times: list[int] = []
        self._lock = threading.Lock()

    def consume_message(
        self, messages: list[MessageExt], context: ConsumeConcurrentlyContext
    ) -> ConsumeConcurrentlyStatus:
        with self._lock:
            self.times += [message.reconsume_times for message in messages]
        return ConsumeConcurrentlyStatus.RECONSUME_LATER


def advance(cluster: Cluster, address: str, duration_ms: int) -> RemotingCommand:
    return cluster.client.call(address, request(AdvanceClockRequestHeader(duration_ms=duration_ms)))


def lock(cluster: Cluster, group: str, client_id: str, queue: MessageQueue) -> set[MessageQueue]:
    """The queues that a 41 gets."""
    body = LockBatchRequestBody(consumer_group=group, client_id=client_id, mq_set=(queue,))
    answer = cluster.client.call(cluster.address(queue.broker_name), request(LockBatchMqRequestHeader(), body.encode()))
    return set(LockBatchResponseBody.decode(answer.body).lock_ok_mq_set)


@pytest.fixture
def broker(scratch: Path) -> Iterator[RmqTestBroker]:
    with RmqTestBroker(scratch / "broker") as broker:
        yield broker


@pytest.fixture
def cluster(broker: RmqTestBroker) -> Iterator[Cluster]:
    cluster = Cluster(ClusterSettings.of_text(broker.address))
    yield cluster
    cluster.close()


@pytest.mark.statement("B05", "B06", "B08")
def test_a_message_goes_the_whole_ladder_into_the_dead_letters_in_seconds(broker: RmqTestBroker) -> None:
    listener = Failing()
    with Producer("pg", broker.url, config=PATIENT) as producer:
        producer.send(Message("Orders", b"poison"))
    start = broker.clock.now()
    consumer = PushConsumer("cg", broker.url, FROM_FIRST)
    consumer.subscribe("Orders")
    consumer.register_message_listener(listener)
    consumer.start()
    try:
        for deliveries in range(1, 18):
            broker.wait_until(lambda deliveries=deliveries: len(listener.times) == deliveries)  # type: ignore[misc]
            broker.wait_until(lambda: broker.advance_to_next_due() or broker.count("%DLQ%cg"))
    finally:
        consumer.shutdown()
    assert listener.times == list(range(17))
    assert broker.dead_letters("cg") == [b"poison"]
    assert broker.clock.now() - start == timedelta(hours=4, minutes=45, seconds=40)


def test_a_jump_of_the_clock_ends_no_member_and_no_lock(broker: RmqTestBroker, cluster: Cluster) -> None:
    broker.send("Orders", ["a"])
    name = broker.store.broker_name
    queue = MessageQueue("Orders", name, 0)
    consumer = PushConsumer("cg", broker.url, FROM_FIRST)
    consumer.subscribe("Orders")
    consumer.register_message_listener(Failing())
    consumer.start()
    try:
        (member,) = groups.consumer_ids(cluster, "cg", name)
        assert lock(cluster, "cg", member, queue) == {queue}
        broker.clock.advance(hours=2)
        assert groups.consumer_ids(cluster, "cg", name) == [member]
        assert lock(cluster, "cg", "another", queue) == set()
    finally:
        consumer.shutdown()


def test_a_delayed_message_comes_when_the_clock_says_so(broker: RmqTestBroker) -> None:
    with Producer("pg", broker.url, config=PATIENT) as producer:
        producer.send(Message("Orders", b"later", properties={"DELAY": "18"}))
    broker.clock.advance(minutes=119, seconds=59)
    broker.send("Orders", ["sooner"])
    assert broker.advance_to_next_due() == timedelta(seconds=1)
    assert broker.wait_for_messages("Orders", 2) == [b"sooner", b"later"]
    assert broker.advance_to_next_due() is None


def test_it_takes_changes_and_has_a_port_for_grpc_when_asked(
    broker: RmqTestBroker, cluster: Cluster, scratch: Path
) -> None:
    broker.send("Orders", ["a"])
    ask(cluster, masters(cluster)[0], ask_delete_topic(cluster, "Orders"), checked)
    assert broker.store.find_topic("Orders") is None
    with pytest.raises(UsageError, match="grpc_port=0"):
        _ = broker.grpc_address
    with RmqTestBroker(scratch / "grpc", grpc_port=0) as other:
        assert other.grpc_address != other.address


def test_a_message_that_the_server_is_delivering_is_not_the_next_one(
    broker: RmqTestBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search that meets another one tells the present as the next time, and delivers nothing."""
    busy, search = [1, 1], broker.store.schedule.deliver_due

    def meets_another() -> Delivery:
        return Delivery(0, broker.clock()) if busy and busy.pop() else search()

    monkeypatch.setattr(broker.store.schedule, "deliver_due", meets_another)
    broker.store.send(Message("Orders", b"later", properties={"DELAY": "1"}))
    assert broker.advance_to_next_due() == timedelta(seconds=1)


def test_the_server_itself_delivers_after_a_jump(broker: RmqTestBroker) -> None:
    broker.store.send(Message("Orders", b"later", properties={"DELAY": "5"}))
    broker.clock.advance(timedelta(minutes=1))
    assert broker.wait_for_messages("Orders", 1) == [b"later"]


def test_helpers_say_what_is_missing(broker: RmqTestBroker) -> None:
    assert broker.bodies("NoSuchTopic") == broker.dead_letters("cg") == []
    broker.send("Orders", ["a", b"b"], tags="T")
    assert broker.bodies("Orders") == [b"a", b"b"]
    with pytest.raises(TimeoutError, match="topic Orders has 2 messages, and not 3 after 0"):
        broker.wait_for_messages("Orders", 3, timeout_s=0)
    with pytest.raises(UsageError, match="backwards"):
        broker.clock.advance(seconds=-1)
    with pytest.raises(UsageError, match="backwards"):
        broker.clock.set(broker.clock.now() - timedelta(seconds=1))


def test_a_request_moves_the_clock_for_suites_of_other_languages(broker: RmqTestBroker, cluster: Cluster) -> None:
    broker.store.send(Message("Orders", b"later", properties={"DELAY": "5"}))
    before_ms = broker.clock()
    answer = advance(cluster, broker.address, 60_000)
    assert AdvanceClockResponseHeader.from_ext(answer.ext_fields).time_ms == broker.clock() == before_ms + 60_000
    assert broker.wait_for_messages("Orders", 1) == [b"later"]
    refused = advance(cluster, broker.address, -1)
    assert refused.code == ResponseCode.SYSTEM_ERROR and "backwards" in str(refused.remark)
    assert broker.clock() == before_ms + 60_000


def test_the_store_is_opened_once_and_no_other_files_are_taken_for_it(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[OpenRequest] = []
    original = open_store.open_store

    def counted(request: OpenRequest, make: Make[Store]) -> Store:
        opened.append(request)
        return original(request, make)

    monkeypatch.setattr("rmq_store.broker.store.store.open_store", counted)
    with RmqTestBroker(scratch / "broker") as broker:
        assert broker.store.clock() == broker.clock()
        assert broker.store.config.broker_host == broker.address
        assert broker.store.config.mapped_file_size_commit_log == SCRATCH_CONFIG.mapped_file_size_commit_log
    assert len(opened) == 1
    with pytest.raises(UsageError, match="this clock exists already"):
        RmqTestBroker(scratch / "broker")
    (scratch / "notes").mkdir()
    (scratch / "notes/todo").write_text("tea")
    with pytest.raises(NotAStoreError):
        RmqTestBroker(scratch / "notes")
    assert [path.name for path in (scratch / "notes").iterdir()] == ["todo"]


def test_a_store_with_the_clock_of_the_machine_refuses_the_request(scratch: Path, small: StoreConfig) -> None:
    with BrokerServer(scratch / "store", config=small, create=True) as server:
        cluster = Cluster(ClusterSettings.of_text(server.address))
        refused = advance(cluster, server.address, 1)
        assert refused.code == ResponseCode.ILLEGAL_OPERATION and "--virtual-clock" in str(refused.remark)
        cluster.close()
