"""Delivery of delayed messages without a daemon: the first process that polls delivers the due ones.

A message has a delay level (`delay_level`) or an absolute time (`timer`, `timer_queue`). The due messages of one level
or timer queue are copied as one unit, whose last record holds the progress. The writer appends the unit only after the
unit that was expected. So each message is delivered once, even if several processes poll at once, or one dies anywhere.
`pyrmq/delay.lock` only saves processes from doing the same work twice. If the newest record of a queue is damaged,
nothing can be appended to the queue: its messages are put off, and block no others.

config/delayOffset.json tells a broker the progress. It is written only after the units are on disk. Source:
ScheduleMessageService.java; docs/broker-design.md section 1.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from rmq_store.arguments import checked_methods
from rmq_store.broker.delay.delay_level import NO_DELAY_MS, DelayLevel
from rmq_store.broker.delay.due_copies import PUT_OFF_MS, PUT_OFF_QUEUE, Chunk, DueCopyReader, PutOff, Restored
from rmq_store.broker.delay.timer_queue import TimerQueue
from rmq_store.broker.metadata.offsets import DelayOffsetTable
from rmq_store.broker.read.queues import Queues
from rmq_store.broker.rules.timer import TIMER_QUEUES
from rmq_store.broker.write.writer import Writer
from rmq_store.errors import CorruptConfigError, CorruptionError, NotAStoreError, UsageError
from rmq_store.files.locks.lock import OfdLock
from rmq_store.format.text.names import PYRMQ_RECALLED_TOPIC, PYRMQ_TIMER_TOPIC, SCHEDULE_TOPIC
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.log.append.append import append_lock
from rmq_store.log.append.flush import flush
from rmq_store.log.append.grouping import Groups
from rmq_store.log.core.commit_log import CommitLog, leaves_no_lock
from rmq_store.log.views.views import QueueKey

_LOG = logging.getLogger(__name__)

T = TypeVar("T")

# Messages of one unit: bounds memory, and how long the append lock is held.
CHUNK_ROWS = 65_536
CHUNK_BYTES = 64 << 20

# ScheduleMessageService.java: between two writes of delayOffset.json.
SAVE_INTERVAL_MS = 10_000
# ScheduleMessageService.java (DELAY_FOR_A_PERIOD): after a failure, until a queue is tried again.
TRY_AGAIN_MS = 10_000

_REPAIR = "run `rmq repair --queues`"
_MEND_ENTRY = "mend that entry"


@dataclass(frozen=True, slots=True)
class Delivery:
    """The result of one search for due messages. `next_due_ms`: when the next waiting message is due, perhaps already;
    None: no message waits.
    """

    delivered: int
    next_due_ms: int | None


@dataclass(frozen=True, slots=True)
class _Search:
    """At `now_ms` no message below `end` was due, and none will be before `due_ms`. A queue that failed is tried again
    at `again_ms`.
    """

    end: int = -1
    now_ms: int = 0
    due_ms: int | None = None
    again_ms: int | None = None

    def holds(self, end: int, now_ms: int) -> bool:
        until = [time for time in (self.due_ms, self.again_ms) if time is not None]
        return end == self.end and self.now_ms <= now_ms and all(now_ms < time for time in until)


@dataclass(frozen=True, slots=True)
class _Failure:
    """A queue failed at `at_ms`, and `remedy` was logged. `is_delivery`: its messages were read, and could not be
    appended.
    """

    at_ms: int
    remedy: str
    is_delivery: bool


@checked_methods()
class Schedule:
    """The delay levels and timers of one store open for writing. Safe for threads and processes."""

    def __init__(self, log: CommitLog, writer: Writer, queues: Queues) -> None:
        self._log = log
        self._writer = writer
        self._offsets = DelayOffsetTable(log.root, clock=log.clock)
        self._reader = DueCopyReader(log)
        delays_ms = dict(enumerate(log.delay_levels_ms, start=1))
        # Messages also wait in levels that were taken out of messageDelayLevel.
        waiting = {queue_id + 1 for queue_id in log.views.queue_ids(SCHEDULE_TOPIC)}
        self._levels = [
            DelayLevel(log, writer, queues, self._offsets, level, delays_ms.get(level, NO_DELAY_MS))
            for level in sorted(delays_ms.keys() | waiting)
        ]
        self._timers = [TimerQueue(log, writer, queues, queue_id) for queue_id in range(TIMER_QUEUES)]
        self._lanes: dict[DelayLevel | TimerQueue, Path] = {
            **{level: self._queue(SCHEDULE_TOPIC, level.level - 1) for level in self._levels},
            **{timer: self._queue(PYRMQ_TIMER_TOPIC, queue_id) for queue_id, timer in enumerate(self._timers)},
        }
        self._recalls_of = {
            self._lanes[timer]: self._queue(PYRMQ_RECALLED_TOPIC, queue_id)
            for queue_id, timer in enumerate(self._timers)
        }
        self._failed: dict[Path, _Failure] = {}
        self._closed_targets: set[QueueKey] = set()  # those that were named in the log
        self._lock = OfdLock(log.own / "delay.lock")
        # The first one in it delivers. A dict, because to leave it is one step that no signal handler can come between.
        self._turns: dict[object, None] = {}
        self._search = _Search()
        self._is_unsaved = False
        self._saved_ms = log.clock()
        self._skip_levels_without_progress()
        self._correct_progress()

    def deliver_due(self, limit: int | None = None) -> Delivery:
        """Deliver the messages that are due now, each exactly once, even if other processes deliver too. It is cheap if
        none is due. Every 10 s new progress is saved (`save_progress`).

        `limit`: stop after so many messages; None: all due ones. The call does nothing while another thread or process
        delivers. On return delivered messages are visible, and durable under SYNC_FLUSH, which delivers only messages
        that are on disk.

        Raises:
            UsageError: `limit` is below 1.
            StoreFullError, StoreLockedError: messages that were not delivered still wait.
            StoreFailedError, StoreReplacedError: as `Store.send`; no message can come twice.
            CorruptionError: config/delayOffset.json or the unit topic is unreadable. An unreadable queue of a level or
                timer is logged once, as an error, and tried again every TRY_AGAIN_MS; the others continue. A queue that
                takes no messages is logged once too: its messages are put off by PUT_OFF_MS each time.
        """
        if limit is not None and limit < 1:
            raise UsageError(f"limit={limit}: deliver at least one message")
        end, now_ms = self._end_now()
        search = self._search
        is_time_to_save = self._is_unsaved and abs(now_ms - self._saved_ms) >= SAVE_INTERVAL_MS
        if search.holds(end, now_ms) and not is_time_to_save:
            return Delivery(0, search.due_ms)
        self._log.held_root.refuse_if_replaced()
        turn = object()
        try:
            self._turns[turn] = None
            first, *_ = self._turns
            if first is not turn:
                return Delivery(0, now_ms)  # what that thread will find is not known
            if is_time_to_save:
                self.save_progress()
            return self._search_and_deliver(limit)
        finally:
            self._turns.pop(turn, None)
            self._lock.release_left()  # of a block that was interrupted on its way in or out

    @leaves_no_lock
    def save_progress(self) -> None:
        """Write config/delayOffset.json, for a broker that takes the store over. `deliver_due` does this every 10 s,
        and `close` too.

        Costs an fsync of the log if something was delivered since. StoreFailedError, StoreLockedError, CorruptionError.
        """
        self._log.held_root.refuse_if_replaced()
        # Before the look at the units: of what is delivered meanwhile the next call tells.
        self._is_unsaved, self._saved_ms = False, self._log.clock()
        known = self._offsets.all()
        progress: dict[int, int] = {}
        for level in self._levels:
            if self._end_of(level.level - 1):
                unit = level.newest_unit()
                if unit is not None and unit.value is not None and unit.value > known.get(level.level, 0):
                    progress[level.level] = unit.value
        if progress:
            flush(self._log)
            self._offsets.advance(progress)

    def close(self) -> None:
        """Save the progress, and close the lock file. Raises as `save_progress`."""
        try:
            self.save_progress()
        finally:
            self._lock.close()

    def _search_and_deliver(self, limit: int | None) -> Delivery:
        end, now_ms = self._end_now()
        due = self._next_due_ms(end, now_ms)
        delivered = 0
        if due is not None and due <= now_ms:
            with self._lock.exclusive_if_free() as is_alone:
                if not is_alone:
                    return Delivery(0, due)
                delivered = self._deliver(end, now_ms, limit)
            end, now_ms = self._end_now()
            due = self._next_due_ms(end, now_ms)
        failed_ms = [failure.at_ms for failure in list(self._failed.values())]
        self._search = _Search(end, now_ms, due, min(failed_ms) + TRY_AGAIN_MS if failed_ms else None)
        return Delivery(delivered, due)

    def _end_now(self) -> tuple[int, int]:
        """The end of the log, and a time read after it: no message below was stored later, unless the clock was set
        back.
        """
        end = self._log.visible_end()
        return end, self._log.clock()

    def _next_due_ms(self, end: int, now_ms: int) -> int | None:
        due = [time for _, time in self._times(end, now_ms) if time is not None]
        return min(due) if due else None

    def _times(self, end: int, now_ms: int) -> list[tuple[DelayLevel | TimerQueue, int | None]]:
        return [
            (lane, self._try_queue(queue, lambda lane=lane: lane.next_due_ms(end, now_ms), None))  # type: ignore[misc]
            for lane, queue in self._lanes.items()
        ]

    def _queue(self, topic: str, queue_id: int) -> Path:
        return self._log.views.queue(topic, queue_id).run.directory

    def _end_of(self, queue_id: int) -> int:
        end = self._log.writing_page.appended_end
        queue = self._queue(SCHEDULE_TOPIC, queue_id)
        return self._try_queue(queue, lambda: self._log.queue_max(SCHEDULE_TOPIC, queue_id, end), 0)

    def _try_queue(self, queue: Path, question: Callable[[], T], otherwise: T) -> T:
        """Call `question` for one queue. A queue that cannot be read does not block the others: an error is logged
        once, the result is `otherwise`, and it is tried again later.
        """
        failure = self._failed.get(queue)
        if failure is not None and abs(self._log.clock() - failure.at_ms) < TRY_AGAIN_MS:
            return otherwise
        if failure is not None and failure.remedy == _MEND_ENTRY:
            if not self._has_progress(queue):
                return otherwise
            self._works_again(queue)
            self._correct_progress()
        try:
            answer = question()
        except (CorruptionError, NotAStoreError) as error:
            places = {Path(error.path), *Path(error.path).parents}
            # Without its recalls a timer queue would deliver what was taken back.
            if queue not in places and self._recalls_of.get(queue) not in places:
                raise
            self._skip(queue, error)
            return otherwise
        if failure is not None and not failure.is_delivery:
            self._works_again(queue)
        return answer

    def _skip(self, queue: Path, error: Exception, remedy: str = _REPAIR, *, is_delivery: bool = False) -> None:
        is_named = queue in self._failed
        self._failed[queue] = _Failure(self._log.clock(), remedy, is_delivery)
        if not is_named:
            _LOG.error(
                "%s: what waits in queue %s of %s is not delivered, other queues are: %s. Close the store and %s",
                self._log.root, queue.name, queue.parent.name, error, remedy,
            )  # fmt: skip

    def _works_again(self, queue: Path) -> None:
        if self._failed.pop(queue, None) is not None:
            _LOG.warning("%s: queue %s of %s works again", self._log.root, queue.name, queue.parent.name)

    def _skip_levels_without_progress(self) -> None:
        """Skip levels with an unusable entry in the table: it is unknown which of their messages a broker has
        delivered.
        """
        for level in self._levels:
            self._has_progress(self._lanes[level])

    def _has_progress(self, queue: Path) -> bool:
        """True if the table's entry for the level of `queue` can be used; otherwise the queue is skipped."""
        try:
            self._offsets.all().get(int(queue.name) + 1)
        except CorruptConfigError as error:
            self._skip(queue, error, _MEND_ENTRY)
            return False
        return True

    def _deliver(self, end: int, now_ms: int, limit: int | None) -> int:
        """Deliver the messages that were due at `now_ms`, one unit for each level and timer queue in turn. Messages
        that come due meanwhile wait for the next call, because otherwise this one might never end.
        """
        delivered = 0
        lanes = [lane for lane, due in self._times(end, now_ms) if due is not None and due <= now_ms]
        while lanes:
            for lane in list(lanes):
                rows_max = CHUNK_ROWS if limit is None else min(CHUNK_ROWS, limit - delivered)
                chunk = self._try_queue(
                    self._lanes[lane],
                    lambda lane=lane, rows_max=rows_max: lane.chunk(now_ms, rows_max, CHUNK_BYTES),  # type: ignore[misc]
                    None,
                )
                if chunk is None:
                    lanes.remove(lane)
                    continue
                count = self._put(self._lanes[lane], chunk, now_ms)
                if count is None:
                    continue  # somebody else was faster, or the lane is left: look again where it is now
                lane.delivered(chunk)
                self._works_again(self._lanes[lane])
                self._is_unsaved = True
                delivered += count
                if limit is not None and delivered >= limit:
                    return delivered
        return delivered

    def _put(self, queue: Path, chunk: Chunk, now_ms: int) -> int | None:
        """Append the copies of a chunk. Returns the number of delivered messages, None if nothing was appended."""
        restored = self._reader.restore(chunk.rows)
        try:
            return self._append(restored, chunk)
        except (CorruptionError, NotAStoreError):
            closed = self._closed(restored)
            if not closed:
                raise
        due_ms = self._timers[PUT_OFF_QUEUE].not_late_ms(now_ms) + PUT_OFF_MS
        try:
            return self._append(self._reader.restore(chunk.rows, PutOff(closed, due_ms)), chunk)
        except (CorruptionError, NotAStoreError, UsageError) as error:
            # They have no room for another time to wait for, or the timer queue takes none either.
            self._skip(queue, error, is_delivery=True)
            return None

    def _append(self, restored: Restored, chunk: Chunk) -> int | None:
        count: int = sum(batch.num_rows for batch in restored.batches)
        unit = replace(chunk.unit, row_count=count)
        if self._writer.append_unit(restored.batches, unit, expect=chunk.expect) is None:
            return None
        return count - restored.put_off_count

    def _closed(self, restored: Restored) -> set[QueueKey]:
        """The target queues that take no messages; one error is logged for each."""
        found: set[QueueKey] = set()
        with append_lock(self._log):
            end = self._log.writing_page.appended_end
            for key in Groups([restored.batches]).keys:
                try:
                    self._log.next_queue_offset(*key, end)
                except (CorruptionError, NotAStoreError) as error:
                    found.add(key)
                    if key not in self._closed_targets:
                        self._closed_targets.add(key)
                        _LOG.error(
                            "%s: what is due for %s-%d waits on, for %d s at a time; what goes elsewhere is delivered: "
                            "%s. Close the store and run `rmq repair`", self._log.root, *key, PUT_OFF_MS // 1000, error,
                        )  # fmt: skip
        return found

    def _correct_progress(self) -> None:
        """Set progress back that is ahead of its queue. A power cut can take messages that a broker had delivered, and
        the next messages would then be skipped. Called before this process delays any message
        (ScheduleMessageService.java correctDelayOffset).
        """
        known = self._offsets.all()
        ends = {level: self._end_of(level - 1) for level in known if 0 < level < 1 << 31}
        self._offsets.cut_back({
            level: last for level, last in ends.items()
            if known[level] > last and self._queue(SCHEDULE_TOPIC, level - 1) not in self._failed
        })  # fmt: skip
