"""How far a lite pull consumer has polled each queue, and which of these offsets are not committed yet. Pure.

Three offsets of a queue differ: *polled* is after the last message that `poll` has returned; *consumed* leaves out the
messages of the last `poll`, which the caller may still be handling; *committed* is in the offset store.
"""

from __future__ import annotations

from collections.abc import Collection

from rmq_store.protocol.messages import MessageQueue


class PolledOffsets:
    """Next queue offsets by queue. Not safe for threads."""

    def __init__(self) -> None:
        self._next: dict[MessageQueue, int] = {}
        self._uncommitted: set[MessageQueue] = set()
        # The queue of the last `poll`, and its consumed offset before that call unless it was committed.
        self._in_hand: tuple[MessageQueue, int | None] | None = None

    def begin_poll(self) -> None:
        """The caller has consumed the messages of the last `poll`."""
        self._in_hand = None

    def uncommitted(self, queue: MessageQueue) -> int | None:
        """The polled offset of a queue if it is not committed yet, else None."""
        return self._next[queue] if queue in self._uncommitted else None

    def advance(self, queue: MessageQueue, offset: int) -> None:
        """The queue was polled up to `offset`."""
        self._next[queue] = offset
        self._uncommitted.add(queue)

    def hand_out(self, queue: MessageQueue, consumed: int | None) -> None:
        """`poll` returns messages of the queue; `consumed`: what `uncommitted` was before."""
        self._in_hand = (queue, consumed)

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """The caller has chosen the offset: it counts as consumed."""
        self.advance(queue, offset)
        self._release(queue)

    def of(self, queues: Collection[MessageQueue]) -> dict[MessageQueue, int]:
        """The polled offsets of those of the queues that were polled."""
        return {queue: self._next[queue] for queue in queues if queue in self._next}

    def consumed(self, queues: Collection[MessageQueue]) -> dict[MessageQueue, int]:
        """The consumed offsets of those of the queues that have moved since their last commit."""
        found = {queue: self._next[queue] for queue in queues if queue in self._uncommitted}
        if self._in_hand is not None:
            queue, before = self._in_hand
            found.pop(queue, None)
            if before is not None:
                found[queue] = before
        return found

    def committed(self, queue: MessageQueue) -> None:
        """An offset of the queue was committed."""
        self._uncommitted.discard(queue)
        self._release(queue)

    def forget(self, queue: MessageQueue) -> None:
        """The queue does not belong to the consumer any more."""
        self._next.pop(queue, None)
        self.committed(queue)

    def _release(self, queue: MessageQueue) -> None:
        if self._in_hand is not None and self._in_hand[0] == queue:
            self._in_hand = None
