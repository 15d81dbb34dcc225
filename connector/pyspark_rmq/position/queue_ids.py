"""Queue ids of a topic: a number in a store, a broker and a number in a cluster. Pure: no I/O.

Users and checkpoints write the second one as `broker-a:0` (MessageQueue.java has the same two parts). If only one
broker has a queue of a number, an option may have the number alone.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple, TypeAlias

# ConsumeQueue.java: a queue id is a signed 32-bit integer.
INT32_MAX = 2**31 - 1


class BrokerQueueId(NamedTuple):
    """A queue of a topic in a cluster; its text is `broker-a:0`. Queue ids sort by broker, then by number."""

    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.broker_name}:{self.queue_id}"


# An int in a store, a `BrokerQueueId` in a cluster. The location decides which of them: a store takes and
# returns numbers only, a cluster the pairs. All code between passes them on, sorts them, and writes them as text.
QueueId: TypeAlias = Any


def parse_queue_id(text: str) -> QueueId | None:
    """Read what `str()` made of a queue id: `0`, or `broker-a:0`; None if it is neither."""
    broker_name, colon, number = text.rpartition(":")
    # isdecimal() is also true for digits of other scripts, which int() takes: two spellings of one queue.
    # The length first: int() refuses a text of thousands of digits with an error of its own.
    if not (number.isascii() and number.isdecimal()) or len(number) > 10 or int(number) > INT32_MAX:
        return None
    if not colon:
        return int(number)
    # One spelling for each queue of a broker.
    return BrokerQueueId(broker_name, int(number)) if broker_name and re.fullmatch("0|[1-9].*", number) else None


def number_of(queue_id: QueueId) -> int:
    """The number that a message of the queue has in its column queueId."""
    return queue_id.queue_id if isinstance(queue_id, BrokerQueueId) else int(queue_id)


def broker_of(queue_id: QueueId) -> str | None:
    """The broker of a queue of a cluster; None for a queue of a store."""
    return queue_id.broker_name if isinstance(queue_id, BrokerQueueId) else None


def named_in_full(queue_id: QueueId, existing: Collection[QueueId]) -> QueueId:
    """The queue that an option means, of those that exist: a plain number stands for the one queue of this number.

    Raises:
        UsageError: several brokers have a queue of this number; the message has the spellings.
    """
    if isinstance(queue_id, BrokerQueueId) or queue_id in existing:
        return queue_id
    meant = sorted(other for other in existing if number_of(other) == queue_id)
    if len(meant) == 1:
        return meant[0]
    if meant:
        from rmq_store.errors import UsageError

        raise UsageError(f"queue {queue_id} is at several brokers; write one of {quoted(meant)}")
    return queue_id


def quoted(queue_ids: Iterable[QueueId]) -> str:
    """Queue ids as they are written in JSON."""
    return ", ".join(f'"{queue_id}"' for queue_id in queue_ids)
