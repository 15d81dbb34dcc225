"""How far consumer groups are, from all brokers of a cluster. Source: AdminBrokerProcessor#getConsumeStats."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final, NamedTuple

from rmq_store.cli.target.answers import Answers
from rmq_store.cli.target.cluster.queues import SeenQueues, queues_away, topic_ends
from rmq_store.cli.target.cluster_target import ClusterTarget
from rmq_store.cli.target.rows import Total, together, unknown_at
from rmq_store.errors import UsageError, did_you_mean
from rmq_store.format.text.names import RETRY_PREFIX, dlq_topic, is_system_group, retry_topic
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.protocol.messages import MessageQueue
from rmq_store.protocol.results import QueueRange, lag_of
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.cluster.gather import At, Question, gather
from rmq_store.remoting.cluster.offsets import gather_consumer_offsets, store_timestamp_ms
from rmq_store.remoting.cluster.pull_request import PullRequests, answer_of
from rmq_store.remoting.questions.groups import (
    ask_consume_stats,
    ask_group_configs,
    read_consume_stats,
    read_group_configs,
)

_GROUPS_AT_ONCE: Final = 64
# Answers that may each hold a message of 4 MiB.
_PULLS_AT_ONCE: Final = 32


@dataclass(frozen=True, slots=True)
class QueueProgress:
    """A group in a queue. `committed`: None if it has no offset there. `lag_ms`: age of the oldest message that it has
    not consumed; None if that is not known.
    """

    queue: MessageQueue
    end: int
    committed: int | None
    lag_ms: int | None = None

    @property
    def lag(self) -> int:
        """See `lag_of`."""
        return lag_of(self.end, self.committed)


class GroupProgress(NamedTuple):
    """A group and its queues, by topic, broker and number. `dead_letters`: the range of each queue of %DLQ%group.

    `away`: queues of its topics at brokers that have not answered, so that nothing is known of the group there;
    `dead_away`: those of %DLQ%group.
    """

    group: str
    queues: tuple[QueueProgress, ...]
    dead_letters: Mapping[MessageQueue, QueueRange] = MappingProxyType({})
    away: tuple[MessageQueue, ...] = ()
    dead_away: tuple[MessageQueue, ...] = ()

    @property
    def dead(self) -> Total:
        """Messages in %DLQ%group."""
        present = [Total(limits.max_offset - limits.min_offset) for limits in self.dead_letters.values()]
        return together([*present, *(unknown_at(queue.broker_name) for queue in self.dead_away)])

    @property
    def lag(self) -> Total:
        """The sum of its queues."""
        return self._lag("")

    @property
    def retries(self) -> Total:
        """The part of the lag in %RETRY% topics."""
        return self._lag(RETRY_PREFIX)

    def _lag(self, prefix: str) -> Total:
        known = [Total(one.lag) for one in self.queues if one.queue.topic.startswith(prefix)]
        return together(
            [*known, *(unknown_at(queue.broker_name) for queue in self.away if queue.topic.startswith(prefix))]
        )


def known_groups(cluster: Cluster, answers: Answers) -> set[str]:
    """The groups of all brokers (201), without those of the system."""
    found: set[str] = set()
    commands = [(name, ask_group_configs()) for name in cluster.broker_names()]
    for table in answers.ask_together(commands, read_group_configs):
        found.update(cluster.plain_names(table or ()))
    return {name for name in found if not is_system_group(name)}


def require_groups(cluster: Cluster, answers: Answers, wanted: Sequence[str]) -> set[str]:
    """All known groups, among which those that are wanted must be.

    Raises:
        UsageError: no broker knows a group; suggests the nearest.
        RemotingError, MQBrokerError: a broker has not answered, which may have the only offsets of a group.
    """
    known = known_groups(cluster, answers)
    answers.require_any()
    for name in wanted:
        if name not in known:
            answers.require_all()
            raise UsageError(f"no group {name[:255]!r} in the cluster{did_you_mean(name, sorted(known))}")
    return known


def progress_of(
    cluster: Cluster,
    answers: Answers,
    groups: Collection[str],
    *,
    with_dead: bool = False,
    seen: SeenQueues | None = None,
) -> Iterator[GroupProgress]:
    """The progress of groups, by name (208); a group that never committed an offset has no queues. `seen`: the queues
    of earlier polls.
    """
    seen = SeenQueues() if seen is None else seen
    wanted = sorted(groups)
    for first in range(0, len(wanted), _GROUPS_AT_ONCE):
        part = wanted[first : first + _GROUPS_AT_ONCE]
        asked = [(group, broker) for group in part for broker in cluster.broker_names()]
        commands = [(broker, ask_consume_stats(cluster, group)) for group, broker in asked]
        queues: dict[str, list[QueueProgress]] = {group: [] for group in part}
        for (group, broker), stats in zip(asked, answers.ask_together(commands, read_consume_stats), strict=True):
            for queue, one in stats.offset_table.items() if stats is not None else ():
                plain = MessageQueue(cluster.plain_name(queue.topic), broker, queue.queue_id)
                queues[group].append(QueueProgress(plain, max(one.broker_offset, 0), max(one.consumer_offset, 0)))
        dead = topic_ends(cluster, answers, [dlq_topic(group) for group in part]) if with_dead else {}
        for group in part:
            of_group = tuple(sorted(_without_zeros(cluster, group, queues[group]), key=lambda one: one.queue))
            letters = {queue: ends for queue, ends in dead.items() if queue.topic == dlq_topic(group)}
            known = {one.queue for one in of_group}
            topics = {retry_topic(group), *(queue.topic for queue in known)}
            away = seen.with_earlier(group, known, queues_away(cluster, answers, topics, known), answers)
            dead_topics = [dlq_topic(group)] if with_dead else []
            dead_away = queues_away(cluster, answers, dead_topics, letters)
            yield GroupProgress(
                group,
                of_group,
                letters,
                away,
                seen.with_earlier(dlq_topic(group), letters, dead_away, answers) if with_dead else (),
            )


def _without_zeros(cluster: Cluster, group: str, queues: Sequence[QueueProgress]) -> list[QueueProgress]:
    """The queues, with None where the group has no offset: 208 tells that as 0, and 5.x brokers know better (14)."""
    told = gather_consumer_offsets(cluster, group, [one.queue for one in queues if not one.committed]).told
    absent = {queue for queue, one in told.items() if one.error is None and one.value is None}
    return [replace(one, committed=None) if one.queue in absent else one for one in queues]


def with_ages(
    cluster: Cluster, target: ClusterTarget, queues: Sequence[QueueProgress], now_ms: int
) -> list[QueueProgress]:
    """The queues with `lag_ms`: the first message that is not consumed is pulled of each queue that has a lag. Its age
    stays unknown if it cannot be read.
    """
    ages: dict[MessageQueue, int] = {}
    behind = [one for one in queues if one.lag > 0]
    for first in range(0, len(behind), _PULLS_AT_ONCE):
        part = behind[first : first + _PULLS_AT_ONCE]
        offsets = {one.queue: one.committed or 0 for one in part}
        for again in (False, True):
            pulls = {
                queue: Question(
                    queue.broker_name, PullRequests(cluster, queue, target.filter()).request(offset, 1), answer_of
                )
                for queue, offset in offsets.items()
            }
            moved: dict[MessageQueue, int] = {}
            for queue, told in gather(cluster, pulls, At.READABLE).told.items():
                answer = told.value
                if answer is None:
                    continue
                if answer.frames:
                    ages[queue] = max(now_ms - store_timestamp_ms(answer.frames), 0)
                elif answer.min_offset > offsets[queue] and not again:  # retention took what is not consumed
                    moved[queue] = answer.min_offset
            offsets = moved
    return [replace(one, lag_ms=ages.get(one.queue)) for one in queues]
