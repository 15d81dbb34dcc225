"""One delay level: its due messages, and its progress (ScheduleMessageService.java).

Messages of level n wait in queue n - 1 of SCHEDULE_TOPIC_XXXX; the tags code of a queue entry is the time at which its
message is due. They are delivered in queue order: no message after the first one that is not due is delivered. A due
time further ahead than the level's delay counts as now (the clock was set back, or the level was shortened). For this
test the clock is read after the queue. Otherwise a message stored in between would seem to be too far ahead. A level
that the table has no more has no delay: its messages are delivered at their due times. The same holds for a level whose
delay is assumed. If the delay is inferred from a broker's messages (`rmq_store.log.recovery.delay_inference`), it is
unknown whether the level was shortened. Then a due time counts as now only if its message was stored later than now,
too.

    progress = the larger of   the newest unit `delay/<level>`     ours: written together with the delivered messages
                               config/delayOffset.json             a broker's, and ours for a broker; written behind
               and inside the queue

Sources: ScheduleMessageService.java (executeOnTimeUp, correctDeliverTimestamp, correctDelayOffset).
"""

from __future__ import annotations

import numpy as np

from rmq_store.broker.delay.due_copies import Chunk, DueRows
from rmq_store.broker.metadata.offsets import DelayOffsetTable
from rmq_store.broker.read.queues import Queues
from rmq_store.broker.rules import purposes
from rmq_store.broker.write.writer import Writer
from rmq_store.format.text.names import SCHEDULE_TOPIC
from rmq_store.log.core.commit_log import CommitLog
from rmq_store.log.core.units import UnitRecord
from rmq_store.log.recovery.delivery_times import due_times

# Delay of a level that is not in messageDelayLevel: whatever the queue entries say is believed.
NO_DELAY_MS = 1 << 62


def count_due(due_ms: np.ndarray, until_ms: int, now_ms: int, delay_ms: int) -> int:
    """The number of messages of a level that are due at `until_ms`, by their due times in queue order. `now_ms`: a time
    at which all of them were stored already.
    """
    is_waiting = (due_ms > until_ms) & (due_ms <= now_ms + delay_ms)
    return int(is_waiting.argmax()) if is_waiting.any() else len(due_ms)


class DelayLevel:
    """One level of a store open for writing. It remembers when its first message is due, so a repeated call costs
    nothing.
    """

    def __init__(
        self,
        log: CommitLog,
        writer: Writer,
        queues: Queues,
        offsets: DelayOffsetTable,
        level: int,
        delay_ms: int,
    ) -> None:
        self.level = level
        self._log = log
        self._writer = writer
        self._queues = queues
        self._offsets = offsets
        self._delay_ms = NO_DELAY_MS if log.delays.is_assumed(level) else delay_ms
        self._asks_records = log.delays.inferred is not None
        self._queue_id = level - 1
        self._next: int | None = None  # queue offset of the first message that waits; None: not looked yet
        self._due_ms: int | None = None  # when it is due; None: it was not there when we looked
        self._log_offset = -1  # where its record is

    def next_due_ms(self, end: int, now_ms: int) -> int | None:
        """The due time of the first undelivered message below `end`; None: there is none. Another process may have
        delivered that message meanwhile. `now_ms`: a time read after the log ended there.
        """
        if self._due_ms is None:
            self._look(end)
        if self._due_ms is None:
            return None
        if self._due_ms <= now_ms + self._delay_ms or not self._is_of_future(self._log_offset, now_ms):
            return self._due_ms
        return now_ms

    def chunk(self, until_ms: int, rows_max: int, bytes_max: int) -> Chunk | None:
        """Messages that were due at `until_ms`, from the first undelivered one on; None: none."""
        unit = self.newest_unit()
        progress = self._progress(unit)
        first, last = self._queues.range(SCHEDULE_TOPIC, self._queue_id)
        start = self._next = min(max(progress, first), last)
        try:
            entries = self._log.views.queue(SCHEDULE_TOPIC, self._queue_id).entries(start, min(last, start + rows_max))
        except FileNotFoundError:
            self._due_ms = 0  # retention was faster: look again
            return None
        due_ms, now_ms = due_times(self._log, self._queue_id, entries), self._log.clock()
        self._due_ms = int(due_ms[0]) if len(entries) else None
        self._log_offset = int(entries["commit_log_offset"][0]) if len(entries) else -1
        count = count_due(due_ms, until_ms, now_ms, self._delay_ms)
        if self._asks_records:
            count = self._count_sure(due_ms[:count], entries, until_ms, now_ms)
        if not count:
            return None
        rows = DueRows.of(SCHEDULE_TOPIC, self._queue_id, start, entries[:count]).within(bytes_max)
        record = UnitRecord(purposes.DELAY, str(self.level), start + len(rows))
        return Chunk(rows, record, unit.value if unit else None)

    def delivered(self, chunk: Chunk) -> None:
        """Call it when the chunk is in the log."""
        self._next = chunk.unit.value
        self._due_ms = None

    def newest_unit(self) -> UnitRecord | None:
        """The unit of the last delivery, by any process of this engine."""
        return self._writer.newest_unit(purposes.DELAY, str(self.level))

    def _progress(self, unit: UnitRecord | None) -> int:
        ours = unit.value if unit and unit.value else 0
        return max(ours, self._offsets.all().get(self.level, 0))

    def _count_sure(self, due_ms: np.ndarray, entries: np.ndarray, until_ms: int, now_ms: int) -> int:
        """The number of due messages if the length of the delay alone makes none due."""
        for row in np.flatnonzero(due_ms > until_ms).tolist():
            if not self._is_of_future(int(entries["commit_log_offset"][row]), now_ms):
                return row
        return len(due_ms)

    def _is_of_future(self, log_offset: int, now_ms: int) -> bool:
        """True if a message was stored later than now, by a clock that was set back since. Always true if the store's
        settings give the delays.
        """
        if not self._asks_records:
            return True
        stored_ms = self._log.store_timestamp(log_offset)
        return stored_ms is not None and stored_ms > now_ms

    def _look(self, end: int) -> None:
        try:
            last = self._log.queue_max(SCHEDULE_TOPIC, self._queue_id, end)
            if not last:
                return
            if self._next is None:
                self._next = self._progress(self.newest_unit())
            if self._next < last:
                first = self._log.views.queue(SCHEDULE_TOPIC, self._queue_id).entries(self._next, self._next + 1)
                self._log_offset = int(first["commit_log_offset"][0])
                self._due_ms = int(due_times(self._log, self._queue_id, first)[0])
        except FileNotFoundError:
            self._due_ms = 0  # retention took messages: `chunk` finds out where the queue begins now
