"""What the parts of a mirror into Kafka have in common: Kafka's side, rules and counts."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import Literal

from rmq_store.bridge.kafka.client import KafkaAdministration, KafkaWriters
from rmq_store.bridge.mirror.kafka_positions import KafkaPositions
from rmq_store.bridge.records.route import Route


@dataclass(frozen=True, slots=True)
class CopyRules:
    """`start`: where queues begin that the mirror has never seen, if the topic was there when it began: `earliest`,
    `latest`, or a store time in ms. `on_data_loss`: messages that are gone before they were copied end the topic's
    mirror, or are counted. `on_source_change`: a store that is not the one that was copied (restored, or the topic made
    again) ends it too; `common` goes on at the last common place, `restart` at the beginning.
    A window has at most `window_rows` messages and about `window_bytes` of all queues.
    """

    start: Literal["earliest", "latest"] | int = "earliest"
    on_data_loss: Literal["fail", "count"] = "fail"
    on_source_change: Literal["fail", "common", "restart"] = "fail"
    window_rows: int = 20_000
    window_bytes: int = 8 << 20


@dataclass(frozen=True, slots=True)
class KafkaSide:
    """Kafka, for all topics of a mirror. `instance` names this run of it."""

    mirror: str
    rmq_cluster_id: str
    kafka_cluster_id: str
    administration: KafkaAdministration
    writers: KafkaWriters
    positions: KafkaPositions
    instance: str = field(default_factory=lambda: uuid.uuid4().hex)

    def route(self, topic: str, target: str, queue_id: int) -> Route:
        """From a queue to its partition."""
        return Route(self.rmq_cluster_id, topic, queue_id, self.kafka_cluster_id, target, queue_id)


@dataclass(slots=True)
class Counts:
    """What a mirror has done since it began: records, and of messages those that came to nothing or something else."""

    copied: int = 0
    copied_bytes: int = 0
    dropped_loops: int = 0
    letters: int = 0
    damaged: int = 0
    lost: int = 0
    older_than_retention: int = 0
    transactions: int = 0
    repeated: int = 0
