"""What an administrator changes at a served store, and what members of groups are asked or told."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from helpers.patient import PATIENT
from rmq_store import Message, Store, StoreConfig
from rmq_store.broker.metadata.groups import SubscriptionGroup
from rmq_store.client import (
    ConsumeConcurrentlyContext,
    ConsumeConcurrentlyStatus,
    MessageExt,
    MessageListenerConcurrently,
    Producer,
    PushConsumer,
    ResponseCode,
)
from rmq_store.format.text.names import dlq_topic, retry_topic
from rmq_store.protocol.bodies.clients import (
    ConsumeMessageDirectlyResult,
    ConsumerData,
    ConsumerRunningInfo,
    HeartbeatData,
)
from rmq_store.protocol.bodies.groups import ResetOffsetBody, SubscriptionGroupConfig
from rmq_store.protocol.messages import MessageQueue
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.group_headers import InvokeBrokerToResetOffsetRequestHeader
from rmq_store.protocol.wire.header_fields import request
from rmq_store.protocol.wire.request_codes import RequestCode
from rmq_store.remoting.cluster import groups, offsets
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.transport.settings import ClusterSettings
from rmq_store.server.broker_server import BrokerServer
from rmq_store.server.processors import client_requests

PATIENCE_S = 60.0
CPP = 1
GROUP = b'{"groupName":"cg","retryMaxTimes":%d}'


def eventually(condition: Callable[[], object]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s, "it did not happen"
        time.sleep(0.005)


@pytest.fixture
def orders(server: BrokerServer) -> Store:
    store = server.store
    store.create_topic("Orders", 2)
    for number in range(10):
        store.send(Message("Orders", b"%d" % number, queue_id=number % 2))
    return store


def call(cluster: Cluster, code: int, body: bytes = b"", **fields: str) -> RemotingCommand:
    command = RemotingCommand(code, fields, body)
    return cluster.client.call(cluster.settings.name_servers[0], command, 20_000)


# -- topics and groups ---


def test_a_group_is_made_and_changed(cluster: Cluster, orders: Store) -> None:
    for times in (3, 5):
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        assert call(cluster, code, GROUP % times).code == ResponseCode.SUCCESS
        assert orders.groups()["cg"] == SubscriptionGroup("cg", retry_max_times=times)


def test_attributes_of_a_group_stay_when_a_change_does_not_name_them(cluster: Cluster, orders: Store) -> None:
    orders.create_group(SubscriptionGroup("cg", attributes={"a": "b"}))
    body = SubscriptionGroupConfig(group_name="cg", consume_enable=False).encode()
    assert call(cluster, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body).code == ResponseCode.SUCCESS
    assert orders.groups()["cg"] == SubscriptionGroup("cg", attributes={"a": "b"}, consume_enable=False)


def test_attributes_of_a_group_are_changes_as_mqadmin_sends_them(cluster: Cluster, orders: Store) -> None:
    """SubscriptionGroupManager#updateSubscriptionGroupConfig; fastjson sends an empty map where there are none."""
    for changes, after in (
        ({"+a": "1", "+b": "2"}, {"a": "1", "b": "2"}),
        ({}, {"a": "1", "b": "2"}),
        ({"-a": "", "+b": "3"}, {"b": "3"}),
    ):
        body = SubscriptionGroupConfig(group_name="cg", attributes=changes).encode()
        assert call(cluster, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body).code == ResponseCode.SUCCESS
        assert orders.groups()["cg"].attributes == after


@pytest.mark.parametrize(
    "body",
    [
        b'{"groupName":"a/b"}', b"{}", b"", b'{"groupName":"cg","retryQueueNums":-5}',
        b'{"groupName":"cg","attributes":{"a":"b"}}', b'{"groupName":"cg","attributes":{"+a":"b","-a":""}}',
    ],
)  # fmt: skip
def test_a_group_that_cannot_be_is_refused(cluster: Cluster, orders: Store, body: bytes) -> None:
    assert call(cluster, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body).code == ResponseCode.SYSTEM_ERROR
    assert not orders.groups()


def make_topic(cluster: Cluster, attributes: str | None) -> RemotingCommand:
    fields = {"topic": "New", "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6"}
    given = {"attributes": attributes} if attributes is not None else {}
    return call(cluster, RequestCode.UPDATE_AND_CREATE_TOPIC, **fields, **given)


def test_attributes_of_a_topic_are_set_kept_and_removed(cluster: Cluster, orders: Store) -> None:
    """The proxy and our gRPC port refuse other types by them (TopicConfigManager#updateTopicConfig)."""
    fifo = {"message.type": "FIFO"}
    for changes, after in (("+message.type=FIFO", fifo), (None, fifo), ("", fifo), ("-message.type", {})):
        assert make_topic(cluster, changes).code == ResponseCode.SUCCESS
        assert orders.topics()["New"].attributes == after


