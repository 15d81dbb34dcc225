"""A broker of a cluster into the real Kafka: each message once and in order, through deaths of mirror and broker.

The cluster is simulated; tests/cluster/test_bridge.py has brokers of released versions.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from click.testing import CliRunner

from helpers.cluster.simulated import SimulatedBroker, SimulatedCluster
from helpers.cluster.simulated.queues import SentMessage
from helpers.kafka_mirrors import RMQ_CLUSTER, committed_rows, headers, values
from helpers.kafka_server import KafkaServer
from helpers.mirrored_cluster import broker_mirror, copy_from_broker
from rmq_store import OffsetOutOfRangeError, UnknownTopicError, UsageError
from rmq_store.bridge.kafka.writer import KafkaPythonWriter
from rmq_store.bridge.mirror.into_kafka import IntoKafka
from rmq_store.bridge.mirror.kafka_side import CopyRules
from rmq_store.bridge.positions.topics import TopicChoice
from rmq_store.bridge.source.broker_source import BrokerSource
from rmq_store.cli import commands
from rmq_store.protocol.errors import MQBrokerError, RemotingConnectError, RemotingError
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.transport.settings import ClusterSettings

from ...remoting.cluster.fake_cluster import FakeNet


@pytest.fixture
def cluster() -> Iterator[SimulatedCluster]:
    with SimulatedCluster(brokers=1) as made:
        yield made


@pytest.fixture
def broker(cluster: SimulatedCluster) -> SimulatedBroker:
    (broker,) = cluster.brokers.values()
    return broker


@pytest.fixture
def topic(kafka: KafkaServer, cluster: SimulatedCluster) -> str:
    """A topic of two queues that no test had before."""
    name = kafka.new_topic("Orders", partition_count=2)
    cluster.create_topic(name, queue_count=2)
    return name


def put(broker: SimulatedBroker, topic: str, queue_id: int, *bodies: bytes, properties: bytes = b"") -> None:
    now_ms = time.time_ns() // 1_000_000
    for body in bodies:
        broker.queues.topics[topic][queue_id].append(SentMessage(body, properties, born_ms=now_ms, store_ms=now_ms))


def numbers(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


def test_messages_arrive_in_their_partitions_and_in_order_and_a_mirror_goes_on_where_it_was(
    kafka: KafkaServer, cluster: SimulatedCluster, broker: SimulatedBroker, topic: str
) -> None:
    put(broker, topic, 0, *numbers(0, 300), properties=b"KEYS\x01k\x02user\x01x\x02")
    put(broker, topic, 1, *numbers(1000, 1050))
    report = copy_from_broker(kafka, cluster.name_server, "plain", topic)
    assert report.copied == 350 and report.letters == 0 and report.is_caught_up
    rows = committed_rows(kafka, topic, 0)
    assert [row["value"] for row in rows] == numbers(0, 300)
    assert rows[7]["key"] == b"k" and headers(rows[7])["user"] == b"x"
    assert headers(rows[7])["MIRROR_FROM"].split()[:2] == [RMQ_CLUSTER.encode(), topic.encode()]
    assert values(kafka, topic, 1) == numbers(1000, 1050)
    put(broker, topic, 1, *numbers(1050, 1080))
    assert copy_from_broker(kafka, cluster.name_server, "plain", topic).copied == 30
    assert values(kafka, topic, 1) == numbers(1000, 1080)


def test_windows_are_cut_by_size(
    kafka: KafkaServer, cluster: SimulatedCluster, broker: SimulatedBroker, topic: str
) -> None:
    bodies = [b"%04d" % number + bytes(10_000) for number in range(100)]
    put(broker, topic, 0, *bodies)
    copy_from_broker(kafka, cluster.name_server, "sizes", topic, rules=CopyRules(window_bytes=64_000))
    assert values(kafka, topic, 0) == bodies


@pytest.mark.parametrize("point", ["before", "behind"])
def test_a_mirror_that_dies_around_its_commit_loses_nothing_and_doubles_nothing(
    kafka: KafkaServer, cluster: SimulatedCluster, broker: SimulatedBroker, topic: str, point: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    put(broker, topic, 0, *numbers(0, 50))
    copy_from_broker(kafka, cluster.name_server, "dies", topic)
    put(broker, topic, 0, *numbers(50, 90))
    commit = KafkaPythonWriter.commit
    commits = 0

    def dying(writer: KafkaPythonWriter) -> None:
        nonlocal commits
        commits += 1
        if commits == 2:  # the first one claims the topic
            if point == "behind":
                commit(writer)
            raise KeyboardInterrupt
        commit(writer)

    with monkeypatch.context() as patch:
        patch.setattr(KafkaPythonWriter, "commit", dying)
        with pytest.raises(KeyboardInterrupt):
            copy_from_broker(kafka, cluster.name_server, "dies", topic)
    assert commits == 2
    copy_from_broker(kafka, cluster.name_server, "dies", topic)
    assert values(kafka, topic, 0) == numbers(0, 90)


def test_a_broker_that_is_away_is_waited_for(
    kafka: KafkaServer, cluster: SimulatedCluster, broker: SimulatedBroker, topic: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("rmq_store.bridge.source.broker_source._PATIENCE_MS", 200)
    put(broker, topic, 0, *numbers(0, 20))
    ended = threading.Event()
    with broker_mirror(kafka, cluster.name_server, "waits", topic, wait=ended.wait) as mirror:
        worker = threading.Thread(target=mirror.run)
        worker.start()
        try:
            _until(lambda: mirror.report.copied == 20)
            put(broker, topic, 0, *numbers(20, 30))
            broker.stop()
            time.sleep(1)
            broker.start()
            put(broker, topic, 0, *numbers(30, 40))
            _until(lambda: mirror.report.copied == 40)
        finally:
            ended.set()
            worker.join(60)
    assert not mirror.report.failures
    assert values(kafka, topic, 0) == numbers(0, 40)


@pytest.fixture
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Topics are looked at five times a second, and a broker is waited for no longer."""
    monkeypatch.setattr("rmq_store.bridge.source.broker_source._PATIENCE_MS", 200)
    monkeypatch.setattr("rmq_store.bridge.mirror.into_kafka.REFRESH_S", 0.2)


