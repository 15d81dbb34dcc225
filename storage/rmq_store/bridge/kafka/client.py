"""The three interfaces that the bridge needs of a Kafka client. `connect` gives them by kafka-python.

All of them raise `KafkaUnavailableError` if brokers do not answer in time (it may work later), `KafkaRefusedError` if
they refuse (rights, a setting), and close by `close()`. None is safe for threads.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import pyarrow as pa

from rmq_store.bridge.record_batches.schema import Fetched


class Partition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int


class Position(NamedTuple):
    """A read position: the next offset, and the leader epoch of the batch before it (-1: unknown, and not checked)."""

    offset: int
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class KafkaTopic:
    """A topic as the cluster describes it. A topic that is deleted and made again has another id."""

    name: str
    topic_id: uuid.UUID
    partition_count: int


class KafkaReader(Protocol):
    """Reads committed records of assigned partitions, from the assigned positions. It commits no offsets."""

    def assign(self, positions: Mapping[Partition, Position]) -> None:
        """Read these partitions from these positions on, and no others. Those that go on where they are stay buffered.
        Each position with an epoch is checked against the leader before it is read, and again when that changes.
        """

    def poll(self, timeout_ms: int) -> Mapping[Partition, Fetched]:
        """The records that have come; empty after `timeout_ms`. Raises `KafkaOffsetError` for an offset that is out of
        range, and
        `MirrorSourceError` if a leader has lost what was read before (KIP-320).
        """

    def pause(self, partitions: Collection[Partition]) -> None:
        """Give nothing of these until `resume`."""

    def resume(self, partitions: Collection[Partition]) -> None:
        """Go on where `pause` stopped."""

    def position(self, partition: Partition) -> int:
        """The offset at which the next poll begins; transaction markers are skipped."""

    def starts(self, partitions: Collection[Partition]) -> Mapping[Partition, int]:
        """The first offset of each that is still there."""

    def stable_ends(self, partitions: Collection[Partition]) -> Mapping[Partition, int]:
        """The last stable offset of each: committed records can be read up to it now."""

    def offsets_at(self, partitions: Collection[Partition], timestamp_ms: int) -> Mapping[Partition, int]:
        """The first offset of each whose timestamp is not earlier; the stable end if there is none."""

    def close(self) -> None:
        """Let go of connections."""


class KafkaWriter(Protocol):
    """Writes transactions under one transactional id."""

    def begin(self) -> None:
        """Begin a transaction; the first one ends and fences what the id's last user left. `MirrorConflictError`: it is
        this writer that was fenced.
        """

    def add(self, partition: Partition, rows: pa.RecordBatch) -> None:
        """Add records (RECORDS_SCHEMA; offsets are the broker's) to the transaction, in their order.
        `RecordTooLargeError` names the row of the first record that is larger than the topic takes; nothing of the rows
        was added then. `RecordRefusedError`, of this call or a later one: Kafka judged against records; then `reset`.
        """

    def flush(self) -> Mapping[Partition, int]:
        """Wait until all that was added is with Kafka: the offset behind the last record of each partition."""

    def commit(self) -> None:
        """All of it, or an error: then `reset`. An error leaves it unknown whether it was committed."""

    def reset(self, *, takes_over: bool = False) -> None:
        """Abort what is open. Behind it the id's transactions are settled, and what is still under way for them is void
        (the epoch is a new one): read your position again. `MirrorConflictError`: Kafka says that another writer has
        the id, or, after a transaction that took too long, that it cannot tell. Asking disturbs that writer's open
        transaction, so look first whether there is one. `takes_over` asks nothing and takes the id.
        """

    def close(self) -> None:
        """Abort what is open, and let go of connections."""


class KafkaWriters(Protocol):
    """Writers over the same connections; only one of them has a transaction open at a time."""

    def writer(self, transactional_id: str) -> KafkaWriter:
        """A writer under this id."""

    def high_watermark(self, partition: Partition) -> int:
        """The offset up to which all in-sync replicas have a partition, open transactions included."""

    def close(self) -> None:
        """Close the connections. Close the writers first."""


class KafkaAdministration(Protocol):
    """Topics, their settings, and groups."""

    def cluster_id(self) -> str:
        """The id that Kafka gave to the cluster."""

    def topics(self, names: Collection[str] | None = None) -> Mapping[str, KafkaTopic]:
        """Topics by name, without Kafka's internal ones: all, or those of `names` that are there."""

    def create_topic(
        self, name: str, partition_count: int, settings: Mapping[str, str], replication_factor: int = -1
    ) -> KafkaTopic:
        """Make a topic and wait until it can be used; one that is there is returned as it is."""

    def grow_topic(self, name: str, partition_count: int) -> None:
        """Give a topic more partitions."""

    def topic_settings(self, name: str) -> Mapping[str, str]:
        """Settings by name: `max.message.bytes`, `retention.ms`, `message.timestamp.type` ..."""

    def groups(self) -> Collection[str]:
        """Groups of consumers that the cluster knows."""

    def group_offsets(self, group: str) -> Mapping[Partition, int]:
        """Committed offsets, stable ones only."""

    def group_member_count(self, group: str) -> int:
        """How many members a group has now."""

    def commit_group_offsets(self, group: str, offsets: Mapping[Partition, int]) -> None:
        """Commit offsets of a group without members. `GroupInUseError` if it has some."""

    def close(self) -> None:
        """Let go of connections."""
