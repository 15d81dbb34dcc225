"""A consume queue (a view of the log): for each message of one queue an entry of 20 bytes with its commit-log offset.

    <root>/consumequeue/<topic>/<queue id>/<20 digits>      entry N at byte 20 * N of the run of files

Zero entries follow the last one. `size == 0x7FFFFFFF` is a pre-blank entry: there never was a message (Java writes
them when a queue begins at an offset > 0). Readers pass over it and never return it.
Source: ConsumeQueue (putMessagePositionInfo, fillPreBlank); docs/formats.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from rmq_store.files.segments.open_files import OpenFile
from rmq_store.files.segments.segments import SegmentRun
from rmq_store.format.views.consume_queue import ENTRY, ENTRY_BYTES, ENTRY_FIELDS, PRE_BLANK_SIZE

Confirm = Callable[[int, int, int], bool]
"""(commit-log offset, size, queue offset) -> is this record really that message of this queue?"""

# Entries looked at per step where some are damaged: a page of 4 KiB has 205.
_LOOK = 256

# Entries that one sector of 512 bytes has a part in, at most.
_SECTOR_ENTRIES = (512 - 1) // ENTRY_BYTES + 2

# Behind an end nobody has written, nearly always.
_BLANK_SECTOR = bytes(_SECTOR_ENTRIES * ENTRY_BYTES)
_BLANK = bytes(2 * _LOOK * ENTRY_BYTES)


class _KnownRange(NamedTuple):
    """The range that a queue had at an end of the log and a span of its segments. `listed`: the queue's files then."""

    log_end: int
    span: tuple[int, int]
    listed: Sequence[int]
    found: tuple[int, int]


