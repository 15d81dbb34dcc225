"""Reads the log frame by frame, for recovery, undo and read-only opens."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from types import TracebackType
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from rmq_store.errors import CorruptRecordError, UsageError
from rmq_store.files.locks.background import Answer, Background
from rmq_store.format.batches.frame_decoder import DispatchColumns, dispatch_columns
from rmq_store.format.frames.frame_check import FrameCheck, check_frame
from rmq_store.format.frames.frame_walk import FRAMES_MAX, sound_frames
from rmq_store.format.text.names import validate_topic
from rmq_store.format.views.consume_queue import QUEUE_OFFSET_MAX, encode_entries
from rmq_store.log.core.commit_log import CommitLog
from rmq_store.log.views.views import QueueKey

# As many as processors are likely to be idle; each may need 2 MB for places of frames.
SEGMENTS_AHEAD = 2

# How far before the end of a log its last message is looked for first.
_FIRST_STEP_BYTES = 64 << 10


class Stretch(NamedTuple):
    """Contiguous whole frames of one segment: `positions` and `sizes` (int64 (n,)), and the end of the stretch. A
    segment with more than FRAMES_MAX frames has several stretches.

    `stopped` is "" if the walk goes on at `end`, otherwise the reason why it ended there. `gap`: accepted damage lies
    before `end`, so the next frame need not follow the last one.
    """

    base: int
    positions: np.ndarray
    sizes: np.ndarray
    end: int
    stopped: str
    gap: bool = False


def walk(log: CommitLog, start: int, limit: int | None = None, *, ahead: bool = True) -> Iterator[Stretch]:
    """Walk whole frames from `start` on, a frame boundary, up to the first bad frame or `limit`.

    All rules of CommitLog#checkMessageAndReturnSize hold, and two more: a record must contain its own offset, and from
    `log.crc_from` on it must have a CRC property. Without a CRC property, torn or destroyed properties would not be
    noticed. Accepted damage (`log.accepted_damage`) is skipped where it begins, unless a whole frame begins there: the
    bytes may have been restored. Its bytes that are still bad are skipped as well. `ahead` checks frames in a second
    thread, for long scans.
    """
    segment_bytes = log.segments.size_bytes
    offset = start
    bases = set(log.segments.bases())
    with _Ahead(log, limit) as others:
        while limit is None or offset < limit:
            base = log.segments.base_of(offset)
            if base not in bases:
                resume = log.accepted_damage.skip(offset)
                gap = resume > offset
                stopped = "" if gap else "the next segment does not exist"
                yield Stretch(base, np.empty(0, np.int64), np.empty(0, np.int64), resume, stopped, gap)
                if not gap:
                    return
                offset = resume
                continue
            for following in range(base, base + (SEGMENTS_AHEAD + 1) * segment_bytes, segment_bytes)[1:]:
                if ahead and following in bases:
                    others.begin(following)
            positions, sizes = others.frames(offset)
            view = memoryview(log.segments.open(base).map)
            high = _high(log, base, limit)
            position, stopped = int(positions[-1] + sizes[-1]) if len(positions) else offset - base, ""
            if position < high and len(positions) < FRAMES_MAX:
                check = _check(log, view, base, position)
                if check.kind == "message":  # a writer has finished it since
                    positions, sizes = np.append(positions, position), np.append(sizes, check.size)
                    position += check.size
                elif check.kind == "bad":
                    stopped = check.reason
                elif position + check.size == segment_bytes:
                    position = segment_bytes
                else:
                    stopped = "a blank frame that does not end with its segment"
            resume = _end_of_accepted_damage(log, base, position) if stopped else base + position
            gap = resume > base + position
            stopped = "" if gap else stopped
            yield Stretch(base, positions, sizes, resume, stopped, gap)
            if stopped:
                return
            offset = resume


class _Ahead:
    """Sound frames of the segments that come next are found by other threads while the walk is at this one: their bytes
    may have to come from the disk, and checksums take as long as all else.
    """

    def __init__(self, log: CommitLog, limit: int | None) -> None:
        self._log = log
        self._limit = limit
        self._threads: dict[int, Background] = {}
        self._begun: dict[int, Answer[tuple[np.ndarray, np.ndarray]]] = {}

    def __enter__(self) -> _Ahead:
        return self

    def begin(self, base: int) -> None:
        """Begin with the segment at `base`, if the walk goes so far and it was not begun with."""
        if base in self._begun or (self._limit is not None and base >= self._limit):
            return
        answer: Answer[tuple[np.ndarray, np.ndarray]] = Answer()
        thread = Background(partial(answer.work_out, partial(self._found, base)), "rmq-scan")
        # No thread is to be had while the interpreter ends, or where there are too many: the walk finds them itself.
        with contextlib.suppress(RuntimeError):
            self._threads[base] = thread
            thread.start()
            self._begun[base] = answer

    def frames(self, offset: int) -> tuple[np.ndarray, np.ndarray]:
        """As `sound_frames`, from `offset` on. Raises what opening the segment raises."""
        begun = self._begun.pop(offset, None)
        self._threads.pop(offset, None)
        return begun.result() if begun is not None else self._found(offset)

    def _found(self, offset: int) -> tuple[np.ndarray, np.ndarray]:
        log, base = self._log, self._log.segments.base_of(offset)
        view = memoryview(log.segments.open(base).map)
        return sound_frames(view, offset - base, _high(log, base, self._limit), base, log.crc_from)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for thread in list(self._threads.values()):
            thread.join()


def _high(log: CommitLog, base: int, limit: int | None) -> int:
    """The position in the segment up to which a walk goes."""
    return log.segments.size_bytes if limit is None else min(log.segments.size_bytes, limit - base)


def _end_of_accepted_damage(log: CommitLog, base: int, position: int) -> int:
    """The end of the accepted damage that has the bad frame; without accepted damage, the offset of the frame."""
    offset = base + position
    bad = log.accepted_damage.covering(offset)
    if bad is None or bad.start == offset:
        return log.accepted_damage.skip(offset)
    return min(bad.end, base + next_frame(log, base, position + 1))


def next_frame(log: CommitLog, base: int, position: int) -> int:
    """Position of the first whole frame of a segment at or after `position`: a message that contains its own offset, or
    the blank that fills the segment. The segment's size if there is none.
    """
    view = log.segments.open(base).map
    message = next_message(log, base, position)
    at = view.find(_BLANK_MAGIC, position + 4, message)
    while at >= 0:
        if int.from_bytes(view[at - 4 : at]) == len(view) - (at - 4):
            return at - 4
        at = view.find(_BLANK_MAGIC, at + 1, message)
    return message


def next_message(log: CommitLog, base: int, position: int) -> int:
    """As `next_frame`, for messages only."""
    view = log.segments.open(base).map
    window = memoryview(view)
    at = view.find(_MESSAGE_MAGIC, position + 4)
    while at >= 0:
        check = _check(log, window, base, at - 4)
        if check.kind == "message":
            return at - 4
        at = view.find(_MESSAGE_MAGIC, at + 1)
    return len(view)


def newest_message(log: CommitLog, end: int) -> int | None:
    """The offset of the last message of a log that ends at `end`; None: it has none."""
    start, step_bytes = log.start(), _FIRST_STEP_BYTES
    while start < end:
        at = max(start, end - step_bytes)
        base = log.segments.base_of(at)
        found = at if at == base else base + next_message(log, base, at - base)
        last = None
        for stretch in walk(log, found, end, ahead=False) if found < end else ():
            if len(stretch.positions):
                last = stretch.base + int(stretch.positions[-1])
        if last is not None or at == start:
            return last
        step_bytes *= 2
    return None


def _check(log: CommitLog, view: memoryview, base: int, position: int) -> FrameCheck:
    offset = base + position
    must_have_crc = log.crc_from is not None and offset >= log.crc_from
    return check_frame(view, position, len(view), expect_offset=offset, check_crc=True, force_prop_crc=must_have_crc)


_MESSAGE_MAGIC = b"\xda\xa3\x20"  # of both versions
_BLANK_MAGIC = b"\xcb\xd4\x31\x94"


def columns_of(log: CommitLog, stretch: Stretch, buffer: pa.Buffer | None = None) -> DispatchColumns:
    """The fields of a stretch's frames that the views need. `buffer`: the bytes from `stretch.base` on, if they are not
    in the log yet.

    Raises:
        CorruptRecordError: a topic that no broker accepts, or a queue offset that no queue file can hold: both would
            become file names.
    """
    buffer = log.segments.open(stretch.base).buffer if buffer is None else buffer
    columns = dispatch_columns(
        buffer,
        stretch.positions,
        stretch.sizes.astype(np.int32),
        stretch.base,
        log.delay_levels_ms,
        index_tags=log.index_tags,
    )
    _check_names(log, stretch, columns)
    return columns


def _check_names(log: CommitLog, stretch: Stretch, columns: DispatchColumns) -> None:
    row, reason = None, ""
    for code, name in enumerate(columns.topic.dictionary.to_pylist()):
        try:
            validate_topic(name)
        except UsageError as error:
            row, reason = columns.topic.indices.index(code).as_py(), str(error)
    if (columns.queue_offset > QUEUE_OFFSET_MAX).any():
        row = int((columns.queue_offset > QUEUE_OFFSET_MAX).argmax())
        reason = f"no queue can hold offset {columns.queue_offset[row]}"
    if row is not None:
        offset = stretch.base + int(stretch.positions[row])
        raise CorruptRecordError(str(log.segments.path(log.segments.base_of(offset))), offset, reason)


def queues_in(log: CommitLog, start: int, end: int) -> list[QueueKey]:
    """The queues of the whole frames in [start, end)."""
    found: set[QueueKey] = set()
    for stretch in walk(log, start, end):
        if len(stretch.positions):
            columns = columns_of(log, stretch)
            found.update(zip(columns.topic.to_pylist(), columns.queue_id.tolist(), strict=True))
    return sorted(found)


def entries_by_queue(
    columns: DispatchColumns, stretch: Stretch, elsewhere: frozenset[str]
) -> Iterator[tuple[QueueKey, int, np.ndarray]]:
    """(queue, first queue offset, entries): runs of consecutive queue offsets, ready for `ConsumeQueue.put`; none of
    topics whose queues are `elsewhere` (`Views.elsewhere`).
    """
    rows = np.flatnonzero(columns.dispatchable)
    if not len(rows):
        return
    topics = columns.topic if hasattr(columns.topic, "dictionary") else columns.topic.dictionary_encode()
    codes = topics.indices.to_numpy(zero_copy_only=False)[rows].astype(np.int64)
    queue_ids = columns.queue_id[rows].astype(np.int64)
    queue_offsets = columns.queue_offset[rows]
    order = np.lexsort((np.arange(len(rows)), queue_ids, codes))
    rows, codes, queue_ids, queue_offsets = rows[order], codes[order], queue_ids[order], queue_offsets[order]
    entries = encode_entries(stretch.base + stretch.positions[rows], stretch.sizes[rows], columns.tags_code[rows])
    new_run = np.ones(len(rows), dtype=bool)
    new_run[1:] = (np.diff(codes) != 0) | (np.diff(queue_ids) != 0) | (np.diff(queue_offsets) != 1)
    bounds = [*np.flatnonzero(new_run).tolist(), len(rows)]
    names = topics.dictionary.to_pylist()
    for low, high in pairwise(bounds):
        if elsewhere and names[codes[low]] in elsewhere:
            continue
        yield (names[codes[low]], int(queue_ids[low])), int(queue_offsets[low]), entries[low:high]
