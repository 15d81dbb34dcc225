"""The questions of a mirror into Kafka to its RocketMQ side. A store is one; `BrokerSource` is one over the network."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Protocol

import pyarrow as pa

from rmq_store.protocol.results import QueueRange


class QueueNumbers(Protocol):
    """A topic's settings, as far as a mirror needs them."""

    @property
    def read_queue_nums(self) -> int:
        """The number of queues that may be read."""

    @property
    def write_queue_nums(self) -> int:
        """The number of queues that may be written."""


class MessageSource(Protocol):
    """Queues of topics, each with dense offsets. Errors are those of `Store`, and over the network RemotingError."""

    def refresh(self) -> None:
        """See what others have done meanwhile."""

    def flush(self) -> None:
        """Make everything that was read durable, if this process writes the log."""

    def topics(self) -> Collection[str]:
        """The topics that are there."""

    def topic(self, name: str) -> QueueNumbers:
        """A topic. UnknownTopicError."""

    def queue_ranges(self, topic: str) -> Mapping[int, QueueRange]:
        """The readable range of each queue of a topic."""

    def queue_range(self, topic: str, queue_id: int) -> QueueRange:
        """That of one queue; empty if there is no such queue."""

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """The first offset stored at or after a time."""

    def queue_entries(self, topic: str, queue_id: int, start: int, end: int) -> Iterable[Any]:
        """Of each message an entry with `commit_log_offset`."""

    def store_timestamp(self, topic: str, queue_id: int, offset: int) -> int:
        """The time at which a message was stored, in ms."""

    def offset_after_bytes(self, topic: str, queue_id: int, start: int, end: int, limit_bytes: int) -> int:
        """The offset behind as many messages from `start` on as have `limit_bytes`, one at least, `end` at most."""

    def read(self, topic: str, queue_id: int, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """The messages [start, end), with the columns of MESSAGE_SCHEMA."""
