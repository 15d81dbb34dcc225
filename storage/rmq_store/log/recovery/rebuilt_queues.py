"""Queues that are built from the log alone, for a store whose queues we cannot read (RocksDB).

Each record holds its topic, queue and queue offset, so the log alone determines all queues. Nothing is written into the
store. During the walk over the log, entries go to an unnamed file in the directory for temporary files, 20 bytes each,
in log order (`Spool`). Then each queue's entries are gathered in a second such file, which is mapped. The process holds
a few numbers per queue and per stretch of the log; the kernel caches the pages that are read.

    offset follows the queue's end    the usual case
    offset falls back                 the topic was deleted and created again, or another replica continued: the last
                                      one counts, and older entries at or above its offset are dropped
    offset leaves some out            there are no messages of theirs: pre-blank entries, which readers pass over (an
                                      inner batch takes several offsets, and has an entry at the first one); or they
                                      were lost with damaged bytes of the log, and to read one is an error
    prepared, rolled back             no entry at all (`dispatchable`)
"""

from __future__ import annotations

import bisect
import contextlib
import errno
import logging
import tempfile
from array import array
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import IO

import numpy as np

from rmq_store.errors import StoreFailedError, StoreFullError
from rmq_store.files.segments.segments import SegmentRun
from rmq_store.format.views.consume_queue import ENTRY, ENTRY_BYTES, PRE_BLANK_SIZE
from rmq_store.log.core.accepted_damage import AcceptedDamage
from rmq_store.log.core.commit_log import CommitLog
from rmq_store.log.integrity.placeholder_entries import placeholder_entries
from rmq_store.log.views.consume_queue import Confirm, ConsumeQueue
from rmq_store.log.views.views import QueueKey, Views

_LOG = logging.getLogger(__name__)

# Offsets that may be left out between two messages of a queue. More cannot have been lost, nor taken by a batch.
GAP_MAX = 1 << 20

_STEP = 1 << 16
_NONE = np.empty(0, ENTRY)


class RebuiltQueue(ConsumeQueue):
    """One queue: entries from `first` on, (n,) ENTRY, whose commit-log offsets ascend; and the entries that were added
    later.
    """

    def __init__(self, run: SegmentRun, key: QueueKey, first: int, entries: np.ndarray) -> None:
        super().__init__(run, *key)
        self.first = first
        self._old = entries
        self._new = _NONE

    @property
    def end(self) -> int:
        """The queue offset after the last entry."""
        return self.first + len(self._old) + len(self._new)

    def add(self, first: int, entries: np.ndarray, accepted: AcceptedDamage) -> None:
        """Add entries of records that follow all others in the log, by the rules of this module."""
        if not self.first <= first <= self.end + GAP_MAX or self.first == self.end:
            self.first, self._old, self._new = first, _NONE, entries
            return
        split = self.first + len(self._old)
        self._old = self._old[: max(first - self.first, 0)]
        self._new = self._new[: max(first - split, 0)]
        if gap := first - self.end:
            self._new = _joined(self._new, _between(self._last_log_offset(), gap, accepted))
        self._new = _joined(self._new, entries)

    def _last_log_offset(self) -> int:
        last = self._new if len(self._new) else self._old
        return int(last["commit_log_offset"][-1])

    def max_offset(self, end: int, confirm: Confirm, is_record: Confirm) -> int:
        """See `ConsumeQueue.max_offset`."""
        if self.first == self.end or self._log_offset(self.end - 1) < end:
            return self.end if self.first < self.end else 0
        return bisect.bisect_left(range(self.end), end, lo=self.first, key=self._log_offset)

    def min_offset(self, log_start: int, max_offset: int, log_end: int, confirm: Confirm) -> int:
        """See `ConsumeQueue.min_offset`."""
        if self.first >= max_offset or self._log_offset(self.first) >= log_start:
            return min(self.first, max_offset)
        return bisect.bisect_left(range(max_offset), log_start, lo=self.first, key=self._log_offset)

    def _log_offset(self, queue_offset: int) -> int:
        return self.entry(queue_offset)[0]

    def entries(self, start: int, stop: int) -> np.ndarray:
        """See `ConsumeQueue.entries`."""
        if start < stop and not self.first <= start < stop <= self.end:
            raise FileNotFoundError(f"{self.topic}-{self.queue_id} has [{self.first}, {self.end})")
        low, high, split = start - self.first, stop - self.first, len(self._old)
        old, new = self._old[min(low, split) : min(high, split)], self._new[max(low - split, 0) : max(high - split, 0)]
        return _joined(old, new)

    def entries_at(self, rows: np.ndarray) -> np.ndarray:
        """See `ConsumeQueue.entries_at`."""
        if not len(rows):
            return _NONE
        self.entries(int(rows[0]), int(rows[0]) + 1)
        self.entries(int(rows[-1]), int(rows[-1]) + 1)
        split = int(np.searchsorted(rows, self.first + len(self._old)))
        return _joined(self._old[rows[:split] - self.first], self._new[rows[split:] - self.first - len(self._old)])

    def entry(self, queue_offset: int) -> tuple[int, int, int]:
        """See `ConsumeQueue.entry`."""
        offset, size, tags_code = self.entries(queue_offset, queue_offset + 1)[0].item()
        return offset, size, tags_code

    def last_entry(self) -> tuple[int, int, int] | None:
        """See `ConsumeQueue.last_entry`."""
        return self.entry(self.end - 1) if self.first < self.end else None

    def old_files(self, log_start: int, log_end: int, is_record: Confirm) -> list[int]:
        """See `ConsumeQueue.old_files`: always empty, there are no files."""
        return []


