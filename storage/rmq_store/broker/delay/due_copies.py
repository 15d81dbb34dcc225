"""The copies of delayed messages that are appended when they are due (data plane).

A record of the schedule topic, or of our timer topic, is put again under REAL_TOPIC and REAL_QID, as
ScheduleMessageService.java (messageTimeUp) does: body, flags, born time and host, store host, reconsumeTimes and the
property string are copied, so a consumer sees DELAY, REAL_TOPIC and REAL_QID; preparedTransactionOffset is 0.

Some records cannot be copied. They are left out, so that they do not block all others for ever: a record that retention
deleted, and a half message (as in Java). A damaged record, or one without a usable REAL_TOPIC and REAL_QID, is also
left out, with an error in the log. The real topic need not be in topics.json, as in Java. If nothing can be appended to
the target queue, the message is put off: its copy goes to our timer topic.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_store.broker.metadata.topics import QUEUE_COUNT_MAX
from rmq_store.broker.read.records import crc_required_from
from rmq_store.broker.rules.timer import timer_queue_id
from rmq_store.errors import CorruptRecordError, UsageError
from rmq_store.format.batches.frame_copy import CopyOptions, copy_frames
from rmq_store.format.frames.frame_crcs import damage_of, damaged_frames
from rmq_store.format.frames.frame_dispatch import due_times
from rmq_store.format.frames.frame_fields import FrameHeaders, frame_columns
from rmq_store.format.properties import property_string as names
from rmq_store.format.properties.property_changes import crc_property_bytes, set_properties
from rmq_store.format.properties.property_string import CRC_PROPERTY_BYTES
from rmq_store.format.tables.schema import ENCODED_SCHEMA
from rmq_store.format.text.names import HALF_TOPIC, PYRMQ_PREFIX, PYRMQ_TIMER_TOPIC, SCHEDULE_TOPIC, validate_topic
from rmq_store.lazy.arrow_compute import pc
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.log.core.commit_log import CommitLog
from rmq_store.log.core.layout import BLANK_BYTES
from rmq_store.log.core.units import UnitRecord
from rmq_store.log.views.views import QueueKey
from rmq_store.threads import map_in_threads

_LOG = logging.getLogger(__name__)

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Rows = npt.NDArray[np.intp]
Mask = npt.NDArray[np.bool_]

# With a separator before it, if the last property has none.
_CRC_BYTES_MAX = 1 + CRC_PROPERTY_BYTES

# Copied at a time by one thread; the arrays that this needs stay in the processor's cache.
_RUN_ROWS = 16_384

_QUEUE_ID = re.compile(r"[0-9]{1,9}", re.ASCII)

# How long a message waits on whose queue takes none: bounds what the copies of a queue that is never repaired take.
PUT_OFF_MS = 600_000
PUT_OFF_QUEUE = timer_queue_id(PUT_OFF_MS)


@dataclass(frozen=True, slots=True)
class DueRows:
    """Messages of one delay queue: queue offset, commit-log offset and frame size of each, int64 (n,)."""

    topic: str
    queue_id: int
    queue_offsets: Int64
    log_offsets: Int64
    sizes: Int64

    @classmethod
    def of(cls, topic: str, queue_id: int, first: int, entries: np.ndarray) -> DueRows:
        """From queue entries (dtype ENTRY) with the queue offsets `first`, `first` + 1, ..."""
        return cls(
            topic,
            queue_id,
            np.arange(first, first + len(entries), dtype=np.int64),
            entries["commit_log_offset"].astype(np.int64),
            entries["frame_size"].astype(np.int64),
        )

    def take(self, rows: Rows | Mask | slice) -> DueRows:
        """Some of the rows, in that order."""
        return replace(
            self, queue_offsets=self.queue_offsets[rows], log_offsets=self.log_offsets[rows], sizes=self.sizes[rows]
        )

    def within(self, bytes_max: int) -> DueRows:
        """The first rows with at most `bytes_max` bytes together; at least one, if there is one."""
        return self.take(slice(max(1, int(np.searchsorted(np.cumsum(self.sizes), bytes_max, side="right")))))

    def __len__(self) -> int:
        return len(self.queue_offsets)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Due messages of one delay queue that become one unit, which follows the value `expect` of its key."""

    rows: DueRows
    unit: UnitRecord
    expect: int | None


@dataclass(frozen=True, slots=True)
class PutOff:
    """Messages for the queues `targets` are put off: they wait in our timer topic until `due_ms`."""

    targets: Collection[QueueKey]
    due_ms: int


class Restored(NamedTuple):
    """Rows to append (ENCODED_SCHEMA), and how many of its rows are messages that were put off."""

    batches: list[pa.RecordBatch]
    put_off_count: int


class _Copied(NamedTuple):
    """Encoded copies of the rows `numbers` (n,)."""

    numbers: Rows
    batch: pa.RecordBatch
    is_put_off: bool


