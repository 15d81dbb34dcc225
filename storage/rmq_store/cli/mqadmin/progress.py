"""consumerProgress: the lag of groups, in mqadmin's words. Source: ConsumerProgressSubCommand.java."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from rmq_store.cli.mqadmin.common import EMBEDDED, mqadmin_options
from rmq_store.cli.mqadmin_print.progress import (
    OFFLINE,
    GroupTotal,
    QueueProgress,
    write_group_progress,
    write_queue_progress,
)
from rmq_store.cli.shared.completion import GROUP, TOPIC
from rmq_store.cli.shared.name_lookup import require_group
from rmq_store.cli.shared.output import open_store
from rmq_store.errors import UsageError

if TYPE_CHECKING:
    from rmq_store.broker.metadata.leases import LeaseInfo
    from rmq_store.broker.monitoring.lag import QueueLag


@click.command(
    "consumerProgress",
    short_help="Lag of consumer groups.",
    epilog="\b\nExample:\n  rmq consumerProgress -g cg_orders --store /data/store",
)
@mqadmin_options("nc")
@click.option("-g", "--groupName", "group", type=GROUP, help="Only this group, queue by queue.")
@click.option("-t", "--topicName", "topic", type=TOPIC, help="With -g: only this topic.")
@click.option("-s", "--showClientIP", "show_clients", type=bool, help="With -g: show the member that holds each queue.")
def consumer_progress(
    root: Path, as_json: bool, group: str | None, topic: str | None, show_clients: bool | None
) -> None:
    """Lag of consumer groups: sums for all groups, or the queues of one group.

    #Diff counts the messages from the committed offset to the end, #Inflight those that were delivered and are not
    committed; the totals include the %RETRY% topics. #LastTime is the store time of the last consumed message (UTC).
    """
    if group is None:
        if topic is not None or show_clients is not None:
            raise UsageError("-t and -s go with -g")
        _all_groups(root, as_json)
    else:
        _one_group(root, as_json, group, topic, bool(show_clients))


def _one_group(root: Path, as_json: bool, group: str, topic: str | None, show_clients: bool) -> None:
    from rmq_store.broker.metadata.leases import live_leases
    from rmq_store.broker.monitoring.lag import group_lag

    with open_store(root) as store:
        queues = [
            queue for queue in group_lag(store, require_group(store, group)).queues if topic in (None, queue.topic)
        ]
        leases = live_leases(root, group) if show_clients else []
        broker = store.broker_name
    shown = [
        QueueProgress(
            queue.topic, broker, queue.queue_id, queue.broker_offset, queue.consumer_offset, queue.inflight,
            queue.last_timestamp_ms, _client(queue, leases) if show_clients else None,
        )
        for queue in queues
    ]  # fmt: skip
    write_queue_progress(group, shown, as_json=as_json, show_clients=show_clients)


def _all_groups(root: Path, as_json: bool) -> None:
    from rmq_store.broker.monitoring.active_consumers import active_consumers
    from rmq_store.broker.monitoring.lag import group_lag
    from rmq_store.format.text.names import RETRY_PREFIX, is_system_group, retry_group

    with open_store(root) as store:
        names = {retry_group(topic) for topic in store.topics() if topic.startswith(RETRY_PREFIX)}
        names |= {name for name in store.all_committed_offsets() if not is_system_group(name)}
        found = [(group_lag(store, name), len(active_consumers(store, name))) for name in sorted(names)]
    totals = [
        GroupTotal(lag.group, count, EMBEDDED if count else OFFLINE, "", "", 0, lag.diff_total) for lag, count in found
    ]
    write_group_progress(totals, as_json=as_json)


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