class Spool:
    """Entries in log order, and which of them count; for a `with` block."""

    def __init__(self) -> None:
        self._file = _nameless_file()
        self._count = 0
        self._runs: dict[QueueKey, array[int]] = {}
        """By queue: first queue offset, place in the file and number of entries of each run, one behind the other."""

    def __enter__(self) -> Spool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def add(self, key: QueueKey, first: int, entries: np.ndarray) -> None:
        """Add entries of records that follow all others in the log. StoreFullError, StoreFailedError."""
        runs = self._runs.setdefault(key, array("q"))
        while runs and runs[-3] >= first:
            del runs[-3:]
        if runs and runs[-3] + runs[-1] > first:
            runs[-1] = first - runs[-3]
        end = runs[-3] + runs[-1] if runs else first
        if first - end > GAP_MAX:
            _LOG.warning("%s-%d goes on at %d behind %d: what is older is left out", *key, first, end)
            del runs[:]
        with _typed():
            self._file.write(entries.astype(ENTRY, copy=False).tobytes())
        if runs and first == end and runs[-2] + runs[-1] == self._count:
            runs[-1] += len(entries)
        else:
            runs.extend((first, self._count, len(entries)))
        self._count += len(entries)

    def put_together(self, accepted: AcceptedDamage) -> tuple[np.ndarray, dict[QueueKey, tuple[int, int, int]]]:
        """All entries, (n,) ENTRY, queue by queue; and for each queue its first queue offset, the position of its first
        entry, and its number of entries. Raises as `add`.
        """
        places: dict[QueueKey, tuple[int, int, int]] = {}
        done = 0
        with _typed(), _nameless_file() as file:
            self._file.flush()
            for key, runs in self._runs.items():
                begin = done
                for part in self._parts(runs, accepted):
                    file.write(part.tobytes())
                    done += len(part)
                places[key] = runs[0], begin, done - begin
            file.flush()
            return (np.memmap(file, ENTRY, "r", shape=(done,)) if done else _NONE), places

    def _parts(self, runs: array[int], accepted: AcceptedDamage) -> Iterator[np.ndarray]:
        end, place = runs[0], 0
        for first, at, count in zip(runs[::3], runs[1::3], runs[2::3], strict=True):
            if first > end:
                yield _between(place, first - end, accepted)
            for start in range(at, at + count, _STEP):
                size = min(_STEP, at + count - start) * ENTRY_BYTES
                self._file.seek(start * ENTRY_BYTES)
                part = np.frombuffer(self._file.read(size), ENTRY)
                yield part
                place = int(part["commit_log_offset"][-1])
            end = first + count