@pytest.mark.parametrize(
    "attributes", ["message.type=FIFO", "+x=y", "+message.type=", "+message.type=WARP", "+queue.type=BatchCQ", "+"]
)
def test_attributes_that_a_topic_cannot_have_make_none(cluster: Cluster, orders: Store, attributes: str) -> None:
    assert make_topic(cluster, attributes).code == ResponseCode.SYSTEM_ERROR
    assert "New" not in orders.topics()


@pytest.mark.parametrize("cleans", [False, True])
def test_a_group_is_deleted_and_its_offsets_if_it_is_asked_for(cluster: Cluster, orders: Store, cleans: bool) -> None:
    orders.create_group(SubscriptionGroup("cg"))
    offsets.update_consumer_offsets(cluster, "cg", {MessageQueue("Orders", "rmq-embedded", 0): 3})
    for topic in (retry_topic("cg"), dlq_topic("cg")):
        orders.create_topic(topic, 1)
    fields = {"groupName": "cg", "cleanOffset": str(cleans).lower()}
    for _ in range(2):  # what is not there counts as deleted
        assert call(cluster, RequestCode.DELETE_SUBSCRIPTIONGROUP, **fields).code == ResponseCode.SUCCESS
        assert not orders.groups()
    assert (orders.committed_offsets("cg") == {}) is cleans
    assert (retry_topic("cg") in orders.topics()) is not cleans


def test_a_topic_is_deleted_and_leaves_the_routes(cluster: Cluster, orders: Store) -> None:
    assert call(cluster, RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="Orders").code == ResponseCode.SUCCESS
    for code in (RequestCode.DELETE_TOPIC_IN_BROKER, RequestCode.DELETE_TOPIC_IN_NAMESRV) * 2:
        assert call(cluster, code, topic="Orders").code == ResponseCode.SUCCESS
    assert orders.find_topic("Orders") is None
    assert call(cluster, RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="Orders").code == ResponseCode.TOPIC_NOT_EXIST


def test_a_topic_of_the_broker_is_not_deleted(cluster: Cluster, orders: Store) -> None:
    answer = call(cluster, RequestCode.DELETE_TOPIC_IN_BROKER, topic="SCHEDULE_TOPIC_XXXX")
    assert answer.code == ResponseCode.SYSTEM_ERROR and "belongs to the broker" in (answer.remark or "")


# -- resets ---


def reset(
    cluster: Cluster, timestamp: int, *, force: bool = True, group: str = "cg", **fields: int
) -> RemotingCommand:
    header = InvokeBrokerToResetOffsetRequestHeader(
        topic="Orders", group=group, timestamp=timestamp, is_force=force, **fields
    )
    return cluster.client.call(cluster.settings.name_servers[0], request(header), 20_000)


def told(answer: RemotingCommand) -> dict[int, int]:
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return {queue.queue_id: offset for queue, offset in ResetOffsetBody.decode(answer.body).offset_table.items()}


def stored(store: Store) -> dict[int, int]:
    return {queue_id: offset for (_, queue_id), offset in store.committed_offsets("cg").items()}


def test_a_group_is_set_to_a_time_to_the_end_or_to_an_offset(cluster: Cluster, orders: Store) -> None:
    orders.create_group(SubscriptionGroup("cg"))
    assert told(reset(cluster, -1)) == stored(orders) == {0: 5, 1: 5}
    assert told(reset(cluster, 0)) == stored(orders) == {0: 0, 1: 0}
    assert told(reset(cluster, -1, queue_id=1, offset=3)) == {1: 3}
    assert stored(orders) == {0: 0, 1: 3}
    assert told(reset(cluster, -1, force=False)) == stored(orders) == {0: 0, 1: 3}  # never forward


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"queue_id": 2}, ResponseCode.INVALID_PARAMETER),
        ({"queue_id": 0, "offset": 6}, ResponseCode.SYSTEM_ERROR),
        ({}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
    ],
)
def test_a_reset_that_cannot_be_done_changes_nothing(
    cluster: Cluster, orders: Store, fields: dict[str, int], code: int
) -> None:
    if fields:
        orders.create_group(SubscriptionGroup("cg"))
    assert reset(cluster, 0, **fields).code == code
    assert stored(orders) == {}


