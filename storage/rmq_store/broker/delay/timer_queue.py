"""One queue of messages with an absolute time: the due ones, and the delivered ones (data plane).

Their times are in no order, so one queue offset cannot say which were delivered. A watermark does. Each unit
`timer/<queue id>` moves the watermark, in the same record that ends the delivery:

    time, offset    every message before this (time, queue offset) was delivered,
    scanned_end       if its queue offset is below this
    start           below this queue offset everything was delivered: where a first look begins

          due time
             ^      .    .        .     waiting
        time +------------------+
             |  delivered       | late: put here after the look, due before it
             +------------------+------> queue offset
                           scanned_end

The value of the unit is its number, because two watermarks may have one time. The time of a watermark never goes back:
after the clock was set back, a message due before that time is delivered at once.

Timers that were taken back (`recalled`) are in no row that this module looks at; the watermark passes them.

The queue's entries hold the due times. A broker that rebuilt the queue wrote hashes of tags there, which look like
times in January 1970. For such an entry the due time is read from the record.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from rmq_store.broker.delay.due_copies import Chunk, DueCopyReader, DueRows
from rmq_store.broker.delay.recalled import RecalledTimers
from rmq_store.broker.read.queues import Queues
from rmq_store.broker.rules import purposes
from rmq_store.broker.write.writer import Writer
from rmq_store.format.text.names import PYRMQ_TIMER_TOPIC
from rmq_store.format.views.consume_queue import PRE_BLANK_SIZE
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.log.core.commit_log import CommitLog
from rmq_store.log.core.units import UnitRecord

# Waiting messages that are remembered per queue, the earliest ones, 32 bytes each.
_REMEMBERED_ROWS = 1 << 18

# Entries looked at per step: 20 bytes each.
_STEP = 1 << 20

_HASH_END = 1 << 31

_ROW = np.dtype([("due_ms", "i8"), ("queue_offset", "i8"), ("log_offset", "i8"), ("size", "i8")])
Timers = npt.NDArray[np.void]


@dataclass(frozen=True, slots=True)
class Watermark:
    """The watermark of deliveries, see above. `number`: of its unit; None: there is none yet."""

    number: int | None = None
    time_ms: int = 0
    offset: int = 0
    scanned_end: int = 0
    start: int = 0

    @classmethod
    def of(cls, unit: UnitRecord | None) -> Watermark:
        """The watermark in a unit."""
        if unit is None:
            return cls()
        detail = unit.detail
        return cls(unit.value, *(detail.get(name, 0) for name in ("time", "offset", "scanned_end", "start")))

    def unit(self, queue_id: int) -> UnitRecord:
        """The unit with this watermark."""
        detail = {"time": self.time_ms, "offset": self.offset, "scanned_end": self.scanned_end, "start": self.start}
        return UnitRecord(purposes.TIMER, str(queue_id), self.number, detail=detail)

    def not_delivered(self, rows: Timers) -> Timers:
        """The rows that were not delivered."""
        before = (rows["due_ms"] < self.time_ms) | (
            (rows["due_ms"] == self.time_ms) & (rows["queue_offset"] < self.offset)
        )
        waiting: Timers = rows[~(before & (rows["queue_offset"] < self.scanned_end))]
        return waiting


class Earliest:
    """The earliest waiting messages of those scanned, by time and queue offset; at most `rows_max`."""

    def __init__(self, rows_max: int) -> None:
        self.rows: Timers = np.empty(0, _ROW)
        self.end_ms: int | None = None
        """Messages due at or after this may have been left out; None: none was."""
        self._rows_max = rows_max

    def add(self, rows: Timers) -> None:
        """Add rows with queue offsets above those of all earlier calls."""
        if self.end_ms is not None:
            rows = rows[rows["due_ms"] < self.end_ms]
        if not len(rows):
            return
        # A few new rows among very many: no sorting of all of them.
        rows = rows[np.argsort(rows["due_ms"], kind="stable")]
        merged = np.insert(self.rows, np.searchsorted(self.rows["due_ms"], rows["due_ms"], side="right"), rows)
        if len(merged) > self._rows_max:
            self.end_ms = int(merged["due_ms"][self._rows_max])
        self.rows = merged[: self._rows_max]

    def is_complete(self, now_ms: int) -> bool:
        """True if all messages that are due now are included."""
        return self.end_ms is None or self.end_ms > now_ms


class TimerQueue:
    """One timer queue of a store open for writing. It remembers waiting messages, so a repeated call reads only new
    entries.
    """

    def __init__(
        self, log: CommitLog, writer: Writer, queues: Queues, queue_id: int, rows_max: int = _REMEMBERED_ROWS
    ) -> None:
        self._log = log
        self._writer = writer
        self._queues = queues
        self._queue_id = queue_id
        self._reader = DueCopyReader(log)
        self._recalled = RecalledTimers(log, queue_id)
        self._rows_max = rows_max
        self._watermark: Watermark | None = None  # None: not looked yet
        self._begin(0)

    def next_due_ms(self, end: int, now_ms: int) -> int | None:
        """As `DelayLevel.next_due_ms`."""
        if not self._scan_on(end):
            return now_ms
        rows = self._earliest.rows
        return int(rows["due_ms"][0]) if len(rows) else None

    def chunk(self, now_ms: int, rows_max: int, bytes_max: int) -> Chunk | None:
        """Due messages that were not delivered, earliest first; None: none."""
        watermark = Watermark.of(self._writer.newest_unit(purposes.TIMER, str(self._queue_id)))
        self._go_on_from(watermark)
        if not self._scan_on(self._log.visible_end()):
            return None
        late, scanned_end = self._late(watermark, rows_max, bytes_max)
        new = replace(watermark, number=(watermark.number or 0) + 1, scanned_end=scanned_end)
        taken = late
        if scanned_end == self._scanned:
            due = self._earliest.rows[self._earliest.rows["due_ms"] <= now_ms]
            on_time = due[due["due_ms"] >= watermark.time_ms]
            part = on_time[:0]
            if len(late) < rows_max:
                part = _within(on_time, rows_max - len(late), bytes_max - int(late["size"].sum()))
            taken = np.concatenate([late, part])
            if len(part) == len(on_time) and self._earliest.is_complete(now_ms):
                if now_ms >= watermark.time_ms:
                    new = replace(new, time_ms=now_ms + 1, offset=0)
            elif len(part):
                new = replace(new, time_ms=int(part["due_ms"][-1]), offset=int(part["queue_offset"][-1]) + 1)
        if not len(taken):
            return None
        new = replace(new, start=self._start(new))
        taken = taken[np.lexsort((taken["queue_offset"], taken["due_ms"]))]
        columns = (taken[name].copy() for name in ("queue_offset", "log_offset", "size"))
        return Chunk(DueRows(PYRMQ_TIMER_TOPIC, self._queue_id, *columns), new.unit(self._queue_id), watermark.number)

    def delivered(self, chunk: Chunk) -> None:
        """The chunk is in the log."""
        self._go_on_from(Watermark.of(chunk.unit))

    def not_late_ms(self, now_ms: int) -> int:
        """The earliest due time (ms) of a message stored now that is not delivered at once. The watermark is ahead of
        the clock if the clock was set back.
        """
        return max(now_ms, Watermark.of(self._writer.newest_unit(purposes.TIMER, str(self._queue_id))).time_ms)

    def _go_on_from(self, watermark: Watermark) -> None:
        if self._watermark is None:
            self._begin(watermark.start)
        elif watermark == self._watermark:
            return
        self._watermark = watermark
        self._earliest.rows = watermark.not_delivered(self._earliest.rows)
        self._recalled.forget_below(watermark.start)

    def _begin(self, start: int) -> None:
        self._scanned = self._lowest = start
        self._earliest = Earliest(self._rows_max)

    def _scan_on(self, end: int) -> bool:
        """Read the new entries; False if retention deleted some meanwhile: call it again."""
        try:
            last = self._log.queue_max(PYRMQ_TIMER_TOPIC, self._queue_id, end)
            if not last:
                return True
            if self._recalled.read_on(self._log.writing_page.appended_end):
                self._earliest.rows = self._without_recalled(self._earliest.rows)
            if self._watermark is None:
                self._go_on_from(Watermark.of(self._writer.newest_unit(purposes.TIMER, str(self._queue_id))))
            assert self._watermark is not None
            if not len(self._earliest.rows) and self._earliest.end_ms is not None:
                self._begin(self._watermark.start)
            while self._scanned < last:
                stop = min(last, self._scanned + _STEP)
                rows = self._watermark.not_delivered(self._rows(self._scanned, stop))
                if not len(rows) and self._lowest == self._scanned:
                    self._lowest = stop
                self._earliest.add(rows)
                self._scanned = stop
        except FileNotFoundError:
            first = self._queues.range(PYRMQ_TIMER_TOPIC, self._queue_id).min_offset
            self._scanned = max(self._scanned, first)
            return False
        return True

    def _late(self, watermark: Watermark, rows_max: int, bytes_max: int) -> tuple[Timers, int]:
        """Messages that were stored after the watermark's scan and are due before its time, in queue order; and the new
        scanned end.
        """
        found, count, size = [np.empty(0, _ROW)], 0, 0
        for first in range(watermark.scanned_end, self._scanned, _STEP) if watermark.time_ms else ():
            rows = self._rows(first, min(first + _STEP, self._scanned))
            rows = rows[rows["due_ms"] < watermark.time_ms]
            part = _within(rows, rows_max - count, bytes_max - size)
            found.append(part)
            count, size = count + len(part), size + int(part["size"].sum())
            if len(part) < len(rows) or count >= rows_max:
                return np.concatenate(found), int(part["queue_offset"][-1]) + 1
        return np.concatenate(found), self._scanned

    def _start(self, watermark: Watermark) -> int:
        """The queue offset below which no message waits any more."""
        if self._earliest.end_ms is not None:
            return self._lowest
        offsets = watermark.not_delivered(self._earliest.rows)["queue_offset"]
        return int(offsets.min()) if len(offsets) else self._scanned

    def _rows(self, start: int, stop: int) -> Timers:
        return self._without_recalled(timer_rows(self._log, self._reader, self._queue_id, start, stop))

    def _without_recalled(self, rows: Timers) -> Timers:
        left: Timers = rows[~self._recalled.contains(rows["queue_offset"])] if len(self._recalled.offsets) else rows
        return left


def timer_rows(log: CommitLog, reader: DueCopyReader, queue_id: int, start: int, stop: int) -> Timers:
    """Messages [start, stop) of a timer queue without its pre-blank slots; FileNotFoundError if a file is gone."""
    entries = log.views.queue(PYRMQ_TIMER_TOPIC, queue_id).entries(start, stop)
    all_rows = np.empty(len(entries), _ROW)
    all_rows["due_ms"] = entries["tags_code"]
    all_rows["queue_offset"] = np.arange(start, stop)
    all_rows["log_offset"] = entries["commit_log_offset"]
    all_rows["size"] = entries["frame_size"]
    rows: Timers = all_rows[all_rows["size"] != PRE_BLANK_SIZE]
    hashes = np.flatnonzero(rows["due_ms"] < _HASH_END)
    if len(hashes):
        columns = (rows[name][hashes] for name in ("queue_offset", "log_offset", "size"))
        rows["due_ms"][hashes] = reader.due_times(DueRows(PYRMQ_TIMER_TOPIC, queue_id, *columns))
    return rows


def _within(rows: Timers, rows_max: int, bytes_max: int) -> Timers:
    """The first rows within both limits, at least one."""
    count = int(np.searchsorted(np.cumsum(rows["size"]), bytes_max, side="right"))
    first: Timers = rows[: max(1, min(rows_max, count))]
    return first
