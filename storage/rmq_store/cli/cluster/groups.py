"""`rmq groups` over a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from rmq_store.cli.groups.groups import write_groups
from rmq_store.cli.shared.output import wide_option
from rmq_store.cli.target.cluster_target import ClusterCommand, ClusterTarget, cluster_options
from rmq_store.protocol.errors import MQBrokerError, RemotingError, SlaveBehindError

if TYPE_CHECKING:
    from rmq_store.cli.cluster.progress import GroupProgress
    from rmq_store.cli.target.answers import Answers
    from rmq_store.remoting.cluster.cluster import Cluster


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
    waits for its delay. DEAD counts the messages in %DLQ%GROUP, LEFT those of them that were not redriven; `-`: a
    broker does not say which. If you name groups, their queues are shown. Brokers of 4.x show the offset 0 for a queue
    without one.
    """
    from rmq_store.cli.cluster.progress import progress_of, require_groups
    from rmq_store.cli.target.answers import Answers

    with target.open() as cluster:
        answers = Answers(cluster)
        known = require_groups(cluster, answers, names)
        left = _Left(cluster, answers, target.pull_group)
        found = [
            _json(group, left.of(group))
            for group in progress_of(cluster, answers, names or known, with_dead=True)
            if group.queues or names or show_all
        ]
    write_groups(found, as_json=as_json, per_queue=per_queue or bool(names))
    answers.report()


class _Left:
    """Counts the dead letters that nobody has redriven."""

    def __init__(self, cluster: Cluster, answers: Answers, pull_group: str) -> None:
        from rmq_store.client.cluster_retry.redrive import ClusterDeadLetters

        self._letters = ClusterDeadLetters(cluster, pull_group=pull_group)
        self._answers = answers

    def of(self, group: GroupProgress) -> int | None:
        """None: a broker does not tell its records."""
        left = group.dead
        ranges = {
            queue: limits for queue, limits in group.dead_letters.items() if limits.max_offset > limits.min_offset
        }
        for broker_name in sorted({queue.broker_name for queue in ranges}):
            try:
                redriven = self._letters.redriven(group.group, broker_name)
            except MQBrokerError:
                return None  # no right to read the ledger's topic: all other columns are known
            except (RemotingError, SlaveBehindError) as error:
                self._answers.failed(broker_name, error)
                return None
            left -= sum(
                redriven[queue.queue_id].count_in(*limits)
                for queue, limits in ranges.items()
                if queue.broker_name == broker_name and queue.queue_id in redriven
            )
        return left


def _json(group: GroupProgress, left: int | None) -> dict[str, Any]:
    return {
        "group": group.group,
        "lag": sum(one.lag for one in group.queues),
        "retries": group.retries,
        "waiting": None,
        "dead": group.dead,
        "deadLeft": left,
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
