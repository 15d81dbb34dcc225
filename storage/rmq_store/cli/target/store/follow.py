"""The messages of a topic in the order in which they were stored, and then new ones.

Queues are merged by their commit-log offsets. A poll of an unchanged store costs a load of its end; memory is bounded
by a few hundred messages per queue, however many exist. A store may be closed, opened again and cleaned meanwhile:
messages that retention deleted are skipped, and reported.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from rmq_store.cli.shared.message_text import rows_of
from rmq_store.cli.target.failure_report import FailureReport
from rmq_store.errors import OffsetOutOfRangeError, UsageError

if TYPE_CHECKING:
    from rmq_store import Store
    from rmq_store.broker.filter.sql92 import Selector
    from rmq_store.cli.shared.targets import Start
    from rmq_store.protocol.results import QueueRange

_STEP_ROWS = 512
_STEP_BYTES = 1 << 20


class Follower:
    """Reads one topic of an open store, all queues or one (`Following`). `tell` gets a line for every range that is
    gone.

    Raises (when constructed):
        UsageError: no such topic or queue, an invalid expression.
    """

    def __init__(
        self,
        store: Store,
        topic: str,
        *,
        queue_id: int | None = None,
        tags: str | None = None,
        sql: str | None = None,
        columns: Sequence[str],
        tell: Callable[[str], None],
    ) -> None:
        from rmq_store.broker.filter.sql92 import compile_selector
        from rmq_store.broker.filter.tags import TagFilter

        TagFilter.parse(tags)  # a mistake is told at once, not at the first message
        self._store = store
        self._topic = topic
        self._queue_id = queue_id
        self._tags = tags
        self._selector: Selector | None = compile_selector(sql) if sql else None
        self._columns = tuple(dict.fromkeys([*columns, "queueOffset", "commitLogOffset"]))
        self._tell = tell
        self._next: dict[int, int] = {}
        self._seen_end = -1
        self.failures = FailureReport[str]()
        count = store.topic(topic).read_queue_nums
        if queue_id is not None and not 0 <= queue_id < count:
            raise UsageError(f"topic {topic} has no queue {queue_id}; it has {count} queues")

    # -- where to begin: at the first message, unless one of these is called ----------------------------------------

    def begin(self, start: Start) -> None:
        """Begin where --from says. OffsetOutOfRangeError: an offset that the one wanted queue does not have."""
        for queue_id, present in self._ranges().items():
            if self._queue_id is not None:
                start.require_in(present, queue_id, self._topic)
            at_time = partial(self._store.offset_by_time, self._topic, queue_id)
            self._next[queue_id] = start.first_offset(present, at_time)

    def start_from(self, offsets: dict[int, int]) -> None:
        """Begin at these queue offsets; other queues begin at their first message."""
        self._next.update(offsets)

    def start_last(self, count: int) -> None:
        """Begin so that `take` yields the last `count` wanted messages; with 0, only new ones."""
        found: list[tuple[int, int, int]] = []
        for queue_id, queue in self._ranges().items():
            self._next[queue_id] = stop = queue.max_offset
            wanted = count
            while wanted and stop > queue.min_offset:
                start = max(queue.min_offset, stop - max(wanted, _STEP_ROWS))
                try:
                    rows = list(self._rows(queue_id, start, stop, ()))
                except OffsetOutOfRangeError:  # retention took the rest while we looked
                    break
                kept = rows[-wanted:]
                found += ((row["commitLogOffset"], queue_id, row["queueOffset"]) for row in kept)
                wanted -= len(kept)
                stop = start
        for _, queue_id, queue_offset in heapq.nlargest(count, found):
            self._next[queue_id] = min(self._next[queue_id], queue_offset)

    # -- messages ---------------------------------------------------------------------------------------------------

    def take(self) -> Iterator[dict[str, Any]]:
        """Yield the messages that exist and were not yielded yet, in the order of the log."""
        self._store.refresh()
        end = self._store.log_range()[1]
        if end == self._seen_end:
            return
        self._seen_end = end
        parts = [self._queue(queue_id, queue) for queue_id, queue in sorted(self._ranges().items())]
        yield from heapq.merge(*parts, key=lambda row: int(row["commitLogOffset"]))

    def _ranges(self) -> dict[int, QueueRange]:
        if self._queue_id is None:
            return self._store.queue_ranges(self._topic)
        return {self._queue_id: self._store.queue_range(self._topic, self._queue_id)}

    def _queue(self, queue_id: int, queue: QueueRange) -> Iterator[dict[str, Any]]:
        first, end = queue
        start = self._next.setdefault(queue_id, first)
        if start > end:
            self._tell(f"{self._topic} queue {queue_id} ends at {end}, before {start}: it was deleted or set back")
            start = first
        while start < end:
            try:
                start = self._skip_gone(queue_id, start, first)
                stop = min(start + _STEP_ROWS, end)
                stop = self._store.offset_after_bytes(self._topic, queue_id, start, stop, _STEP_BYTES)
                rows = list(self._rows(queue_id, start, stop, self._columns))
            except OffsetOutOfRangeError as error:
                if error.minimum <= start:
                    raise
                first = error.minimum
                continue
            yield from rows
            self._next[queue_id] = start = stop
        self._next[queue_id] = start

    def _skip_gone(self, queue_id: int, start: int, first: int) -> int:
        if start >= first:
            return start
        self._tell(f"messages {start} to {first - 1} of {self._topic} queue {queue_id} are gone: retention took them")
        return first

    def _rows(self, queue_id: int, start: int, stop: int, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Wanted messages of [start, stop), which are few enough to be in memory together."""
        names = columns or ("queueOffset", "commitLogOffset")
        if self._selector is not None and "properties" not in names:
            names = (*names, "properties")
        for batch in self._store.read(self._topic, queue_id, start, stop, columns=names, tags=self._tags):
            for row in rows_of(batch):
                if self._selector is None or self._selector.matches(row["properties"]):
                    yield row
