"""Groups that consume in order over gRPC: locked queues, repeated attempts, and what sets a queue free."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from helpers.grpc_stub import Stub, Talk
from rmq_store import Message, Store
from rmq_store.broker.filter.subscription import Subscription
from rmq_store.broker.metadata.groups import SubscriptionGroup
from rmq_store.server.broker_server import BrokerServer
from rmq_store.server.grpc_definitions.enums import Code
from rmq_store.server.grpc_definitions.retry_policy import wait_ms
from rmq_store.server.grpc_v2 import held_receives
from rmq_store.server.grpc_v2.receiving import Receiving
from rmq_store.server.pop.held_pops import Share
from rmq_store.server.pop.renewals import Renewals

PATIENCE_S = 60.0
LONG = {"seconds": 20}


@pytest.fixture
def orders(server: BrokerServer) -> Store:
    """A group that consumes in order, from the first message of two queues; message n of queue q has the body `qn`."""
    store = server.store
    store.create_topic("Orders", 2)
    store.create_group(SubscriptionGroup("cg", consume_message_orderly=True, retry_max_times=2))
    store.commit_offsets("cg", {("Orders", 0): 0, ("Orders", 1): 0})
    for number in range(6):
        store.send(Message("Orders", b"%d%d" % (number % 2, number // 2), queue_id=number % 2))
    return store


def receive(stub: Stub, batch_size: int = 3, **fields: Any) -> list[Any]:
    code, found = stub.receive("cg", "Orders", batch_size=batch_size, **fields)
    assert code == (Code.OK if found else Code.MESSAGE_NOT_FOUND)
    return found


def bodies(found: list[Any]) -> list[str]:
    return [one.body.decode() for one in found]


def call(stub: Stub, method: str, message: Any, **fields: Any) -> Any:
    handle = message.system_properties.receipt_handle
    answer = stub.call(
        method, group={"name": "cg"}, topic={"name": "Orders"}, **(fields or {"receipt_handle": handle})
    )  # fmt: skip
    return answer.status.code


def ack(stub: Stub, message: Any) -> Any:
    return call(stub, "AckMessage", message, entries=[{"receipt_handle": message.system_properties.receipt_handle}])


def hide(stub: Stub, message: Any, ms: int) -> Any:
    handle, duration = message.system_properties.receipt_handle, {"seconds": ms // 1000, "nanos": ms % 1000 * 10**6}
    return call(stub, "ChangeInvisibleDuration", message, receipt_handle=handle, invisible_duration=duration)


class Waiting:
    """A receive that waits in a thread of its own until it is woken up; `held` says that the server holds it."""

    def __init__(self, stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
        self.held = threading.Event()
        self.found: list[Any] = []
        original = held_receives.HeldReceives.wait

        def wait(holds: Any, key: Any, until_s: float) -> Any:
            self.held.set()
            return original(holds, key, until_s + 2 * PATIENCE_S)  # only a wake-up ends it

        monkeypatch.setattr(held_receives.HeldReceives, "wait", wait)
        self._thread = threading.Thread(
            target=lambda: self.found.extend(receive(stub, timeout_s=PATIENCE_S / 2, long_polling_timeout=LONG))
        )
        self._thread.start()
        assert self.held.wait(PATIENCE_S)

    def bodies(self) -> list[str]:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        return bodies(self.found)


def test_a_queue_is_locked_until_all_its_messages_are_acknowledged(stub: Stub, orders: Store) -> None:
    first, other = receive(stub, 2), receive(stub, 2)
    assert sorted([bodies(first), bodies(other)]) == [["00", "01"], ["10", "11"]]
    assert receive(stub) == []
    assert ack(stub, first[0]) == Code.OK and receive(stub) == []
    assert ack(stub, first[1]) == Code.OK
    assert bodies(receive(stub)) == [f"{bodies(first)[0][0]}2"]


def test_messages_of_a_message_group_come_one_receive_after_the_other(stub: Stub, orders: Store) -> None:
    for found in (receive(stub), receive(stub)):
        for one in found:
            ack(stub, one)
    for number in range(6):
        assert stub.send("Orders", b"%d" % number, message_group="g").status.code == Code.OK
    got: list[str] = []
    while len(got) < 6:
        found = receive(stub, 2, long_polling_timeout=LONG)
        assert receive(stub) == []
        got += bodies(found)
        for one in found:
            assert one.system_properties.message_group == "g" and ack(stub, one) == Code.OK
    assert got == list("012345")


def test_a_receive_that_waits_comes_with_the_acknowledgement(
    stub: Stub, orders: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_receives, "_INVISIBLE_LOOK_S", PATIENCE_S)
    first, _ = receive(stub, 2), receive(stub, 2)
    ack(stub, first[0])
    waiting = Waiting(stub, monkeypatch)
    ack(stub, first[1])
    assert waiting.bodies() == [f"{bodies(first)[0][0]}2"]


def test_a_receive_that_waits_comes_when_a_message_is_a_dead_letter(
    stub: Stub, orders: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_receives, "_INVISIBLE_LOOK_S", PATIENCE_S)
    (first,), _ = receive(stub, 1), receive(stub)
    waiting = Waiting(stub, monkeypatch)
    assert call(stub, "ForwardMessageToDeadLetterQueue", first) == Code.OK
    queue = bodies([first])[0][0]
    assert waiting.bodies() == [f"{queue}1", f"{queue}2"]
    [dead] = [row for batch in orders.read("%DLQ%cg", 0, 0, 1) for row in batch.to_pylist()]
    assert dead["body"] == first.body


def test_a_message_that_is_hidden_anew_locks_its_queue_for_that_time(stub: Stub, orders: Store) -> None:
    first, _ = receive(stub, 2), receive(stub, 2)
    assert hide(stub, first[0], 3_600_000) == Code.OK and ack(stub, first[1]) == Code.OK
    assert receive(stub) == []


def test_a_message_that_fails_comes_before_all_others_of_its_queue(stub: Stub, orders: Store) -> None:
    first, _ = receive(stub, 2), receive(stub)
    queue = bodies(first)[0][0]
    assert ack(stub, first[1]) == Code.OK and hide(stub, first[0], 1) == Code.OK
    found = receive(stub, long_polling_timeout=LONG)
    assert bodies(found) == [f"{queue}0", f"{queue}2"]
    assert [one.system_properties.delivery_attempt for one in found] == [2, 1]


def test_a_repeated_attempt_gets_the_same_messages_and_voids_the_first_handles(stub: Stub, orders: Store) -> None:
    lost = receive(stub, 2, attempt_id="a")
    receive(stub, 2, attempt_id="b")
    assert receive(stub, 2, attempt_id="c") == []
    again = receive(stub, 2, attempt_id="a")
    assert bodies(again) == bodies(lost)
    assert [one.system_properties.delivery_attempt for one in again] == [1, 1]
    assert ack(stub, lost[0]) == Code.INVALID_RECEIPT_HANDLE and ack(stub, again[0]) == Code.OK


def test_what_was_not_sent_is_shown_again_unless_a_repetition_has_got_it(server: BrokerServer, orders: Store) -> None:
    broker, everything = server._served.broker, Subscription.of("Orders", "*")
    fields = {"queue_id": 0, "in_order": True, "attempt_id": "a"}
    unsent = broker.receive_message("cg", everything, 2, 60_000, **fields)
    orders.pop.ack("cg", "Orders", unsent[0].receipt_handle)
    renewals = Renewals(server._served, lambda _: True, wait_ms)
    receiving, caller = SimpleNamespace(_served=server._served, _renewals=renewals), SimpleNamespace(client_id="c1")
    Receiving._show_again(receiving, Share("cg", "Orders"), caller, unsent)  # type: ignore[arg-type]
    found = broker.receive_message("cg", everything, 2, 60_000, **fields)
    assert [one.message.body for one in found] == [b"01", b"02"]


def test_the_settings_of_the_group_count_not_those_of_its_client(stub: Stub, orders: Store) -> None:
    talk = Talk(stub)
    talk.say(subscription={"group": {"name": "cg"}, "fifo": False})
    assert talk.hear().settings.subscription.fifo
    talk.say(subscription={"group": {"name": "other"}, "fifo": True})
    assert not talk.hear().settings.subscription.fifo
    talk.close()
    orders.commit_offsets("other", {("Orders", 0): 0, ("Orders", 1): 0})
    both = [stub.receive("other", "Orders", batch_size=2)[1] for _ in range(3)]
    assert [len(found) for found in both] == [2, 2, 2]


def test_a_group_in_order_is_told_each_queue(stub: Stub, orders: Store) -> None:
    def assigned(group: str) -> list[int]:
        answer = stub.call("QueryAssignment", topic={"name": "Orders"}, group={"name": group})
        assert answer.status.code == Code.OK
        return [one.message_queue.id for one in answer.assignments]

    assert assigned("cg") == [0, 1] and assigned("other") == [-1]
