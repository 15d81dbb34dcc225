"""Clients that join, leave and break off: their groups, and the locks of their queues."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from helpers.cluster import requests
from helpers.cluster.asking import Connection
from rmq_store import Store
from rmq_store.broker.metadata.groups import SubscriptionGroup
from rmq_store.client import (
    ConsumeConcurrentlyStatus,
    MessageListenerConcurrently,
    PushConsumer,
    PushConsumerConfig,
    ResponseCode,
)
from rmq_store.protocol.bodies.clients import (
    ConsumerData,
    HeartbeatData,
    LockBatchRequestBody,
    LockBatchResponseBody,
    ProducerData,
)
from rmq_store.protocol.bodies.groups import SubscriptionData
from rmq_store.protocol.messages import MessageQueue
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.request_codes import RequestCode
from rmq_store.remoting.cluster import groups
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.transport.settings import ClusterSettings
from rmq_store.server.broker_server import BrokerServer
from rmq_store.server.processors.queue_locks import EXPIRES_S

PATIENCE_S = 60.0


def eventually(condition: Callable[[], object]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s, "it did not happen"
        time.sleep(0.005)


def queues(count: int) -> tuple[MessageQueue, ...]:
    return tuple(MessageQueue("Orders", "rmq-embedded", number) for number in range(count))


def call(cluster: Cluster, server: BrokerServer, code: int, body: bytes = b"", **fields: str) -> RemotingCommand:
    return cluster.client.call(server.address, RemotingCommand(code, fields, body), 20_000)


def lock(cluster: Cluster, server: BrokerServer, client_id: str, count: int = 1) -> set[int]:
    """The queue ids of Orders that the client has got."""
    asked = LockBatchRequestBody(consumer_group="cg", client_id=client_id, mq_set=queues(count))
    answer = call(cluster, server, RequestCode.LOCK_BATCH_MQ, asked.encode())
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return {queue.queue_id for queue in LockBatchResponseBody.decode(answer.body).lock_ok_mq_set}


def ids(server: BrokerServer, group: str = "cg") -> list[str]:
    return server._served.broker.consumer_ids(group)


def beat(client_id: str, *names: str) -> HeartbeatData:
    return HeartbeatData(client_id=client_id, consumer_data_set=tuple(ConsumerData(group_name=one) for one in names))


def test_a_lock_of_a_client_that_does_not_ask_again_ends_after_a_minute(
    server: BrokerServer, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who only asks for locks is no member, and nobody misses it."""
    now_s = 1000.0
    monkeypatch.setattr(server._locks, "_clock", lambda: now_s)
    assert lock(cluster, server, "one") == {0}
    now_s += EXPIRES_S - 1
    assert lock(cluster, server, "two") == set()  # to be asked for by another one does not prolong it
    now_s += 2
    assert lock(cluster, server, "two") == {0}
    now_s += EXPIRES_S - 1
    assert lock(cluster, server, "two") == {0}
    now_s += EXPIRES_S - 1
    assert lock(cluster, server, "one") == set()


