"""RocketMQ's official Python client, in the process of the server: both have the same message names."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from typing import Any

import pytest
import rocketmq
from rocketmq.v5.client.connection.rpc_client import RpcClient

from rmq_store.broker.metadata.groups import SubscriptionGroup
from rmq_store.server.broker_server import BrokerServer

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("client_loop")]

PATIENCE_S = 60.0


def eventually(condition: Callable[[], object]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s, "it did not happen"
        time.sleep(0.005)


class PatientEvent(threading.Event):
    """The client gives its server ten seconds for the first settings, whatever `request_timeout` says."""

    def wait(self, timeout: float | None = None) -> bool:
        return super().wait(PATIENCE_S)


def started(consumer: Any) -> Any:
    """The push consumer, started. It fails if no settings come, not if the machine stands still for a while."""
    consumer._init_settings_event = PatientEvent()
    consumer.startup()
    return consumer


@pytest.fixture
def configuration(server: BrokerServer) -> Any:
    return rocketmq.ClientConfiguration(server.grpc_address, rocketmq.Credentials(), request_timeout=30)


@pytest.fixture
def producer(server: BrokerServer, configuration: Any) -> Iterator[Any]:
    server.store.create_topic("Orders", 4)
    producer = rocketmq.Producer(configuration, ("Orders",))
    producer.startup()
    yield producer
    producer.shutdown()


@pytest.fixture
def simple(configuration: Any) -> Iterator[Any]:
    everything = {"Orders": rocketmq.FilterExpression("*")}
    consumer = rocketmq.SimpleConsumer(configuration, "cg", everything, 3)
    consumer.startup()
    consumer.receive(1, 10)  # the group starts here
    yield consumer
    consumer.shutdown()


def message(body: bytes, **fields: Any) -> Any:
    made = rocketmq.Message()
    made.topic, made.body = "Orders", body
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def test_a_producer_sends_and_a_simple_consumer_acks(server: BrokerServer, producer: Any, simple: Any) -> None:
    sent = producer.send(message(b"paid", tag="T", keys="k"))
    [got] = simple.receive(5, 15)
    assert (got.body, got.message_id, got.tag, list(got.keys)) == (b"paid", sent.message_id, "T", ["k"])
    assert not got.corrupted and got.delivery_attempt == 1
    simple.change_invisible_duration(got, 1)
    [again] = simple.receive(5, 15)
    assert (again.message_id, again.delivery_attempt) == (sent.message_id, 2)
    simple.ack(again)
    assert simple.receive(5, 15) == []
    with pytest.raises(rocketmq.v5.exception.BadRequestException):
        simple.ack(got)


def test_a_client_starts_if_the_answer_for_its_route_is_there_at_once(
    server: BrokerServer, configuration: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = RpcClient.query_topic_route_async

    def answered(*arguments: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = asked(*arguments, **named)
        wait([future])
        return future

    monkeypatch.setattr(RpcClient, "query_topic_route_async", answered)
    server.store.create_topic("Orders", 4)
    producer = rocketmq.Producer(configuration, ("Orders",))
    producer.startup()
    assert producer.send(message(b"paid")).message_id
    producer.shutdown()


def test_ordered_and_delayed_messages(server: BrokerServer, producer: Any, simple: Any) -> None:
    for number in range(3):
        producer.send(message(b"%d" % number, message_group="g"))
    due_s = int(time.time()) + 2
    producer.send(message(b"later", delivery_timestamp=due_s))
    got: list[Any] = []
    eventually(lambda: got.extend(simple.receive(32, 60)) or len(got) == 4)  # type: ignore[func-returns-value]
    assert [one.body for one in got] == [b"0", b"1", b"2", b"later"]
    assert [one.message_group for one in got][:3] == ["g"] * 3
    assert got[3].delivery_timestamp == due_s * 1000


def test_a_filter_selects(producer: Any, configuration: Any) -> None:
    consumer = rocketmq.SimpleConsumer(configuration, "tags", {"Orders": rocketmq.FilterExpression("A || B")}, 3)
    consumer.startup()
    consumer.receive(1, 10)
    for tag in ("A", "C", "B"):
        producer.send(message(tag.encode(), tag=tag))
    got: list[bytes] = []
    eventually(lambda: got.extend(one.body for one in consumer.receive(32, 60)) or len(got) == 2)  # type: ignore[func-returns-value]
    consumer.shutdown()
    assert sorted(got) == [b"A", b"B"]


def test_a_push_consumer_gets_a_failed_message_again(server: BrokerServer, producer: Any, configuration: Any) -> None:
    got: list[tuple[bytes, int]] = []
    turn = threading.Lock()

    class Listener(rocketmq.MessageListener):  # type: ignore[misc, name-defined]
        def consume(self, received: Any) -> Any:
            with turn:
                got.append((received.body, received.delivery_attempt))
            fails = received.body == b"1" and received.delivery_attempt == 1
            return rocketmq.ConsumeResult.FAILURE if fails else rocketmq.ConsumeResult.SUCCESS

    everything = {"Orders": rocketmq.FilterExpression("*")}
    consumer = started(rocketmq.PushConsumer(configuration, "push", Listener(), everything))
    for body in (b"0", b"1"):
        producer.send(message(body))
    eventually(lambda: {(b"0", 1), (b"1", 2)} <= set(got))
    consumer.shutdown()
    assert (b"1", 1) in got and not any(attempt > 1 for body, attempt in got if body == b"0")


def test_a_push_consumer_in_order_gets_each_message_group_in_order(
    server: BrokerServer, producer: Any, configuration: Any
) -> None:
    """One message always fails: it becomes a dead letter after two attempts, and the others of its group follow."""
    server.store.create_group(SubscriptionGroup("fifo", consume_message_orderly=True, retry_max_times=1))
    server.store.commit_offsets("fifo", {("Orders", queue_id): 0 for queue_id in range(4)})
    got: list[bytes] = []
    turn = threading.Lock()

    class Listener(rocketmq.MessageListener):  # type: ignore[misc, name-defined]
        def consume(self, received: Any) -> Any:
            with turn:
                got.append(received.body)
            return rocketmq.ConsumeResult.FAILURE if received.body == b"b2" else rocketmq.ConsumeResult.SUCCESS

    for number in range(6):
        for group in "ab":
            producer.send(message(b"%s%d" % (group.encode(), number), message_group=group))
    everything = {"Orders": rocketmq.FilterExpression("*")}
    consumer = started(rocketmq.PushConsumer(configuration, "fifo", Listener(), everything))
    eventually(lambda: len(got) == 13 and server.store.find_topic("%DLQ%fifo") is not None)
    consumer.shutdown()
    assert [body for body in got if body.startswith(b"a")] == [b"a%d" % number for number in range(6)]
    assert [body for body in got if body.startswith(b"b")] == [b"b%d" % number for number in (0, 1, 2, 2, 3, 4, 5)]
    [dead] = [row for batch in server.store.read("%DLQ%fifo", 0, 0, 1) for row in batch.to_pylist()]
    assert dead["body"] == b"b2"


def test_a_message_that_is_too_large_is_refused_with_its_type(producer: Any, server: BrokerServer) -> None:
    with pytest.raises(Exception, match="max"):
        producer.send(message(bytes(server.store.config.max_message_size + 1)))
