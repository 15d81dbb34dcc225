"""Archives dead letters as Parquet files, which outlive the segments of the log.

Retention calls `archive_up_to` before it deletes a segment; operators call it to copy dead letters elsewhere. Archived
dead letters also stay in the store. A row holds the columns that a reader of the topic sees, the origin of the message,
its failure reason, and the bytes of the record, which `archive_restore` puts back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from rmq_store.arguments import checked_methods
from rmq_store.broker.dlq.archive_files import STORE_KEY, ArchiveFile, ArchiveFiles, check_group, is_group, read
from rmq_store.broker.dlq.archive_schema import ARCHIVE_SCHEMA, columns_of_properties
from rmq_store.broker.dlq.redrive_ledger import OffsetRanges, RedriveLedger
from rmq_store.broker.metadata.store_file import StoreFile
from rmq_store.broker.metadata.topics import TopicTable
from rmq_store.broker.read.queues import Queues
from rmq_store.broker.read.read_request import ReadRequest
from rmq_store.broker.read.records import StoredFrames, raw_bytes
from rmq_store.errors import CorruptionError, UsageError
from rmq_store.files import durable
from rmq_store.files.segments.pin import Pin
from rmq_store.format.bytes.gather import take_slices
from rmq_store.format.text import names
from rmq_store.lazy.arrow_compute import pc
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.log.core.commit_log import CommitLog

_LOG = logging.getLogger(__name__)

# Stored bytes of one file, about; and rows that are looked at together.
FILE_BYTES: Final = 256 << 20
_READ_ROWS: Final = 32_768

# Tell one dead letter from another at the same offset.
_TELLING = ("storeTimestamp", "msgId")

Progress = Callable[[int, int], None]
"""(dead letters so far, their stored bytes)"""


@dataclass(frozen=True, slots=True)
class ArchiveReport:
    """Additions of one call: files, dead letters in them, how many of these are damaged, and the size of the files."""

    files: tuple[str, ...]
    row_count: int
    damaged_count: int
    written_bytes: int


@checked_methods()
class DeadLetterArchive:
    """The archive of one store's dead letters in one directory. Safe for processes: one at a time writes."""

    def __init__(self, log: CommitLog, queues: Queues, topics: TopicTable, directory: Path) -> None:
        self._log = log
        self._queues = queues
        self._topics = topics
        self._files = ArchiveFiles(directory)
        self._frames = StoredFrames(log)
        self._redriven = RedriveLedger(log, queues.end)
        known = StoreFile.load(log.root)
        self._identity = known.identity if known else ""

    def archive_up_to(
        self, log_offset: int, groups: Sequence[str] | None = None, *, progress: Progress | None = None
    ) -> ArchiveReport:
        """Archive the dead letters (of some groups) whose records lie below `log_offset`, unless they are archived.

        On return they are on disk, in complete files. A killed run leaves only complete files, and the next run
        continues after them; no dead letter is archived twice.

        Raises:
            UsageError: a group has no topic of dead letters; the directory cannot be made, lies in the store, belongs
                to another store, or has files that overlap. Or it holds other dead letters at offsets of this store:
                the store was rolled back, or is a copy.
            CorruptionError: a file that must be read for this check is damaged.
            StoreLockedError: another process is archiving there.
            StoreFullError, StoreFailedError: the unfinished file was removed.
        """
        return self._archive(lambda topic, queue_id: self._first_at(topic, queue_id, log_offset), groups, progress)

    def archive_older(
        self, before_ms: int, groups: Sequence[str] | None = None, *, progress: Progress | None = None
    ) -> ArchiveReport:
        """As `archive_up_to`, for dead letters that were stored before a time."""

        def stop(topic: str, queue_id: int) -> int:
            return self._queues.offset_by_time(topic, queue_id, before_ms, "lower")

        return self._archive(stop, groups, progress)

    def _archive(
        self, stop: Callable[[str, int], int], groups: Sequence[str] | None, progress: Progress | None
    ) -> ArchiveReport:
        run = _Run(progress or (lambda rows, stored_bytes: None))

        def archive() -> None:
            for topic, queue_id in self._dead_letter_queues(groups):
                group = topic.removeprefix(names.DLQ_PREFIX)
                first, last = self._queues.range(topic, queue_id)
                archived = [file for file in self._files.of(group) if file.queue_id == queue_id]
                self._require_same(archived, topic, first, last)
                last = min(last, stop(topic, queue_id)) if first < last else last
                for start, end in _gaps(archived, first, last):
                    self._archive_range(run, topic, queue_id, start, end)

        # Retention of another process passes over what is being read; our own has not begun.
        with Pin(self._log.segments, self._log.start(), self._queues.end()):
            self._files.write_alone(self._identity, self._log.root, archive)
        return ArchiveReport(tuple(run.files), run.row_count, run.damaged_count, run.written_bytes)

    def _require_same(self, archived: Sequence[ArchiveFile], topic: str, first: int, last: int) -> None:
        """Check that the newest archived dead letter of [first, last) is still the same; then all before it are. A
        store that was rolled back (a backup, a power cut), or went on as a copy, gives their offsets to other messages.
        These must not count as archived.
        """
        file = next((file for file in reversed(archived) if file.start < last and file.end > first), None)
        if file is None:
            return
        offset = min(file.end, last) - 1
        if not self._is_same(file, topic, offset):
            raise UsageError(
                f"{file.path} holds another dead letter {offset} than {topic}-{file.queue_id} does now: the store was "
                "set back, or is a copy. Move this file out of the archive, and what is in the store is archived "
                f"again. From DIR/{file.group}/{file.path.name}, `rmq dlq restore DIR` puts its dead letters back"
            )

    def _is_same(self, file: ArchiveFile, topic: str, offset: int) -> bool:
        columns = ["queueOffset", "commitLogOffset", *_TELLING]
        rows = (row for batch in read(file, ARCHIVE_SCHEMA, columns) for row in _rows_at(batch, offset))
        there = next(rows, None)
        place = self._queues.commit_log_offset_before(topic, file.queue_id, offset + 1)
        if there is None or there["commitLogOffset"] != place:
            return False
        try:
            here = self._queues.read(ReadRequest(topic, file.queue_id, offset, offset + 1, _TELLING, raw_body=True))
            (row,) = (row for batch in here for row in batch.to_pylist())
        except CorruptionError:
            return True  # as far as can be told
        return there["storeTimestamp"] is None or all(there[name] == row[name] for name in _TELLING)

    def _dead_letter_queues(self, groups: Sequence[str] | None) -> list[tuple[str, int]]:
        for group in groups or ():
            check_group(group)
        wanted = None if groups is None else {names.dlq_topic(group) for group in groups}
        found = set(self._log.views.keys())
        for name, topic in self._topics.all().items():
            if name.startswith(names.DLQ_PREFIX):
                found.update((name, queue_id) for queue_id in range(topic.read_queue_nums))
        if unknown := (wanted or set()) - {name for name, _ in found}:
            raise UsageError(f"{self._log.root} has no topic {min(unknown)}: that group has no dead letters")
        return sorted(key for key in found if (_is_dead_letters(key[0]) if wanted is None else key[0] in wanted))

    def _first_at(self, topic: str, queue_id: int, log_offset: int) -> int:
        """The first queue offset whose record does not lie below `log_offset`."""
        low, high = self._queues.range(topic, queue_id)
        while low < high:
            middle = (low + high) // 2
            if self._queues.commit_log_offset_before(topic, queue_id, middle + 1) < log_offset:
                low = middle + 1
            else:
                high = middle
        return low

    def _archive_range(self, run: _Run, topic: str, queue_id: int, start: int, end: int) -> None:
        group = topic.removeprefix(names.DLQ_PREFIX)
        schema = ARCHIVE_SCHEMA.with_metadata({STORE_KEY: self._identity.encode()})
        moved = self._moved(group, queue_id)
        # A store may lie in the archive's directory, and a group may be called as it is.
        durable.refuse_inside(self._files.directory / group, self._log.root)
        while start < end:
            stop = self._queues.offset_after_bytes(topic, queue_id, start, end, FILE_BYTES)
            batches = run.counted(self._rows(topic, queue_id, start, stop, moved))
            run.written_bytes += self._files.write(group, queue_id, start, stop, schema, batches)
            run.files.append(f"{group}/{queue_id}-{start:020d}-{stop:020d}.parquet")
            start = stop

    def _moved(self, group: str, queue_id: int) -> OffsetRanges | None:
        try:
            return self._redriven.moved(group).get(queue_id, OffsetRanges.none())
        except CorruptionError as error:
            _LOG.warning("%s: archived without saying what was redriven: %s", self._log.root, error)
            return None

    def _rows(
        self, topic: str, queue_id: int, start: int, end: int, moved: OffsetRanges | None
    ) -> Iterator[pa.RecordBatch]:
        for first in range(start, end, _READ_ROWS):
            yield from self._read(topic, queue_id, first, min(first + _READ_ROWS, end), moved)

    def _read(
        self, topic: str, queue_id: int, start: int, end: int, moved: OffsetRanges | None
    ) -> Iterator[pa.RecordBatch]:
        """Rows of [start, end). Halving the range finds the rows that cannot be read."""
        try:
            for batch in self._queues.read(ReadRequest(topic, queue_id, start, end)):
                yield self._complete(batch, moved)
                start = batch.column("queueOffset")[-1].as_py() + 1
            return
        except CorruptionError as error:
            if end - start == 1:
                yield self._damaged(topic, queue_id, start, error)
                return
        middle = (start + end) // 2
        yield from self._read(topic, queue_id, start, middle, moved)
        yield from self._read(topic, queue_id, middle, end, moved)

    def _complete(self, batch: pa.RecordBatch, moved: OffsetRanges | None) -> pa.RecordBatch:
        made = columns_of_properties(batch)
        queue_offsets = batch.column("queueOffset").to_numpy()
        made["redriven"] = pa.nulls(batch.num_rows, pa.bool_()) if moved is None else moved.contains(queue_offsets)
        made["damage"] = pa.nulls(batch.num_rows, pa.string())
        made["frame"] = self._frames_of(batch.column("commitLogOffset").to_numpy())
        given = dict(zip(batch.schema.names, batch.columns, strict=True))
        return pa.RecordBatch.from_pydict({**given, **made}, ARCHIVE_SCHEMA)

    def _frames_of(self, offsets: np.ndarray) -> pa.Array:
        """The records at these offsets of the log; they lie in one segment, in the order of the rows."""
        sizes = self._frames.sizes(offsets, self._queues.end())
        runs = self._frames.runs(offsets, sizes)
        return pa.concat_arrays(
            [take_slices(run.buffer, run.headers.positions, run.headers.positions + run.sizes) for run in runs]
        )

    def _damaged(self, topic: str, queue_id: int, queue_offset: int, error: CorruptionError) -> pa.RecordBatch:
        """The row of a record that cannot be read."""
        offset = self._queues.commit_log_offset_before(topic, queue_id, queue_offset + 1)
        size = self._queues.bytes_between(topic, queue_id, queue_offset, queue_offset + 1)
        known = {
            "topic": topic, "queueId": queue_id, "queueOffset": queue_offset, "commitLogOffset": offset,
            "damage": error.reason, "frame": raw_bytes(self._log, offset, size),
        }  # fmt: skip
        return pa.RecordBatch.from_pylist([known], ARCHIVE_SCHEMA)


class _Run:
    """The progress of one call."""

    def __init__(self, progress: Progress) -> None:
        self.files: list[str] = []
        self.row_count = 0
        self.damaged_count = 0
        self.written_bytes = 0
        self._stored_bytes = 0
        self._progress = progress

    def counted(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The same batches, counted."""
        for batch in batches:
            yield batch
            self.row_count += batch.num_rows
            self.damaged_count += batch.num_rows - batch.column("damage").null_count
            self._stored_bytes += batch.column("frame").nbytes
            self._progress(self.row_count, self._stored_bytes)


def _is_dead_letters(topic: str) -> bool:
    return topic.startswith(names.DLQ_PREFIX) and is_group(topic.removeprefix(names.DLQ_PREFIX))


def _rows_at(batch: pa.RecordBatch, offset: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = batch.filter(pc.equal(batch.column("queueOffset"), offset)).to_pylist()
    return found


def _gaps(archived: Sequence[ArchiveFile], start: int, end: int) -> list[tuple[int, int]]:
    """The parts of [start, end) that no file holds; files by offset, disjoint."""
    found = []
    for file in archived:
        if start < min(file.start, end):
            found.append((start, min(file.start, end)))
        start = max(start, file.end)
    if start < end:
        found.append((start, end))
    return found
