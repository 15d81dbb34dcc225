"""A Kafka in memory, for what a real one does not do on demand: rights that end, truncation, broken batches."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from rmq_store import KafkaOffsetError
from rmq_store.bridge.kafka.client import KafkaTopic, Partition, Position
from rmq_store.bridge.record_batches.schema import CREATE_TIME, RECORDS_SCHEMA, Fetched

CLUSTER_ID = "fake-kafka"


@dataclass
class FakeLog:
    """One partition: values by their offsets, from `start` on; `epoch` is the leader's."""

    values: dict[int, bytes | None] = field(default_factory=dict)
    start: int = 0
    end: int = 0
    epoch: int = 0

    def append(self, *values: bytes | None) -> None:
        for value in values:
            self.values[self.end] = value
            self.end += 1

    def skip(self, count: int) -> None:
        """Offsets without records: markers, aborted or compacted records."""
        self.end += count


class FakeKafka:
    """Both interfaces, of the same topics. `before_poll`: called with each poll; it may raise, or change something."""

    def __init__(self) -> None:
        self.logs: dict[str, list[FakeLog]] = {}
        self.ids: dict[str, uuid.UUID] = {}
        self.positions: dict[Partition, Position] = {}
        self.assigned: list[dict[Partition, Position]] = []
        self.before_poll: Callable[[], None] = lambda: None
        self.fetch_rows = 1000

    def make(self, topic: str, partition_count: int = 1) -> list[FakeLog]:
        """Make a topic, or make it again."""
        self.ids[topic] = uuid.uuid4()
        self.logs[topic] = [FakeLog() for _ in range(partition_count)]
        return self.logs[topic]

    # -- KafkaAdministration -----------------------------------------------------------------------------------------

    def cluster_id(self) -> str:
        return CLUSTER_ID

    def topics(self, names: Collection[str] | None = None) -> Mapping[str, KafkaTopic]:
        return {
            name: KafkaTopic(name, self.ids[name], len(logs))
            for name, logs in self.logs.items()
            if names is None or name in names
        }

    def create_topic(
        self, name: str, partition_count: int, settings: Mapping[str, str], replication_factor: int = -1
    ) -> KafkaTopic:
        self.make(name, partition_count)
        return self.topics()[name]

    def grow_topic(self, name: str, partition_count: int) -> None:
        self.logs[name] += [FakeLog() for _ in range(partition_count - len(self.logs[name]))]

    def topic_settings(self, name: str) -> Mapping[str, str]:
        return {}

    def group_offsets(self, group: str) -> Mapping[Partition, int]:
        return {}

    def group_member_count(self, group: str) -> int:
        return 0

    def commit_group_offsets(self, group: str, offsets: Mapping[Partition, int]) -> None:
        raise NotImplementedError

    # -- KafkaReader -------------------------------------------------------------------------------------------------

    def assign(self, positions: Mapping[Partition, Position]) -> None:
        self.positions = dict(positions)
        self.assigned.append(dict(positions))

    def poll(self, timeout_ms: int) -> Mapping[Partition, Fetched]:
        self.before_poll()
        found = {}
        for place, position in self.positions.items():
            if place.topic not in self.logs:
                continue
            log = self.logs[place.topic][place.partition]
            if not log.start <= position.offset <= log.end:
                places = {(place.topic, place.partition): position.offset}
                raise KafkaOffsetError(f"no offset {position.offset}", places)
            offsets = [offset for offset in range(position.offset, log.end) if offset in log.values][: self.fetch_rows]
            behind = offsets[-1] + 1 if len(offsets) == self.fetch_rows else log.end
            if behind > position.offset:
                found[place] = Fetched(rows_of(log, offsets), behind, log.epoch)
                self.positions[place] = Position(behind, log.epoch)
        return found

    def pause(self, partitions: Collection[Partition]) -> None:
        raise NotImplementedError

    def resume(self, partitions: Collection[Partition]) -> None:
        raise NotImplementedError

    def position(self, partition: Partition) -> int:
        return self.positions[partition].offset

    def starts(self, partitions: Collection[Partition]) -> Mapping[Partition, int]:
        return {at: self.logs[at.topic][at.partition].start for at in partitions if at.topic in self.logs}

    def stable_ends(self, partitions: Collection[Partition]) -> Mapping[Partition, int]:
        return {at: self.logs[at.topic][at.partition].end for at in partitions if at.topic in self.logs}

    def offsets_at(self, partitions: Collection[Partition], timestamp_ms: int) -> Mapping[Partition, int]:
        return {at: min(timestamp_ms, self.stable_ends([at])[at]) for at in partitions}

    def close(self) -> None:
        self.positions = {}


def rows_of(log: FakeLog, offsets: list[int]) -> pa.RecordBatch:
    rows = [
        {
            "offset": offset, "timestampMs": 1_700_000_000_000 + offset, "timestampType": CREATE_TIME,
            "key": f"k{offset}".encode(), "value": log.values[offset], "headers": [],
        }
        for offset in offsets
    ]  # fmt: skip
    return pa.RecordBatch.from_pylist(rows, RECORDS_SCHEMA)
