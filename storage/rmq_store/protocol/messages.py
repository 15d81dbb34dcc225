"""Queues of a cluster, messages as consumers see them, and the answers of brokers to a pull: plain values that clients,
the processors of a broker and the network share.

Sources: MessageQueue.java, MessageExt.java, PullResult.java.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

import pyarrow as pa

from rmq_store.format.frames.frame_check import SysFlag
from rmq_store.format.properties.property_string import KEYS, TAGS
from rmq_store.lazy.dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class MessageQueue:
    """A queue of a topic at a broker. Queues sort by topic, broker and queue id; their text is the same as in Java."""

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        # Hashed by the CONSISTENT_HASH strategy: consumers of all languages must agree on it.
        return f"MessageQueue [topic={self.topic}, brokerName={self.broker_name}, queueId={self.queue_id}]"


@dataclass(frozen=True, slots=True)
class MessageExt:
    """A stored message as consumers see it, its body decompressed, unless it `is_compressed`.

    `msg_id` is the result of the Java client's getMsgId(): UNIQ_KEY, else the offset id. `topic` is the stored one; a
    consumer restores the original one of a retried message.
    """

    topic: str
    body: bytes
    queue_id: int
    queue_offset: int
    commit_log_offset: int
    msg_id: str
    offset_msg_id: str
    broker_name: str
    reconsume_times: int
    flag: int
    sys_flag: int
    born_timestamp_ms: int
    born_host: str
    store_timestamp_ms: int
    store_host: str
    properties: Mapping[str, str]

    @property
    def tags(self) -> str | None:
        """The TAGS property."""
        return self.properties.get(TAGS)

    @property
    def keys(self) -> str | None:
        """The KEYS property: keys separated by single spaces."""
        return self.properties.get(KEYS)

    @property
    def is_compressed(self) -> bool:
        """True if the body could not be inflated: it is as it lies in the store, whatever its producer meant by it."""
        return bool(self.sys_flag & SysFlag.COMPRESSED)


def add_properties(message: MessageExt, added: Mapping[str, str]) -> None:
    """Add properties to a message that a broker has returned: the message belongs to its client (MessageAccessor.java).
    """
    assert isinstance(message.properties, dict)
    message.properties.update(added)


class PullStatus(StrEnum):
    """FOUND: there are messages. NO_NEW_MSG: the end was reached. NO_MATCHED_MSG: all were filtered out, pull again at
    once. OFFSET_ILLEGAL: the queue does not have this offset (any more).
    """

    FOUND = "FOUND"
    NO_NEW_MSG = "NO_NEW_MSG"
    NO_MATCHED_MSG = "NO_MATCHED_MSG"
    OFFSET_ILLEGAL = "OFFSET_ILLEGAL"


@dataclass(frozen=True, slots=True)
class Pulled:
    """The answer to a pull from an offset, without its messages. `next_begin_offset` is the offset of the next pull:
    past filtered messages too, and inside the queue again after OFFSET_ILLEGAL. The queue holds [min_offset,
    max_offset).
    """

    status: PullStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int


@dataclass(frozen=True, slots=True)
class PullResult(Pulled):
    """The answer with messages as objects."""

    messages: Sequence[MessageExt] = ()


@dataclass(frozen=True, slots=True)
class PullBatchResult(Pulled):
    """The answer with messages as batches of MESSAGE_SCHEMA (`format/tables/schema.py`), none of them empty."""

    batches: Sequence[pa.RecordBatch] = ()


@dataclass(frozen=True, slots=True)
class PoppedMessage:
    """A message that is hidden from its group for its invisible time. The handle acknowledges or hides it again."""

    message: MessageExt
    receipt_handle: str
    delivery_attempt: int
