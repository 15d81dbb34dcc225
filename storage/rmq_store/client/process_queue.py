"""The messages of one queue that were pulled and are not done yet: where the progress of a queue comes from.

The offset that may be committed is the smallest one still in here, or the one behind the last message when all are
done: one message that is stuck holds the progress back, however many behind it are done. Source: ProcessQueue.java.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from rmq_store.client.backend import MessageExt
from rmq_store.client.held_queue import HeldQueue

NOTHING = -1


class ProcessQueue(HeldQueue):
    """Unfinished messages by queue offset. Safe for threads."""

    def __init__(self) -> None:
        super().__init__()
        self._messages: dict[int, MessageExt] = {}
        # Offsets in order; those that are no longer in _messages are skipped when they come to the front.
        self._order: deque[int] = deque()
        self._taken: dict[int, MessageExt] = {}
        self._started_ms: dict[int, int] = {}
        self._size_bytes = 0
        self._last_offset = NOTHING
        self._consuming = False

    # -- filling ----------------------------------------------------------------------------------------------------

    def put(self, messages: Sequence[MessageExt]) -> bool:
        """Add messages, in queue order and behind all before; True if somebody must start to consume in order."""
        with self._lock:
            for message in messages:
                self._messages[message.queue_offset] = message
                self._order.append(message.queue_offset)
                self._size_bytes += len(message.body)
                self._last_offset = message.queue_offset
            return self._begin()

    @property
    def count(self) -> int:
        """Messages pulled and not done."""
        return len(self._messages) + len(self._taken)

    @property
    def size_bytes(self) -> int:
        """Bytes of their bodies."""
        return self._size_bytes

    @property
    def max_span(self) -> int:
        """Distance between the first and the last offset not done and not taken."""
        with self._lock:
            first = self._first()
            return 0 if first is None else self._last_held() - first

    # -- concurrent consumption -------------------------------------------------------------------------------------

    def holds(self, queue_offset: int) -> bool:
        """Whether the message is still to be done; not so if it was sent back because it took too long."""
        return queue_offset in self._messages

    def mark_started(self, queue_offsets: Iterable[int], now_ms: int) -> None:
        """Note when the time for handling the messages began."""
        with self._lock:
            for offset in queue_offsets:
                self._started_ms[offset] = now_ms

    def replace(self, messages: Iterable[MessageExt]) -> None:
        """Put changed messages in the place of those with their offsets."""
        with self._lock:
            for message in messages:
                if message.queue_offset in self._messages:
                    self._messages[message.queue_offset] = message

    def remove(self, queue_offsets: Iterable[int]) -> int:
        """Take done messages out; returns the offset to commit, NOTHING if there was nothing in here before."""
        with self._lock:
            if not self._messages:
                return NOTHING
            for offset in queue_offsets:
                message = self._messages.pop(offset, None)
                self._started_ms.pop(offset, None)
                if message is not None:
                    self._size_bytes -= len(message.body)
            first = self._first()
            return self._last_offset + 1 if first is None else first

    def first_expired(self, limit_ms: int, now_ms: int) -> MessageExt | None:
        """The first message, if a listener has had it for more than `limit_ms`."""
        with self._lock:
            first = self._first()
            if first is None or now_ms - self._started_ms.get(first, now_ms) <= limit_ms:
                return None
            return self._messages[first]

    # -- ordered consumption ----------------------------------------------------------------------------------------

    def take(self, count: int) -> list[MessageExt]:
        """Take the next messages in order; none: consumption ends, and the next `put` says when to start again."""
        with self._lock:
            taken: list[MessageExt] = []
            while len(taken) < count and (first := self._first()) is not None:
                self._order.popleft()
                self._taken[first] = self._messages.pop(first)
                taken.append(self._taken[first])
            self._consuming = bool(taken)
            return taken

    def commit(self) -> int:
        """All taken messages are done; returns the offset to commit, NOTHING if none were taken."""
        with self._lock:
            if not self._taken:
                return NOTHING
            offset = max(self._taken) + 1
            self._size_bytes -= sum(len(message.body) for message in self._taken.values())
            self._taken.clear()
            return offset

    def consume_again(self, messages: Iterable[MessageExt] | None = None) -> None:
        """Put taken messages (None: all of them) back to the front, as they are given."""
        with self._lock:
            back = sorted(self._taken.values() if messages is None else messages, key=lambda each: each.queue_offset)
            for message in reversed(back):
                self._taken.pop(message.queue_offset, None)
                self._messages[message.queue_offset] = message
                self._order.appendleft(message.queue_offset)

    def forget_taken(self, message: MessageExt) -> None:
        """A taken message went elsewhere while others of its batch are consumed again."""
        with self._lock:
            if self._taken.pop(message.queue_offset, None) is not None:
                self._size_bytes -= len(message.body)

    def start_consuming(self) -> bool:
        """True if there is something to consume in order and nobody does it."""
        with self._lock:
            return self._begin()

    def _begin(self) -> bool:
        if self._consuming or not self._messages:
            return False
        self._consuming = True
        return True

    def _first(self) -> int | None:
        while self._order:
            if self._order[0] in self._messages:
                return self._order[0]
            self._order.popleft()
        return None

    def _last_held(self) -> int:
        while self._order[-1] not in self._messages:
            self._order.pop()
        return self._order[-1]
