"""`rmq mirror dead-letters`: topics of dead letters of Kafka, read into `%DLQ%group` of a store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import pyarrow as pa

from rmq_store.bridge.dead_letters.intake import Intake
from rmq_store.bridge.dead_letters.letter_rows import LetterGroups, letter_rows
from rmq_store.bridge.kafka.client import KafkaAdministration, KafkaReader, Partition
from rmq_store.bridge.mirror.store_units import rmq_rules
from rmq_store.bridge.records.route import Route
from rmq_store.bridge.records.unmappable_record import letter_topic
from rmq_store.broker.store.store import Store
from rmq_store.format.text import names


class LettersIntoTriage:
    """Reads topics of dead letters into a store that is open for writing; `intake` does the reading.

    `cluster_id` is the id of the RocketMQ side, which copies carry. `counts`: letters by group. `unknown_count`:
    letters without headers that name a reason. `refused_count`: letters that no message can hold; they became dead
    letters of the mirror.

    Raises (when constructed):
        UsageError: an invalid name.
    """

    def __init__(
        self,
        store: Store,
        reader: KafkaReader,
        administration: KafkaAdministration,
        *,
        mirror: str,
        cluster_id: str,
        topics: Iterable[str],
        groups: LetterGroups,
        count_losses: bool = False,
    ) -> None:
        self._store = store
        self._mirror = mirror
        self._cluster_id = cluster_id
        self._kafka_id = administration.cluster_id()
        self._groups = groups
        self.counts: Counter[str] = Counter()
        self.unknown_count = self.refused_count = 0
        self.intake = Intake(
            store, reader, administration, mirror, cluster_id, topics, names.dlq_topic(groups.default),
            self._to_messages, count_losses=count_losses,
        )  # fmt: skip
        for group in {groups.default, *groups.by_kafka_group.values()}:
            self._make(names.dlq_topic(group))

    def _to_messages(self, rows: pa.RecordBatch, partition: Partition, topic_id: str) -> Sequence[pa.RecordBatch]:
        route = Route(self._kafka_id, partition.topic, partition.partition, self._cluster_id, "", 0, topic_id)
        mapped = letter_rows(rows, route, rmq_rules(self._store, self._mirror), self._groups)
        if mapped.refused_count:
            self._make(letter_topic(self._mirror))
        self.counts.update(mapped.counts)
        self.unknown_count += mapped.unknown_count
        self.refused_count += mapped.refused_count
        return mapped.batches

    def _make(self, topic: str) -> None:
        self._store.create_topic(topic, 1, self._store.config.dlq_perm, exist_ok=True)
