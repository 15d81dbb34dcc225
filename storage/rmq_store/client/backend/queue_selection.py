"""The queue for a send: the next one in turn, for a retry one of another broker (TopicPublishInfo.java).

1. The index of a topic starts at random in each thread, and grows by one with each look: ++i & 0x7FFFFFFF, modulo
   the number of queues (ThreadLocalIndex.java).
2. First try: the next queue. Retry: the next one whose broker is not the last one's.
3. All queues are the last broker's: the next queue.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from typing import Any

from rmq_store.format.text.hashing import java_hash
from rmq_store.protocol.messages import MessageQueue

_POSITIVE_MASK = 0x7FFFFFFF

MessageQueueSelector = Callable[[Sequence[MessageQueue], Any, Any], MessageQueue | None]
"""selector(queues, message, arg) -> one of the queues (MessageQueueSelector.java)."""


class ThreadLocalIndex:
    """A separate counter for each thread, with a random start; `random_start()` gives an int."""

    def __init__(self, random_start: Callable[[], int] = lambda: random.getrandbits(31)) -> None:
        self._random_start = random_start
        self._of_thread = threading.local()

    def increment_and_get(self) -> int:
        """The thread's next number, 0 .. 2^31 - 1."""
        last: int | None = getattr(self._of_thread, "index", None)
        index = (self._random_start() if last is None else last) + 1 & _POSITIVE_MASK
        self._of_thread.index = index
        return index


def select_one_message_queue(
    queues: Sequence[MessageQueue], index: ThreadLocalIndex, accepts: Callable[[MessageQueue], bool] | None = None
) -> MessageQueue | None:
    """The next of the `queues` (not empty) for which `accepts` returns True; None if there is none."""
    for _ in queues:
        queue = queues[index.increment_and_get() % len(queues)]
        if accepts is None or accepts(queue):
            return queue
    return None


def next_queue(
    queues: Sequence[MessageQueue], index: ThreadLocalIndex, last_broker_name: str | None = None
) -> MessageQueue:
    """The queue for a try. `last_broker_name`: the broker of the previous try, None for the first try."""
    if last_broker_name is not None:
        other = select_one_message_queue(queues, index, lambda queue: queue.broker_name != last_broker_name)
        if other is not None:
            return other
    return queues[index.increment_and_get() % len(queues)]


def select_message_queue_by_hash(queues: Sequence[MessageQueue], message: Any, arg: str) -> MessageQueue:
    """The selector for a sharding key: |hash| modulo number of queues (SelectMessageQueueByHash.java)."""
    return queues[abs(java_hash(arg)) % len(queues)]
