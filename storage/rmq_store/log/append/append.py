"""Append: any number of records to any queues, which become visible together; and the undo of an append that was
interrupted.

Steps A1-A7 and the rollback are those of docs/design.md section 6. Everything here runs under the append lock.
"""

from __future__ import annotations

import contextlib
import logging
import struct
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from rmq_store.errors import StoreError, StoreFailedError, UsageError
from rmq_store.files import durable
from rmq_store.files.locks.background import HelperThread
from rmq_store.files.locks.state_page import StatePage
from rmq_store.format.frames.frame_check import BLANK_MAGIC
from rmq_store.format.frames.stored_message import complete_frame
from rmq_store.format.views.consume_queue import encode_entries
from rmq_store.late.dataclasses import dataclass
from rmq_store.log.append.frame_writer import FrameWriter, Piece, frame_bounds
from rmq_store.log.append.grouping import Groups, Numbered, in_parts
from rmq_store.log.append.write_back import WriteBack
from rmq_store.log.core import scan
from rmq_store.log.core.commit_log import LOCK_TIMEOUT_MS, CommitLog
from rmq_store.log.core.layout import BLANK_BYTES, Layout, extent, lay_out
from rmq_store.log.views.hash_index import IndexState
from rmq_store.log.views.views import QueueKey

_LOG = logging.getLogger(__name__)
_BLANK = struct.Struct(">ii")

Unit = Callable[[int, int], tuple[pa.RecordBatch, pa.RecordBatch]]
"""Encodes a unit's first and last record (one row of ENCODED_SCHEMA each), given the offsets where the unit starts
and ends. Their sizes must not depend on these."""


@dataclass(frozen=True, slots=True)
class Appended:
    """The result of an append. The records lie in [start, end), including blank frames between them.

    `offsets` and `queue_offsets`: int64 (n,), in the order of the given rows, without the two records that bracket a
    unit.
    """

    start: int
    end: int
    store_timestamp: int
    offsets: np.ndarray
    queue_offsets: np.ndarray


class OneRecord(NamedTuple):
    """A record that gets a queue entry. It is complete but for its offsets and its store time.

    `frame` is encoded with zeros for queue offset, commit-log offset and storeTimestamp; the append fills them in.
    `delay_ms` above 0: the queue entry gets storeTimestamp + delay_ms instead of `tags_code`.
    """

    topic: str
    queue_id: int
    frame: bytearray
    tags_code: int
    key_hashes: Sequence[int]
    delay_ms: int = 0

    @property
    def size(self) -> int:
        """Bytes of the frame."""
        return len(self.frame)


class append_lock:
    """Hold the append lock for a `with` block. An append that a killed process left unfinished is undone first (step
    A1).

    Raises:
        StoreLockedError: not free in time.
        StoreFailedError: a flush failed earlier; writes are refused. Or an I/O error.
        StoreReplacedError: another store lies at the path now. Not raised while the store is being closed.
        UsageError: the store was closed meanwhile, or a signal handler runs in the middle of an append or a flush of
            its own thread. Nothing was written.
    """

    __slots__ = ("_block", "_closes", "_log")

    def __init__(self, log: CommitLog, timeout_ms: int = LOCK_TIMEOUT_MS, *, closes: bool = False) -> None:
        self._log = log
        self._closes = closes
        self._block = log.append_lock.exclusive(timeout_ms)

    def __enter__(self) -> None:
        log = self._log
        log.flush_lock.refuse_reentry()  # first: what was appended now could not be flushed
        self._block.enter(sys._getframe(1))
        try:
            # Held alone: a last closer was interrupted, and what it wrote says that nothing comes after it.
            if log.is_closing or log.store_lock.held != "shared":
                raise UsageError(f"{log.root} was closed meanwhile: nothing was written")
            if not self._closes:
                log.held_root.refuse_if_replaced()
            if log.writing_page.poison:
                raise StoreFailedError(
                    f"{log.root}: a flush failed: writes are refused until every process has closed the store"
                )
            undo(log)
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._block.__exit__(kind, error, trace)
        if isinstance(error, OSError):
            raise durable.translate(error, self._log.root) from error


