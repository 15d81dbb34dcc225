"""`rmq groups` over a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from rmq_store.cli.groups.groups import write_groups
from rmq_store.cli.shared.output import wide_option
from rmq_store.cli.target.cluster_target import ClusterCommand, ClusterTarget, cluster_options

if TYPE_CHECKING:
    from rmq_store.cli.cluster.progress import GroupProgress


@click.command(
    cls=ClusterCommand,
    short_help="Consumer groups: committed offsets, lag, retries, dead letters.",
    epilog="\b\nExample:\n  rmq -n ns1:9876 groups cg_orders",
)
@cluster_options()
@wide_option
@click.argument("names", metavar="[GROUP]...", nargs=-1)
@click.option("--queues", "per_queue", is_flag=True, help="One line per queue instead of sums per group.")
@click.option("--all", "show_all", is_flag=True, help="Also groups that never committed an offset.")
def groups(target: ClusterTarget, as_json: bool, names: tuple[str, ...], per_queue: bool, show_all: bool) -> None:
    """Consumer groups: committed offsets, lag, retries, dead letters, over all brokers.

    LAG is the Diff of mqadmin's consumerProgress: the messages between the committed offset and the end, over all
    queues of the topics on which the group has committed, including its %RETRY% topic. A queue without a committed
    offset counts from 0. RETRIES is the part of LAG in the %RETRY% topics. WAITING is `-`: a broker does not tell what
    waits for its delay. DEAD counts the messages in %DLQ%GROUP. If you name groups, their queues are shown. Brokers of
    4.x show the offset 0 for a queue without one.
    """
    from rmq_store.cli.cluster.progress import progress_of, require_groups
    from rmq_store.cli.target.answers import Answers

    with target.open() as cluster:
        answers = Answers(cluster)
        known = require_groups(cluster, answers, names)
        found = [
            _json(group)
            for group in progress_of(cluster, answers, names or known, with_dead=True)
            if group.queues or names or show_all
        ]
    write_groups(found, as_json=as_json, per_queue=per_queue or bool(names))
    answers.tell()


def _json(group: GroupProgress) -> dict[str, Any]:
    return {
        "group": group.group,
        "lag": sum(one.lag for one in group.queues),
        "retries": group.retries,
        "waiting": None,
        "dead": group.dead,
        "queues": [
            {
                "topic": one.queue.topic,
                "brokerName": one.queue.broker_name,
                "queueId": one.queue.queue_id,
                "committedOffset": one.committed,
                "maxOffset": one.end,
                "lag": one.lag,
            }
            for one in group.queues
        ],
        "filters": [],
    }
