"""Restores archived dead letters to a store, at the end of `%DLQ%group` (data plane).

Each chunk, some rows of one archived queue, is a unit. It ends with a record of the system topic RESTORED_TOPIC that
names the rows, as the units of a redrive do (`restore_ledger`). So a killed restore continues, and a repeated restore
adds nothing. Dead letters that are still in their queue are left out, too. Body, properties, born time and host,
flag, sysFlag and reconsumeTimes are the archived ones; offsets, store time and store host are new.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_store.broker.dlq.archive_files import ArchiveFile, ArchiveFiles, read
from rmq_store.broker.dlq.archive_schema import ARCHIVE_SCHEMA
from rmq_store.broker.dlq.restore_ledger import ROW_BYTES_MAX, RestoreLedger, digests_of
from rmq_store.broker.metadata.store_config import StoreConfig
from rmq_store.broker.metadata.topics import TopicConfig, TopicTable
from rmq_store.broker.read.queues import Queues
from rmq_store.broker.read.records import raw_bytes
from rmq_store.broker.rules import purposes
from rmq_store.broker.rules.send_back import properties_bytes_max
from rmq_store.broker.write.writer import Writer
from rmq_store.errors import CorruptionError, CorruptRecordError, OffsetOutOfRangeError, UsageError
from rmq_store.format.batches.frame_copy import CopyOptions, copy_frames
from rmq_store.format.bytes.gather import value_bytes
from rmq_store.format.frames.frame_crcs import damaged_frames
from rmq_store.format.frames.frame_fields import FrameHeaders, frame_columns
from rmq_store.format.properties.property_changes import crc_property_bytes
from rmq_store.format.properties.property_string import CRC_PROPERTY_BYTES
from rmq_store.format.text import names
from rmq_store.format.text.host import Host
from rmq_store.lazy.arrow_compute import pc
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.log.core.commit_log import CommitLog
from rmq_store.log.core.layout import BLANK_BYTES
from rmq_store.log.core.units import UnitRecord

CHUNK_ROWS: Final = 10_000
"""Dead letters in a unit, at most."""

_OFFSET_MAX = (1 << 63) - 1

# Bytes that a copy may have more than its original: an IPv6 address of the store, and a blank behind it.
_MORE_BYTES_MAX = 12 + CRC_PROPERTY_BYTES + BLANK_BYTES

Progress = Callable[[int, int], None]
"""(rows of the archive so far, bytes of the records restored)"""


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """Number of requested rows by outcome: appended; or left out, because they still lie in this store at the same
    offset, were restored before, were archived damaged, or do not fit into this store (a smaller segment, no room for
    its CRC property).
    """

    restored_count: int = 0
    in_place_count: int = 0
    present_count: int = 0
    damaged_count: int = 0
    refused_count: int = 0


class ArchiveRestorer:
    """Restores dead letters of archives to one store that is open for writing."""

    def __init__(self, log: CommitLog, config: StoreConfig, topics: TopicTable, queues: Queues, writer: Writer) -> None:
        self._log = log
        self._config = config
        self._topics = topics
        self._queues = queues
        self._writer = writer
        self._table = RestoreLedger(log)
        self._host = Host.parse(config.broker_host)
        # The record of what a unit restored must fit a segment.
        self._chunk_rows = min(CHUNK_ROWS, log.segments.size_bytes // ROW_BYTES_MAX)

    def restore(
        self, directory: Path, group: str | None, start: int, end: int | None, again: bool, progress: Progress | None
    ) -> RestoreReport:
        """See `DeadLetters.restore`."""
        files = ArchiveFiles(directory)
        groups = files.groups() if group is None else [group]
        wanted = [file for name in groups for file in files.of(name)]
        if not wanted and files.identity() is None:
            raise UsageError(
                f"{directory} is no archive of dead letters: it has no _archive.json, and no file of one, "
                "GROUP/QUEUE-START-END.parquet"
            )
        if group is not None and not wanted:
            raise UsageError(f"{directory} has no dead letters of group {group!r}")
        # No queue has others, and Arrow compares none.
        start, last = (min(max(offset, 0), _OFFSET_MAX) for offset in (start, _OFFSET_MAX if end is None else end))
        report, done, done_bytes = RestoreReport(), 0, 0
        for file in wanted:
            if file.start >= last or file.end <= start:
                continue
            key = f"{files.origin(file)}/{file.group}"
            for rows in read(file, ARCHIVE_SCHEMA, ["queueOffset", "damage", "frame"]):
                for chunk in self._chunks(rows, start, last):
                    added, size_bytes = self._restore_chunk(key, file, chunk, again)
                    counts = (getattr(report, name) + getattr(added, name) for name in RestoreReport.__slots__)
                    report = RestoreReport(*counts)
                    done, done_bytes = done + chunk.num_rows, done_bytes + size_bytes
                    if progress is not None:
                        progress(done, done_bytes)
        return report

    def _chunks(self, rows: pa.RecordBatch, start: int, end: int) -> Iterator[pa.RecordBatch]:
        offsets = rows.column("queueOffset")
        rows = rows.filter(pc.and_(pc.greater_equal(offsets, start), pc.less(offsets, end)))
        for first in range(0, rows.num_rows, self._chunk_rows):
            yield rows.slice(first, self._chunk_rows)

    def _restore_chunk(
        self, key: str, file: ArchiveFile, rows: pa.RecordBatch, again: bool
    ) -> tuple[RestoreReport, int]:
        """Append the rows of a chunk that still must be restored, as one unit. Returns its report, and the bytes of its
        records.
        """
        whole = rows.filter(pc.is_null(rows.column("damage")))
        report = RestoreReport(damaged_count=rows.num_rows - whole.num_rows)
        fitting = whole.filter(pa.array(self._fits(file, whole)))
        report = replace(report, refused_count=whole.num_rows - fitting.num_rows)
        absent = fitting if again else fitting.filter(pa.array(~self._in_place(file, fitting)))
        report = replace(report, in_place_count=fitting.num_rows - absent.num_rows)
        offsets, digests = absent.column("queueOffset").to_numpy(), digests_of(absent.column("frame"))
        while True:
            # In this order: what is committed behind the look at the number changes it, and nothing is appended.
            newest = self._writer.last_unit(purposes.RESTORE, key)
            left = np.ones(len(offsets), np.bool_)
            if not again:
                left = ~self._table.contains(key, file.queue_id, offsets, digests)
            missing = absent.filter(pa.array(left))
            count = missing.num_rows
            report = replace(report, restored_count=count, present_count=absent.num_rows - count)
            if not count:
                return report, 0
            record = self._table.restored(key, file.queue_id, offsets[left], digests[left], self._host)
            unit = UnitRecord(purposes.RESTORE, key, (newest or 0) + 1, count)
            batches = [self._encode(file, missing), record]
            if self._writer.append_unit(batches, unit, expect=newest) is not None:
                return report, int(missing.column("frame").nbytes)

    def _in_place(self, file: ArchiveFile, rows: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """True for records still in this store at their archived offset: restored, they would be there twice."""
        name, queue_offsets = names.dlq_topic(file.group), rows.column("queueOffset").to_numpy()
        found = np.zeros(rows.num_rows, np.bool_)
        topic = self._topics.all().get(name)
        if topic is not None and file.queue_id >= topic.read_queue_nums:
            return found  # nobody can read them there
        while True:
            first, last = self._queues.range(name, file.queue_id)
            here = np.flatnonzero((queue_offsets >= first) & (queue_offsets < last))
            if not len(here):
                return found
            try:
                entries = self._queues.entries_at(name, file.queue_id, queue_offsets[here])
                break
            except OffsetOutOfRangeError:
                continue  # retention was faster
        cuts, data = value_bytes(rows.column("frame"))
        for row, offset in zip(here.tolist(), entries["commit_log_offset"].tolist(), strict=True):
            frame = data[cuts[row] : cuts[row + 1]]
            found[row] = raw_bytes(self._log, offset, len(frame)) == frame.tobytes()
        if found.any():
            self._make_topic(file)  # of a topic that was deleted they are in nobody's sight
        return found

    def _fits(self, file: ArchiveFile, rows: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """True for frames that this store can hold."""
        headers, sizes = self._check(file, rows)
        start, end = headers.properties_start, headers.properties_end
        own = end - start - crc_property_bytes(headers.data, start, end)
        fits: npt.NDArray[np.bool_] = sizes <= self._log.segments.size_bytes - _MORE_BYTES_MAX
        fits &= own <= properties_bytes_max(self._log.crc_property)
        return fits

    def _check(self, file: ArchiveFile, rows: pa.RecordBatch) -> tuple[FrameHeaders, npt.NDArray[np.int32]]:
        """The frames' fields and sizes, after a check that they are undamaged and belong to this group and queue.
        Without the check a copy of a damaged frame would get valid checksums.

        Raises:
            CorruptionError: a frame contradicts the archive's name or columns.
        """
        frames = rows.column("frame")
        if frames.null_count:
            raise CorruptionError(str(file.path), 0, "a row without a record, and not marked as damaged")
        offsets, data = value_bytes(frames)
        sizes = np.diff(offsets).astype(np.int32)
        try:
            headers = frame_columns(pa.py_buffer(data), offsets[:-1], sizes)
        except CorruptRecordError as error:
            raise CorruptionError(str(file.path), 0, f"a row whose record is damaged: {error.reason}") from error
        wrong = damaged_frames(headers, None)
        wrong |= headers.queue_id != file.queue_id
        queue_offsets = rows.column("queueOffset").to_numpy()
        wrong |= headers.queue_offset != queue_offsets
        wrong[1:] |= np.diff(queue_offsets) <= 0
        wrong |= (headers.queue_offset < file.start) | (headers.queue_offset >= file.end)
        wrong |= ~pc.equal(headers.topics(), names.dlq_topic(file.group)).to_numpy(zero_copy_only=False)
        if wrong.any():
            offset = int(queue_offsets[int(wrong.argmax())])
            raise CorruptionError(str(file.path), 0, f"the record of dead letter {offset} is another one, or damaged")
        return headers, sizes

    def _encode(self, file: ArchiveFile, rows: pa.RecordBatch) -> pa.RecordBatch:
        count = rows.num_rows
        topic = self._make_topic(file)
        queue_id = file.queue_id if file.queue_id < topic.write_queue_nums else 0
        offsets, data = value_bytes(rows.column("frame"))
        return copy_frames(
            frame_columns(pa.py_buffer(data), offsets[:-1], np.diff(offsets).astype(np.int32)),
            topics=pa.DictionaryArray.from_arrays(np.zeros(count, np.int32), [topic.topic_name]),
            queue_ids=np.full(count, queue_id, np.int32),
            store_host=self._host,
            options=CopyOptions(crc_property=self._log.crc_property, index_tags=self._log.index_tags),
        )

    def _make_topic(self, file: ArchiveFile) -> TopicConfig:
        name, queues = names.dlq_topic(file.group), file.queue_id + 1
        known = self._topics.all().get(name)
        return known or self._topics.create(TopicConfig(name, queues, queues, self._config.dlq_perm), exist_ok=True)
