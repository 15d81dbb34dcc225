"""Plans and commits changes of a group's offsets: `rmq offsets reset`, resetOffsetByTime, skipAccumulatedMessage.

A target is a function from a queue to an offset. The result is limited to the queue's [min, max], so that a consumer
finds the offset there. Sources: AdminBrokerProcessor#resetOffsetInner, ResetOffsetByTimeCommand.java.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rmq_store.broker.monitoring.active_consumers import require_idle
from rmq_store.errors import UsageError
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.protocol.results import lag_of

if TYPE_CHECKING:
    from rmq_store.broker.metadata.leases import Lease
    from rmq_store.broker.store.store import Store

OWNER = "reset of its offsets"


@dataclass(frozen=True, slots=True)
class QueuePlace:
    """A queue with messages [`min_offset`, `max_offset`), and a group's committed offset in it; None: it never
    committed.
    """

    topic: str
    queue_id: int
    min_offset: int
    max_offset: int
    committed: int | None

    @property
    def lag(self) -> int:
        """See `lag_of`."""
        return lag_of(self.max_offset, self.committed)

    def nearest(self, offset: int) -> int:
        """`offset`, limited to [min, max] of the queue."""
        return min(max(offset, self.min_offset), self.max_offset)


Target = Callable[[QueuePlace], int | None]
"""The new offset of a queue; None: it stays as it is."""


@dataclass(frozen=True, slots=True)
class OffsetChange:
    """The queue `place` gets the offset `then`; `wanted` is the result of the target, which may lie outside of the
    queue.
    """

    place: QueuePlace
    wanted: int
    then: int

    @property
    def lag(self) -> int:
        """Number of messages to consume after the change."""
        return self.place.max_offset - self.then


def earliest(place: QueuePlace) -> int:
    """Target: the first message that can be read."""
    return place.min_offset


def latest(place: QueuePlace) -> int:
    """Target: the end of the queue, after the newest message."""
    return place.max_offset


def at_time(store: Store, timestamp_ms: int) -> Target:
    """Target: the first message stored at that time or later; below 0: the end of the queue, as in RocketMQ."""

    def target(place: QueuePlace) -> int:
        if timestamp_ms < 0:
            return place.max_offset
        return store.offset_by_time(place.topic, place.queue_id, timestamp_ms)

    return target


def at_offset(offset: int) -> Target:
    """Target: the same offset for every queue."""
    return lambda place: offset


def shifted(count: int) -> Target:
    """Target: `count` messages forward from the committed offset, or back if it is negative; without an offset from the
    first message.
    """
    return lambda place: (place.min_offset if place.committed is None else place.committed) + count


def given(offsets: Mapping[tuple[str, int], int]) -> Target:
    """Target: the given offset of each (topic, queue id); other queues stay as they are."""
    return lambda place: offsets.get((place.topic, place.queue_id))


def plan_reset(
    store: Store, group: str, topics: Collection[str], target: Target, *, queue_id: int | None = None
) -> list[OffsetChange]:
    """The new offset of each read queue of `topics`, or of the one `queue_id`, by topic and queue; a queue without a
    target
    is left out. Changes nothing.

    Raises:
        UnknownTopicError: one of the topics does not exist. UsageError: it has no queue `queue_id`; a bad name.
    """
    committed = store.committed_offsets(group)
    changes = []
    for topic in sorted(topics):
        ranges = store.queue_ranges(topic)
        if queue_id is not None and queue_id not in ranges:
            raise UsageError(f"topic {topic!r} has queues 0 to {len(ranges) - 1}, not {queue_id}")
        for number in sorted(ranges) if queue_id is None else [queue_id]:
            place = QueuePlace(topic, number, *ranges[number], committed.get((topic, number)))
            wanted = target(place)
            if wanted is not None:
                changes.append(OffsetChange(place, wanted, place.nearest(wanted)))
    return changes


def apply_reset(store: Store, group: str, changes: Sequence[OffsetChange]) -> None:
    """Commit planned changes; durable on return. No stream of the group can begin meanwhile.

    Raises:
        LeaseHeldError: an active consumer of the group would overwrite the offsets; nothing was changed.
        ReadOnlyError, StoreLockedError, StoreFullError, StoreFailedError: as `Store.commit_offsets`.
    """
    require_idle(store, group)
    with _leases(store, group, sorted({change.place.topic for change in changes})):
        store.commit_offsets(group, {(change.place.topic, change.place.queue_id): change.then for change in changes})


@contextmanager
def _leases(store: Store, group: str, topics: Sequence[str]) -> Iterator[None]:
    held: list[Lease] = []
    try:
        for topic in topics:
            # A list would be lost, with those taken before, if one fails.
            held.append(store.lease(group, topic, OWNER, alone=False))  # noqa: PERF401
        yield
    finally:
        for lease in held:
            lease.release()
