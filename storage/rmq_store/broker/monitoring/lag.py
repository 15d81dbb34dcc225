"""The lag of consumer groups, as mqadmin's consumerProgress counts it.

    consumer offset            what the group has committed of a queue; none counts as 0
    diff                       broker offset (the queue's end) - consumer offset
    inflight                   given out by pops and not committed: next offset to give out - consumer offset
    retries, dead              the diff of the group's %RETRY% topic, and what lies in %DLQ%<group>

over the topics of which the group has committed an offset, its %RETRY% topic included. Deleted topics, and those with a
kind of queue that this engine does not read, are left out. It takes no locks and changes nothing: other processes may
write the store meanwhile. Source: AdminBrokerProcessor#getConsumeStats, ConsumeStats.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from rmq_store.broker.pop.pop_journal import read_state
from rmq_store.errors import CorruptRecordError, OffsetOutOfRangeError, TopicKindError, UnknownTopicError
from rmq_store.format.text.names import RETRY_PREFIX, dlq_topic
from rmq_store.lazy.dataclasses import dataclass

if TYPE_CHECKING:
    from rmq_store.broker.store.store import Store
    from rmq_store.protocol.results import QueueRange

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class QueueLag:
    """One queue of one group; offsets and counts of messages, times in ms.

    `consumer_offset`: None if the group has committed none of this queue. `last_timestamp_ms`: store time of the newest
    consumed message, 0 if there is none (any more). `lag_ms`: age of the oldest message that is not consumed, 0 if
    there is none, None if its record cannot be read. `queueing_ms`: the same for messages that were not given out.
    """

    topic: str
    queue_id: int
    broker_offset: int
    consumer_offset: int | None
    diff: int
    inflight: int
    last_timestamp_ms: int
    lag_ms: int | None
    queueing_ms: int | None


@dataclass(frozen=True, slots=True)
class GroupLag:
    """One group: its queues by topic and number, and sums. `retry_diff` is part of `diff_total`, `dead` is not."""

    group: str
    queues: tuple[QueueLag, ...]
    diff_total: int
    inflight_total: int
    retry_diff: int
    dead: int


def group_lag(store: Store, group: str, now_ms: int | None = None) -> GroupLag:
    """The lag of one group; without queues for one that never committed. `now_ms`: instead of the store's clock. The
    cost is proportional to the group's queues: at most three records of each are read. Raises CorruptionError if the
    journal of a pop, or a queue, is unreadable.
    """
    return LagReader(store, now_ms).group(group)


def all_lags(store: Store, now_ms: int | None = None) -> list[GroupLag]:
    """`group_lag` of every group that has committed an offset, by name."""
    lags = LagReader(store, now_ms)
    return [lags.group(group) for group in sorted(store.all_committed_offsets())]


def next_given_out(store: Store, group: str, topic: str) -> dict[int, int]:
    """Of each queue of which a pop has given out messages to the group, the next offset. CorruptionError."""
    positions = read_state(store.path / "pyrmq" / "pop" / group / topic).positions
    return {queue_id: position.next_offset for queue_id, position in positions.items()}


@functools.lru_cache(maxsize=1024)
def _warn(text: str) -> None:
    """Warn once for each text, because a scrape comes every few seconds."""
    _LOG.warning("%s", text)


class LagReader:
    """A snapshot of a store: the ranges of a topic's queues are read once, however many groups read the topic. They
    are read again if a group has an offset beyond them.

    With `last_timestamps=False` those of all queues are 0, which saves a third of the work.
    """

    def __init__(self, store: Store, now_ms: int | None = None, *, last_timestamps: bool = True) -> None:
        self._store = store
        self._now_ms = store.clock() if now_ms is None else now_ms
        self._last_timestamps = last_timestamps
        self._ranges: dict[str, Mapping[int, QueueRange]] = {}

    def ranges(self, topic: str) -> Mapping[int, QueueRange]:
        """The ranges of a topic's queues; {} if it was deleted, perhaps just now, or has a kind of queue that this
        engine does not read (then it warns once). CorruptionError.
        """
        if topic not in self._ranges:
            try:
                self._ranges[topic] = self._store.queue_ranges(topic)
            except UnknownTopicError:
                self._ranges[topic] = {}
            except TopicKindError as error:
                _warn(f"{self._store.path}: no lag is known of {error}")
                self._ranges[topic] = {}
        return self._ranges[topic]

    def group(self, group: str) -> GroupLag:
        """See `group_lag`."""
        store, committed = self._store, self._store.committed_offsets(group)
        queues: list[QueueLag] = []
        for topic in sorted({topic for topic, _ in committed}):
            given_out = next_given_out(store, group, topic)
            if any(committed.get((topic, queue_id), 0) > end for queue_id, (_, end) in self.ranges(topic).items()):
                del self._ranges[topic]  # read for a group before, and older than this group's offsets
            for queue_id, found in sorted(self.ranges(topic).items()):
                next_offset = given_out.get(queue_id, 0)
                queues.append(self._queue(topic, queue_id, found, committed.get((topic, queue_id)), next_offset))
        return GroupLag(
            group,
            tuple(queues),
            diff_total=sum(queue.diff for queue in queues),
            inflight_total=sum(queue.inflight for queue in queues),
            retry_diff=sum(queue.diff for queue in queues if queue.topic.startswith(RETRY_PREFIX)),
            dead=sum(found.max_offset - found.min_offset for found in self.ranges(dlq_topic(group)).values()),
        )

    def _queue(self, topic: str, queue_id: int, found: QueueRange, committed: int | None, next_offset: int) -> QueueLag:
        consumed = max(0, committed or 0)
        last_ms = self._stored_ms(topic, queue_id, consumed - 1) if consumed and self._last_timestamps else None
        lag_ms = queueing_ms = self._age_ms(topic, queue_id, found, consumed)
        if next_offset > consumed:
            queueing_ms = self._age_ms(topic, queue_id, found, next_offset)
        return QueueLag(
            topic, queue_id, found.max_offset, committed, found.max_offset - consumed, max(0, next_offset - consumed),
            last_ms or 0, lag_ms, queueing_ms,
        )  # fmt: skip

    def _age_ms(self, topic: str, queue_id: int, found: QueueRange, offset: int) -> int | None:
        """The age (ms) of the first message from `offset` on; 0 if there is none, None if it cannot be read."""
        if offset >= found.max_offset:
            return 0
        stored_ms = self._stored_ms(topic, queue_id, max(offset, found.min_offset))
        return None if stored_ms is None else max(0, self._now_ms - stored_ms)

    def _stored_ms(self, topic: str, queue_id: int, queue_offset: int) -> int | None:
        """storeTimestamp of a message; None if retention deleted it, or its record is damaged."""
        try:
            return self._store.store_timestamp(topic, queue_id, queue_offset)
        except (OffsetOutOfRangeError, CorruptRecordError):
            return None