@pytest.fixture
def two() -> Iterator[SimulatedCluster]:
    with SimulatedCluster(brokers=2) as made:
        yield made


@contextmanager
def running(kafka: KafkaServer, cluster: SimulatedCluster, topic: str, **options: Any) -> Iterator[IntoKafka]:
    """A mirror that runs until the end of the block, and must not have ended before."""
    ended, errors = threading.Event(), []

    def run() -> None:
        try:
            mirror.run()
        except Exception as error:
            errors.append(error)

    with broker_mirror(kafka, cluster.name_server, "runs", topic, wait=ended.wait, **options) as mirror:
        worker = threading.Thread(target=run)
        worker.start()
        try:
            yield mirror
        finally:
            ended.set()
            worker.join(60)
        assert not errors and not mirror.report.failures


@pytest.mark.parametrize("absence", ["leaves", "refuses", "is busy", "shuts down"])
@pytest.mark.usefixtures("quickly")
def test_a_mirror_goes_on_when_its_broker_is_back(kafka: KafkaServer, two: SimulatedCluster, absence: str) -> None:
    """A name server forgets a broker that is killed, and the mirror ended, because the source had no such topic."""
    topic, (name, broker) = kafka.new_topic("Orders"), next(iter(two.brokers.items()))
    two.create_topic(topic, queue_count=1)
    put(broker, topic, 0, *numbers(0, 20))
    with running(kafka, two, topic, broker_name=name) as mirror:
        _until(lambda: mirror.report.copied == 20)
        if absence == "leaves":
            two.leave(name)
        elif absence == "refuses":
            broker.stop()
        else:
            broker.refuse(11, 14 if absence == "shuts down" else 2)
            put(broker, topic, 0, *numbers(20, 30))
            _until(lambda: mirror.report.state.startswith("waiting for the broker"))
        time.sleep(1.5)
        broker.forgive(11)
        if absence in ("leaves", "refuses"):
            two.come_back(name)
            put(broker, topic, 0, *numbers(20, 30))
        _until(lambda: mirror.report.copied == 30)
    assert values(kafka, topic, 0) == numbers(0, 30)


