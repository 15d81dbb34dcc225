"""The consumer groups of a store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rmq_store.cli.mqadmin_print.by_broker import At
from rmq_store.cli.mqadmin_print.groups import Members
from rmq_store.cli.mqadmin_print.progress import OFFLINE, GroupProgress, GroupTotal, QueueProgress
from rmq_store.cli.mqadmin_targets.deletions import StoreDeletion
from rmq_store.cli.mqadmin_targets.settings import changed_group
from rmq_store.cli.mqadmin_targets.store_facts import EMBEDDED, broker_address, cluster_name
from rmq_store.cli.shared.name_lookup import require_group
from rmq_store.cli.shared.output import open_to_write, printable
from rmq_store.errors import UsageError

if TYPE_CHECKING:
    from rmq_store import Store, SubscriptionGroup
    from rmq_store.broker.metadata.leases import LeaseInfo
    from rmq_store.broker.monitoring.lag import QueueLag
    from rmq_store.broker.store.administration import Deletion


class StoreGroups:
    """Lag, settings and members of groups; a store that was opened for writing can change the settings."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def totals(self) -> list[GroupTotal]:
        """A line for each group that has offsets or a %RETRY% topic."""
        from rmq_store.broker.monitoring.active_consumers import active_consumers
        from rmq_store.broker.monitoring.lag import group_lag
        from rmq_store.format.text.names import RETRY_PREFIX, is_system_group, retry_group

        store = self._store
        names = {retry_group(topic) for topic in store.topics() if topic.startswith(RETRY_PREFIX)}
        names |= {name for name in store.all_committed_offsets() if not is_system_group(name)}
        found = [(group_lag(store, name), len(active_consumers(store, name))) for name in sorted(names)]
        return [
            GroupTotal(lag.group, count, EMBEDDED if count else OFFLINE, "", "", 0, lag.diff_total)
            for lag, count in found
        ]

    def progress(self, group: str, topic: str | None, *, with_clients: bool) -> GroupProgress:
        """The queues of a group. UsageError: there is no such group; suggests the nearest."""
        from rmq_store.broker.metadata.leases import live_leases
        from rmq_store.broker.monitoring.lag import group_lag

        lag = group_lag(self._store, require_group(self._store, group))
        leases = live_leases(self._store.path, group) if with_clients else []
        return GroupProgress(
            [
                QueueProgress(
                    queue.topic, self._store.broker_name, queue.queue_id, queue.broker_offset, queue.consumer_offset,
                    queue.inflight, queue.last_timestamp_ms, _client(queue, leases) if with_clients else None,
                )
                for queue in lag.queues
                if topic in (None, queue.topic)
            ]
        )  # fmt: skip

    def settings(self, group: str) -> list[tuple[At, SubscriptionGroup]]:
        """The settings of a group. UsageError: it has none."""
        store = self._store
        settings = store.groups().get(group)
        if settings is None:
            raise UsageError(f"group {require_group(store, group)!r} has no settings; consumers use the defaults")
        return [(At("", title=f"{cluster_name(store)}:{store.broker_name}"), settings)]

    def members(self, group: str) -> Members | None:
        """Streams, push and lite pull consumers; None: there are none. UsageError: there is no such group."""
        from rmq_store.broker.metadata.groups import FilterTable
        from rmq_store.broker.metadata.leases import live_leases

        store = self._store
        require_group(store, group)
        asked = {entry.topic: entry.expression for entry in FilterTable(store.path).all() if entry.group == group}
        topics = {topic: asked.get(topic, "*") for topic, _ in sorted(store.committed_offsets(group))}
        members = sorted({(lease.owner, lease.pid) for lease in live_leases(store.path, group)}, key=str)
        if not members:
            return None
        lines = [
            (owner or "-", "-" if pid is None else f"process {pid}", "PYTHON", EMBEDDED) for owner, pid in members
        ]
        return Members([{"clientId": owner, "pid": pid} for owner, pid in members], lines, topics)

    def update(
        self, group: str, named: Mapping[str, Any], changes: Mapping[str, str | None]
    ) -> list[tuple[At, SubscriptionGroup]]:
        """Make a group with mqadmin's defaults, or change what is `named` of it, and its attributes."""
        from rmq_store import SubscriptionGroup

        default = SubscriptionGroup(group, consume_broadcast_enable=False, consume_from_min_enable=False)
        after = self._store.admin.update_group(
            group, lambda known: changed_group(known, named, changes), default=default
        )
        return [(At(broker_address(self._store)), after)]

    def deletion(self, group: str, *, remove_offsets: bool) -> StoreDeletion:
        """Of the group's settings, and of its offsets and topics; not while it is consuming.

        Raises:
            UsageError: there is no such group, or nothing of it to delete.
        """
        from rmq_store.broker.monitoring.active_consumers import require_idle

        def delete() -> tuple[Deletion, str]:
            with open_to_write(self._store.path) as store:
                require_idle(store, group)
                done = store.admin.delete_group(group, remove_offsets=remove_offsets)
                return done, f"delete subscription group [{group}] from broker [{broker_address(store)}] success."

        try:
            planned = self._store.admin.plan_group_deletion(group, remove_offsets=remove_offsets)
        except UsageError:
            require_group(self._store, group)
            raise
        question = f"Delete group {printable(group)}?"
        return StoreDeletion(planned, question, delete, lambda: require_idle(self._store, group))


def _client(queue: QueueLag, leases: list[LeaseInfo]) -> str | None:
    """The client that holds a queue: by a lock of its own, by the lease of its topic, or as the only member of a group
    that locks none. Only the members themselves know how several of them share such queues.
    """
    from rmq_store.broker.metadata.leases import MEMBER_PREFIX
    from rmq_store.broker.monitoring.active_consumers import LOCK_PREFIX

    held = (f"{LOCK_PREFIX}{queue.queue_id}|{queue.topic}", queue.topic)
    holder = next((lease.owner for lease in leases if lease.name in held), None)
    is_alone = len(leases) == 1 and leases[0].name.startswith(MEMBER_PREFIX)
    return leases[0].owner if holder is None and is_alone else holder
