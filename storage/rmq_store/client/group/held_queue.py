"""A queue of a consumer as rebalancing and flow control see it, whatever form its messages have.

Source: ProcessQueue.java (dropped, locked, lastLockTimestamp, msgCount, msgSize, getMaxSpan).
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod

from rmq_store.files.locks.guard import Guard

LOCK_LIVE_MS = 30_000  # rocketmq.client.rebalance.lockMaxLiveTime


class HeldQueue(ABC):
    """A queue of this consumer, and the amount of pulled messages that are not done.

    `dropped` is set once, and for good, when the queue moves to another member. Later results of its messages are void.
    """

    def __init__(self) -> None:
        self.dropped = False
        # Held while a listener works on this queue in order: it is not unlocked for others before that.
        self.consume_lock = threading.Lock()
        # Held while a listener's result is carried out: the progress stored when the queue goes contains it, or it is
        # void.
        self.settle_lock = threading.RLock()
        self._lock = Guard()
        self._locked_at_ms: int | None = None

    @property
    @abstractmethod
    def count(self) -> int:
        """Messages pulled and not done."""

    @property
    @abstractmethod
    def size_bytes(self) -> int:
        """Bytes of their bodies."""

    @property
    @abstractmethod
    def max_span(self) -> int:
        """Distance between the first and the last offset not done and not taken."""

    # -- the lock of an ordered queue -------------------------------------------------------------------------------

    def lock_granted(self, now_ms: int) -> None:
        """Record that the broker has granted or renewed this consumer's lock of the queue."""
        self._locked_at_ms = now_ms

    def lock_lost(self) -> None:
        """Record that the broker did not renew the lock."""
        self._locked_at_ms = None

    def is_locked(self, now_ms: int) -> bool:
        """Whether this consumer holds the lock; a lock that was not renewed for LOCK_LIVE_MS does not count."""
        return self._locked_at_ms is not None and now_ms - self._locked_at_ms <= LOCK_LIVE_MS