def test_a_lock_that_has_ended_is_free_for_other_processes(
    server: BrokerServer, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rmq_store.broker.processor.local_broker import LocalBroker

    assert lock(cluster, server, "far") == {0}
    other = LocalBroker("rmq-embedded", server.store)
    try:
        assert other.lock_queues("cg", "near", queues(1)) == set()
        later_s = time.monotonic() + EXPIRES_S + 1
        monkeypatch.setattr(server._locks, "_clock", lambda: later_s)
        eventually(lambda: other.lock_queues("cg", "near", queues(1)) == set(queues(1)))
    finally:
        other.close()


def test_a_group_that_may_not_broadcast_gets_no_messages_in_that_way(server: BrokerServer, cluster: Cluster) -> None:
    """As mqadmin makes groups (updateSubGroup); a pull with a subscription of its own is no member's (sysFlag 4)."""
    server.store.create_topic("Orders", 1)
    server.store.create_group(SubscriptionGroup("cg", consume_broadcast_enable=False))
    wanted = (SubscriptionData(topic="Orders", sub_string="*"),)
    pull = {
        "consumerGroup": "cg", "topic": "Orders", "queueId": "0", "queueOffset": "0", "maxMsgNums": "1",
        "commitOffset": "0", "suspendTimeoutMillis": "0", "subVersion": "0",
    }  # fmt: skip

    def code_of(model: str, sys_flag: int) -> int:
        data = ConsumerData(group_name="cg", message_model=model, subscription_data_set=wanted)
        groups.heartbeat(cluster, HeartbeatData(client_id="one", consumer_data_set=(data,)))
        return call(cluster, server, RequestCode.PULL_MESSAGE, **pull, sysFlag=str(sys_flag), subscription="*").code

    assert code_of("CLUSTERING", 0) == ResponseCode.PULL_NOT_FOUND
    assert code_of("BROADCASTING", 0) == ResponseCode.NO_PERMISSION
    assert code_of("BROADCASTING", 4) == ResponseCode.PULL_NOT_FOUND


def test_a_connection_that_breaks_ends_the_membership_and_no_lock(server: BrokerServer, cluster: Cluster) -> None:
    broken = Cluster(ClusterSettings.of_text(server.address))
    groups.heartbeat(broken, beat("one", "cg"))
    assert lock(broken, server, "one") == {0}
    assert ids(server) == ["one"]
    broken.close()
    eventually(lambda: ids(server) == [])
    assert lock(cluster, server, "two") == set()
    assert lock(cluster, server, "one") == {0}  # it has come back


def test_who_unregisters_or_unlocks_gives_its_locks_at_once(server: BrokerServer, cluster: Cluster) -> None:
    assert lock(cluster, server, "one", 2) == {0, 1}
    assert call(cluster, server, RequestCode.UNREGISTER_CLIENT, clientID="one", consumerGroup="cg").code == 0
    assert lock(cluster, server, "two", 2) == {0, 1}
    asked = LockBatchRequestBody(consumer_group="cg", client_id="two", mq_set=queues(1))
    assert call(cluster, server, RequestCode.UNLOCK_BATCH_MQ, asked.encode()).code == 0
    assert lock(cluster, server, "one", 2) == {0}


def test_a_client_that_names_no_group_by_an_empty_text_leaves_the_other(
    server: BrokerServer, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """RocketMQ's C++ client sends both groups, one of them empty."""
    data = HeartbeatData(client_id="one", producer_data_set=(ProducerData(group_name="pg"),))
    assert call(cluster, server, RequestCode.HEART_BEAT, data.encode()).code == 0
    fields = {"clientID": "one", "producerGroup": "pg", "consumerGroup": ""}
    assert call(cluster, server, RequestCode.UNREGISTER_CLIENT, **fields).code == 0
    assert not server._members.producer_peers("pg")
    assert caplog.text == ""


def test_a_group_that_is_refused_does_not_keep_a_client_out_of_its_others(
    server: BrokerServer, cluster: Cluster
) -> None:
    data = HeartbeatData(
        client_id="one",
        consumer_data_set=(ConsumerData(group_name="no name"), ConsumerData(group_name="cg")),
        producer_data_set=(ProducerData(group_name="pg"),),
    )
    answer = call(cluster, server, RequestCode.HEART_BEAT, data.encode())
    assert answer.code == ResponseCode.SYSTEM_ERROR and "no name" in (answer.remark or "")
    assert ids(server) == ["one"]
    assert len(server._members.producer_peers("pg")) == 1


def test_a_heartbeat_and_a_lock_of_too_many_names_are_refused(server: BrokerServer, cluster: Cluster) -> None:
    topics = tuple(SubscriptionData(topic=f"T{number}", sub_string="*") for number in range(1001))
    many = ConsumerData(group_name="cg", subscription_data_set=topics)
    for data in (beat("one", *(f"g{n}" for n in range(1001))), HeartbeatData(client_id="c", consumer_data_set=(many,))):
        answer = call(cluster, server, RequestCode.HEART_BEAT, data.encode())
        assert answer.code == ResponseCode.SYSTEM_ERROR and "at most 1000" in (answer.remark or "")
    asked = LockBatchRequestBody(consumer_group="cg", client_id="one", mq_set=queues(1001))
    answer = call(cluster, server, RequestCode.LOCK_BATCH_MQ, asked.encode())
    assert answer.code == ResponseCode.SYSTEM_ERROR and "1001 queues" in (answer.remark or "")
    assert ids(server) == []


@pytest.mark.parametrize("failing", ["unregister", "consumer_ids"])
def test_an_error_while_clients_leave_keeps_none_of_them(
    server: BrokerServer, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    broken = Cluster(ClusterSettings.of_text(server.address))
    groups.heartbeat(broken, beat("one", "cg1", "cg2"))
    broker = type(server._served.broker)
    real = getattr(broker, failing)

    def fail_for_one(self: object, group: str, *args: object, **named: object) -> object:
        if group == "cg1":
            raise OSError(24, "Too many open files")
        return real(self, group, *args, **named)

    monkeypatch.setattr(broker, failing, fail_for_one)
    broken.close()
    eventually(lambda: server._members.connection("cg1") is server._members.connection("cg2") is None)
    monkeypatch.undo()
    eventually(lambda: ids(server, "cg2") == [])
    groups.heartbeat(cluster, beat("two", "cg2"))  # the thread of the clients lives
    assert ids(server, "cg2") == ["two"]


@pytest.mark.parametrize("is_far", [False, True], ids=["the store of the server", "a store of its own"])
def test_a_client_is_told_when_a_member_beside_the_store_comes_and_goes(server: BrokerServer, is_far: bool) -> None:
    server.store.create_topic("Orders", 1)
    with ExitStack() as ends, Connection(server.address) as client:
        assert requests.heartbeat(client, "far", "cg", "Orders").code == ResponseCode.SUCCESS

        def told() -> int:
            client.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "cg"})
            assert {one.code for one in client.unasked} <= {RequestCode.NOTIFY_CONSUMER_IDS_CHANGED}
            return len(client.unasked)

        store = ends.enter_context(Store.open(server.store.path)) if is_far else server.store
        near = PushConsumer("cg", store, config=PushConsumerConfig(instance_name="near"))
        near.subscribe("Orders")
        success = ConsumeConcurrentlyStatus.CONSUME_SUCCESS
        near.register_message_listener(MessageListenerConcurrently(lambda messages, context: success))
        eventually(lambda: told() == 1)  # of itself
        near.start()
        try:
            eventually(lambda: told() == 2)
            assert len(ids(server)) == 2
        finally:
            near.shutdown()
        eventually(lambda: told() == 3)
        assert ids(server) == ["far"]
        assert {one.ext_fields["consumerGroup"] for one in client.unasked} == {"cg"}
