"""The messages of one queue that were pulled and are not done yet: where the progress of a queue comes from.

The offset that may be committed is the smallest one still in here, or the one behind the last message when all are
done: one message that is stuck holds the progress back, however many behind it are done.

Notes are kept for what a listener gets at once, not for each message. A batch stands for the messages of a range of
offsets, perhaps with gaps; ranges are disjoint and ascend, so the first batch that is left has the smallest offset that
is not done, in whatever order batches end. `batch_process_queue` is the same for rows. Source: ProcessQueue.java.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rmq_store.client.backend import MessageExt, add_properties
from rmq_store.client.held_queue import HeldQueue
from rmq_store.client.stored_messages import MessageRows


@dataclass(slots=True, eq=False)
class Batch:
    """Messages for one call of a listener; [begin, end) are queue offsets of those that are not done.

    They are `rows` [first, behind) of a pull until objects are asked for, and then `messages`: what a listener has
    holds no pull. `started_ms`: when a listener got them.
    """

    rows: MessageRows | None
    first: int
    behind: int
    begin: int
    end: int
    count: int
    size_bytes: int
    messages: Sequence[MessageExt] = ()
    started_ms: int | None = None

    @classmethod
    def of(cls, rows: MessageRows, first: int, behind: int) -> Batch:
        """The rows [first, behind), at least one."""
        begin, end = rows.queue_offset(first), rows.queue_offset(behind - 1) + 1
        return cls(rows, first, behind, begin, end, behind - first, rows.body_bytes(first, behind))


class ProcessQueue(HeldQueue):
    """Unfinished batches in queue order. Safe for threads."""

    def __init__(self) -> None:
        super().__init__()
        # Unlike a dict it finds its first batch at once when many before it have gone.
        self._batches: OrderedDict[Batch, None] = OrderedDict()
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
        with self._lock:
            if not self._batches:
                return 0
            return next(reversed(self._batches)).end - 1 - self._first().begin

    def put(self, batch: Batch) -> None:
        """Add a batch behind all before."""
        with self._lock:
            self._batches[batch] = None
            self._count += batch.count
            self._size_bytes += batch.size_bytes
            self._end = batch.end

    def left(self, batch: Batch, added: Mapping[str, str]) -> list[MessageExt]:
        """The messages of a batch that are not done, with properties `added`; [] if all are, or were sent back because
        they took too long.
        """
        with self._lock:
            if batch.rows is not None:
                batch.messages, batch.rows = batch.rows.take(batch.first, batch.behind, added), None
            else:
                for message in batch.messages:
                    add_properties(message, added)
            return list(batch.messages)

    def settle(self, batch: Batch, left: Sequence[MessageExt]) -> int:
        """Of an unfinished batch only `left` is not done, none or some of its messages, perhaps changed; returns the
        offset to commit.
        """
        size_bytes = sum(len(message.body) for message in left)
        with self._lock:
            self._count += len(left) - batch.count
            self._size_bytes += size_bytes - batch.size_bytes
            batch.rows, batch.messages, batch.count, batch.size_bytes = None, left, len(left), size_bytes
            if left:
                batch.begin, batch.end = left[0].queue_offset, left[-1].queue_offset + 1
            else:
                del self._batches[batch]
            return self._first().begin if self._batches else self._end

    def first_expired(self, limit_ms: int, now_ms: int) -> Batch | None:
        """The first batch, if a listener has had it for more than `limit_ms`."""
        with self._lock:
            if not self._batches:
                return None
            first = self._first()
            return None if first.started_ms is None or now_ms - first.started_ms <= limit_ms else first

    def _first(self) -> Batch:
        return next(iter(self._batches))
