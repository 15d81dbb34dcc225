"""The high-water marks that a process must write: the largest offset of first deliveries per queue.

A mark that is written already costs nothing. Of the threads that work on one queue, only one writes at a time:
otherwise the row would make them wait for each other's commits. The next worker writes the offsets that others have
seen meanwhile; the last one that leaves writes them at once.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping

from rmq_store.reliable.inbox.receipts import Queue, Receipt


class HighWater:
    """The marks of one group. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._active = 0
        self._seen: dict[Queue, int] = {}
        self._writing: set[Queue] = set()
        # Queues whose mark somebody left to others.
        self._left: set[Queue] = set()

    def enter(self, receipts: Iterable[Receipt]) -> dict[Queue, int]:
        """The marks that this thread's transaction must write. Call `leave` after it, in any case."""
        marks: dict[Queue, int] = {}
        with self._lock:
            self._active += 1
            for receipt in receipts:
                if receipt.is_first_delivery and receipt.queue_offset > self._seen.get(receipt.queue, -1):
                    self._seen[receipt.queue] = receipt.queue_offset
                    self._left.add(receipt.queue)
            for queue in self._left - self._writing:
                marks[queue] = self._seen[queue]
            self._writing |= marks.keys()
            self._left -= marks.keys()
        return marks

    def leave(self, marks: Mapping[Queue, int], *, is_committed: bool) -> dict[Queue, int]:
        """The marks that this thread must write now, because no other thread is about to; then it calls `wrote`."""
        with self._lock:
            self._active -= 1
            self._writing -= marks.keys()
            if not is_committed:
                self._left |= marks.keys()
                return {}
            return {} if self._active else {queue: self._seen[queue] for queue in self._left}

    def wrote(self, marks: Mapping[Queue, int]) -> None:
        """Record that these marks are committed."""
        with self._lock:
            self._left -= {queue for queue, offset in marks.items() if self._seen[queue] == offset}
