"""Delayed messages that are not delivered yet: their queues, number and due times.

Only messages after the progress of each level and timer queue are read, and only in the requested segments. Queue
entries give offset and due time; the records name the topics that the messages go to. Source: `delay_level`,
`timer_queue`; docs/broker-design.md section 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_store.broker.delay.due_copies import DueCopyReader
from rmq_store.broker.delay.recalled import RecalledTimers
from rmq_store.broker.delay.timer_queue import Timers, Watermark, timer_rows
from rmq_store.broker.metadata.offsets import DelayOffsetTable
from rmq_store.broker.read.queue_reader import QueueReader
from rmq_store.broker.read.read_request import ReadRequest
from rmq_store.broker.rules import purposes
from rmq_store.broker.rules.timer import TIMER_QUEUES
from rmq_store.broker.write.units import UnitTable
from rmq_store.errors import CorruptionError, OffsetOutOfRangeError
from rmq_store.format.properties import property_string as names
from rmq_store.format.text.names import PYRMQ_TIMER_TOPIC, SCHEDULE_TOPIC
from rmq_store.format.views.consume_queue import PRE_BLANK_SIZE
from rmq_store.lazy.arrow_compute import pc
from rmq_store.log.core.commit_log import CommitLog
from rmq_store.log.core.units import UnitRecord
from rmq_store.log.recovery.delivery_times import due_times

# Entries looked at per step: 20 bytes each.
_STEP = 1 << 20

# Of their records at once, so that damage costs one such piece again.
_PIECE = 1 << 10

_TRIES = 3

T = TypeVar("T")

NewestUnit = Callable[[str, str], UnitRecord | None]
"""(purpose, key) -> the newest unit; None if there is none."""

_Waiting = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
"""Commit-log offsets, ascending, and due times in ms; (n,) each."""


class SegmentBacklog(NamedTuple):
    """Delayed messages of a segment: their number, and the due time of the last one (ms)."""

    messages: int
    until_ms: int


class Backlog(NamedTuple):
    """Delayed messages of one level (None: timers): their number, and the due time of the first one (ms), perhaps long
    ago.
    """

    level: int | None
    messages: int
    first_due_ms: int


def backlogs(log: CommitLog, newest_unit: NewestUnit | None, end: int) -> list[Backlog]:
    """Delayed messages below the end of the log, by level; levels without any are left out. `newest_unit`: None
    for a store that is only read.

    A level costs two reads of its queue; for timers the entry of each message is read. Raises as `backlog_by_segment`,
    FileNotFoundError only if it happens again and again.
    """
    return _retried(_backlogs, log, newest_unit, end)


def _retried(
    read: Callable[[CommitLog, NewestUnit, int], T], log: CommitLog, newest_unit: NewestUnit | None, end: int
) -> T:
    units = UnitTable(log)
    look_up = newest_unit or (lambda purpose, key: units.newest(purpose, key, end))
    for tries_left in reversed(range(_TRIES)):
        try:
            return read(log, look_up, end)
        except (FileNotFoundError, OffsetOutOfRangeError):  # retention was faster
            if not tries_left:
                raise
    raise AssertionError


def _backlogs(log: CommitLog, newest_unit: NewestUnit, end: int) -> list[Backlog]:
    found: list[Backlog] = []
    for level, done in _levels(log, newest_unit):
        queue = log.views.queue(SCHEDULE_TOPIC, level - 1)
        last = log.queue_max(SCHEDULE_TOPIC, level - 1, end)
        first = max(done, log.queue_min(SCHEDULE_TOPIC, level - 1, log.segments.span(), last))
        if first < last:
            (due_ms,) = due_times(log, level - 1, queue.entries(first, first + 1)).tolist()
            found.append(Backlog(level, last - first, due_ms))
    timers = [(len(due_ms), int(due_ms.min())) for _, due_ms in _timers(log, newest_unit, end) if len(due_ms)]
    if timers:
        found.append(Backlog(None, sum(count for count, _ in timers), min(due_ms for _, due_ms in timers)))
    return found


def backlog_by_topic(log: CommitLog, newest_unit: NewestUnit | None, end: int) -> dict[str, int]:
    """The number of delayed messages below `end` by target topic; for failed ones this is the `%RETRY%` topic of a
    group. It reads the record of each, a piece of a queue at a time. A damaged one is left out: it is never delivered.
    `newest_unit` and errors as for `backlogs`.
    """
    return _retried(_by_topic, log, newest_unit, end)


def _by_topic(log: CommitLog, newest_unit: NewestUnit, end: int) -> dict[str, int]:
    found: dict[str, int] = {}
    for topic, queue_id, offsets in _queue_offsets(log, newest_unit, end):
        for first in range(0, len(offsets), _PIECE):
            for name, count in _real_topics(log, topic, queue_id, offsets[first : first + _PIECE]):
                found[name] = found.get(name, 0) + count
    return found


def _queue_offsets(
    log: CommitLog, newest_unit: NewestUnit, end: int
) -> Iterator[tuple[str, int, npt.NDArray[np.int64]]]:
    """The queues with delayed messages, and the queue offsets of these, ascending, a step of a queue at a time."""
    for level, done in _levels(log, newest_unit):
        for start, stop in _steps(log, SCHEDULE_TOPIC, level - 1, done, end):
            entries = log.views.queue(SCHEDULE_TOPIC, level - 1).entries(start, stop)
            yield SCHEDULE_TOPIC, level - 1, start + np.flatnonzero(entries["frame_size"] != PRE_BLANK_SIZE)
    reader = DueCopyReader(log)
    for queue_id in range(TIMER_QUEUES):
        watermark = Watermark.of(newest_unit(purposes.TIMER, str(queue_id)))
        for rows in _waiting_timers(log, reader, queue_id, watermark, end):
            yield PYRMQ_TIMER_TOPIC, queue_id, np.sort(rows["queue_offset"])


def _real_topics(
    log: CommitLog, topic: str, queue_id: int, offsets: npt.NDArray[np.int64]
) -> Iterator[tuple[str, int]]:
    """(target topic, number of these messages for it)."""
    first, end = int(offsets[0]), int(offsets[-1]) + 1
    entries = log.views.queue(topic, queue_id).entries(first, end)[offsets - first]
    request = ReadRequest(topic, queue_id, first, end, ["properties"], raw_body=True, only=offsets)
    reader = QueueReader(log, "", body_limit_bytes=0)
    try:
        read = list(reader.read(request, entries))
    except CorruptionError:
        if len(offsets) > 1:
            middle = len(offsets) // 2
            yield from _real_topics(log, topic, queue_id, offsets[:middle])
            yield from _real_topics(log, topic, queue_id, offsets[middle:])
        return
    for batch in read:
        reals = pc.map_lookup(batch.column("properties"), pa.scalar(names.REAL_TOPIC), "first")
        for entry in reals.drop_null().value_counts().to_pylist():
            yield entry["values"], entry["counts"]


def backlog_by_segment(log: CommitLog, newest_unit: NewestUnit, start: int, end: int) -> dict[int, SegmentBacklog]:
    """Delayed messages in the segments of [start, end), by their first offsets; segments without any are left out.
    `end` is a segment's end.

    Raises:
        CorruptionError: a queue or config/delayOffset.json is unreadable.
        FileNotFoundError: a queue file was deleted meanwhile.
    """
    size = log.segments.size_bytes
    first = start // size
    counts = np.zeros((end - 1) // size - first + 1 if end > start else 0, np.int64)
    until = np.zeros(len(counts), np.int64)
    for offsets, due_ms in _waiting(log, newest_unit, end):
        rows = offsets >= start
        segments = offsets[rows] // size - first
        np.add.at(counts, segments, 1)
        np.maximum.at(until, segments, due_ms[rows])
    return {
        (number + first) * size: SegmentBacklog(int(counts[number]), int(until[number]))
        for number in np.flatnonzero(counts).tolist()
    }


def _waiting(log: CommitLog, newest_unit: NewestUnit, end: int) -> Iterator[_Waiting]:
    """The delayed messages below `end`, a step of a queue at a time."""
    for level, done in _levels(log, newest_unit):
        yield from _of_level(log, level - 1, done, end)
    yield from _timers(log, newest_unit, end)


def _levels(log: CommitLog, newest_unit: NewestUnit) -> Iterator[tuple[int, int]]:
    """The delay levels in use, and their progress: all messages below that queue offset were delivered."""
    progress = DelayOffsetTable(log.root).all()
    known = set(progress)
    for queue_id in log.views.queue_ids(SCHEDULE_TOPIC):
        level = queue_id + 1
        unit = newest_unit(purposes.DELAY, str(level))
        ours = unit.value if unit and unit.value else 0
        # Of a level whose entry cannot be used nothing is delivered: the Schedule leaves it.
        yield level, max(ours, progress[level]) if level in known else ours


def _timers(log: CommitLog, newest_unit: NewestUnit, end: int) -> Iterator[_Waiting]:
    reader = DueCopyReader(log)
    for queue_id in range(TIMER_QUEUES):
        yield from _of_timers(log, reader, queue_id, Watermark.of(newest_unit(purposes.TIMER, str(queue_id))), end)


def _of_level(log: CommitLog, queue_id: int, done: int, end: int) -> Iterator[_Waiting]:
    queue = log.views.queue(SCHEDULE_TOPIC, queue_id)
    for start, stop in _steps(log, SCHEDULE_TOPIC, queue_id, done, end):
        entries = queue.entries(start, stop)
        entries = entries[entries["frame_size"] != PRE_BLANK_SIZE]
        yield entries["commit_log_offset"].astype(np.int64), due_times(log, queue_id, entries)


def _of_timers(
    log: CommitLog, reader: DueCopyReader, queue_id: int, watermark: Watermark, end: int
) -> Iterator[_Waiting]:
    for rows in _waiting_timers(log, reader, queue_id, watermark, end):
        yield rows["log_offset"], rows["due_ms"]


def _waiting_timers(
    log: CommitLog, reader: DueCopyReader, queue_id: int, watermark: Watermark, end: int
) -> Iterator[Timers]:
    """The timers of a queue that were neither delivered nor taken back, a step at a time."""
    recalled = RecalledTimers(log, queue_id)
    recalled.read_on(end)
    for start, stop in _steps(log, PYRMQ_TIMER_TOPIC, queue_id, watermark.start, end):
        rows = watermark.not_delivered(timer_rows(log, reader, queue_id, start, stop))
        yield rows[~recalled.contains(rows["queue_offset"])]


def _steps(log: CommitLog, topic: str, queue_id: int, done: int, end: int) -> Iterator[tuple[int, int]]:
    """Ranges of queue offsets from `done` on whose records begin below `end`."""
    last = log.queue_max(topic, queue_id, end)
    for start in range(max(done, log.queue_min(topic, queue_id, log.segments.span(), last)), last, _STEP):
        yield start, min(start + _STEP, last)
