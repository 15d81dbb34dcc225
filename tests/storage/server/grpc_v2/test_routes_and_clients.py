"""Routes, settings, heartbeats: what a client asks before and beside its messages."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from helpers.grpc_stub import Stub, Talk
from rmq_store import StoreConfig
from rmq_store.broker.metadata.groups import SubscriptionGroup
from rmq_store.broker.metadata.topics import PERM_READ, TopicConfig
from rmq_store.errors import UsageError
from rmq_store.server.broker_server import BrokerServer
from rmq_store.server.grpc_definitions.enums import AddressScheme, ClientType, Code, MessageType, Permission
from rmq_store.server.grpc_v2 import clients
from rmq_store.server.grpc_v2.routes import accepted_types

PATIENCE_S = 60.0


def eventually(condition: Callable[[], object]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s, "it did not happen"
        time.sleep(0.005)


def test_a_route_names_each_queue_and_the_grpc_address(server: BrokerServer, stub: Stub) -> None:
    server.store.create_topic("Orders", 3)
    answer = stub.call("QueryRoute", topic={"name": "Orders"})
    assert answer.status.code == Code.OK
    assert [one.id for one in answer.message_queues] == [0, 1, 2]
    one = answer.message_queues[0]
    assert (one.topic.name, one.permission) == ("Orders", Permission.READ_WRITE)
    kinds = [MessageType.NORMAL, MessageType.FIFO, MessageType.DELAY, MessageType.TRANSACTION]
    assert list(one.accept_message_types) == kinds
    assert (one.broker.name, one.broker.id) == (server.store.broker_name, 0)
    [address] = one.broker.endpoints.addresses
    assert one.broker.endpoints.scheme == AddressScheme.IPv4
    assert f"{address.host}:{address.port}" == server.grpc_address


def test_a_route_names_the_advertised_host_with_the_grpc_port(root: Path, small: StoreConfig) -> None:
    """A client that dialed 0.0.0.0 would reach itself. 127.0.0.2 stands for the address of the machine."""
    with BrokerServer(
        root, config=small, create=True, host="0.0.0.0", advertise="127.0.0.2:10911", grpc_port=0
    ) as server:
        address = str(server.grpc_address)
        host, _, port = address.rpartition(":")
        assert host == "127.0.0.2" and int(port) not in (0, 10911)
        stub = Stub(address)
        [told] = stub.call("QueryRoute", topic={"name": "Orders"}).message_queues[0].broker.endpoints.addresses
        assert f"{told.host}:{told.port}" == address
        stub.close()


def test_a_topic_yet_to_be_made_has_a_route_and_is_not_made(server: BrokerServer, stub: Stub) -> None:
    answer = stub.call("QueryRoute", topic={"name": "Later"})
    assert len(answer.message_queues) == server.store.config.default_topic_queue_nums
    assert server.store.find_topic("Later") is None


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("", Code.ILLEGAL_TOPIC),
        ("a b", Code.ILLEGAL_TOPIC),
        ("../up", Code.ILLEGAL_TOPIC),
        ("SCHEDULE_TOPIC_XXXX", Code.ILLEGAL_TOPIC),
        ("RMQ_SYS_TRANS_HALF_TOPIC", Code.ILLEGAL_TOPIC),
        ("%RETRY%nobody", Code.TOPIC_NOT_FOUND),
    ],
)
def test_a_topic_that_clients_may_not_use_has_no_route(stub: Stub, name: str, code: Code) -> None:
    assert stub.call("QueryRoute", topic={"name": name}).status.code == code


def test_a_store_that_makes_no_topics_has_no_route_for_an_unknown_one(root: object, small: StoreConfig) -> None:
    from dataclasses import replace

    config = replace(small, auto_create_topic_enable=False)
    with BrokerServer(root, config=config, create=True, grpc_port=0) as server:  # type: ignore[arg-type]
        stub = Stub(str(server.grpc_address))
        assert stub.call("QueryRoute", topic={"name": "Later"}).status.code == Code.TOPIC_NOT_FOUND
        assert stub.send("Later", b"x").status.code == Code.TOPIC_NOT_FOUND
        assert stub.receive("cg", "Later")[0] == Code.TOPIC_NOT_FOUND
        stub.close()


def test_an_assignment_is_one_queue_for_all(server: BrokerServer, stub: Stub) -> None:
    server.store.create_topic("Orders", 3)
    answer = stub.call("QueryAssignment", topic={"name": "Orders"}, group={"name": "cg"})
    [one] = answer.assignments
    assert (one.message_queue.id, one.message_queue.permission) == (-1, Permission.READ_WRITE)
    refused = stub.call("QueryAssignment", topic={"name": "Orders"}, group={"name": "not a group"})
    assert refused.status.code == Code.ILLEGAL_CONSUMER_GROUP


@pytest.mark.parametrize(
    ("queues", "perm", "readable", "writable"),
    [((4, 4), 4, True, False), ((4, 4), 2, False, True), ((4, 4), 0, False, False), ((0, 4), 6, False, True),
     ((4, 0), 6, True, False)],
)  # fmt: skip
def test_a_topic_that_is_closed_is_forbidden(
    server: BrokerServer, stub: Stub, queues: tuple[int, int], perm: int, readable: bool, writable: bool
) -> None:
    """RouteActivity#queryAssignment and ProducerProcessor#sendMessage of the proxy: no readable or writable queue."""
    closed = TopicConfig("Closed", *queues, perm)
    server.store.admin.update_topic("Closed", lambda _: closed, default=closed)
    answer = stub.call("QueryAssignment", topic={"name": "Closed"}, group={"name": "cg"})
    assert answer.status.code == (Code.OK if readable else Code.FORBIDDEN)
    assert bool(answer.assignments) is readable
    if perm == PERM_READ:
        assert answer.assignments[0].message_queue.permission == Permission.READ
    for kind in ({}, {"message_group": "g"}, {"message_type": MessageType.TRANSACTION}):
        assert stub.send("Closed", b"x", **kind).status.code == (Code.OK if writable else Code.FORBIDDEN)


