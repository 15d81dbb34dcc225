"""Two hundred hostile names from the network: no request of remoting or gRPC makes a path of one."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers.grpc_stub import Stub, Talk
from rmq_store import Message, SubscriptionGroup
from rmq_store.client import ResponseCode
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.transport.settings import ClusterSettings
from rmq_store.server.broker_server import BrokerServer
from rmq_store.server.grpc_definitions.enums import ClientType, Code, MessageType
from security.conftest import TINY
from security.hostile import LEGAL, around, names

SEND = {"a": "pg", "b": "Orders", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0"}
HOSTILE = [name for name in names() if name not in LEGAL]
HARMLESS = re.compile(r"[%|\w-]*", re.ASCII)
PREFIXES = ("%RETRY%", "%DLQ%", "%LMQ%")
GOOD = {"name": "Orders"}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[BrokerServer]:
    with BrokerServer(tmp_path / "store", config=TINY, create=True, admin=True) as server:
        yield server


def strangers(root: Path) -> list[str]:
    """Queues, groups and their files that are none of the good names."""
    found = sorted(path for folder in ("consumequeue", "pyrmq/groups") for path in (root / folder).glob("*"))
    return [str(path) for path in found if path.name.partition(".")[0] not in ("Orders", "good")]


def test_hostile_names_of_the_network_become_no_path(server: BrokerServer, tmp_path: Path) -> None:
    consumer = {"queueId": "0", "commitOffset": "1"}
    topic = {
        "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6",
        "topicFilterType": "SINGLE_TAG", "order": "false",
    }  # fmt: skip
    server.store.create_topic("Orders", 1)
    server.store.send(Message("Orders", b"x"))
    server.store.create_group(SubscriptionGroup("good"))
    before = around(tmp_path / "store")
    with Cluster(ClusterSettings.of_text(server.address)) as cluster:
        for name in HOSTILE:
            prefixed = [f"{prefix}{name}" for prefix in PREFIXES if not HARMLESS.fullmatch(name)]
            data = {"groupName": name, "subscriptionDataSet": [{"topic": name, "subString": "*"}]}
            good = {"groupName": "good", "subscriptionDataSet": [{"topic": name, "subString": "*"}]}
            queue = {"topic": name, "brokerName": "b", "queueId": 0}
            lock = {"consumerGroup": name, "clientId": name, "mqSet": [queue]}
            for code, ext, body in (
                (310, SEND | {"b": name}, b"x"),
                *[(310, SEND | {"b": name}, b"x") for name in prefixed],
                (17, topic | {"topic": name}, b""),
                (15, consumer | {"topic": name, "consumerGroup": "good"}, b""),
                (15, consumer | {"topic": "Orders", "consumerGroup": name}, b""),
                *[(15, consumer | {"topic": "Orders", "consumerGroup": name}, b"") for name in prefixed],
                (34, {}, json.dumps({"clientID": "c", "consumerDataSet": [data]}).encode()),
                (34, {}, json.dumps({"clientID": "c", "consumerDataSet": [good]}).encode()),
                (41, {}, json.dumps(lock).encode()),
            ):
                answer = cluster.client.call(server.address, RemotingCommand(code, ext, body), 30_000)
                assert answer.code != ResponseCode.SUCCESS, (code, name)
    assert around(tmp_path / "store") == before
    assert strangers(tmp_path / "store") == []


def test_light_queues_that_a_message_names_become_no_path(server: BrokerServer, tmp_path: Path) -> None:
    """INNER_MULTI_DISPATCH: a broker makes a queue, and thus a directory, of each name that begins with %LMQ%."""
    server.store.create_topic("Orders", 1)
    server.store.send(Message("Orders", b"x"))
    server.store.create_group(SubscriptionGroup("good"))
    before = around(tmp_path / "store")
    sent = 0
    with Cluster(ClusterSettings.of_text(server.address)) as cluster:
        for name in HOSTILE:
            text = f"INNER_MULTI_DISPATCH\x01%LMQ%{name},{name}\x02INNER_MULTI_QUEUE_OFFSET\x010,0\x02"
            answer = cluster.client.call(server.address, RemotingCommand(310, SEND | {"i": text}, b"x"), 30_000)
            sent += answer.code == ResponseCode.SUCCESS
    assert sent > 100 and server.store.queue_range("Orders", 0).max_offset == sent + 1
    assert around(tmp_path / "store") == before
    assert strangers(tmp_path / "store") == []


@pytest.mark.long
def test_hostile_names_over_grpc_become_no_path(tmp_path: Path) -> None:
    with BrokerServer(tmp_path / "store", config=TINY, create=True, admin=True, grpc_port=0) as server:
        server.store.create_topic("Orders", 1)
        server.store.send(Message("Orders", b"x"))
        server.store.create_group(SubscriptionGroup("good"))
        stub = Stub(str(server.grpc_address))
        before = around(tmp_path / "store")
        tried = 0
        for name in [*HOSTILE, *(f"%LMQ%{name}" for name in HOSTILE if not HARMLESS.fullmatch(name))]:
            try:
                name.encode()
            except UnicodeEncodeError:
                continue  # no string of protobuf
            tried += 1
            for method, code in _answers(stub, {"name": name}):
                # A producer's heartbeat names no group.
                assert code >= Code.BAD_REQUEST or (method, name) == ("Heartbeat", ""), (method, name)
        stub.close()
        assert tried > 300
        assert around(tmp_path / "store") == before
        assert strangers(tmp_path / "store") == []


def _answers(stub: Stub, hostile: dict[str, str]) -> Iterator[tuple[str, int]]:
    """Calls that name it as a topic or a group, and their codes."""

    def call(method: str, **fields: Any) -> tuple[str, int]:
        return method, stub.call(method, **fields).status.code

    message = {"body": b"x", "system_properties": {"message_id": "01AB", "message_type": MessageType.NORMAL}}
    yield call("SendMessage", messages=[message | {"topic": hostile}])
    for group, topic in ((hostile, GOOD), ({"name": "good"}, hostile)):
        both = {"group": group, "topic": topic}
        entry = {"message_id": "01AB", "receipt_handle": "0 1 1 1 0 b 0 0 0"}
        yield "ReceiveMessage", stub.receive(group["name"], topic["name"])[0]
        yield call("AckMessage", **both, entries=[entry])
        yield call("ChangeInvisibleDuration", **both, **entry, invisible_duration={"seconds": 10})
        yield call("ForwardMessageToDeadLetterQueue", **both, **entry)
        yield call("QueryAssignment", **both)
        talk = Talk(stub)
        settings = {"subscription": {"group": group, "subscriptions": [{"topic": topic}]}}
        talk.say(client_type=ClientType.PUSH_CONSUMER, **settings)
        yield "Telemetry", talk.hear().status.code
        talk.close()
    yield call("Heartbeat", group=hostile, client_type=ClientType.PUSH_CONSUMER)
    yield call("EndTransaction", topic=hostile, message_id="01AB", transaction_id="1")
    yield call("RecallMessage", topic=hostile, recall_handle="x")