def append(
    log: CommitLog,
    batches: Sequence[pa.RecordBatch],
    unit: Unit | None = None,
    *,
    places: bool = True,
    used: Callable[[np.ndarray], None] = lambda source: None,
) -> Appended:
    """Append encoded batches (ENCODED_SCHEMA), visible together; the caller holds `append_lock`. `used` is called with
    the bytes of frames that were copied and are not read again.

    On return the records are visible under ASYNC_FLUSH; they are durable only after a flush. Memory does not grow with
    the size of the records, except for 4 bytes a row, and 16 more if `places` are asked for.

    Raises:
        UsageError: a record that no segment can hold.
        StoreFullError, StoreFailedError: nothing is visible. The written bytes were removed; if even that failed, the
            next append removes them.
    """
    page = log.writing_page
    start = page.appended_end
    all_batches = list(batches)
    if unit:
        head, tail = unit(start, 0)
        all_batches = [head, *batches, tail]
    first, end = extent([frame_bounds(batch) for batch in all_batches], start, log.segments.size_bytes)
    if unit:
        all_batches[0], all_batches[-1] = unit(first, end)
    parts = in_parts(all_batches)
    offsets: list[np.ndarray] = [_NONE]
    queue_offsets: list[np.ndarray] = [_NONE]
    if not parts:
        return Appended(start, start, page.store_timestamp, _NONE, _NONE)

    now = log.clock()
    key_count = sum(len(batch.column("key_hashes").flatten()) for batch in all_batches)

    def make_room() -> None:
        for base in range(log.segments.base_of(first), end, log.segments.size_bytes):
            log.segments.create(base)
        if key_count:
            log.views.make_room_for_keys(now)

    with (
        AllOrNothing(log, start, end),
        log.views.putting_keys(key_count),
        HelperThread() as helper,
        WriteBack(log.segments, start, wanted=log.sync_flush) as write_back,
    ):
        # Before the disk has anything else to do, because each file waits for it; beside what needs the processor only.
        making_room = helper.begin(make_room) if len(parts) > 1 else None
        groups = Groups(parts)
        groups.start_at([log.next_queue_offset(*key, start) for key in groups.keys])
        if making_room is None:
            make_room()
        else:
            making_room.result()
        log.views.make_room(groups.ranges())
        placed = _placed(log, parts, groups, start)
        before, part = None, next(placed)
        while True:
            with _writing_records(log, part, now, used, write_back, helper):
                if before is not None:
                    _put_entries(log, before, groups.keys, now)
                _put_keys(log, part, now)
                following = next(placed, None)
            if places:
                offsets.append(part.layout.offsets)
                queue_offsets.append(part.numbered.queue_offsets)
            if following is None:
                break
            before, part = part, following
        _put_entries(log, part, groups.keys, now)
    assert part.layout.end == end
    commit(page, end, int(part.layout.offsets[-1]), now)
    own = slice(1, -1) if unit else slice(None)
    return Appended(start, end, now, np.concatenate(offsets)[own], np.concatenate(queue_offsets)[own])


def append_one(log: CommitLog, record: OneRecord) -> tuple[int, int]:
    """Append one record; the caller holds `append_lock`. Returns its commit-log offset and its queue offset.

    The steps and the bytes are those of `append`, but no array is made: a single message costs microseconds this way.
    Raises as `append`.
    """
    topic, queue_id, frame, tags_code, key_hashes, delay_ms = record
    page, segments, views = log.writing_page, log.segments, log.views
    start, size = page.appended_end, len(frame)
    room = segments.size_bytes - start % segments.size_bytes
    if size + BLANK_BYTES > segments.size_bytes:
        raise UsageError(f"a record of {size} bytes does not fit a segment of {segments.size_bytes} bytes")
    offset = start if size + BLANK_BYTES <= room else start + room
    end = offset + size
    queue_offset = log.next_queue_offset(topic, queue_id, start)
    with AllOrNothing(log, start, end):
        now = log.clock()
        complete_frame(frame, queue_offset, offset, now, crc_property=log.crc_property)
        if offset > start:
            segments.create(segments.base_of(start))
        segments.put(offset, frame)
        if offset > start:
            segments.write(start, _BLANK.pack(room, BLANK_MAGIC))
        views.queue(topic, queue_id).put_one(queue_offset, offset, size, now + delay_ms if delay_ms > 0 else tags_code)
        if views.index is not None:
            views.index.put_one(key_hashes, offset, now)
    commit(page, end, offset, now)
    log.remember_next(topic, queue_id, queue_offset + 1, start, end)
    return offset, queue_offset


class AllOrNothing:
    """A3: declare the intent of [start, end) for a `with` block; if that fails, take back what it wrote."""

    __slots__ = ("_end", "_log", "_start")

    def __init__(self, log: CommitLog, start: int, end: int) -> None:
        self._log = log
        self._start = start
        self._end = end

    def __enter__(self) -> None:
        state = self._log.views.index_state()
        self._log.writing_page.declare(self._start, self._end, state.file, state.header)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            return
        # Whatever it was: nobody has seen the records. If the undo fails too, the intent makes the next append do it.
        with contextlib.suppress(StoreError, OSError):
            undo(self._log)
        if isinstance(error, OSError):
            raise durable.translate(error, self._log.root) from error


def commit(page: StatePage, end: int, last_record: int, now: int) -> None:
    """A7. A death before the other two words are written leaves old ones: the next opener just has more work."""
    page.appended_end = end
    page.last_record = last_record
    page.store_timestamp = now


