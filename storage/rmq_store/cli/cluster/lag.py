"""`rmq lag` over a cluster."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from rmq_store.cli.groups.lag import EVERY_S, LagGauge, LagLine, show_lag, together
from rmq_store.cli.shared.output import wide_option
from rmq_store.cli.shared.parameters import DAY_S, Seconds
from rmq_store.cli.target.cluster_target import ClusterCommand, ClusterTarget, cluster_options

if TYPE_CHECKING:
    from rmq_store.cli.cluster.progress import QueueProgress
    from rmq_store.cli.target.answers import Answers
    from rmq_store.remoting.cluster.cluster import Cluster


@click.command(
    cls=ClusterCommand,
    short_help="Lag of consumer groups, and when they will have caught up.",
    epilog="\b\nExamples:\n  rmq -n ns1:9876 lag\n  rmq -n ns1:9876 lag cg_orders --watch",
)
@cluster_options()
@wide_option
@click.argument("names", metavar="[GROUP]...", nargs=-1)
@click.option("--queues", "per_queue", is_flag=True, help="One line per queue, as with names of groups.")
@click.option("--watch", "every_s", metavar="[SECONDS]", type=Seconds(0.05, DAY_S), is_flag=False,
              flag_value=EVERY_S, help="Poll repeatedly, every 2 seconds by default, and show rates and times to "
                                       "catch up.")  # fmt: skip
def lag(target: ClusterTarget, as_json: bool, names: tuple[str, ...], per_queue: bool, every_s: float | None) -> None:
    """Lag of consumer groups: of the named groups for each queue, or of all groups for each topic.

    LAG is counted as in mqadmin's consumerProgress. WAITING is `-`: a broker does not tell what waits for its delay.
    LAG TIME is the age of the oldest unconsumed message, by the clocks of the broker and of this host; `-` if there is
    none: one message of each queue with a lag is read, as TOOLS_CONSUMER or --pull-group. With --watch: RATE is
    messages consumed per second since the previous poll, and ETA the time until the group has caught up at this rate.
    On a terminal the screen is redrawn until q or Ctrl-C. In a pipe every poll prints a table, with --json a line.
    Stderr names a broker that does not answer, once; if no broker answers, the command ends.
    """
    from rmq_store.cli.target.answers import Polls

    gauge = LagGauge()
    with target.open() as cluster:
        polls = Polls(cluster, target)

        def poll() -> list[LagLine]:
            lines = _lines(cluster, target, polls.begin(), names, per_queue or bool(names), gauge)
            polls.finish()
            return lines

        show_lag(poll, as_json=as_json, every_s=every_s)
    polls.end()


def _lines(
    cluster: Cluster, target: ClusterTarget, answers: Answers, names: Sequence[str], per_queue: bool, gauge: LagGauge
) -> list[LagLine]:
    from rmq_store.cli.cluster.progress import progress_of, require_groups, with_ages

    known = require_groups(cluster, answers, names)
    now_ms = time.time_ns() // 1_000_000
    found: list[LagLine] = []
    for group in progress_of(cluster, answers, sorted(set(names)) or known):
        queues = [_line(group.group, one) for one in with_ages(cluster, target, group.queues, now_ms)]
        topics = sorted({line.topic for line in queues})
        found += queues if per_queue else [together([q for q in queues if q.topic == topic]) for topic in topics]
    return gauge.with_rates(found, now_ms)


def _line(group: str, one: QueueProgress) -> LagLine:
    from rmq_store.cli.cluster.queues import shown

    return LagLine(group, one.queue.topic, shown(one.queue), one.committed, one.end, one.lag, one.lag_ms)