class DueCopyReader:
    """Reads delayed records of one log. The caller knows the end of the log."""

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self._options = CopyOptions(crc_property=log.crc_property, index_tags=log.index_tags)

    def restore(self, rows: DueRows, put_off: PutOff | None = None) -> Restored:
        """The records to append, in the order of the rows; fewer rows if some cannot be copied.

        UsageError: a message that is put off has no room for the time.
        """
        order = np.argsort(rows.log_offsets, kind="stable")
        crc_from = crc_required_from(self._log)
        runs = [
            (order[numbers[first : first + _RUN_ROWS]], base, buffer)
            for numbers, base, buffer in self._segments(rows.take(order))
            for first in range(0, len(numbers), _RUN_ROWS)
        ]
        parts = map_in_threads(lambda run: self._copy(rows, *run, crc_from, put_off), runs)
        copied = [copy for part in parts for copy in part if copy.batch.num_rows]
        batches = [copy.batch for copy in copied]
        put_off_count = sum(copy.batch.num_rows for copy in copied if copy.is_put_off)
        if not batches or bool((order[1:] > order[:-1]).all()):
            return Restored(batches, put_off_count)
        # Read in log order, put in the order asked for.
        whole = pa.Table.from_batches(batches).unify_dictionaries().combine_chunks()
        order_of_rows = np.argsort(np.concatenate([copy.numbers for copy in copied]))
        ordered: list[pa.RecordBatch] = whole.take(pa.array(order_of_rows)).to_batches()
        return Restored(ordered, put_off_count)

    def _copy(
        self, rows: DueRows, numbers: Rows, base: int, buffer: pa.Buffer, crc_from: int | None, put_off: PutOff | None
    ) -> list[_Copied]:
        """The copies of the rows `numbers`, without those that cannot be copied; all lie in the segment that begins at
        `base`.
        """
        part = rows.take(numbers)
        good, headers = self._headers(buffer, base, part, crc_from)
        if len(good) < len(part):
            numbers, part = numbers[good], part.take(good)
        good, topics, queue_ids = self._targets(headers, part)
        if len(good) < len(part):
            numbers, headers = numbers[good], headers.take(good)
        waits = np.zeros(len(good), np.bool_)
        for topic, queue_id in put_off.targets if put_off else ():
            waits |= pc.equal(topics.cast(pa.string()), topic).to_numpy(zero_copy_only=False) & (queue_ids == queue_id)
        if put_off is None or not waits.any():
            return [_Copied(numbers, self._delivered(headers, topics, queue_ids), False)]
        goes, stays = np.flatnonzero(~waits), np.flatnonzero(waits)
        delivered = self._delivered(headers.take(goes), topics.take(pa.array(goes)), queue_ids[goes])
        later = self._put_off(headers.take(stays), put_off.due_ms)
        return [_Copied(numbers[goes], delivered, False), _Copied(numbers[stays], later, True)]

    def _delivered(self, headers: FrameHeaders, topics: pa.DictionaryArray, queue_ids: Int32) -> pa.RecordBatch:
        return copy_frames(headers, topics=topics, queue_ids=queue_ids, options=self._options)

    def _put_off(self, headers: FrameHeaders, due_ms: int) -> pa.RecordBatch:
        count = len(headers.positions)
        batch = copy_frames(
            headers,
            topics=pa.DictionaryArray.from_arrays(np.zeros(count, np.int32), [PYRMQ_TIMER_TOPIC]),
            queue_ids=np.full(count, PUT_OFF_QUEUE, np.int32),
            properties=set_properties(headers.property_strings(), {names.TIMER_OUT_MS: str(due_ms)}),
            options=self._options,
        )
        column = ENCODED_SCHEMA.get_field_index("tags_code")
        return batch.set_column(column, ENCODED_SCHEMA.field(column), pa.array(np.full(count, due_ms, np.int64)))

    def due_times(self, rows: DueRows) -> Int64:
        """int64 (n,): due times (ms) of messages of the timer topic, from their records; 0 if unknown."""
        due = np.zeros(len(rows), np.int64)
        for numbers, base, buffer in self._segments(rows):
            good, headers = self._headers(buffer, base, rows.take(numbers), crc_required_from(self._log))
            due[numbers[good]] = due_times(headers.properties((names.TIMER_OUT_MS,))).fill_null(0).to_numpy()
        return due

    def _segments(self, rows: DueRows) -> Iterator[tuple[Rows, int, pa.Buffer]]:
        """The rows by segment: (row numbers, the segment's first offset, its bytes)."""
        segment_bytes = self._log.segments.size_bytes
        bases = rows.log_offsets // segment_bytes * segment_bytes
        for base in np.unique(bases).tolist():
            numbers = np.flatnonzero(bases == base)
            try:
                yield numbers, base, self._log.segments.open(base).buffer
            except FileNotFoundError:
                if base >= self._log.start():  # else retention took it
                    _LOG.error("%s: %d delayed messages are gone with segment %d", self._log.root, len(numbers), base)

    def _headers(self, buffer: pa.Buffer, base: int, rows: DueRows, crc_from: int | None) -> tuple[Rows, FrameHeaders]:
        """The rows of one segment that are undamaged records of their queue, and their headers."""
        positions, sizes = rows.log_offsets - base, rows.sizes.astype(np.int32)
        good = np.arange(len(rows))
        try:
            headers = frame_columns(buffer, positions, sizes, base_offset=base)
        except CorruptRecordError:
            good = np.array([row for row in good.tolist() if self._is_whole(buffer, base, rows, row)], np.intp)
            headers = frame_columns(buffer, positions[good], sizes[good], base_offset=base)
        theirs = (headers.queue_id == rows.queue_id) & (headers.queue_offset == rows.queue_offsets[good])
        theirs &= pc.equal(headers.topics(), rows.topic).to_numpy(zero_copy_only=False)
        # A copy gets checksums of its own: without this look they would vouch for what was damaged before.
        intact = theirs & ~damaged_frames(headers, crc_from)
        if not intact.all():
            for row in np.flatnonzero(~intact).tolist():
                reason = damage_of(headers, row, crc_from) if theirs[row] else "its place holds another record"
                self._drop(rows, int(good[row]), reason)
            good = good[intact]
            headers = frame_columns(buffer, positions[good], sizes[good], base_offset=base)
        return good, headers

    def _is_whole(self, buffer: pa.Buffer, base: int, rows: DueRows, row: int) -> bool:
        positions, sizes = rows.log_offsets[row : row + 1] - base, rows.sizes[row : row + 1].astype(np.int32)
        try:
            frame_columns(buffer, positions, sizes, base_offset=base)
        except CorruptRecordError as error:
            self._drop(rows, row, error.reason)
            return False
        return True

    def _targets(self, headers: FrameHeaders, rows: DueRows) -> tuple[Rows, pa.DictionaryArray, Int32]:
        """The rows with a usable target, and their real topics and queue ids."""
        pieces = headers.properties((names.REAL_TOPIC, names.REAL_QUEUE_ID))
        # Each different text is looked at once: there are few.
        topics, queues = (
            pieces.column(name).fill_null("").dictionary_encode() for name in (names.REAL_TOPIC, names.REAL_QUEUE_ID)
        )
        known = topics.dictionary.to_pylist()
        codes = topics.indices.to_numpy()
        usable = np.array([_is_target(name) for name in known], np.bool_)[codes]
        numbers = np.array([_queue_id(text) for text in queues.dictionary.to_pylist()], np.int32)
        queue_ids = numbers[queues.indices.to_numpy()]
        usable &= queue_ids < QUEUE_COUNT_MAX
        usable &= rows.sizes + np.array([len(name) for name in known], np.int64)[codes] <= self._copy_bytes_max
        room = names.PROPERTIES_BYTES_MAX - self._options.crc_property * _CRC_BYTES_MAX
        full = np.flatnonzero(headers.properties_end - headers.properties_start > room)
        starts, ends = headers.properties_start[full], headers.properties_end[full]
        usable[full] &= ends - starts - crc_property_bytes(headers.data, starts, ends) <= room
        half = np.array([name == HALF_TOPIC for name in known], np.bool_)[codes]
        for row in np.flatnonzero(~usable & ~half).tolist():
            target = f"{topics[row].as_py()[:300]!r}, queue {queues[row].as_py()[:20]!r}"
            self._drop(rows, row, f"it is too large, or cannot go to {target}")
        good = np.flatnonzero(usable & ~half)
        if len(good) < len(rows):
            topics, queue_ids = topics.take(pa.array(good)), queue_ids[good]
        return good, topics, queue_ids

    @property
    def _copy_bytes_max(self) -> int:
        # A copy is larger than its original by at most its topic's name, a second byte for the length of that, and the
        # CRC property; a blank must fit behind it.
        return self._log.segments.size_bytes - 1 - _CRC_BYTES_MAX - BLANK_BYTES

    def _drop(self, rows: DueRows, row: int, reason: str) -> None:
        _LOG.error(
            "%s: message %d of %s-%d, at byte %d of the log, cannot be delivered: %s",
            self._log.root,
            rows.queue_offsets[row],
            rows.topic,
            rows.queue_id,
            rows.log_offsets[row],
            reason,
        )


def _is_target(name: str) -> bool:
    # No sender can have asked for these: it would wait for ever, forge a unit, or say that dead letters were moved.
    if name == SCHEDULE_TOPIC or name.startswith(PYRMQ_PREFIX):
        return False
    try:
        validate_topic(name)
    except UsageError:
        return False
    return True


def _queue_id(text: str) -> int:
    """The queue id in a property; QUEUE_COUNT_MAX, which no queue has, if it is no number."""
    return int(text) if _QUEUE_ID.fullmatch(text) else QUEUE_COUNT_MAX
