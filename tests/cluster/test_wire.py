"""The client of the remoting protocol against released brokers: both header forms, typed answers, ACL and TLS."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from helpers.cluster import requests
from helpers.cluster.brokers import RocketmqCluster
from helpers.cluster.fixtures import require_released
from helpers.cluster.java_process import VERSIONS
from helpers.cluster.security import Acl, Tls
from rmq_store.client import RemotingError
from rmq_store.protocol.bodies.clients import (
    ConsumerData,
    HeartbeatData,
    LockBatchRequestBody,
    LockBatchResponseBody,
    ProducerData,
)
from rmq_store.protocol.bodies.groups import SubscriptionData
from rmq_store.protocol.bodies.json_body import JsonBody
from rmq_store.protocol.bodies.routes import ClusterInfo, TopicRouteData
from rmq_store.protocol.bodies.topics import TopicConfigTable, TopicStatsTable
from rmq_store.protocol.messages import MessageQueue
from rmq_store.protocol.wire import admin_headers as admin
from rmq_store.protocol.wire import group_headers as groups
from rmq_store.protocol.wire import headers as messages
from rmq_store.protocol.wire import name_server_headers as name_server
from rmq_store.protocol.wire import pop_headers as pop
from rmq_store.protocol.wire.command import RemotingCommand, SerializeType
from rmq_store.protocol.wire.header_fields import RequestHeader, ResponseHeader, request
from rmq_store.remoting.transport.client import RemotingClient
from rmq_store.remoting.transport.settings import ClusterSettings, TlsSettings
from rmq_store.server.requests.request_table import REQUESTS, Receiver

NewName = Callable[[str], str]
SECRET = "kept-out-of-logs"


class Asking:
    """Typed requests: the answer's header and body are read as the table of requests says."""

    def __init__(self, client: RemotingClient, cluster: RocketmqCluster, kind: SerializeType) -> None:
        self.client = client
        self.cluster = cluster
        self.kind = kind
        self.answered_as: set[SerializeType] = set()

    def ask(self, header: RequestHeader, body: JsonBody | bytes = b"") -> RemotingCommand:
        """The answer, whatever its code."""
        address = self.cluster.name_server
        if REQUESTS[header.code].receiver is Receiver.BROKER:
            address = self.cluster.address()
        command = request(header, body.encode() if isinstance(body, JsonBody) else body)
        command.serialize_type = self.kind
        answer = self.client.call(address, command, 20_000)
        self.answered_as.add(answer.serialize_type)
        return answer

    def until_found(self, query: RequestHeader) -> None:
        """The index of a broker follows its log."""
        eventually(lambda: self.ask(query).code == 0)

    def body(self, header: RequestHeader, body: JsonBody | bytes = b"") -> JsonBody:
        answer = self.ask(header, body)
        assert answer.code == 0, answer
        found = REQUESTS[header.code].response_body
        assert found is not None
        return found.decode(answer.body)

    def header(self, header: RequestHeader, body: JsonBody | bytes = b"") -> ResponseHeader:
        answer = self.ask(header, body)
        assert answer.code == 0, answer
        found = REQUESTS[header.code].response_header
        assert found is not None
        return found.from_ext(answer.ext_fields)


@pytest.fixture(params=SerializeType, ids=lambda kind: kind.name)
def asking(cluster: RocketmqCluster, request: pytest.FixtureRequest) -> Iterator[Asking]:
    with RemotingClient(ClusterSettings(name_servers=(cluster.name_server,))) as client:
        yield Asking(client, cluster, request.param)


def send_header(topic: str, queue_id: int = 0, properties: str = "") -> messages.SendMessageRequestHeaderV2:
    return messages.SendMessageRequestHeaderV2(
        producer_group="pg", topic=topic, default_topic="TBW102", default_topic_queue_nums=4, queue_id=queue_id,
        sys_flag=0, born_timestamp=int(time.time() * 1000), flag=0, properties=properties, reconsume_times=0,
        unit_mode=False, batch=False,
    )  # fmt: skip


def pull_header(topic: str, offset: int = 0) -> messages.PullMessageRequestHeader:
    return messages.PullMessageRequestHeader(
        consumer_group="TOOLS_CONSUMER", topic=topic, queue_id=0, queue_offset=offset, max_msg_nums=32, sys_flag=4,
        commit_offset=0, suspend_timeout_millis=0, subscription="*", sub_version=0, expression_type="TAG",
    )  # fmt: skip


def eventually(true: Callable[[], bool], within_s: float = 20) -> None:
    end = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < end, "it did not become true"
        time.sleep(0.05)


