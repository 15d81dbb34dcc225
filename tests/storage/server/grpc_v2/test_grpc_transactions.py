"""Transactions over gRPC: half messages, their ends, and questions to producers of either protocol."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import rocketmq
from rocketmq.grpc_protocol import TransactionResolution as Official

from helpers.grpc_stub import Stub, Talk
from rmq_store import Message, Store, StoreConfig
from rmq_store.client import LocalTransactionState, MessageExt, TransactionListener, TransactionProducer
from rmq_store.server import broker_server
from rmq_store.server.broker_server import BrokerServer
from rmq_store.server.grpc_definitions.definitions import new
from rmq_store.server.grpc_definitions.enums import (
    ClientType,
    Code,
    MessageType,
    TransactionResolution,
    TransactionSource,
)
from rmq_store.server.grpc_v2 import grpc_peer
from rmq_store.server.grpc_v2.grpc_peer import CommandStream
from rmq_store.server.pop.held_pops import HeldPops
from rmq_store.server.processors.held_pulls import HeldPulls

COMMIT, ROLLBACK = TransactionResolution.COMMIT, TransactionResolution.ROLLBACK
PATIENCE_S = 60.0
MINUTE_MS = 60_000


def eventually(condition: Callable[[], object]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s, "it did not happen"
        time.sleep(0.005)


@dataclass
class Served:
    """A served store whose clock the test turns. Its clients live until the test is over."""

    server: BrokerServer
    store: Store
    ends: ExitStack
    now_ms: int = field(default_factory=lambda: time.time_ns() // 1_000_000)

    @property
    def address(self) -> str:
        return str(self.server.grpc_address)

    def stub(self, client_id: str = "c1") -> Stub:
        stub = Stub(self.address, client_id)
        self.ends.callback(stub.close)
        return stub

    def talk(self, stub: Stub, *topics: str) -> Talk:
        """A producer of these topics, which is on the list."""
        talk = Talk(stub)
        self.ends.callback(talk.close)
        talk.say(client_type=ClientType.PRODUCER, publishing={"topics": [{"name": topic} for topic in topics]})
        assert talk.hear().status.code == Code.OK
        eventually(lambda: all(self.is_there(topic) for topic in topics))
        return talk

    def is_there(self, group: str) -> bool:
        return self.server._transactions.is_there(group)

    def bodies(self, topic: str = "Orders") -> list[bytes]:
        return [
            body
            for queue_id, (low, high) in self.store.queue_ranges(topic).items()
            for batch in self.store.read(topic, queue_id, low, high, columns=["body"])
            for body in batch.column("body").to_pylist()
        ]

    def check_times(self) -> list[int]:
        return [half.check_times for half in self.store.transactions.pending()]


@pytest.fixture
def served(root: Path, small: StoreConfig, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setattr(broker_server, "_CHECKS_S", 0.05)
    made: list[Served] = []

    def clock() -> int:
        return made[0].now_ms if made else time.time_ns() // 1_000_000

    with (
        Store.open(root, create=True, config=small, clock=clock) as store,
        BrokerServer(store, grpc_port=0) as server,
        ExitStack() as ends,
    ):
        made.append(Served(server, store, ends))
        store.create_topic("Orders", 2)
        store.create_topic("Bills", 1)
        yield made[0]


@pytest.fixture
def stub(served: Served) -> Stub:
    return served.stub()


def half(stub: Stub, body: bytes = b"tea", topic: str = "Orders", **system: Any) -> str:
    """Send a half message; the id of its transaction."""
    answer = stub.send(topic, body, message_type=MessageType.TRANSACTION, **system)
    assert answer.status.code == Code.OK, answer.status
    transaction_id: str = answer.entries[0].transaction_id
    return transaction_id


def end(stub: Stub, transaction_id: str, resolution: int = COMMIT, **fields: Any) -> Any:
    fields = {"topic": {"name": "Orders"}, "message_id": f"01{b'tea'.hex()}"} | fields
    return stub.call("EndTransaction", transaction_id=transaction_id, resolution=resolution, **fields).status


# -- the official client --------------------------------------------------------------------------------------------


class Checker(rocketmq.TransactionChecker):  # type: ignore[misc]
    def __init__(self, outcome: Any) -> None:
        self.outcome = outcome
        self.asked: list[Any] = []

    def check(self, message: Any) -> Any:
        self.asked.append(message)
        return self.outcome


def official(served: Served, outcome: Any = Official.COMMIT) -> tuple[Any, Checker]:
    checker = Checker(outcome)
    configuration = rocketmq.ClientConfiguration(served.address, rocketmq.Credentials(), request_timeout=30)
    producer = rocketmq.Producer(configuration, ("Orders",), checker)
    producer.startup()
    served.ends.callback(producer.shutdown)
    return producer, checker


def begun(producer: Any, body: bytes = b"tea") -> tuple[Any, Any]:
    message = rocketmq.Message()
    message.topic, message.body, message.tag, message.keys = "Orders", body, "TagA", "k1"
    message.add_property("colour", "green")
    transaction = producer.begin_transaction()
    return transaction, producer.send(message, transaction)


@pytest.mark.usefixtures("client_loop")
def test_the_official_client_commits_and_rolls_back(served: Served, stub: Stub) -> None:
    stub.receive("cg", "Orders")  # the group starts here
    producer, _ = official(served)
    transaction, _ = begun(producer, b"milk")
    transaction.rollback()
    transaction, receipt = begun(producer)
    assert receipt.transaction_id and served.bodies() == []
    transaction.commit()
    code, [got] = stub.receive("cg", "Orders", long_polling_timeout={"seconds": 20})
    assert (code, got.body) == (Code.OK, b"tea")
    assert got.system_properties.message_type == MessageType.TRANSACTION
    assert got.system_properties.message_id == receipt.message_id
    assert dict(got.user_properties) == {"colour": "green"}
    assert served.bodies() == [b"tea"] and served.store.transactions.pending() == []


@pytest.mark.usefixtures("client_loop")
@pytest.mark.parametrize(("outcome", "expected"), [(Official.COMMIT, [b"tea"]), (Official.ROLLBACK, [])])
def test_the_official_client_is_asked_for_an_open_transaction(
    served: Served, outcome: Any, expected: list[bytes]
) -> None:
    producer, checker = official(served, outcome)
    _, receipt = begun(producer)
    eventually(lambda: served.is_there("Orders"))
    assert served.check_times() == [0]
    served.now_ms += 6_000
    eventually(lambda: not served.store.transactions.pending())
    [asked] = checker.asked
    assert (asked.topic, asked.body, asked.tag, list(asked.keys)) == ("Orders", b"tea", "TagA", ["k1"])
    assert asked.message_id == receipt.message_id and asked.properties == {"colour": "green"} and not asked.corrupted
    assert served.bodies() == expected


def test_a_producer_that_has_named_no_topic_is_asked_all_the_same(served: Served, stub: Stub) -> None:
    half(served.stub("c2"))
    assert not served.is_there("Orders")  # it has no stream
    talk = served.talk(stub)
    eventually(lambda: half(stub) and served.is_there("Orders"))
    served.now_ms += MINUTE_MS
    assert talk.hear().HasField("recover_orphaned_transaction_command")


# -- ends -----------------------------------------------------------------------------------------------------------


def test_an_end_that_is_repeated_is_answered_alike_and_another_one_is_refused(served: Served, stub: Stub) -> None:
    first = half(stub)
    assert end(stub, first, TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED).code == Code.OK
    assert served.check_times() == [0]
    assert end(stub, first).code == end(stub, first).code == Code.OK
    assert served.bodies() == [b"tea"]
    second, name = half(stub, b"milk"), {"message_id": f"01{b'milk'.hex()}"}
    assert end(stub, second, ROLLBACK, **name).code == Code.OK
    assert end(stub, second, **name).code == Code.PRECONDITION_FAILED
    assert served.bodies() == [b"tea"]


@pytest.mark.parametrize(
    "change",
    [
        {"message_id": "01"},
        {"message_id": ""},
        {"topic": {"name": "Bills"}},
        {"transaction_id": ""},
        {"transaction_id": "0" * 33},
        {"transaction_id": "F" * 32},
        {"transaction_id": "0" * 31 + "g"},
        {"transaction_id": "7" + "F" * 31},
        {"transaction_id": "0" * 32},  # the message of another topic
    ],
)
def test_an_end_names_its_half_message(served: Served, stub: Stub, change: dict[str, Any]) -> None:
    stub.send("Bills", b"tea")
    transaction_id = half(stub)
    status = end(stub, **{"transaction_id": transaction_id} | change)
    assert status.code == Code.INVALID_TRANSACTION_ID, status
    assert served.check_times() == [0]
    assert end(stub, transaction_id).code == Code.OK


def test_a_half_message_of_another_topic_is_not_that_of_a_group_with_its_name(served: Served, stub: Stub) -> None:
    """Whoever may send to Orders may not end a message for Bills, although its producer group is called Orders."""
    foreign = served.store.transactions.prepare(Message("Bills", b"tea"), 0, "Orders")
    transaction_id = f"{foreign.queue_offset:016X}{foreign.commit_log_offset:016X}"
    assert end(stub, transaction_id, message_id=foreign.msg_id).code == Code.INVALID_TRANSACTION_ID
    assert served.check_times() == [0] and served.bodies("Bills") == []


def test_a_server_that_was_started_anew_knows_the_transaction(root: Path, small: StoreConfig) -> None:
    ids = []
    for outcome in (None, COMMIT):
        with BrokerServer(root, config=small, create=outcome is None, grpc_port=0) as server:
            stub = Stub(str(server.grpc_address))
            ids.append(end(stub, ids[0], outcome).code if outcome else half(stub))
            stub.close()
            [pending] = [len(server.store.transactions.pending())]
            assert pending == (0 if outcome else 1)
    assert ids[1] == Code.OK


def test_a_commit_wakes_pulls_and_pops(served: Served, stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[object] = []
    transaction_id = half(stub)
    monkeypatch.setattr(HeldPulls, "stored", lambda _, topic, queue_id: told.append((topic, queue_id)))
    monkeypatch.setattr(HeldPops, "stored", lambda _, topic: told.append(topic))
    assert end(stub, transaction_id).code == Code.OK
    assert told == [("Orders", 1), "Orders"]


# -- half messages --------------------------------------------------------------------------------------------------


def test_half_messages_go_round_the_queues_of_their_topic(served: Served, stub: Stub) -> None:
    for _ in range(4):
        half(stub)
    assert sorted(one.queue_id for one in served.store.transactions.pending()) == [0, 0, 1, 1]


def test_a_half_message_makes_its_topic(served: Served, stub: Stub) -> None:
    transaction_id = half(stub, topic="Later")
    assert served.store.find_topic("Later") is not None
    assert end(stub, transaction_id, topic={"name": "Later"}).code == Code.OK
    assert served.bodies("Later") == [b"tea"]


@pytest.mark.parametrize(
    ("system", "code"),
    [
        ({"message_group": "g"}, Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        ({"delivery_timestamp": {"seconds": 1}}, Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        ({"orphaned_transaction_recovery_duration": {"seconds": 3601}}, Code.BAD_REQUEST),
        ({"orphaned_transaction_recovery_duration": {"seconds": -1}}, Code.BAD_REQUEST),
    ],
)
def test_a_half_message_that_breaks_a_rule_is_refused(
    served: Served, stub: Stub, system: dict[str, Any], code: Code
) -> None:
    assert stub.send("Orders", b"x", message_type=MessageType.TRANSACTION, **system).status.code == code
    assert stub.send("Orders", b"x", b"y", message_type=MessageType.TRANSACTION).status.code == Code.BAD_REQUEST
    assert served.store.transactions.pending() == [] and served.bodies() == []


def test_a_half_message_may_say_how_long_nobody_is_asked(served: Served, stub: Stub) -> None:
    half(stub, orphaned_transaction_recovery_duration={"seconds": 600})
    half(stub)
    [longer, usual] = served.store.transactions.pending()
    assert (longer.due_ms - longer.stored_ms, usual.due_ms - usual.stored_ms) == (600_000, 6_000)


# -- questions ------------------------------------------------------------------------------------------------------


def test_a_question_is_answered_by_an_end_from_the_check(served: Served, stub: Stub) -> None:
    talk = served.talk(stub, "Orders")
    half(stub, orphaned_transaction_recovery_duration={"seconds": 10})
    served.now_ms += MINUTE_MS
    command = talk.hear().recover_orphaned_transaction_command
    assert (command.message.topic.name, command.message.body) == ("Orders", b"tea")
    assert command.message.system_properties.message_type == MessageType.TRANSACTION
    eventually(lambda: served.check_times() == [1])
    # Its own time is over: only an answer counts.
    assert end(stub, command.transaction_id).code == Code.PRECONDITION_FAILED
    answer = end(stub, command.transaction_id, source=TransactionSource.SOURCE_SERVER_CHECK)
    assert answer.code == Code.OK and served.bodies() == [b"tea"]


def test_the_id_of_the_first_copy_ends_the_last_one(served: Served, stub: Stub) -> None:
    talk = served.talk(stub, "Orders")
    transaction_id = half(stub)
    for times in (1, 2):
        served.now_ms += MINUTE_MS
        assert talk.hear().recover_orphaned_transaction_command.transaction_id
        eventually(lambda times=times: served.check_times() == [times])  # type: ignore[misc]
    assert end(stub, transaction_id).code == Code.OK
    assert served.bodies() == [b"tea"] and served.check_times() == []


def test_a_producer_over_remoting_answers_for_one_over_grpc(served: Served, stub: Stub) -> None:
    half(stub)
    listener = TransactionListener(
        lambda *_: LocalTransactionState.UNKNOW, lambda _: LocalTransactionState.COMMIT_MESSAGE
    )
    with TransactionProducer("Orders", f"rmq://{served.server.address}", listener=listener) as producer:
        producer.send_message_in_transaction(Message("Orders", b"milk"))  # now it is a member of its group
        served.now_ms += MINUTE_MS
        eventually(lambda: not served.store.transactions.pending())
    assert sorted(served.bodies()) == [b"milk", b"tea"]


def test_a_producer_over_grpc_answers_for_one_over_remoting(served: Served, stub: Stub) -> None:
    asked: list[MessageExt] = []
    listener = TransactionListener(
        lambda *_: LocalTransactionState.UNKNOW, lambda message: asked.append(message) or LocalTransactionState.UNKNOW
    )
    with TransactionProducer("Orders", f"rmq://{served.server.address}", listener=listener) as producer:
        result = producer.send_message_in_transaction(Message("Orders", b"tea"))
    eventually(lambda: not served.is_there("Orders"))
    talk = served.talk(stub, "Orders")
    served.now_ms += MINUTE_MS
    command = talk.hear().recover_orphaned_transaction_command
    assert command.message.system_properties.message_id == result.transaction_id and not asked
    assert end(stub, command.transaction_id, message_id=result.transaction_id).code == Code.OK
    assert served.bodies() == [b"tea"]


def test_a_producer_over_grpc_sees_no_half_message_of_another_topic(served: Served, stub: Stub) -> None:
    served.talk(stub, "Orders")
    served.store.transactions.prepare(Message("Bills", b"hidden"), 0, "Orders")
    served.now_ms += MINUTE_MS
    assert served.server._checks.round() == 0
    assert served.check_times() == [0]  # nobody was asked, so that nothing counts


@pytest.mark.parametrize("leaves", ["stream", "terminate"])
def test_a_producer_that_has_left_is_not_asked(served: Served, stub: Stub, leaves: str) -> None:
    talk = served.talk(stub, "Orders")
    half(stub)
    if leaves == "stream":
        talk.close()
        assert talk.ends()
    else:
        assert stub.call("NotifyClientTermination").status.code == Code.OK
        assert not served.is_there("Orders")
    eventually(lambda: not served.is_there("Orders"))
    served.now_ms += MINUTE_MS
    assert served.server._checks.round() == 0 and served.check_times() == [0]


def test_the_newest_stream_of_a_client_is_asked(served: Served, stub: Stub) -> None:
    """A client that connects anew has two streams for a while."""
    old, new_one = served.talk(stub, "Orders"), served.talk(stub, "Orders")
    half(stub)
    served.now_ms += MINUTE_MS
    assert new_one.hear().HasField("recover_orphaned_transaction_command")
    new_one.close()
    assert new_one.ends()
    eventually(lambda: served.check_times() == [1])
    served.now_ms += MINUTE_MS
    assert old.hear().HasField("recover_orphaned_transaction_command")


def test_a_client_over_grpc_is_sent_no_replies(served: Served, stub: Stub) -> None:
    """Who replies to it is told that it is not there, and does not wait for an answer that cannot come."""
    served.talk(stub, "Orders")
    assert served.server._members.producer_peers("Orders") and served.server._members.producer_peer("c1") is None


def test_settings_name_topics_and_not_too_many(served: Served, stub: Stub) -> None:
    for topics, code in (([{"name": "../x"}], Code.ILLEGAL_TOPIC), ([{"name": "T"}] * 1001, Code.BAD_REQUEST)):
        talk = Talk(stub)
        talk.say(client_type=ClientType.PRODUCER, publishing={"topics": topics})
        assert talk.hear().status.code == code and talk.ends()


def test_a_stream_whose_questions_are_not_read_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_peer, "UNREAD_BYTES_MAX", 10)
    command = new("TelemetryCommand", recover_orphaned_transaction_command={"transaction_id": "x" * 20})

    async def run() -> None:
        gate, written = asyncio.Event(), []

        async def write(one: Any) -> None:
            await gate.wait()
            written.append(one)

        stream = CommandStream(write)
        sending = asyncio.ensure_future(stream.send_waiting())
        stream.put(command)  # larger than the limit, but alone
        stream.raise_failure()
        gate.set()
        while not written:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        gate.clear()
        stream.put(command)
        stream.raise_failure()
        stream.put(command)
        assert stream.failed.is_set()
        with pytest.raises(TimeoutError, match="does not read"):
            stream.raise_failure()
        sending.cancel()

    asyncio.run(run())
