"""Kafka as a side of translation."""

from __future__ import annotations

import time
import uuid
from collections.abc import Collection, Iterator, Mapping
from typing import Final

from rmq_store.bridge.kafka.client import KafkaAdministration, KafkaReader, Partition, Position
from rmq_store.bridge.offsets.origins import record_origins
from rmq_store.bridge.offsets.side import Extent, Origin, Queue
from rmq_store.bridge.offsets.translate import Origins
from rmq_store.errors import KafkaUnavailableError

_POLL_MS: Final = 500
_SLEEP_S: Final = 0.05
PATIENCE_S: Final = 90.0
"""How long it waits for records that are committed: longer than a transaction of a mirror may last."""


class KafkaSide:
    """A Kafka cluster. `reader` is for nothing else meanwhile."""

    name: Final = "Kafka"

    def __init__(
        self, administration: KafkaAdministration, reader: KafkaReader, *, patience_s: float = PATIENCE_S
    ) -> None:
        self._administration = administration
        self._reader = reader
        self._patience_s = patience_s
        self.cluster_id: Final = administration.cluster_id()

    def topics(self) -> Collection[str]:
        """All but Kafka's internal ones."""
        return self._administration.topics()

    def queue_count(self, topic: str) -> int:
        """How many partitions; 0: there is no such topic."""
        found = self._administration.topics([topic]).get(topic)
        return 0 if found is None else found.partition_count

    def topic_id(self, topic: str) -> str:
        """Kafka's topic id; empty where Kafka does not tell."""
        found = self._administration.topics([topic]).get(topic)
        return "" if found is None or found.topic_id == uuid.UUID(int=0) else str(found.topic_id)

    def extents(self, queues: Collection[Queue]) -> Mapping[Queue, Extent]:
        """What these partitions hold now: up to the last stable offset."""
        partitions = [Partition(*queue) for queue in queues]
        if not partitions:
            return {}
        ends, starts = self._reader.stable_ends(partitions), self._reader.starts(partitions)
        compacted = {topic: self._is_compacted(topic) for topic in {queue.topic for queue in queues}}
        return {
            queue: Extent(starts[place], max(starts[place], ends[place]), compacted[queue.topic])
            for queue, place in zip(queues, partitions, strict=True)
        }

    def wait_for_end(self, queue: Queue, end: int) -> None:
        """Each partition of a transaction shows its records at a time of its own, and the position may be earlier."""
        deadline_s = time.monotonic() + self._patience_s
        partition = Partition(*queue)
        while self._reader.stable_ends([partition])[partition] < end:
            if time.monotonic() > deadline_s:
                raise KafkaUnavailableError(
                    f"partition {queue.queue_id} of topic {queue.topic!r} still does not show committed records up to "
                    f"{end}: a transaction is open there. Try again when it has ended"
                )
            time.sleep(_SLEEP_S)

    def origins(self, queue: Queue, first: int, end: int, other: Origin) -> Iterator[Origins]:
        """As `Side.origins`. KafkaUnavailableError: nothing comes in time."""
        if first >= end:
            return
        partition = Partition(*queue)
        self._reader.assign({})
        self._reader.assign({partition: Position(first)})
        deadline_s = time.monotonic() + self._patience_s
        position = first
        while position < end:
            fetched = self._reader.poll(_POLL_MS).get(partition)
            if fetched is None:
                if time.monotonic() > deadline_s:
                    raise KafkaUnavailableError(
                        f"partition {queue.queue_id} of topic {queue.topic!r}: nothing comes from {position} on, and "
                        f"it ends at {end}"
                    )
                continue
            deadline_s = time.monotonic() + self._patience_s
            position = fetched.next_offset
            rows = fetched.rows
            if rows.num_rows:
                offsets = rows.column("offset").to_numpy()
                below = int(offsets.searchsorted(end))
                if below:
                    yield record_origins(rows.slice(0, below), queue, other)

    def group_positions(self, group: str) -> Mapping[Queue, int]:
        """What a group has committed for good."""
        return {Queue(*place): offset for place, offset in self._administration.group_offsets(group).items()}

    def members(self, group: str) -> str:
        """How many members the group has."""
        count = self._administration.group_member_count(group)
        return f"{count} members" if count else ""

    def waiting_count(self, group: str) -> int:
        """A group of Kafka has nothing but its positions."""
        return 0

    def commit(self, group: str, positions: Mapping[Queue, int], *, force: bool) -> None:
        """As `Side.commit`. Kafka itself refuses to move a group with members: `force` changes nothing."""
        self._administration.commit_group_offsets(
            group, {Partition(*queue): position for queue, position in positions.items()}
        )

    def _is_compacted(self, topic: str) -> bool:
        return "compact" in self._administration.topic_settings(topic).get("cleanup.policy", "")
