"""The offsets of groups in a store: plans to set them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rmq_store.cli.mqadmin_print.offsets import OffsetRow, ResetTo, offset_json
from rmq_store.cli.shared.name_lookup import require_group, require_topic
from rmq_store.cli.shared.output import open_to_write
from rmq_store.errors import UsageError
from rmq_store.lazy.dataclasses import dataclass

if TYPE_CHECKING:
    from rmq_store import Store
    from rmq_store.broker.monitoring.offset_reset import OffsetChange


@dataclass
class StorePlan:
    """Offsets of `group` that would be set. `find` finds the rows once more in the store that is opened to write."""

    store: Store
    group: str
    find: Callable[[Store], list[tuple[OffsetChange, OffsetRow]]]

    def __post_init__(self) -> None:
        self.rows = [row for _, row in self.find(self.store)]
        self.is_partial = False
        self.remarks: list[str] = []

    def check(self, *, dry_run: bool) -> None:
        """Raise LeaseHeldError while the group is consuming: its members would write their own offsets again."""
        from rmq_store.broker.monitoring.active_consumers import require_idle

        if not dry_run:
            require_idle(self.store, self.group)

    def carry_out(self) -> None:
        """Set the offsets, which are on disk on return."""
        from rmq_store.broker.monitoring.offset_reset import apply_reset

        with open_to_write(self.store.path) as store:
            found = self.find(store)
            self.rows = [row for _, row in found]
            apply_reset(store, self.group, [change for change, row in found if row.goes])

    def as_json(self, *, dry_run: bool) -> dict[str, Any]:
        """The queues that are set, or would be."""
        return {
            "reset": not dry_run,
            "queues": [offset_json(row, with_broker=False) for row in self.rows if row.goes],
        }


class StoreOffsets:
    """Plans for the offsets of groups."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def now_ms(self) -> int:
        """The time of the store's clock."""
        return self._store.clock()

    def reset(self, group: str, topic: str, to: ResetTo) -> StorePlan:
        """UsageError: the store has no such group, topic or queue."""
        from rmq_store.broker.monitoring.offset_reset import at_offset, at_time, plan_reset

        def find(store: Store) -> list[tuple[OffsetChange, OffsetRow]]:
            target = at_time(store, to.time_ms) if to.offset is None else at_offset(to.offset)
            changes = plan_reset(store, group, [require_topic(store, topic)], target, queue_id=to.queue)
            return [(change, _row(store, change, to)) for change in changes]

        require_group(self._store, group)
        return StorePlan(self._store, group, find)

    def clone(self, source: str, group: str, topic: str) -> StorePlan:
        """The offsets of `source` for `group`. UsageError: there is no such group or topic, or nothing to clone."""
        from rmq_store.broker.monitoring.offset_reset import given, plan_reset

        def find(store: Store) -> list[tuple[OffsetChange, OffsetRow]]:
            offsets = store.committed_offsets(require_group(store, source))
            changes = plan_reset(store, group, [require_topic(store, topic)], given(offsets))
            if not changes:
                raise UsageError(f"group {source!r} has no offsets on topic {topic!r}: nothing to clone")
            return [(change, _row(store, change, None)) for change in changes]

        return StorePlan(self._store, group, find)


def _row(store: Store, change: OffsetChange, to: ResetTo | None) -> OffsetRow:
    place = change.place
    goes = to is None or to.goes(place.committed, change.then)
    return OffsetRow(
        place.topic, store.broker_name, place.queue_id, place.max_offset, place.committed, change.then, goes=goes
    )
