"""Kafka as a side of translation."""

from __future__ import annotations

import time
import uuid
from collections.abc import Collection, Iterator, Mapping
from typing import Final

import pyarrow as pa

from rmq_store import real_time
from rmq_store.bridge.kafka.client import KafkaAdministration, KafkaReader, KafkaTopic, Partition, Position
from rmq_store.bridge.kafka.user_topics import is_compacted
from rmq_store.bridge.offsets.origins import record_origins, unreadable
from rmq_store.bridge.offsets.side import Extent, Origin, Queue
from rmq_store.bridge.offsets.translate import Origins
from rmq_store.errors import CorruptBatchError, KafkaUnavailableError

_POLL_MS: Final = 500
_SLEEP_S: Final = 0.05
PATIENCE_S: Final = 90.0
"""How long it waits for records that are committed: longer than a transaction of a mirror may last."""


class KafkaSide:
    """A Kafka cluster. `reader` must not be used for anything else meanwhile."""

    name: Final = "Kafka"

    def __init__(
        self, administration: KafkaAdministration, reader: KafkaReader, *, patience_s: float = PATIENCE_S
    ) -> None:
        self.administration = administration
        self.reader = reader
        self._patience_s = patience_s
        self._known: Mapping[str, KafkaTopic] = {}
        self.cluster_id: Final = administration.cluster_id()

    def topics(self) -> Collection[str]:
        """All topics but Kafka's internal ones. Ids and partitions from this answer are used until the next call,
        because a group has many topics.
        """
        self._known = self.administration.topics()
        return self._known.keys()

    def queue_count(self, topic: str) -> int:
        """The number of partitions; 0: there is no such topic."""
        found = self._topic(topic)
        return 0 if found is None else found.partition_count

    def topic_id(self, topic: str) -> str:
        """Kafka's topic id; empty if Kafka does not tell it."""
        found = self._topic(topic)
        return "" if found is None or found.topic_id == uuid.UUID(int=0) else str(found.topic_id)

    def extents(self, queues: Collection[Queue]) -> Mapping[Queue, Extent]:
        """The present ranges of these partitions, up to the last stable offset."""
        partitions = [Partition(*queue) for queue in queues]
        if not partitions:
            return {}
        ends, starts = self.reader.stable_ends(partitions), self.reader.starts(partitions)
        compacted = {topic: is_compacted(self.administration, topic) for topic in {queue.topic for queue in queues}}
        return {
            queue: Extent(starts[place], max(starts[place], ends[place]), compacted[queue.topic])
            for queue, place in zip(queues, partitions, strict=True)
        }

    def wait_for_end(self, queue: Queue, end: int) -> None:
        """As `Side.wait_for_end`. Partitions of a transaction show their records at different times."""
        deadline_s = real_time.monotonic() + self._patience_s
        partition = Partition(*queue)
        while self.reader.stable_ends([partition])[partition] < end:
            if real_time.monotonic() > deadline_s:
                raise KafkaUnavailableError(
                    f"partition {queue.queue_id} of topic {queue.topic!r} still does not show committed records up to "
                    f"{end}: a transaction is open there. Try again when it has ended"
                )
            time.sleep(_SLEEP_S)

    def origins(self, queue: Queue, first: int, end: int, other: Origin) -> Iterator[Origins]:
        """As `Side.origins`; a broken batch counts as one record. KafkaUnavailableError: no records come in time.
        CorruptBatchError: a batch is broken, and its end is unknown.
        """
        while first < end:
            try:
                for rows in read_rows(self.reader, Partition(*queue), first, end, self._patience_s):
                    yield record_origins(rows, queue, other)
                    first = int(rows.column("offset")[-1].as_py()) + 1
                return
            except CorruptBatchError as error:
                if error.next_offset is None:
                    raise
                first, broken = error.next_offset, max(error.offset, first)
            if broken < end:
                yield unreadable(broken)

    def groups(self) -> Collection[str]:
        """Groups that Kafka knows."""
        return self.administration.groups()

    def group_positions(self, group: str) -> Mapping[Queue, int]:
        """Offsets that a group has committed, those of committed transactions included."""
        return {Queue(*place): offset for place, offset in self.administration.group_offsets(group).items()}

    def members(self, group: str) -> str:
        """The number of the group's members, as a text; empty: none."""
        count = self.administration.group_member_count(group)
        return f"{count} members" if count else ""

    def waiting_count(self, group: str) -> int:
        """0: a group of Kafka has nothing but its positions."""
        return 0

    def commit(self, group: str, positions: Mapping[Queue, int], *, force: bool) -> None:
        """As `Side.commit`. Kafka itself refuses to move a group with members: `force` changes nothing."""
        self.administration.commit_group_offsets(
            group, {Partition(*queue): position for queue, position in positions.items()}
        )

    def _topic(self, name: str) -> KafkaTopic | None:
        found = self._known.get(name)
        return self.administration.topics([name]).get(name) if found is None else found


def read_rows(
    reader: KafkaReader, partition: Partition, first: int, end: int, patience_s: float
) -> Iterator[pa.RecordBatch]:
    """Committed records at [`first`, `end`) of a partition, a fetch at a time. A caller that stops early may read
    another partition at once. KafkaUnavailableError: no records come for `patience_s` seconds.
    """
    if first >= end:
        return
    reader.assign({})
    reader.assign({partition: Position(first)})
    deadline_s = real_time.monotonic() + patience_s
    position = first
    while position < end:
        fetched = reader.poll(_POLL_MS).get(partition)
        if fetched is None:
            if real_time.monotonic() > deadline_s:
                raise KafkaUnavailableError(
                    f"partition {partition.partition} of topic {partition.topic!r}: nothing comes from {position} on, "
                    f"and it ends at {end}"
                )
            continue
        deadline_s = real_time.monotonic() + patience_s
        position = fetched.next_offset
        below = int(fetched.rows.column("offset").to_numpy().searchsorted(end))
        if below:
            yield fetched.rows.slice(0, below)
