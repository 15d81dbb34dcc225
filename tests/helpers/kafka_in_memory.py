"""Kafka as the bridge's letters need it, in memory: topics, a reader, an administration, a transactional writer.

For rules that hold whatever the network does, and for deaths between two steps. What a real broker does is tested with
`kafka_server`.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from rmq_store import KafkaOffsetError, MirrorConflictError, RecordRefusedError, RecordTooLargeError, UsageError
from rmq_store.bridge.kafka.client import KafkaTopic, Partition, Position
from rmq_store.bridge.record_batches.schema import RECORDS_SCHEMA, Fetched

Headers = Sequence[tuple[bytes, bytes | None]]


@dataclass
class MemoryKafka:
    """A cluster. `logs`: the committed records of each partition; None stands for a marker."""

    cluster_id: str = "kafka-1"
    topics: dict[str, KafkaTopic] = field(default_factory=dict)
    logs: dict[Partition, list[dict[str, Any] | None]] = field(default_factory=lambda: defaultdict(list))
    starts: dict[Partition, int] = field(default_factory=dict)
    owners: dict[str, object] = field(default_factory=dict)
    now_ms: int = 1_700_000_000_000
    takes_large: bool = False

    def create_topic(self, name: str, partition_count: int = 1) -> str:
        """Make a topic, or one anew."""
        self.topics[name] = KafkaTopic(name, uuid.uuid4(), partition_count)
        for partition in range(partition_count):
            self.logs[Partition(name, partition)] = []
        return name

    def produce(self, topic: str, *records: tuple[bytes | None, bytes | None, Headers], partition: int = 0) -> None:
        """Append committed records: key, value, headers."""
        log = self.logs[Partition(topic, partition)]
        for key, value, headers in records:
            named = [{"name": name, "value": item} for name, item in headers]
            log.append({"timestampMs": self.now_ms, "timestampType": 0, "key": key, "value": value, "headers": named})

    def records(self, topic: str, partition: int = 0) -> list[tuple[bytes | None, bytes | None, Headers]]:
        """Key, value and headers of the records that consumers get."""
        return [
            (row["key"], row["value"], [(header["name"], header["value"]) for header in row["headers"]])
            for row in self.logs[Partition(topic, partition)]
            if row is not None
        ]

    def trim(self, topic: str, start: int, partition: int = 0) -> None:
        """Retention."""
        self.starts[Partition(topic, partition)] = start


def rows_of(log: Sequence[dict[str, Any] | None], first_offset: int = 0) -> pa.RecordBatch:
    """The committed records of a log as RECORDS_SCHEMA."""
    rows = [{**row, "offset": offset} for offset, row in enumerate(log, first_offset) if row is not None]
    return pa.RecordBatch.from_pylist(rows, RECORDS_SCHEMA)


class MemoryReader:
    """`KafkaReader`; at most `fetch_rows` of a partition at once."""

    def __init__(self, kafka: MemoryKafka, fetch_rows: int = 1000) -> None:
        self._kafka = kafka
        self._fetch_rows = fetch_rows
        self._positions: dict[Partition, int] = {}

    def assign(self, positions: Mapping[Partition, Position]) -> None:
        self._positions = {partition: position.offset for partition, position in positions.items()}

    def poll(self, timeout_ms: int) -> Mapping[Partition, Fetched]:
        found = {}
        for partition, at in self._positions.items():
            log = self._kafka.logs[partition]
            if not self._kafka.starts.get(partition, 0) <= at <= len(log):
                raise KafkaOffsetError(f"{partition}: {at}", {partition: at})
            stop = min(len(log), at + self._fetch_rows)
            if stop > at:
                rows = [
                    {**row, "offset": offset} for offset, row in enumerate(log[at:stop], at) if row is not None
                ]  # fmt: skip
                found[partition] = Fetched(pa.RecordBatch.from_pylist(rows, RECORDS_SCHEMA), stop, 0)
                self._positions[partition] = stop
        return found

    def pause(self, partitions: Collection[Partition]) -> None:
        raise NotImplementedError

    def resume(self, partitions: Collection[Partition]) -> None:
        raise NotImplementedError

    def position(self, partition: Partition) -> int:
        return self._positions[partition]

    def starts(self, partitions: Collection[Partition]) -> Mapping[Partition, int]:
        return {partition: self._kafka.starts.get(partition, 0) for partition in partitions}

    def stable_ends(self, partitions: Collection[Partition]) -> Mapping[Partition, int]:
        return {partition: len(self._kafka.logs[partition]) for partition in partitions}

    def offsets_at(self, partitions: Collection[Partition], timestamp_ms: int) -> Mapping[Partition, int]:
        raise NotImplementedError

    def close(self) -> None:
        pass


class MemoryAdministration:
    """`KafkaAdministration`, as far as letters ask it."""

    def __init__(self, kafka: MemoryKafka) -> None:
        self._kafka = kafka

    def cluster_id(self) -> str:
        return self._kafka.cluster_id

    def topics(self, names: Iterable[str] | None = None) -> Mapping[str, KafkaTopic]:
        return {name: topic for name, topic in self._kafka.topics.items() if names is None or name in set(names)}

    def create_topic(
        self, name: str, partition_count: int, settings: Mapping[str, str], replication_factor: int = -1
    ) -> KafkaTopic:
        if name not in self._kafka.topics:
            self._kafka.create_topic(name, partition_count)
        return self._kafka.topics[name]

    def topic_settings(self, name: str) -> Mapping[str, str]:
        return {"cleanup.policy": "compact" if name.startswith(("__", "compacted")) else "delete"}

    def close(self) -> None:
        pass


class MemoryWriter:
    """`KafkaWriter`. `fail_commit`: the next commit dies before (`before`) or after (`after`) it is done. Values that
    begin with `large` are too large, those that begin with `refused` are refused at the commit.
    """

    def __init__(self, kafka: MemoryKafka, transactional_id: str) -> None:
        self._kafka = kafka
        self._id = transactional_id
        self._token = object()
        self._open: list[tuple[Partition, list[dict[str, Any]]]] | None = None
        self._begun = False
        self.fail_commit: str | None = None

    def begin(self) -> None:
        if not self._begun:
            self._kafka.owners[self._id] = self._token
            self._begun = True
        self._refuse_fenced()
        self._open = []

    def add(self, partition: Partition, rows: pa.RecordBatch) -> None:
        assert self._open is not None
        if partition.topic not in self._kafka.topics:
            raise UsageError(f"no topic {partition.topic}")
        assert partition.partition < self._kafka.topics[partition.topic].partition_count
        given = rows.to_pylist()
        for number, row in enumerate(given):
            if (row["value"] or b"").startswith(b"large") and not self._kafka.takes_large:
                raise RecordTooLargeError("too large", number)
        self._open.append((partition, given))

    def flush(self) -> Mapping[Partition, int]:
        assert self._open is not None
        self._refuse_fenced()
        for partition, rows in self._open:
            bad = [number for number, row in enumerate(rows) if (row["value"] or b"").startswith(b"refused")]
            if bad:  # Kafka names a neighbour, too
                raise RecordRefusedError("refused", tuple(partition), [max(bad[0] - 1, 0), *bad], "INVALID_RECORD")
        return {}

    def commit(self) -> None:
        assert self._open is not None
        self.flush()
        fails, self.fail_commit = self.fail_commit, None
        if fails == "before":
            raise KeyboardInterrupt
        for partition, rows in self._open:
            self._kafka.logs[partition] += [{name: row[name] for name in row if name != "offset"} for row in rows]
            self._kafka.logs[partition].append(None)
        self._open = None
        if fails == "after":
            raise KeyboardInterrupt

    def reset(self, *, takes_over: bool = False) -> None:
        self._kafka.owners[self._id] = self._token
        self._begun = True
        self._open = None

    def close(self) -> None:
        self._open = None

    def _refuse_fenced(self) -> None:
        if self._kafka.owners.get(self._id) is not self._token:
            raise MirrorConflictError(f"{self._id}: another process has taken it")
