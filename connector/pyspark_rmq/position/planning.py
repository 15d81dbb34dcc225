"""The ranges of a batch, and how they are cut into tasks: pure functions on queue offsets, no I/O, no clock. Control
plane.

Ranges are half open, `[start, end)` in queue offsets. The limits are combined here, because Spark passes only one limit
at a time, and has no minimum with a delay.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from pyspark_rmq.position.position import Queue, QueueOffsets
from pyspark_rmq.position.queue_ids import QueueId


class Range(Protocol):
    """The messages of a queue that exist: `[min_offset, max_offset)`."""

    @property
    def min_offset(self) -> int:
        """The first queue offset that can be read."""

    @property
    def max_offset(self) -> int:
        """The queue offset that the next message will get."""


@dataclass(frozen=True, slots=True)
class UnsureRange:
    """The known range of a queue whose broker cannot be asked now. It may have messages behind `max_offset`, and those
    that were read from it before are not gone because a slave does not have them yet.
    """

    min_offset: int
    max_offset: int


def not_behind(ranges: Mapping[Queue, Range], known: QueueOffsets) -> Mapping[Queue, Range]:
    """The ranges, where no unsure one ends before the offset that is `known` of its queue. The same object if there is
    none.
    """
    late = {
        queue: UnsureRange(min(limits.min_offset, known[queue]), known[queue])
        for queue, limits in ranges.items()
        if isinstance(limits, UnsureRange) and known.get(queue, -1) > limits.max_offset
    }
    return {**ranges, **late} if late else ranges


class QueueSlice(NamedTuple):
    """The messages `[start, end)` of one queue: what one task reads."""

    topic: str
    queue_id: QueueId
    start: int
    end: int

    @property
    def queue(self) -> Queue:
        """The queue that this is a slice of."""
        return Queue(self.topic, self.queue_id)


@dataclass(frozen=True, slots=True)
class Limits:
    """Admission control of one trigger. None: no such limit. `min_rows` delays a trigger by `max_delay_ms` ms at most.
    """

    max_rows: int | None = None
    min_rows: int | None = None
    max_bytes: int | None = None
    max_delay_ms: int = 15 * 60 * 1000


def backlog(start: QueueOffsets, end: QueueOffsets) -> int:
    """Return the number of messages in the ranges. A queue without a start counts nothing."""
    return sum(max(0, offset - start.get(queue, offset)) for queue, offset in end.items())


def must_wait(start: QueueOffsets, end: QueueOffsets, limits: Limits, waited_ms: float | None) -> bool:
    """True if the trigger has to wait until `min_rows` messages are there.

    `waited_ms` is the time since the last trigger that read messages. It is None before the first trigger, which is
    never delayed.
    """
    if limits.min_rows is None or waited_ms is None:
        return False
    return backlog(start, end) < limits.min_rows and waited_ms < limits.max_delay_ms


def admit_rows(start: QueueOffsets, end: QueueOffsets, max_rows: int) -> dict[Queue, int]:
    """Return ends between `start` and `end` that admit `max_rows` messages in all (all messages if there are fewer).

    Each queue with a backlog gets one message first. The rest is shared in proportion to the backlogs, so a long queue
    does not starve a short one. If there are more queues than messages, the first messages rotate among the queues as
    the offsets advance. `start` has every queue of `end`.
    """
    sizes = _backlogs(start, end)
    total = sum(sizes.values())
    if total <= max_rows:
        return dict(end)
    shares = dict.fromkeys(_round_robin(start, sizes)[:max_rows], 1)
    if len(shares) == len(sizes):
        rest, rest_total = max_rows - len(sizes), total - len(sizes)
        quotients = {queue: divmod(rest * (size - 1), rest_total) for queue, size in sizes.items()}
        for queue, (whole, _) in quotients.items():
            shares[queue] += whole
        # The largest remainders get what the rounding left over: the sum is exactly max_rows.
        left = max_rows - sum(shares.values())
        for queue in sorted(sizes, key=lambda queue: (-quotients[queue][1], queue))[:left]:
            shares[queue] += 1
    return {queue: start[queue] + shares.get(queue, 0) if queue in sizes else offset for queue, offset in end.items()}


def admit_bytes(
    start: QueueOffsets,
    end: QueueOffsets,
    max_bytes: int,
    bytes_between: Callable[[Queue, int, int], int],
    offset_after_bytes: Callable[[Queue, int, int, int], int],
) -> dict[Queue, int]:
    """Return ends between `start` and `end` whose messages take `max_bytes` or less in the log.

    Each queue with a backlog gets one message first. The rest is shared in proportion to the backlogs, counted in
    messages; sizes are read only for messages that may be admitted. One message is always admitted, however large, or
    the stream would never advance. `bytes_between(queue, start, end)` is the size of a range.
    `offset_after_bytes(queue, start, end, limit_bytes)` is the largest offset up to `end` within the limit, but at
    least one message after `start`.
    """
    admitted, left = dict(end), max_bytes
    waiting = list(_backlogs(start, end))
    admitted |= {queue: start[queue] for queue in waiting}
    for queue in _round_robin(start, waiting):
        head = bytes_between(queue, start[queue], start[queue] + 1)
        if head > left and left < max_bytes:
            return admitted
        admitted[queue] += 1
        left -= head
    while left > 0:
        missing = _backlogs(admitted, end)
        rows, before = sum(missing.values()), left
        # The shortest first: what they do not need is shared by the others.
        for queue, count in sorted(missing.items(), key=lambda item: item[1]):
            share = left * count // rows
            rows -= count
            stop = offset_after_bytes(queue, admitted[queue], end[queue], share)
            size = bytes_between(queue, admitted[queue], stop)
            if size <= share:
                admitted[queue] = stop
                left -= size
        if left == before:
            break
    return admitted


def _backlogs(start: QueueOffsets, end: QueueOffsets) -> dict[Queue, int]:
    return {queue: end[queue] - start[queue] for queue in sorted(end) if end[queue] > start[queue]}


def _round_robin(start: QueueOffsets, waiting: Iterable[Queue]) -> list[Queue]:
    """The queues with a backlog, rotated by the messages read so far: a queue that got nothing comes first next."""
    queues = list(waiting)
    first = sum(start[queue] for queue in queues) % max(1, len(queues))
    return queues[first:] + queues[:first]


def lost(wanted: Iterable[QueueSlice], bounds: Mapping[Queue, tuple[int, int]]) -> list[QueueSlice]:
    """Return the parts of `wanted` outside of `bounds`, `{queue: (min, max offset)}`; without an entry all is lost."""
    gone: list[QueueSlice] = []
    for part in wanted:
        low, high = bounds.get(part.queue, (part.end, part.end))
        if part.start < min(part.end, low):
            gone.append(part._replace(end=min(part.end, low)))
        if max(part.start, high) < part.end:
            gone.append(part._replace(start=max(part.start, high)))
    return gone


def clip(wanted: Iterable[QueueSlice], bounds: Mapping[Queue, tuple[int, int]]) -> list[QueueSlice]:
    """Return the parts of `wanted` that lie inside `bounds`, without empty ones."""
    inside: list[QueueSlice] = []
    for part in wanted:
        low, high = bounds.get(part.queue, (part.end, part.end))
        clipped = part._replace(start=max(part.start, low), end=min(part.end, high))
        if clipped.start < clipped.end:
            inside.append(clipped)
    return inside


def split(ranges: Iterable[QueueSlice], min_partitions: int | None) -> list[QueueSlice]:
    """Cut the ranges into at least `min_partitions` slices (if there are that many messages), the largest pieces first.

    Empty ranges are dropped. Slices of one queue follow each other and differ by one message at most in length.
    """
    parts = sorted(part for part in ranges if part.start < part.end)
    counts = [1] * len(parts)
    # A heap on the size of the pieces so far: each step cuts the range that has the largest pieces once more.
    heap = [(-float(part.end - part.start), index) for index, part in enumerate(parts)]
    heapq.heapify(heap)
    missing = (min_partitions or 0) - len(parts)
    while missing > 0 and heap:
        _, index = heapq.heappop(heap)
        size = parts[index].end - parts[index].start
        if counts[index] >= size:
            continue
        counts[index] += 1
        missing -= 1
        heapq.heappush(heap, (-size / counts[index], index))
    slices: list[QueueSlice] = []
    for part, count in zip(parts, counts, strict=True):
        size = part.end - part.start
        cuts = [part.start + size * piece // count for piece in range(count + 1)]
        slices += [part._replace(start=cuts[piece], end=cuts[piece + 1]) for piece in range(count)]
    return slices
