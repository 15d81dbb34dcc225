"""A store and a Kafka cluster as links: both sides, and the positions of the mirrors between them."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from typing import Final

from rmq_store.bridge.kafka.connect import connected, open_reader, open_writers
from rmq_store.bridge.kafka.connection import KafkaConnection
from rmq_store.bridge.offsets.kafka_side import KafkaSide
from rmq_store.bridge.offsets.letters import letters_of_kafka, letters_of_store
from rmq_store.bridge.offsets.pair import Link
from rmq_store.bridge.offsets.side import MirroredQueue, MirroredTopic, MirrorPositions, Side, no_positions
from rmq_store.bridge.offsets.store_side import StoreSide
from rmq_store.bridge.positions.kafka_positions import KafkaPositions, TopicPosition, positions_topic
from rmq_store.bridge.positions.store_positions import StorePositions, TopicPositions, text_hash
from rmq_store.bridge.positions.store_windows import changed
from rmq_store.broker.store.store import Store
from rmq_store.errors import UsageError

_TIMEOUT_MS: Final = 90_000


@contextmanager
def kafka_to_store(
    store: Store, connection: KafkaConnection, cluster_id: str, mirror: str, way_back: str
) -> Iterator[Link]:
    """Groups move from Kafka to the store: `mirror` names the mirror into the store, `way_back` the one into Kafka.
    `cluster_id` is the store's. Connections are closed after the block; the caller closes the store.

    Raises:
        UsageError: the extra `[kafka]` is missing, an invalid name, or a cluster id other than the mirror's.
        KafkaUnavailableError, KafkaRefusedError.
    """
    with _opened(store, connection, cluster_id, into_store=mirror, into_kafka=way_back) as (kafka, rmq, there, back):
        into_kafka = functools.partial(letters_of_kafka, kafka.administration, kafka.reader, way_back, cluster_id)
        into_store = functools.partial(letters_of_store, store, mirror, kafka.cluster_id)
        yield Link(kafka, rmq, there, back, into_kafka, into_store)


@contextmanager
def store_to_kafka(
    store: Store, connection: KafkaConnection, cluster_id: str, mirror: str, way_back: str
) -> Iterator[Link]:
    """Groups move from the store to Kafka: `mirror` names the mirror into Kafka, `way_back` the one into the store.
    Otherwise as `kafka_to_store`.
    """
    with _opened(store, connection, cluster_id, into_store=way_back, into_kafka=mirror) as (kafka, rmq, back, there):
        into_kafka = functools.partial(letters_of_kafka, kafka.administration, kafka.reader, mirror, cluster_id)
        into_store = functools.partial(letters_of_store, store, way_back, kafka.cluster_id)
        yield Link(rmq, kafka, there, back, into_store, into_kafka)


@contextmanager
def _opened(
    store: Store, connection: KafkaConnection, cluster_id: str, *, into_store: str, into_kafka: str
) -> Iterator[tuple[KafkaSide, StoreSide, MirrorPositions, MirrorPositions]]:
    with ExitStack() as opened:
        administration, reader = opened.enter_context(connected(connection))
        kafka, rmq = KafkaSide(administration, reader), StoreSide(store, cluster_id)
        there = IntoStore(StorePositions(store, into_store, kafka.cluster_id), kafka, rmq)
        back: MirrorPositions = no_positions
        topic = positions_topic(into_kafka, cluster_id)
        if topic in administration.topics([topic]):
            own_reader = opened.enter_context(closing(open_reader(connection)))
            writers = opened.enter_context(closing(open_writers(connection, administration)))
            positions = KafkaPositions(into_kafka, cluster_id, own_reader, administration, writers)
            back = IntoKafka(positions, store, kafka, rmq)
        yield kafka, rmq, there, back


class IntoStore:
    """Positions of a mirror from Kafka into a store. The store identifies targets by hashes of their names.

    Raises (when constructed):
        UsageError: the mirror has begun with another cluster id of the store.
    """

    def __init__(self, positions: StorePositions, kafka: Side, store: Side) -> None:
        positions.has_begun(store.cluster_id)
        self._positions = positions
        self._kafka = kafka
        self._store = store

    def __call__(self) -> Mapping[str, MirroredTopic]:
        """Positions now, by topic of Kafka. UsageError: the store has two topics that a target could be."""
        by_hash: dict[int, list[str]] = {}
        for name in self._store.topics():
            by_hash.setdefault(text_hash(name), []).append(name)
        found = {}
        for topic in self._kafka.topics():
            known = self._positions.read(topic)
            if known is None or known.target_hash not in by_hash:
                continue
            target, *others = by_hash[known.target_hash]
            if others:
                raise UsageError(
                    f"topic {topic!r} is mirrored to {target!r} or to {others[0]!r}, which cannot be told apart: the "
                    "CRC-32 of both names is the same"
                )
            found[topic] = self._mirrored(topic, target, known)
        return found

    def _mirrored(self, topic: str, target: str, known: TopicPositions) -> MirroredTopic:
        topic_id = self._kafka.topic_id(topic)
        queues = {
            partition: MirroredQueue(position.next_offset, position.start_offset)
            for partition, position in known.partitions.items()
        }
        is_replaced = bool(topic_id and known.topic_id.int and topic_id != str(known.topic_id))
        return MirroredTopic(target, queues, is_replaced=is_replaced)


class IntoKafka:
    """Positions of a mirror from a store into Kafka."""

    def __init__(self, positions: KafkaPositions, store: Store, kafka: Side, topics: Side) -> None:
        """`topics`: the store as a side."""
        self._positions = positions
        self._store = store
        self._kafka = kafka
        self._topics = topics

    def __call__(self) -> Mapping[str, MirroredTopic]:
        """Positions now, by topic of the store. KafkaUnavailableError: an open transaction hides the newest ones."""
        self._positions.refresh(_TIMEOUT_MS)
        self._kafka.topics()  # as they are now
        found = {}
        for topic in self._topics.topics():
            known = self._positions.topic(topic)
            if known is not None:
                found[topic] = self._mirrored(topic, known)
        return found

    def _mirrored(self, topic: str, known: TopicPosition) -> MirroredTopic:
        positions = self._positions.queues(topic)
        queues = {
            queue_id: MirroredQueue(position.next_offset, position.start_offset, position.mark.target_end)
            for queue_id, position in positions.items()
        }
        queue_count = self._topics.queue_count(topic)
        is_replaced = self._kafka.topic_id(known.target) not in ("", known.target_id) or any(
            queue_id >= queue_count or changed(self._store, topic, queue_id, position.mark) is not None
            for queue_id, position in positions.items()
        )
        return MirroredTopic(known.target, queues, is_replaced=is_replaced)
