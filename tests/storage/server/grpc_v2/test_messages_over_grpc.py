"""Sends, receives, acks and dead letters over gRPC, and what the store has of them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from helpers.grpc_stub import Stub
from rmq_store import Message, Store, StoreConfig
from rmq_store.broker.metadata.groups import SubscriptionGroup
from rmq_store.server.broker_server import BrokerServer
from rmq_store.server.grpc_definitions.enums import Code, Encoding, MessageType
from rmq_store.server.grpc_v2 import held_receives, messages, receiving
from rmq_store.server.pop import renewals
from rmq_store.testing.broker import RmqTestBroker

PATIENCE_S = 60.0
LONG = {"seconds": 20}


def eventually(condition: Callable[[], object]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s, "it did not happen"
        time.sleep(0.005)


def ack(stub: Stub, group: str, *handles: str) -> Any:
    entries = [{"receipt_handle": handle} for handle in handles]
    return stub.call("AckMessage", group={"name": group}, topic={"name": "Orders"}, entries=entries)


def hide(stub: Stub, group: str, handle: str, ms: int) -> Any:
    duration = {"seconds": ms // 1000, "nanos": ms % 1000 * 1_000_000}
    return stub.call(
        "ChangeInvisibleDuration", group={"name": group}, topic={"name": "Orders"}, receipt_handle=handle,
        invisible_duration=duration,
    )  # fmt: skip


def test_what_is_sent_lies_in_the_store_with_its_host(server: BrokerServer, stub: Stub) -> None:
    server.store.create_topic("Orders", 1)
    born = {"seconds": 1_700_000_000, "nanos": 123_000_000}
    answer = stub.send("Orders", b"paid", tag="T", keys=["k1", "k2"], born_timestamp=born, trace_context="trace")
    assert answer.status.code == Code.OK
    [entry] = answer.entries
    assert (entry.status.code, entry.message_id, entry.offset) == (Code.OK, f"01{b'paid'.hex()}", 0)
    [stored] = [row for batch in server.store.read("Orders", 0, 0, 1) for row in batch.to_pylist()]
    assert (stored["body"], stored["msgId"]) == (b"paid", entry.message_id)
    expected = {"TAGS": "T", "KEYS": "k1 k2", "UNIQ_KEY": entry.message_id, "TRACE_CONTEXT": "trace"}
    assert dict(stored["properties"]).items() >= expected.items()
    assert stored["bornHost"].startswith("127.0.0.1:") and stored["storeHost"] == server.address
    assert server.store.message_at(stored["commitLogOffset"]).born_timestamp_ms == 1_700_000_000_123


def test_a_request_of_many_messages_is_one_append(server: BrokerServer, stub: Stub) -> None:
    server.store.create_topic("Orders", 1)
    answer = stub.send("Orders", *(b"%d" % number for number in range(50)))
    assert [entry.offset for entry in answer.entries] == list(range(50))
    torn = stub.call("SendMessage", messages=[
        {"topic": {"name": "Orders"}, "body": b"x", "system_properties": {"message_id": "1"}},
        {"topic": {"name": "Other"}, "body": b"x", "system_properties": {"message_id": "2"}},
    ])  # fmt: skip
    assert torn.status.code == Code.MESSAGE_CORRUPTED
    assert server.store.queue_range("Orders", 0).max_offset == 50 and server.store.find_topic("Other") is None


def test_the_messages_of_a_request_lie_in_one_queue_and_requests_take_turns(server: BrokerServer, stub: Stub) -> None:
    for turn in range(3):  # the first one makes the topic
        answer = stub.send("Orders", *(b"%d %d" % (turn, number) for number in range(5)))
        assert answer.status.code == Code.OK
        assert [entry.offset for entry in answer.entries] == list(range(5))
    ends = sorted(high for _, high in server.store.queue_ranges("Orders").values() if high)
    assert ends == [5, 5, 5]


def test_a_request_of_many_messages_keeps_each_in_the_queue_of_its_group(server: BrokerServer, stub: Stub) -> None:
    server.store.create_topic("Orders", 8)
    for group in ("g1", "g2"):
        for count in (1, 3, 2):
            stub.send("Orders", *(group.encode() for _ in range(count)), message_group=group)
    ends = sorted(high for _, high in server.store.queue_ranges("Orders").values() if high)
    assert ends == [6, 6]


def test_messages_of_a_group_lie_in_one_queue_in_their_order(server: BrokerServer, stub: Stub) -> None:
    server.store.create_topic("Orders", 4)
    for number in range(12):
        assert stub.send("Orders", b"%d" % number, message_group=f"g{number % 3}").status.code == Code.OK
    of_group: dict[str, list[tuple[int, bytes]]] = {}
    for queue_id in range(4):
        for batch in server.store.read("Orders", queue_id, 0, server.store.queue_range("Orders", queue_id).max_offset):
            for row in batch.to_pylist():
                of_group.setdefault(dict(row["properties"])["__SHARDINGKEY"], []).append((queue_id, row["body"]))
    assert sorted(of_group) == ["g0", "g1", "g2"]
    for number, group in enumerate(sorted(of_group)):
        assert len({queue_id for queue_id, _ in of_group[group]}) == 1
        assert [body for _, body in of_group[group]] == [b"%d" % one for one in range(number, 12, 3)]


def test_a_delayed_message_comes_when_it_is_due(server: BrokerServer, stub: Stub) -> None:
    stub.receive("cg", "Orders")
    server.store.create_topic("Orders", 1, exist_ok=True)
    due_ms = server.store.clock() + 500
    sent = stub.send("Orders", b"x", delivery_timestamp={"seconds": due_ms // 1000, "nanos": due_ms % 1000 * 10**6})
    assert sent.status.code == Code.OK
    code, [one] = stub.receive("cg", "Orders", long_polling_timeout=LONG)
    assert code == Code.OK and one.system_properties.message_type == MessageType.DELAY
    assert server.store.clock() >= due_ms


def recall(stub: Stub, handle: str, topic: str = "Orders") -> Any:
    return stub.call("RecallMessage", topic={"name": topic}, recall_handle=handle)


def test_a_delayed_message_is_taken_back_by_its_handle(server: BrokerServer, stub: Stub) -> None:
    server.store.create_topic("Orders", 1)
    later = {"seconds": server.store.clock() // 1000 + 3600}
    sent = stub.send("Orders", b"x", b"y", delivery_timestamp=later)
    assert not stub.send("Orders", b"now").entries[0].recall_handle
    one, other = (entry.recall_handle for entry in sent.entries)
    assert recall(stub, "h").status.code == Code.BAD_REQUEST
    assert recall(stub, one, "rmq_sys_pyrmq_timer").status.code == Code.ILLEGAL_TOPIC
    assert recall(stub, one, "Missing").status.code == Code.TOPIC_NOT_FOUND
    assert [entry.messages for entry in server.store.delay_backlogs()] == [2]
    answer = recall(stub, one)
    assert (answer.status.code, answer.message_id) == (Code.OK, f"01{b'x'.hex()}")
    assert [entry.messages for entry in server.store.delay_backlogs()] == [1]
    server.store.create_topic("Other", 1)
    assert recall(stub, other, "Other").status.code == Code.PRECONDITION_FAILED


@pytest.mark.parametrize(
    ("system", "code"),
    [
        ({"message_id": " "}, Code.ILLEGAL_MESSAGE_ID),
        ({"message_id": "a\x02b"}, Code.ILLEGAL_MESSAGE_ID),
        ({"tag": "a|b"}, Code.ILLEGAL_MESSAGE_TAG),
        ({"tag": "a\x01b"}, Code.ILLEGAL_MESSAGE_TAG),
        ({"keys": ["a b"]}, Code.ILLEGAL_MESSAGE_KEY),
        ({"keys": ["a\nb"]}, Code.ILLEGAL_MESSAGE_KEY),
        ({"trace_context": "a\x02UNIQ_KEY\x01b"}, Code.BAD_REQUEST),
        ({"message_group": "g" * 64}, Code.ILLEGAL_MESSAGE_GROUP),
        ({"message_type": MessageType.FIFO}, Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        ({"message_type": MessageType.DELAY}, Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        ({"message_type": MessageType.NORMAL, "message_group": "g"}, Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        ({"message_type": MessageType.PRIORITY}, Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        ({"delivery_timestamp": {"seconds": 1 << 33}}, Code.ILLEGAL_DELIVERY_TIME),
        ({"keys": ["k" * 1000] * 17}, Code.MESSAGE_PROPERTIES_TOO_LARGE),
        # Lengths first: what is too long is not looked at in the event loop, whatever else is wrong with it.
        ({"message_id": "\x02" * 40_000}, Code.MESSAGE_PROPERTIES_TOO_LARGE),
        ({"tag": "\x02" * 40_000}, Code.MESSAGE_PROPERTIES_TOO_LARGE),
        ({"keys": [""] * 40_000}, Code.MESSAGE_PROPERTIES_TOO_LARGE),
        ({"trace_context": "t" * 40_000}, Code.MESSAGE_PROPERTIES_TOO_LARGE),
        ({"message_group": "g" * 40_000}, Code.MESSAGE_PROPERTIES_TOO_LARGE),
    ],
)
def test_a_message_that_breaks_a_rule_is_refused(
    server: BrokerServer, stub: Stub, system: dict[str, object], code: Code
) -> None:
    server.store.create_topic("Orders", 1)
    answer = stub.send("Orders", b"x", **system)
    assert answer.status.code == code, answer.status
    assert server.store.log_range() == (0, 0)


@pytest.mark.parametrize(
    ("properties", "code"),
    [
        ({"UNIQ_KEY": "x"}, Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        ({"PGROUP": "x"}, Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        ({"a": "b\x02UNIQ_KEY\x01c"}, Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        ({"a\x01b": "c"}, Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        ({str(number): "" for number in range(129)}, Code.MESSAGE_PROPERTIES_TOO_LARGE),
        ({"a": "b" * 20_000}, Code.MESSAGE_PROPERTIES_TOO_LARGE),
        ({"a": "\x02" * 40_000}, Code.MESSAGE_PROPERTIES_TOO_LARGE),
    ],
)
def test_a_property_that_is_not_the_users_is_refused(
    server: BrokerServer, stub: Stub, properties: dict[str, str], code: Code
) -> None:
    server.store.create_topic("Orders", 1)
    message = {"topic": {"name": "Orders"}, "body": b"x", "user_properties": properties}
    answer = stub.call("SendMessage", messages=[message | {"system_properties": {"message_id": "1"}}])
    assert answer.status.code == code
    assert server.store.log_range() == (0, 0)


@pytest.mark.parametrize(
    "name", ["TTL", "MSG_TYPE", "TRACE_ON", "ARRIVE_TIME", "EXTEND_UNIQ_INFO", "TRAN_PREPARED_QUEUE_OFFSET"]
)
def test_properties_of_clients_and_brokers_are_not_those_of_users(server: BrokerServer, stub: Stub, name: str) -> None:
    """MessageConst#STRING_HASH_SET: a request of producer.request over remoting has a TTL, for example."""
    server.store.create_topic("Orders", 1)
    stub.receive("cg", "Orders")  # the group begins at the end
    server.store.send(Message("Orders", b"a", properties={name: "1", "own": "2"}))
    [one] = stub.receive("cg", "Orders")[1]
    assert dict(one.user_properties) == {"own": "2"}
    message = {"topic": {"name": "Orders"}, "body": b"x", "user_properties": {name: "1"}}
    answer = stub.call("SendMessage", messages=[message | {"system_properties": {"message_id": "1"}}])
    assert answer.status.code == Code.ILLEGAL_MESSAGE_PROPERTY_KEY