@pytest.mark.parametrize("answers", ["nothing", "not ready"])
@pytest.mark.usefixtures("quickly")
def test_a_mirror_goes_on_while_the_name_servers_know_nothing(
    kafka: KafkaServer, two: SimulatedCluster, answers: str
) -> None:
    topic, (name, broker) = kafka.new_topic("Orders"), next(iter(two.brokers.items()))
    two.create_topic(topic, queue_count=1)
    with running(kafka, two, topic, broker_name=name) as mirror:
        put(broker, topic, 0, *numbers(0, 20))
        _until(lambda: mirror.report.copied == 20)
        if answers == "nothing":
            two.forget_brokers()
        else:
            for code in (105, 106, 206):
                two.refuse(code, 1)
        mirror._store._cluster.routes.refresh(topic)  # type: ignore[attr-defined]
        time.sleep(0.5)
        put(broker, topic, 0, *numbers(20, 30))
        _until(lambda: mirror.report.copied == 30)
    assert values(kafka, topic, 0) == numbers(0, 30)


@pytest.mark.usefixtures("quickly")
def test_a_mirror_that_begins_beside_a_broker_that_is_away_waits_for_it(
    kafka: KafkaServer, cluster: SimulatedCluster, broker: SimulatedBroker, topic: str
) -> None:
    """It ended when it wrote its first report."""
    put(broker, topic, 0, *numbers(0, 20))
    broker.stop()
    with running(kafka, cluster, topic) as mirror:
        _until(lambda: mirror.report.state.startswith("waiting for the broker"))
        broker.start()
        _until(lambda: mirror.report.copied == 20)


@pytest.mark.usefixtures("quickly")
def test_a_topic_that_is_deleted_at_the_broker_stops_alone(
    kafka: KafkaServer, cluster: SimulatedCluster, broker: SimulatedBroker, topic: str
) -> None:
    other = kafka.new_topic("Others", partition_count=2)
    cluster.create_topic(other, queue_count=2)
    put(broker, topic, 0, *numbers(0, 20))
    put(broker, other, 0, *numbers(0, 20))
    ended = threading.Event()
    choice = TopicChoice((topic, other))
    with broker_mirror(kafka, cluster.name_server, "deleted", topic, wait=ended.wait, choice=choice) as mirror:
        worker = threading.Thread(target=mirror.run)
        worker.start()
        try:
            _until(lambda: mirror.report.copied == 40)
            del broker.queues.topics[topic]
            _until(lambda: mirror.report.failures)
            put(broker, other, 0, *numbers(20, 30))
            _until(lambda: mirror.report.copied == 50)
        finally:
            ended.set()
            worker.join(60)
    assert f"has no topic {topic!r} any more" in " ".join(mirror.report.failures.values())


def _until(is_there: object) -> None:
    deadline = time.monotonic() + 60
    while not is_there():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_topic_that_was_made_again_at_the_broker_is_noticed(
    kafka: KafkaServer, cluster: SimulatedCluster, broker: SimulatedBroker, topic: str
) -> None:
    put(broker, topic, 0, *numbers(0, 5))
    copy_from_broker(kafka, cluster.name_server, "again", topic)
    put(broker, topic, 0, b"5")
    queue = broker.queues.topics[topic][0]
    queue.sent.clear()
    time.sleep(0.01)
    put(broker, topic, 0, *numbers(0, 6))
    with (
        broker_mirror(kafka, cluster.name_server, "again", topic) as mirror,
        pytest.raises(Exception, match="is not the one that was mirrored"),
    ):
        mirror.run(until_caught_up=True)


def test_messages_that_retention_deleted_first_stop_the_topic_or_are_counted(
    kafka: KafkaServer, cluster: SimulatedCluster, broker: SimulatedBroker, topic: str
) -> None:
    put(broker, topic, 0, *numbers(0, 100))
    rules = CopyRules(on_data_loss="count")
    copy_from_broker(kafka, cluster.name_server, "gone", topic, rules=rules)
    put(broker, topic, 0, *numbers(100, 300))
    broker.queues.topics[topic][0].first = 200
    with (
        broker_mirror(kafka, cluster.name_server, "gone", topic) as mirror,
        pytest.raises(Exception, match="retention deleted them"),
    ):
        mirror.run(until_caught_up=True)
    assert copy_from_broker(kafka, cluster.name_server, "gone", topic, rules=rules).lost == 100
    assert values(kafka, topic, 0) == numbers(0, 100) + numbers(200, 300)


