"""Append: any number of records to any queues, which become visible together; and the undo of an append that was
interrupted.

Steps A1-A8 and the rollback are those of docs/design.md section 6. Everything here runs under the append lock. Each
step is written once; what an append is given decides who takes it through them:

    step       where                            taken by
    A1         `append_lock`                    the caller, for a `with` block
    A2         `lay_out`, `lay_out_one`         `append` of columns, `append_one`, and `append_frames`
    A3 A7 A8   `AppendSteps`                    all of them
    A4 A5 A6   `AppendSteps.put_...`            those of many records; `append_one` puts single values, without arrays
"""

from __future__ import annotations

import contextlib
import logging
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from operator import itemgetter
from types import TracebackType
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from rmq_store.errors import StoreError, StoreFailedError, UsageError
from rmq_store.files import durable
from rmq_store.files.locks.background import HelperThread
from rmq_store.format.frames.stored_message import complete_frame, encode_blank
from rmq_store.format.views.consume_queue import encode_entries
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.log.append.frame_writer import FrameWriter, frame_bounds
from rmq_store.log.append.grouping import Groups, Numbered, in_parts
from rmq_store.log.append.write_back import WriteBack
from rmq_store.log.core import scan
from rmq_store.log.core.commit_log import LOCK_TIMEOUT_MS, CommitLog
from rmq_store.log.core.layout import Layout, Run, extent, lay_out, lay_out_one
from rmq_store.log.views.hash_index import IndexState
from rmq_store.log.views.views import QueueKey

_LOG = logging.getLogger(__name__)
_first_row = itemgetter(Run._fields.index("first"))

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
            begin_append(log, closes=self._closes)
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._block.__exit__(kind, error, trace)
        if isinstance(error, OSError):
            raise durable.translate(error, self._log.root) from error


def begin_append(log: CommitLog, *, closes: bool = False) -> None:
    """Step A1, for who has just taken the append lock. Raises as `append_lock`."""
    # Held alone: a last closer was interrupted, and what it wrote says that nothing comes after it.
    if log.is_closing or log.store_lock.held != "shared":
        raise UsageError(f"{log.root} was closed meanwhile: nothing was written")
    if not closes:
        log.held_root.refuse_if_replaced()
    if log.writing_page.poison:
        raise StoreFailedError(
            f"{log.root}: a flush failed: writes are refused until every process has closed the store"
        )
    undo(log)


