"""Reads single messages of a queue for a pop, and finds the first offset of a new group.

Sources: PopMessageProcessor#getInitOffset, PullMessageProcessor (limits), MessageStore#checkInDiskByConsumeOffset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import IntEnum
from typing import cast

import pyarrow as pa

from rmq_store.broker.read.queues import Queues
from rmq_store.broker.read.read_request import ReadRequest
from rmq_store.broker.rules.hot_queue import starts_at_first_message
from rmq_store.errors import CorruptionError, CorruptRecordError, OffsetOutOfRangeError
from rmq_store.lazy.arrow_compute import pc
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.protocol.results import QueueRange

# MessageStoreConfig.java: accessMessageInMemoryMaxRatio, maxTransferBytesOnMessageInMemory.
READ_BYTES_MAX = 256 << 10
# Messages that one receive examines before it answers that none matched.
SCAN_MAX = 4096
_STEP = 256

PropertyFilter = Callable[[Mapping[str, str]], bool]


class ConsumeInitMode(IntEnum):
    """The start of a group in a queue in which it has no offset (ConsumeInitMode.java).

    MIN: the first message. MAX: the last one; but a young queue, whose message 0 lies near the end of the log, is read
    from its start. Retry topics are always read from their start.
    """

    MIN = 0
    MAX = 1


@dataclass(frozen=True, slots=True)
class StoredRow:
    """One message: a batch of one row of MESSAGE_SCHEMA, and the fields that a pop needs."""

    row: pa.RecordBatch
    queue_id: int
    queue_offset: int
    commit_log_offset: int
    reconsume_times: int

    @property
    def body_bytes(self) -> int:
        """The size of the body."""
        return cast(int, pc.binary_length(self.row.column("body"))[0].as_py())


@dataclass(frozen=True, slots=True)
class Damaged:
    """A message that cannot be read."""

    queue_id: int
    queue_offset: int
    commit_log_offset: int
    error: CorruptionError


class TopicReader:
    """The queues of one topic. Control plane: a few messages at a time."""

    def __init__(self, queues: Queues, topic: str) -> None:
        self._queues = queues
        self._topic = topic

    def ranges(self, queue_count: int) -> dict[int, QueueRange]:
        """Readable ranges of each queue, at one moment."""
        return self._queues.ranges(self._topic, range(queue_count))

    def first_offset(self, queue_id: int, found: QueueRange, mode: ConsumeInitMode, *, is_retry: bool) -> int:
        """The offset at which a group without an offset begins."""
        if mode is ConsumeInitMode.MIN or is_retry:
            return found.min_offset
        if found.min_offset == 0 and starts_at_first_message(self._queues, self._topic, queue_id, found.max_offset):
            return 0
        return max(found.max_offset - 1, found.min_offset)

    def fingerprint(self, queue_id: int, next_offset: int) -> tuple[int, int]:
        """(commit-log offset, store timestamp in ms) of the message before `next_offset`; -1 twice if there is none. A
        damaged one has the time -1.
        """
        offset = self._queues.commit_log_offset_before(self._topic, queue_id, next_offset)
        if offset < 0:
            return -1, -1
        try:
            return offset, self._queues.store_timestamp(self._topic, queue_id, next_offset - 1)
        except CorruptRecordError:
            return offset, -1

    def message(self, queue_id: int, queue_offset: int) -> StoredRow | Damaged | None:
        """One message; None if retention has taken it."""
        try:
            return next(self._rows(queue_id, queue_offset, queue_offset + 1, None), None)
        except OffsetOutOfRangeError:
            return None

    def scan(
        self, queue_id: int, start: int, end: int, count: int, tags: str | None, accepts: PropertyFilter | None
    ) -> tuple[list[StoredRow | Damaged], int]:
        """Up to `count` messages of [start, end) that match or are damaged, and the offset after the last message read.
        Reads SCAN_MAX messages at most. OffsetOutOfRangeError; CorruptionError: the queue itself is damaged.
        """
        found: list[StoredRow | Damaged] = []
        at, end = start, min(end, start + SCAN_MAX)
        step = count if tags is None and accepts is None else max(count, _STEP)
        while at < end:
            stop = self._queues.offset_after_bytes(self._topic, queue_id, at, min(at + step, end), READ_BYTES_MAX)
            for row in self._rows(queue_id, at, stop, tags):
                if (
                    accepts is None
                    or isinstance(row, Damaged)
                    or accepts(dict(row.row.column("properties")[0].as_py()))
                ):
                    found.append(row)
                    if len(found) == count:
                        return found, row.queue_offset + 1
            at = stop
        return found, at

    def _rows(self, queue_id: int, start: int, end: int, tags: str | None) -> Iterator[StoredRow | Damaged]:
        try:
            yield from self._read(queue_id, start, end, tags)
        except CorruptionError as error:
            if end - start == 1:
                place = self._queues.commit_log_offset_before(self._topic, queue_id, end)
                yield Damaged(queue_id, start, place, error)
                return
            middle = (start + end) // 2
            yield from self._rows(queue_id, start, middle, tags)
            yield from self._rows(queue_id, middle, end, tags)

    def _read(self, queue_id: int, start: int, end: int, tags: str | None) -> list[StoredRow]:
        found: list[StoredRow] = []
        for batch in self._queues.read(ReadRequest(self._topic, queue_id, start, end, tags=tags)):
            offsets, places, times = (
                batch.column(name).to_pylist() for name in ("queueOffset", "commitLogOffset", "reconsumeTimes")
            )
            found += (
                StoredRow(batch.slice(row, 1), queue_id, offsets[row], places[row], times[row])
                for row in range(batch.num_rows)
            )
        return found
