"""Moves the offsets of a group in a store."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rmq_store.broker.monitoring.active_consumers import active_consumers, require_idle
from rmq_store.broker.monitoring.offset_reset import OffsetChange, apply_reset, given, latest, plan_reset
from rmq_store.cli.shared.name_lookup import require_group, require_topic
from rmq_store.cli.shared.output import open_to_write
from rmq_store.cli.shared.targets import target
from rmq_store.cli.target.offsets_file import read_offsets
from rmq_store.cli.target.rows import ChangeRow, PlaceRow
from rmq_store.errors import UsageError
from rmq_store.format.text.names import RETRY_PREFIX

if TYPE_CHECKING:
    from rmq_store import Store
    from rmq_store.broker.monitoring.offset_reset import QueuePlace


class StoreOffsetReset:
    """See `OffsetReset`."""

    def __init__(
        self, store: Store, group: str, topics: Sequence[str], queue_id: int | None, goal: str, value: Any
    ) -> None:
        self._store = store
        self._group = require_group(store, group)
        self._topics = topics
        self._queue_id = queue_id
        self._goal = goal
        self._value = value

    def plan(self) -> list[ChangeRow]:
        """See `OffsetReset`."""
        return [_row(change) for change in self._plan(self._store)]

    def require_idle(self) -> None:
        """LeaseHeldError: a consumer or stream of the group is running."""
        require_idle(self._store, self._group)

    def members(self) -> list[str]:
        """See `OffsetReset`."""
        return [f"at work as the group is {one}" for one in active_consumers(self._store, self._group)]

    def apply(self) -> tuple[list[ChangeRow], list[PlaceRow]]:
        """Set the offsets, as they are planned now, beside the open view."""
        with open_to_write(self._store.path) as store:
            changes = self._plan(store)
            apply_reset(store, self._group, changes)
        return [_row(change) for change in changes], []

    def _plan(self, store: Store) -> list[OffsetChange]:
        if self._goal == "to_offsets":
            return self._plan_file(store, self._value)
        topics = _topics(store, self._group, self._topics)
        return plan_reset(store, self._group, topics, target(store, self._goal, self._value), queue_id=self._queue_id)

    def _plan_file(self, store: Store, path: Path) -> list[OffsetChange]:
        wanted = {
            key: offset
            for key, offset in _offsets_of_store(path).items()
            if (not self._topics or key[0] in self._topics) and self._queue_id in (None, key[1])
        }
        topics = _topics(store, self._group, sorted({topic for topic, _ in wanted}))
        changes = plan_reset(store, self._group, topics, given(wanted))
        missing = wanted.keys() - {(change.place.topic, change.place.queue_id) for change in changes}
        if missing:
            topic, queue_id = min(missing)
            raise UsageError(f"{path}: topic {topic!r} has no queue {queue_id}")
        return changes


def places(store: Store, group: str, topics: Sequence[str]) -> list[PlaceRow]:
    """The queues of the named topics, or of all on which the group has offsets."""
    require_group(store, group)
    return [_place(one.place) for one in plan_reset(store, group, _topics(store, group, topics), latest)]


def _topics(store: Store, group: str, named: Sequence[str]) -> list[str]:
    """The named topics; without names, all existing topics on which the group has offsets, except retry topics."""
    if named:
        return [require_topic(store, topic) for topic in named]
    committed = {topic for topic, _ in store.committed_offsets(group) if not topic.startswith(RETRY_PREFIX)}
    topics = sorted(topic for topic in committed if store.find_topic(topic) is not None)
    if not topics:
        raise UsageError(f"group {group!r} has no offsets on any topic: name one with -t")
    return topics


def _offsets_of_store(path: Path) -> dict[tuple[str, int], int]:
    found = read_offsets(path)
    for topic, queue in found:
        if not (queue.isascii() and queue.isdigit()):
            raise UsageError(f"{path}: {topic!r} queue {queue!r}: a store has queues 0, 1, ...")
    return {(topic, int(queue)): offset for (topic, queue), offset in found.items()}


def _row(change: OffsetChange) -> ChangeRow:
    return ChangeRow(_place(change.place), change.wanted, change.then)


def _place(place: QueuePlace) -> PlaceRow:
    return PlaceRow(place.topic, None, place.queue_id, place.min_offset, place.max_offset, place.committed)
