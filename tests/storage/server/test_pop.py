"""Simple consumers of a served store: receive, acknowledge, hide anew, and wait for messages."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from rmq_store import InvalidReceiptHandleError, Message, Store, StoreConfig
from rmq_store.broker.metadata.groups import SubscriptionGroup
from rmq_store.client import ConsumeFromWhere, FilterExpression, RemotingError, ResponseCode, SimpleConsumer
from rmq_store.client.backend.remote import RemoteBackend
from rmq_store.client.consumer.simple_consumer import FilterExpressionType
from rmq_store.format.properties.property_string import POP_CK
from rmq_store.format.text.names import dlq_topic
from rmq_store.protocol.bodies.clients import (
    ConsumerData,
    HeartbeatData,
    QueryAssignmentRequestBody,
    QueryAssignmentResponseBody,
    SetMessageRequestModeRequestBody,
)
from rmq_store.protocol.messages import MessageExt
from rmq_store.protocol.stored_messages import messages_in
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.header_fields import request
from rmq_store.protocol.wire.pop_headers import (
    PollingInfoRequestHeader,
    PollingInfoResponseHeader,
    PopMessageRequestHeader,
    PopMessageResponseHeader,
    QueryAssignmentRequestHeader,
    SetMessageRequestModeRequestHeader,
)
from rmq_store.remoting.cluster import groups
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.transport.settings import ClusterSettings
from rmq_store.server.broker_server import BrokerServer
from rmq_store.server.pop import pop_processor
from rmq_store.server.pop.held_pops import Share
from rmq_store.server.pop.request_modes import RequestMode, RequestModeTable

PATIENCE_S = 60.0
LONG = timedelta(minutes=5)
NOW = timedelta(0)


def eventually(condition: Callable[[], object]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s, "it did not happen"
        time.sleep(0.005)


@pytest.fixture
def orders(server: BrokerServer) -> Store:
    server.store.create_topic("Orders", 2)
    return server.store


@pytest.fixture
def consumer(place: str, orders: Store) -> Iterator[SimpleConsumer]:
    with simple(place, "*") as consumer:
        yield consumer


@contextmanager
def simple(place: str, expression: str | FilterExpression) -> Iterator[SimpleConsumer]:
    """A consumer that waits for its answers as long as it takes: the first batch of a process loads pandas."""
    settings = replace(ClusterSettings.of_text(place.removeprefix("rmq://")), timeout_ms=60_000)
    first, wanted = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, {"Orders": expression}
    with (
        closing(RemoteBackend(settings)) as backend,
        SimpleConsumer("cg", backend, wanted, await_duration=NOW, consume_from_where=first) as consumer,
    ):
        yield consumer


HEADER = PopMessageRequestHeader(
    consumer_group="cg", topic="Orders", queue_id=-1, max_msg_nums=32, invisible_time=300_000, poll_time=0,
    born_time=0, init_mode=0, exp_type="TAG", exp="*", order=False,
)  # fmt: skip


def pop(cluster: Cluster, **fields: object) -> RemotingCommand:
    """The answer of the broker, whatever its code."""
    return cluster.client.call(cluster.address("rmq-embedded"), request(replace(HEADER, **fields)), 60_000)


def found_in(answer: RemotingCommand) -> list[MessageExt]:
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return messages_in(answer.body, "rmq-embedded")


def bodies(consumer: SimpleConsumer, count: int = 16) -> list[bytes]:
    return sorted(view.body for view in consumer.receive(count, LONG))


def test_a_received_message_is_hidden_and_an_acknowledged_one_is_done_with(
    consumer: SimpleConsumer, orders: Store
) -> None:
    for number in range(4):
        orders.send(Message("Orders", b"%d" % number, queue_id=number % 2, tags="T"))
    views = consumer.receive(16, LONG)
    assert sorted((view.body, view.delivery_attempt) for view in views) == [(b"%d" % n, 1) for n in range(4)]
    assert consumer.receive(16, LONG) == []
    for view in views:
        consumer.ack(view)
    with pytest.raises(InvalidReceiptHandleError, match="done with"):
        consumer.ack(views[0])
    orders.close()
    with Store.open(orders.path) as store:
        assert store.committed_offsets("cg") == {("Orders", 0): 2, ("Orders", 1): 2}


def test_a_message_that_is_made_visible_comes_again_with_the_number_of_its_delivery(
    consumer: SimpleConsumer, orders: Store
) -> None:
    orders.send(Message("Orders", b"a"))
    (first,) = consumer.receive(16, LONG)
    old = first.receipt_handle
    consumer.change_invisible_duration(first, LONG)
    new, first.receipt_handle = first.receipt_handle, old
    with pytest.raises(InvalidReceiptHandleError, match="newer handle"):
        consumer.ack(first)
    first.receipt_handle = new
    consumer.change_invisible_duration(first, NOW)
    (second,) = consumer.receive(16, LONG)
    assert (second.body, second.delivery_attempt) == (b"a", 2)
    consumer.ack(second)
    assert consumer.receive(16, LONG) == []


def test_a_message_that_fails_too_often_becomes_a_dead_letter(consumer: SimpleConsumer, orders: Store) -> None:
    orders.create_group(SubscriptionGroup("cg", retry_max_times=1))
    orders.send(Message("Orders", b"a"))
    for attempt in (1, 2):
        (view,) = consumer.receive(16, LONG)
        assert view.delivery_attempt == attempt
        consumer.change_invisible_duration(view, NOW)
    assert consumer.receive(16, LONG) == []
    (row,) = [row for batch in orders.read(dlq_topic("cg"), 0, 0, 1) for row in batch.to_pylist()]
    assert (row["body"], row["reconsumeTimes"]) == (b"a", 3)  # one above, as in RocketMQ


@pytest.mark.parametrize("expression", ["A || B", FilterExpression("colour = 'red'", FilterExpressionType.SQL92)])
def test_a_filter_chooses_messages(place: str, orders: Store, expression: str | FilterExpression) -> None:
    for number, tags, colour in ((0, "A", "red"), (1, "C", "blue"), (2, "B", "red")):
        orders.send(Message("Orders", b"%d" % number, tags=tags, properties={"colour": colour}))
    with simple(place, expression) as consumer:
        assert bodies(consumer) == [b"0", b"2"]


def test_the_fields_of_an_answer_are_those_of_a_broker(cluster: Cluster, orders: Store) -> None:
    for number in range(3):
        orders.send(Message("Orders", b"%d" % number, queue_id=1))
    answer = pop(cluster, max_msg_nums=2)
    header = PopMessageResponseHeader.from_ext(answer.ext_fields)
    assert (header.invisible_time, header.rest_num) == (300_000, 1)
    assert (header.start_offset_info, header.msg_offset_info) == ("0 1 0", "0 1 0,1")
    texts = [one.properties[POP_CK] for one in found_in(answer)]
    assert texts == [f"{at} {header.pop_time} 300000 1 0 rmq-embedded 1 {at}" for at in (0, 1)]


def test_a_message_without_room_for_its_handle_is_given_out_and_can_be_acknowledged(
    consumer: SimpleConsumer, orders: Store
) -> None:
    orders.send(Message("Orders", b"a", properties={"x": "y" * 32_600}))
    (view,) = consumer.receive(16, LONG)
    consumer.change_invisible_duration(view, NOW)
    (view,) = consumer.receive(16, LONG)
    consumer.ack(view)


def test_an_answer_fits_a_frame(cluster: Cluster, orders: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pop_processor, "ANSWER_BYTES_MAX", 2500)
    for number in range(5):
        orders.send(Message("Orders", b"%d" % number * 1000, queue_id=0))
    orders.send(Message("Orders", b"x" * 3000, queue_id=0))
    sizes = []
    while (answer := pop(cluster)).code == ResponseCode.SUCCESS:
        sizes.append([len(one.body) for one in found_in(answer)])
    assert sizes == [[1000, 1000], [1000, 1000], [1000], [3000]]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"max_msg_nums": 33}, ResponseCode.INVALID_PARAMETER),
        ({"max_msg_nums": 0}, ResponseCode.INVALID_PARAMETER),
        ({"queue_id": 2}, ResponseCode.INVALID_PARAMETER),
        ({"queue_id": -2}, ResponseCode.INVALID_PARAMETER),
        ({"topic": "Missing"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"exp_type": "SQL92", "exp": "a ="}, ResponseCode.SUBSCRIPTION_PARSE_FAILED),
        ({"consumer_group": "a/b"}, ResponseCode.SYSTEM_ERROR),
        ({}, ResponseCode.POLLING_TIMEOUT),
    ],
)
def test_a_request_that_cannot_be_answered_is_refused(
    cluster: Cluster, orders: Store, fields: dict[str, object], code: int
) -> None:
    assert pop(cluster, **fields).code == code


def waiting(server: BrokerServer) -> int:
    return server._held_pops.count(Share("cg", "Orders"))


class Waiter:
    """A request that waits for messages, on a connection of its own."""

    def __init__(self, server: BrokerServer, **fields: object) -> None:
        self.cluster = Cluster(ClusterSettings.of_text(server.address))
        self.answers: list[RemotingCommand] = []
        self._thread = threading.Thread(target=self._wait, args=(fields,), daemon=True)
        before = waiting(server)
        self._thread.start()
        eventually(lambda: waiting(server) > before)

    def _wait(self, fields: dict[str, object]) -> None:
        with suppress(RemotingError):  # the client has gone
            self.answers.append(pop(self.cluster, **{"poll_time": 50_000, "max_msg_nums": 1, **fields}))

    def bodies(self) -> list[bytes]:
        eventually(lambda: self.answers)
        return [one.body for one in found_in(self.answers[0])]

    def close(self) -> None:
        self.cluster.close()
        self._thread.join(PATIENCE_S)


@pytest.fixture
def waiter(server: BrokerServer, orders: Store) -> Iterator[Callable[..., Waiter]]:
    made: list[Waiter] = []

    def make(**fields: object) -> Waiter:
        made.append(Waiter(server, **fields))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_a_waiting_request_is_answered_when_another_process_stores_a_message(
    waiter: Callable[..., Waiter], orders: Store
) -> None:
    one = waiter()
    with Store.open(orders.path) as other:
        other.send(Message("Orders", b"a"))
    assert one.bodies() == [b"a"]


def test_a_waiting_request_is_answered_when_a_message_is_visible_again(
    waiter: Callable[..., Waiter], orders: Store, cluster: Cluster
) -> None:
    orders.send(Message("Orders", b"a"))
    found_in(pop(cluster, invisible_time=500))
    assert waiter().bodies() == [b"a"]


def test_several_messages_wake_up_as_many_requests(waiter: Callable[..., Waiter], orders: Store) -> None:
    waiters = [waiter() for _ in range(3)]
    orders.send_all([Message("Orders", b"%d" % number) for number in range(3)])
    assert sorted(body for one in waiters for body in one.bodies()) == [b"0", b"1", b"2"]


def test_nothing_is_hidden_for_a_client_that_has_gone(
    waiter: Callable[..., Waiter], orders: Store, server: BrokerServer, cluster: Cluster
) -> None:
    waiter().cluster.close()
    eventually(lambda: waiting(server) == 0)
    orders.send(Message("Orders", b"a"))
    assert [one.body for one in found_in(pop(cluster))] == [b"a"]


def test_the_time_of_a_waiting_request_ends(cluster: Cluster, orders: Store) -> None:
    assert pop(cluster, poll_time=50).code == ResponseCode.POLLING_TIMEOUT


def test_too_many_waiting_requests_are_answered_at_once(
    server: BrokerServer, waiter: Callable[..., Waiter], cluster: Cluster
) -> None:
    waiter()
    server._held_pops._held_max = 1
    assert pop(cluster, poll_time=50_000).code == ResponseCode.POLLING_FULL
    asked = request(PollingInfoRequestHeader(consumer_group="cg", topic="Orders", queue_id=-1))
    answer = cluster.client.call(server.address, asked, 20_000)
    assert PollingInfoResponseHeader.from_ext(answer.ext_fields).polling_num == 1


def test_a_server_that_stops_answers_requests_that_wait(
    root: object, small: StoreConfig, server: BrokerServer, waiter: Callable[..., Waiter]
) -> None:
    one = waiter()
    server.close()
    eventually(lambda: one.answers)
    assert one.answers[0].code == ResponseCode.POLLING_TIMEOUT


def assigned(cluster: Cluster, server: BrokerServer, client_id: str) -> set[tuple[int, str]]:
    body = QueryAssignmentRequestBody(topic="Orders", consumer_group="cg", client_id=client_id).encode()
    answer = cluster.client.call(server.address, request(QueryAssignmentRequestHeader(), body), 20_000)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    found = QueryAssignmentResponseBody.decode(answer.body).message_queue_assignments
    return {(one.message_queue.queue_id, one.mode) for one in found}


def set_mode(cluster: Cluster, server: BrokerServer, mode: str, topic: str = "Orders", share: int = 0) -> int:
    asked = SetMessageRequestModeRequestBody(
        topic=topic, consumer_group="cg", mode=mode, pop_share_queue_num=share
    ).encode()
    return cluster.client.call(server.address, request(SetMessageRequestModeRequestHeader(), asked), 20_000).code


def join(cluster: Cluster, *client_ids: str) -> None:
    for client_id in client_ids:
        beat = HeartbeatData(client_id=client_id, consumer_data_set=(ConsumerData(group_name="cg"),))
        groups.heartbeat(cluster, beat)


def test_the_server_divides_queues_or_gives_all_to_members_that_pop(
    cluster: Cluster, server: BrokerServer, orders: Store
) -> None:
    join(cluster, "one", "two")
    assert assigned(cluster, server, "one") == {(0, "PULL")}
    assert assigned(cluster, server, "two") == {(1, "PULL")}
    assert set_mode(cluster, server, "POP") == ResponseCode.SUCCESS
    assert assigned(cluster, server, "one") == assigned(cluster, server, "two") == {(-1, "POP")}
    assert set_mode(cluster, server, "PULL") == ResponseCode.SUCCESS
    assert assigned(cluster, server, "two") == {(1, "PULL")}


def test_members_that_pop_share_the_queues_of_those_behind_them(cluster: Cluster, server: BrokerServer) -> None:
    """QueryAssignmentProcessor#allocate4Pop: queue -1 if all others share, one queue each beyond one for a member."""
    server.store.create_topic("Orders", 4)
    join(cluster, "a", "b", "c", "d")
    own = {"a": {0}, "b": {1}, "c": {2}, "d": {3}}
    queues = {
        -1: {each: {-1} for each in own},
        0: {each: {-1} for each in own},
        1: {"a": {0, 1}, "b": {1, 2}, "c": {2, 3}, "d": {3, 0}},
        2: {"a": {0, 1, 2}, "b": {1, 2, 3}, "c": {2, 3, 0}, "d": {3, 0, 1}},
        3: {each: {-1} for each in own},
        8: {each: {-1} for each in own},
    }
    for share, expected in queues.items():
        assert set_mode(cluster, server, "POP", share=share) == ResponseCode.SUCCESS
        found = {each: assigned(cluster, server, each) for each in own}
        assert found == {each: {(queue, "POP") for queue in of_one} for each, of_one in expected.items()}, share
    assert assigned(cluster, server, "stranger") == {(-1, "POP")}
    join(cluster, "e", "f")
    assert set_mode(cluster, server, "POP", share=1) == ResponseCode.SUCCESS
    one_each = [assigned(cluster, server, each) for each in "abcdef"]
    assert one_each == [{(queue, "POP")} for queue in (0, 1, 2, 3, 0, 1)]
    assert assigned(cluster, server, "stranger") == set()


