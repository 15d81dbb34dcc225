"""Sends as the wire has them: flags of bodies, and the topics that take some."""

from __future__ import annotations

import base64
import struct
import time
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from helpers.cluster import requests
from helpers.cluster.asking import Connection
from helpers.patient import PATIENT
from rmq_store import Store, StoreConfig, TopicConfig
from rmq_store.broker.processor import local_broker
from rmq_store.broker.write import disk_space
from rmq_store.client import Message, Producer, ResponseCode
from rmq_store.client.cluster_sink.records import WritePart
from rmq_store.client.cluster_sink.row_encoder import EncoderSettings
from rmq_store.client.cluster_sink.task import SinkSettings, SinkTask
from rmq_store.format.bytes import native
from rmq_store.log.append.append import append_lock
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.request_codes import RequestCode
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.server.broker_server import BrokerServer


def send(cluster: Cluster, server: BrokerServer, topic: str, body: bytes, **fields: str) -> RemotingCommand:
    """The answer to 310. `fields` by their letters."""
    known = {"a": "pg", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0", "h": "0"}
    command = RemotingCommand(RequestCode.SEND_MESSAGE_V2, known | fields, body)
    return cluster.client.call(server.address, command, 20_000)


def test_behind_a_writer_that_takes_long_the_broker_is_busy(
    cluster: Cluster, server: BrokerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_broker, "PAGE_CACHE_BUSY_MS", 100)
    server.store.create_topic("Orders", 1)
    with Store.open(server.store.path) as other, append_lock(other._writing()._log):
        answer = send(cluster, server, "Orders", b"tea")
    assert answer.code == ResponseCode.SYSTEM_BUSY
    assert (answer.remark or "").startswith("[PC_SYNCHRONIZED]broker busy, ")
    assert server.store.queue_range("Orders", 0) == (0, 0)


def test_a_full_disk_refuses_sends_and_not_reads(
    cluster: Cluster, server: BrokerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.store.create_topic("Orders", 1)
    assert send(cluster, server, "Orders", b"before").code == ResponseCode.SUCCESS
    monkeypatch.setattr(disk_space, "usage_percent", lambda root: 91)
    monkeypatch.setattr(server.store._writing()._space, "_next_look_s", 0.0)
    answer = send(cluster, server, "Orders", b"tea")
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert server.store.queue_range("Orders", 0) == (0, 1)
    with Connection(server.address) as consumer:
        found = consumer.ask(RequestCode.PULL_MESSAGE, requests.pull_fields("Orders", offset=0, sys_flag=4))
    assert found.code == ResponseCode.SUCCESS and b"before" in found.body


@pytest.mark.parametrize("topic", ["Orders", "%RETRY%cg"])
def test_a_compressed_body_stays_readable_and_names_its_sender(
    cluster: Cluster, server: BrokerServer, topic: str
) -> None:
    """Producers compress from 4 KiB on, those of consumers too."""
    answer = send(cluster, server, topic, zlib.compress(b"tea" * 2000), f=str(0x301))
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    offset = int((answer.ext_fields["msgId"])[16:], 16)
    stored = server.store.message_at(offset)
    assert stored.sys_flag == 0x301
    assert zlib.decompress(stored.body) == b"tea" * 2000
    assert stored.born_host.address == bytes((127, 0, 0, 1)) and stored.born_host.port > 0


@pytest.mark.parametrize(
    ("properties", "place"),
    [
        ("", ("%RETRY%cg", 0)),
        ("DELAY\x010\x02", ("%RETRY%cg", 0)),
        ("DELAY\x015\x02", ("SCHEDULE_TOPIC_XXXX", 4)),
        ("DELAY\x0199\x02", ("SCHEDULE_TOPIC_XXXX", 17)),
    ],
)
def test_a_message_for_a_retry_topic_waits_as_long_as_its_client_says(
    cluster: Cluster, server: BrokerServer, properties: str, place: tuple[str, int]
) -> None:
    """Consumers set DELAY (DefaultMQPushConsumerImpl#sendMessageBack); a dead letter that is sent on has none."""
    answer = send(cluster, server, "%RETRY%cg", b"again", i=properties, j="0", l="1")
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    stored = server.store.message_at(int(answer.ext_fields["msgId"][16:], 16))
    assert (stored.topic, stored.queue_id) == place
    assert ("REAL_TOPIC" in stored.properties) == (place[0] != "%RETRY%cg")


def test_a_batch_for_a_retry_topic_is_refused(cluster: Cluster, server: BrokerServer) -> None:
    """Its body would be one message (SendMessageProcessor#sendBatchMessage)."""
    answer = send(cluster, server, "%RETRY%cg", b"two bodies", m="true")
    assert (answer.code, answer.remark) == (13, "batch request does not support retry group %RETRY%cg")
    assert server.store.find_topic("%RETRY%cg") is None


def test_a_new_topic_is_made_after_the_one_that_its_producer_names(cluster: Cluster, server: BrokerServer) -> None:
    """createTopicKey: rights and queues are inherited where the pattern has PERM_INHERIT (TopicConfigManager.java)."""
    server.store.create_topic("Pattern", 3, 7)
    server.store.create_topic("Plain", 3, 6)

    def made(topic: str, pattern: str, queues: int) -> int:
        fields = {"a": "pg", "b": topic, "c": pattern, "d": str(queues), "e": "0", "f": "0", "g": "0", "h": "0"}
        answer = cluster.client.call(server.address, RemotingCommand(310, fields, b"x"), 20_000)
        return int(answer.code)

    assert made("Bills", "Pattern", 8) == ResponseCode.SUCCESS
    assert made("Notes", "Pattern", 2) == ResponseCode.SUCCESS
    assert made("Other", "TBW102", 16) == made("Older", "", 4) == ResponseCode.SUCCESS
    assert made("Never", "Plain", 4) == made("Never", "Missing", 4) == ResponseCode.TOPIC_NOT_EXIST
    topics = server.store.topics()
    assert [(topics[name].write_queue_nums, topics[name].perm) for name in ("Bills", "Notes", "Other", "Older")] == [
        (3, 6), (2, 6), (8, 6), (4, 6)
    ]  # fmt: skip
    assert "Never" not in topics


@pytest.mark.parametrize("topic", ["RMQ_SYS_TRACE_TOPIC", "BenchmarkTest"])
def test_the_system_topics_of_clients_take_sends(cluster: Cluster, server: BrokerServer, topic: str) -> None:
    """Where a Java client's trace dispatcher sends to, with the settings of TBW102 while there is no route."""
    answer = send(cluster, server, topic, b"trace")
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    assert server.store.message_at(int(answer.ext_fields["msgId"][16:], 16)).topic == topic
    assert server.routes.route(topic) is not None


def test_the_topics_of_the_broker_take_none(cluster: Cluster, server: BrokerServer) -> None:
    for topic in (
        "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT", "TBW102", "rmq_sys_wheel_timer", "rmq_sys_pyrmq_timer",
    ):  # fmt: skip
        answer = send(cluster, server, topic, b"x")
        assert answer.code == ResponseCode.NO_PERMISSION, topic


@pytest.mark.parametrize("write_queues", [1, 0])
def test_producers_with_an_old_route_still_send_when_a_topic_gets_fewer_write_queues(
    cluster: Cluster, server: BrokerServer, write_queues: int
) -> None:
    """A queue that is only read takes messages that name it (AbstractSendMessageProcessor#msgCheck): a client's route
    is up to 30 s old, and Java's producers do not repeat a send after code 29.
    """
    narrow = TopicConfig("Orders", 4, write_queues)
    server.store.admin.update_topic("Orders", lambda _: narrow, default=narrow)
    alone = send(cluster, server, "Orders", b"alone", e="3")
    assert alone.code == ResponseCode.SUCCESS, alone.remark
    entry = struct.pack(">iiiii1sh", 23, 0, 0, 0, 1, b"b", 0)
    batch = send(cluster, server, "Orders", entry, e="3", m="true")
    assert batch.code == ResponseCode.SUCCESS, batch.remark
    half = send(cluster, server, "Orders", b"half", e="3", i="TRAN_MSG\x01true\x02PGROUP\x01pg\x02")
    assert half.code == ResponseCode.SUCCESS, half.remark
    assert server.store.queue_range("Orders", 3).max_offset == 2
    for queue_id in ("4", "65536"):
        assert send(cluster, server, "Orders", b"x", e=queue_id).code == ResponseCode.INVALID_PARAMETER


@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE])
def test_a_batch_is_no_message_that_a_consumer_sends_again(cluster: Cluster, server: BrokerServer, code: int) -> None:
    """SendMessageProcessor#sendBatchMessage. Its body was stored as that of one message."""
    fields = {"a": "pg", "b": "%RETRY%cg", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0", "h": "0", "m": "true"}
    entry = struct.pack(">iiiii1sh", 23, 0, 0, 0, 1, b"b", 0)
    answer = cluster.client.call(server.address, RemotingCommand(code, fields, entry), 20_000)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert "%RETRY%cg" not in server.store.topics()


def recall(cluster: Cluster, server: BrokerServer, handle: str, topic: str = "Orders") -> RemotingCommand:
    fields = {"topic": topic, "recallHandle": handle, "producerGroup": "pg"}
    return cluster.client.call(server.address, RemotingCommand(RequestCode.RECALL_MESSAGE, fields), 20_000)


def test_a_timer_is_taken_back_by_the_handle_of_its_answer(cluster: Cluster, server: BrokerServer) -> None:
    answer = send(cluster, server, "Orders", b"later", i="UNIQ_KEY\x01U\x02TIMER_DELAY_SEC\x0160\x02")
    assert answer.code == ResponseCode.SUCCESS
    handle = answer.ext_fields["recallHandle"]
    assert base64.urlsafe_b64decode(handle).startswith(b"v1 Orders rmq-embedded ")
    assert recall(cluster, server, handle, "Missing").code == ResponseCode.TOPIC_NOT_EXIST
    for wrong in ("x", base64.urlsafe_b64encode(b"v1 Orders rmq-embedded 1 U").decode()):
        refused = recall(cluster, server, wrong)
        assert refused.code == ResponseCode.ILLEGAL_OPERATION and (refused.remark or "").startswith("recall failed, ")
    assert sum(one.messages for one in server.store.delay_backlogs()) == 1
    recalled = recall(cluster, server, handle)
    assert (recalled.code, recalled.ext_fields["msgId"]) == (ResponseCode.SUCCESS, "U")
    assert server.store.delay_backlogs() == []


def test_a_send_without_a_delivery_time_has_no_recall_handle(cluster: Cluster, server: BrokerServer) -> None:
    for properties in ("", "DELAY\x011\x02", "TIMER_DELIVER_MS\x011\x02"):
        answer = send(cluster, server, "Orders", b"x", i=properties)
        assert answer.code == ResponseCode.SUCCESS and "recallHandle" not in answer.ext_fields


def test_a_producer_over_the_wire_sends_timers_and_takes_them_back(cluster: Cluster, server: BrokerServer) -> None:
    """The server announces a version of 4.9, which has no timers for anybody else."""
    server.store.create_topic("Orders", queue_count=1)
    with Producer("pg", f"rmq://{server.address}", config=PATIENT) as producer:
        sent = producer.send(Message("Orders", b"later", properties={"TIMER_DELAY_SEC": "60"}))
        assert server.store.queue_range("Orders", 0).max_offset == 0
        assert sent.recall_handle is not None
        assert producer.recall_message("Orders", sent.recall_handle) == sent.msg_id
    assert server.store.delay_backlogs() == []


@pytest.mark.parametrize("remaining_ms", [30_000, 90_000])
def test_a_repeated_write_stores_rows_with_and_without_deliver_times_once(
    cluster: Cluster, server: BrokerServer, remaining_ms: int
) -> None:
    """The replay check reads where a served store keeps timers; `remaining_ms` decides about the queue there."""
    server.store.create_topic("Orders", queue_count=2)
    due = str(int(time.time() * 1000) + remaining_ms)
    rows = pa.RecordBatch.from_pydict({"body": [b"a", b"b", b"b", b"b"], "TIMER_DELIVER_MS": [due, due, None, due]})
    settings = SinkSettings(EncoderSettings("Orders"), settle_ms=0)
    reports = []
    for _ in range(2):
        with SinkTask(Cluster(cluster.settings), settings, WritePart("query", 0, 0)) as task:
            task.write(rows)
            reports.append(task.finish())
    assert [(report.rows, report.skipped) for report in reports] == [(4, 0), (0, 4)]
    assert sum(one.messages for one in server.store.delay_backlogs()) == 3
    assert sum(server.store.queue_range("Orders", number).max_offset for number in range(2)) == 1


LIMIT_BYTES = 2000


@pytest.fixture
def narrow_server(root: Path, small: StoreConfig) -> Iterator[BrokerServer]:
    with BrokerServer(root.with_name("narrow"), config=replace(small, max_message_size=LIMIT_BYTES), create=True) as it:
        yield it


def entries(bodies: list[bytes], properties: bytes = b"") -> bytes:
    """The body of a batch; a Go client sends its messages without unique keys."""
    return b"".join(
        struct.pack(">iiiii", 22 + len(body) + len(properties), 0, 0, 0, len(body))
        + body + struct.pack(">H", len(properties)) + properties
        for body in bodies
    )  # fmt: skip


@pytest.mark.skipif(not native.LOADED, reason="the extension was not built, or RMQ_PURE=1")
@pytest.mark.parametrize("properties", [b"", b"TAGS\x01t\x02", b"UNIQ_KEY\x01\x02"])
def test_messages_of_a_batch_without_unique_keys_are_encoded_together_and_get_some(
    cluster: Cluster, server: BrokerServer, properties: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Message by message it took 20 to 30 times the processor time, and all other sends waited for it."""
    monkeypatch.setattr("rmq_store.broker.write.writer.read_batch", None)
    for code in (RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_MESSAGE_V2):
        fields = {"a": "pg", "b": "Orders", "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "0", "h": "0"}
        command = RemotingCommand(code, fields | {"m": "true"}, entries([b"one", b"", b"three"], properties))
        answer = cluster.client.call(server.address, command, 20_000)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
    stored = [server.store.message_at(int(one[16:], 16)) for one in answer.ext_fields["msgId"].split(",")]
    assert [one.body for one in stored] == [b"one", b"", b"three"]
    keys = [one.properties["UNIQ_KEY"] for one in stored]
    assert len(set(keys)) == 3 and answer.ext_fields["transactionId"] == ",".join(keys)
    for one in stored:
        (found,) = server.store.query.by_unique_key("Orders", one.properties["UNIQ_KEY"])
        assert found.commit_log_offset == one.commit_log_offset


def test_a_batch_of_more_than_the_largest_message_is_refused(cluster: Cluster, narrow_server: BrokerServer) -> None:
    """MessageExtEncoder#encode of 5.x throws there, so that the answer has code 1. It was stored."""
    server = narrow_server
    server.store.create_topic("Orders", 1)
    most = entries([b"x" * 478] * 4)
    assert len(most) == LIMIT_BYTES
    assert send(cluster, server, "Orders", most, m="true").code == ResponseCode.SUCCESS
    for properties in (b"", b"UNIQ_KEY\x01U\x02", b"DELAY\x011\x02"):
        answer = send(cluster, server, "Orders", entries([b"x" * 479] * 4, properties), m="true")
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert (answer.remark or "").startswith("message body size exceeded")
    assert server.store.queue_range("Orders", 0) == (0, 4)
    assert server.store.delay_backlogs() == []


@pytest.mark.parametrize("fields", [{"f": "4"}, {"f": "8"}, {"i": "DELAY\x013\x02"}])
def test_a_batch_that_is_a_transaction_or_waits_as_a_whole_is_refused(
    cluster: Cluster, server: BrokerServer, fields: dict[str, str]
) -> None:
    """CommitLog#asyncPutMessages. Its messages were visible at once."""
    answer = send(cluster, server, "Orders", entries([b"a"]), m="true", **fields)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert send(cluster, server, "Orders", entries([b"a"]), m="true", i="DELAY\x010\x02").code == ResponseCode.SUCCESS


@pytest.mark.parametrize("topic", ["Orders", "%RETRY%cg"])
def test_a_message_of_more_than_the_largest_is_refused(
    cluster: Cluster, narrow_server: BrokerServer, topic: str
) -> None:
    """PutMessageStatus MESSAGE_ILLEGAL."""
    server = narrow_server
    assert send(cluster, server, topic, b"x" * LIMIT_BYTES).code == ResponseCode.SUCCESS
    for fields in ({}, {"i": "TRAN_MSG\x01true\x02PGROUP\x01pg\x02"}):
        assert send(cluster, server, topic, b"x" * (LIMIT_BYTES + 1), **fields).code == ResponseCode.MESSAGE_ILLEGAL
    long = "a\x01" + "x" * 32_767 + "\x02"
    assert send(cluster, server, topic, b"x", i=long).code == ResponseCode.MESSAGE_ILLEGAL