def undo(log: CommitLog) -> None:
    """Undo an append that has not reached its commit point, if there is one. It can be repeated after any interruption.

    Raises:
        StoreFullError, StoreFailedError: the intent stays, and the next append undoes it.
    """
    page = log.writing_page
    intent = page.intent
    if intent is None:
        return
    start, end = intent
    _LOG.warning("%s: taking back an unfinished append of bytes %d to %d", log.root, start, end)
    # A queue entry is written after its record and all before it, so the walk over whole records names every queue.
    log.views.cut_queues(start, scan.queues_in(log, start, end), log.is_record_of)
    log.views.restore_index(IndexState(page.index_file, page.index_header))
    log.segments.zero(start, end)
    page.intent_end = 0


class _Part(NamedTuple):
    """Rows of an append that go through A4 to A6 together, and where they go."""

    batches: Sequence[pa.RecordBatch]
    sizes: np.ndarray
    layout: Layout
    numbered: Numbered


def _placed(log: CommitLog, parts: Sequence[Sequence[pa.RecordBatch]], groups: Groups, start: int) -> Iterator[_Part]:
    """The parts of an append that begins at `start`, each one laid out when it is asked for."""
    for number, batches in enumerate(parts):
        sizes = np.concatenate([np.diff(frame_bounds(batch)) for batch in batches])
        layout = lay_out(sizes, start, log.segments.size_bytes)
        yield _Part(batches, sizes, layout, groups.number(number))
        start = layout.end


@contextlib.contextmanager
def _writing_records(
    log: CommitLog,
    part: _Part,
    now: int,
    used: Callable[[np.ndarray], None],
    write_back: WriteBack,
    helper: HelperThread,
) -> Iterator[None]:
    """A4 for a `with` block: frames with their offsets and times filled in, blank frames. The segments are there.

    They are there at its end. A second thread begins with them beside the block, if they are many, and this one takes
    its share of what is left when the block has come to its end.
    """
    layout = part.layout

    def through(row_count: int) -> None:
        write_back.written(int(layout.offsets[row_count]) if row_count < len(layout.offsets) else layout.end)

    def write() -> None:
        try:
            for piece in frame_writer.pieces():
                _write_piece(log, layout, piece)
        except BaseException:
            frame_writer.stop()
            raise

    for offset, size in layout.blanks:
        log.segments.write(offset, _BLANK.pack(size, BLANK_MAGIC))
    frame_writer = FrameWriter(
        part.batches, part.numbered.queue_offsets, layout.offsets, now, has_crc=log.crc_property, used=used,
        through=through,
    )  # fmt: skip
    other = helper.begin(write) if frame_writer.is_for_two() else None
    try:
        yield
    except BaseException:
        frame_writer.stop()
        raise
    write()
    if other is not None:
        other.result()


def _write_piece(log: CommitLog, layout: Layout, piece: Piece) -> None:
    """What lies in one segment with one write."""
    row, behind = piece.first, piece.first + len(piece.starts) - 1
    number = bisect_right(layout.runs, row, key=lambda run: run.first) - 1
    while row < behind:
        last = min(layout.runs[number].last, behind)
        start, end = (int(piece.starts[each - piece.first]) for each in (row, last))
        log.segments.write(int(layout.offsets[row]), piece.frames[start:end].data)
        row, number = last, number + 1


def _put_entries(log: CommitLog, part: _Part, keys: Sequence[QueueKey], now: int) -> None:
    """A5: queue entries, one write per queue and file."""
    offsets, numbered = part.layout.offsets, part.numbered
    tags_codes = np.concatenate([_tags_codes(batch, now) for batch in part.batches])
    entries = encode_entries(offsets[numbered.rows], part.sizes[numbered.rows], tags_codes[numbered.rows])
    done = 0
    for key, first, count in zip(keys, numbered.firsts.tolist(), numbered.counts.tolist(), strict=True):
        if count:
            log.views.queue(*key).put(first, entries[done : done + count])
            done += count


def _put_keys(log: CommitLog, part: _Part, now: int) -> None:
    """A6: index entries, in log order."""
    if log.views.index is None:
        return
    row = 0
    for batch in part.batches:
        hashes = batch.column("key_hashes")
        counts = np.diff(np.frombuffer(hashes.buffers()[1], np.int32, len(hashes) + 1, 4 * hashes.offset))
        log.views.put_keys(
            hashes.flatten().to_numpy(zero_copy_only=False), counts, part.layout.offsets[row : row + len(counts)],
            np.array([now], np.int64),
        )  # fmt: skip
        row += len(counts)


def _tags_codes(batch: pa.RecordBatch, now: int) -> np.ndarray:
    """int64 (n,): what the queue entries hold; for delayed messages when they are due (ScheduleMessageService.java)."""
    delays_ms = batch.column("delay_ms").to_numpy(zero_copy_only=False)
    tags_codes: np.ndarray = batch.column("tags_code").to_numpy(zero_copy_only=False)
    return np.where(delays_ms > 0, now + delays_ms, tags_codes) if delays_ms.any() else tags_codes


_NONE = np.empty(0, np.int64)