def test_queues_of_two_brokers_are_not_mixed_in_a_partition(kafka: KafkaServer) -> None:
    with SimulatedCluster(brokers=2) as cluster:
        topic = kafka.new_topic("Orders", partition_count=1)
        cluster.create_topic(topic, queue_count=1)
        for name, broker in cluster.brokers.items():
            put(broker, topic, 0, name.encode())
        with (
            broker_mirror(kafka, cluster.name_server, "mixed", topic) as mirror,
            pytest.raises(Exception, match=r"has queues at 2 brokers .*--broker"),
        ):
            mirror.run(until_caught_up=True)
        other = kafka.new_topic("Others", partition_count=1)
        copy_from_broker(kafka, cluster.name_server, "first", topic, broker_name="broker-000")
        copy_from_broker(kafka, cluster.name_server, "second", topic, broker_name="broker-001", target=other)
        assert values(kafka, topic) == [b"broker-000"] and values(kafka, other) == [b"broker-001"]


def test_the_command_takes_a_cluster(
    kafka: KafkaServer, cluster: SimulatedCluster, broker: SimulatedBroker, topic: str
) -> None:
    put(broker, topic, 0, *numbers(0, 20))
    arguments = [
        "-n", cluster.name_server, "mirror", "rmq-to-kafka", "--name", "by-command", "--cluster-id", RMQ_CLUSTER,
        "--bootstrap-servers", kafka.address, "--topics", topic, "--broker", broker.name, "--once", "--json",
    ]  # fmt: skip
    result = CliRunner().invoke(commands, arguments, env={"RMQ_STORE": None}, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout.splitlines()[-1])["copied"] == 20
    assert values(kafka, topic, 0) == numbers(0, 20)


# -- the source alone --------------------------------------------------------------------------------------------------


@pytest.fixture
def source(cluster: SimulatedCluster, broker: SimulatedBroker) -> Iterator[BrokerSource]:
    cluster.create_topic("Orders", queue_count=2)
    put(broker, "Orders", 0, *(bytes(1000) for _ in range(50)))
    with Cluster(ClusterSettings.of_text(cluster.name_server)) as opened:
        yield BrokerSource(opened)


def test_a_source_says_what_the_broker_has(source: BrokerSource, broker: SimulatedBroker) -> None:
    assert source.topics() == ["Orders"] and source.topic("Orders").read_queue_nums == 2
    assert source.queue_ranges("Orders") == {0: (0, 50), 1: (0, 0)}
    assert source.queue_range("Orders", 7) == (0, 0)
    stop = source.offset_after_bytes("Orders", 0, 10, 50, 5_000)
    assert 13 <= stop <= 15
    read = broker.calls[11]
    assert sum(batch.num_rows for batch in source.read("Orders", 0, 10, stop)) == stop - 10
    assert broker.calls[11] == read, "the messages were here"
    assert source.offset_after_bytes("Orders", 0, 10, 50, 1) == 11, "one at least"
    with pytest.raises(OffsetOutOfRangeError):
        list(source.read("Orders", 0, 50, 51))
    with pytest.raises(UnknownTopicError):
        source.topic("Others")
    with pytest.raises(UnknownTopicError, match="a topic 'Others'"):
        BrokerSource(source._cluster, broker.name).topic("Others")
    for ask in (lambda of: of.topics(), lambda of: of.topic("Orders")):
        with pytest.raises(RemotingConnectError, match=r"broker broker-9: no name server of .* knows it"):
            ask(BrokerSource(source._cluster, "broker-9"))


