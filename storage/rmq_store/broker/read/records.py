"""Records of the log by their commit-log offsets: one as a value, many as checked frames (data plane).

Every module that copies a record reads it here. The offset comes from a caller, not from a queue entry, so size, magic,
physical offset and checksums are checked first. Otherwise a copy of a damaged record would get valid checksums.
Source: DefaultMessageStore#lookMessageByOffset.
"""

from __future__ import annotations

import functools
import mmap
import struct
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_store.errors import CorruptionError, CorruptRecordError, UsageError
from rmq_store.format.bytes.gather import take_slices
from rmq_store.format.frames.frame_check import MESSAGE_MAGIC_V1, MESSAGE_MAGIC_V2, SysFlag, check_frame
from rmq_store.format.frames.frame_crcs import damage_of, damaged_frames
from rmq_store.format.frames.frame_fields import FrameHeaders, frame_columns
from rmq_store.format.frames.frame_starts import message_sizes
from rmq_store.format.frames.stored_message import StoredMessage, decode_checked
from rmq_store.format.properties import property_string as names
from rmq_store.format.properties.property_columns import KEYS_AND_TAGS, PropertyPieces
from rmq_store.format.text.host_columns import host_message_ids
from rmq_store.lazy.arrow_compute import pc
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.log.core.commit_log import CommitLog

_SEPARATORS = "[\x01\x02]"
_START = struct.Struct(">ii20xq")  # total size, magic and physical offset of HEADER

Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]
Rows = npt.NDArray[np.intp]

# Frames per run: bounds what a copy of them needs, and keeps 32-bit offsets of Arrow arrays far from their limit.
_RUN_ROWS = 32_768
_RUN_BYTES = 32 << 20
# Segments of which less is asked for share a run: to copy that much is less work than a run of its own.
_SCATTERED_BYTES = 256 << 10

# A single record is read, not looked at through the map: where a process has not touched the map before, which in a
# large log is nearly everywhere, the kernel takes 10 us or more to put 16 pages of it there, and for a read 1. Of a
# larger record that is little beside the rest.
_READ_BYTES_MAX = 64 << 10


def crc_required_from(log: CommitLog) -> int | None:
    """The offset from which on each record must have a CRC property, for a log that is open for writing. None: no
    record must, or the log is open for reading only, and other programs may write records without it.
    """
    if not (log.writable and log.crc_property):
        return None
    if log.crc_from is not None:
        return log.crc_from
    known = log.progress.load()  # another process was the first opener, which judged the log
    return known[0].crc_from if known is not None else None


def message_at(log: CommitLog, end: int, offset: int, size: int | None = None) -> StoredMessage:
    """The message whose record begins at `offset` of a log that ends at `end`; its CRCs are checked. `size`: the
    probable size of the record. None: unknown; the first page is read, then the rest, by the size in the record.

    Raises:
        UsageError: no message begins there (any more).
        CorruptRecordError: the message there is damaged; or its segment is missing.
        StoreFailedError: it cannot be read.
    """
    if not log.start() <= offset < end:
        raise UsageError(f"{log.root}: no message at {offset}: the log holds [{log.start()}, {end})")
    base = log.segments.base_of(offset)
    try:
        file = log.segments.open(base)
    except FileNotFoundError as error:
        raise log.missing_segment(offset) from error
    position, limit = offset - base, min(end - base, file.size_bytes)
    first_bytes = mmap.PAGESIZE - position % mmap.PAGESIZE if size is None else min(size, _READ_BYTES_MAX)
    view: bytes | memoryview = file.read(position, min(limit - position, max(first_bytes, _START.size)))
    total_size, magic, own_offset = _START.unpack_from(view) if _START.size <= len(view) else (0, 0, -1)
    if len(view) < total_size <= min(limit - position, _READ_BYTES_MAX):
        view = file.read(position, total_size)
    if total_size <= len(view):
        position, limit = 0, len(view)
    else:
        view = memoryview(file.map)
    if magic not in (MESSAGE_MAGIC_V1, MESSAGE_MAGIC_V2) or own_offset != offset:
        raise UsageError(f"{log.root}: no message begins at {offset}")
    crc_from = crc_required_from(log)
    must_have_crc = crc_from is not None and offset >= crc_from
    check = check_frame(view, position, limit, expect_offset=offset, check_crc=True, force_prop_crc=must_have_crc)
    if check.kind != "message":
        raise CorruptRecordError(str(log.segments.path(base)), offset, check.reason)
    return decode_checked(view, position)


@dataclass(frozen=True)
class FrameRun:
    """Frames of one segment, not copied, or copies of frames of several segments. `rows` (n,): the caller's row of each
    frame.
    """

    rows: Rows
    buffer: pa.Buffer
    sizes: Int32
    headers: FrameHeaders
    pieces: PropertyPieces

    @functools.cached_property
    def strings(self) -> pa.BinaryArray:
        """The property strings of the frames, (n,)."""
        return self.headers.property_strings()

    @functools.cached_property
    def topics(self) -> pa.StringArray:
        """The topics of the frames, (n,)."""
        return self.headers.topics()

    @functools.cached_property
    def offset_message_ids(self) -> pa.StringArray:
        """The offset ids of the frames, with which the storing broker finds them, (n,)."""
        headers = self.headers
        is_ipv6 = headers.flagged(SysFlag.STORE_HOST_V6)
        return host_message_ids(headers.data, headers.store_host_position, is_ipv6, headers.physical_offset)

    def message_ids(self) -> pa.StringArray:
        """`msgId` of MESSAGE_SCHEMA, (n,)."""
        return pc.coalesce(self.pieces.column(names.UNIQUE_KEY), self.offset_message_ids)