def append(
    log: CommitLog,
    batches: Sequence[pa.RecordBatch],
    unit: Unit | None = None,
    *,
    return_offsets: bool = True,
    on_copied: Callable[[np.ndarray], None] = lambda source: None,
) -> Appended:
    """Append encoded batches (ENCODED_SCHEMA), visible together; the caller holds `append_lock`. `on_copied` is called
    with the bytes of frames that were copied and are not read again.

    On return the records are visible under ASYNC_FLUSH; they are durable only after a flush. Memory does not grow with
    the size of the records, except for 4 bytes a row, and 16 more with `return_offsets`.

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

    key_count = sum(len(batch.column("key_hashes").flatten()) for batch in all_batches)

    def make_room(now: int) -> None:
        for base in range(log.segments.base_of(first), end, log.segments.size_bytes):
            log.segments.create(base)
        if key_count:
            log.views.make_room_for_keys(now)

    with (
        AppendSteps(log, start, end) as steps,
        log.views.putting_keys(key_count),
        HelperThread() as helper,
        WriteBack(log.segments, start, wanted=log.sync_flush) as write_back,
    ):
        # Before the disk has anything else to do, because each file waits for it; beside what needs the processor only.
        making_room = helper.begin(partial(make_room, steps.now)) if len(parts) > 1 else None
        groups = Groups(parts)
        groups.start_at([log.next_queue_offset(*key, start) for key in groups.keys])
        if making_room is None:
            make_room(steps.now)
        else:
            making_room.result()
        log.views.make_room(groups.ranges())
        placed = _placed(log, parts, groups, start)
        before, part = None, next(placed)
        while True:
            with _writing_records(log, part, steps, on_copied, write_back, helper):
                if before is not None:
                    _put_entries(steps, before, groups.keys)
                _put_keys(log, steps, part)
                following = next(placed, None)
            if return_offsets:
                offsets.append(part.layout.offsets)
                queue_offsets.append(part.numbered.queue_offsets)
            if following is None:
                break
            before, part = part, following
        _put_entries(steps, part, groups.keys)
        assert part.layout.end == end
    own = slice(1, -1) if unit else slice(None)
    return Appended(start, end, steps.now, np.concatenate(offsets)[own], np.concatenate(queue_offsets)[own])


def append_one(log: CommitLog, record: OneRecord) -> tuple[int, int]:
    """Append one record; the caller holds `append_lock`. Returns its commit-log offset and its queue offset.

    No array is made: a single message costs microseconds this way. Raises as `append`.
    """
    topic, queue_id, frame, tags_code, key_hashes, delay_ms = record
    segments, views = log.segments, log.views
    start, size = log.writing_page.appended_end, len(frame)
    offset = lay_out_one(size, start, segments.size_bytes)
    end = offset + size
    queue_offset = log.next_queue_offset(topic, queue_id, start)
    with AppendSteps(log, start, end) as steps:
        now = steps.now
        complete_frame(frame, queue_offset, offset, now, crc_property=log.crc_property)
        if offset > start:
            steps.put_blank(start, offset - start)
        segments.put(offset, frame)
        views.queue(topic, queue_id).put_one(queue_offset, offset, size, now + delay_ms if delay_ms > 0 else tags_code)
        if views.index is not None:
            views.index.put_one(key_hashes, offset, now)
        steps.last_record = offset
    log.remember_next(topic, queue_id, queue_offset + 1, start, end)
    return offset, queue_offset


class AppendSteps:
    """Steps A3 to A8 of an append of [start, end), for a `with` block. `now`: the store time of its records, ms.

    Entering it declares the intent (A3). The block puts frames (A4) before their entries (A5), and keys (A6). If it
    ends, the records are published (A7, A8); `last_record` is the offset of the last one. If it fails, what it wrote is
    taken back.
    """

    __slots__ = ("_end", "_log", "_start", "last_record", "now")

    def __init__(self, log: CommitLog, start: int, end: int) -> None:
        self._log = log
        self._start = start
        self._end = end
        self.last_record = 0
        self.now = 0

    def __enter__(self) -> AppendSteps:
        self.now = self._log.clock()
        state = self._log.views.index_state()
        self._log.writing_page.declare(self._start, self._end, state.file, state.header)
        return self

    def extend(self, end: int) -> None:
        """Move the end of the append. The undo takes back what lies below it. So it grows before anything is put there,
        and shrinks only to where nothing was put behind.
        """
        self._end = self._log.writing_page.intent_end = end

    def put_blank(self, offset: int, size_bytes: int) -> None:
        """A4: the blank frame that fills the rest of a segment."""
        self._log.segments.put(offset, encode_blank(size_bytes))

    def put_blanks(self, layout: Layout) -> None:
        """A4: the blank frames between records, before the frames: missing segments are created in their order."""
        for offset, size_bytes in layout.blanks:
            self.put_blank(offset, size_bytes)

    def put_frames(self, layout: Layout, first: int, starts: np.ndarray, frames: np.ndarray) -> None:
        """A4: complete frames of the rows [first, first + n) of `layout`, one write for each segment. Frame i is
        `frames[starts[i]:starts[i + 1]]`. Any thread may call it.
        """
        row, behind = first, first + len(starts) - 1
        number = bisect_right(layout.runs, row, key=_first_row) - 1
        while row < behind:
            last = min(layout.runs[number].last, behind)
            piece = frames[starts[row - first] : starts[last - first]]
            self._log.segments.put(int(layout.offsets[row]), piece.data)
            row, number = last, number + 1
        if behind == len(layout.offsets):
            self.last_record = int(layout.offsets[-1])

    def put_entries(self, queues: Iterable[tuple[QueueKey, int, int]], entries: np.ndarray) -> None:
        """A5: queue entries, one write for each queue and file. Of each queue its key, the queue offset of its first
        entry, and how many of `entries` it has; they lie queue after queue.
        """
        done = 0
        for key, first, count in queues:
            if count:
                self._log.views.queue(*key).put(first, entries[done : done + count])
                done += count

    def put_keys(self, key_hashes: np.ndarray, key_counts: np.ndarray, offsets: np.ndarray) -> None:
        """A6: index entries of records at `offsets`, in log order; the first two as `Views.put_keys` takes them."""
        self._log.views.put_keys(key_hashes, key_counts, offsets, np.array([self.now], np.int64))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            page = self._log.writing_page
            # A7. A death before the other two words are written leaves old ones: the next opener just has more work.
            page.appended_end = self._end
            page.last_record = self.last_record
            page.store_timestamp = self.now
            return
        # Whatever it was: nobody has seen the records. If the undo fails too, the intent makes the next append do it.
        with contextlib.suppress(StoreError, OSError):
            undo(self._log)
        if isinstance(error, OSError):
            raise durable.translate(error, self._log.root) from error


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
    steps: AppendSteps,
    on_copied: Callable[[np.ndarray], None],
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
                steps.put_frames(layout, *piece)
        except BaseException:
            frame_writer.stop()
            raise

    steps.put_blanks(layout)
    frame_writer = FrameWriter(
        part.batches, part.numbered.queue_offsets, layout.offsets, steps.now, has_crc=log.crc_property,
        on_copied=on_copied, through=through,
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


def _put_entries(steps: AppendSteps, part: _Part, keys: Sequence[QueueKey]) -> None:
    """A5 of one part."""
    tags_codes, delays_ms = (
        np.concatenate([batch.column(name).to_numpy(zero_copy_only=False) for batch in part.batches])
        for name in ("tags_code", "delay_ms")
    )
    rows, firsts, counts = part.numbered.rows, part.numbered.firsts.tolist(), part.numbered.counts.tolist()
    codes = due_or_tags(tags_codes, delays_ms, steps.now)
    entries = encode_entries(part.layout.offsets[rows], part.sizes[rows], codes[rows])
    steps.put_entries(zip(keys, firsts, counts, strict=True), entries)


def _put_keys(log: CommitLog, steps: AppendSteps, part: _Part) -> None:
    """A6 of one part."""
    if log.views.index is None:
        return
    row = 0
    for batch in part.batches:
        hashes = batch.column("key_hashes")
        counts = np.diff(np.frombuffer(hashes.buffers()[1], np.int32, len(hashes) + 1, 4 * hashes.offset))
        steps.put_keys(
            hashes.flatten().to_numpy(zero_copy_only=False), counts, part.layout.offsets[row : row + len(counts)]
        )
        row += len(counts)


def due_or_tags(tags_codes: np.ndarray, delays_ms: np.ndarray, now: int) -> np.ndarray:
    """int64 (n,): what the queue entries hold; for delayed messages when they are due (ScheduleMessageService.java)."""
    return np.where(delays_ms > 0, now + delays_ms, tags_codes) if delays_ms.any() else tags_codes


_NONE = np.empty(0, np.int64)
