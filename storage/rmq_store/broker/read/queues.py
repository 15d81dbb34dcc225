"""Ranges, messages and times of queues. Every method first loads the end of the log."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Iterator

import numpy as np
import pyarrow as pa

from rmq_store.broker.filter.tags import TagFilter
from rmq_store.broker.read.queue_frames import FrameRange, QueueFrames
from rmq_store.broker.read.queue_reader import QueueReader, damaged_entry
from rmq_store.broker.read.read_request import ReadRequest
from rmq_store.errors import CorruptQueueError, CorruptRecordError, OffsetOutOfRangeError, UsageError
from rmq_store.files.locks.state_page import StatePage
from rmq_store.format.frames.compression import plain_bytes_max
from rmq_store.format.frames.frame_check import FRAME_BYTES_MIN
from rmq_store.format.text.names import SCHEDULE_TOPIC, validate_topic
from rmq_store.format.views.consume_queue import ENTRY, PRE_BLANK_SIZE
from rmq_store.log.core.commit_log import CommitLog
from rmq_store.log.integrity import nearest_sound_entry
from rmq_store.log.recovery.delivery_times import due_times
from rmq_store.log.recovery.read_only_end import ReadOnlyEnd, read_on, read_only_end
from rmq_store.log.recovery.starting_point import log_is_ours
from rmq_store.log.views.queue_ext import tags_codes
from rmq_store.log.views.views import QueueKey
from rmq_store.protocol.results import QueueRange

# Entries looked at per step: 20 bytes each.
_STEP = 1 << 17

_TRIES = 3


class Queues:
    """The queues of one open store."""

    def __init__(self, log: CommitLog, broker_name: str, max_message_bytes: int) -> None:
        self._log = log
        self._reader = QueueReader(log, broker_name, body_limit_bytes=plain_bytes_max(max_message_bytes))
        self._frames = QueueFrames(log)
        self._peeked: ReadOnlyEnd | StatePage | None = None

    def refresh(self) -> None:
        """Read the end of the log again, if no process of this engine has the store open for writing."""
        peeked = self._peeked
        if isinstance(peeked, ReadOnlyEnd):
            self._peeked = read_on(self._log, peeked)
        elif peeked is not None and not log_is_ours(self._log):  # a broker came behind a killed writer
            self._peeked = None

    def end(self) -> int:
        """The visible end."""
        if self._log.writable:
            return self._log.visible_end()
        peeked = self._peeked  # once: another thread may look again meanwhile
        if peeked is None or (isinstance(peeked, StatePage) and not peeked.counts()):  # its last writer has left
            peeked = self._peeked = read_only_end(self._log)
        if isinstance(peeked, StatePage):
            return peeked.flushed_end if self._log.sync_flush else peeked.appended_end
        return peeked.end

    def log_range(self) -> tuple[int, int]:
        """See `Store.log_range`."""
        return self._log.start(), self.end()

    def has_not_grown(self, end: int) -> bool:
        """See `Store.has_not_grown`."""
        if self._log.writable:
            return self._log.visible_end() == end
        peeked = self._peeked
        if isinstance(peeked, StatePage):  # behind its last writer its words stay as they are
            return (peeked.flushed_end if self._log.sync_flush else peeked.appended_end) == end
        return peeked is not None and peeked.end == end and peeked.is_untouched()

    def range(self, topic: str, queue_id: int) -> QueueRange:
        """See `Store.queue_range`."""
        return self._range_in_log(topic, queue_id)[0]

    def _range_in_log(self, topic: str, queue_id: int) -> tuple[QueueRange, int, int]:
        """The queue's range, and the range [start, end) of the log at the same moment."""
        if queue_id < 0:
            raise UsageError(f"queue id {queue_id} is negative")
        validate_topic(topic)
        end, span = self.end(), self._log.segments.span()
        return self._range(topic, queue_id, end, span), span[0], end

    def topic_names(self) -> set[str]:
        """Every name below `consumequeue/`, and the topics of records whose queues have no files yet."""
        missing = self._missing_queues()  # first: it may find all queues
        return {*self._log.views.topic_names(), *(topic for topic, _ in missing)}

    def queue_ids(self, topic: str) -> list[int]:
        """The queues of a topic that have a directory or records, ascending."""
        missing = self._missing_queues()  # first, as above
        return sorted({*self._log.views.queue_ids(topic), *(number for name, number in missing if name == topic)})

    def _missing_queues(self) -> Collection[QueueKey]:
        self.end()  # finds them
        peeked = self._peeked
        return peeked.missing.keys() if isinstance(peeked, ReadOnlyEnd) else ()

    def ranges(self, topic: str, queue_ids: Iterable[int]) -> dict[int, QueueRange]:
        """See `Store.queue_ranges`. All of them at one visible end."""
        validate_topic(topic)
        end, span = self.end(), self._log.segments.span()
        return {queue_id: self._range(topic, queue_id, end, span) for queue_id in queue_ids}

    def _range(self, topic: str, queue_id: int, end: int, span: tuple[int, int]) -> QueueRange:
        if not self._log.writable:  # entries that a broker writes later may lie below the end
            return self._found_range(topic, queue_id, end, span)
        queue = self._log.views.queue(topic, queue_id)
        known = queue.known_range(end, span)
        if known is not None:
            return QueueRange(*known)
        found = self._found_range(topic, queue_id, end, span)
        queue.remember_range(end, span, found)
        return found

    def _found_range(self, topic: str, queue_id: int, end: int, span: tuple[int, int]) -> QueueRange:
        for _ in range(_TRIES):
            try:
                last = self._log.queue_max(topic, queue_id, end)
                first = self._log.queue_min(topic, queue_id, span, last)
                break
            except FileNotFoundError as error:
                gone = error  # by retention while we looked: look again
        else:
            raise self._missing_file(topic, queue_id) from gone
        last = max(last, first)  # retention took all files up to a later message meanwhile
        missing = self._missing(topic, queue_id)
        if missing is not None:
            first = missing[0] if first == last else min(first, missing[0])
            last = missing[0] + len(missing[1])
        return QueueRange(first, last)

    def read(self, request: ReadRequest) -> Iterator[pa.RecordBatch]:
        """See `Store.read`."""
        self._check_range(request.topic, request.queue_id, request.start, request.end)
        return self._read(request)

    def _read(self, request: ReadRequest) -> Iterator[pa.RecordBatch]:
        queue = request.topic, request.queue_id
        for part in request.parts(_STEP):
            if part.only is None:
                entries = self._entries(*queue, part.start, part.end)
            else:
                entries = self.entries_at(*queue, part.only)
            try:
                yield from self._reader.read(part, entries)
            except OffsetOutOfRangeError as error:
                raise self._record_is_gone(*queue, error.requested) from error

    def frames(
        self, topic: str, queue_id: int, start: int, *, entries_max: int, count_max: int, bytes_max: int,
        tags: TagFilter | None,
    ) -> FrameRange:  # fmt: skip
        """See `Store.read_frames`."""
        queue = self.range(topic, queue_id)
        if not queue.min_offset <= start < queue.max_offset:
            return FrameRange(queue, b"", 0, start)
        entries = self._entries(topic, queue_id, start, min(start + entries_max, queue.max_offset))
        try:
            return self._frames.read(topic, queue_id, queue, start, entries, count_max, bytes_max, tags)
        except FileNotFoundError as error:
            raise self._record_is_gone(topic, queue_id, start) from error

    def commit_log_offset(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """The commit-log offset of a message, from its entry.

        Raises:
            OffsetOutOfRangeError: the queue does not have it (any more).
            CorruptQueueError: as `entries_at`.
        """
        first, last = self.range(topic, queue_id)
        if not first <= queue_offset < last:
            raise OffsetOutOfRangeError(
                f"{topic}-{queue_id}: message {queue_offset} was asked for, the queue has [{first}, {last})",
                queue_offset, first, last,
            )  # fmt: skip
        return self._offset_and_size(topic, queue_id, queue_offset)[0]

    def commit_log_offset_before(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """See `Store.commit_log_offset_before`."""
        (first, last), log_start, log_end = self._range_in_log(topic, queue_id)
        if not first < queue_offset <= last:
            return -1
        # No record is looked at, as long as the entries ascend: a reader would keep its segment from retention.
        asked, from_row, behind_row = queue_offset - 1, max(queue_offset - 2, first), min(queue_offset + 1, last)
        around: list[int] = self._entries(topic, queue_id, from_row, behind_row)["commit_log_offset"].tolist()
        offset = around[asked - from_row]
        if sorted(around) == around and log_start <= offset < log_end:
            return offset
        return self._checked_offset(topic, queue_id, asked, first, last)

    def _checked_offset(self, topic: str, queue_id: int, asked: int, first: int, last: int) -> int:
        """The commit-log offset of a message whose entry is not in ascending order with its neighbours. If the record
        is not this message, the offset is limited to the range between the nearest sound entries.
        """
        key, (offset, size) = (topic, queue_id), self._offset_and_size(topic, queue_id, asked)
        if self._log.is_record_of(*key, offset, size, asked):
            return offset
        of_queue, near = functools.partial(self._entries, *key), nearest_sound_entry.ENTRIES_PER_STEP
        before = nearest_sound_entry.sound_before(self._log, key, of_queue, max(asked - near, first), asked)
        behind = nearest_sound_entry.sound_after(self._log, key, of_queue, asked + 1, min(asked + 1 + near, last))
        low = self._log.start() if before is None else self._offset_and_size(*key, before)[0]
        high = self.end() if behind is None else self._offset_and_size(*key, behind)[0]
        return max(low, min(offset, high))

    def _offset_and_size(self, topic: str, queue_id: int, queue_offset: int) -> tuple[int, int]:
        """(commit-log offset, size) from the entry."""
        entry = self._entries(topic, queue_id, queue_offset, queue_offset + 1)[0]
        return int(entry["commit_log_offset"]), int(entry["frame_size"])

    def entries(self, topic: str, queue_id: int, start: int, end: int) -> np.ndarray:
        """See `Store.queue_entries`."""
        self._check_range(topic, queue_id, start, end)
        return self._entries(topic, queue_id, start, end)

    def entries_at(self, topic: str, queue_id: int, rows: np.ndarray) -> np.ndarray:
        """The entries of the queue offsets `rows` (n,) int64, ascending and in the queue's range: dtype ENTRY (n,).

        Raises:
            OffsetOutOfRangeError: retention has deleted entries meanwhile.
            CorruptQueueError: one of the queue's files is missing.
        """
        missing = self._missing(topic, queue_id)
        split = int(np.searchsorted(rows, missing[0])) if missing else len(rows)
        try:
            entries = self._log.views.queue(topic, queue_id).entries_at(rows[:split])
        except FileNotFoundError as error:
            raise self._file_is_gone(topic, queue_id, int(rows[0])) from error
        return np.concatenate([entries, missing[1][rows[split:] - missing[0]]], dtype=ENTRY) if missing else entries

    def bytes_between(self, topic: str, queue_id: int, start: int, end: int) -> int:
        """See `Store.bytes_between`."""
        self._check_range(topic, queue_id, start, end)
        return sum(
            int(self._entries(topic, queue_id, first, min(first + _STEP, end))["frame_size"].sum(dtype=np.int64))
            for first in range(start, end, _STEP)
        )

    def offset_after_bytes(self, topic: str, queue_id: int, start: int, end: int, limit_bytes: int) -> int:
        """See `Store.offset_after_bytes`."""
        self._check_range(topic, queue_id, start, end)
        # No more entries than may fit: a backlog can be long.
        taken, step = 0, min(max(limit_bytes, 0) // FRAME_BYTES_MIN + 1, _STEP)
        for first in range(start, end, step):
            sizes = self._entries(topic, queue_id, first, min(first + step, end))["frame_size"]
            ends = taken + np.cumsum(sizes, dtype=np.int64)
            if int(ends[-1]) > limit_bytes:
                fitting = first + int(np.searchsorted(ends, limit_bytes, side="right"))
                return max(fitting, min(start + 1, end))
            taken = int(ends[-1])
        return end

    def lost_offsets(self, topic: str, queue_id: int, start: int, end: int, *, tags: str | None) -> np.ndarray:
        """See `Store.lost_offsets`."""
        tag_filter = TagFilter.parse(tags)
        self._check_range(topic, queue_id, start, end)
        found = [np.empty(0, np.int64)]
        for first in range(start, end, _STEP):
            entries = self._entries(topic, queue_id, first, min(first + _STEP, end))
            offsets, segments = entries["commit_log_offset"].astype(np.int64), self._log.segments
            bases = segments.bases()  # behind the entries: a segment is there before an entry points into it
            there = np.isin(offsets // segments.size_bytes * segments.size_bytes, bases)
            lost = ~there & (entries["frame_size"] > 0) & (offsets >= (bases[0] if bases else 0))
            if tag_filter is not None:
                lost &= tag_filter.may_match(tags_codes(self._log.root, topic, queue_id, entries))
            lost |= self._log.accepted_damage.mask(offsets)
            found.append(first + np.flatnonzero(lost & (entries["frame_size"] != PRE_BLANK_SIZE)))
        return np.concatenate(found)

    def store_timestamp(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """See `Store.store_timestamp`."""
        self._check_range(topic, queue_id, queue_offset, queue_offset + 1)
        offset, size = self._offset_and_size(topic, queue_id, queue_offset)
        is_own = self._log.is_record_of(topic, queue_id, offset, size, queue_offset)
        timestamp = self._log.store_timestamp(offset) if is_own else None
        if timestamp is None:
            self._check_range(topic, queue_id, queue_offset, queue_offset + 1)  # retention may have been faster
            path = self._log.segments.path(self._log.segments.base_of(offset))
            what = f"message {queue_offset} of {topic}-{queue_id} is damaged or gone, or its entry is"
            raise CorruptRecordError(str(path), offset, f"{what}. `rmq verify` says which")
        return timestamp

    def tags_code(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """See `Store.tags_code`."""
        self._check_range(topic, queue_id, queue_offset, queue_offset + 1)
        entries = self._entries(topic, queue_id, queue_offset, queue_offset + 1)
        if topic == SCHEDULE_TOPIC:
            return int(due_times(self._log, queue_id, entries)[0])
        return int(tags_codes(self._log.root, topic, queue_id, entries)[0])

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int, boundary: str) -> int:
        """See `Store.offset_by_time`. Source: ConsumeQueue#getOffsetInQueueByTime, from RocketMQ 5.1.4 on."""
        if boundary not in ("lower", "upper"):
            raise UsageError(f"boundary={boundary!r}: lower or upper")
        first, last = self.range(topic, queue_id)
        if first == last:
            return first
        low, high = first, last
        while low < high:
            middle = readable = (low + high) // 2
            try:
                lost, readable = self._readable(topic, queue_id, low, middle, high)
                if readable == high:
                    high = lost
                    continue
                timestamp = self.store_timestamp(topic, queue_id, readable)
            except OffsetOutOfRangeError as error:  # retention was faster
                low = first = max(error.minimum, readable + 1)
                continue
            if timestamp < timestamp_ms or (boundary == "upper" and timestamp == timestamp_ms):
                low = readable + 1
            else:
                high = lost
        return low if boundary == "lower" else max(low - 1, first)

    def _readable(self, topic: str, queue_id: int, low: int, queue_offset: int, high: int) -> tuple[int, int]:
        """`queue_offset` twice if its message can be read. If the message or its entry is lost or damaged: the range of
        unreadable messages of [low, high) around it, as (first, offset after the last). OffsetOutOfRangeError:
        retention deleted it.
        """
        key, found = (topic, queue_id), self._offset_and_size(topic, queue_id, queue_offset)
        if self._log.is_record_of(*key, *found, queue_offset):
            return queue_offset, queue_offset
        self._check_range(topic, queue_id, queue_offset, queue_offset + 1)
        of_queue = functools.partial(self._entries, topic, queue_id)
        before = nearest_sound_entry.sound_before(self._log, key, of_queue, low, queue_offset)
        behind = nearest_sound_entry.sound_after(self._log, key, of_queue, queue_offset + 1, high)
        return low if before is None else before + 1, high if behind is None else behind

    def _check_range(self, topic: str, queue_id: int, start: int, end: int) -> None:
        if start == end:
            return
        first, last = self.range(topic, queue_id)
        if start > end or start < first or end > last:
            raise OffsetOutOfRangeError(
                f"{topic}-{queue_id}: [{start}, {end}) was asked for, the queue has [{first}, {last})",
                start if start < first else end, first, last,
            )  # fmt: skip

    def _removed(self, topic: str, queue_id: int, queue_offset: int) -> OffsetOutOfRangeError:
        first, last = self.range(topic, queue_id)
        what = f"{topic}-{queue_id}: retention removed messages from {queue_offset} on while they were read"
        return OffsetOutOfRangeError(f"{what}; the queue has [{first}, {last})", queue_offset, first, last)

    def _missing(self, topic: str, queue_id: int) -> tuple[int, np.ndarray] | None:
        peeked = self._peeked
        return peeked.missing.get((topic, queue_id)) if isinstance(peeked, ReadOnlyEnd) else None

    def _entries(self, topic: str, queue_id: int, start: int, end: int) -> np.ndarray:
        missing = self._missing(topic, queue_id)
        split = min(end, missing[0]) if missing else end
        try:
            entries = (
                self._log.views.queue(topic, queue_id).entries(start, split) if start < split else np.empty(0, ENTRY)
            )
        except FileNotFoundError as error:
            raise self._file_is_gone(topic, queue_id, start) from error
        if missing and end > split:
            extra = missing[1][max(start, split) - missing[0] : end - missing[0]]
            entries = np.concatenate([entries, extra], dtype=ENTRY)
        return entries

    def _file_is_gone(self, topic: str, queue_id: int, queue_offset: int) -> OffsetOutOfRangeError | CorruptQueueError:
        """The error for a file of the queue that holds messages from `queue_offset` on."""
        if queue_offset < self.range(topic, queue_id).min_offset:
            return self._removed(topic, queue_id, queue_offset)
        return self._missing_file(topic, queue_id)

    def _missing_file(self, topic: str, queue_id: int) -> CorruptQueueError:
        directory = self._log.views.queue(topic, queue_id).run.directory
        reason = f"one of the files of {topic}-{queue_id} is missing. `rmq repair` builds the queues again from the log"
        return CorruptQueueError(str(directory), 0, reason)

    def _record_is_gone(
        self, topic: str, queue_id: int, queue_offset: int
    ) -> OffsetOutOfRangeError | CorruptQueueError:
        """The error for an entry that points below the log. If the queue still has the message, this is damage, not
        retention: a reader that retries after retention would request the message for ever.
        """
        if queue_offset < self.range(topic, queue_id).min_offset:
            return self._removed(topic, queue_id, queue_offset)
        what = f"points below byte {self._log.start()}, where the log begins, and retention took only what is older"
        return damaged_entry(self._log, topic, queue_id, queue_offset, what)