class StoredFrames:
    """Finds frames of one log by their offsets."""

    def __init__(self, log: CommitLog) -> None:
        self._log = log

    def sizes(self, offsets: Int64, end: int) -> Int32:
        """Total size of the messages that begin at `offsets` (n,) of a log that ends at `end`; 0 if there is none (any
        more).
        """
        sizes = np.zeros(len(offsets), np.int32)
        for rows in self._by_segment(np.flatnonzero(offsets < end), offsets):
            base = self._log.segments.base_of(int(offsets[rows[0]]))
            try:
                data = np.frombuffer(self._log.segments.open(base).buffer, np.uint8)
            except FileNotFoundError:
                continue
            sizes[rows] = message_sizes(data, offsets[rows] - base, base, end - base)
        return sizes

    def _by_segment(self, rows: Rows, offsets: Int64) -> list[Rows]:
        """`rows` by their segments, in the order of these; no empty group."""
        segments = offsets[rows] // self._log.segments.size_bytes
        order = np.argsort(segments, kind="stable")
        ends = np.flatnonzero(np.diff(segments[order])) + 1
        return np.split(rows[order], ends) if len(rows) else []

    def runs(self, offsets: Int64, sizes: Int32, noted: tuple[str, ...] = KEYS_AND_TAGS) -> Iterator[FrameRun]:
        """The frames at `offsets` (n,) with `sizes` (n,): by segments, within a segment in the order of the rows.
        `noted`: properties that the caller will read, as for `split_property_slices`.

        Raises:
            CorruptRecordError: a frame is damaged; `.offset` is its commit-log offset.
            FileNotFoundError: retention deleted a segment meanwhile.
        """
        crc_from = crc_required_from(self._log)
        segments = offsets // self._log.segments.size_bytes
        order = np.argsort(segments, kind="stable")
        ends = np.cumsum(sizes[order], dtype=np.int64)
        first = 0
        while first < len(order):
            before = int(ends[first - 1]) if first else 0
            last = int(np.searchsorted(ends, before + _RUN_BYTES, side="right"))
            last = min(max(last, first + 1), first + _RUN_ROWS)
            rows = order[first:last]
            parts = np.split(rows, np.flatnonzero(np.diff(segments[rows])) + 1)
            run = None
            if len(parts) > 1 and int(ends[last - 1]) - before < _SCATTERED_BYTES * len(parts):
                run = self._copied(parts, offsets, sizes, noted, crc_from)
            if run is not None:
                yield run
            else:
                for part in parts:
                    yield self._run(part, offsets, sizes, noted, crc_from)
            first = last

    def _copied(
        self, parts: list[Rows], offsets: Int64, sizes: Int32, noted: tuple[str, ...], crc_from: int | None
    ) -> FrameRun | None:
        """One run for frames of several segments (`parts`); None if one of them is damaged: `_run` names it."""
        copies = []
        for rows in parts:
            base = self._log.segments.base_of(int(offsets[rows[0]]))
            buffer = self._log.segments.open(base).buffer
            places = offsets[rows] - base
            if ((sizes[rows] < 0) | (sizes[rows] > buffer.size - places)).any():
                return None
            copies.append(take_slices(buffer, places, places + sizes[rows]))
        rows = np.concatenate(parts)
        _, _, buffer = pa.concat_arrays(copies).buffers()
        try:
            headers = frame_columns(buffer, np.cumsum(sizes[rows], dtype=np.int64) - sizes[rows], sizes[rows])
        except CorruptRecordError:
            return None
        if (headers.physical_offset != offsets[rows]).any() or damaged_frames(headers, crc_from).any():
            return None
        return FrameRun(rows, buffer, sizes[rows], headers, headers.properties(noted))

    def _run(self, rows: Rows, offsets: Int64, sizes: Int32, noted: tuple[str, ...], crc_from: int | None) -> FrameRun:
        base = self._log.segments.base_of(int(offsets[rows[0]]))
        buffer = self._log.segments.open(base).buffer
        path = str(self._log.segments.path(base))
        try:
            headers = frame_columns(buffer, offsets[rows] - base, sizes[rows], base_offset=base)
        except CorruptRecordError as error:
            raise CorruptRecordError(path, error.offset, error.reason) from error
        damaged = damaged_frames(headers, crc_from)
        if damaged.any():
            row = int(damaged.argmax())
            raise CorruptRecordError(path, int(offsets[rows[row]]), damage_of(headers, row, crc_from))
        return FrameRun(rows, buffer, sizes[rows], headers, headers.properties(noted))


def raw_bytes(log: CommitLog, offset: int, size: int) -> bytes | None:
    """`size` bytes of the log from `offset` on, fewer at the end of a segment, unchecked; None if there are none."""
    base = log.segments.base_of(offset)
    try:
        view = log.segments.open(base).map
    except (FileNotFoundError, CorruptionError):
        return None
    return view[offset - base : offset - base + size] or None


def stored_text(values: pa.StringArray) -> pa.StringArray:
    """Values of stored properties in a form that can be set: a separator, which Java accepts, becomes U+FFFD."""
    if not pc.any(pc.match_substring_regex(values, _SEPARATORS)).as_py():
        return values
    return pc.replace_substring_regex(values, _SEPARATORS, "\N{REPLACEMENT CHARACTER}")