def test_a_topic_made_for_a_type_accepts_that_type_only() -> None:
    assert accepted_types(TopicConfig("T", attributes={"message.type": "FIFO"})) == (MessageType.FIFO,)
    assert TopicConfig("T", perm=PERM_READ).readable


def test_settings_of_a_producer_are_answered_with_limits_and_back_off(server: BrokerServer, stub: Stub) -> None:
    talk = Talk(stub)
    talk.say(client_type=ClientType.PRODUCER, publishing={"topics": [{"name": "Orders"}]})
    answer = talk.hear()
    assert answer.status.code == Code.OK
    settings = answer.settings
    assert settings.publishing.max_body_size == server.store.config.max_message_size
    assert settings.publishing.validate_message_type and [one.name for one in settings.publishing.topics] == ["Orders"]
    backoff = settings.backoff_policy.exponential_backoff
    assert (settings.backoff_policy.max_attempts, backoff.initial.nanos, backoff.max.seconds) == (3, 10_000_000, 1)
    talk.close()
    assert talk.ends()


def test_settings_of_a_consumer_are_answered_with_those_of_its_group(server: BrokerServer, stub: Stub) -> None:
    talk = Talk(stub)
    talk.say(
        client_type=ClientType.PUSH_CONSUMER,
        subscription={"group": {"name": "cg"}, "subscriptions": [{"topic": {"name": "Orders"}}]},
    )
    settings = talk.hear().settings
    assert settings.backoff_policy.max_attempts == 17
    assert [one.seconds for one in settings.backoff_policy.customized_backoff.next][:4] == [1, 5, 10, 30]
    assert (settings.subscription.fifo, settings.subscription.receive_batch_size) == (False, 32)
    assert settings.subscription.long_polling_timeout.seconds == 20
    assert "cg" in server.store.groups()


def backoff(server: BrokerServer, stub: Stub, policy: dict[str, Any]) -> Any:
    server.store.create_group(SubscriptionGroup("own", group_retry_policy=policy, retry_max_times=2))
    talk = Talk(stub)
    talk.say(client_type=ClientType.PUSH_CONSUMER, subscription={"group": {"name": "own"}})
    found = talk.hear().settings.backoff_policy
    assert found.max_attempts == 3
    talk.close()
    return found


def test_a_group_with_times_of_its_own_tells_them(server: BrokerServer, stub: Stub) -> None:
    policy = {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1500, 2000, "x"]}}
    nexts = backoff(server, stub, policy).customized_backoff.next
    assert [(one.seconds, one.nanos) for one in nexts] == [(1, 500_000_000), (2, 0), (7200, 0)]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"initial": 100, "max": 3000, "multiplier": 3}, (100_000_000, 3, 3)),
        ({"initial": -1, "max": True, "multiplier": 0}, (0, 7200, 2)),
        (None, (0, 7200, 2)),
    ],
)
def test_a_group_with_exponential_times_tells_them(
    server: BrokerServer, stub: Stub, given: Any, expected: tuple[int, int, int]
) -> None:
    found = backoff(server, stub, {"type": "EXPONENTIAL", "exponentialRetryPolicy": given}).exponential_backoff
    assert (found.initial.nanos, found.max.seconds, found.multiplier) == expected


