"""The messages of one queue that were pulled and are not done yet. They determine the progress of the queue.

The smallest unfinished offset may be committed, or the offset after the last message when all are done. So one stuck
message holds the progress, however many later messages are done.

The queue keeps one entry per batch for a listener, not one per message. A batch covers the messages of a range of
offsets, perhaps with gaps. Ranges are disjoint and ascend. So the first remaining batch has the smallest unfinished
offset, in whatever order batches end. Source: ProcessQueue.java.
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
    """Messages for one call of a listener, some of them unfinished: a `Left`, objects or rows. `is_undecoded`: for none
    (`undecoded`).

    `count` unfinished messages, with bodies of `size_bytes`, have queue offsets in [begin, end). `started_ms`: the time
    at which a listener got them.
    """

    __slots__ = ("begin", "count", "end", "is_undecoded", "size_bytes", "started_ms")

    def __init__(self, begin: int, end: int, count: int, size_bytes: int, *, is_undecoded: bool = False) -> None:
        self.begin, self.end, self.count, self.size_bytes = begin, end, count, size_bytes
        self.is_undecoded = is_undecoded
        self.started_ms: int | None = None

    @abstractmethod
    def left(self, shown_ms: int | None = None) -> Left:
        """The unfinished messages; empty if all are done, or were sent back because they took too long. `shown_ms`: the
        time at which a listener gets the batch.
        """

    @abstractmethod
    def keep(self, left: Left) -> None:
        """From now on only `left` is unfinished: none or some of the earlier messages, perhaps changed."""


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
        """Add a batch after all others."""
        with self._lock.entered():
            self._batches[batch] = None
            self._count += batch.count
            self._size_bytes += batch.size_bytes
            self._end = batch.end

    def settle(self, batch: Batch[Left], left: Left) -> int:
        """Keep only `left` of a batch as unfinished; returns the offset to commit."""
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
