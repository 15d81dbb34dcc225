"""The messages of a topic of a cluster in the order in which they were stored, and then new ones.

Brokers have no common log, so queues are merged by the store times of their messages; clocks of brokers differ. A poll
costs one request for each broker. Memory is bounded by some hundred messages for each queue that has news.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from rmq_store.broker.filter.sql92 import Selector, compile_selector
from rmq_store.broker.filter.tags import TagFilter
from rmq_store.cli.shared.targets import LATEST, OFFSET, TIME, Start
from rmq_store.cli.target.answers import Answers
from rmq_store.cli.target.cluster.queues import rows_between, shown, topic_ends
from rmq_store.cli.target.cluster_target import ClusterTarget
from rmq_store.errors import OffsetOutOfRangeError
from rmq_store.protocol.messages import MessageQueue
from rmq_store.protocol.results import QueueRange
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.cluster.offsets import search_offsets

_STEP_ROWS: Final = 512
# With many queues each gets fewer rows, so that all together are bounded.
_ROWS_TOGETHER: Final = 1 << 15


class ClusterFollower:
    """Reads queues of one topic (`Following`); with `takes_new_queues` also those that turn up later. `tell` gets a
    line for every range that is gone, and for brokers that do not answer.

    Raises (when constructed):
        UsageError: an invalid expression.
    """

    def __init__(
        self,
        cluster: Cluster,
        target: ClusterTarget,
        queues: Sequence[MessageQueue],
        *,
        tags: str | None = None,
        sql: str | None = None,
        columns: Sequence[str],
        tell: Callable[[str], None],
        takes_new_queues: bool = False,
        is_one_queue: bool = False,
    ) -> None:
        TagFilter.parse(tags)  # a mistake is told at once, not at the first message
        self._cluster = cluster
        self._target = target
        self._queues = queues
        self._takes_new_queues = takes_new_queues
        self._is_one_queue = is_one_queue
        self._tags = tags
        self._selector: Selector | None = compile_selector(sql) if sql else None
        self._columns = tuple(dict.fromkeys([*columns, "queueId", "queueOffset", "storeTimestamp", "brokerName"]))
        self._tell = tell
        self._next: dict[MessageQueue, int] = {}
        self._beginnings: Callable[[Mapping[MessageQueue, QueueRange]], Mapping[MessageQueue, int]] = _first_offsets
        self._step_rows = max(min(_STEP_ROWS, _ROWS_TOGETHER // max(len(queues), 1)), 1)
        self.failures = Answers(cluster)
        self._silent: set[str] = set()

    # -- where to begin: at the first message, unless one of these is called. A queue whose broker does not answer yet
    # -- begins by the same choice when it does.

    def begin(self, start: Start) -> None:
        """Begin where --from says. OffsetOutOfRangeError: an offset that the one wanted queue does not have."""
        if start.kind == LATEST:
            self.start_last(0)
        elif start.kind == TIME:
            self.start_at(start.value)
        else:
            self._beginnings = lambda unseen: {
                queue: start.first_offset(present, _no_time) for queue, present in unseen.items()
            }
        if self._is_one_queue and start.kind == OFFSET:
            for queue, present in self.ranges().items():
                start.require_in(present, shown(queue), queue.topic)

    def start_at(self, timestamp_ms: int) -> None:
        """Begin with the first message of each queue that was stored at that time (ms) or later."""
        self._beginnings = lambda unseen: search_offsets(self._cluster, unseen, timestamp_ms)

    def start_from(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Begin at these queue offsets; other queues begin at their first message."""
        self._next.update(offsets)

    def start_last(self, count: int) -> None:
        """Begin so that `take` yields the last `count` wanted messages of the brokers that answer now; with 0, only
        new ones. Of a queue that is seen later only messages are yielded that its broker has stored since this call, by
        the clock of this host.
        """
        now_ms = time.time_ns() // 1_000_000
        self._beginnings = lambda unseen: search_offsets(self._cluster, unseen, now_ms)
        found: list[tuple[int, MessageQueue, int]] = []
        for queue, present in self.ranges().items():
            self._next[queue] = stop = present.max_offset
            wanted = count
            while wanted and stop > present.min_offset:
                start = max(present.min_offset, stop - max(wanted, self._looks_at))
                try:
                    places = [
                        (row["storeTimestamp"], queue, row["queueOffset"]) for row in self._rows(queue, start, stop, ())
                    ]
                except OffsetOutOfRangeError:  # retention took the rest while we looked
                    break
                found += places[-wanted:]
                wanted -= len(places[-wanted:])
                stop = start
            found = heapq.nlargest(count, found)
        for _, queue, queue_offset in found:
            self._next[queue] = min(self._next[queue], queue_offset)

    @property
    def _looks_at(self) -> int:
        """How many messages are looked at together for the last ones: more if most of them may not be wanted."""
        return _STEP_ROWS if self._tags or self._selector is not None else 1

    # -- messages ---------------------------------------------------------------------------------------------------

    def take(self) -> Iterator[dict[str, Any]]:
        """Yield the messages that exist and were not yielded yet, by their store times."""
        ranges = self.ranges()
        unseen = {queue: present for queue, present in ranges.items() if queue not in self._next}
        if unseen:
            self._next.update(self._beginnings(unseen))
        parts = [
            self._queue(queue, present)
            for queue, present in sorted(ranges.items())
            if self._next[queue] != present.max_offset
        ]
        yield from heapq.merge(*parts, key=lambda row: int(row["storeTimestamp"]))

    def ranges(self) -> dict[MessageQueue, QueueRange]:
        """The ranges of the queues, without those of brokers that do not answer now."""
        answers = Answers(self._cluster)
        if self._takes_new_queues and self._queues:
            route = self._cluster.route(self._queues[0].topic)
            self._queues = sorted({*self._queues, *(() if route is None else route.read_queues())})
        topic = self._queues[0].topic if self._queues else ""
        found = topic_ends(self._cluster, answers, [topic] if topic else [])
        answers.miss_those_that_left({queue.broker_name for queue in self._queues})
        self._target.require_answers(answers.missing)
        for line in answers.changes(self._silent):
            self._tell(line)
        self._silent = set(answers.missing)
        self.failures = answers
        wanted = set(self._queues)
        return {queue: present for queue, present in found.items() if queue in wanted}

    def _queue(self, queue: MessageQueue, present: QueueRange) -> Iterator[dict[str, Any]]:
        first, end = present
        start = self._next[queue]
        if start > end:
            # A slave that stands in for its master may not have these messages yet.
            if self._cluster.known_route(queue.topic).brokers[queue.broker_name].master is not None:
                self._tell(f"{queue.topic} queue {shown(queue)} ends at {end}, before {start}")
            return
        while start < end:
            if start < first:
                self._tell(
                    f"messages {start} to {first - 1} of {queue.topic} queue {shown(queue)} are gone: retention took "
                    "them"
                )
                start = first
            stop = min(start + self._step_rows, end)
            try:
                rows = list(self._rows(queue, start, stop, self._columns))
            except OffsetOutOfRangeError as error:
                if error.minimum <= start:
                    raise
                first = error.minimum
                continue
            yield from rows
            self._next[queue] = start = stop
        self._next[queue] = start

    def _rows(self, queue: MessageQueue, start: int, stop: int, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Wanted messages of [start, stop), which are few enough to be in memory together."""
        names = columns or ("queueOffset", "storeTimestamp")
        if self._selector is not None and "properties" not in names:
            names = (*names, "properties")
        for row in rows_between(self._cluster, self._target, queue, start, stop, names, tags=self._tags, lanes=1):
            if self._selector is None or self._selector.matches(row["properties"]):
                yield row


def _no_time(time_ms: int) -> int:
    raise AssertionError(f"{time_ms} is looked up for all queues at once")


def _first_offsets(ranges: Mapping[MessageQueue, QueueRange]) -> Mapping[MessageQueue, int]:
    return {queue: one.min_offset for queue, one in ranges.items()}
