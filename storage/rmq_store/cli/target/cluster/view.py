"""A cluster answers the questions of the commands."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from rmq_store.cli.mqadmin_print.lines import perm_text
from rmq_store.cli.shared.message_text import LINE_COLUMNS
from rmq_store.cli.shared.targets import TIME, Start
from rmq_store.cli.target.answers import Answers
from rmq_store.cli.target.lag_lines import LagLine, lines_of
from rmq_store.cli.target.rows import (
    Activity,
    GroupActivity,
    GroupQueueRow,
    GroupRow,
    PlaceRow,
    QueueRow,
    TopicActivity,
    TopicRow,
    Total,
    away_json,
    queue_row,
    together,
    topic_activity,
    unknown_at,
)
from rmq_store.format.text.names import DLQ_PREFIX, retry_topic, validate_group
from rmq_store.protocol.errors import MQBrokerError, RemotingError, SlaveBehindError

if TYPE_CHECKING:
    from rmq_store.broker.monitoring.dead_letter_rows import Wanted
    from rmq_store.cli.target.cluster.follow import ClusterFollower
    from rmq_store.cli.target.cluster.letter_rows import ClusterLetterRows
    from rmq_store.cli.target.cluster.offset_reset import ClusterOffsetReset
    from rmq_store.cli.target.cluster.progress import GroupProgress, QueueProgress
    from rmq_store.cli.target.cluster_target import ClusterTarget
    from rmq_store.cli.target.lag_lines import LagGauge
    from rmq_store.cli.target.view import QueueName, Tell
    from rmq_store.client.cluster_retry.redrive import ClusterDeadLetters
    from rmq_store.kinds.table import Kind
    from rmq_store.protocol.messages import MessageQueue
    from rmq_store.protocol.results import QueueRange
    from rmq_store.remoting.cluster.cluster import Cluster
    from rmq_store.remoting.cluster.routes import TopicRoute

# So many topics are asked for together; each at each of its brokers.
_AT_ONCE: Final = 64


class ClusterView:
    """See `View`; so are its methods."""

    names_brokers: Final = True
    line_columns: Final = (*LINE_COLUMNS, "brokerName")
    poll_s: Final = 0.5

    def __init__(self, cluster: Cluster, target: ClusterTarget, tell: Tell) -> None:
        from rmq_store.cli.target.cluster.queues import SeenQueues

        self.failures = Answers(cluster)
        self._cluster = cluster
        self._target = target
        self._tell = tell
        # Of the polls before: the brokers that answered in one of them, and those that did not in the last one.
        self._polled: set[str] = set()
        self._silent: set[str] = set()
        # And the queues of groups and of topics in all of them.
        self._seen = SeenQueues()
        self._seen_of_topics = SeenQueues()

    def now_ms(self) -> int:
        """By the clock of this host."""
        return time.time_ns() // 1_000_000

    # -- topics -------------------------------------------------------------------------------------------------------

    def topics(self, *, show_all: bool) -> list[TopicRow]:
        """See `View`."""
        from rmq_store.cli.target.cluster.queues import topic_ends
        from rmq_store.format.text.names import LMQ_PREFIX, is_system_topic

        cluster, kinds, found = self._cluster, self._topic_kinds(), list[TopicRow]()
        names = [
            name for name in cluster.topics() if show_all or not (is_system_topic(name) or name.startswith(LMQ_PREFIX))
        ]
        for first in range(0, len(names), _AT_ONCE):
            part = names[first : first + _AT_ONCE]
            ends = topic_ends(cluster, self.failures, part)
            for route in filter(None, map(cluster.route, part)):
                kind = kinds.get(route.topic)
                if show_all or kind is None:
                    found.append(_topic(route, ends, kind))
        self.failures.require_any()
        return found

    def _topic_kinds(self) -> Mapping[str, Kind]:
        """The topics whose queues brokers keep in another way, by the settings of all topics (21). A broker that
        refuses the request, for want of rights, shows none.
        """
        from rmq_store.kinds.topics import kind_by_attributes
        from rmq_store.remoting.questions.topics import ask_topic_configs, read_topic_configs

        found: dict[str, Kind] = {}
        commands = [(name, ask_topic_configs()) for name in self._cluster.broker_names()]
        for configs in Answers(self._cluster).ask_together(commands, read_topic_configs):
            for name, config in (configs or {}).items():
                kind = kind_by_attributes(config.attributes or {})
                if kind is not None:
                    found[self._cluster.plain_name(name)] = kind
        return found

    # -- groups -------------------------------------------------------------------------------------------------------

    def tell_conflicts(self) -> None:
        """Brokers have one offset for a queue each."""

    def groups(self, names: Sequence[str], *, show_all: bool) -> list[GroupRow]:
        """See `View`."""
        from rmq_store.cli.target.cluster.progress import progress_of, require_groups
        from rmq_store.client.cluster_retry.redrive import ClusterDeadLetters

        known = require_groups(self._cluster, self.failures, names)
        letters = ClusterDeadLetters(self._cluster, pull_group=self._target.pull_group)
        return [
            GroupRow(
                one.group, one.lag, one.retries, None, one.dead, self._dead_left(letters, one),
                tuple(sorted([*map(_group_queue, one.queues), *map(_unknown_queue, one.away)], key=_place)),
            )
            for one in progress_of(self._cluster, self.failures, names or known, with_dead=True)
            if one.queues or one.away or names or show_all
        ]  # fmt: skip

    def _dead_left(self, letters: ClusterDeadLetters, group: GroupProgress) -> int | None:
        """The dead letters that nobody has redriven. None: a broker does not tell them, or its records."""
        left = group.dead.exact
        if left is None:
            return None
        ranges = {
            queue: limits for queue, limits in group.dead_letters.items() if limits.max_offset > limits.min_offset
        }
        for broker_name in sorted({queue.broker_name for queue in ranges}):
            try:
                redriven = letters.redriven(group.group, broker_name)
            except MQBrokerError:
                return None  # no right to read the ledger's topic: all other columns are known
            except (RemotingError, SlaveBehindError) as error:
                self.failures.failed(broker_name, error)
                return None
            left -= sum(
                redriven[queue.queue_id].count_in(*limits)
                for queue, limits in ranges.items()
                if queue.broker_name == broker_name and queue.queue_id in redriven
            )
        return left

    @contextlib.contextmanager
    def poll(self) -> Iterator[None]:
        """See `View`."""
        self.failures = answers = Answers(self._cluster)
        yield
        answers.miss_those_that_left(self._polled)
        self._polled |= answers.answered
        self._target.require_answers(answers.missing)
        answers.require_any()
        for line in answers.changes(self._silent):
            self._tell(line)
        self._silent = set(answers.missing)

    def lags(self, names: Sequence[str], gauge: LagGauge, *, per_queue: bool) -> list[LagLine]:
        """See `View`."""
        from rmq_store.cli.target.cluster.progress import progress_of, require_groups, with_ages
        from rmq_store.cli.target.cluster.queues import shown

        known = require_groups(self._cluster, self.failures, names)
        self.failures.miss_those_that_left(self._polled)
        now_ms = self.now_ms()
        found: list[LagLine] = []
        for group in progress_of(self._cluster, self.failures, sorted(set(names)) or known, seen=self._seen):
            lines = {
                one.queue: LagLine(
                    group.group, one.queue.topic, shown(one.queue),
                    Total(one.committed), Total(one.end), Total(one.lag), Total(one.lag_ms),
                )
                for one in with_ages(self._cluster, self._target, group.queues, now_ms)
            }  # fmt: skip
            for queue in group.away:
                number = unknown_at(queue.broker_name)
                lines[queue] = LagLine(group.group, queue.topic, shown(queue), number, number, number, number)
            found += lines_of([line for _, line in sorted(lines.items())], per_queue=per_queue)
        return gauge.with_rates(found, now_ms)

    def activity(self, limit: int) -> Activity:
        """See `View`."""
        from rmq_store.cli.target.cluster.progress import known_groups, progress_of
        from rmq_store.cli.target.cluster.queues import by_topic, topic_ends
        from rmq_store.format.text.names import LMQ_PREFIX, is_system_topic

        cluster, answers = self._cluster, self.failures
        names = [name for name in cluster.topics() if not is_system_topic(name) and not name.startswith(LMQ_PREFIX)]
        ranges = by_topic(topic_ends(cluster, answers, names))
        answers.require_any()
        now_ms = self.now_ms()
        known = known_groups(cluster, answers)
        answers.miss_those_that_left(self._polled)
        found = progress_of(cluster, answers, known, with_dead=True, seen=self._seen)
        groups = [one for one in found if one.queues or one.away]
        groups.sort(key=lambda one: (-(one.lag.known or 0), one.group))
        topics = (
            self._topic_activity(name, ranges.get(name, {})) for name in sorted({*names, *self._seen_of_topics.names})
        )
        return Activity(
            now_ms,
            {"cluster": cluster.name, "brokers": len(cluster.broker_names()), **away_json(sorted(answers.missing))},
            tuple(one for one in topics if one.queue_count),
            {one.group: sum(queue.committed or 0 for queue in one.queues) for one in groups if not one.away},
            tuple(self._group_activity(one, now_ms) for one in groups[:limit]),
        )

    def _topic_activity(self, topic: str, ranges: Mapping[MessageQueue, QueueRange]) -> TopicActivity:
        from rmq_store.cli.target.cluster.queues import queues_away

        away = queues_away(self._cluster, self.failures, [topic], ranges)
        unknown = self._seen_of_topics.with_earlier(topic, ranges, away, self.failures)
        return topic_activity(topic, ranges.values(), unknown)

    def _group_activity(self, group: GroupProgress, now_ms: int) -> GroupActivity:
        from rmq_store.cli.target.cluster.progress import with_ages

        queues = with_ages(self._cluster, self._target, group.queues, now_ms)
        age_ms = max((queue.lag_ms for queue in queues if queue.lag_ms), default=None)
        return GroupActivity(group.group, group.lag, Total(age_ms, group.lag.away), group.retries, group.dead)

    # -- offsets ------------------------------------------------------------------------------------------------------

    def places(self, group: str, topics: Sequence[str]) -> list[PlaceRow | MessageQueue]:
        """See `View`."""
        from rmq_store.cli.target.cluster.offset_reset import places, queue_of, topics_of
        from rmq_store.cli.target.cluster.queues import queues_away

        wanted, committed = topics_of(self._cluster, self.failures, group, topics)
        known = {queue_of(one): one for one in places(self._cluster, self.failures, wanted, committed)}
        self.failures.require_any()
        away = queues_away(self._cluster, self.failures, wanted, known)
        return [known.get(queue, queue) for queue in sorted([*known, *away])]

    def committed(self, group: str) -> list[tuple[str, str | None, int, int]]:
        """See `View`."""
        from rmq_store.cli.target.cluster.progress import progress_of, require_groups

        require_groups(self._cluster, self.failures, [group])
        (progress,) = progress_of(self._cluster, self.failures, [group])
        return [
            (one.queue.topic, one.queue.broker_name, one.queue.queue_id, one.committed)
            for one in progress.queues
            if one.committed is not None
        ]

    def offset_reset(
        self, group: str, topics: Sequence[str], queue: QueueName | None, goal: str, value: Any
    ) -> ClusterOffsetReset:
        """See `View`."""
        from rmq_store.cli.target.cluster.offset_reset import ClusterOffsetReset

        return ClusterOffsetReset(self._cluster, group, topics, queue, goal, value)

    # -- dead letters -------------------------------------------------------------------------------------------------

    def dead_groups(self) -> list[str]:
        """See `View`."""
        return sorted(name.removeprefix(DLQ_PREFIX) for name in self._cluster.topics() if name.startswith(DLQ_PREFIX))

    def dead_letters(self, group: str, wanted: Wanted) -> ClusterLetterRows:
        """As `View`; a known group need not have any."""
        from rmq_store.cli.target.cluster.letter_rows import ClusterLetterRows

        return ClusterLetterRows(self._cluster, self._target, self.failures, group, wanted)

    dead_letters_if_any = dead_letters

    # -- messages -----------------------------------------------------------------------------------------------------

    def messages(
        self, topic: str, queue: QueueName | None, start: Start, limit: int, columns: Sequence[str]
    ) -> Iterator[dict[str, Any]]:
        """See `View`."""
        from rmq_store.cli.target.cluster.queues import named_queues, require_topic, rows_between, shown, topic_ends
        from rmq_store.remoting.cluster.offsets import search_offsets

        queues = named_queues(require_topic(self._cluster, topic), queue)
        ranges = topic_ends(self._cluster, self.failures, [topic])
        wanted = [one for one in queues if one in ranges]
        at_time = search_offsets(self._cluster, wanted, start.value) if start.kind == TIME else {}
        for one in wanted:
            if limit <= 0:
                break
            present = ranges[one]
            if queue is not None:  # of several queues: what each of them has from there on
                start.require_in(present, shown(one), topic)
            first = start.first_offset(present, lambda _: at_time[one])  # noqa: B023
            last = min(first + limit, present.max_offset)
            for row in rows_between(self._cluster, self._target, one, first, last, columns) if first < last else ():
                yield row
                limit -= 1
        self.failures.require_any()

    def follow(
        self, topic: str, queue: QueueName | None, *, tags: str | None, sql: str | None, columns: Sequence[str]
    ) -> ClusterFollower:
        """See `View`."""
        from rmq_store.cli.target.cluster.follow import ClusterFollower
        from rmq_store.cli.target.cluster.queues import named_queues, require_topic

        queues = named_queues(require_topic(self._cluster, topic), queue)
        return ClusterFollower(
            self._cluster, self._target, queues, tags=tags, sql=sql, columns=columns, tell=self._tell,
            takes_new_queues=queue is None, is_one_queue=queue is not None,
        )  # fmt: skip

    def waiting(
        self, topic: str, group: str, tags: str | None, start: Start, columns: Sequence[str]
    ) -> Iterator[dict[str, Any]]:
        """See `View`."""
        from rmq_store.cli.target.cluster.follow import ClusterFollower
        from rmq_store.cli.target.cluster.queues import require_topic
        from rmq_store.remoting.cluster.offsets import query_consumer_offsets

        require_topic(self._cluster, topic)
        validate_group(group)
        for name in (retry_topic(group), topic):
            route = self._cluster.route(name)
            if route is None:
                continue
            queues, wanted = route.read_queues(), tags if name == topic else None
            follower = ClusterFollower(
                self._cluster, self._target, queues, tags=wanted, columns=columns, tell=self._tell
            )
            follower.begin(start)
            # A broker of 4.x says 0 for a group without an offset, which is where its consumers begin, too.
            found = query_consumer_offsets(self._cluster, group, queues)
            follower.start_from({queue: one.offset for queue, one in found.items()})
            yield from follower.take()
            follower.failures.require_any()


def _group_queue(one: QueueProgress) -> GroupQueueRow:
    numbers = Total(one.committed), Total(one.end), Total(one.lag)
    return GroupQueueRow(one.queue.topic, one.queue.broker_name, one.queue.queue_id, *numbers)


def _unknown_queue(queue: MessageQueue) -> GroupQueueRow:
    numbers = [unknown_at(queue.broker_name)] * 3
    return GroupQueueRow(queue.topic, queue.broker_name, queue.queue_id, *numbers)


def _place(row: GroupQueueRow) -> tuple[str, str, int]:
    return row.topic, str(row.broker_name), row.queue_id


def _topic(route: TopicRoute, ends: Mapping[MessageQueue, QueueRange], kind: Kind | None) -> TopicRow:
    from rmq_store.kinds.table import STATIC_TOPICS

    kind = STATIC_TOPICS if route.is_static else kind
    queues = [
        queue_row(one.broker_name, one.queue_id, ends[one])
        if one in ends
        else QueueRow(one.broker_name, one.queue_id, *[unknown_at(one.broker_name)] * 3)
        for one in route.read_queues()
    ]
    perm = 7
    for config in route.queues.values():
        perm &= config.perm
    return TopicRow(
        route.topic,
        sum(config.read_queue_nums for config in route.queues.values()),
        sum(config.write_queue_nums for config in route.queues.values()),
        perm_text(perm),
        together(one.messages for one in queues) if kind is None else None,
        tuple(queues) if kind is None else (),
        kind=None if kind is None else kind.name,
    )
