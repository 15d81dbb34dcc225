"""Mirrors from a store into the Kafka of the tests, and what a reader of committed records then finds there."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

from helpers.kafka_server import KafkaServer
from rmq_store import Message, Store
from rmq_store.bridge.kafka.administration import KafkaPythonAdministration
from rmq_store.bridge.kafka.client import Partition, Position
from rmq_store.bridge.kafka.connection import KafkaConnection
from rmq_store.bridge.kafka.reader import KafkaPythonReader
from rmq_store.bridge.kafka.writer import KafkaPythonWriters
from rmq_store.bridge.mirror.into_kafka import IntoKafka
from rmq_store.bridge.mirror.kafka_side import CopyRules, KafkaSide
from rmq_store.bridge.mirror.kafka_targets import TargetRules
from rmq_store.bridge.mirror.report import MirrorReport
from rmq_store.bridge.positions.kafka_positions import KafkaPositions
from rmq_store.bridge.positions.topics import TopicChoice

RMQ_CLUSTER = "shop-rocketmq"
_PATIENCE_S = 60.0


@contextmanager
def kafka_side(kafka: KafkaServer, mirror: str, cluster_id: str = RMQ_CLUSTER, **options: Any) -> Iterator[KafkaSide]:
    """Kafka as a mirror has it: connections of its own."""
    connection = KafkaConnection((kafka.address,))
    administration = KafkaPythonAdministration(connection)
    writers = KafkaPythonWriters(connection.settings(), administration.topic_settings, **options)
    reader = KafkaPythonReader(connection)
    try:
        positions = KafkaPositions(mirror, cluster_id, reader, administration, writers)
        positions.prepare()
        yield KafkaSide(mirror, cluster_id, kafka.cluster_id, administration, writers, positions)
    finally:
        reader.close()
        writers.close()
        administration.close()


@contextmanager
def mirror_of(
    kafka: KafkaServer,
    store: Store,
    mirror: str,
    topics: Sequence[str],
    *,
    rules: CopyRules | None = None,
    targets: TargetRules | None = None,
    choice: TopicChoice | None = None,
    cluster_id: str = RMQ_CLUSTER,
    wait: Callable[[float], bool] = lambda seconds: bool(time.sleep(seconds)),
    side_options: Mapping[str, Any] = MappingProxyType({}),
    **options: Any,
) -> Iterator[IntoKafka]:
    """A mirror that nobody stops, if `wait` does not say so."""
    with kafka_side(kafka, mirror, cluster_id, **side_options) as side:
        yield IntoKafka(
            store, side, choice or TopicChoice(tuple(topics)), rules or CopyRules(),
            targets or TargetRules(create=True), wait=wait, **{"patience_s": 60, **options},
        )  # fmt: skip


def copy_all(kafka: KafkaServer, store: Store, mirror: str, topics: Sequence[str], **options: Any) -> MirrorReport:
    """Run a mirror until it is caught up; a topic that has stopped fails the test."""
    with mirror_of(kafka, store, mirror, topics, **options) as made:
        report = made.run(until_caught_up=True)
    assert not report.failures, report.failures
    return report


def committed_rows(kafka: KafkaServer, topic: str, partition: int = 0) -> list[dict[str, Any]]:
    """What a reader of committed records has, to the end of the partition."""
    place = Partition(topic, partition)
    connection = KafkaConnection((kafka.address,))
    reader = KafkaPythonReader(connection)
    writers = KafkaPythonWriters(connection.settings(), lambda topic: {})
    found: list[dict[str, Any]] = []
    try:
        end = writers.high_watermark(place)
        reader.assign({place: Position(0)})
        stop_s = time.monotonic() + _PATIENCE_S
        while reader.position(place) < end:
            assert time.monotonic() < stop_s, "a transaction stays open"
            for fetched in reader.poll(100).values():
                found += fetched.rows.to_pylist()
    finally:
        reader.close()
        writers.close()
    return found


def values(kafka: KafkaServer, topic: str, partition: int = 0) -> list[bytes | None]:
    """The values alone."""
    return [row["value"] for row in committed_rows(kafka, topic, partition)]


def headers(row: dict[str, Any]) -> dict[str, bytes]:
    """A record's headers by name."""
    return {pair["name"].decode(): pair["value"] for pair in row["headers"]}


def fill(store: Store, topic: str, bodies: Sequence[bytes], queue_id: int = 0, **fields: Any) -> None:
    """Messages in one queue."""
    store.send_all([Message(topic, body, queue_id=queue_id, **fields) for body in bodies])
