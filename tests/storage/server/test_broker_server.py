"""A store served to clients: they and other processes of the directory see the same messages, groups and locks."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from helpers.patient import PATIENT
from rmq_store import Message, Store, StoreConfig, UsageError
from rmq_store.client import (
    ConsumeConcurrentlyContext,
    ConsumeConcurrentlyStatus,
    ConsumeFromWhere,
    ConsumeOrderlyContext,
    ConsumeOrderlyStatus,
    LitePullConsumer,
    MessageExt,
    MessageListenerConcurrently,
    MessageListenerOrderly,
    MessageQueue,
    MessageSelector,
    MQBrokerError,
    MQClientError,
    Producer,
    PushConsumer,
    PushConsumerConfig,
    ResponseCode,
)
from rmq_store.format.frames.frame_walk import frames_of_answer
from rmq_store.protocol.wire.command import ONEWAY_FLAG, RemotingCommand
from rmq_store.protocol.wire.header_fields import request
from rmq_store.protocol.wire.headers import (
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    UpdateConsumerOffsetRequestHeader,
)
from rmq_store.remoting.cluster import offsets, queries
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.server.broker_server import BrokerServer
from rmq_store.server.name_server.name_server import NameServer
from rmq_store.server.processors.pulling import SUBSCRIPTION, SUSPEND
from rmq_store.server.transport.limits import ListenerLimits

PATIENCE_S = 60.0
# The first batch of a process loads pandas, by way of pyarrow.
FROM_FIRST = PushConsumerConfig(consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)


def eventually(condition: Callable[[], object]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s, "it did not happen"
        time.sleep(0.005)


def queue_count(consumer: PushConsumer) -> int:
    """How many queues of Orders a member has."""
    return sum(queue.topic == "Orders" for queue in consumer.queues())


def pull(cluster: Cluster, topic: str, queue_id: int, offset: int, **fields: object) -> RemotingCommand:
    """The answer of the broker, whatever its code."""
    header = PullMessageRequestHeader(
        consumer_group="TOOLS_CONSUMER", topic=topic, queue_id=queue_id, queue_offset=offset, max_msg_nums=32,
        sys_flag=SUBSCRIPTION, commit_offset=0, suspend_timeout_millis=0, subscription="*", sub_version=0,
    )  # fmt: skip
    return cluster.client.call(cluster.address("rmq-embedded"), request(replace(header, **fields)), 60_000)


def test_what_a_client_sends_lies_in_the_store_with_its_host(place: str, server: BrokerServer, root: Path) -> None:
    with Producer("pg", place, config=PATIENT) as producer:
        sent = producer.send(Message("Orders", b"a", tags="T", keys="k", properties={"p": "v"}, flag=7))
    assert sent.broker_name == server.store.broker_name
    with Store.open(root) as store:  # a second process would do the same
        stored = store.message_at(sent.commit_log_offset)
        assert (stored.topic, stored.body, stored.flag, stored.queue_id) == ("Orders", b"a", 7, sent.queue_id)
        assert stored.properties.items() >= {"TAGS": "T", "KEYS": "k", "p": "v", "UNIQ_KEY": sent.msg_id}.items()
        assert str(stored.store_host) == server.address == store.config.broker_host
        assert stored.born_host.address == bytes((127, 0, 0, 1)) and stored.born_host.port > 0
        assert stored.offset_msg_id == sent.offset_msg_id


def test_a_batch_lies_in_one_queue_with_the_host_of_its_sender(place: str, server: BrokerServer) -> None:
    with Producer("pg", place, config=PATIENT) as producer:
        sent = producer.send_batch([Message("Orders", b"%d" % number) for number in range(100)])
    assert len(sent.offset_msg_id.split(",")) == 100
    rows = [
        row
        for batch in server.store.read("Orders", sent.queue_id, sent.queue_offset, sent.queue_offset + 100)
        for row in batch.to_pylist()
    ]
    assert [row["body"] for row in rows] == [b"%d" % number for number in range(100)]
    assert all(row["bornHost"].startswith("127.0.0.1:") for row in rows)
    assert ",".join(row["msgId"] for row in rows) == sent.msg_id


def test_a_torn_batch_is_refused_and_nothing_is_stored(cluster: Cluster, server: BrokerServer) -> None:
    fields = {"a": "pg", "b": "Orders", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0", "h": "0", "m": "true"}
    for body in (b"", b"\0\0\0\x40" + bytes(40), b"\0\0\0\x16" + bytes(12) + b"\0\0\0\x09" + bytes(2)):
        answer = cluster.client.call(server.address, RemotingCommand(320, dict(fields), body), 20_000)
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL, answer
    assert server.store.log_range() == (0, 0)


def test_a_consumer_gets_failed_messages_again_and_commits(place: str, server: BrokerServer) -> None:
    got: list[MessageExt] = []

    def listen(messages: list[MessageExt], context: ConsumeConcurrentlyContext) -> ConsumeConcurrentlyStatus:
        got.extend(messages)
        failed = any(one.body == b"1" and one.reconsume_times == 0 for one in messages)
        context.delay_level_when_next_consume = 1  # a second; the broker would choose ten
        return ConsumeConcurrentlyStatus.RECONSUME_LATER if failed else ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    with Producer("pg", place, config=PATIENT) as producer:
        for number in range(8):
            producer.send(Message("Orders", b"%d" % number, tags="A" if number % 2 else "B"))
        with PushConsumer("cg", place, config=FROM_FIRST) as consumer:
            consumer.subscribe("Orders", "A")
            consumer.register_message_listener(MessageListenerConcurrently(listen))
            consumer.start()
            eventually(lambda: len(got) >= 5)
            again = [one for one in got if one.reconsume_times]
            assert [(one.body, one.topic, one.reconsume_times) for one in again] == [(b"1", "Orders", 1)]
            assert sorted(one.body for one in got if not one.reconsume_times) == [b"1", b"3", b"5", b"7"]
            # Held pulls: the next messages come at once, and one that another process stores, too.
            producer.send(Message("Orders", b"9", tags="A"))
            with Store.open(server.store.path) as other:
                other.send(Message("Orders", b"11", tags="A"))
            eventually(lambda: {b"9", b"11"} <= {one.body for one in got})
    committed = server.store.committed_offsets("cg")
    assert {place[0] for place in committed} == {"Orders", "%RETRY%cg"}
    assert sum(offset for (topic, _), offset in committed.items() if topic == "Orders") == 10


def test_ordered_members_share_the_queues_by_locks(place: str, server: BrokerServer) -> None:
    got: dict[int, list[bytes]] = {queue_id: [] for queue_id in range(4)}

    def listen(messages: list[MessageExt], _: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
        for one in messages:
            got[one.queue_id].append(one.body)
        return ConsumeOrderlyStatus.SUCCESS

    server.store.create_topic("Orders", 4)
    consumers = [PushConsumer("cg", place, config=replace(FROM_FIRST, instance_name=name)) for name in ("one", "two")]
    for consumer in consumers:
        consumer.subscribe("Orders")
        consumer.register_message_listener(MessageListenerOrderly(listen))
        consumer.start()
    try:
        eventually(lambda: [queue_count(consumer) for consumer in consumers] == [2, 2])
        with Producer("pg", place, config=PATIENT) as producer:
            for number in range(40):
                producer.send(Message("Orders", b"%d" % number, queue_id=number % 4))
        eventually(lambda: sum(map(len, got.values())) == 40)
    finally:
        for consumer in consumers:
            consumer.shutdown()
    assert got == {queue_id: [b"%d" % number for number in range(queue_id, 40, 4)] for queue_id in range(4)}


def test_clients_of_the_network_and_of_the_directory_are_members_of_one_group(place: str, server: BrokerServer) -> None:
    server.store.create_topic("Orders", 4)

    def member(where: str | Store, name: str) -> PushConsumer:
        consumer = PushConsumer("cg", where, config=PushConsumerConfig(instance_name=name))
        consumer.subscribe("Orders")
        success = ConsumeConcurrentlyStatus.CONSUME_SUCCESS
        consumer.register_message_listener(MessageListenerConcurrently(lambda messages, context: success))
        consumer.start()
        return consumer

    far = member(place, "far")
    eventually(lambda: queue_count(far) == 4)
    near = member(server.store, "near")
    try:
        eventually(lambda: (queue_count(far), queue_count(near)) == (2, 2))
    finally:
        near.shutdown()
    eventually(lambda: queue_count(far) == 4)  # it is told, and does not wait for its own round of 20 s
    far.shutdown()


def test_a_lite_pull_consumer_reads_and_commits(place: str, server: BrokerServer) -> None:
    with Producer("pg", place, config=PATIENT) as producer:
        for number in range(10):
            producer.send(Message("Orders", b"%d" % number, properties={"n": str(number)}))
    got: list[bytes] = []
    with LitePullConsumer("cg", place) as consumer:
        consumer.subscribe("Orders", MessageSelector.by_sql("n >= 5"))
        consumer.start()
        eventually(consumer.assignment)
        for queue in consumer.assignment():
            consumer.seek_to_begin(queue)
        eventually(lambda: got.extend(one.body for one in consumer.poll(100)) or len(got) >= 5)  # type: ignore[func-returns-value]
        consumer.commit()
    assert sorted(got) == [b"5", b"6", b"7", b"8", b"9"]
    assert sum(server.store.committed_offsets("cg").values()) == 10


def test_messages_are_found_by_key_unique_key_and_place(place: str, cluster: Cluster) -> None:
    with Producer("pg", place, config=PATIENT) as producer:
        sent = [producer.send(Message("Orders", b"%d" % number, keys="k")) for number in range(3)]
    [three] = queries.query_by_key(cluster, "Orders", "k")
    assert len(frames_of_answer(three.frames)[0]) == 3
    [found] = queries.query_by_unique_key(cluster, "Orders", sent[1].msg_id)
    at = queries.view_message(cluster, sent[1].offset_msg_id)
    assert at is not None and at.frames == found.frames
    assert len(frames_of_answer(found.frames)[0]) == 1
    assert queries.query_by_key(cluster, "Orders", "nobody") == []
    assert queries.view_message(cluster, sent[1].offset_msg_id[:-2] + "FF") is None


def test_a_held_pull_is_answered_when_its_time_is_over(server: BrokerServer, cluster: Cluster) -> None:
    server.store.create_topic("Orders", 1)
    started_s = time.monotonic()
    answer = pull(cluster, "Orders", 0, 0, sys_flag=SUBSCRIPTION | SUSPEND, suspend_timeout_millis=600)
    assert answer.code == ResponseCode.PULL_NOT_FOUND
    assert time.monotonic() - started_s >= 0.6


def test_many_held_pulls_are_woken_by_their_queues_only(server: BrokerServer, cluster: Cluster) -> None:
    server.store.create_topic("Orders", 50)
    answers: dict[int, RemotingCommand] = {}

    def wait(queue_id: int) -> None:
        flags = {"sys_flag": SUBSCRIPTION | SUSPEND, "suspend_timeout_millis": 20_000}
        answers[queue_id] = pull(cluster, "Orders", queue_id, 0, **flags)

    threads = [threading.Thread(target=wait, args=(queue_id,)) for queue_id in range(50)]
    for thread in threads:
        thread.start()
    server.store.send(Message("Orders", b"x", queue_id=7))
    eventually(lambda: 7 in answers)
    assert answers[7].code == 0 and set(answers) == {7}
    server.close()  # the others are answered, and not left alone
    for thread in threads:
        thread.join(PATIENCE_S)
    assert {answers[queue_id].code for queue_id in set(answers) - {7}} == {ResponseCode.PULL_NOT_FOUND}
    assert len(answers) == 50


@pytest.mark.parametrize(
    ("offset", "code", "next_offset"), [(0, 0, 5), (3, 0, 5), (5, 19, 5), (6, 21, 5), (100, 21, 5), (-1, 21, 0)]
)
def test_an_offset_outside_the_queue_is_moved(
    server: BrokerServer, cluster: Cluster, offset: int, code: int, next_offset: int
) -> None:
    for number in range(5):
        server.store.send(Message("Orders", b"%d" % number, queue_id=0))
    answer = pull(cluster, "Orders", 0, offset)
    ends = PullMessageResponseHeader.from_ext(answer.ext_fields)
    assert (answer.code, ends.next_begin_offset, ends.min_offset, ends.max_offset) == (code, next_offset, 0, 5)
    assert len(frames_of_answer(answer.body)[0]) == (5 - offset if code == 0 else 0)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"topic": "Nowhere"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"queue_id": 4}, ResponseCode.INVALID_PARAMETER),
        ({"queue_id": -1}, ResponseCode.INVALID_PARAMETER),
        ({"sys_flag": 0}, ResponseCode.SUBSCRIPTION_NOT_EXIST),
        ({"subscription": "n >", "expression_type": "SQL92"}, ResponseCode.SUBSCRIPTION_PARSE_FAILED),
        ({"subscription": "||"}, ResponseCode.SUBSCRIPTION_PARSE_FAILED),
        ({"consumer_group": "not a name"}, ResponseCode.SYSTEM_ERROR),
    ],
)
def test_a_wrong_pull_is_refused(server: BrokerServer, cluster: Cluster, fields: dict[str, object], code: int) -> None:
    server.store.create_topic("Orders", 4)
    assert pull(cluster, **({"topic": "Orders", "queue_id": 0, "offset": 0} | fields)).code == code  # type: ignore[arg-type]


def test_a_pull_ends_at_256_kib_and_gives_one_message_at_least(server: BrokerServer, cluster: Cluster) -> None:
    bodies = [300 << 10, 100 << 10, 100 << 10, 100 << 10]
    for size in bodies:
        server.store.send(Message("Orders", bytes(size), queue_id=0))
    counts, at = [], 0
    while at < 4:
        answer = pull(cluster, "Orders", 0, at)
        counts.append(len(frames_of_answer(answer.body)[0]))
        at = PullMessageResponseHeader.from_ext(answer.ext_fields).next_begin_offset
    assert counts == [1, 2, 1]


def test_one_way_commits_are_there_for_whoever_asks(server: BrokerServer, cluster: Cluster) -> None:
    server.store.create_topic("Orders", 1)
    server.store.send(Message("Orders", b"x"))
    header = UpdateConsumerOffsetRequestHeader(consumer_group="cg", topic="Orders", queue_id=0, commit_offset=1)
    command = request(header)
    command.flag = ONEWAY_FLAG
    cluster.client.call_oneway(server.address, command)
    queue = MessageQueue("Orders", "rmq-embedded", 0)
    eventually(lambda: offsets.query_consumer_offset(cluster, "cg", queue) == 1)
    eventually(lambda: server.store.committed_offsets("cg") == {("Orders", 0): 1})


def test_a_system_topic_takes_no_sends(cluster: Cluster, server: BrokerServer) -> None:
    fields = {"a": "pg", "b": "SCHEDULE_TOPIC_XXXX", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0", "h": "0"}
    answer = cluster.client.call(server.address, RemotingCommand(310, fields, b"x"), 20_000)
    assert answer.code == ResponseCode.NO_PERMISSION


def test_a_store_that_makes_no_topics_says_so(root: Path, small: StoreConfig) -> None:
    with (
        BrokerServer(root, config=replace(small, auto_create_topic_enable=False), create=True) as server,
        Producer("pg", f"rmq://{server.address}", config=PATIENT) as producer,
        pytest.raises(MQClientError, match=r"CODE: 17 +DESC: topic\[Orders\] not exist"),
    ):
        producer.send(Message("Orders", b"x"))
    assert "Orders" not in (root / "config/topics.json").read_text()


def test_an_address_that_is_taken_is_the_callers_mistake(server: BrokerServer, scratch: Path) -> None:
    with pytest.raises(UsageError, match="cannot listen"):
        BrokerServer(scratch / "other", port=int(server.address.rpartition(":")[2]), create=True)


def test_connections_are_bounded_and_a_bad_frame_ends_its_own_only(root: Path, small: StoreConfig) -> None:
    limits = ListenerLimits(connections_max=2)
    with BrokerServer(root, config=small, create=True, limits=limits) as server:
        host, port = server.address.split(":")
        first, second = (socket.create_connection((host, int(port)), 10) for _ in range(2))
        eventually(lambda: len(server._listener.connections) == 2)
        with socket.create_connection((host, int(port)), 10) as third:
            third.settimeout(10)
            assert third.recv(1) == b""
        first.sendall(b"\x7f\xff\xff\xff\0\0\0\0")
        first.settimeout(10)
        assert first.recv(1) == b""
        eventually(lambda: len(server._listener.connections) == 1)
        first.close()
        second.close()


def test_a_silent_connection_is_closed(root: Path, small: StoreConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    from rmq_store.server.transport import listener

    monkeypatch.setattr(listener, "_IDLE_LOOK_S", 0.05)
    with BrokerServer(root, config=small, create=True, limits=ListenerLimits(idle_ms=200)) as server:
        host, port = server.address.split(":")
        with socket.create_connection((host, int(port)), 10) as silent:
            silent.settimeout(10)
            silent.sendall(b"\0\0")  # a byte now and then keeps nobody alive
            assert silent.recv(1) == b""


def test_a_client_that_is_gone_leaves_its_groups(place: str, server: BrokerServer, cluster: Cluster) -> None:
    from rmq_store.protocol.bodies.clients import ConsumerData, HeartbeatData
    from rmq_store.remoting.cluster import groups

    data = HeartbeatData(client_id="me@1", consumer_data_set=(ConsumerData(group_name="cg"),))
    groups.heartbeat(cluster, data)
    assert server._served.broker.consumer_ids("cg") == ["me@1"]
    cluster.close()
    eventually(lambda: server._served.broker.consumer_ids("cg") == [])


def test_an_error_of_the_broker_names_what_is_wrong(place: str, server: BrokerServer) -> None:
    server.store.create_topic("Locked", 1, 4)
    with Producer("pg", place, config=PATIENT) as producer, pytest.raises(MQBrokerError) as caught:
        producer._backend.brokers()["rmq-embedded"].send(Message("Locked", b"x"), 0, 3000, "pg")
    assert caught.value.response_code == ResponseCode.NO_PERMISSION
    assert "topic 'Locked' may not be written (perm 4)" in caught.value.remark


@pytest.mark.parametrize("make", [BrokerServer, NameServer])
def test_a_second_close_waits_for_the_first_one(make: type[BrokerServer | NameServer], root: Path) -> None:
    """It would take the steps that the first one has not come to, and close the store behind its back."""
    server = BrokerServer(root, create=True) if make is BrokerServer else NameServer()
    begun, go_on = threading.Event(), threading.Event()
    stop_listening = server._listener.stop_listening

    def stop_slowly() -> None:
        begun.set()
        go_on.wait(PATIENCE_S)
        stop_listening()

    server._closing.callback(stop_slowly)
    threads = [threading.Thread(target=server.close) for _ in range(2)]
    threads[0].start()
    assert begun.wait(PATIENCE_S)
    threads[1].start()
    threads[1].join(0.3)
    assert threads[1].is_alive()
    go_on.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert not any(thread.is_alive() for thread in threads)
