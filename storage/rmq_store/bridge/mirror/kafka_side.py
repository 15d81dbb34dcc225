"""Shared by the parts of a mirror into Kafka: Kafka's side, and the rules of copying."""

from __future__ import annotations

import re
import uuid
from dataclasses import field
from typing import Final, Literal

from rmq_store.bridge.kafka.client import KafkaAdministration, KafkaWriters
from rmq_store.bridge.positions.kafka_positions import KafkaPositions
from rmq_store.bridge.records.route import Route
from rmq_store.errors import UsageError
from rmq_store.lazy.dataclasses import dataclass

_CLUSTER_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)


@dataclass(frozen=True, slots=True)
class CopyRules:
    """`start`: the start of queues without a position, if the topic existed when the mirror began: `earliest`,
    `latest`, or a store time in ms. `on_data_loss`: what to do if messages were deleted before they were copied: stop
    the topic, or count them. `on_source_change`: what to do if the store was replaced (restored, or the topic created
    again): stop the topic, continue after the last common message (`common`), or start again (`restart`).
    `begin_again`: begin a topic without positions, although its target has mirrored records. A window has at most
    `window_rows` messages and about `window_bytes` bytes, over all queues.
    """

    start: Literal["earliest", "latest"] | int = "earliest"
    on_data_loss: Literal["fail", "count"] = "fail"
    on_source_change: Literal["fail", "common", "restart"] = "fail"
    begin_again: bool = False
    window_rows: int = 20_000
    window_bytes: int = 8 << 20


@dataclass(frozen=True, slots=True)
class KafkaSide:
    """Kafka, for all topics of a mirror. `instance` names this run of it. Raises UsageError for an invalid id."""

    mirror: str
    rmq_cluster_id: str
    kafka_cluster_id: str
    administration: KafkaAdministration
    writers: KafkaWriters
    positions: KafkaPositions
    instance: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __post_init__(self) -> None:
        if not _CLUSTER_ID.fullmatch(self.rmq_cluster_id):
            raise UsageError(
                f"The cluster id {self.rmq_cluster_id!r}: 1 to 64 letters, digits, dots, _ and - are expected. Choose "
                "one that no other cluster has, and keep it."
            )
        if self.rmq_cluster_id == self.kafka_cluster_id:
            raise UsageError(f"Kafka's cluster has the id {self.kafka_cluster_id!r} already: choose another one.")

    def route(self, topic: str, target: str, queue_id: int) -> Route:
        """The route from a queue to its partition."""
        return Route(self.rmq_cluster_id, topic, queue_id, self.kafka_cluster_id, target, queue_id)