def test_a_body_of_the_wrong_size_is_refused(root: Path, small: StoreConfig) -> None:
    with BrokerServer(root, config=replace(small, max_message_size=1000), create=True, grpc_port=0) as server:
        stub = Stub(str(server.grpc_address))
        assert stub.send("Orders", bytes(1001)).status.code == Code.MESSAGE_BODY_TOO_LARGE
        assert stub.send("Orders", b"").status.code == Code.MESSAGE_BODY_EMPTY
        assert stub.send("Orders", bytes(1000)).status.code == Code.OK
        together = stub.send("Orders", bytes(500), bytes(499))
        assert together.status.code == Code.MESSAGE_BODY_TOO_LARGE and not together.entries
        assert stub.send("Orders", b"a" * 20, b"b" * 20).status.code == Code.OK
        with pytest.raises(grpc.RpcError) as caught:
            stub.send("Orders", bytes(17 << 20))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        stub.close()


def test_only_the_broker_sends_to_dead_letters_and_retries(server: BrokerServer, stub: Stub) -> None:
    for topic in ("%DLQ%cg", "%RETRY%cg"):
        assert stub.send(topic, b"x").status.code == Code.ILLEGAL_TOPIC
    assert stub.call("SendMessage").status.code == Code.MESSAGE_CORRUPTED