def test_routes_topics_and_offsets_are_read_as_typed_values(asking: Asking, new_name: NewName) -> None:
    topic = asking.cluster.create_topic(new_name("Typed"), 2)
    route = asking.body(name_server.GetRouteInfoRequestHeader(topic=topic))
    assert isinstance(route, TopicRouteData)
    (queues,) = route.queue_datas
    assert (queues.broker_name, queues.read_queue_nums, queues.write_queue_nums, queues.perm) == ("broker-a", 2, 2, 6)
    assert route.broker_datas[0].broker_addrs[0] == asking.cluster.address()
    info = asking.body(name_server.GetBrokerClusterInfoRequestHeader())
    assert isinstance(info, ClusterInfo)
    assert info.broker_addr_table["broker-a"].broker_addrs[0] == asking.cluster.address()
    missing = asking.ask(name_server.GetRouteInfoRequestHeader(topic=new_name("Missing")))
    assert (missing.code, missing.body) == (17, b"") and missing.remark

    sent = asking.header(send_header(topic, properties="KEYS\x01k1\x02UNIQ_KEY\x01" + "A" * 32), b"tea")
    assert isinstance(sent, messages.SendMessageResponseHeader)
    assert (sent.queue_id, sent.queue_offset) == (0, 0)
    queue = MessageQueue(topic, "broker-a", 0)

    def stats() -> TopicStatsTable:
        found = asking.body(admin.GetTopicStatsInfoRequestHeader(topic=topic))
        assert isinstance(found, TopicStatsTable)
        return found

    eventually(lambda: stats().offset_table[queue].max_offset == 1)
    assert stats().offset_table[queue].last_update_timestamp > 1_700_000_000_000
    assert stats().offset_table[MessageQueue(topic, "broker-a", 1)].max_offset == 0
    found = asking.header(messages.GetMaxOffsetRequestHeader(topic=topic, queue_id=0))
    assert found == messages.GetMaxOffsetResponseHeader(offset=1)
    found = asking.header(messages.SearchOffsetRequestHeader(topic=topic, queue_id=0, timestamp=0))
    assert found == messages.SearchOffsetResponseHeader(offset=0)
    pulled = asking.ask(pull_header(topic))
    assert [requests.body_of(frame) for frame in requests.frames(pulled)] == [b"tea"]
    range_ = messages.PullMessageResponseHeader.from_ext(pulled.ext_fields)
    assert (range_.next_begin_offset, range_.min_offset, range_.max_offset) == (1, 0, 1)
    assert asking.ask(pull_header(topic, 1)).code == 19
    for key, unique in (("k1", False), ("A" * 32, True)):
        query = messages.QueryMessageRequestHeader(
            topic=topic, key=key, max_num=32, begin_timestamp=0, end_timestamp=(1 << 63) - 1, is_unique_key=unique
        )
        asking.until_found(query)
        assert [requests.body_of(frame) for frame in requests.frames(asking.ask(query))] == [b"tea"]
    # 5.5.0 reads binary headers and answers in JSON; 4.9.7 answers most requests in the form in which they came.
    answers_alike = asking.cluster.version.startswith("4.") and asking.kind is SerializeType.ROCKETMQ
    assert (SerializeType.ROCKETMQ in asking.answered_as) == answers_alike


def test_what_brokers_tell_about_themselves_is_read(asking: Asking) -> None:
    topics = asking.body(admin.GetAllTopicConfigRequestHeader())
    assert isinstance(topics, TopicConfigTable)
    assert topics.topic_config_table["TBW102"].perm == 7
    for header in (
        name_server.GetAllTopicListFromNamesrvRequestHeader(),
        admin.GetAllSubscriptionGroupRequestHeader(),
        admin.GetBrokerRuntimeInfoRequestHeader(),
    ):
        body = asking.body(header)
        assert any(getattr(body, one.name) for one in dataclasses.fields(body))
    assert b"brokerName=broker-a" in asking.ask(admin.GetBrokerConfigRequestHeader()).body


