"""`rmq top` over a cluster."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from rmq_store.cli.monitoring.top import show_top, top_options
from rmq_store.cli.shared.formatting import Rates
from rmq_store.cli.target.cluster_target import ClusterCommand, ClusterTarget, cluster_options

if TYPE_CHECKING:
    from rmq_store.cli.target.answers import Answers, Polls
    from rmq_store.remoting.cluster.cluster import Cluster


@click.command(
    cls=ClusterCommand,
    short_help="Live view of a cluster: topics by rate, groups by lag.",
    epilog="\b\nExample:\n  rmq -n ns1:9876 top --every 5",
)
@cluster_options()
@top_options
def top(target: ClusterTarget, as_json: bool, every_s: float, limit: int) -> None:
    """Live view of a cluster: topics by messages per second, groups by lag, over all brokers.

    On a terminal the view is redrawn until q or Ctrl-C. In a pipe, and with --json, the command polls twice and prints
    once. A poll is one request for each topic and broker, and one for each group and broker. Stderr names a broker that
    does not answer, once; if no broker answers, the command ends.
    """
    from rmq_store.cli.target.answers import Polls

    with target.open() as cluster:
        polls = Polls(cluster, target)
        show_top(_Sampler(cluster, target, polls, limit).take, as_json=as_json, every_s=every_s)
    polls.end()


class _Sampler:
    """Samples a cluster; rates are those since the previous sample."""

    def __init__(self, cluster: Cluster, target: ClusterTarget, polls: Polls, limit: int) -> None:
        self._cluster = cluster
        self._target = target
        self._polls = polls
        self._limit = limit
        self._in, self._out = Rates(), Rates()

    def take(self) -> dict[str, Any]:
        """One sample, as plain values."""
        from rmq_store.cli.cluster.queues import by_topic, topic_ends
        from rmq_store.format.text.names import LMQ_PREFIX, is_system_topic

        names = [
            name for name in self._cluster.topics() if not is_system_topic(name) and not name.startswith(LMQ_PREFIX)
        ]
        answers = self._polls.begin()
        topics = by_topic(topic_ends(self._cluster, answers, names))
        answers.require_any()
        now_ms = time.time_ns() // 1_000_000
        grown = self._in.sample(
            now_ms, {name: sum(ends.max_offset for ends in queues.values()) for name, queues in topics.items()}
        )
        found: list[dict[str, Any]] = [
            {
                "topic": name,
                "queues": len(queues),
                "messages": sum(ends.max_offset - ends.min_offset for ends in queues.values()),
                "inPerSecond": grown.get(name),
            }
            for name, queues in topics.items()
        ]
        found.sort(key=lambda topic: (-(topic["inPerSecond"] or 0.0), -topic["messages"], topic["topic"]))
        groups = self._groups(answers, now_ms)
        self._polls.finish()
        return {
            "cluster": self._cluster.name,
            "brokers": len(self._cluster.broker_names()),
            "topics": found[: self._limit],
            "groups": groups,
        }

    def _groups(self, answers: Answers, now_ms: int) -> list[dict[str, Any]]:
        from rmq_store.cli.cluster.progress import known_groups, progress_of, with_ages

        known = known_groups(self._cluster, answers)
        groups = [one for one in progress_of(self._cluster, answers, known, with_dead=True) if one.queues]
        gone = self._out.sample(now_ms, {one.group: sum(q.committed or 0 for q in one.queues) for one in groups})
        groups.sort(key=lambda one: (-sum(queue.lag for queue in one.queues), one.group))
        return [
            {
                "group": one.group,
                "lag": sum(queue.lag for queue in one.queues),
                "lagMs": max(
                    (q.lag_ms for q in with_ages(self._cluster, self._target, one.queues, now_ms) if q.lag_ms),
                    default=None,
                ),
                "outPerSecond": gone.get(one.group),
                "retries": one.retries,
                "dead": one.dead,
            }
            for one in groups[: self._limit]
        ]
