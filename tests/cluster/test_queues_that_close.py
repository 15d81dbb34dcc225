"""A topic that is made smaller (`updateTopic -r 4 -w 2`), and one that has queues which nobody may read: readers and
consumers have all messages. Facts: what 202 and 28 tell, and how much a filtered pull looks at.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from click.testing import CliRunner

from helpers.cluster import requests
from helpers.cluster.brokers import RocketmqCluster
from helpers.cluster.waiting import until
from helpers.cluster.witness import Witness
from pyspark_rmq.access import cluster_pool
from pyspark_rmq.options.options import source_options
from pyspark_rmq.read.reader import RmqReader
from pyspark_rmq.schema.schema import SOURCE_SCHEMA
from rmq_store import UsageError
from rmq_store.cli import commands
from rmq_store.client import (
    ConsumeConcurrentlyStatus,
    ConsumeFromWhere,
    ConsumeOrderlyStatus,
    LitePullConsumer,
    LitePullConsumerConfig,
    MessageExt,
    MessageListenerArrow,
    MessageListenerConcurrently,
    MessageListenerOrderly,
    PushConsumer,
    PushConsumerConfig,
    SimpleConsumer,
)
from rmq_store.client.cluster_sink.record_topic import RecordTopic
from rmq_store.client.cluster_sink.records import Record, WritePart
from rmq_store.client.consume_service.listener import MessageListener
from rmq_store.client.delivery.queue_reading import QueueReading
from rmq_store.protocol.bodies.topics import TopicStatsTable
from rmq_store.protocol.messages import MessageQueue
from rmq_store.protocol.results import QueueRange
from rmq_store.protocol.wire.request_codes import RequestCode
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.cluster.queries import LogFigure, log_figures
from rmq_store.remoting.cluster.topics import at_brokers, ends_at_brokers
from rmq_store.remoting.transport.settings import ClusterSettings

EACH = 50
QUEUES = 4
EVERYTHING = [(queue_id, offset) for queue_id in range(QUEUES) for offset in range(EACH)]
FROM_FIRST: dict[str, Any] = {"consume_from_where": "CONSUME_FROM_FIRST_OFFSET"}


def rmq(cluster: RocketmqCluster, *words: str) -> str:
    result = CliRunner().invoke(
        commands, ["-n", cluster.name_server, *words], env={"RMQ_STORE": None, "NAMESRV_ADDR": None}, prog_name="rmq",
        catch_exceptions=False,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    return result.stdout


def set_counts(cluster: RocketmqCluster, topic: str, read: int, write: int) -> None:
    """As an administrator does; on return the name server shows it."""
    rmq(cluster, "updateTopic", "-t", topic, "-b", cluster.address(), "-r", str(read), "-w", str(write))

    def shown() -> bool:
        route = json.loads(rmq(cluster, "topicRoute", "-t", topic, "--json"))
        return {(one["readQueueNums"], one["writeQueueNums"]) for one in route["queueDatas"]} == {(read, write)}

    until(shown, "the name server shows other queues")


@pytest.fixture
def topic(cluster: RocketmqCluster, new_name: Callable[[str], str]) -> str:
    """Four queues at broker-a, 50 messages in each."""
    name = new_name("Closing")
    rmq(cluster, "updateTopic", "-t", name, "-b", cluster.address(), "-r", str(QUEUES), "-w", str(QUEUES))
    with cluster.connect() as broker:
        for queue_id in range(QUEUES):
            assert requests.send_batch(broker, name, [b"%d" % n for n in range(EACH)], queue_id).code == 0
            requests.await_end(broker, name, EACH, queue_id)
    return name


def rows(cluster: RocketmqCluster, topic: str) -> Counter[int]:
    """How many messages a batch read has of each queue."""
    cluster_pool.close_unused()  # a route may be 30 s old
    given = {"nameServer": cluster.name_server, "subscribe": topic}
    reader = RmqReader(source_options(given, "batch read", int(time.time() * 1000)), SOURCE_SCHEMA)
    found: Counter[int] = Counter()
    for part in reader.partitions():
        for batch in reader.read(part):
            found.update(batch.column("queueId").to_pylist())
    return found


def place_of(message: MessageExt) -> tuple[int, int]:
    return message.queue_id, message.queue_offset


def committed(cluster: RocketmqCluster, group: str, topic: str) -> dict[int, int]:
    """The offsets of a group by queue, as a command shows them: queues without lag only."""
    shown = json.loads(rmq(cluster, "consumerProgress", "-g", group, "-t", topic, "--json"))["queues"]
    return {one["queueId"]: one["consumerOffset"] for one in shown if one["diff"] == 0}


def test_a_topic_that_is_made_smaller_is_read_to_its_end(cluster: RocketmqCluster, topic: str) -> None:
    set_counts(cluster, topic, read=QUEUES, write=2)
    everything = Counter(dict.fromkeys(range(QUEUES), EACH))
    with cluster.connect() as broker:
        answer = broker.ask(RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic})
    listed = {queue.queue_id for queue in TopicStatsTable.decode(answer.body).offset_table}
    assert listed == ({0, 1} if cluster.version.startswith("4.") else {0, 1, 2, 3}), "the fact"
    assert rows(cluster, topic) == everything
    assert len(rmq(cluster, "read", topic, "--max", "1000", "--json").splitlines()) == QUEUES * EACH
    status = json.loads(rmq(cluster, "topicStatus", "-t", topic, "--json"))
    assert [(one["queueId"], one["maxOffset"]) for one in status] == [(number, EACH) for number in range(QUEUES)]
    (shown,) = [one for one in json.loads(rmq(cluster, "topics", "--json")) if one["topic"] == topic]
    assert shown["messages"] == QUEUES * EACH


def test_the_ends_of_queues_that_are_not_written_any_more_are_known(cluster: RocketmqCluster, topic: str) -> None:
    set_counts(cluster, topic, read=QUEUES, write=2)
    with Cluster(ClusterSettings.of_text(cluster.name_server)) as known:
        told = ends_at_brokers(known, at_brokers([known.known_route(topic)]))
    assert {queue: span for ends in told for queue, span in ends.ranges.items()} == {
        MessageQueue(topic, "broker-a", number): QueueRange(0, EACH) for number in range(QUEUES)
    }


@pytest.mark.parametrize("kind", [MessageListenerConcurrently, MessageListenerOrderly, MessageListenerArrow])
def test_a_push_consumer_gets_what_is_left_in_queues_that_are_not_written_any_more(
    cluster: RocketmqCluster, topic: str, new_name: Callable[[str], str], kind: type[MessageListener]
) -> None:
    set_counts(cluster, topic, read=QUEUES, write=2)
    group = new_name("cg-closing")
    found: list[tuple[int, int]] = []

    def handle(messages: Any, context: object) -> Any:
        if kind is MessageListenerArrow:
            found.extend(zip(*(messages.column(name).to_pylist() for name in ("queueId", "queueOffset")), strict=True))
        else:
            found.extend(map(place_of, messages))
        is_ordered = kind is MessageListenerOrderly
        return ConsumeOrderlyStatus.SUCCESS if is_ordered else ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    with PushConsumer(group, f"rmq://{cluster.name_server}", PushConsumerConfig(**FROM_FIRST)) as consumer:
        consumer.subscribe(topic)
        consumer.register_message_listener(kind(handle))
        consumer.start()  # `with` does not start a consumer
        until(lambda: len(found) >= len(EVERYTHING), "messages are missing")
    assert sorted(found) == EVERYTHING
    assert committed(cluster, group, topic) == dict.fromkeys(range(QUEUES), EACH)


def test_a_lite_pull_consumer_and_rmq_consume_get_it(
    cluster: RocketmqCluster, topic: str, new_name: Callable[[str], str]
) -> None:
    set_counts(cluster, topic, read=QUEUES, write=2)
    group, found = new_name("cg-closing"), set[tuple[int, int]]()
    with LitePullConsumer(group, f"rmq://{cluster.name_server}", LitePullConsumerConfig(**FROM_FIRST)) as consumer:
        consumer.subscribe(topic)
        consumer.start()

        def is_complete() -> bool:
            found.update(map(place_of, consumer.poll(500)))
            return len(found) == len(EVERYTHING)

        until(is_complete, "messages are missing")
        consumer.commit()
    assert committed(cluster, group, topic) == dict.fromkeys(range(QUEUES), EACH)
    printed = rmq(cluster, "consume", topic, "-g", new_name("cg-closing"), "--until-empty", "--json").splitlines()
    assert sorted((one["queueId"], one["queueOffset"]) for one in map(json.loads, printed)) == EVERYTHING


def test_a_simple_consumer_gets_it(cluster: RocketmqCluster, topic: str, new_name: Callable[[str], str]) -> None:
    set_counts(cluster, topic, read=QUEUES, write=2)
    with SimpleConsumer(
        new_name("cg-closing"), f"rmq://{cluster.name_server}", {topic: "*"}, await_duration=timedelta(seconds=1),
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    ) as consumer:  # fmt: skip
        if cluster.version.startswith("4."):
            with pytest.raises(UsageError, match=r"needs brokers of 5\.x"):
                consumer.receive(32, timedelta(minutes=1))
            return
        found = set[tuple[int, int]]()

        def is_complete() -> bool:
            for view in consumer.receive(32, timedelta(minutes=1)):
                found.add(place_of(view.message))
                consumer.ack(view)
            return len(found) == len(EVERYTHING)

        until(is_complete, "messages are missing")


def test_the_push_consumer_of_java_gets_it(
    cluster: RocketmqCluster, topic: str, new_name: Callable[[str], str]
) -> None:
    """The fact."""
    set_counts(cluster, topic, read=QUEUES, write=2)
    with Witness(cluster) as java:
        java.ask("push", group=new_name("cg-closing"), topic=topic)
        found = java.ask("received", count=len(EVERYTHING), timeoutMs=120_000)
        java.ask("leave")
    assert sorted((one["queueId"], one["queueOffset"]) for one in found) == EVERYTHING


def test_queues_that_are_written_and_not_read_wait_until_they_are_opened(cluster: RocketmqCluster, topic: str) -> None:
    set_counts(cluster, topic, read=2, write=QUEUES)
    assert rows(cluster, topic) == Counter({0: EACH, 1: EACH})
    with cluster.connect() as broker:
        assert requests.pull(broker, topic, 3).code != 0, "no client gets its messages"
    set_counts(cluster, topic, read=QUEUES, write=QUEUES)
    assert rows(cluster, topic) == Counter(dict.fromkeys(range(QUEUES), EACH))


def test_the_figure_of_a_broker_grows_with_each_message_and_stands_still_without(
    cluster: RocketmqCluster, topic: str
) -> None:
    with Cluster(ClusterSettings.of_text(cluster.name_server)) as known, cluster.connect() as broker:

        def figure() -> LogFigure:
            found = log_figures(known, ["broker-a"])["broker-a"]
            assert isinstance(found, LogFigure)
            return found

        until(lambda: figure() == (time.sleep(0.5), figure())[1], "the log never stands still")
        before = figure()
        assert before.max_offset > 0 and before.dispatch_behind_bytes == 0 and before.broker_id == 0
        assert requests.send(broker, topic, 0, b"one more").code == 0
        until(lambda: figure().max_offset > before.max_offset, "the log does not grow")


def test_a_pull_with_a_filter_looks_at_as_many_messages_as_it_asks_for(
    cluster: RocketmqCluster, new_name: Callable[[str], str]
) -> None:
    """So that the search for the records of a sink takes few pulls."""
    name = cluster.create_topic(new_name("Records"), 1)
    part = WritePart("query", 0, 3)
    with Cluster(ClusterSettings.of_text(cluster.name_server)) as known:
        reading = QueueReading(known, 10_000)
        RecordTopic(known, reading, group="pg", topic=name).add(
            Record(part, {MessageQueue("Orders", "broker-a", 0): 5}, "a")
        )
        with cluster.connect() as broker:
            for _ in range(20):
                answer = requests.send_batch(broker, name, [b"other"] * 1000, properties={"TAGS": "other"})
                assert answer.code == 0
            until(lambda: requests.max_offset(broker, name) >= 20_000, "the queue ends early")
            wanted = requests.pull(broker, name, 0, 1, count=16_384, subscription="none")
            assert int(wanted.ext_fields["nextBeginOffset"]) >= 16_000, wanted
        assert RecordTopic(known, reading, group="pg", topic=name).find(part) == {
            MessageQueue("Orders", "broker-a", 0): 5
        }
