"""The clients at brokers of released versions: sends, push with retries and dead letters, lite pull, two members."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from datetime import timedelta

import pytest

from helpers.cluster.brokers import RocketmqCluster
from helpers.cluster.requests import body_of
from rmq_store import Message, SendStatus, UsageError
from rmq_store.client import (
    ConsumeConcurrentlyStatus,
    ConsumeFromWhere,
    LitePullConsumer,
    MessageExt,
    MessageListenerConcurrently,
    MessageListenerOrderly,
    MessageView,
    Producer,
    PushConsumer,
    PushConsumerConfig,
    SimpleConsumer,
    TimerNotSupportedError,
)
from rmq_store.client.consume_service.listener import ConsumeOrderlyStatus
from rmq_store.protocol.messages import MessageQueue
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.cluster.groups import consumer_connections
from rmq_store.remoting.cluster.offsets import query_consumer_offsets
from rmq_store.remoting.cluster.pull_request import pull
from rmq_store.remoting.cluster.pulling import read_range
from rmq_store.remoting.cluster.topics import topic_stats
from rmq_store.remoting.transport.settings import ClusterSettings

FROM_FIRST = {"consume_from_where": "CONSUME_FROM_FIRST_OFFSET"}


def place(cluster: RocketmqCluster) -> str:
    return f"rmq://{cluster.name_server}"


def connected(cluster: RocketmqCluster) -> Cluster:
    return Cluster(ClusterSettings.of_text(place(cluster)))


def wait_until(fulfilled: Callable[[], object], what: str, timeout_s: float = 60) -> None:
    until = time.monotonic() + timeout_s
    while not fulfilled():
        assert time.monotonic() < until, what
        time.sleep(0.05)


def stored(cluster: Cluster, topic: str, count: int) -> dict[MessageQueue, list[bytes]]:
    """The bodies in each queue, as soon as there are so many: queues lag the log for a moment."""
    wait_until(lambda: sum(span.max_offset for span in topic_stats(cluster, topic).values()) >= count, "messages")
    return {
        queue: [
            body_of(frame)
            for block in read_range(cluster, queue, span.min_offset, span.max_offset)
            for frame in frames_of(block)
        ]
        for queue, span in topic_stats(cluster, topic).items()
    }


def frames_of(block: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(block):
        size = int.from_bytes(block[at : at + 4])
        found.append(block[at : at + size])
        at += size
    return found


def test_messages_and_batches_are_stored_where_the_results_say(
    cluster: RocketmqCluster, new_name: Callable[[str], str]
) -> None:
    topic = cluster.create_topic(new_name("Orders"), 4)
    with Producer("pg", place(cluster)) as producer, connected(cluster) as known:
        result = producer.send(Message(topic, b"one", tags="TagA", keys="k1", properties={"colour": "rot"}))
        assert result.status is SendStatus.SEND_OK
        queue = MessageQueue(topic, "broker-a", result.queue_id)
        batch = producer.send_batch([Message(topic, b"%d" % number) for number in range(200)], queue=queue)
        assert batch.queue_offset == result.queue_offset + 1
        assert len(batch.offset_msg_id.split(",")) == 200
        found = stored(known, topic, 201)
        assert found[queue] == [b"one", *(b"%d" % number for number in range(200))]
        large = producer.send(Message(topic, bytes(100_000), tags="TagA"))
        assert large.status is SendStatus.SEND_OK


def test_a_deliver_time_needs_a_broker_of_5_x(cluster: RocketmqCluster, new_name: Callable[[str], str]) -> None:
    """A broker of 4.9 would deliver it at once; one of 5.x keeps it."""
    topic = cluster.create_topic(new_name("Orders"), 1)
    timed = Message(topic, b"later", properties={"TIMER_DELAY_SEC": "600"})
    with Producer("pg", place(cluster)) as producer, connected(cluster) as known:
        if cluster.version.startswith("4."):
            with pytest.raises(TimerNotSupportedError):
                producer.send(timed)
        else:
            producer.send(timed)
        producer.send(Message(topic, b"now"))
        assert stored(known, topic, 1) == {MessageQueue(topic, "broker-a", 0): [b"now"]}


def test_a_range_comes_whole_in_lanes_and_with_tags_what_matches(
    cluster: RocketmqCluster, new_name: Callable[[str], str]
) -> None:
    topic = cluster.create_topic(new_name("Orders"), 1)
    queue = MessageQueue(topic, "broker-a", 0)
    with Producer("pg", place(cluster)) as producer, connected(cluster) as known:
        for first in range(0, 3000, 500):
            producer.send_batch(
                [Message(topic, b"%d" % number, tags=f"Tag{number % 3}") for number in range(first, first + 500)],
                queue=queue,
            )
        assert stored(known, topic, 3000)[queue] == [b"%d" % number for number in range(3000)]
        assert known.messages_per_pull["broker-a"] == 32
        part = b"".join(read_range(known, queue, 1234, 1300))
        assert [body_of(frame) for frame in frames_of(part)] == [b"%d" % number for number in range(1234, 1300)]
        answer = pull(known, queue, 3000)
        assert (answer.code, answer.next_offset, answer.max_offset) == (19, 3000, 3000)


def test_a_failed_message_comes_again_and_ends_among_the_dead_letters(
    cluster: RocketmqCluster, new_name: Callable[[str], str]
) -> None:
    topic, group = cluster.create_topic(new_name("Orders"), 2), new_name("cg")
    seen: list[tuple[bytes, str, int]] = []

    def handle(messages: list[MessageExt], context: object) -> ConsumeConcurrentlyStatus:
        seen.extend((message.body, message.topic, message.reconsume_times) for message in messages)
        context.delay_level_when_next_consume = 1  # type: ignore[attr-defined]
        is_bad = any(message.body == b"bad" for message in messages)
        return ConsumeConcurrentlyStatus.RECONSUME_LATER if is_bad else ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    consumer = PushConsumer(group, place(cluster), PushConsumerConfig(max_reconsume_times=1, **FROM_FIRST))
    consumer.subscribe(topic, "TagA")
    consumer.register_message_listener(MessageListenerConcurrently(handle))
    with Producer("pg", place(cluster)) as producer, connected(cluster) as known, consumer:
        for body, tag in ((b"good", "TagA"), (b"bad", "TagA"), (b"other", "TagB")):
            producer.send(Message(topic, body, tags=tag))
        consumer.start()
        wait_until(lambda: known.refresh_route(f"%DLQ%{group}"), "a topic of dead letters", 90)
        dead = stored(known, f"%DLQ%{group}", 1)
        wait_until(lambda: len(seen) >= 3, "three deliveries")
        (connection,) = consumer_connections(known, group).values()
        assert connection.subscription_table[topic].sub_string == "TagA"
    assert list(dead.values()) == [[b"bad"]]
    assert sorted(seen) == [(b"bad", topic, 0), (b"bad", topic, 1), (b"good", topic, 0)]
    with connected(cluster) as known:
        assert consumer_connections(known, group) == {}
        ends = {queue: span.max_offset for queue, span in topic_stats(known, topic).items()}
        assert {queue: offset for queue, (offset, _) in query_consumer_offsets(known, group, ends).items()} == ends


def test_an_ordered_consumer_locks_its_queues_and_keeps_their_order(
    cluster: RocketmqCluster, new_name: Callable[[str], str]
) -> None:
    topic, group = cluster.create_topic(new_name("Orders"), 2), new_name("cg")
    seen: dict[int, list[int]] = {0: [], 1: []}

    def handle(messages: list[MessageExt], context: object) -> ConsumeOrderlyStatus:
        for message in messages:
            seen[message.queue_id].append(message.queue_offset)
        return ConsumeOrderlyStatus.SUCCESS

    consumer = PushConsumer(group, place(cluster), PushConsumerConfig(**FROM_FIRST))
    consumer.subscribe(topic)
    consumer.register_message_listener(MessageListenerOrderly(handle))
    with Producer("pg", place(cluster)) as producer, consumer:
        for number in range(40):
            producer.send(Message(topic, b"%d" % number))
        consumer.start()
        wait_until(lambda: sum(map(len, seen.values())) == 40, "forty messages")
    assert all(offsets == sorted(offsets) for offsets in seen.values())


def test_two_members_of_a_group_get_everything_once(
    cluster: RocketmqCluster, new_name: Callable[[str], str]
) -> None:
    topic, group = cluster.create_topic(new_name("Orders"), 4), new_name("cg")
    seen: list[tuple[str, bytes]] = []
    lock = threading.Lock()

    def member(name: str) -> PushConsumer:
        def handle(messages: list[MessageExt], context: object) -> ConsumeConcurrentlyStatus:
            with lock:
                seen.extend((name, message.body) for message in messages)
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

        consumer = PushConsumer(group, place(cluster), PushConsumerConfig(**FROM_FIRST))
        consumer.subscribe(topic)
        consumer.register_message_listener(MessageListenerConcurrently(handle))
        return consumer

    with member("one") as one, member("two") as two, Producer("pg", place(cluster)) as producer:
        one.start()
        two.start()
        wait_until(lambda: _shared(one, two, topic), "two queues each")
        for number in range(400):
            producer.send(Message(topic, b"%d" % number))
        wait_until(lambda: len(seen) >= 400, "four hundred messages")
        time.sleep(0.5)
    assert sorted(int(body) for _, body in seen) == list(range(400))
    assert {name for name, _ in seen} == {"one", "two"}


def _shared(one: PushConsumer, two: PushConsumer, topic: str) -> bool:
    queues = [[queue for queue in member.queues() if queue.topic == topic] for member in (one, two)]
    return [len(of_one) for of_one in queues] == [2, 2] and not set(queues[0]) & set(queues[1])


def test_a_lite_pull_consumer_polls_seeks_and_commits(
    cluster: RocketmqCluster, new_name: Callable[[str], str]
) -> None:
    topic, group = cluster.create_topic(new_name("Orders"), 2), new_name("cg")
    with Producer("pg", place(cluster)) as producer:
        for number in range(50):
            producer.send(Message(topic, b"%d" % number))
    queues = [MessageQueue(topic, "broker-a", queue_id) for queue_id in (0, 1)]
    with LitePullConsumer(group, place(cluster)) as consumer:
        consumer.assign(queues)
        consumer.start()
        for queue in queues:
            consumer.seek_to_begin(queue)
        got: list[MessageExt] = []
        until = time.monotonic() + 60
        while len(got) < 50 and time.monotonic() < until:
            got += consumer.poll(500)
        consumer.commit()
        assert sorted(int(message.body) for message in got) == list(range(50))
        assert {queue: consumer.committed(queue) for queue in queues} == {
            queue: sum(message.queue_id == queue.queue_id for message in got) for queue in queues
        }
    with connected(cluster) as known:
        found = query_consumer_offsets(known, group, queues)
        assert sum(offset for offset, _ in found.values()) == 50


def test_reads_go_on_from_the_slave_when_the_master_dies_and_back(
    cluster: RocketmqCluster, new_name: Callable[[str], str]
) -> None:
    topic = cluster.create_topic(new_name("Orders"), 1, on_slaves=True)
    queue = MessageQueue(topic, "broker-a", 0)
    with Producer("pg", place(cluster)) as producer:
        for first in range(0, 2000, 500):
            producer.send_batch([Message(topic, b"%d" % number) for number in range(first, first + 500)], queue=queue)
    cluster.await_replicated(topic)
    expected = [b"%d" % number for number in range(2000)]

    def read(known: Cluster) -> list[bytes]:
        blocks = read_range(known, queue, 0, 2000)
        return [body_of(frame) for frame in itertools.chain.from_iterable(map(frames_of, blocks))]

    with connected(cluster) as known:
        assert read(known) == expected
        cluster.broker().kill()
        assert read(known) == expected
        assert topic_stats(known, topic)[queue].max_offset == 2000
        cluster.broker().start()
        cluster.await_registered(("broker-a", 0))
        assert read(known) == expected


def test_a_simple_consumer_receives_acknowledges_and_gets_again_what_it_has_not(
    cluster: RocketmqCluster, new_name: Callable[[str], str]
) -> None:
    topic, group = cluster.create_topic(new_name("Orders"), 2), new_name("cg")
    with (
        Producer("pg", place(cluster)) as producer,
        SimpleConsumer(
            group, place(cluster), {topic: "TagA"}, await_duration=timedelta(seconds=1),
            consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        ) as consumer,
    ):
        for number in range(6):
            producer.send(Message(topic, b"%d" % number, tags="TagB" if number == 5 else "TagA"))
        if cluster.version == "4.9.7":
            with pytest.raises(UsageError, match=r"needs brokers of 5\.x"):
                consumer.receive(32, timedelta(seconds=10))
            return
        first: list[MessageView] = []
        until = time.monotonic() + 60
        while len(first) < 5 and time.monotonic() < until:
            first += consumer.receive(32, timedelta(seconds=10))
        assert sorted(view.body for view in first) == [b"0", b"1", b"2", b"3", b"4"]
        assert {view.delivery_attempt for view in first} == {1}
        kept = first[0]
        consumer.change_invisible_duration(kept, timedelta(seconds=2))
        for view in first[1:]:
            consumer.ack(view)
        again: list[MessageView] = []
        while not again and time.monotonic() < until:
            again += consumer.receive(32, timedelta(seconds=30))
        assert [(view.body, view.delivery_attempt) for view in again] == [(kept.body, 2)]
        consumer.ack(again[0])
        assert consumer.receive(32, timedelta(seconds=10)) == []
