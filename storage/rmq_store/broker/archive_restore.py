"""Archived dead letters back into a store, at the end of `%DLQ%group` (data plane).

A unit for each chunk: some rows of one archived queue. It ends with a record of the system topic RESTORED_TOPIC that
names them, as a redrive's units do (`redriven`): so a restore that was killed goes on where it was, and a repeated one
adds nothing. Body, properties, born time and host, flag, sysFlag and reconsumeTimes are the archived ones; offsets,
store time and store host are new.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.broker.archive_files import ArchiveFile, ArchiveFiles, read
from rmq_store.broker.archive_schema import ARCHIVE_SCHEMA
from rmq_store.broker.config import StoreConfig
from rmq_store.broker.redriven import OffsetRanges, RedrivenTable
from rmq_store.broker.send_back import properties_bytes_max
from rmq_store.broker.topics import TopicConfig, TopicTable
from rmq_store.broker.writing import Writer
from rmq_store.errors import CorruptionError, CorruptRecordError, UsageError
from rmq_store.format import names
from rmq_store.format.crc import slice_crcs
from rmq_store.format.frame_check import CRC_MASK, CRC_PROPERTY_BYTES
from rmq_store.format.frame_copy import CopyOptions, copy_frames
from rmq_store.format.frame_encoder import EncodeOptions
from rmq_store.format.frame_fields import FrameHeaders, frame_columns
from rmq_store.format.gather import value_bytes
from rmq_store.format.host import Host
from rmq_store.format.names import SYSTEM_PREFIX
from rmq_store.format.property_changes import crc_property_bytes
from rmq_store.log.commit_log import CommitLog
from rmq_store.log.layout import BLANK_BYTES
from rmq_store.log.units import UnitRecord

PURPOSE: Final = "restore"
"""Purpose of the units that hold restored dead letters; key: archive and group, value: their number."""

RESTORED_TOPIC: Final = f"{SYSTEM_PREFIX}pyrmq_restored"

CHUNK_ROWS: Final = 10_000
"""Dead letters in a unit, at most."""

# The record of what a unit restored names up to as many ranges as it has rows, and must fit a segment.
_RANGE_BYTES_MAX = 64

# What a copy may have more than its original: an IPv6 address of the store, and a blank behind it.
_MORE_BYTES_MAX = 12 + CRC_PROPERTY_BYTES + BLANK_BYTES

Progress = Callable[[int, int], None]
"""(rows of the archive so far, bytes of the records restored)"""


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """What became of the wanted rows: appended; left out because they were restored before, because they were archived
    damaged, or because this store cannot hold them (a smaller segment, no room for its CRC property).
    """

    restored_count: int = 0
    present_count: int = 0
    damaged_count: int = 0
    refused_count: int = 0


class ArchiveRestorer:
    """Puts dead letters of archives into one store that is open for writing."""

    def __init__(self, log: CommitLog, config: StoreConfig, topics: TopicTable, writer: Writer) -> None:
        self._log = log
        self._config = config
        self._topics = topics
        self._writer = writer
        self._table = RedrivenTable(log, topic=RESTORED_TOPIC)
        self._host = Host.parse(config.broker_host)
        self._chunk_rows = min(CHUNK_ROWS, log.segments.size_bytes // _RANGE_BYTES_MAX)

    def restore(
        self, directory: Path, group: str | None, start: int, end: int | None, again: bool, progress: Progress | None
    ) -> RestoreReport:
        """See `DeadLetters.restore`."""
        files = ArchiveFiles(directory)
        origin = files.origin()
        if origin is None:
            raise UsageError(f"{directory} is no archive of dead letters: it has no _archive.json")
        groups = files.groups() if group is None else [group]
        wanted = [file for name in groups for file in files.of(name)]
        if group is not None and not wanted:
            raise UsageError(f"{directory} has no dead letters of group {group!r}")
        last = (1 << 63) - 1 if end is None else end
        report, done, done_bytes = RestoreReport(), 0, 0
        for file in wanted:
            if file.start >= last or file.end <= start:
                continue
            for rows in read(file, ARCHIVE_SCHEMA, ["queueOffset", "damage", "frame"]):
                for chunk in self._chunks(rows, start, last):
                    added, size_bytes = self._restore_chunk(origin, file, chunk, again)
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
        self, origin: str, file: ArchiveFile, rows: pa.RecordBatch, again: bool
    ) -> tuple[RestoreReport, int]:
        """Append what is left of a chunk as one unit; its report, and the bytes of its records."""
        whole = rows.filter(pc.is_null(rows.column("damage")))
        report = RestoreReport(damaged_count=rows.num_rows - whole.num_rows)
        fitting = whole.filter(pa.array(self._fits(file, whole)))
        report = replace(report, refused_count=whole.num_rows - fitting.num_rows)
        key = f"{origin}/{file.group}"
        while True:
            # In this order: what is committed behind the look at the number changes it, and nothing is appended.
            newest = self._writer.last_unit(PURPOSE, key)
            offsets = fitting.column("queueOffset").to_numpy()
            if again:
                missing = fitting
            else:
                restored = self._table.moved(key).get(file.queue_id, OffsetRanges.none())
                missing = fitting.filter(pa.array(~restored.contains(offsets)))
            count = missing.num_rows
            report = replace(report, restored_count=count, present_count=fitting.num_rows - count)
            if not count:
                return report, 0
            gone = OffsetRanges.of(missing.column("queueOffset").to_numpy())
            record = self._table.record(key, {file.queue_id: gone}, self._options())
            unit = UnitRecord(PURPOSE, key, (newest or 0) + 1, count)
            batches = [self._encode(file, missing), record]
            if self._writer.append_unit(batches, unit, expect=newest) is not None:
                return report, int(missing.column("frame").nbytes)

    def _fits(self, file: ArchiveFile, rows: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """Which frames this store can hold."""
        headers, sizes = self._check(file, rows)
        start, end = headers.properties_start, headers.properties_end
        own = end - start - crc_property_bytes(headers.data, start, end)
        fits: npt.NDArray[np.bool_] = sizes <= self._log.segments.size_bytes - _MORE_BYTES_MAX
        fits &= own <= properties_bytes_max(self._log.crc_property)
        return fits

    def _check(self, file: ArchiveFile, rows: pa.RecordBatch) -> tuple[FrameHeaders, npt.NDArray[np.int32]]:
        """The frames' fields and sizes; they are of this group and queue, and whole: a copy gets checksums of its own.

        Raises:
            CorruptionError: not what the archive's name and columns say.
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
        crcs = slice_crcs(headers.data, headers.body_start, headers.body_end) & np.uint32(CRC_MASK)
        wrong = crcs != headers.body_crc.view(np.uint32)
        wrong |= headers.queue_id != file.queue_id
        wrong |= headers.queue_offset != rows.column("queueOffset").to_numpy()
        wrong |= (headers.queue_offset < file.start) | (headers.queue_offset >= file.end)
        wrong |= ~pc.equal(headers.topics(), names.dlq_topic(file.group)).to_numpy(zero_copy_only=False)
        if wrong.any():
            offset = int(rows.column("queueOffset")[int(wrong.argmax())].as_py())
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

    def _options(self) -> EncodeOptions:
        return EncodeOptions(
            store_host=self._host, born_host=self._host, now_ms=self._log.clock(), crc_property=self._log.crc_property,
            index_tags=self._log.index_tags,
        )  # fmt: skip