def test_bad_settings_end_the_stream_with_a_status(stub: Stub) -> None:
    talk = Talk(stub)
    talk.say(client_type=ClientType.PUSH_CONSUMER, subscription={"group": {"name": "../cg"}})
    refused = talk.hear().status
    assert refused.code == Code.ILLEGAL_CONSUMER_GROUP
    assert talk.ends()
    # Java's client starts to wait for settings after a good end, and Go's says only "EOF" (ClientActivity.java).
    code, text = talk.end()
    assert code is grpc.StatusCode.INVALID_ARGUMENT and refused.message in text


def test_a_stream_that_its_client_ends_ends_well(stub: Stub) -> None:
    talk = Talk(stub)
    talk.say(client_type=ClientType.PRODUCER, publishing={})
    talk.hear()
    talk.close()
    assert talk.ends() and talk.end()[0] is grpc.StatusCode.OK


def test_settings_have_a_number_of_topics(stub: Stub) -> None:
    talk = Talk(stub)
    entries = [{"topic": {"name": "../no topic"}}] * 1001
    talk.say(client_type=ClientType.PUSH_CONSUMER, subscription={"group": {"name": "cg"}, "subscriptions": entries})
    assert talk.hear().status.code == Code.BAD_REQUEST  # before any of them is looked at
    assert talk.ends()


def test_a_server_that_stops_ends_streams_and_receives_at_once(server: BrokerServer, stub: Stub) -> None:
    talk = Talk(stub)
    talk.say(client_type=ClientType.PRODUCER, publishing={})
    talk.hear()
    codes: list[int] = []
    thread = threading.Thread(
        target=lambda: codes.append(stub.receive("cg", "Orders", long_polling_timeout={"seconds": 20})[0])
    )
    thread.start()
    eventually(lambda: "cg" in server.store.groups())
    server.close()
    thread.join(PATIENCE_S)
    assert codes == [Code.MESSAGE_NOT_FOUND]
    assert talk.ends()


def shares(server: BrokerServer, group: str, topic: str) -> bool:
    """Whether some consumer of the group holds the topic against a stream."""
    from rmq_store.broker.metadata.topic_use import TopicUse
    from rmq_store.errors import LeaseHeldError

    use = TopicUse(server.store.path, group, topic, clock=server.store.clock)
    try:
        use.take_alone()
    except LeaseHeldError:
        return True
    use.release()
    return False


def test_a_consumer_holds_its_topics_until_it_leaves(server: BrokerServer, stub: Stub) -> None:
    stub.receive("cg", "Orders")
    assert stub.call("Heartbeat", group={"name": "cg"}, client_type=ClientType.SIMPLE_CONSUMER).status.code == Code.OK
    assert shares(server, "cg", "Orders")
    assert stub.call("NotifyClientTermination", group={"name": "cg"}).status.code == Code.OK
    assert not shares(server, "cg", "Orders")


def test_a_silent_consumer_leaves_its_group(server: BrokerServer, stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "_EXPIRY_S", -1.0)
    monkeypatch.setattr(clients, "_LOOK_S", 0.01)
    with BrokerServer(server.store.path.parent / "second", create=True, grpc_port=0) as second:
        other = Stub(str(second.grpc_address))
        other.receive("cg", "Orders")
        eventually(lambda: not shares(second, "cg", "Orders"))
        other.close()


@pytest.mark.parametrize("client_id", ["", "x" * 257])
def test_a_client_without_a_usable_id_is_refused(server: BrokerServer, client_id: str) -> None:
    stub = Stub(str(server.grpc_address), client_id)
    heartbeat = stub.call("Heartbeat", group={"name": "cg"}, client_type=ClientType.SIMPLE_CONSUMER)
    assert heartbeat.status.code == Code.CLIENT_ID_REQUIRED
    assert stub.receive("cg", "Orders")[0] == Code.CLIENT_ID_REQUIRED
    stub.close()


def test_what_is_not_here_says_so(stub: Stub) -> None:
    unknown = stub.channel.unary_unary("/apache.rocketmq.v2.MessagingService/SyncLiteSubscription")
    with pytest.raises(grpc.RpcError) as caught:
        unknown(b"", timeout=PATIENCE_S)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_a_port_that_is_taken_is_named(server: BrokerServer, root: object) -> None:
    port = int(str(server.grpc_address).rpartition(":")[2])
    with pytest.raises(UsageError, match=f"cannot serve gRPC at 127.0.0.1:{port}"):
        BrokerServer(server.store.path.parent / "second", create=True, grpc_port=port)