def test_a_compressed_body_comes_back_as_it_was(server: BrokerServer, stub: Stub) -> None:
    import zlib

    stub.receive("cg", "Orders")
    assert stub.send("Orders", zlib.compress(b"x" * 1000), body_encoding=Encoding.GZIP).status.code == Code.OK
    _, [one] = stub.receive("cg", "Orders", long_polling_timeout=LONG)
    assert (one.body, one.system_properties.body_encoding) == (b"x" * 1000, Encoding.IDENTITY)


def test_a_message_is_received_with_all_that_was_sent(server: BrokerServer, stub: Stub) -> None:
    stub.receive("cg", "Orders")
    message = {"topic": {"name": "Orders"}, "body": b"x", "user_properties": {"a": "b"}}
    system = {"message_id": "01AB", "tag": "T", "keys": ["k1", "k2"], "message_group": "g", "trace_context": "t"}
    assert stub.call("SendMessage", messages=[message | {"system_properties": system}]).status.code == Code.OK
    _, [one] = stub.receive("cg", "Orders", long_polling_timeout=LONG)
    got = one.system_properties
    assert (one.topic.name, one.body, dict(one.user_properties)) == ("Orders", b"x", {"a": "b"})
    assert (got.message_id, got.tag, list(got.keys), got.message_group) == ("01AB", "T", ["k1", "k2"], "g")
    assert (got.message_type, got.trace_context, got.delivery_attempt) == (MessageType.FIFO, "t", 1)
    assert (got.queue_offset, got.invisible_duration.seconds) == (0, 60)
    assert got.body_digest.checksum == "9DD4E461268C8034F5C8564E155C67A6"
    assert got.store_host == server.address and got.receipt_handle