def test_a_group_of_the_store_is_not_reset(cluster: Cluster, orders: Store) -> None:
    orders.commit_offsets("CID_RMQ_SYS_TRANS", {("Orders", 0): 2})
    assert reset(cluster, -1, group="CID_RMQ_SYS_TRANS").code == ResponseCode.NO_PERMISSION
    assert orders.committed_offsets("CID_RMQ_SYS_TRANS") == {("Orders", 0): 2}


def test_a_member_that_is_online_gets_the_messages_again(place: str, cluster: Cluster, orders: Store) -> None:
    got: list[bytes] = []

    def listen(messages: list[MessageExt], _: ConsumeConcurrentlyContext) -> ConsumeConcurrentlyStatus:
        got.extend(one.body for one in messages)
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    consumer = PushConsumer("cg", place)
    consumer.subscribe("Orders", "*")
    consumer.register_message_listener(MessageListenerConcurrently(listen))
    with consumer:
        consumer.start()
        eventually(lambda: len(got) == 10)
        reset(cluster, 0)
        eventually(lambda: len(got) == 20)
    assert sorted(got) == sorted([b"%d" % number for number in range(10)] * 2)


def test_a_reset_is_refused_while_members_run_that_cannot_be_told(
    cluster: Cluster, orders: Store, server: BrokerServer
) -> None:
    server._served.broker.heartbeat("cg", "a-local-one", joins=True, topics=["Orders"])
    answer = reset(cluster, 0)
    assert answer.code == ResponseCode.SYSTEM_ERROR and "stop them first" in (answer.remark or "")
    assert stored(orders) == {}


class Member:
    """A client that joins a group, and keeps what the broker asks of it."""

    def __init__(self, server: BrokerServer, *, language: int | None = None) -> None:
        self.cluster = Cluster(ClusterSettings.of_text(server.address))
        self.asked: list[RemotingCommand] = []
        self.answer = RemotingCommand(0)
        self.silent = threading.Event()
        for code in (220, 221, 307, 309, 326):
            self.cluster.client.on_request(code, self._asked)
        beat = HeartbeatData(client_id="one", consumer_data_set=(ConsumerData(group_name="cg"),)).encode()
        command = RemotingCommand(RequestCode.HEART_BEAT, {}, beat)
        if language is not None:
            command.language = language
        assert self.cluster.client.call(server.address, command, 20_000).code == ResponseCode.SUCCESS
        assert groups.consumer_ids(self.cluster, "cg", server.store.broker_name) == ["one"]

    def _asked(self, address: str, command: RemotingCommand) -> RemotingCommand | None:
        self.asked.append(command)
        return None if self.silent.is_set() else self.answer


@pytest.fixture
def join(server: BrokerServer) -> Iterator[Callable[..., Member]]:
    members: list[Member] = []

    def join(**fields: int) -> Member:
        members.append(Member(server, **fields))
        return members[-1]

    yield join
    for one in members:
        one.cluster.close()


def test_a_member_in_cpp_is_told_a_list(join: Callable[..., Member], cluster: Cluster, orders: Store) -> None:
    member = join(language=CPP)
    reset(cluster, -1, queue_id=1)
    eventually(lambda: member.asked)
    (command,) = member.asked
    assert command.is_oneway
    row = {"topic": "Orders", "brokerName": "rmq-embedded", "queueId": 1, "offset": 5}
    assert json.loads(command.body) == {"offsetTable": [row]}


# -- members that answer ---


def running_info(cluster: Cluster, client_id: str = "one") -> RemotingCommand:
    fields = {"consumerGroup": "cg", "clientId": client_id, "jstackEnable": "false"}
    return call(cluster, RequestCode.GET_CONSUMER_RUNNING_INFO, **fields)


def test_a_member_describes_itself(join: Callable[..., Member], cluster: Cluster, orders: Store) -> None:
    member = join()
    member.answer = RemotingCommand(0, body=ConsumerRunningInfo(properties={"a": "b"}).encode())
    answer = running_info(cluster)
    assert ConsumerRunningInfo.decode(answer.body).properties == {"a": "b"}
    member.answer = RemotingCommand(ResponseCode.SYSTEM_ERROR, remark="not now")
    assert (running_info(cluster).code, running_info(cluster).remark) == (ResponseCode.SYSTEM_ERROR, "not now")


def test_a_member_that_is_not_online_is_named(cluster: Cluster, orders: Store) -> None:
    answer = running_info(cluster)
    assert answer.code == ResponseCode.SYSTEM_ERROR and "<one> not online" in (answer.remark or "")


