"""Positions, in the source, of messages that a mirror could not copy: its dead letters name them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from rmq_store.bridge.kafka.client import KafkaAdministration, KafkaReader, Partition
from rmq_store.bridge.mirror import kafka_targets
from rmq_store.bridge.offsets.kafka_side import PATIENCE_S, read_rows
from rmq_store.bridge.offsets.side import Queue
from rmq_store.bridge.offsets.translate import NO_OFFSETS, Offsets
from rmq_store.bridge.records import unmappable_record
from rmq_store.bridge.records.entries import Entries
from rmq_store.broker.store.store import Store
from rmq_store.format.properties.mirror_properties import MIRROR_FROM

_OFFSET_DIGITS_MAX: Final = 18


class Letters:
    """Positions by queue of the source. They are read once, at the first call."""

    def __init__(self, cluster_id: str, read: Callable[[], Iterator[Entries]]) -> None:
        """`cluster_id`: of the source. `read`: headers or properties of all dead letters of the mirror."""
        self._cluster_id = cluster_id
        self._read = read
        self._found: dict[Queue, Offsets] | None = None

    def __call__(self, queue: Queue) -> Offsets:
        """Positions in this queue, ascending. KafkaUnavailableError, CorruptionError: letters cannot be read."""
        if self._found is None:
            self._found = self._all()
        return self._found.get(queue, NO_OFFSETS)

    def _all(self) -> dict[Queue, Offsets]:
        found: dict[Queue, list[int]] = {}
        for entries in self._read():
            for source in entries.column(MIRROR_FROM)[0].to_pylist():
                place = self._source_position(source)
                if place is not None:
                    found.setdefault(place[0], []).append(place[1])
        return {queue: np.unique(np.array(offsets, np.int64)) for queue, offsets in found.items()}

    def _source_position(self, source: bytes | None) -> tuple[Queue, int] | None:
        parts = (source or b"").split(b" ")
        if len(parts) < 4 or not parts[2].isdigit() or not parts[3].isdigit() or len(parts[3]) > _OFFSET_DIGITS_MAX:
            return None  # somebody else's message
        if parts[0] != self._cluster_id.encode():
            return None
        return Queue(parts[1].decode(errors="replace"), int(parts[2])), int(parts[3])


def letters_of_store(store: Store, mirror: str, kafka_cluster_id: str) -> Letters:
    """The letters of a mirror from Kafka into a store."""
    topic = unmappable_record.letter_topic(mirror)

    def read() -> Iterator[Entries]:
        if store.find_topic(topic) is None:
            return
        for queue_id, (first, end) in store.queue_ranges(topic).items():
            for rows in store.read(topic, queue_id, first, end, columns=("properties",)):
                yield Entries.of_properties(rows.column("properties"))

    return Letters(kafka_cluster_id, read)


def letters_of_kafka(
    administration: KafkaAdministration, reader: KafkaReader, mirror: str, rmq_cluster_id: str
) -> Letters:
    """The letters of a mirror from a store into Kafka."""
    topic = kafka_targets.letter_topic(mirror)

    def read() -> Iterator[Entries]:
        found = administration.topics([topic]).get(topic)
        partitions = [Partition(topic, number) for number in range(0 if found is None else found.partition_count)]
        if not partitions:
            return
        starts, ends = reader.starts(partitions), reader.stable_ends(partitions)
        for partition in partitions:
            for rows in read_rows(reader, partition, starts[partition], ends[partition], PATIENCE_S):
                yield Entries.of_headers(rows.column("headers"))

    return Letters(rmq_cluster_id, read)
