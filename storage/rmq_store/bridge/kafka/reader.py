"""Reads committed records by kafka-python's consumer, without a group."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from kafka import KafkaConsumer, TopicPartition
from kafka.structs import OffsetAndMetadata

from rmq_store import real_time
from rmq_store.bridge.kafka import raw_fetch
from rmq_store.bridge.kafka.client import Partition, Position
from rmq_store.bridge.kafka.connection import KafkaConnection
from rmq_store.bridge.kafka.failures import closed_unless_made, connecting, translated
from rmq_store.bridge.record_batches.schema import Fetched
from rmq_store.errors import KafkaUnavailableError

FETCH_BYTES: Final = 16 << 20
PARTITION_FETCH_BYTES: Final = 4 << 20
"""Packed bytes of one answer, and of one partition in it; a larger batch comes alone. Of a partition more than Kafka's
usual 1 MiB: a mirror appends what came of each partition as one unit, and a unit costs the same whatever it holds.
"""

MAX_FETCHED: Final = 8
"""Answers of partitions that are unpacked at a time; each has at most `records.batches.MAX_PLAIN_BYTES` of records."""

_METADATA_AGE_MS: Final = 30_000

# For offsets of partitions; a mirror asks again, and looks in between whether it is to stop.
_ASK_MS: Final = 5_000
_POLL_S: Final = 0.05


class _Consumer(KafkaConsumer):  # type: ignore[misc]
    """A consumer. If its construction fails, its thread ends."""

    def __init__(self, **settings: Any) -> None:
        with closed_unless_made(self):
            super().__init__(**settings)


class KafkaPythonReader:
    """`KafkaReader` by kafka-python. Not safe for threads.

    Raises (when constructed):
        KafkaUnavailableError: no broker answers.
        UsageError: a setting of the connection is wrong.
    """

    def __init__(
        self,
        connection: KafkaConnection,
        *,
        fetch_bytes: int = FETCH_BYTES,
        partition_fetch_bytes: int = PARTITION_FETCH_BYTES,
        max_fetched: int = MAX_FETCHED,
    ) -> None:
        settings = {"metadata_max_age_ms": _METADATA_AGE_MS, **connection.settings()}
        with connecting(connection):
            self._consumer = _Consumer(
                **settings,
                group_id=None,
                enable_auto_commit=False,
                auto_offset_reset="none",
                isolation_level="read_committed",
                allow_auto_create_topics=False,
                metrics_enabled=False,
                fetch_max_bytes=fetch_bytes,
                max_partition_fetch_bytes=partition_fetch_bytes,
            )
        raw_fetch.attach(self._consumer)
        self._timeout_ms: int = min(self._consumer.config["request_timeout_ms"], _ASK_MS)
        self._max_fetched = max_fetched

    def assign(self, positions: Mapping[Partition, Position]) -> None:
        """As `KafkaReader.assign`. kafka-python checks a position that comes with an epoch."""
        before = self._consumer.assignment()
        wanted = {TopicPartition(*partition): position for partition, position in positions.items()}
        with translated("taking partitions"):
            self._consumer.assign(list(wanted))
            for place, position in wanted.items():
                if place in before and self._place(place) == position.offset:
                    continue
                subscription = self._consumer._subscription
                subscription.seek(place, OffsetAndMetadata(position.offset, "", position.leader_epoch))
                # Of itself it would look only when the leader's epoch is newer than this one.
                subscription.request_position_validation(place)

    def poll(self, timeout_ms: int) -> Mapping[Partition, Fetched]:
        """As `KafkaReader.poll`. CorruptBatchError: a batch of its `partition` is broken. Each later poll raises it
        again, until the partition is assigned from an offset beyond its `next_offset`.
        """
        with translated("reading"):
            return raw_fetch.poll(self._consumer, timeout_ms, self._max_fetched)

    def pause(self, partitions: Collection[Partition]) -> None:
        """As `KafkaReader.pause`."""
        self._consumer.pause(*(TopicPartition(*partition) for partition in partitions))

    def resume(self, partitions: Collection[Partition]) -> None:
        """As `KafkaReader.resume`."""
        self._consumer.resume(*(TopicPartition(*partition) for partition in partitions))

    def position(self, partition: Partition) -> int:
        """As `KafkaReader.position`."""
        return self._place(TopicPartition(*partition))

    def starts(self, partitions: Collection[Partition]) -> Mapping[Partition, int]:
        """As `KafkaReader.starts`."""
        return self._asked("asking where partitions begin", self._consumer.beginning_offsets, partitions)

    def stable_ends(self, partitions: Collection[Partition]) -> Mapping[Partition, int]:
        """As `KafkaReader.stable_ends`."""
        return self._asked("asking where partitions end", self._consumer.end_offsets, partitions)

    def offsets_at(self, partitions: Collection[Partition], timestamp_ms: int) -> Mapping[Partition, int]:
        """As `KafkaReader.offsets_at`. The stable end is read first, so that records in between are not skipped."""
        ends = self.stable_ends(partitions)
        places = {TopicPartition(*partition): max(timestamp_ms, 0) for partition in partitions}
        with translated("asking for offsets by time"):
            found = self._consumer.offsets_for_times(places, timeout_ms=self._timeout_ms)
        known = {Partition(*place): int(at.offset) for place, at in found.items() if at is not None and at.offset >= 0}
        return {**ends, **known}

    def _asked(self, what: str, ask: Callable[..., Any], partitions: Collection[Partition]) -> dict[Partition, int]:
        """Offsets of partitions. One that the client has not heard of yet, as it came with others later, it leaves out
        at first, and asks for; its own answer to that is a KeyError.
        """
        places = [TopicPartition(*partition) for partition in partitions]
        end_s = real_time.monotonic() + self._timeout_ms / 1000
        while True:
            try:
                with translated(what):
                    found = ask(places, timeout_ms=self._timeout_ms)
                return {Partition(*place): int(offset) for place, offset in found.items()}
            except KeyError as error:
                if real_time.monotonic() > end_s:
                    raise KafkaUnavailableError(f"Kafka, {what}: no answer about {error}") from error
            time.sleep(_POLL_S)

    def close(self) -> None:
        """Close the connections."""
        self._consumer.close(autocommit=False, timeout_ms=0)

    def _place(self, place: TopicPartition) -> int:
        position = self._consumer._subscription.assignment[place].position
        return int(position.offset)
