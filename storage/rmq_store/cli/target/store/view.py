"""A store answers the questions of the commands."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from rmq_store.cli.mqadmin_print.lines import perm_text
from rmq_store.cli.shared.message_text import LINE_COLUMNS, rows_of
from rmq_store.cli.shared.name_lookup import known_groups, require_group, require_queue, require_topic
from rmq_store.cli.target.failure_report import FailureReport
from rmq_store.cli.target.lag_lines import LagLine, eta_ms, lines_of
from rmq_store.cli.target.rows import (
    Activity,
    FilterRow,
    GroupActivity,
    GroupQueueRow,
    GroupRow,
    PlaceRow,
    TopicRow,
    Total,
    queue_row,
    together,
    topic_activity,
)
from rmq_store.errors import CorruptionError
from rmq_store.format.text.names import DLQ_PREFIX, RETRY_PREFIX, dlq_topic, retry_topic, validate_group

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rmq_store import Store, TopicConfig
    from rmq_store.broker.monitoring.dead_letter_rows import Wanted
    from rmq_store.broker.monitoring.lag import GroupLag
    from rmq_store.cli.shared.targets import Start
    from rmq_store.cli.target.lag_lines import LagGauge
    from rmq_store.cli.target.store.follow import Follower
    from rmq_store.cli.target.store.letters import StoreLetters
    from rmq_store.cli.target.store.offset_reset import StoreOffsetReset
    from rmq_store.cli.target.view import QueueName, Tell
    from rmq_store.protocol.messages import MessageQueue


class StoreView:
    """See `View`; so are its methods."""

    names_brokers: Final = False
    line_columns: Final = LINE_COLUMNS
    poll_s: Final = 0.1

    def __init__(self, store: Store, tell: Tell) -> None:
        self.failures = FailureReport[str]()
        self._store = store
        self._tell = tell

    def now_ms(self) -> int:
        """By the clock of the store."""
        return self._store.clock()

    # -- topics -------------------------------------------------------------------------------------------------------

    def topics(self, *, show_all: bool) -> list[TopicRow]:
        """See `View`."""
        from rmq_store.format.text.names import LMQ_PREFIX, is_system_topic

        unlisted = self._unlisted_topics()
        return [
            self._topic(name, config, in_table=name not in unlisted)
            for name, config in sorted({**self._store.topics(), **unlisted}.items())
            if show_all or (config.readable and not is_system_topic(name) and not name.startswith(LMQ_PREFIX))
        ]

    def _topic(self, name: str, config: TopicConfig, *, in_table: bool) -> TopicRow:
        ranges = self._store.queue_ranges(name) if config.is_read_here else {}
        queues = [queue_row(None, queue_id, one) for queue_id, one in sorted(ranges.items())]
        return TopicRow(
            name,
            config.read_queue_nums,
            config.write_queue_nums,
            perm_text(config.perm),
            together(one.messages for one in queues) if config.is_read_here else None,
            tuple(queues),
            in_table,
            None if config.kind is None else config.kind.name,
        )

    def _unlisted_topics(self) -> Mapping[str, TopicConfig]:
        """Topics that the table does not name. If they cannot be found out, those of the table are shown nevertheless.
        """
        try:
            return self._store.unlisted_topics()
        except CorruptionError as error:
            self._tell(f"topics that are not in the table cannot be told: {error}")
            return {}

    # -- groups -------------------------------------------------------------------------------------------------------

    def tell_conflicts(self) -> None:
        """See `View`."""
        for text in self._store.offset_conflicts():
            self._tell(text)

    def groups(self, names: Sequence[str], *, show_all: bool) -> list[GroupRow]:
        """See `View`."""
        from rmq_store.broker.metadata.groups import FilterTable
        from rmq_store.broker.monitoring.lag import group_lag

        store = self._store
        committed = store.all_committed_offsets()
        self.tell_conflicts()
        known = set(committed) | set(store.groups())
        for name in names:
            _ = name in committed or name in store.groups()  # an error of their own for those that cannot be used
            require_group(store, name)
        waiting = store.backlog_by_topic()
        failed = {name for name in known if retry_topic(name) in waiting}
        filters = FilterTable(store.path).all()
        return [
            GroupRow(
                name,
                Total(lag.diff_total),
                Total(lag.retry_diff),
                waiting.get(retry_topic(name), 0),
                Total(lag.dead),
                self._dead_left(lag),
                tuple(
                    GroupQueueRow(
                        one.topic, None, one.queue_id,
                        Total(one.consumer_offset), Total(one.broker_offset), Total(one.diff),
                    )
                    for one in lag.queues
                ),
                tuple(FilterRow(it.topic, it.expression_type, it.expression) for it in filters if it.group == name),
            )
            for name in sorted(names or (known if show_all else {*committed, *failed}))
            for lag in [group_lag(store, name)]
        ]

    def _dead_left(self, lag: GroupLag) -> int | None:
        """The dead letters of the group that nobody has redriven. None: a record of what was redriven is damaged. All
        other columns are known.
        """
        if not lag.dead:
            return 0
        ranges = self._store.queue_ranges(dlq_topic(lag.group))
        try:
            redriven = self._store.redriven(lag.group)
        except CorruptionError as error:
            self._tell(f"LEFT of group {lag.group} is not known: {error}")
            self.failures.mark_incomplete()
            return None
        return lag.dead - sum(
            redriven[queue_id].count_in(*ranges[queue_id]) for queue_id in redriven.keys() & ranges.keys()
        )

    @contextlib.contextmanager
    def poll(self) -> Iterator[None]:
        """See `View`."""
        self._store.refresh()
        yield

    def lags(self, names: Sequence[str], gauge: LagGauge, *, per_queue: bool) -> list[LagLine]:
        """See `View`."""
        from rmq_store.broker.monitoring.lag import all_lags, group_lag

        store = self._store
        for name in names:
            require_group(store, name)
        now_ms = store.clock()
        waiting = store.backlog_by_topic()
        groups = [group_lag(store, name, now_ms) for name in sorted(set(names))] if names else all_lags(store, now_ms)
        # Of groups that have not committed anything yet, too.
        failed = [retry for retry in sorted(waiting) if retry.startswith(RETRY_PREFIX)]
        if names:
            failed = [retry for retry in failed if retry.removeprefix(RETRY_PREFIX) in names]
        found = [line for group in groups for line in lines_of(_lag_lines(group), per_queue=per_queue)]
        shown = {line.topic for line in found}
        found = gauge.with_rates(found, now_ms)
        found += [self._uncommitted(retry) for retry in failed if retry not in shown]
        found.sort(key=lambda line: (line.group, line.topic))
        return [
            line._replace(waiting=waiting.get(line.topic, 0) if line[:2] != before[:2] else None)
            for before, line in zip([("", ""), *found], found, strict=False)
        ]

    def _uncommitted(self, topic: str) -> LagLine:
        """The retry topic of a group that has not committed an offset on it."""
        ranges = self._store.queue_ranges(topic) if self._store.find_topic(topic) else {}
        lag, group = sum(one.max_offset for one in ranges.values()), topic.removeprefix(RETRY_PREFIX)
        none, all_of_it = Total(None), Total(lag)
        return LagLine(
            group, topic, f"all {len(ranges)}", none, all_of_it, all_of_it, none, eta_ms=eta_ms(lag, None)
        )

    def activity(self, limit: int) -> Activity:
        """See `View`."""
        from rmq_store.broker.monitoring.lag import all_lags
        from rmq_store.broker.monitoring.metrics import not_flushed_bytes
        from rmq_store.broker.write.disk_space import usage_percent
        from rmq_store.format.text.names import is_system_topic

        store = self._store
        now_ms = store.clock()
        start, end = store.log_range()
        ranges = {
            name: store.queue_ranges(name).values()
            for name, config in store.topics().items()
            if config.readable and not is_system_topic(name) and config.is_read_here
        }
        lags = sorted(all_lags(store, now_ms), key=lambda lag: (-lag.diff_total, lag.group))
        return Activity(
            now_ms,
            {
                "store": str(store.path),
                "logStart": start,
                "logEnd": end,
                "bytesPerSecond": None,
                "diskUsedPercent": usage_percent(store.path),
                "notFlushedBytes": not_flushed_bytes(store.path),
            },
            tuple(topic_activity(name, of_topic) for name, of_topic in ranges.items()),
            {lag.group: sum(queue.consumer_offset or 0 for queue in lag.queues) for lag in lags},
            tuple(
                GroupActivity(
                    lag.group,
                    Total(lag.diff_total),
                    Total(max((q.lag_ms for q in lag.queues if q.diff and q.lag_ms is not None), default=None)),
                    Total(lag.retry_diff),
                    Total(lag.dead),
                )
                for lag in lags[:limit]
            ),
        )

    # -- offsets ------------------------------------------------------------------------------------------------------

    def places(self, group: str, topics: Sequence[str]) -> list[PlaceRow | MessageQueue]:
        """See `View`."""
        from rmq_store.cli.target.store.offset_reset import places

        return [*places(self._store, group, topics)]

    def committed(self, group: str) -> list[tuple[str, str | None, int, int]]:
        """See `View`."""
        committed = self._store.committed_offsets(require_group(self._store, group))
        return [(topic, None, queue_id, offset) for (topic, queue_id), offset in sorted(committed.items())]

    def offset_reset(
        self, group: str, topics: Sequence[str], queue: QueueName | None, goal: str, value: Any
    ) -> StoreOffsetReset:
        """See `View`."""
        from rmq_store.cli.target.store.offset_reset import StoreOffsetReset

        return StoreOffsetReset(self._store, group, topics, None if queue is None else int(queue), goal, value)

    # -- dead letters -------------------------------------------------------------------------------------------------

    def dead_groups(self) -> list[str]:
        """See `View`."""
        return sorted(name.removeprefix(DLQ_PREFIX) for name in self._store.topics() if name.startswith(DLQ_PREFIX))

    def dead_letters(self, group: str, wanted: Wanted) -> StoreLetters:
        """See `View`."""
        from rmq_store.cli.target.store.letters import StoreLetters

        return StoreLetters(self._store, group, wanted)

    def dead_letters_if_any(self, group: str, wanted: Wanted) -> StoreLetters | None:
        """See `View`."""
        if self._store.find_topic(DLQ_PREFIX + group) is None and group in known_groups(self._store):
            return None
        return self.dead_letters(group, wanted)

    # -- messages -----------------------------------------------------------------------------------------------------

    def messages(
        self, topic: str, queue: QueueName | None, start: Start, limit: int, columns: Sequence[str]
    ) -> Iterator[dict[str, Any]]:
        """See `View`."""
        ranges = self._store.queue_ranges(require_topic(self._store, topic))
        for queue_id in sorted(ranges) if queue is None else [require_queue(self._store, topic, int(queue))]:
            present = ranges[queue_id]
            if queue is not None:  # of several queues: what each of them has from there on
                start.require_in(present, queue_id, topic)
            first = start.first_offset(present, partial(self._store.offset_by_time, topic, queue_id))
            last = min(first + limit, present.max_offset)
            for batch in self._store.read(topic, queue_id, first, last, columns=columns) if first < last else ():
                yield from rows_of(batch)
                limit -= batch.num_rows

    def follow(
        self, topic: str, queue: QueueName | None, *, tags: str | None, sql: str | None, columns: Sequence[str]
    ) -> Follower:
        """See `View`."""
        from rmq_store.cli.target.store.follow import Follower

        queue_id = None if queue is None else int(queue)
        return Follower(
            self._store, require_topic(self._store, topic), queue_id=queue_id, tags=tags, sql=sql, columns=columns,
            tell=self._tell,
        )  # fmt: skip

    def waiting(
        self, topic: str, group: str, tags: str | None, start: Start, columns: Sequence[str]
    ) -> Iterator[dict[str, Any]]:
        """See `View`."""
        from rmq_store.cli.target.store.follow import Follower

        validate_group(group)
        require_topic(self._store, topic)
        for name in (retry_topic(group), topic):
            if self._store.find_topic(name) is None:
                continue
            follower = Follower(
                self._store, name, tags=tags if name == topic else None, columns=columns, tell=self._tell
            )
            follower.begin(start)
            offsets = self._store.committed_offsets(group)
            follower.start_from({queue_id: offset for (one, queue_id), offset in offsets.items() if one == name})
            yield from follower.take()


def _lag_lines(group: GroupLag) -> list[LagLine]:
    return [
        LagLine(group.group, queue.topic, queue.queue_id, Total(queue.consumer_offset), Total(queue.broker_offset),
                Total(queue.diff), Total(queue.lag_ms if queue.diff else None))
        for queue in group.queues
    ]  # fmt: skip
