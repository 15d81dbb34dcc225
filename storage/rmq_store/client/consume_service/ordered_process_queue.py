"""The messages of one queue that were pulled and are not done yet, for ordered consumption.

The service takes messages from the front, and commits them or puts them back. Source: ProcessQueue.java.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from rmq_store.client.group.held_queue import HeldQueue
from rmq_store.protocol.messages import MessageExt

NOTHING = -1


class OrderedProcessQueue(HeldQueue):
    """Unfinished messages by queue offset: the waiting ones and the taken ones. Safe for threads."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting: deque[MessageExt] = deque()
        self._taken: dict[int, MessageExt] = {}
        self._given_up: set[int] = set()
        self._size_bytes = 0
        self._consuming = False

    def put(self, messages: Sequence[MessageExt]) -> bool:
        """Add messages in queue order, after all others; True if the caller must start ordered consumption."""
        with self._lock.entered():
            self._waiting.extend(messages)
            self._size_bytes += sum(len(message.body) for message in messages)
            return self._begin()

    @property
    def count(self) -> int:
        """Messages pulled and not done."""
        return len(self._waiting) + len(self._taken)

    @property
    def size_bytes(self) -> int:
        """Bytes of their bodies."""
        return self._size_bytes

    @property
    def max_span(self) -> int:
        """Distance between the first and the last offset not done and not taken."""
        with self._lock.entered():
            return self._waiting[-1].queue_offset - self._waiting[0].queue_offset if self._waiting else 0

    def take(self, count: int) -> list[MessageExt]:
        """Take the next messages in order; one whose body could not be inflated is taken alone. If there are none,
        consumption ends, and the next `put` returns True.
        """
        with self._lock.entered():
            taken: list[MessageExt] = []
            while self._waiting and len(taken) < count and not (taken and self._waiting[0].is_compressed):
                taken.append(self._waiting.popleft())
                if taken[0].is_compressed:
                    break
            self._taken.update((message.queue_offset, message) for message in taken)
            self._consuming = bool(taken)
            return taken

    def commit(self) -> int:
        """Finish all taken messages; returns the offset to commit, NOTHING if none were taken."""
        with self._lock.entered():
            if not self._taken:
                return NOTHING
            offset = max(self._taken) + 1
            self._given_up.clear()
            self._size_bytes -= sum(len(message.body) for message in self._taken.values())
            self._taken.clear()
            return offset

    def give_up(self, message: MessageExt) -> None:
        """Remember until the next commit that a taken message is a dead letter: a rollback brings it back."""
        with self._lock.entered():
            self._given_up.add(message.queue_offset)

    def has_given_up(self, message: MessageExt) -> bool:
        """True if it is a dead letter already."""
        with self._lock.entered():
            return message.queue_offset in self._given_up

    def is_taken_alone(self, message: MessageExt) -> bool:
        """True if no other message is taken and not committed."""
        with self._lock.entered():
            return list(self._taken) == [message.queue_offset]

    def consume_again(self, messages: Iterable[MessageExt] | None = None) -> None:
        """Put taken messages (None: all of them) back to the front, as given."""
        with self._lock.entered():
            back = sorted(self._taken.values() if messages is None else messages, key=lambda each: each.queue_offset)
            for message in reversed(back):
                self._taken.pop(message.queue_offset, None)
                self._waiting.appendleft(message)

    def forget_taken(self, message: MessageExt) -> None:
        """Drop a taken message that was sent elsewhere, while others of its batch are consumed again."""
        with self._lock.entered():
            if self._taken.pop(message.queue_offset, None) is not None:
                self._size_bytes -= len(message.body)

    def _begin(self) -> bool:
        if self._consuming or not self._waiting:
            return False
        self._consuming = True
        return True
