"""One delay level: which of its messages are due, and how far it was delivered (ScheduleMessageService.java).

Messages of level n wait in queue n - 1 of SCHEDULE_TOPIC_XXXX; the tags code of a queue entry is the time at which its
message is due. They are delivered in queue order: behind the first one that is not due nothing is. A time further ahead
than the level's delay (the clock was set back, the level was shortened) counts as now. For that the clock is asked
after the queue: what was stored between the two would else seem to be too far ahead. A level that the table does not
have any more has no delay: its messages come at their times.

    progress = the larger of   the newest unit `delay/<level>`     ours: written together with the delivered messages
                               config/delayOffset.json             a broker's, and ours for a broker; written behind
               and inside the queue

Sources: ScheduleMessageService.java (executeOnTimeUp, correctDeliverTimestamp, correctDelayOffset); store-format.md
10.3, 10.4.
"""

from __future__ import annotations

import numpy as np

from rmq_store.broker.offsets import DelayOffsetTable
from rmq_store.broker.parked import Chunk, ParkedRows
from rmq_store.broker.queues import Queues
from rmq_store.broker.writing import Writer
from rmq_store.format.names import SCHEDULE_TOPIC
from rmq_store.log.commit_log import CommitLog
from rmq_store.log.units import UnitRecord

PURPOSE = "delay"

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
        self._delay_ms = delay_ms
        self._queue_id = level - 1
        self._next: int | None = None  # queue offset of the first message that waits; None: not looked yet
        self._due_ms: int | None = None  # when it is due; None: it was not there when we looked

    def next_due_ms(self, end: int, now_ms: int) -> int | None:
        """When the first message that waits below `end` is due; None: none waits. May name one that another process
        has delivered meanwhile. `now_ms`: the time after the log ended there.
        """
        if self._due_ms is None:
            self._look(end)
        if self._due_ms is None:
            return None
        return self._due_ms if self._due_ms <= now_ms + self._delay_ms else now_ms

    def chunk(self, until_ms: int, rows_max: int, bytes_max: int) -> Chunk | None:
        """What was due at `until_ms`, from the first message that nobody delivered; None: nothing."""
        unit = self.newest_unit()
        progress = self._progress(unit)
        first, last = self._queues.range(SCHEDULE_TOPIC, self._queue_id)
        start = self._next = min(max(progress, first), last)
        try:
            entries = self._log.views.queue(SCHEDULE_TOPIC, self._queue_id).entries(start, min(last, start + rows_max))
        except FileNotFoundError:
            self._due_ms = 0  # retention was faster: look again
            return None
        self._due_ms = int(entries["tags_code"][0]) if len(entries) else None
        count = count_due(entries["tags_code"], until_ms, self._log.clock(), self._delay_ms)
        if not count:
            return None
        rows = ParkedRows.of(SCHEDULE_TOPIC, self._queue_id, start, entries[:count]).within(bytes_max)
        record = UnitRecord(PURPOSE, str(self.level), start + len(rows))
        return Chunk(rows, record, unit.value if unit else None)

    def delivered(self, chunk: Chunk) -> None:
        """The chunk is in the log."""
        self._next = chunk.unit.value
        self._due_ms = None

    def newest_unit(self) -> UnitRecord | None:
        """What was delivered last, by whatever process of ours."""
        return self._writer.newest_unit(PURPOSE, str(self.level))

    def _progress(self, unit: UnitRecord | None) -> int:
        ours = unit.value if unit and unit.value else 0
        return max(ours, self._offsets.all().get(self.level, 0))

    def _look(self, end: int) -> None:
        try:
            last = self._log.queue_max(SCHEDULE_TOPIC, self._queue_id, end)
            if not last:
                return
            if self._next is None:
                self._next = self._progress(self.newest_unit())
            if self._next < last:
                self._due_ms = self._log.views.queue(SCHEDULE_TOPIC, self._queue_id).entry(self._next)[2]
        except FileNotFoundError:
            self._due_ms = 0  # retention took messages: `chunk` finds out where the queue begins now
