"""Positions of mirrors in both directions, in the form that translation needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rmq_store.bridge.offsets.side import MirroredQueue, MirroredTopic, Side
from rmq_store.bridge.positions.kafka_positions import KafkaPositions, TopicPosition
from rmq_store.bridge.positions.store_positions import StorePositions, TopicPositions, text_hash
from rmq_store.bridge.positions.store_windows import changed
from rmq_store.broker.store.store import Store
from rmq_store.errors import UsageError

_TIMEOUT_MS: Final = 90_000


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