def test_members_locks_and_offsets_of_a_group(asking: Asking, new_name: NewName) -> None:
    topic, group = asking.cluster.create_topic(new_name("Typed"), 1), new_name("cg")
    heartbeat = HeartbeatData(
        client_id="client-1",
        producer_data_set=(ProducerData(group_name="pg"),),
        consumer_data_set=(
            ConsumerData(group_name=group, subscription_data_set=(SubscriptionData(topic=topic, sub_string="*"),)),
        ),
    )
    notified: list[str] = []
    asking.client.on_request(40, lambda _, command: notified.append(command.ext_fields["consumerGroup"]))
    assert asking.ask(groups.HeartbeatRequestHeader(), heartbeat).code == 0
    eventually(lambda: group in notified)
    consumers = asking.body(groups.GetConsumerListByGroupRequestHeader(consumer_group=group))
    assert consumers.to_json() == {"consumerIdList": ["client-1"]}
    connection = asking.body(admin.GetConsumerConnectionListRequestHeader(consumer_group=group)).to_json()
    (member,) = connection["connectionSet"]
    assert (member["clientId"], member["language"], member["version"]) == ("client-1", "PYTHON", 409)
    assert (connection["consumeType"], connection["messageModel"]) == ("CONSUME_PASSIVELY", "CLUSTERING")
    queue = MessageQueue(topic, "broker-a", 0)
    lock = LockBatchRequestBody(consumer_group=group, client_id="client-1", mq_set=(queue,))
    locked = asking.body(groups.LockBatchMqRequestHeader(), lock)
    assert locked == LockBatchResponseBody(lock_ok_mq_set=(queue,))
    other = dataclasses.replace(lock, client_id="client-2")
    assert asking.body(groups.LockBatchMqRequestHeader(), other) == LockBatchResponseBody()
    assert asking.ask(groups.UnlockBatchMqRequestHeader(), lock).code == 0
    assert asking.body(groups.LockBatchMqRequestHeader(), other) == LockBatchResponseBody(lock_ok_mq_set=(queue,))
    commit = messages.UpdateConsumerOffsetRequestHeader(consumer_group=group, topic=topic, queue_id=0, commit_offset=0)
    assert asking.ask(commit).code == 0
    offset = messages.QueryConsumerOffsetRequestHeader(consumer_group=group, topic=topic, queue_id=0)
    assert asking.header(offset) == messages.QueryConsumerOffsetResponseHeader(offset=0)
    stats = asking.body(admin.GetConsumeStatsRequestHeader(consumer_group=group)).to_json()
    assert [row["consumerOffset"] for row in stats["offsetTable"].values()][:1] == [0]
    leaving = groups.UnregisterClientRequestHeader(client_id="client-1", consumer_group=group)
    assert asking.ask(leaving).code == 0
    assert asking.ask(admin.GetConsumerConnectionListRequestHeader(consumer_group=group)).code == 206


def test_a_code_beyond_int16_goes_as_json_whatever_the_others_use(asking: Asking, new_name: NewName) -> None:
    topic = asking.cluster.create_topic(new_name("Typed"), 1)
    asking.header(send_header(topic), b"tea")
    received = asking.ask(
        pop.PopMessageRequestHeader(
            consumer_group=new_name("cg"), topic=topic, queue_id=-1, max_msg_nums=8, invisible_time=60_000,
            poll_time=5000, born_time=int(time.time() * 1000), init_mode=0,
        )
    )  # fmt: skip
    if asking.cluster.version.startswith("4."):
        assert received.code == 3  # REQUEST_CODE_NOT_SUPPORTED
    else:
        assert [requests.body_of(frame) for frame in requests.frames(received)] == [b"tea"]
        assert pop.PopMessageResponseHeader.from_ext(received.ext_fields).invisible_time == 60_000


@pytest.mark.parametrize("version", VERSIONS)
def test_acl_and_tls_together(version: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    require_released(version)
    acl, tls = Acl(secret_key=SECRET), Tls(tmp_path, client_certificates=True)
    certificate, key = tls.client_files
    own = TlsSettings(ca_file=str(tls.ca_file), cert_file=str(certificate), key_file=str(key))
    monkeypatch.setenv("T_AK", acl.access_key)
    monkeypatch.setenv("T_SK", SECRET)
    monkeypatch.setenv("T_WRONG", "wrong")
    with RocketmqCluster(version, acl=acl, tls=tls) as cluster:
        topic = cluster.create_topic("Secured", 1)

        def settings(**changed: object) -> ClusterSettings:
            given = {"access_key": "env:T_AK", "secret_key": "env:T_SK", "tls": own, **changed}
            return ClusterSettings(name_servers=(cluster.name_server,), **given)  # type: ignore[arg-type]

        for kind in SerializeType:
            with RemotingClient(settings()) as client:
                asking = Asking(client, cluster, kind)
                unique = f"{kind:032X}"
                properties = f"KEYS\x01k{kind}\x02UNIQ_KEY\x01{unique}"
                assert asking.ask(send_header(topic, properties=properties), b"tea").code == 0
                # The signature of this request differs between versions: signed and unsigned, by one key and the other.
                for text, by_unique_key in ((f"k{kind}", False), (unique, True)):
                    query = messages.QueryMessageRequestHeader(
                        topic=topic, key=text, max_num=32, begin_timestamp=0, end_timestamp=(1 << 63) - 1,
                        is_unique_key=by_unique_key,
                    )  # fmt: skip
                    asking.until_found(query)
                assert asking.ask(pull_header(topic)).code == 0
        with RemotingClient(settings(secret_key="env:T_WRONG")) as client:
            refused = Asking(client, cluster, SerializeType.JSON).ask(send_header(topic), b"tea")
            assert refused.code in (1, 16) and "ignature" in (refused.remark or "")
        with RemotingClient(settings(access_key="", secret_key="")) as client:
            refused = Asking(client, cluster, SerializeType.JSON).ask(send_header(topic), b"tea")
            assert refused.code in (1, 16)
        for other in (None, TlsSettings(), TlsSettings(ca_file=own.ca_file)):
            with RemotingClient(settings(tls=other)) as client, pytest.raises(RemotingError) as caught:
                client.call(cluster.address(), request(pull_header(topic)), 5000)
            assert cluster.address() in str(caught.value)
