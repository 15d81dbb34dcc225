"""A store as a side of translation."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Final

from rmq_store.bridge.offsets.origins import MESSAGE_COLUMNS, message_origins, unreadable
from rmq_store.bridge.offsets.side import Extent, Origin, Queue
from rmq_store.bridge.offsets.translate import Origins
from rmq_store.broker.monitoring.active_consumers import active_consumers
from rmq_store.broker.monitoring.lag import group_lag
from rmq_store.broker.monitoring.offset_reset import OffsetChange, QueuePlace, apply_reset
from rmq_store.broker.store.store import Store
from rmq_store.errors import CorruptionError, GroupInUseError, LeaseHeldError
from rmq_store.format.text.names import DLQ_PREFIX, RETRY_PREFIX, is_system_topic, retry_topic


class StoreSide:
    """A store that is open for writing: only a writer can read positions of mirrors. `cluster_id`: the user's."""

    def __init__(self, store: Store, cluster_id: str) -> None:
        self._store = store
        self.cluster_id: Final = cluster_id

    @property
    def name(self) -> str:
        """The store's path."""
        return str(self._store.path)

    def topics(self) -> Collection[str]:
        """All topics but RocketMQ's own, retries and dead letters."""
        return [
            name
            for name in self._store.topics()
            if not name.startswith((RETRY_PREFIX, DLQ_PREFIX)) and not is_system_topic(name)
        ]

    def queue_count(self, topic: str) -> int:
        """The number of queues that are open for reading."""
        found = self._store.find_topic(topic)
        return 0 if found is None else found.read_queue_nums

    def topic_id(self, topic: str) -> str:
        """"": RocketMQ's topics have no id."""
        return ""

    def extents(self, queues: Collection[Queue]) -> Mapping[Queue, Extent]:
        """The present ranges of these queues."""
        return {queue: Extent(*self._store.queue_range(*queue)) for queue in queues}

    def wait_for_end(self, queue: Queue, end: int) -> None:
        """Return at once: messages that a mirror has written here can be read as soon as its position can."""

    def origins(self, queue: Queue, first: int, end: int, other: Origin) -> Iterator[Origins]:
        """As `Side.origins`. The store reads some thousand messages at once: where one is damaged, each of them is read
        alone.
        """
        while first < end:
            try:
                for found in self._origins(queue, first, end, other):
                    yield found
                    first = int(found.positions[-1]) + 1
                return
            except CorruptionError:
                pass
            is_damaged = False
            while first < end and not is_damaged:
                try:
                    yield from self._origins(queue, first, first + 1, other)
                except CorruptionError:
                    is_damaged = True
                    yield unreadable(first)
                first += 1

    def _origins(self, queue: Queue, first: int, end: int, other: Origin) -> Iterator[Origins]:
        for rows in self._store.read(*queue, first, end, columns=MESSAGE_COLUMNS):
            if rows.num_rows:
                yield message_origins(rows, other)

    def groups(self) -> Collection[str]:
        """Groups that have committed offsets."""
        return self._store.all_committed_offsets()

    def group_positions(self, group: str) -> Mapping[Queue, int]:
        """Offsets that a group has committed."""
        return {Queue(*place): offset for place, offset in self._store.committed_offsets(group).items()}

    def members(self, group: str) -> str:
        """The holders of the group's leases."""
        return "; ".join(active_consumers(self._store, group))

    def waiting_count(self, group: str) -> int:
        """The messages of its %RETRY% topic that it has not consumed, and delayed messages for that topic."""
        return group_lag(self._store, group).retry_diff + self._store.backlog_by_topic().get(retry_topic(group), 0)

    def commit(self, group: str, positions: Mapping[Queue, int], *, force: bool) -> None:
        """As `Side.commit`; messages below the positions are flushed first."""
        if force:
            self._store.commit_offsets(
                group, {(topic, queue_id): position for (topic, queue_id), position in positions.items()}
            )
            return
        changes = [
            OffsetChange(QueuePlace(*queue, *self._store.queue_range(*queue), None), position, position)
            for queue, position in positions.items()
        ]
        try:
            apply_reset(self._store, group, changes)
        except LeaseHeldError as error:
            raise GroupInUseError(str(error)) from error
