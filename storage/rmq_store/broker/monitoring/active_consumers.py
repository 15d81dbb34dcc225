"""The active consumers of a group. They would overwrite offsets that an operator sets.

A stream holds a lease per topic. A push or lite pull consumer holds one per member and one per locked queue (`leases`).
Each of them commits offsets from its memory. A SimpleConsumer does not: it reads the committed offset each time, and
continues there (`pop`). A stuck holder counts, because it may continue at any moment.

A broker keeps the same facts in its memory (ConsumerManager.java, RebalanceLockManager.java).
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from rmq_store.broker.metadata.leases import MEMBER_PREFIX, LeaseInfo, groups_with_leases, live_leases
from rmq_store.errors import LeaseHeldError

if TYPE_CHECKING:
    from rmq_store.broker.store.store import Store

LOCK_PREFIX: Final = "%LOCK%"
"""Prefix of the name of the lease on one queue; its owner is the client id, too."""


def active_consumers(store: Store, group: str) -> list[str]:
    """Active members that commit offsets of `group`: for each its name, process, start time, and leases. Sorted.

    Raises:
        UsageError: a bad group name.
    """
    holders: dict[tuple[str, int | None], list[LeaseInfo]] = {}
    for info in live_leases(store.path, group):
        holders.setdefault((info.owner, info.pid), []).append(info)
    return sorted(_describe(owner, infos, store.clock()) for (owner, _), infos in holders.items())


def active_groups(store: Store, topic: str) -> list[str]:
    """The active groups that read `topic`, sorted: those with a lease on it, or with a member that has subscribed to
    it. If a member's subscriptions are unknown, an offset of its group on the topic counts.
    """
    readers = {group for group, offsets in store.all_committed_offsets().items() if any(t == topic for t, _ in offsets)}
    return [
        group
        for group in groups_with_leases(store.path)
        if any(
            info.name == topic
            or topic in info.topics
            or (group in readers and info.name.startswith(MEMBER_PREFIX) and not info.topics)
            for info in live_leases(store.path, group)
        )
    ]


def require_idle(store: Store, group: str) -> None:
    """Check that no consumer of `group` is active.

    Raises:
        LeaseHeldError: consumers are active; the text names all of them, `.holder` is the first.
        UsageError: a bad group name.
    """
    found = active_consumers(store, group)
    if found:
        raise LeaseHeldError(
            f"group {group!r} has running consumers, which would overwrite this: stop them first: {'; '.join(found)}",
            found[0],
        )


def _describe(owner: str, infos: list[LeaseInfo], now_ms: int) -> str:
    facts = [f"process {infos[0].pid}"] if infos[0].pid is not None else []
    started = [info.started_ms for info in infos if info.started_ms is not None]
    if started:
        facts.append(f"since {datetime.fromtimestamp(min(started) / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC")
    topics = sorted(info.name for info in infos if not info.name.startswith((MEMBER_PREFIX, LOCK_PREFIX)))
    if topics:
        facts.append(f"holds {', '.join(topics)}")
    if any(info.is_stuck(now_ms) for info in infos):
        facts.append("stuck")
    return f"{owner!r} ({', '.join(facts)})" if owner else f"another member ({', '.join(facts)})"
