"""Timers that were taken back, by the records that say so (data plane).

    rmq_sys_pyrmq_recalled     queue n: of timer queue n; the body is JSON
        {"topic": t, "messageId": id, "queueOffset": where the timer waits in timer queue n}

A record lies behind its timer in the log, so retention never takes it before. It is read up to the end of what is
appended, not of what is on disk: a timer must not be delivered because the disk was slow. RocketMQ has such a record in
its timer wheel (RecallMessageProcessor.java, TIMER_DEL_UNIQKEY); a broker delivers none of our timers.
"""

from __future__ import annotations

import json
import logging

import numpy as np
import numpy.typing as npt

from rmq_store.broker.read.queue_reader import QueueReader
from rmq_store.broker.read.read_request import ReadRequest
from rmq_store.errors import CorruptRecordError, OffsetOutOfRangeError
from rmq_store.format.text.names import PYRMQ_RECALLED_TOPIC
from rmq_store.log.core.commit_log import CommitLog

_LOG = logging.getLogger(__name__)

Int64 = npt.NDArray[np.int64]

# Records read at once.
_STEP = 1 << 12


class RecalledTimers:
    """The timers of one timer queue that were taken back, as far as they were read; not safe for threads."""

    def __init__(self, log: CommitLog, queue_id: int) -> None:
        self.offsets: Int64 = np.empty(0, np.int64)
        """Their queue offsets, ascending."""
        self._log = log
        self._queue_id = queue_id
        self._reader = QueueReader(log, "", body_limit_bytes=log.segments.size_bytes)
        self._next = 0

    def read_on(self, end: int) -> bool:
        """Read the records below `end` of the log that are new; whether there were some. A damaged record is logged,
        and takes nothing back. CorruptionError: the queue is damaged.
        """
        last = self._log.queue_max(PYRMQ_RECALLED_TOPIC, self._queue_id, end)
        if self._next >= last:
            return False
        found = [self.offsets]
        try:
            self._next = max(self._next, self._first(last))
            while self._next < last:
                stop = min(last, self._next + _STEP)
                found.append(np.array(self._read(self._next, stop), np.int64))
                self._next = stop
        except (OffsetOutOfRangeError, FileNotFoundError):  # retention was faster, also with the timers
            self._next = self._first(last)
        self.offsets = np.unique(np.concatenate(found))
        return True

    def forget_below(self, queue_offset: int) -> None:
        """Forget timers that are looked at no more."""
        self.offsets = self.offsets[np.searchsorted(self.offsets, queue_offset) :]

    def contains(self, offsets: Int64) -> npt.NDArray[np.bool_]:
        """Those of `offsets` (n,) that were taken back; bool."""
        return np.isin(offsets, self.offsets)

    def _first(self, last: int) -> int:
        return self._log.queue_min(PYRMQ_RECALLED_TOPIC, self._queue_id, self._log.segments.span(), last)

    def _read(self, first: int, last: int) -> list[int]:
        entries = self._log.views.queue(PYRMQ_RECALLED_TOPIC, self._queue_id).entries(first, last)
        request = ReadRequest(PYRMQ_RECALLED_TOPIC, self._queue_id, first, last, ["body"], raw_body=True)
        try:
            batches = list(self._reader.read(request, entries))
            return [offset_in(body) for batch in batches for body in batch.column("body").to_pylist()]
        except (CorruptRecordError, ValueError, RecursionError) as error:
            if last - first > 1:
                middle = (first + last) // 2
                return [*self._read(first, middle), *self._read(middle, last)]
            _LOG.error(
                "%s: record %d of %s-%d is damaged; the timer that it took back will be delivered: %s",
                self._log.root, first, PYRMQ_RECALLED_TOPIC, self._queue_id, error,
            )  # fmt: skip
            return []


def body_of(topic: str, message_id: str, queue_offset: int) -> bytes:
    """The body of a record."""
    return json.dumps({"topic": topic, "messageId": message_id, "queueOffset": queue_offset}).encode()


def offset_in(body: bytes) -> int:
    """The queue offset of the timer that a record names. ValueError: the body is none of a record."""
    content = json.loads(body)
    offset = content.get("queueOffset") if isinstance(content, dict) else None
    if type(offset) is not int or not 0 <= offset < 1 << 63:
        raise ValueError("it names no timer")
    return offset