class RebuiltViews(Views):
    """The views of such a store: its queues as built from the log, and its index, which lies in files. The code that
    walks over the log calls `fill` and `add`.
    """

    def __init__(self, log: CommitLog) -> None:
        file_bytes, index = log.geometry.mapped_file_size_consume_queue, log.views.index
        super().__init__(log.root, file_bytes, log.files, index, writable=False)
        self._entries = _NONE
        self._slices: dict[QueueKey, tuple[int, int, int]] = {}
        self._grown: dict[QueueKey, RebuiltQueue] = {}
        self._ids: dict[str, list[int]] = {}

    def fill(self, spool: Spool, accepted: AcceptedDamage) -> None:
        """Replace all known queues by the spooled entries. StoreFullError, StoreFailedError."""
        self._entries, self._slices = spool.put_together(accepted)
        self._grown, self._ids = {}, {}
        for topic, queue_id in self._slices:
            self._ids.setdefault(topic, []).append(queue_id)

    def add(self, key: QueueKey, first: int, entries: np.ndarray, accepted: AcceptedDamage) -> None:
        """Add entries of records that follow all others in the log."""
        queue = self.queue(*key)
        queue.add(first, entries, accepted)
        if key not in self._slices and key not in self._grown:
            self._ids.setdefault(key[0], []).append(key[1])
        self._grown[key] = queue

    def queue(self, topic: str, queue_id: int) -> RebuiltQueue:
        """See `Views.queue`."""
        key = (topic, queue_id)
        if (grown := self._grown.get(key)) is not None:
            return grown
        first, begin, count = self._slices.get(key, (0, 0, 0))
        return RebuiltQueue(super().queue(topic, queue_id).run, key, first, self._entries[begin : begin + count])

    def keys(self) -> list[QueueKey]:
        """See `Views.keys`."""
        return sorted((topic, queue_id) for topic in self._ids for queue_id in self._ids[topic])

    def topic_names(self) -> list[str]:
        """See `Views.topic_names`."""
        return list(self._ids)

    def queue_ids(self, topic: str) -> list[int]:
        """See `Views.queue_ids`."""
        return list(self._ids.get(topic, ()))


def _between(place: int, count: int, accepted: AcceptedDamage) -> np.ndarray:
    """Entries of offsets that are left out behind a message at `place`: lost in damage that lies there, or of none.
    They point at or behind the message before them, so that places ascend.
    """
    bad = next((bad for bad in accepted.ranges if bad.start >= place), None)
    if bad is not None:
        return placeholder_entries(bad, count)
    blanks = np.zeros(count, ENTRY)
    blanks["commit_log_offset"], blanks["frame_size"] = place, PRE_BLANK_SIZE
    return blanks


def _joined(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    parts: Iterable[np.ndarray] = [np.ascontiguousarray(part).view(np.uint8) for part in (first, second) if len(part)]
    return np.concatenate([*parts]).view(ENTRY) if len(first) or len(second) else _NONE


@contextlib.contextmanager
def _typed() -> Iterator[None]:
    """StoreFullError or StoreFailedError for what the operating system refuses."""
    try:
        yield
    except OSError as error:
        place = f"{tempfile.tempdir or 'the directory for temporary files'} (TMPDIR)"
        why = f"cannot take the queues that are made from the log, 40 bytes a message: {error.strerror or error}"
        kind = StoreFullError if error.errno in (errno.ENOSPC, errno.EDQUOT) else StoreFailedError
        raise kind(f"{place}: {why}") from error


def _nameless_file() -> IO[bytes]:
    with _typed():
        return tempfile.TemporaryFile(prefix="rmq-queues-")
