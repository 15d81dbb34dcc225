"""One trigger of a stream as a value: from a position, the queues that exist and the limits to the next position.
Control plane, pure: no I/O, no clock.

    plan = StreamPlan.of(position, ranges, back, target, ...)            what was found out about the position
    plan = plan.starting(offsets)                                       where new queues start
    end = plan.end(limits, ...)                                         where the batch ends in each queue
    plan.position(store, end, after, closed)                            the position that Spark writes down

The reader (`pyspark_rmq.read.stream_reader`) asks the store for everything that the plan cannot know: rolled-back
queues (`back`), queues whose brokers are away (`held`), the start of new queues, bytes of a range, and the fingerprints
of the end position.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from pyspark_rmq.position import planning
from pyspark_rmq.position.fingerprint import Fingerprint
from pyspark_rmq.position.planning import Limits, QueueSlice, Range
from pyspark_rmq.position.position import Queue, QueueOffsets, StreamPosition


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """The ranges that one trigger can read.

    `begin` is Spark's position. In it, queues that were opened again, and rolled-back queues (`back`), are already at
    the offset at which they continue. `began` has the start of each queue that this batch does not continue from the
    batch before. `available` is the end of each queue that may be read. `is_first`: no batch of the query was planned
    yet.

    `held` are queues of brokers that are away, and have no range. Nothing of them is read; their offsets in `begin` are
    those in `available`, too, and stay in the position with their fingerprints.
    """

    begin: StreamPosition
    ranges: Mapping[Queue, Range]
    back: QueueOffsets
    began: QueueOffsets
    available: QueueOffsets
    bounded: bool
    is_first: bool
    held: Collection[Queue] = ()

    @classmethod
    def of(
        cls,
        position: StreamPosition,
        ranges: Mapping[Queue, Range],
        back: QueueOffsets,
        target: QueueOffsets | None,
        *,
        is_first: bool,
        held: Collection[Queue] = (),
    ) -> StreamPlan:
        """The plan that continues at `position`, over the subscribed queues `ranges`. `target`: the ends at which an
        AvailableNow query stops; None for other triggers.
        """
        opened = with_opened_again(position, ranges)
        began = {queue: offset for queue, offset in position.closed.items() if queue in ranges}
        begin = moved(opened, back)
        available = _available(begin.next, ranges, target) | {queue: begin.next[queue] for queue in held}
        return cls(begin, ranges, back, began | dict(back), available, target is not None, is_first, held)

    @property
    def new_queues(self) -> dict[Queue, Range]:
        """The queues that appeared since the position was taken."""
        return {queue: self.ranges[queue] for queue in self.available if queue not in self.begin.next}

    def starting(self, offsets: QueueOffsets) -> StreamPlan:
        """The plan in which each of `new_queues` starts at its offset, and ends there if that is behind an unsure end.
        """
        available = {queue: max(self.available[queue], offset) for queue, offset in offsets.items()}
        return replace(self, began={**self.began, **offsets}, available={**self.available, **available})

    @property
    def start(self) -> dict[Queue, int]:
        """The start of the batch in each queue."""
        return {**self.begin.next, **self.began}

    def end(
        self,
        limits: Limits,
        *,
        everything: bool,
        waited_ms: float | None,
        bytes_between: Callable[[Queue, int, int], int],
        offset_after_bytes: Callable[[Queue, int, int, int], int],
    ) -> dict[Queue, int]:
        """The end of the batch in each queue; with `everything` (Trigger.Once) the end of the queue.

        `waited_ms` is the time since the last batch that read messages. The two functions are called only if there is a
        limit of bytes: see `planning.admit_bytes`.
        """
        if everything:
            return dict(self.available)
        start = self.start
        # Messages that are gone do not count.
        first = {queue: limits.min_offset for queue, limits in self.ranges.items()}
        low = {queue: max(start[queue], first.get(queue, 0)) for queue in self.available}
        # With AvailableNow Spark would wait for ever if the minimum is never reached.
        if not self.bounded and planning.must_wait(low, self.available, limits, waited_ms):
            # Or back to the end of a queue that lost its tail.
            return {queue: min(start[queue], offset) for queue, offset in self.available.items()}
        end = dict(self.available)
        if limits.max_rows is not None:
            end = planning.admit_rows(low, end, limits.max_rows)
        if limits.max_bytes is not None:
            end = planning.admit_bytes(low, end, limits.max_bytes, bytes_between, offset_after_bytes)
        return end

    def is_new(self, end: QueueOffsets) -> bool:
        """True if Spark needs a new position; False if it may keep its present one."""
        return self.is_first or bool(self.back) or end != self.begin.next

    def has_messages(self, end: QueueOffsets) -> bool:
        """True if the batch reads messages."""
        return planning.backlog(self.start, end) > 0

    def position(
        self, store: str, end: QueueOffsets, after: Mapping[Queue, Fingerprint], closed: QueueOffsets
    ) -> StreamPosition:
        """The position at the end of the batch, in the store with the identity `store`. `after` has the fingerprints of
        `end` and `closed`. The position of a first batch also has the starts of its queues: a repeated batch needs
        them. With `held` queues the identity is the one of before: it names the clusters of their brokers, too.
        """
        store = self.begin.store if self.held and self.begin.store else store
        began = {**self.begin.began, **self.began} if self.is_first else self.began
        return StreamPosition(store or self.begin.store, end, after, began, closed, self.begin.since, self.begin.query)


def with_opened_again(position: StreamPosition, ranges: Mapping[Queue, Range]) -> StreamPosition:
    """The position, in which closed queues that can be read again are open."""
    opened = {queue: offset for queue, offset in position.closed.items() if queue in ranges}
    return replace(position, next={**position.next, **opened})


def moved(position: StreamPosition, to: QueueOffsets) -> StreamPosition:
    """The position with some queues at other offsets; their fingerprints are left out."""
    after = {queue: fingerprint for queue, fingerprint in position.after.items() if queue not in to}
    return replace(position, next={**position.next, **to}, after=after)


def batch_slices(begin: StreamPosition, finish: StreamPosition, back: QueueOffsets) -> list[QueueSlice]:
    """The ranges of the batch that Spark planned from `begin` to `finish`. A queue that was rolled back since then ends
    at its offset in `back`: the next batch reads the messages that replaced the old ones.
    """
    return [
        QueueSlice(*queue, finish.began.get(queue, begin.next.get(queue, offset)), back.get(queue, offset))
        for queue, offset in finish.next.items()
    ]


def _available(start: QueueOffsets, ranges: Mapping[Queue, Range], target: QueueOffsets | None) -> dict[Queue, int]:
    latest = {queue: limits.max_offset for queue, limits in ranges.items()}
    if target is None:
        return latest
    return {
        # Never back behind the start: a group may begin at an end that is later than the target.
        queue: min(offset, max(target.get(queue, 0), start.get(queue, 0)))
        for queue, offset in latest.items()
        if queue in target or queue in start
    }