def test_a_mode_outlives_its_server(cluster: Cluster, server: BrokerServer, orders: Store, small: StoreConfig) -> None:
    assert set_mode(cluster, server, "POP", share=8) == ResponseCode.SUCCESS
    assert "cg" in orders.groups()  # made, as by a consumer's first request
    root = orders.path
    server.close()
    assert RequestModeTable(root).get("Orders", "cg") == RequestMode("POP", 8)
    with (
        BrokerServer(root, config=small, admin=True) as again,
        closing(Cluster(ClusterSettings.of_text(again.address))) as other,
    ):
        join(other, "one")
        assert assigned(other, again, "one") == {(-1, "POP")}


def test_a_group_is_made_for_its_mode_only_where_groups_are_made(root: Path, small: StoreConfig) -> None:
    config = replace(small, auto_create_subscription_group=False)
    with (
        BrokerServer(root, config=config, create=True, admin=True) as server,
        closing(Cluster(ClusterSettings.of_text(server.address))) as cluster,
    ):
        server.store.create_topic("Orders", 2)
        assert set_mode(cluster, server, "POP") == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        server.store.create_group(SubscriptionGroup("cg"))
        assert set_mode(cluster, server, "POP") == ResponseCode.SUCCESS


@pytest.mark.parametrize(("topic", "has_member"), [("Missing", True), ("Orders", False)])
def test_a_consumer_keeps_its_queues_while_its_topic_or_its_group_is_unknown(
    cluster: Cluster, server: BrokerServer, orders: Store, topic: str, has_member: bool
) -> None:
    """QueryAssignmentProcessor#doLoadBalance: no list at all. Java's consumer would act on an error or an empty one."""
    if has_member:
        groups.heartbeat(cluster, HeartbeatData(client_id="c1", consumer_data_set=(ConsumerData(group_name="cg"),)))
    body = QueryAssignmentRequestBody(topic=topic, consumer_group="cg", client_id="c1").encode()
    answer = cluster.client.call(server.address, request(QueryAssignmentRequestHeader(), body), 20_000)
    assert (answer.code, answer.body) == (ResponseCode.SUCCESS, b"{}")


def test_a_mode_that_cannot_be_set_is_refused(cluster: Cluster, server: BrokerServer, orders: Store) -> None:
    assert set_mode(cluster, server, "POP", "Missing") == ResponseCode.TOPIC_NOT_EXIST
    assert set_mode(cluster, server, "POP", "%RETRY%cg") == ResponseCode.NO_PERMISSION
    assert set_mode(cluster, server, "PUSH") == ResponseCode.INVALID_PARAMETER
    assert "cg" not in orders.groups()