class ConsumeQueue:
    """The files of one queue. A hint of the last end is cached, and is checked against the files before use. So is a
    range, until the log or the queue's directory changes.
    """

    def __init__(self, run: SegmentRun, topic: str, queue_id: int) -> None:
        self.run = run
        self.topic = topic
        self.queue_id = queue_id
        self._per_file = run.size_bytes // ENTRY_BYTES
        self._hint = 0
        self._known_first: tuple[Sequence[int], int, int] | None = None  # listing, start of the log, first queue offset
        self._known_range: _KnownRange | None = None
        self.is_written = False
        """Whether entries were put into it here."""

    def max_offset(self, end: int, confirm: Confirm, is_record: Confirm) -> int:
        """The queue offset after the last message whose record ends at or below `end`; 0 if there is none.

        An entry that a writer is just writing may look valid: `confirm` checks its record. A damaged entry may look
        like the end. It is not the end if a later record says that it belongs to this queue (`is_record`).
        """
        hint = self._hint  # read once: another thread may have another end, and leaves another hint meanwhile
        found = self._end_near(hint, end, confirm)
        if found is None:
            bases = self._bases()
            if not bases:
                return 0
            found = self._end(bases, end, confirm, is_record)
        self._hint = found
        return found

    def min_offset(self, log_start: int, max_offset: int, log_end: int, confirm: Confirm) -> int:
        """The first queue offset whose record lies at or above `log_start`, or `max_offset` if there is none.

        Entries have no checksum, and a zeroed entry points below `log_start` too. So an entry that is impossible in a
        log which ends at or below `log_end` is ignored, and its neighbours decide. Damage between the messages that
        retention deleted and those that are left counts as left, so that readers learn of it. `confirm` checks the
        record where an entry says that its record exists, while a later entry says that retention deleted its own.

        The answer is known as long as neither the queue's directory nor the first segment changes: entries below an end
        stay as they are.
        """
        listed, known = self.run.listed(), self._known_first
        if known is not None and known[0] is listed and known[1] == log_start and known[2] < max_offset:
            return known[2]
        if not listed:
            return 0
        found = self._searched_first(listed[0] // ENTRY_BYTES, log_start, max_offset, log_end, confirm)
        self._known_first = listed, log_start, found
        return found

    def known_range(self, log_end: int, span: tuple[int, int]) -> tuple[int, int] | None:
        """Return what `remember_range` was told for this end and this span; None if another one was told since, or the
        queue's directory may have changed. It costs one stat(2).
        """
        known = self._known_range
        if known is None or known.log_end != log_end or known.span != span or self.run.listed() is not known.listed:
            return None
        return known.found

    def remember_range(self, log_end: int, span: tuple[int, int], found: tuple[int, int]) -> None:
        """Remember the range [min, max) that `max_offset` and `min_offset` have just found, in a log that ends at
        `log_end` and whose segments have this span. Entries below an end stay as they are, in a store that only this
        engine writes. A topic that was deleted has no files, and one that was made again has messages behind `log_end`.
        """
        if self._known_first is not None:
            self._known_range = _KnownRange(log_end, span, self._known_first[0], found)

    def _searched_first(self, first: int, log_start: int, max_offset: int, log_end: int, confirm: Confirm) -> int:
        if first < max_offset:
            offset, size, _ = self.entry(first)
            if _is_possible(offset, size, log_end) and not _is_taken(offset, size, log_start):
                return first  # nothing was taken yet: the usual case
        found = self._first_left(first, max_offset, log_start, log_end)
        while (earlier := self._left_before(found, first, log_start, log_end, confirm)) is not None:
            found = self._first_left(first, earlier, log_start, log_end)
        return found

    def _first_left(self, low: int, high: int, log_start: int, log_end: int) -> int:
        """The first queue offset in [low, high] that retention left, if all entries that are possible are true."""
        while low < high:
            middle = (low + high) // 2
            offset, size, _ = self.entry(middle)
            if _is_possible(offset, size, log_end):
                if _is_taken(offset, size, log_start):
                    low = middle + 1
                else:
                    high = middle
                continue
            behind = self._first_possible(middle + 1, high, log_end)
            if behind < high and _is_taken(*self.entry(behind)[:2], log_start):
                low = behind + 1
                continue
            before = self._last_possible(low, middle, log_end)
            if before < low or _is_taken(*self.entry(before)[:2], log_start):
                return before + 1
            high = before
        return low

    def _left_before(self, found: int, first: int, log_start: int, log_end: int, confirm: Confirm) -> int | None:
        """A queue offset below `found` whose record is there, although retention should have taken it.

        Looks further and further away, to see beyond a run of entries that are possible, and not true.
        """
        queue_offset, step = found - 2, 1
        while queue_offset >= first:
            try:
                offset, size, _ = self.entry(queue_offset)
            except FileNotFoundError:  # retention is at work, and takes what is older first
                return None
            if (
                _is_possible(offset, size, log_end)
                and not _is_taken(offset, size, log_start)
                and confirm(offset, size, queue_offset)
            ):
                return queue_offset
            queue_offset, step = queue_offset - step, 2 * step
        return None

    def _first_possible(self, start: int, stop: int, log_end: int) -> int:
        """The first of [start, stop) that can be an entry; `stop` if none can."""
        for at in range(start, stop, _LOOK):
            entries = self.entries(at, min(at + _LOOK, stop))
            rows = np.flatnonzero(_is_possible(entries["commit_log_offset"], entries["frame_size"], log_end))
            if len(rows):
                return at + int(rows[0])
        return stop

    def _last_possible(self, start: int, stop: int, log_end: int) -> int:
        """The last of [start, stop) that can be an entry; `start - 1` if none can."""
        for end in range(stop, start, -_LOOK):
            at = max(end - _LOOK, start)
            entries = self.entries(at, end)
            rows = np.flatnonzero(_is_possible(entries["commit_log_offset"], entries["frame_size"], log_end))
            if len(rows):
                return at + int(rows[-1])
        return start - 1

    def entries(self, start: int, stop: int) -> np.ndarray:
        """Entries of [start, stop), dtype ENTRY, a copy; FileNotFoundError if retention deleted a file."""
        parts = []
        while start < stop:
            base = start - start % self._per_file
            last = min(stop, base + self._per_file)
            count, position = (last - start) * ENTRY_BYTES, (start - base) * ENTRY_BYTES
            parts.append(np.frombuffer(self.run.open(base * ENTRY_BYTES).map, np.uint8, count, position))
            start = last
        # As bytes: numpy copies entries one field after the other, ten times as long.
        return np.concatenate(parts).view(ENTRY) if parts else np.empty(0, dtype=ENTRY)

    def entries_at(self, rows: np.ndarray) -> np.ndarray:
        """The entries of the queue offsets `rows` (n,) int64, ascending, dtype ENTRY (n,); raises as `entries`."""
        found = np.empty(len(rows), dtype=ENTRY)
        first = 0
        while first < len(rows):
            base = int(rows[first]) - int(rows[first]) % self._per_file
            last = int(np.searchsorted(rows, base + self._per_file))
            view = np.frombuffer(self.run.open(base * ENTRY_BYTES).map, dtype=ENTRY, count=self._per_file)
            found[first:last] = view[rows[first:last] - base]
            first = last
        return found

    def make_room(self, start: int, count: int) -> None:
        """Create the files that begin within the queue offsets [start, start + count), which follow the queue's end.
        StoreFullError, StoreFailedError.
        """
        for base in range(start + -start % self._per_file, start + count, self._per_file):
            self.run.create(base * ENTRY_BYTES)

    def put(self, start: int, entries: np.ndarray) -> None:
        """Write `entries` (dtype ENTRY) at queue offsets [start, start + n), creating files.

        Writing the same entries at the same offsets again changes nothing. StoreFullError, StoreFailedError.
        """
        # Behind an entry that was put here there is a file already, and a directory is not listed for each batch.
        if start and not (self.is_written and self._hint == start and start % self._per_file):
            bases = self._bases()
            if not bases or start - start % self._per_file < bases[0]:
                self._fill_pre_blank(start)
        done = 0
        while done < len(entries):
            base = start - start % self._per_file
            count = min(len(entries) - done, base + self._per_file - start)
            self.run.put(start * ENTRY_BYTES, entries[done : done + count].astype(ENTRY, copy=False).tobytes())
            start += count
            done += count
        self._hint, self.is_written = start, True

    def impossible(self, start: int, stop: int, log_end: int) -> np.ndarray:
        """The queue offsets in [start, stop) of impossible entries, int64 ascending. No message of a log that ends at
        or below `log_end` can have such an entry. Raises as `entries`.
        """
        entries = self.entries(start, stop)
        return start + np.flatnonzero(~_is_possible(entries["commit_log_offset"], entries["frame_size"], log_end))

    def last_possible(self, base: int, log_end: int) -> int:
        """The last queue offset, in the file that begins at `base`, whose entry is possible in a log that ends at or
        below `log_end`; `base` - 1 without one.
        """
        return self._last_possible(base, base + self._per_file, log_end)

    def has_entry(self, queue_offset: int) -> bool:
        """True if the entry at this queue offset is not empty, and its file (still) exists."""
        try:
            _, size, _ = self.entry(queue_offset)
        except FileNotFoundError:
            return False
        return size > 0

    def put_one(self, queue_offset: int, log_offset: int, size: int, tags_code: int) -> None:
        """As `put`, for one entry."""
        if queue_offset % self._per_file == 0:
            self.run.create(queue_offset * ENTRY_BYTES)
        self.run.write(queue_offset * ENTRY_BYTES, ENTRY_FIELDS.pack(log_offset, size, tags_code))
        self._hint, self.is_written = queue_offset + 1, True

    def has_got(self, queue_offset: int) -> None:
        """Note that an entry was put at this queue offset, in a file that was there."""
        self._hint, self.is_written = queue_offset + 1, True

    def last_file(self, queue_offset: int) -> tuple[int, OpenFile]:
        """The file that holds the entry before `queue_offset`, and the position of its first byte in the queue.
        FileNotFoundError.
        """
        position = self.run.base_of((queue_offset - 1) * ENTRY_BYTES)
        return position, self.run.open(position)

    def cut(self, log_offset: int, is_record: Confirm, confirm: Confirm | None = None) -> int:
        """Remove the entries of records at or above `log_offset`; returns the queue's new end.

        Passes over holes, and over old entries after the first invalid one, as a power cut leaves them. It does not
        pass over damage as `max_offset` defines it. With `confirm`, a last entry that its record does not confirm is
        removed too: an entry torn across a sector may point below `log_offset`.
        """
        bases = self._bases()
        if not bases:
            return 0
        boundary = self._end(bases, log_offset, confirm or _believe, is_record, by_start=True)
        self.run.zero(boundary * ENTRY_BYTES, (bases[-1] + self._per_file) * ENTRY_BYTES)
        for base in bases[1:]:
            if base >= boundary:
                self.run.remove(base * ENTRY_BYTES)
        self._hint, self._known_first, self._known_range = 0, None, None
        return boundary

    def begin_again(self, queue_offset: int) -> None:
        """Remove all entries from `queue_offset` on, wherever they point, and the files that hold no others."""
        bases = self._bases()
        if not bases:
            return
        self.run.zero(queue_offset * ENTRY_BYTES, (bases[-1] + self._per_file) * ENTRY_BYTES)
        for base in bases:
            if base > queue_offset - queue_offset % self._per_file:
                self.run.remove(base * ENTRY_BYTES)
        self._hint, self._known_first, self._known_range = 0, None, None

    def old_files(self, log_start: int, log_end: int, is_record: Confirm) -> list[int]:
        """First queue offsets of the files whose entries all point below `log_start`, oldest first; never the last file
        (ConsumeQueue#deleteExpiredFile).

        The last entry of a file decides, if its offset is not below that of the entry before it. If it is damaged, the
        next files decide. The first record that exists (`is_record`) ends the search.
        """
        bases = self._bases()
        count = 0
        for number, base in enumerate(bases[:-1]):
            last = base + self._per_file - 1
            offset, size, _ = self.entry(last)
            if not _is_possible(offset, size, log_end):
                continue
            if _is_taken(offset, size, log_start):
                before, before_size, _ = self.entry(max(last - 1, base))
                if _is_possible(before, before_size, log_end) and before <= offset:
                    count = number + 1
            elif is_record(offset, size, last):
                break
        return bases[:count]

    def first_after(self, base: int) -> int:
        """The first queue offset of the file after the one that begins at `base`; `base` is one of `old_files`."""
        return next(other for other in self._bases() if other > base)

    def remove_oldest(self, base: int) -> bool:
        """Unlink the oldest file. False if `base` is not its first queue offset, or it is the only file. The caller
        holds the append lock, and fsyncs the directory.
        """
        bases = self._bases()
        if len(bases) < 2 or bases[0] != base:
            return False
        self.run.remove(base * ENTRY_BYTES)
        return True

    def last_entry(self) -> tuple[int, int, int] | None:
        """(commit-log offset, size, tags code) of the newest entry in the files, wherever it points; None without
        one.
        """
        bases = self._bases()
        if not bases:
            return None
        boundary = self._boundary(bases, bases[0], bases[-1] + self._per_file, 1 << 62, by_start=True)
        entry = self.entry(boundary - 1) if boundary > bases[0] else None
        return None if entry is None or entry[1] == PRE_BLANK_SIZE else entry

    def _bases(self) -> list[int]:
        """First queue offset of each file."""
        return [base // ENTRY_BYTES for base in self.run.bases()]

    def entry(self, queue_offset: int) -> tuple[int, int, int]:
        """(commit-log offset, size, tags code) as stored in the file; FileNotFoundError."""
        base = queue_offset - queue_offset % self._per_file
        file = self.run.open(base * ENTRY_BYTES)
        offset, size, tags_code = ENTRY_FIELDS.unpack(file.read((queue_offset - base) * ENTRY_BYTES, ENTRY_BYTES))
        return offset, size, tags_code

    def _counts(self, queue_offset: int, end: int, *, by_start: bool) -> bool:
        offset, size, _ = self.entry(queue_offset)
        if size == PRE_BLANK_SIZE:
            return True
        return size > 0 and 0 <= offset and (offset < end if by_start else offset + size <= end)

    def _end(self, bases: list[int], end: int, confirm: Confirm, is_record: Confirm, *, by_start: bool = False) -> int:
        """The queue offset behind the last entry that counts and is confirmed."""
        limit = bases[-1] + self._per_file
        low, stop = bases[0], limit
        while True:
            boundary = self._boundary(bases, low, stop, end, by_start=by_start)
            if boundary > low:
                offset, size, _ = self.entry(boundary - 1)
                if size != PRE_BLANK_SIZE and not confirm(offset, size, boundary - 1):
                    stop = boundary - 1
                    continue
            behind = self._record_behind(bases, boundary, end, is_record, by_start=by_start)
            if behind is None:
                return boundary
            low, stop = behind + 1, limit

    def _record_behind(
        self, bases: list[int], boundary: int, end: int, is_record: Confirm, *, by_start: bool
    ) -> int | None:
        """A queue offset behind `boundary`, in its file, whose entry counts and whose record is there."""
        base = boundary - boundary % self._per_file
        if base not in bases:
            return None
        count = min(_LOOK, base + self._per_file - boundary)
        file = self.run.open(base * ENTRY_BYTES)  # most of what lies here is a hole
        data = file.read((boundary - base) * ENTRY_BYTES, count * ENTRY_BYTES)
        for row in _counting(data, end, by_start=by_start)[::-1]:
            offset, size, _ = ENTRY_FIELDS.unpack_from(data, row * ENTRY_BYTES)
            if is_record(offset, size, boundary + row):
                return boundary + row
        return None

    def _boundary(self, bases: list[int], low: int, high: int, end: int, *, by_start: bool = False) -> int:
        """First queue offset in [low, high] that does not count; entries that count form a prefix."""
        for base in reversed(bases):
            if base < high and (base <= low or self._counts(base, end, by_start=by_start)):
                low, high = max(low, base), min(high, base + self._per_file)
                break
        while low < high:
            middle = (low + high) // 2
            if self._counts(middle, end, by_start=by_start):
                low = middle + 1
            else:
                high = middle
        return low

    def _end_near(self, hint: int, end: int, confirm: Confirm) -> int | None:
        """The queue's end, if it is the hint, or not far behind it: the entry before it counts, and nothing behind it,
        nor behind a sector that may be damaged there. None: who looks at the whole queue knows.
        """
        first = hint % self._per_file - 1
        if not 0 <= first < self._per_file - 1 - _SECTOR_ENTRIES:
            return None
        base = hint - 1 - first
        try:
            file = self.run.open(base * ENTRY_BYTES)
        except FileNotFoundError:
            return None
        data = file.read(first * ENTRY_BYTES, (1 + _SECTOR_ENTRIES) * ENTRY_BYTES)
        if data.endswith(_BLANK_SECTOR):
            count, (offset, size, _) = 1, ENTRY_FIELDS.unpack_from(data)
            if not (0 < size != PRE_BLANK_SIZE and 0 <= offset <= end - size):
                return None
        else:
            data = file.read(first * ENTRY_BYTES, min(2 * _LOOK, self._per_file - first) * ENTRY_BYTES)
            count = offset = size = 0
            for next_offset, next_size, _ in ENTRY_FIELDS.iter_unpack(data):
                if not (0 < next_size != PRE_BLANK_SIZE and 0 <= next_offset <= end - next_size):
                    break
                count, offset, size = count + 1, next_offset, next_size
            if not 0 < count <= _LOOK or _counting(data[count * ENTRY_BYTES :], end, by_start=False):
                return None
            if count > 1 and self.run.bases()[-1:] != [base * ENTRY_BYTES]:
                return None
        found = hint - 1 + count
        return found if confirm(offset, size, found - 1) else None

    def _fill_pre_blank(self, start: int) -> None:
        base = start - start % self._per_file
        blank = np.zeros(start - base, dtype=ENTRY)
        blank["frame_size"] = PRE_BLANK_SIZE
        self.run.create(base * ENTRY_BYTES)
        if start > base:
            self.run.write(base * ENTRY_BYTES, blank.tobytes())


def _counting(data: bytes, end: int, *, by_start: bool) -> list[int]:
    """Numbers of the entries of `data` that count, ascending."""
    if _BLANK.startswith(data):
        return []
    entries = np.frombuffer(data, ENTRY)
    offsets, sizes = entries["commit_log_offset"], entries["frame_size"]
    counts = (sizes > 0) & (sizes != PRE_BLANK_SIZE) & (offsets >= 0)
    counts &= offsets < end if by_start else offsets + sizes <= end
    rows: list[int] = np.flatnonzero(counts).tolist()
    return rows


def _believe(offset: int, size: int, queue_offset: int) -> bool:
    return True


def _is_possible(offset: Any, size: Any, log_end: int) -> Any:
    """Whether there can be such an entry, also a pre-blank one, in a queue of a log that ends at or below `log_end`:
    of one entry, or of many (n,).
    """
    return (size > 0) & (offset >= 0) & (offset < log_end) & ((size != PRE_BLANK_SIZE) | (offset == 0))


def _is_taken(offset: int, size: int, log_start: int) -> bool:
    """Whether retention took the message of an entry, or there never was one."""
    return size == PRE_BLANK_SIZE or offset < log_start
