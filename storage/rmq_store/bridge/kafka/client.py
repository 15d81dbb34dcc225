"""The three interfaces of a Kafka client that the bridge needs. `connect` implements them by kafka-python.

All methods raise `KafkaUnavailableError` if brokers do not answer in time (a later call may succeed), and
`KafkaRefusedError` if brokers refuse (rights, a setting). `close()` closes the connections. None is safe for threads.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from typing import NamedTuple, Protocol

import pyarrow as pa

from rmq_store.bridge.record_batches.schema import Fetched
from rmq_store.lazy.dataclasses import dataclass


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
        """Read these partitions from these positions on, and no others. Partitions whose position does not change keep
        their buffered records. A position with an epoch is checked against the leader before it is read, and again when
        the leader changes.
        """

    def poll(self, timeout_ms: int) -> Mapping[Partition, Fetched]:
        """The fetched records; empty after `timeout_ms`. Raises `KafkaOffsetError` for an offset that is out of range,
        and `MirrorSourceError` if a leader has lost records that were read before (KIP-320).
        """

    def pause(self, partitions: Collection[Partition]) -> None:
        """Return no records of these partitions until `resume`."""

    def resume(self, partitions: Collection[Partition]) -> None:
        """Continue where `pause` stopped."""

    def position(self, partition: Partition) -> int:
        """The offset at which the next poll begins, after transaction markers."""

    def starts(self, partitions: Collection[Partition]) -> Mapping[Partition, int]:
        """The first offset of each partition that still exists."""

    def stable_ends(self, partitions: Collection[Partition]) -> Mapping[Partition, int]:
        """The last stable offset of each partition: committed records can be read up to it now."""

    def offsets_at(self, partitions: Collection[Partition], timestamp_ms: int) -> Mapping[Partition, int]:
        """The first offset of each partition with this timestamp or a later one; the stable end if there is none."""

    def close(self) -> None:
        """Close the connections."""


class KafkaWriter(Protocol):
    """Writes transactions under one transactional id."""

    def begin(self) -> None:
        """Begin a transaction. The first one ends the open transaction of the id's last user, and fences that user.
        Raises `MirrorConflictError` if this writer itself was fenced.
        """

    def add(self, partition: Partition, rows: pa.RecordBatch) -> None:
        """Add records (RECORDS_SCHEMA; brokers assign the offsets) to the transaction, in their order. Raises
        `RecordTooLargeError`, which names the row of the first record that is larger than the topic takes; then none of
        the rows was added. `RecordRefusedError`, of this call or a later one: Kafka refused records; call `reset`.
        """

    def flush(self) -> Mapping[Partition, int]:
        """Wait until Kafka has all added records. Returns the offset after the last record of each partition."""

    def commit(self) -> None:
        """Commit all records. After an error call `reset`: it is unknown whether they were committed."""

    def reset(self, *, takes_over: bool = False) -> None:
        """Abort the open transaction. Afterwards the id has no open transaction, and requests still under way have no
        effect (the epoch is new): read your position again. Raises `MirrorConflictError` if Kafka says that another
        writer has the id, or, after a transaction that took too long, that it cannot tell. This disturbs that writer's
        open transaction, so first find out whether there is such a writer. `takes_over` takes the id in any case.
        """

    def close(self) -> None:
        """Abort the open transaction, and close the connections."""


class KafkaWriters(Protocol):
    """Writers over the same connections; only one of them has a transaction open at a time."""

    def writer(self, transactional_id: str) -> KafkaWriter:
        """A writer with this transactional id."""

    def high_watermark(self, partition: Partition) -> int:
        """The offset up to which all in-sync replicas have a partition, open transactions included."""

    def close(self) -> None:
        """Close the connections. Close the writers first."""


class KafkaAdministration(Protocol):
    """Topics, their settings, and groups."""

    def cluster_id(self) -> str:
        """The cluster id that Kafka generated."""

    def topics(self, names: Collection[str] | None = None) -> Mapping[str, KafkaTopic]:
        """Topics by name, without Kafka's internal ones: all, or those of `names` that exist."""

    def create_topic(
        self, name: str, partition_count: int, settings: Mapping[str, str], replication_factor: int = -1
    ) -> KafkaTopic:
        """Create a topic and wait until it can be used; an existing topic is returned unchanged."""

    def grow_topic(self, name: str, partition_count: int) -> None:
        """Add partitions to a topic."""

    def topic_settings(self, name: str) -> Mapping[str, str]:
        """Settings by name: `max.message.bytes`, `retention.ms`, `message.timestamp.type` ..."""

    def groups(self) -> Collection[str]:
        """All groups that the cluster knows, also those without offsets."""

    def group_offsets(self, group: str) -> Mapping[Partition, int]:
        """Committed offsets of a group, stable ones only. Raises `KafkaRefusedError` for a group that has none by its
        nature, and while a transaction that commits some stays open.
        """

    def group_member_count(self, group: str) -> int:
        """The number of members of a group now."""

    def commit_group_offsets(self, group: str, offsets: Mapping[Partition, int]) -> None:
        """Commit offsets of a group without members. Raises `GroupInUseError` if it has members."""

    def close(self) -> None:
        """Close the connections."""
