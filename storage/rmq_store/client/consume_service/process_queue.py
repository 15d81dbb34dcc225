"""The messages of one queue that were pulled and are not done yet: where the progress of a queue comes from.

The offset that may be committed is the smallest one still in here, or the one behind the last message when all are
done: one message that is stuck holds the progress back, however many behind it are done.

Notes are kept for what a listener gets at once, not for each message. A batch stands for the messages of a range of
offsets, perhaps with gaps; ranges are disjoint and ascend, so the first batch that is left has the smallest offset that
is not done, in whatever order batches end. Source: ProcessQueue.java.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from typing import Generic, Protocol, Self, TypeVar

from rmq_store.client.group.held_queue import HeldQueue


class Messages(Protocol):
    """Objects or rows."""

    def __len__(self) -> int: ...
    def __getitem__(self, which: slice, /) -> Self: ...


Left = TypeVar("Left", bound=Messages)


class Batch(ABC, Generic[Left]):
    """Messages for one call of a listener, of which some are not done: a `Left`, objects or rows.

    `count` of them, with bodies of `size_bytes`, have queue offsets in [begin, end). `started_ms`: when a listener got
    them.
    """

    __slots__ = ("begin", "count", "end", "size_bytes", "started_ms")

    def __init__(self, begin: int, end: int, count: int, size_bytes: int) -> None:
        self.begin, self.end, self.count, self.size_bytes = begin, end, count, size_bytes
        self.started_ms: int | None = None

    @abstractmethod
    def left(self, shown_ms: int | None = None) -> Left:
        """Messages that are not done; empty if all are, or were sent back because they took too long. `shown_ms`: the
        time at which
        a listener gets it.
        """

    @abstractmethod
    def keep(self, left: Left) -> None:
        """Only `left` is not done from now on, none or some of what was, perhaps changed."""


class ProcessQueue(HeldQueue, Generic[Left]):
    """Unfinished batches in queue order. Safe for threads."""

    def __init__(self) -> None:
        super().__init__()
        # Unlike a dict it finds its first batch at once when many before it have gone.
        self._batches: OrderedDict[Batch[Left], None] = OrderedDict()
        self._count = 0
        self._size_bytes = 0
        self._end = 0

    @property
    def count(self) -> int:
        """Messages pulled and not done."""
        return self._count

    @property
    def size_bytes(self) -> int:
        """Bytes of their bodies."""
        return self._size_bytes

    @property
    def max_span(self) -> int:
        """Distance between the first and the last offset not done."""
        with self._lock.entered():
            if not self._batches:
                return 0
            return next(reversed(self._batches)).end - 1 - self._first().begin

    def put(self, batch: Batch[Left]) -> None:
        """Add a batch behind all before."""
        with self._lock.entered():
            self._batches[batch] = None
            self._count += batch.count
            self._size_bytes += batch.size_bytes
            self._end = batch.end

    def settle(self, batch: Batch[Left], left: Left) -> int:
        """Of an unfinished batch only `left` is not done; returns the offset to commit."""
        with self._lock.entered():
            self._count -= batch.count
            self._size_bytes -= batch.size_bytes
            batch.keep(left)
            self._count += batch.count
            self._size_bytes += batch.size_bytes
            if not batch.count:
                del self._batches[batch]
            return self._first().begin if self._batches else self._end

    def first_expired(self, limit_ms: int, now_ms: int) -> Batch[Left] | None:
        """The first batch, if a listener has had it for more than `limit_ms`."""
        with self._lock.entered():
            if not self._batches:
                return None
            first = self._first()
            return None if first.started_ms is None or now_ms - first.started_ms <= limit_ms else first

    def _first(self) -> Batch[Left]:
        return next(iter(self._batches))