def test_a_receive_waits_for_a_message_of_any_process(server: BrokerServer, stub: Stub) -> None:
    stub.receive("cg", "Orders")
    got: list[bytes] = []

    def receive() -> None:
        got.extend(one.body for one in stub.receive("cg", "Orders", long_polling_timeout=LONG)[1])

    with Store.open(server.store.path) as other:  # a second process would do the same
        for send in (
            lambda: stub.send("Orders", b"grpc"),
            lambda: server.store.send(Message("Orders", b"store")),
            lambda: other.send(Message("Orders", b"process")),
        ):
            thread = threading.Thread(target=receive)
            thread.start()
            send()
            thread.join(PATIENCE_S)
    assert got == [b"grpc", b"store", b"process"]


def test_a_receive_ends_with_its_time(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    started_s = time.monotonic()
    code, found = stub.receive("cg", "Orders", long_polling_timeout={"nanos": 300_000_000})
    assert (code, found) == (Code.MESSAGE_NOT_FOUND, []) and time.monotonic() - started_s >= 0.3
    # The answer comes before the client's own deadline, with time for a busy machine.
    monkeypatch.setattr(receiving, "_MARGIN_S", 19.5)
    [last] = stub.receiving("cg", "Orders", timeout_s=20.0, long_polling_timeout=LONG)
    assert last.status.code == Code.MESSAGE_NOT_FOUND


def test_tags_and_conditions_select(server: BrokerServer, stub: Stub) -> None:
    for group in ("tags", "sql"):
        stub.receive(group, "Orders")
    server.store.create_topic("Orders", 1, exist_ok=True)
    for number in range(6):
        tags = "A" if number % 2 else "B"
        server.store.send(Message("Orders", b"%d" % number, tags=tags, properties={"n": str(number)}))
    by_tag = stub.receive("tags", "Orders", filter_expression={"type": 1, "expression": "A || C"})[1]
    assert sorted(one.body for one in by_tag) == [b"1", b"3", b"5"]
    by_sql = stub.receive("sql", "Orders", filter_expression={"type": 2, "expression": "n > 3"})[1]
    assert sorted(one.body for one in by_sql) == [b"4", b"5"]
    wrong = stub.receive("sql", "Orders", filter_expression={"type": 2, "expression": "n >"})
    assert wrong[0] == Code.ILLEGAL_FILTER_EXPRESSION


def test_expressions_have_a_limit_and_are_read_beside_the_event_loop(
    stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert stub.receive("cg", "Orders", filter_expression={"expression": "a||" * 5461})[0] == Code.MESSAGE_NOT_FOUND
    answer = stub.receive("cg", "Orders", filter_expression={"expression": "a||" * 5462})
    assert answer[0] == Code.ILLEGAL_FILTER_EXPRESSION
    threads: list[str] = []
    read = receiving._subscription

    def seen(topic: str, expression: object) -> object:
        threads.append(threading.current_thread().name)
        return read(topic, expression)

    monkeypatch.setattr(receiving, "_subscription", seen)
    stub.receive("cg", "Orders")
    assert threads and "loop" not in threads[0]


def test_an_ack_ends_a_message_and_its_handle(server: BrokerServer, stub: Stub) -> None:
    stub.receive("cg", "Orders")
    stub.send("Orders", b"a", b"b")
    found = stub.receive("cg", "Orders", long_polling_timeout=LONG)[1]
    handles = [one.system_properties.receipt_handle for one in found]
    assert ack(stub, "cg", *handles).status.code == Code.OK
    again = ack(stub, "cg", handles[0])
    assert (again.status.code, again.entries[0].status.code) == (Code.INVALID_RECEIPT_HANDLE,) * 2
    assert ack(stub, "cg", "no handle").status.code == Code.INVALID_RECEIPT_HANDLE
    assert ack(stub, "other", handles[0]).status.code == Code.INVALID_RECEIPT_HANDLE
    assert ack(stub, "cg").status.code == Code.BAD_REQUEST
    stub.send("Orders", b"c")
    [third] = stub.receive("cg", "Orders", long_polling_timeout=LONG)[1]
    mixed = ack(stub, "cg", third.system_properties.receipt_handle, handles[1])
    assert mixed.status.code == Code.MULTIPLE_RESULTS
    assert [one.status.code for one in mixed.entries] == [Code.OK, Code.INVALID_RECEIPT_HANDLE]


def test_a_message_that_is_hidden_for_less_comes_again(stub: Stub) -> None:
    stub.receive("cg", "Orders")
    stub.send("Orders", b"a")
    [one] = stub.receive("cg", "Orders", long_polling_timeout=LONG)[1]
    changed = hide(stub, "cg", one.system_properties.receipt_handle, 1)
    assert changed.status.code == Code.OK
    # Nothing is stored meanwhile: the receive that waits sees that a time is over.
    [again] = stub.receive("cg", "Orders", long_polling_timeout=LONG)[1]
    assert (again.body, again.system_properties.delivery_attempt) == (b"a", 2)
    assert ack(stub, "cg", one.system_properties.receipt_handle).status.code == Code.INVALID_RECEIPT_HANDLE
    assert hide(stub, "cg", again.system_properties.receipt_handle, 0).status.code == Code.ILLEGAL_INVISIBLE_TIME


@pytest.mark.parametrize("seconds", [0, 9, 12 * 3600 + 1])
def test_an_invisible_time_out_of_bounds_is_refused(stub: Stub, seconds: int) -> None:
    code, _ = stub.receive("cg", "Orders", invisible_duration={"seconds": seconds})
    assert code == Code.ILLEGAL_INVISIBLE_TIME


def test_what_a_push_consumer_works_on_is_renewed_until_it_answers_or_leaves(
    server: BrokerServer, stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a margin as long as the first time each look renews."""
    monkeypatch.setattr(renewals, "_AHEAD_MS", renewals.FIRST_MS)
    pushed: dict[str, Any] = {"auto_renew": True, "invisible_duration": {}}
    stub.receive("cg", "Orders", **pushed)
    answers: tuple[Callable[[str], Any], ...] = (
        lambda handle: ack(stub, "cg", handle),
        lambda handle: hide(stub, "cg", handle, 3_600_000),
        lambda handle: stub.call(
            "ForwardMessageToDeadLetterQueue", group={"name": "cg"}, topic={"name": "Orders"}, receipt_handle=handle
        ),
    )
    held: dict[str, str] = {}
    change = server._served.broker.change_invisible_duration

    def seen(group: str, topic: str, handle: str, ms: int) -> str:
        held[handle] = change(group, topic, handle, ms)
        return held[handle]

    monkeypatch.setattr(server._served.broker, "change_invisible_duration", seen)
    for number, answer in enumerate(answers):
        stub.send("Orders", b"%d" % number)
        [one] = stub.receive("cg", "Orders", long_polling_timeout=LONG, **pushed)[1]
        assert one.system_properties.invisible_duration.seconds == 60
        handle = one.system_properties.receipt_handle
        eventually(lambda handle=handle: handle in held)  # type: ignore[misc]
        assert answer(handle).status.code == Code.OK
    stub.send("Orders", b"left")
    [one] = stub.receive("cg", "Orders", long_polling_timeout=LONG, **pushed)[1]
    eventually(lambda: one.system_properties.receipt_handle in held)
    stub.call("NotifyClientTermination", group={"name": "cg"})
    other = Stub(str(server.grpc_address), "c2")
    [again] = other.receive("cg", "Orders", long_polling_timeout=LONG)[1]
    other.close()
    assert (again.body, again.system_properties.delivery_attempt) == (b"left", 2)


def test_push_consumers_get_the_time_of_their_group_when_too_many_messages_are_renewed(
    server: BrokerServer, stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renewals, "RENEWED_MAX", 0)
    server.store.create_group(SubscriptionGroup("cg", consume_timeout_minute=7))
    stub.receive("cg", "Orders", auto_renew=True, invisible_duration={})
    stub.send("Orders", b"a")
    [one] = stub.receive("cg", "Orders", auto_renew=True, invisible_duration={}, long_polling_timeout=LONG)[1]
    assert one.system_properties.invisible_duration.seconds == 420


def test_a_push_consumer_keeps_its_message_when_a_virtual_clock_jumps(scratch: Path, small: StoreConfig) -> None:
    """No renewal fits between two times of such a clock. So the message is hidden for all that renewals would give."""
    with RmqTestBroker(scratch / "virtual", small, grpc_port=0) as broker:
        stub = Stub(str(broker.grpc_address))
        pushed: dict[str, Any] = {"auto_renew": True, "invisible_duration": {}}
        stub.receive("cg", "Orders", **pushed)
        stub.send("Orders", b"a")
        [one] = stub.receive("cg", "Orders", long_polling_timeout=LONG, **pushed)[1]
        broker.clock.advance(hours=2)
        assert stub.receive("cg", "Orders")[1] == []
        assert ack(stub, "cg", one.system_properties.receipt_handle).status.code == Code.OK
        stub.close()


def test_a_message_is_moved_to_the_dead_letters(server: BrokerServer, stub: Stub) -> None:
    stub.receive("cg", "Orders")
    stub.send("Orders", b"bad")
    [one] = stub.receive("cg", "Orders", long_polling_timeout=LONG)[1]
    asked = {"group": {"name": "cg"}, "topic": {"name": "Orders"}}
    handle = one.system_properties.receipt_handle
    of_remoting = handle.rpartition(" ")[0]  # without the place in the log
    method = "ForwardMessageToDeadLetterQueue"
    for forged in (f"{of_remoting} 99999", of_remoting):
        assert stub.call(method, receipt_handle=forged, **asked).status.code == Code.INVALID_RECEIPT_HANDLE
    assert server.store.find_topic("%DLQ%cg") is None
    assert stub.call(method, receipt_handle=handle, **asked).status.code == Code.OK
    [row] = [row for batch in server.store.read("%DLQ%cg", 0, 0, 1) for row in batch.to_pylist()]
    assert row["body"] == b"bad"
    assert ack(stub, "cg", handle).status.code == Code.INVALID_RECEIPT_HANDLE


def test_a_client_that_goes_while_it_waits_takes_no_message_with_it(
    server: BrokerServer, stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub.receive("cg", "Orders")
    held: list[object] = []
    original = held_receives.HeldReceives.wait

    def wait(self: Any, key: Any, until_s: float) -> Any:
        held.append(key)
        return original(self, key, until_s)

    monkeypatch.setattr(held_receives.HeldReceives, "wait", wait)
    calls = [stub.receiving("cg", "Orders", long_polling_timeout=LONG) for _ in range(5)]
    eventually(lambda: len(held) >= 5)
    for call in calls:
        call.cancel()
    stub.send("Orders", b"a")
    [one] = stub.receive("cg", "Orders", long_polling_timeout=LONG)[1]
    assert one.body == b"a"


def test_a_result_that_nobody_waits_for_is_visible_again(
    server: BrokerServer, stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub.receive("cg", "Orders")
    stub.send("Orders", b"a")
    taken, goes_on = threading.Event(), threading.Event()
    original = receiving.Receiving._take

    def slow(self: Any, *arguments: Any) -> Any:
        found = original(self, *arguments)
        taken.set()
        goes_on.wait(PATIENCE_S)
        return found

    cancelled = threading.Event()
    waits = receiving.Receiving._take_or_wait

    async def watched(self: Any, *arguments: Any) -> Any:
        try:
            return await waits(self, *arguments)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    monkeypatch.setattr(receiving.Receiving, "_take", slow)
    monkeypatch.setattr(receiving.Receiving, "_take_or_wait", watched)
    call = stub.receiving("cg", "Orders", long_polling_timeout=LONG)
    assert taken.wait(PATIENCE_S)
    call.cancel()
    monkeypatch.setattr(receiving.Receiving, "_take", original)
    assert cancelled.wait(PATIENCE_S)
    goes_on.set()
    [one] = stub.receive("cg", "Orders", long_polling_timeout=LONG)[1]
    assert (one.body, one.system_properties.delivery_attempt) == (b"a", 2)


def test_many_receives_of_a_group_get_each_message_once(server: BrokerServer, stub: Stub) -> None:
    stub.receive("cg", "Orders")
    got: list[bytes] = []

    def receive() -> None:
        fields = {"batch_size": 1, "long_polling_timeout": LONG}
        got.extend(one.body for one in stub.receive("cg", "Orders", **fields)[1])

    threads = [threading.Thread(target=receive) for _ in range(20)]
    for thread in threads:
        thread.start()
    stub.send("Orders", *(b"%d" % number for number in range(20)))
    for thread in threads:
        thread.join(PATIENCE_S)
    assert sorted(got) == sorted(b"%d" % number for number in range(20))


def test_too_many_receives_are_not_held(server: BrokerServer, stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_receives, "HELD_MAX", 0)
    assert stub.receive("cg", "Orders", long_polling_timeout=LONG)[0] == Code.TOO_MANY_REQUESTS


def test_an_error_inside_is_answered_without_its_text(
    server: BrokerServer, stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("a secret of the server")

    monkeypatch.setattr(messages, "type_of", broken)
    answer = stub.send("Orders", b"x")
    assert answer.status.code == Code.INTERNAL_SERVER_ERROR
    assert answer.status.message == "an error inside the broker; its log has it"
