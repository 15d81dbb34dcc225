"""A server with users: what each request needs, over the network."""

from __future__ import annotations

import base64
import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from rmq_store import Message, StoreConfig, SubscriptionGroup, UsageError
from rmq_store.client import (
    ConsumeConcurrentlyContext,
    ConsumeConcurrentlyStatus,
    ConsumeFromWhere,
    MessageExt,
    MessageListenerConcurrently,
    MQBrokerError,
    MQClientError,
    Producer,
    PushConsumer,
    PushConsumerConfig,
    ResponseCode,
)
from rmq_store.client.backend.remote import RemoteBackend
from rmq_store.format.frames.stored_message import encode_frame
from rmq_store.format.properties.property_string import encode_properties
from rmq_store.format.text.host import Host
from rmq_store.protocol.bodies.clients import HeartbeatData
from rmq_store.protocol.wire.command import SECRET_FIELDS, RemotingCommand
from rmq_store.protocol.wire.request_codes import RequestCode
from rmq_store.protocol.wire.signature import sign
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.transport.settings import ClusterSettings
from rmq_store.server.access import request_check
from rmq_store.server.access.request_check import RequestCheck
from rmq_store.server.broker_server import BrokerServer
from rmq_store.server.requests.request import Request

SECRETS = {"operator": "secret-of-operator", "orders": "secret-of-orders", "billing": "secret-of-billing"}
FILE = f"""
[[user]]
access_key = "operator"
secret_key = "{SECRETS["operator"]}"
admin = true

[[user]]
access_key = "orders"
secret_key = "{SECRETS["orders"]}"
topics = {{ "Orders*" = "PUB|ADMIN" }}
groups = {{ "pg_orders" = "PUB", "new*" = "ADMIN" }}

[[user]]
access_key = "billing"
secret_key = "{SECRETS["billing"]}"
topics = {{ "Orders" = "SUB" }}
groups = {{ "billing" = "SUB", "helpers" = "SUB|ADMIN" }}
"""
CONSUMER = {"consumerGroup": "billing", "topic": "Orders", "queueId": "0"}
ACK = {"c": "billing", "t": "Orders", "so": 0, "q": 0, "rq": 0, "pt": 0, "it": 0, "b": ""}
SEND = {
    "defaultTopic": "TBW102", "defaultTopicQueueNums": "4", "queueId": "0", "sysFlag": "0", "bornTimestamp": "1",
    "flag": "0", "producerGroup": "pg_orders",
}  # fmt: skip
SEND_V2 = {"a": "pg_orders", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0"}
PULL = CONSUMER | {
    "queueOffset": "0", "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0",
    "subVersion": "0", "subscription": "*",
}  # fmt: skip
FROM_FIRST = PushConsumerConfig(consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
HEADER_BYTES = 88  # of a record, with addresses of IPv4
TIMES = {"beginTimestamp": "0", "endTimestamp": str(1 << 62), "maxNum": "1", "key": "k"}


def body_of(**values: object) -> bytes:
    return json.dumps(values).encode()


def heartbeat(topic: str, group: str, producer: str) -> bytes:
    data = {"groupName": group, "subscriptionDataSet": [{"topic": topic, "subString": "*"}]}
    return body_of(clientID="c1", producerDataSet=[{"groupName": producer}], consumerDataSet=[data])


def queues(topic: str, group: str) -> bytes:
    return body_of(consumerGroup=group, clientId="c1", mqSet=[{"topic": topic, "brokerName": "b", "queueId": 0}])


@pytest.fixture
def acl_file(scratch: Path) -> Path:
    path = scratch / "acl.toml"
    path.write_text(FILE, encoding="utf-8")
    path.chmod(0o600)
    return path


@pytest.fixture
def guarded(root: Path, small: StoreConfig, acl_file: Path) -> Iterator[BrokerServer]:
    with BrokerServer(root, config=small, create=True, acl_file=acl_file, admin=True) as server:
        server.store.create_topic("Orders", 1)
        server.store.create_topic("Bills", 1)
        yield server


class Client:
    """A peer that nothing is sent to."""

    address = "127.0.0.1:4711"

    def send(self, *commands: RemotingCommand) -> None:
        pytest.fail("a check answers nothing")


def eventually(condition: Callable[[], object]) -> None:
    end_s = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end_s, "it did not happen"
        time.sleep(0.005)


Ask = Callable[..., tuple[int, str]]


Checked = Callable[..., None]


@pytest.fixture
def checked(guarded: BrokerServer) -> Checked:
    """Check a request of a user, and carry out nothing. MQBrokerError: it is refused."""

    def checked(user: str, code: int, ext: dict[str, str], body: bytes = b"") -> None:
        assert guarded._dispatcher is not None
        check = guarded._dispatcher._check
        assert check is not None
        check(Request(RemotingCommand(code, sign(ext, body, user, SECRETS[user]), body), Client()))

    return checked


@pytest.fixture
def ask(guarded: BrokerServer) -> Iterator[Ask]:
    """Ask as a user; the answer's code and remark."""
    with Cluster(ClusterSettings.of_text(guarded.address)) as cluster:

        def ask(user: str, code: int, ext: dict[str, str] | None = None, body: bytes = b"") -> tuple[int, str]:
            signed = sign(ext or {}, body, user, SECRETS[user])
            answer = cluster.client.call(guarded.address, RemotingCommand(code, signed, body), 20_000)
            return answer.code, answer.remark or ""

        yield ask


@pytest.mark.parametrize(
    ("code", "ext", "body", "user", "others"),
    [
        (10, SEND | {"topic": "Orders"}, b"x", "orders", "billing"),
        (310, SEND_V2 | {"b": "Orders"}, b"x", "orders", "billing"),
        (320, SEND_V2 | {"b": "Orders", "m": "true"}, b"", "orders", "billing"),
        (310, SEND_V2 | {"b": "%RETRY%billing"}, b"x", "billing", "orders"),
        (320, SEND_V2 | {"b": "%RETRY%billing", "m": "true"}, b"x", "billing", "orders"),
        (11, PULL, b"", "billing", "orders"),
        (361, PULL, b"", "billing", "orders"),
        (11, PULL | {"topic": "%RETRY%billing"}, b"", "billing", "orders"),
        (12, TIMES | {"topic": "Orders"}, b"", "billing", "orders"),
        (14, CONSUMER, b"", "billing", "orders"),
        (15, CONSUMER | {"commitOffset": "0"}, b"", "billing", "orders"),
        (30, CONSUMER, b"", "billing", "orders"),
        (34, {}, heartbeat("Orders", "billing", "CLIENT_INNER_PRODUCER"), "billing", "orders"),
        (34, {}, body_of(clientID="c", producerDataSet=[{"groupName": "pg_orders"}]), "orders", "billing"),
        (35, {"clientID": "c1", "consumerGroup": "billing"}, b"", "billing", "orders"),
        (35, {"clientID": "c1", "consumerGroup": "billing", "producerGroup": ""}, b"", "billing", "orders"),
        (35, {"clientID": "c1", "consumerGroup": "", "producerGroup": "pg_orders"}, b"", "orders", "billing"),
        (38, {"consumerGroup": "billing"}, b"", "billing", "orders"),
        (41, {}, queues("Orders", "billing"), "billing", "orders"),
        (42, {}, queues("Orders", "billing"), "billing", "orders"),
        (37, {"producerGroup": "pg_orders"}, b"", "orders", "billing"),
        (208, {"consumerGroup": "billing"}, b"", "billing", "orders"),
        (300, {"topic": "Orders"}, b"", "billing", "orders"),
        (200052, CONSUMER | {"maxMsgNums": "1"}, b"", "billing", "orders"),
        (200054, CONSUMER | {"pollTime": "0", "bornTime": "0"}, b"", "billing", "orders"),
        (200151, {}, body_of(brokerName="b", acks=[ACK]), "billing", "orders"),
        (26, {}, b"", "operator", "orders"),
        (204, {"producerGroup": "pg_orders"}, b"", "orders", "billing"),
        (223, {"topic": "Orders", "group": "billing"}, b"", "billing", "orders"),
        (321, CONSUMER, b"", "billing", "orders"),
        (321, CONSUMER | {"consumerGroup": ""}, b"", "billing", "orders"),
        (215, {"topic": "Orders2"}, b"", "orders", "billing"),
        (103, {}, b"", "operator", "orders"),
        (200, {}, body_of(groupName="new1"), "orders", "billing"),
    ],
)
def test_a_request_needs_its_right(
    checked: Checked, code: int, ext: dict[str, str], body: bytes, user: str, others: str
) -> None:
    checked(user, code, ext, body)
    checked("operator", code, ext, body)
    with pytest.raises(MQBrokerError, match="is missing") as refused:
        checked(others, code, ext, body)
    assert refused.value.response_code == ResponseCode.NO_PERMISSION


@pytest.mark.parametrize(
    ("code", "ext", "body", "missing"),
    [
        (11, PULL | {"topic": "Bills"}, b"", "SUB for the topic Bills"),
        (11, PULL | {"consumerGroup": "other"}, b"", "SUB for the group other"),
        (11, PULL | {"topic": "%RETRY%other"}, b"", "SUB for the topic %RETRY%other"),
        (34, {}, heartbeat("Bills", "billing", "CLIENT_INNER_PRODUCER"), "SUB for the topic Bills"),
        (34, {}, heartbeat("Orders", "other", "CLIENT_INNER_PRODUCER"), "SUB for the group other"),
        (34, {}, heartbeat("Orders", "billing", "pg_orders"), "PUB for the group pg_orders"),
        (41, {}, queues("Bills", "billing"), "SUB for the topic Bills"),
        (41, {}, queues("Orders", "other"), "SUB for the group other"),
        (15, CONSUMER | {"commitOffset": "0", "topic": "Bills"}, b"", "SUB for the topic Bills"),
        (200151, {}, body_of(brokerName="b", acks=[ACK, ACK | {"t": "Bills"}]), "SUB for the topic Bills"),
        (200151, {}, body_of(brokerName="b", acks=[ACK, ACK | {"c": "other"}]), "SUB for the group other"),
        (321, CONSUMER | {"consumerGroup": "other"}, b"", "SUB for the group other"),
        (223, {"topic": "Bills", "group": "billing"}, b"", "SUB for the topic Bills"),
        (11, PULL | {"consumerGroup": ""}, b"", "SUB for the group"),
    ],
)
def test_each_of_several_rights_counts(ask: Ask, code: int, ext: dict[str, str], body: bytes, missing: str) -> None:
    refused, remark = ask("billing", code, ext, body)
    assert refused == ResponseCode.NO_PERMISSION and f"the right {missing} is missing" in remark


def test_a_message_by_its_place_needs_the_right_for_its_topic(guarded: BrokerServer, ask: Ask) -> None:
    mine = guarded.store.send(Message("Orders", b"mine")).commit_log_offset
    foreign = guarded.store.send(Message("Bills", b"foreign")).commit_log_offset
    assert ask("billing", 33, {"offset": str(mine)})[0] == 0
    assert ask("billing", 33, {"offset": str(foreign), "topic": "Orders"})[0] == ResponseCode.NO_PERMISSION
    assert ask("billing", 33, {"offset": str(mine + 1)})[0] == ResponseCode.SYSTEM_ERROR
    # A send-back puts a copy of the message where its sender reads.
    back = {"group": "billing", "delayLevel": "0"}
    assert ask("billing", 36, back | {"offset": str(mine)})[0] == 0
    assert ask("billing", 36, back | {"offset": str(foreign)})[0] == ResponseCode.NO_PERMISSION


def test_a_message_for_one_member_needs_the_right_for_its_topic(guarded: BrokerServer, checked: Checked) -> None:
    mine, foreign = (guarded.store.send(Message(topic, b"m")).offset_msg_id for topic in ("Orders", "Bills"))
    fields = {"consumerGroup": "helpers", "clientId": "c1"}
    checked("billing", 309, fields | {"msgId": mine})
    for topic in ({}, {"topic": "Orders"}):
        with pytest.raises(MQBrokerError, match="SUB for the topic Bills is missing"):
            checked("billing", 309, fields | {"msgId": foreign} | topic)
    for msg_id in ("", "xyz", mine[:-16] + "0000000000000007"):
        with pytest.raises((MQBrokerError, UsageError), match=r"can not find message|offset message id"):
            checked("billing", 309, fields | {"msgId": msg_id, "topic": "Orders"})


@pytest.mark.parametrize(("code", "fields"), [(10, SEND | {"topic": "Orders"}), (310, SEND_V2 | {"b": "Orders"})])
def test_a_half_message_needs_the_right_for_the_group_that_is_asked(
    checked: Checked, code: int, fields: dict[str, str]
) -> None:
    properties, group = ("properties", "producerGroup") if code == 10 else ("i", "a")
    half = {properties: encode_properties({"TRAN_MSG": "True"}).decode()}
    foreign = {properties: encode_properties({"TRAN_MSG": "true", "PGROUP": "pg_bills"}).decode()}
    plain = {properties: encode_properties({"KEYS": "TRAN_MSG", "PGROUP": "pg_bills"}).decode()}
    checked("orders", code, fields | half)
    checked("orders", code, fields | plain)
    for refused in (fields | foreign, fields | half | {group: "pg_bills"}):
        with pytest.raises(MQBrokerError, match="PUB for the group pg_bills is missing"):
            checked("orders", code, refused)


def test_a_record_inside_a_body_is_no_message(guarded: BrokerServer, checked: Checked) -> None:
    store = guarded.store
    place = store.log_range()[1] + HEADER_BYTES
    host = Host.parse("127.0.0.1:10911")
    forged = encode_frame(
        topic="Orders", body=b"forged", properties=b"", queue_id=0, queue_offset=0, commit_log_offset=place,
        born_timestamp_ms=1, born_host=host, store_timestamp_ms=1, store_host=host, crc_property=True,
    )  # fmt: skip
    store.send(Message("Bills", forged))
    mine = store.send(Message("Orders", b"mine")).commit_log_offset
    assert store.message_at(place).body == b"forged"
    back = {"group": "billing", "delayLevel": "0"}
    for code, ext in ((33, {}), (36, back)):
        checked("billing", code, ext | {"offset": str(mine)})
        with pytest.raises(MQBrokerError, match="can not find message"):
            checked("billing", code, ext | {"offset": str(place)})


def test_a_message_that_waits_needs_the_right_for_the_topic_it_is_for(
    guarded: BrokerServer, ask: Ask, acl_file: Path
) -> None:
    delayed = [guarded.store.send(Message(topic, b"d", delay_level=18)) for topic in ("Orders", "Bills")]
    mine, foreign = (str(one.commit_log_offset) for one in delayed)
    assert "SUB for the topic SCHEDULE_TOPIC_XXXX" in ask("billing", 33, {"offset": mine})[1]
    replace_file(acl_file, FILE.replace('"Orders" = "SUB"', '"Orders" = "SUB", "SCHEDULE_TOPIC_XXXX" = "SUB"'))
    assert guarded._users is not None
    guarded._users.reload_if_changed()
    assert ask("billing", 33, {"offset": mine})[0] == 0
    assert "SUB for the topic Bills" in ask("billing", 33, {"offset": foreign})[1]


def test_a_message_that_comes_behind_the_check_is_not_shown(guarded: BrokerServer, checked: Checked) -> None:
    """The check refuses itself: its processor would find what was stored meanwhile."""
    guarded.store.send(Message("Bills", b"foreign"))
    end = str(guarded.store.log_range()[1])
    for code, ext in ((33, {"offset": end}), (36, {"offset": end, "group": "billing", "delayLevel": "0"})):
        with pytest.raises(MQBrokerError, match="can not find message") as refused:
            checked("billing", code, ext)
        assert refused.value.response_code == ResponseCode.SYSTEM_ERROR


@pytest.mark.parametrize(("code", "passed_on"), [(307, 307), (309, 309), (223, 221)])
def test_a_member_that_is_asked_gets_no_signature(guarded: BrokerServer, ask: Ask, code: int, passed_on: int) -> None:
    sent = guarded.store.send(Message("Orders", b"mine"))
    asked: list[RemotingCommand] = []

    def answer(address: str, command: RemotingCommand) -> RemotingCommand:
        asked.append(command)
        return RemotingCommand(0, body=b"{}")

    with Cluster(ClusterSettings.of_text(guarded.address)) as member:
        member.client.on_request(passed_on, answer)
        beat = heartbeat("Orders", "billing", "CLIENT_INNER_PRODUCER")
        joins = RemotingCommand(34, sign({}, beat, "billing", SECRETS["billing"]), beat)
        assert member.client.call(guarded.address, joins, 20_000).code == 0
        fields = {"consumerGroup": "billing", "clientId": "c1", "msgId": sent.offset_msg_id, "other": "x"}
        fields |= {"group": "billing", "topic": "Orders"}
        assert ask("operator", code, fields | {"SecurityToken": "t"})[0] == 0
    (question,) = asked
    assert question.ext_fields.keys() & SECRET_FIELDS == set()
    assert "billing" in question.ext_fields.values() and "other" not in question.ext_fields


def test_nobody_takes_the_client_id_of_another_user(guarded: BrokerServer, ask: Ask) -> None:
    members = guarded._members
    with Cluster(ClusterSettings.of_text(guarded.address)) as first:

        def beat(at: Cluster, user: str, group: str, client_id: str = "c1") -> int:
            body = body_of(clientID=client_id, producerDataSet=[{"groupName": group}])
            signed = sign({}, body, user, SECRETS[user])
            return at.client.call(guarded.address, RemotingCommand(34, signed, body), 20_000).code

        assert beat(first, "orders", "pg_orders") == 0
        peer = members.producer_peer("c1")
        assert peer is not None
        with Cluster(ClusterSettings.of_text(guarded.address)) as other:
            assert beat(other, "billing", "CLIENT_INNER_PRODUCER") == ResponseCode.NO_PERMISSION
            assert beat(other, "operator", "pg_orders") == ResponseCode.NO_PERMISSION
            assert members.producer_peer("c1") is peer
            assert beat(other, "billing", "CLIENT_INNER_PRODUCER", "c2") == 0
            assert members.producer_peer("c2") is None  # everybody may join that group: nothing is sent there
            # A client that connects anew is there twice for a while.
            assert beat(other, "orders", "pg_orders") == 0
        eventually(lambda: members.producer_peer("c1") is None)
        for group in ({"consumerGroup": "billing"}, {"producerGroup": "CLIENT_INNER_PRODUCER"}):
            assert ask("billing", 35, {"clientID": "c1"} | group)[0] == ResponseCode.NO_PERMISSION
        assert beat(first, "orders", "pg_orders") == 0
    eventually(lambda: members.producer_peer("c1") is None)
    eventually(lambda: ask("billing", 35, {"clientID": "c1", "consumerGroup": "billing"})[0] == 0)


def test_names_of_producers_are_few_and_short(server: BrokerServer) -> None:
    with Cluster(ClusterSettings.of_text(server.address)) as cluster:

        def beat(client_id: str, *names: str) -> RemotingCommand:
            body = body_of(clientID=client_id, producerDataSet=[{"groupName": one} for one in names])
            return cluster.client.call(server.address, RemotingCommand(34, {}, body), 20_000)

        for client_id in ("", "c" * 256, "c\nERROR"):
            assert "printable characters" in (beat(client_id, "pg").remark or "")
        for name in ("x" * 8192, "no name", "", "../pg"):
            assert beat("c", name, "pg").code == ResponseCode.SYSTEM_ERROR
            assert server._members.producer_peers(name) == []
        assert len(server._members.producer_peers("pg")) == 1
        for turn in range(2):
            answer = beat("c", *(f"pg{turn}-{number}" for number in range(1000)))
        assert answer.code == ResponseCode.SYSTEM_ERROR and "from one connection" in (answer.remark or "")
        leaves = RemotingCommand(35, {"clientID": "c", "producerGroup": "pg"})
        assert cluster.client.call(server.address, leaves, 20_000).code == 0
        assert not server._members.producer_peers("pg") and not beat("c", "pg").code
    eventually(lambda: server._members.producer_peer("c") is None)


@pytest.mark.parametrize("failing", ["unregister", "consumer_ids"])
def test_no_name_of_a_client_makes_a_line_of_the_log(
    server: BrokerServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(type(server._served.broker), failing, fail)
    fields = {"clientID": "c\nforged", "consumerGroup": "g\nforged"}
    with Cluster(ClusterSettings.of_text(server.address)) as cluster:
        cluster.client.call(server.address, RemotingCommand(35, fields), 20_000)
    assert "forged" in caplog.text and "\nforged" not in caplog.text


def test_a_name_that_lacks_a_right_makes_no_line_of_the_log(ask: Ask, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    ask("billing", 11, PULL | {"topic": "T\nforged"})
    assert "forged" in caplog.text and "\nforged" not in caplog.text


def test_routes_are_for_every_user_and_for_nobody_else(guarded: BrokerServer, ask: Ask) -> None:
    assert ask("billing", 105, {"topic": "Bills"})[0] == 0
    with Cluster(ClusterSettings.of_text(guarded.address)) as stranger, pytest.raises(MQBrokerError) as refused:
        stranger.route("Orders")
    assert refused.value.response_code == ResponseCode.NO_PERMISSION
    assert "not signed" in refused.value.remark


def test_a_wrong_secret_and_an_unknown_key_have_the_same_answer(guarded: BrokerServer) -> None:
    remarks = set()
    with Cluster(ClusterSettings.of_text(guarded.address)) as cluster:
        for user in ("orders", "nobody"):
            for signed in (sign({"topic": "T"}, b"", user, "wrong"), {"topic": "T", "AccessKey": user}):
                answer = cluster.client.call(guarded.address, RemotingCommand(105, signed), 20_000)
                assert answer.code == ResponseCode.NO_PERMISSION
                remarks.add(answer.remark)
    assert len(remarks) == 1 and not any(word in str(remarks) for word in ("orders", "nobody", "secret-of"))


def test_the_body_is_read_behind_the_signature_only(guarded: BrokerServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HeartbeatData, "decode", lambda body: pytest.fail("a body of nobody was read"))
    with Cluster(ClusterSettings.of_text(guarded.address)) as cluster:
        for signed in ({}, sign({}, b"other", "orders", SECRETS["orders"])):
            answer = cluster.client.call(guarded.address, RemotingCommand(34, signed, b"{"), 20_000)
            assert answer.code == ResponseCode.NO_PERMISSION


def test_a_request_without_a_declared_right_is_refused(
    guarded: BrokerServer, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    rest = {code: row for code, row in request_check.REQUESTS.items() if code != RequestCode.GET_BROKER_RUNTIME_INFO}
    assert ask("operator", 28)[0] == 0
    monkeypatch.setattr(request_check, "REQUESTS", rest)
    assert ask("operator", 28)[0] == ResponseCode.NO_PERMISSION


def test_a_producer_without_the_right_to_read_sends_timers(
    guarded: BrokerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of a queue (30) is for consumers; the figures (28), which name timers, are for any user."""
    monkeypatch.setenv("KEY_orders", "orders")
    monkeypatch.setenv("SECRET_orders", SECRETS["orders"])
    settings = ClusterSettings.of_text(
        guarded.address, access_key="env:KEY_orders", secret_key="env:SECRET_orders"
    )
    with Cluster(settings) as cluster, Producer("pg_orders", RemoteBackend(cluster)) as producer:
        sent = producer.send(Message("Orders", b"later", properties={"TIMER_DELAY_SEC": "60"}))
        assert producer.recall_message("Orders", str(sent.recall_handle)) == sent.msg_id


def test_our_own_clients_produce_and_consume(guarded: BrokerServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def backend(user: str) -> RemoteBackend:
        monkeypatch.setenv(f"KEY_{user}", user)
        monkeypatch.setenv(f"SECRET_{user}", SECRETS[user])
        keys = {"access_key": f"env:KEY_{user}", "secret_key": f"env:SECRET_{user}"}
        made = RemoteBackend(ClusterSettings.of_text(guarded.address, **keys))
        parts.callback(made.close)
        return made

    def take(messages: list[MessageExt], _: ConsumeConcurrentlyContext) -> ConsumeConcurrentlyStatus:
        got.extend(one.body for one in messages)
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    got: list[bytes] = []
    with ExitStack() as parts:
        producer = parts.enter_context(Producer("pg_orders", backend("orders")))
        producer.send(Message("Orders", b"paid"))
        with pytest.raises(MQClientError, match="PUB for the topic Bills"):
            producer.send(Message("Bills", b"paid"))
        consumer = PushConsumer("billing", backend("billing"), config=FROM_FIRST)
        consumer.subscribe("Orders")
        consumer.register_message_listener(MessageListenerConcurrently(take))
        parts.callback(consumer.shutdown)
        consumer.start()
        deadline_s = time.monotonic() + 30
        while not got and time.monotonic() < deadline_s:
            time.sleep(0.01)
    assert got == [b"paid"]


# -- the file changes -----------------------------------------------------------------------------------------------


def replace_file(path: Path, text: str) -> None:
    new = path.with_suffix(".new")
    new.write_text(text, encoding="utf-8")
    new.chmod(0o600)
    new.replace(path)


def test_a_changed_file_counts_and_a_wrong_one_does_not(
    guarded: BrokerServer, ask: Ask, acl_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    users = guarded._users
    assert users is not None
    assert ask("billing", 30, CONSUMER)[0] == 0
    with caplog.at_level(logging.ERROR):
        replace_file(acl_file, "[[user]")
        for _ in range(3):
            users.reload_if_changed()
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert ask("billing", 30, CONSUMER)[0] == 0
    replace_file(acl_file, FILE.replace('"Orders" = "SUB"', '"Bills" = "SUB"'))
    users.reload_if_changed()
    assert ask("billing", 30, CONSUMER)[0] == ResponseCode.NO_PERMISSION
    acl_file.chmod(0o666)
    users.reload_if_changed()
    assert ask("orders", 105, {"topic": "Orders"})[0] == 0


def test_a_changed_secret_counts(root: Path, small: StoreConfig, scratch: Path) -> None:
    secret = scratch / "secret"
    secret.write_text("the-first-secret")
    (scratch / "acl.toml").write_text(f'[[user]]\naccess_key = "a"\nsecret_key = "file:{secret}"\nadmin = true\n')
    with (
        BrokerServer(root, config=small, create=True, acl_file=scratch / "acl.toml") as server,
        Cluster(ClusterSettings.of_text(server.address)) as cluster,
    ):
        assert server._users is not None
        secret.write_text("the-second-secret")
        server._users.reload_if_changed()
        for text, code in (("the-first-secret", ResponseCode.NO_PERMISSION), ("the-second-secret", 0)):
            signed = sign({}, b"", "a", text)
            assert cluster.client.call(server.address, RemotingCommand(28, signed), 20_000).code == code


def test_the_server_looks_at_the_file_by_itself(guarded: BrokerServer, ask: Ask, acl_file: Path) -> None:
    replace_file(acl_file, FILE.replace('access_key = "billing"', 'access_key = "billing2"'))
    deadline_s = time.monotonic() + 30
    while ask("billing", 28)[0] == 0 and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert ask("billing", 28)[0] == ResponseCode.NO_PERMISSION


# -- changes for administrators -------------------------------------------------------------------------------------

TOPIC = {
    "topic": "Orders", "defaultTopic": "TBW102", "readQueueNums": "2", "writeQueueNums": "2", "perm": "6",
    "topicFilterType": "SINGLE_TAG", "order": "false",
}  # fmt: skip


def test_what_exists_is_changed_by_administrators_only(root: Path, small: StoreConfig) -> None:
    for admin in (False, True):
        with (
            BrokerServer(root, config=small, create=not admin, admin=admin) as server,
            Cluster(ClusterSettings.of_text(server.address)) as cluster,
        ):

            def ask(
                code: int, ext: dict[str, str], body: bytes = b"", at: Cluster = cluster, to: str = server.address
            ) -> RemotingCommand:
                return at.client.call(to, RemotingCommand(code, ext, body), 20_000)

            if not admin:
                assert ask(17, TOPIC).code == 0
            answer = ask(17, TOPIC | {"readQueueNums": "3"})
            assert answer.code == (0 if admin else ResponseCode.NO_PERMISSION)
            assert admin or "--admin" in (answer.remark or "")
            assert server.store.topics()["Orders"].read_queue_nums == (3 if admin else 2)
            for code in (25, 318, 1009):
                answer = ask(code, {}, b"fileReservedTime=1")
                assert answer.code == ResponseCode.NO_PERMISSION
                assert "CVE-2023-33246" in (answer.remark or "") and "CVE-2023-37582" in (answer.remark or "")


@pytest.mark.parametrize(
    ("code", "ext", "body", "change"),
    [
        (17, TOPIC, b"", True),
        (17, TOPIC | {"topic": "New"}, b"", False),
        (200, {}, body_of(groupName="billing"), True),
        (200, {}, body_of(groupName="new"), False),
        (207, {"groupName": "billing"}, b"", True),
        (215, {"topic": "New"}, b"", True),
        (216, {"topic": "New"}, b"", True),
        (220, {"topic": "Orders", "group": "billing"}, b"", True),
        (222, {"topic": "Orders", "group": "billing"}, b"", True),
        (401, {}, body_of(topic="Orders", consumerGroup="billing"), True),
        (316, {}, b"", True),
        (310, SEND_V2 | {"b": "New"}, b"x", False),
        (36, {"group": "billing", "offset": "0"}, b"", False),
    ],
)
def test_which_requests_are_changes(
    server: BrokerServer, code: int, ext: dict[str, str], body: bytes, change: bool
) -> None:
    server.store.create_topic("Orders", 1)
    server.store.create_group(SubscriptionGroup("billing"))
    request = Request(RemotingCommand(code, ext, body), Client())
    RequestCheck(server.store, None, is_admin=True)(request)
    if change:
        with pytest.raises(MQBrokerError, match="--admin") as refused:
            RequestCheck(server.store, None, is_admin=False)(request)
        assert refused.value.response_code == ResponseCode.NO_PERMISSION
    else:
        RequestCheck(server.store, None, is_admin=False)(request)


def test_an_ordinary_user_is_no_administrator_of_the_settings(ask: Ask) -> None:
    assert "is missing" in ask("orders", 25)[1]
    assert "CVE-2023-33246" in ask("operator", 25)[1]


def test_no_answer_and_no_log_has_a_secret(guarded: BrokerServer, ask: Ask, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    texts = [str(ask("billing", code, PULL | {"topic": "Bills"})) for code in (11, 21, 26, 28, 30, 201, 105)]
    with Cluster(ClusterSettings.of_text(guarded.address)) as cluster:
        for code in (21, 28, 201):
            command = RemotingCommand(code, sign({}, b"", "operator", SECRETS["operator"]))
            answer = cluster.client.call(guarded.address, command, 20_000)
            texts.append(f"{answer.ext_fields} {answer.body!r} {answer.remark}")
    signature = base64.b64encode(os.urandom(20)).decode()
    with Cluster(ClusterSettings.of_text(guarded.address)) as cluster:
        forged = RemotingCommand(28, {"AccessKey": "orders", "Signature": signature})
        assert cluster.client.call(guarded.address, forged, 20_000).code == ResponseCode.NO_PERMISSION
    shown = " ".join(texts) + caplog.text
    assert not any(secret in shown for secret in (*SECRETS.values(), signature))
