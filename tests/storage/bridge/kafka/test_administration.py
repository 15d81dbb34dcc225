"""Topics, settings and groups of the real Kafka."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest
from kafka import KafkaConsumer, TopicPartition
from kafka.structs import OffsetAndMetadata

from helpers.kafka_server import KafkaServer
from helpers.kafka_upstream import numbered, produce, producer
from rmq_store import GroupInUseError, KafkaRefusedError, KafkaUnavailableError, UsageError
from rmq_store.bridge.kafka.administration import KafkaPythonAdministration
from rmq_store.bridge.kafka.client import Partition
from rmq_store.bridge.kafka.connection import KafkaConnection
from rmq_store.bridge.kafka.reader import KafkaPythonReader


@pytest.fixture
def administration(kafka: KafkaServer) -> Iterator[KafkaPythonAdministration]:
    opened = KafkaPythonAdministration(KafkaConnection((kafka.address,)))
    yield opened
    opened.close()


def test_the_cluster_has_the_id_that_it_was_formatted_with(
    kafka: KafkaServer, administration: KafkaPythonAdministration
) -> None:
    assert administration.cluster_id() == kafka.cluster_id


def test_a_topic_that_is_made_again_has_another_id(
    kafka: KafkaServer, administration: KafkaPythonAdministration
) -> None:
    name = kafka.new_topic(partition_count=3)
    first = administration.topics([name])[name]
    kafka.delete_topic(name)
    assert administration.topics([name]) == {}
    kafka.create_topic(name, partition_count=2)
    second = administration.topics()[name]
    assert (first.partition_count, second.partition_count) == (3, 2)
    assert first.topic_id != second.topic_id and first.topic_id.int


def test_internal_topics_are_not_told(kafka: KafkaServer, administration: KafkaPythonAdministration) -> None:
    administration.commit_group_offsets("made-the-offsets-topic", {Partition(kafka.new_topic(), 0): 0})
    assert "__consumer_offsets" not in administration.topics()
    assert administration.topics(["__consumer_offsets"]) == {}


def test_a_topic_is_made_grown_and_left_as_it_is_when_it_is_there(
    kafka: KafkaServer, administration: KafkaPythonAdministration
) -> None:
    name = kafka.new_topic("old") + "-made"
    made = administration.create_topic(name, 2, {"cleanup.policy": "compact"})
    assert made.partition_count == 2
    assert administration.topic_settings(name)["cleanup.policy"] == "compact"
    assert administration.create_topic(name, 5, {}) == made
    administration.grow_topic(name, 4)
    administration.grow_topic(name, 3)
    assert administration.topics([name])[name].partition_count == 4


@pytest.mark.parametrize(
    ("name", "settings"), [("no/slash", {}), ("fine", {"retention.days": "1"}), ("fine", {"retention.ms": "x"})]
)
def test_what_kafka_does_not_take_is_the_callers_mistake(
    name: str, settings: dict[str, str], administration: KafkaPythonAdministration
) -> None:
    with pytest.raises(UsageError, match="making topic"):
        administration.create_topic(name, 1, settings)


def test_topics_that_are_not_there_are_refused(administration: KafkaPythonAdministration) -> None:
    with pytest.raises(KafkaRefusedError, match="no-such"):
        administration.topic_settings("no-such")
    with pytest.raises(KafkaRefusedError, match="no-such"):
        administration.grow_topic("no-such", 2)


def test_offsets_of_a_group_are_read_and_committed(
    kafka: KafkaServer, administration: KafkaPythonAdministration
) -> None:
    topic = kafka.new_topic(partition_count=2)
    group = f"group-{topic}"
    assert administration.group_offsets(group) == {}
    administration.commit_group_offsets(group, {Partition(topic, 0): 3, Partition(topic, 1): 0})
    assert administration.group_offsets(group) == {Partition(topic, 0): 3, Partition(topic, 1): 0}
    with pytest.raises(UsageError):
        administration.commit_group_offsets(group, {Partition(topic, 0): -1})


def test_an_offset_that_a_transaction_may_take_back_is_waited_for(
    kafka: KafkaServer, administration: KafkaPythonAdministration
) -> None:
    topic = kafka.new_topic()
    group = f"group-{topic}"
    produce(kafka, topic, numbered(10))
    administration.commit_group_offsets(group, {Partition(topic, 0): 2})
    with producer(kafka, transactional_id=group) as made:
        made.init_transactions()
        made.begin_transaction()
        consumer = KafkaConsumer(group_id=group, bootstrap_servers=kafka.address, enable_auto_commit=False)
        made.send_offsets_to_transaction(
            {TopicPartition(topic, 0): OffsetAndMetadata(9, "", -1)}, consumer.group_metadata()
        )
        consumer.close()
        made.flush()
        abort = threading.Timer(1.0, made.abort_transaction)
        abort.start()
        assert administration.group_offsets(group) == {Partition(topic, 0): 2}
        assert not abort.is_alive() or not abort.join()


def test_a_group_with_members_is_not_moved(kafka: KafkaServer, administration: KafkaPythonAdministration) -> None:
    topic = kafka.new_topic()
    group = f"group-{topic}"
    consumer = KafkaConsumer(group_id=group, bootstrap_servers=kafka.address, enable_auto_commit=False)
    # A member of kafka-python that joins before it knows the partitions of a new topic gets none, for minutes.
    while not consumer.partitions_for_topic(topic):
        time.sleep(0.05)
    consumer.subscribe([topic])
    while not consumer.assignment():
        consumer.poll(100)
    assert administration.group_member_count(group) == 1
    with pytest.raises(GroupInUseError, match=group):
        administration.commit_group_offsets(group, {Partition(topic, 0): 0})
    consumer.close()
    assert administration.group_member_count(group) == 0


@pytest.mark.parametrize("client", [KafkaPythonAdministration, KafkaPythonReader])
def test_a_cluster_that_does_not_answer_is_unavailable_and_leaves_no_thread(
    client: Callable[[KafkaConnection], object],
) -> None:
    connection = KafkaConnection(("127.0.0.1:1",), {"bootstrap_timeout_ms": 200})
    before = set(threading.enumerate())
    with pytest.raises(KafkaUnavailableError, match=r"connecting to 127\.0\.0\.1:1"):
        client(connection)
    assert set(threading.enumerate()) <= before
