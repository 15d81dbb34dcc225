"""One delay level: its due messages, and its progress (ScheduleMessageService.java).

Messages of level n wait in queue n - 1 of SCHEDULE_TOPIC_XXXX; the tags code of a queue entry is the time at which its
message is due. They are delivered in queue order: behind the first one that is not due nothing is. A time further ahead
than the level's delay (the clock was set back, the level was shortened) counts as now. For that the clock is asked
after the queue: what was stored between the two would else seem to be too far ahead. A level that the table does not
have any more has no delay: its messages come at their times. So do those of a level whose delay is assumed. Where the
messages of a broker tell the delay (`rmq_store.log.recovery.delay_inference`), nobody knows whether the level was
shortened: a time counts as now only if its message was stored later than now, too.

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
    """How many messages of a level are due at `until_ms`, given their times in queue order. `now_ms`: the time when all
    of them were there.
    """
    is_waiting = (due_ms > until_ms) & (due_ms <= now_ms + delay_ms)
    return int(is_waiting.argmax()) if is_waiting.any() else len(due_ms)


class DelayLevel:
    """One level of a store open for writing. Remembers when its first message is due: looking again costs nothing."""

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
        self._place = -1  # where its record is

    def next_due_ms(self, end: int, now_ms: int) -> int | None:
        """When the first message that waits below `end` is due; None: none waits. May name one that another process
        has delivered meanwhile. `now_ms`: the time after the log ended there.
        """
        if self._due_ms is None:
            self._look(end)
        if self._due_ms is None:
            return None
        if self._due_ms <= now_ms + self._delay_ms or not self._is_of_future(self._place, now_ms):
            return self._due_ms
        return now_ms

    def chunk(self, until_ms: int, rows_max: int, bytes_max: int) -> Chunk | None:
        """Messages that were due at `until_ms`, from the first one that nobody delivered; None: none."""
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
        self._place = int(entries["commit_log_offset"][0]) if len(entries) else -1
        count = count_due(due_ms, until_ms, now_ms, self._delay_ms)
        if self._asks_records:
            count = self._count_sure(due_ms[:count], entries, until_ms, now_ms)
        if not count:
            return None
        rows = DueRows.of(SCHEDULE_TOPIC, self._queue_id, start, entries[:count]).within(bytes_max)
        record = UnitRecord(purposes.DELAY, str(self.level), start + len(rows))
        return Chunk(rows, record, unit.value if unit else None)

    def delivered(self, chunk: Chunk) -> None:
        """The chunk is in the log."""
        self._next = chunk.unit.value
        self._due_ms = None

    def newest_unit(self) -> UnitRecord | None:
        """The last delivery, by any process of ours."""
        return self._writer.newest_unit(purposes.DELAY, str(self.level))

    def _progress(self, unit: UnitRecord | None) -> int:
        ours = unit.value if unit and unit.value else 0
        return max(ours, self._offsets.all().get(self.level, 0))

    def _count_sure(self, due_ms: np.ndarray, entries: np.ndarray, until_ms: int, now_ms: int) -> int:
        """How many of these messages are due, if none is for the length of its delay alone."""
        for row in np.flatnonzero(due_ms > until_ms).tolist():
            if not self._is_of_future(int(entries["commit_log_offset"][row]), now_ms):
                return row
        return len(due_ms)

    def _is_of_future(self, log_offset: int, now_ms: int) -> bool:
        """Whether a message was stored later than now, by a clock that was set back since; of any if the store's
        settings tell the delays.
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
                self._place = int(first["commit_log_offset"][0])
                self._due_ms = int(due_times(self._log, self._queue_id, first)[0])
        except FileNotFoundError:
            self._due_ms = 0  # retention took messages: `chunk` finds out where the queue begins now