def test_a_member_that_does_not_answer_is_given_up_and_keeps_no_thread(
    join: Callable[..., Member], cluster: Cluster, orders: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = join()
    member.silent.set()
    monkeypatch.setattr(client_requests, "CALL_TIMEOUT_MS", 300)
    command = RemotingCommand(307, {"consumerGroup": "cg", "clientId": "one"})
    waiting = [cluster.client.submit(cluster.settings.name_servers[0], command, 20_000) for _ in range(8)]
    assert [one.result(20).code for one in waiting] == [ResponseCode.CONSUME_MSG_TIMEOUT] * 8
    assert len(member.asked) == 8


def test_the_answer_of_a_member_that_breaks_off_comes_at_once(
    join: Callable[..., Member], cluster: Cluster, orders: Store
) -> None:
    member = join()
    member.silent.set()
    waiting = cluster.client.submit(
        cluster.settings.name_servers[0], RemotingCommand(307, {"consumerGroup": "cg", "clientId": "one"}), 60_000
    )
    eventually(lambda: member.asked)
    member.cluster.close()
    assert waiting.result(5).code == ResponseCode.CONSUME_MSG_TIMEOUT  # the time for an answer is 10 s


def test_a_message_is_given_to_one_member(join: Callable[..., Member], cluster: Cluster, orders: Store) -> None:
    member = join()
    member.answer = RemotingCommand(0, body=ConsumeMessageDirectlyResult(consume_result="CR_SUCCESS").encode())
    stored = orders.message_at(0)
    fields = {"consumerGroup": "cg", "clientId": "one", "msgId": stored.offset_msg_id}
    answer = call(cluster, RequestCode.CONSUME_MESSAGE_DIRECTLY, **fields)
    assert ConsumeMessageDirectlyResult.decode(answer.body).consume_result == "CR_SUCCESS"
    assert member.asked[0].body == orders.frame_at(0)
    assert member.asked[0].ext_fields["brokerName"] == "rmq-embedded"


@pytest.mark.parametrize("msg_id", ["", "xyz", "7F00000100002A9F0000000000000007"])
def test_a_message_that_is_not_there_is_given_to_nobody(
    join: Callable[..., Member], cluster: Cluster, orders: Store, msg_id: str
) -> None:
    member = join()
    fields = {"consumerGroup": "cg", "clientId": "one", "msgId": msg_id}
    assert call(cluster, RequestCode.CONSUME_MESSAGE_DIRECTLY, **fields).code == ResponseCode.SYSTEM_ERROR
    assert not member.asked


# -- topics of the broker itself --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "topic",
    ["DefaultCluster", "rmq-embedded", "DefaultCluster_REPLY_TOPIC", "TBW102", "SELF_TEST_TOPIC", "BenchmarkTest",
     "RMQ_SYS_TRACE_TOPIC", "rmq_sys_x", "SCHEDULE_TOPIC_XXXX"],
)  # fmt: skip
def test_topics_of_the_broker_are_neither_made_nor_deleted(cluster: Cluster, server: BrokerServer, topic: str) -> None:
    """TopicValidator#isSystemTopic; TopicConfigManager#init adds the names of cluster and broker to them."""
    before = dict(server.store.topics())
    settings = {"defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6"}
    for code, fields in ((RequestCode.UPDATE_AND_CREATE_TOPIC, settings), (RequestCode.DELETE_TOPIC_IN_BROKER, {})):
        answer = cluster.client.call(server.address, RemotingCommand(code, fields | {"topic": topic}), 20_000)
        assert answer.code == ResponseCode.SYSTEM_ERROR
    assert server.store.topics() == before


@pytest.mark.parametrize("topic", ["DefaultCluster", "rmq-embedded", "DefaultCluster_REPLY_TOPIC"])
def test_a_send_does_not_make_a_topic_of_the_broker(cluster: Cluster, server: BrokerServer, topic: str) -> None:
    fields = {"a": "pg", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0", "h": "0"}
    for more in ({}, {"m": "true"}):
        command = RemotingCommand(RequestCode.SEND_MESSAGE_V2, fields | more, b"x")
        assert cluster.client.call(server.address, command, 20_000).code == ResponseCode.NO_PERMISSION
    assert topic not in server.store.topics()


def test_a_topic_that_was_there_before_its_store_was_served_keeps_its_messages(root: Path, small: StoreConfig) -> None:
    with Store.open(root, create=True, config=small, broker_name="orders") as store:
        store.create_topic("orders", 1)
        store.send(Message("orders", b"before"))
    with (
        BrokerServer(root, admin=True) as server,
        Producer("pg", f"rmq://{server.address}", config=PATIENT) as producer,
    ):
        assert producer.send(Message("orders", b"after")).queue_offset == 1
        assert server.store.queue_range("orders", 0) == (0, 2)
