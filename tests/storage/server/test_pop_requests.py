"""POP of one queue and in order, notifications, peeks, and acknowledgements of several messages, by the wire."""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace

import pytest

from rmq_store import Message, Store
from rmq_store.broker.pop.pop_journal import read_state
from rmq_store.client import ResponseCode
from rmq_store.format.properties.property_string import POP_CK
from rmq_store.protocol.bodies.clients import BatchAck, BatchAckMessageRequestBody
from rmq_store.protocol.messages import MessageExt
from rmq_store.protocol.stored_messages import messages_in
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.header_fields import RequestHeader, request
from rmq_store.protocol.wire.pop_headers import (
    AckMessageRequestHeader,
    BatchAckMessageRequestHeader,
    NotificationRequestHeader,
    NotificationResponseHeader,
    PeekMessageRequestHeader,
    PopMessageRequestHeader,
    PopMessageResponseHeader,
)
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.server.broker_server import BrokerServer
from rmq_store.server.pop import receipts

PATIENCE_S = 60.0


def eventually(condition: Callable[[], object]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s, "it did not happen"
        time.sleep(0.005)


@pytest.fixture
def orders(server: BrokerServer) -> Store:
    """Two queues; message n of queue q has the body `qn`."""
    server.store.create_topic("Orders", 2)
    for number in range(6):
        server.store.send(Message("Orders", b"%d%d" % (number % 2, number // 2), queue_id=number % 2))
    return server.store


Call = Callable[..., "Future[RemotingCommand]"]


@pytest.fixture
def submit(server: BrokerServer, cluster: Cluster) -> Iterator[Call]:
    """Send a request, and get its answer later."""
    waiting: list[Future[RemotingCommand]] = []

    def submit(header: RequestHeader, body: bytes = b"") -> Future[RemotingCommand]:
        waiting.append(cluster.client.submit(server.address, request(header, body), 60_000))
        return waiting[-1]

    yield submit
    server.close()
    for one in waiting:
        one.result(PATIENCE_S)


def pop_header(
    queue_id: int = -1, *, order: bool = False, count: int = 32, poll_ms: int = 0, attempt_id: str | None = None
) -> RequestHeader:
    return PopMessageRequestHeader(
        consumer_group="cg", topic="Orders", queue_id=queue_id, max_msg_nums=count, invisible_time=300_000,
        poll_time=poll_ms, born_time=0, init_mode=0, exp_type="TAG", exp="*", order=order, attempt_id=attempt_id,
    )  # fmt: skip


def found_in(answer: RemotingCommand) -> list[MessageExt]:
    return messages_in(answer.body, "rmq-embedded")


def bodies(waiting: Future[RemotingCommand]) -> list[str]:
    return [one.body.decode() for one in found_in(waiting.result(PATIENCE_S))]


def ack(submit: Call, message: MessageExt) -> RemotingCommand:
    header = AckMessageRequestHeader(
        consumer_group="cg", topic="Orders", queue_id=message.queue_id, extra_info=message.properties[POP_CK],
        offset=message.queue_offset,
    )  # fmt: skip
    return submit(header).result(PATIENCE_S)


# -- one queue, and order ---------------------------------------------------------------------------------------------


def test_one_queue_is_received(submit: Call, orders: Store) -> None:
    answer = submit(pop_header(1)).result(PATIENCE_S)
    assert [one.body for one in found_in(answer)] == [b"10", b"11", b"12"]
    header = PopMessageResponseHeader.from_ext(answer.ext_fields)
    assert (header.rest_num, header.msg_offset_info) == (0, "0 1 0,1,2")


def test_a_request_in_order_waits_until_its_queue_is_free(server: BrokerServer, submit: Call, orders: Store) -> None:
    first = submit(pop_header(0, order=True, count=2)).result(PATIENCE_S)
    assert PopMessageResponseHeader.from_ext(first.ext_fields).rest_num == 0
    waits = submit(pop_header(0, order=True, poll_ms=50_000))
    eventually(lambda: server._held_pops._count == 1)
    one, other = found_in(first)
    assert ack(submit, other).code == ResponseCode.SUCCESS
    orders.send(Message("Orders", b"03", queue_id=0))
    assert bodies(submit(pop_header(0, order=True))) == [] and not waits.done()
    assert ack(submit, one).code == ResponseCode.SUCCESS
    assert bodies(waits) == ["02", "03"]


def test_a_repeated_request_in_order_gets_what_its_lost_answer_had(submit: Call, orders: Store) -> None:
    lost = submit(pop_header(order=True, count=2, attempt_id="a")).result(PATIENCE_S)
    submit(pop_header(order=True, count=2, attempt_id="b")).result(PATIENCE_S)
    assert bodies(submit(pop_header(order=True, attempt_id="c"))) == []
    again = submit(pop_header(order=True, count=2, attempt_id="a")).result(PATIENCE_S)
    assert [one.body for one in found_in(again)] == [one.body for one in found_in(lost)]
    assert [one.reconsume_times for one in found_in(again)] == [0, 0]
    codes = {ack(submit, message).code for message in found_in(lost)}
    assert codes == {ResponseCode.NO_MESSAGE}
    assert {ack(submit, message).code for message in found_in(again)} == {ResponseCode.SUCCESS}


# -- notifications ----------------------------------------------------------------------------------------------------


def notification(
    queue_id: int = -1, *, order: bool = False, poll_ms: int = 50_000, attempt_id: str | None = None
) -> RequestHeader:
    return NotificationRequestHeader(
        consumer_group="cg", topic="Orders", queue_id=queue_id, poll_time=poll_ms, born_time=0, order=order,
        attempt_id=attempt_id,
    )  # fmt: skip


def told(waiting: Future[RemotingCommand]) -> NotificationResponseHeader:
    answer = waiting.result(PATIENCE_S)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return NotificationResponseHeader.from_ext(answer.ext_fields)


def test_a_notification_comes_at_once_and_takes_nothing(submit: Call, orders: Store) -> None:
    for _ in range(2):
        assert told(submit(notification())).has_msg
    assert sorted(bodies(submit(pop_header()))) == ["00", "01", "02", "10", "11", "12"]
    assert told(submit(notification(poll_ms=0))) == NotificationResponseHeader(has_msg=False, polling_full=False)


@pytest.mark.parametrize("is_foreign", [False, True])
def test_all_notifications_that_wait_come_with_a_message(
    server: BrokerServer, submit: Call, orders: Store, is_foreign: bool
) -> None:
    submit(pop_header()).result(PATIENCE_S)
    waiting = [submit(notification()) for _ in range(3)]
    eventually(lambda: server._held_notifications._count == 3)
    if is_foreign:
        with Store.open(orders.path) as other:
            other.send(Message("Orders", b"x"))
    else:
        orders.send(Message("Orders", b"x"))
    assert all(told(one).has_msg for one in waiting)
    assert bodies(submit(pop_header())) == ["x"]


def test_a_notification_of_a_locked_queue_comes_when_it_is_free(
    server: BrokerServer, submit: Call, orders: Store
) -> None:
    (one,) = found_in(submit(pop_header(0, order=True, count=1)).result(PATIENCE_S))
    waits = submit(notification(0, order=True))
    eventually(lambda: server._held_notifications._count == 1)
    orders.send(Message("Orders", b"x", queue_id=0))
    assert told(submit(notification(0))).has_msg and not waits.done()
    assert ack(submit, one).code == ResponseCode.SUCCESS
    assert told(waits).has_msg


def test_a_notification_knows_what_a_repeated_request_gets(submit: Call, orders: Store) -> None:
    lost = found_in(submit(pop_header(0, order=True, count=2, attempt_id="a")).result(PATIENCE_S))
    for attempt_id, has_msg in (("a", True), ("b", False), (None, False), ("", False)):
        assert told(submit(notification(0, order=True, poll_ms=0, attempt_id=attempt_id))).has_msg is has_msg
    for message in lost:
        ack(submit, message)
    submit(pop_header(0, order=True)).result(PATIENCE_S)
    assert not told(submit(notification(0, order=True, poll_ms=0, attempt_id="a"))).has_msg


def test_a_notification_ends_with_its_time_with_its_server_and_when_too_many_wait(
    server: BrokerServer, submit: Call, orders: Store
) -> None:
    submit(pop_header()).result(PATIENCE_S)
    assert told(submit(notification(poll_ms=50))) == NotificationResponseHeader(has_msg=False, polling_full=False)
    waits = submit(notification())
    eventually(lambda: server._held_notifications._count == 1)
    server._held_notifications._held_max = 1
    assert told(submit(notification())) == NotificationResponseHeader(has_msg=False, polling_full=True)
    closing = threading.Thread(target=server.close, daemon=True)
    closing.start()
    assert not told(waits).has_msg
    closing.join(PATIENCE_S)


@pytest.mark.parametrize(("field", "code"), [({"queue_id": 2}, 29), ({"topic": "Missing"}, 17)])
def test_a_place_that_does_not_exist_is_refused(
    submit: Call, orders: Store, field: dict[str, object], code: int
) -> None:
    fields = {"consumer_group": "cg", "topic": "Orders", "queue_id": 0} | field
    asked = (
        NotificationRequestHeader(**fields, poll_time=0, born_time=0),  # type: ignore[arg-type]
        PeekMessageRequestHeader(**fields, max_msg_nums=1),  # type: ignore[arg-type]
    )
    assert [submit(one).result(PATIENCE_S).code for one in asked] == [code, code]


# -- peeks ------------------------------------------------------------------------------------------------------------


def peek(submit: Call, queue_id: int = -1, count: int = 32) -> RemotingCommand:
    header = PeekMessageRequestHeader(consumer_group="cg", topic="Orders", queue_id=queue_id, max_msg_nums=count)
    return submit(header).result(PATIENCE_S)


def test_a_peek_shows_messages_and_hides_none(submit: Call, orders: Store) -> None:
    for _ in range(2):
        answer = peek(submit, 1, 2)
        assert [one.body for one in found_in(answer)] == [b"10", b"11"]
        assert PopMessageResponseHeader.from_ext(answer.ext_fields).rest_num == 3
    assert POP_CK not in found_in(answer)[0].properties
    assert len(bodies(submit(pop_header()))) == 6
    assert (peek(submit).code, peek(submit).remark) == (ResponseCode.PULL_NOT_FOUND, "NO_MESSAGE_IN_QUEUE")
    assert peek(submit, count=33).code == ResponseCode.INVALID_PARAMETER


# -- acknowledgements -------------------------------------------------------------------------------------------------


def bits(*numbers: int) -> str:
    value = sum(1 << number for number in numbers)
    return base64.b64encode(value.to_bytes(value.bit_length() // 8 + 1, "little")).decode()


def ack_of(message: MessageExt, **fields: object) -> BatchAck:
    offset, pop_time, invisible, revive, *_ = message.properties[POP_CK].split()
    known = BatchAck(
        consumer_group="cg", topic="Orders", queue_id=message.queue_id, start_offset=int(offset), bit_set=bits(0),
        revive_queue_id=int(revive), pop_time=int(pop_time), invisible_time=int(invisible),
    )  # fmt: skip
    return replace(known, **fields)  # type: ignore[arg-type]


def ack_all(submit: Call, *acks: BatchAck) -> RemotingCommand:
    body = BatchAckMessageRequestBody(broker_name="rmq-embedded", acks=acks).encode()
    return submit(BatchAckMessageRequestHeader(), body).result(PATIENCE_S)


def left(store: Store) -> list[tuple[int, int]]:
    """The messages in flight."""
    by_queue = read_state(store.path / "pyrmq" / "pop" / "cg" / "Orders").by_queue()
    return sorted(one.key for known in by_queue.values() for one in known)


def test_several_messages_are_acknowledged_and_void_ones_passed_over(submit: Call, orders: Store) -> None:
    taken = {(one.queue_id, one.queue_offset): one for one in found_in(submit(pop_header()).result(PATIENCE_S))}
    void = ack_of(taken[0, 1], pop_time=1)
    assert ack_all(submit, ack_of(taken[0, 0], bit_set=bits(0, 2)), void, ack_of(taken[1, 1])).code == 0
    assert left(orders) == [(0, 1), (1, 0), (1, 2)]
    assert ack_all(submit, ack_of(taken[0, 0])).code == ResponseCode.SUCCESS
    assert left(orders) == [(0, 1), (1, 0), (1, 2)]


def test_a_set_of_bits_without_bits_or_sense_acknowledges_nothing(
    submit: Call, orders: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = found_in(submit(pop_header(0)).result(PATIENCE_S))[0]
    assert ack_all(submit, ack_of(one, bit_set="")).code == ResponseCode.SUCCESS
    assert ack_all(submit, ack_of(one), ack_of(one, bit_set="no base64!")).code == ResponseCode.INVALID_PARAMETER
    monkeypatch.setattr(receipts, "ACKS_MAX", 10)
    assert ack_all(submit, ack_of(one), ack_of(one, bit_set=bits(10))).code == ResponseCode.INVALID_PARAMETER
    assert ack_all(submit, *[ack_of(one)] * 11).code == ResponseCode.INVALID_PARAMETER
    assert left(orders) == [(0, 0), (0, 1), (0, 2)]


def test_names_of_a_batch_are_short_or_long_and_never_both(submit: Call, orders: Store) -> None:
    one = found_in(submit(pop_header(0)).result(PATIENCE_S))[0]
    value = ack_of(one).to_json()
    assert value.keys() == {"c", "t", "r", "so", "q", "rq", "pt", "it", "b"}
    long = {BatchAck.other_names[name]: value[short] for name, short in BatchAck.wire_names.items()}
    assert BatchAck._from_value(long) == ack_of(one)
    body = BatchAckMessageRequestBody(broker_name="rmq-embedded", acks=(ack_of(one),)).encode()
    both = body.replace(b'"c":"cg"', b'"c":"cg","consumerGroup":"other"')
    answer = submit(BatchAckMessageRequestHeader(), both).result(PATIENCE_S)
    assert answer.code == ResponseCode.SYSTEM_ERROR and "has both 'c' and 'consumerGroup'" in (answer.remark or "")