def test_ends_are_asked_once_a_round_and_are_those_of_before_while_the_broker_is_away(
    source: BrokerSource, broker: SimulatedBroker
) -> None:
    source.queue_ranges("Orders")
    asked = broker.calls[202]
    put(broker, "Orders", 0, b"new")
    assert source.queue_range("Orders", 0).max_offset == 50 and broker.calls[202] == asked
    source.refresh()
    assert source.queue_range("Orders", 0).max_offset == 51
    source.refresh()
    broker.stop()
    assert source.queue_range("Orders", 0).max_offset == 51
    with pytest.raises(RemotingError):
        BrokerSource(source._cluster).queue_ranges("Orders")
    broker.start()


@pytest.mark.parametrize("code", [2, 14, 215, 1500])
def test_ends_are_those_of_before_while_the_broker_is_busy(code: int) -> None:
    """A mirror ended with an error when its broker answered "busy", and went on while it was silent."""
    net = FakeNet()
    broker = net.add_broker()
    broker.put("Orders", 0, 3)
    source = BrokerSource(net.cluster())
    assert source.topics() == ["Orders"] and source.queue_ranges("Orders") == {0: (0, 3)}
    for question in (202, 30, 31):
        broker.refused[question] = code, "not now"
    broker.put("Orders", 0, 1)
    source.refresh()
    assert source.queue_ranges("Orders") == {0: (0, 3)}
    with pytest.raises(MQBrokerError):
        BrokerSource(net.cluster()).queue_ranges("Orders")
    broker.refused = dict.fromkeys((202, 30, 31), (16, "no rights"))
    source.refresh()
    with pytest.raises(MQBrokerError, match="no rights"):
        source.queue_ranges("Orders")
    broker.refused.clear()
    source.refresh()
    assert source.queue_ranges("Orders") == {0: (0, 4)}


def test_a_source_of_one_broker_waits_for_no_other() -> None:
    """New messages of broker-000 were not mirrored while broker-001 was silent."""
    with SimulatedCluster(brokers=2) as cluster, Cluster(ClusterSettings.of_text(cluster.name_server)) as opened:
        cluster.create_topic("Orders", queue_count=1)
        source = BrokerSource(opened, "broker-000")
        source.topic("Orders")
        cluster.brokers["broker-001"].stop()
        put(cluster.brokers["broker-000"], "Orders", 0, b"new")
        source.refresh()
        assert source.queue_ranges("Orders") == {0: (0, 1)}


@pytest.mark.parametrize("is_named", [True, False])
@pytest.mark.usefixtures("quickly")
def test_a_topic_stays_at_the_broker_that_had_it_until_that_broker_says_otherwise(
    two: SimulatedCluster, is_named: bool
) -> None:
    """The queues of another broker, and none at all, counted as those of the mirror's broker while it was away."""
    mine, other = two.brokers.values()
    mine.queues.create("Orders", 1, 5)
    with Cluster(ClusterSettings.of_text(two.name_server)) as opened:
        source = BrokerSource(opened, mine.name if is_named else None)
        assert source.topic("Orders").read_queue_nums == 1 and source.queue_ranges("Orders") == {0: (0, 5)}
        other.queues.create("Orders", 3, 9)
        two.leave(mine.name)
        opened.routes.refresh("Orders")
        source.refresh()
        assert source.topic("Orders").read_queue_nums == 1 and source.queue_ranges("Orders") == {0: (0, 5)}
        with pytest.raises(RemotingError):
            list(source.read("Orders", 0, 0, 5))
        with (
            Cluster(ClusterSettings.of_text(two.name_server)) as another,
            pytest.raises(RemotingConnectError, match=f"{mine.name}: no name server"),
        ):
            BrokerSource(another, mine.name).queue_ranges("Orders")
        two.come_back(mine.name)
        del mine.queues.topics["Orders"]

        def is_gone() -> bool:
            source.refresh()
            try:
                return not source.queue_ranges("Orders")
            except UnknownTopicError as error:
                return "any more" in str(error)

        _until(is_gone)


def test_a_mirror_needs_one_broker(cluster: SimulatedCluster) -> None:
    with SimulatedCluster(brokers=2) as two:
        two.create_topic("Orders", queue_count=1)
        with Cluster(ClusterSettings.of_text(two.name_server)) as opened, pytest.raises(UsageError, match="--broker"):
            BrokerSource(opened).topic("Orders")
