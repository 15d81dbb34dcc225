"""Takes timers back: from then on they are not delivered (RecallMessageProcessor.java).

A record that names the timer is appended as the next unit of its timer queue (`timer/<queue>`), with the watermark as
it is. A delivery is the next unit of the same key. So of a recall and a delivery that come at once one sees the other:
the timer was delivered, and the recall says so, or it is never delivered.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa

from rmq_store.broker.delay.due_copies import DueCopyReader
from rmq_store.broker.delay.recalled import RecalledTimers, body_of
from rmq_store.broker.delay.timer_queue import Timers, Watermark, timer_rows
from rmq_store.broker.read.queue_reader import QueueReader
from rmq_store.broker.read.read_request import ReadRequest
from rmq_store.broker.rules import purposes
from rmq_store.broker.rules.timer import TIMER_QUEUES
from rmq_store.broker.write.system_records import system_records
from rmq_store.broker.write.writer import Writer
from rmq_store.errors import OffsetOutOfRangeError, ResponseError
from rmq_store.files.locks.guard import Guard
from rmq_store.format.properties import property_string as names
from rmq_store.format.text.host import Host
from rmq_store.format.text.names import PYRMQ_RECALLED_TOPIC, PYRMQ_TIMER_TOPIC
from rmq_store.format.text.recall_handle import RecallHandle
from rmq_store.lazy.arrow_compute import pc
from rmq_store.log.core.commit_log import CommitLog

_ILLEGAL_OPERATION = 604
_TAG = "_RECALL_TAG_"
_TRIES = 3

# Queue entries looked at per step: 20 bytes each.
_STEP = 1 << 20


class Recalls:
    """Takes timers of one store back. Safe for threads and processes."""

    def __init__(self, log: CommitLog, writer: Writer, broker_name: str, host: Host) -> None:
        self._log = log
        self._writer = writer
        self._broker_name = broker_name
        self._host = host
        self._times = DueCopyReader(log)
        self._reader = QueueReader(log, "", body_limit_bytes=0)
        self._guard = Guard()
        self._recalled = [RecalledTimers(log, queue_id) for queue_id in range(TIMER_QUEUES)]

    def recall(self, topic: str, handle: RecallHandle) -> str:
        """See `Store.recall_message`."""
        if handle.topic != topic:
            raise ResponseError(_ILLEGAL_OPERATION, "recall failed, topic not match")
        if handle.broker_name != self._broker_name:
            raise ResponseError(_ILLEGAL_OPERATION, f"recall failed, this is no handle of broker {self._broker_name}")
        if not self._recall_all(handle):
            text = "recall failed, no such timer waits here: it was delivered, or never came"
            raise ResponseError(_ILLEGAL_OPERATION, text)
        return handle.message_id

    def _recall_all(self, handle: RecallHandle) -> bool:
        """Take the timer back, or several, if a client has repeated its send; False: none was left to take back."""
        for tries_left in reversed(range(_TRIES)):
            try:
                taken = [self._recall(queue_id, offset, handle) for queue_id, offset in self._find(handle)]
                return any(taken)
            except (FileNotFoundError, OffsetOutOfRangeError):  # retention was faster
                if not tries_left:
                    raise
        raise AssertionError

    def _recall(self, queue_id: int, queue_offset: int, handle: RecallHandle) -> bool:
        """Take one timer back; False: it was delivered."""
        while True:
            watermark = Watermark.of(self._writer.newest_unit(purposes.TIMER, str(queue_id)))
            if self._is_recalled(queue_id, queue_offset, watermark.start):
                if self._log.sync_flush:  # by somebody who may not have seen it on disk
                    self._writer.flush()
                return True
            row = timer_rows(self._log, self._times, queue_id, queue_offset, queue_offset + 1)
            if not len(watermark.not_delivered(row)):
                return False
            body = body_of(handle.topic, handle.message_id, queue_offset)
            record = system_records(self._log, self._host, PYRMQ_RECALLED_TOPIC, queue_id, _TAG, [body])
            unit = replace(watermark, number=(watermark.number or 0) + 1).unit(queue_id)
            if self._writer.append_unit([record], replace(unit, row_count=1), expect=watermark.number) is not None:
                return True

    def _is_recalled(self, queue_id: int, queue_offset: int, waits_from: int) -> bool:
        """Whether the timer was taken back. Timers below `waits_from` wait no more, and this object forgets their
        recalls. A client that repeats one so late makes it read all records again.
        """
        with self._guard.entered():
            recalled = self._recalled[queue_id]
            if queue_offset < waits_from:
                recalled = RecalledTimers(self._log, queue_id)
            recalled.read_on(self._log.writing_page.appended_end)
            is_recalled = bool(recalled.contains(np.array([queue_offset])).any())
            self._recalled[queue_id].forget_below(waits_from)
            return is_recalled

    def _find(self, handle: RecallHandle) -> list[tuple[int, int]]:
        """Queue and offset of the timers of this handle: of those that may wait, otherwise of all that are left."""
        starts = [
            Watermark.of(self._writer.newest_unit(purposes.TIMER, str(queue_id))).start
            for queue_id in range(TIMER_QUEUES)
        ]
        return self._find_from(starts, handle) or self._find_from([0] * TIMER_QUEUES, handle)

    def _find_from(self, starts: list[int], handle: RecallHandle) -> list[tuple[int, int]]:
        return [
            (queue_id, offset)
            for queue_id, start in enumerate(starts)
            for rows in self._due(queue_id, start, handle.deliver_ms)
            for offset in rows["queue_offset"].tolist()
            if self._is_of(queue_id, offset, handle)
        ]

    def _due(self, queue_id: int, start: int, due_ms: int) -> Iterator[Timers]:
        last = self._log.queue_max(PYRMQ_TIMER_TOPIC, queue_id, self._log.visible_end())
        first = max(start, self._log.queue_min(PYRMQ_TIMER_TOPIC, queue_id, self._log.segments.span(), last))
        for at in range(first, last, _STEP):
            rows = timer_rows(self._log, self._times, queue_id, at, min(at + _STEP, last))
            yield rows[rows["due_ms"] == due_ms]

    def _is_of(self, queue_id: int, queue_offset: int, handle: RecallHandle) -> bool:
        entries = self._log.views.queue(PYRMQ_TIMER_TOPIC, queue_id).entries(queue_offset, queue_offset + 1)
        request = ReadRequest(
            PYRMQ_TIMER_TOPIC, queue_id, queue_offset, queue_offset + 1, ["properties"], raw_body=True
        )
        wanted = (handle.topic, handle.message_id)
        for batch in self._reader.read(request, entries):
            texts = [
                pc.map_lookup(batch.column("properties"), pa.scalar(name), "first")[0].as_py()
                for name in (names.REAL_TOPIC, names.UNIQUE_KEY)
            ]
            if tuple(texts) == wanted:
                return True
        return False
