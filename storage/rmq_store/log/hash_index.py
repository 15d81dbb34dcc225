"""The hash index: from `topic#key` to places in the log (a view of the log).

    <root>/index/<yyyyMMddHHmmssSSS>      header 40 | slots 4 each | entries 20 each, number 0 unused

A file is named after the storeTimestamp of the first message in it, so that a rebuild gives the same name. Entries are
written first, then slots, then the header, whose indexCount is the next free number: a reader takes an entry for
true if its record lies below its end of the log. Source: IndexService, IndexFile; store-format.md section 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rmq_store.files import durable
from rmq_store.files.listing import Listing
from rmq_store.files.prefix_mapped import PrefixMappedFile
from rmq_store.format import index as layout
from rmq_store.format.names import index_file_name

_NAME_DIGITS = 17
NO_FILE = 0
UNKNOWN = -1
_INDEX_COUNT = slice(36, 40)  # of the header
_CUT_ENTRIES = 1 << 19  # looked at together: 10 MB
# Chained together: they and their slots, anywhere in 20 MB, stay in the processor's cache until all is written.
_PUT_ENTRIES = 1 << 14


class IndexState(NamedTuple):
    """Where the index ends: the newest file's name as a number (NO_FILE: there is none) and its 40 header bytes.

    UNKNOWN: written down by a process that keeps no index (messageIndexEnable=false), and therefore did not change it.
    """

    file: int
    header: bytes


EMPTY = IndexState(NO_FILE, bytes(layout.HEADER_BYTES))
NOT_KEPT = IndexState(UNKNOWN, bytes(layout.HEADER_BYTES))


class IndexFile:
    """One index file: header and slots mapped, entries written with pwrite."""

    def __init__(self, path: Path, slot_count: int, entry_max: int, *, writable: bool = True) -> None:
        self.path = path
        self.number = int(path.name)
        self.slot_count = slot_count
        self.entry_max = entry_max
        size = layout.file_size(slot_count, entry_max)
        self._file = PrefixMappedFile(path, size, layout.slot_position(slot_count), writable=writable)
        self.slots = np.frombuffer(self._file.map, dtype=">i4", count=slot_count, offset=layout.HEADER_BYTES)

    def exists(self) -> bool:
        """Whether nobody unlinked the file since it was opened."""
        return self._file.exists()

    def is_current(self) -> bool:
        """Whether it is the newest file for certain: nobody starts another one while this one has room."""
        return self.exists() and int.from_bytes(self._file.map[_INDEX_COUNT]) < self.entry_max

    @property
    def header_bytes(self) -> bytes:
        """The 40 header bytes as they are on disk."""
        return self._file.map[: layout.HEADER_BYTES]

    @property
    def header(self) -> layout.IndexHeader:
        """The header; an indexCount of 0 reads as 1, as Java does."""
        return layout.IndexHeader.unpack(self.header_bytes)

    def write_header(self, data: bytes) -> None:
        """Write the 40 header bytes."""
        self._file.map[: layout.HEADER_BYTES] = data

    def write_entries(self, first_number: int, entries: np.ndarray) -> None:
        """Write entries, contiguous, with numbers from `first_number` on."""
        self._file.write(entries.view(np.uint8).data, layout.entry_position(self.slot_count, first_number))

    def put_one(self, key_hashes: Sequence[int], log_offset: int, timestamp: int) -> int:
        """Add entries for keys of one record, as many as there is room for; returns how many (IndexFile#putKey)."""
        first_number, encoded, slots, header = layout.chain_one(
            self.slots, self.header_bytes, list(key_hashes), log_offset, timestamp, self.entry_max
        )
        if slots:
            self._file.write(encoded, layout.entry_position(self.slot_count, first_number))
            for slot, number in slots:
                self.slots[slot] = number
            self.write_header(header)
        return len(slots)

    def read_entries(self, first_number: int, last_number: int) -> np.ndarray:
        """Entries [first_number, last_number), a copy."""
        position = layout.entry_position(self.slot_count, first_number)
        data = self._file.read(position, (last_number - first_number) * layout.ENTRY.itemsize)
        return np.frombuffer(data, dtype=layout.ENTRY)

    def cut(self, header: bytes) -> None:
        """Go back to the state that `header` describes: later entries zeroed, slots recomputed from the others.

        Does not rely on what the slots hold now: after a power cut any part of the file may be old or new.
        """
        count = layout.IndexHeader.unpack(header).index_count
        slots = np.zeros(self.slot_count, layout.SLOT)
        for first in range(1, count, _CUT_ENTRIES):
            hashes = self.read_entries(first, min(first + _CUT_ENTRIES, count))["key_hash"]
            layout.point_slots(slots, hashes, first)
        # Slots first: a reader that finds a zeroed entry through an old slot would miss the chain behind it. Written,
        # not stored through the map: the kernel would read every page of old slots from the disk.
        self._file.write(slots.view(np.uint8).data, layout.slot_position(0))
        self.write_header(header)
        self._file.zero_from(layout.entry_position(self.slot_count, count))

    def sync(self) -> None:
        """fsync; StoreFailedError."""
        self._file.sync()


class HashIndex:
    """The files of `<root>/index`, written under the append lock."""

    def __init__(self, directory: Path, slot_count: int, entry_max: int) -> None:
        self.directory = directory
        self.slot_count = slot_count
        self.entry_max = entry_max
        self._newest: IndexFile | None = None
        self._prefix = f"{directory}/"
        self._listing = Listing(str(directory), _numbers)

    def names(self) -> Sequence[int]:
        """File names as numbers, ascending; foreign names are passed over. The same object says that no file came or
        went since.
        """
        try:
            return self._listing.get()
        except FileNotFoundError:
            return ()

    def path(self, name: int) -> Path:
        """The path of a file."""
        return Path(self.name(name))

    def name(self, name: int) -> str:
        """As `path`, as text."""
        return f"{self._prefix}{name:0{_NAME_DIGITS}d}"

    def state(self) -> IndexState:
        """Where the index ends now; EMPTY without files."""
        newest = self.newest()
        return IndexState(newest.number, newest.header_bytes) if newest else EMPTY

    def restore(self, state: IndexState) -> None:
        """Go back to `state`: newer files unlinked, the newest one cut."""
        if state.file == UNKNOWN:
            return
        self._newest = None
        for name in self.names():
            if name > state.file:
                durable.before("unlink", self.path(name))
                self.path(name).unlink()
        newest = self.newest()
        if newest is not None and newest.number == state.file:
            newest.cut(state.header)

    def make_room(self, timestamp: int) -> None:
        """Have the file there that `put` begins with, if its first entry has this timestamp (ms)."""
        self._with_room(timestamp)

    def put(self, key_hashes: np.ndarray, log_offsets: np.ndarray, timestamps: np.ndarray) -> None:
        """Add one entry per hash, in order; int32, int64 and int64 (ms) arrays of one length, or one timestamp for all.

        `key_hashes` are index hashes (not negative). Files roll when full.
        """
        done = 0
        while done < len(key_hashes):
            left = timestamps[done:] if len(timestamps) > 1 else timestamps
            file = self._with_room(int(left[0]))
            count = min(len(key_hashes) - done, self.entry_max - file.header.index_count, _PUT_ENTRIES)
            part = slice(done, done + count)
            _put(file, key_hashes[part], log_offsets[part], left[:count])
            done += count

    def put_one(self, key_hashes: Sequence[int], log_offset: int, timestamp: int) -> None:
        """As `put`, for the keys of one record; `state` was asked for under the same lock, and looked at the files."""
        file = self._newest or self.newest()
        done = 0
        while done < len(key_hashes):
            count = file.put_one(key_hashes[done:] if done else key_hashes, log_offset, timestamp) if file else 0
            done += count
            if not count:
                file = self._roll(timestamp, file)

    def end_offset(self) -> int:
        """Log offset of the newest record that has entries; -1 without files."""
        newest = self.newest()
        return newest.header.end_phy_offset if newest else -1

    def newest_full_timestamp(self) -> int:
        """endTimestamp of the newest full file, what RocketMQ's checkpoint holds; 0 if no file is full."""
        for name in reversed(self.names()):
            header = IndexFile(self.path(name), self.slot_count, self.entry_max, writable=False).header
            if header.index_count >= self.entry_max:
                return header.end_timestamp
        return 0

    def remove_newest(self) -> None:
        """Unlink the newest file."""
        path = self.path(self.names()[-1])
        self._newest = None
        durable.before("unlink", path)
        path.unlink()

    def end_offset_of(self, name: int) -> int:
        """Log offset of the newest record that has entries in one file; CorruptIndexError."""
        file = IndexFile(self.path(name), self.slot_count, self.entry_max, writable=False)
        return file.header.end_phy_offset

    def remove_oldest(self, name: int) -> bool:
        """Unlink the oldest file; False if `name` is not it, or it is the only one. The caller holds the append lock,
        and fsyncs the directory.
        """
        names = self.names()
        if len(names) < 2 or names[0] != name:
            return False
        durable.before("unlink", self.path(name))
        self.path(name).unlink()
        return True

    def look_at_newest(self) -> IndexFile | None:
        """The newest file for reading, nothing on disk is touched; None without files."""
        names = self.names()
        return IndexFile(self.path(names[-1]), self.slot_count, self.entry_max, writable=False) if names else None

    def newest(self) -> IndexFile | None:
        """The file that entries go to, open for writing; None without files."""
        file = self._newest
        if file is not None and file.is_current():
            return file
        names = self.names()
        if not names:
            self._newest = None
            return None
        path = self.path(names[-1])
        if file is None or file.path != path or not file.exists():
            self._newest = IndexFile(path, self.slot_count, self.entry_max)
        return self._newest

    def _with_room(self, timestamp_ms: int) -> IndexFile:
        """The file that the next entry goes to."""
        file = self.newest()
        if file is None or file.header.index_count >= self.entry_max:
            file = self._roll(timestamp_ms, file)
        return file

    def _roll(self, timestamp_ms: int, full: IndexFile | None) -> IndexFile:
        """Create the next file. Its header starts from the end of the full one, as Java's does (section 3.4, quirk)."""
        name = int(index_file_name(timestamp_ms))
        if full is not None:
            name = max(name, full.number + 1)
        durable.make_directory(self.directory)
        file = IndexFile(self.path(name), self.slot_count, self.entry_max)
        if full is not None and full.header.end_timestamp > 0:
            file.write_header(full.header.next_file().pack())
        self._newest = file
        return file


def _numbers(names: list[str]) -> tuple[int, ...]:
    return tuple(sorted(int(name) for name in names if name.isascii() and name.isdigit()))


def _put(file: IndexFile, key_hashes: np.ndarray, log_offsets: np.ndarray, timestamps: np.ndarray) -> None:
    header = file.header
    time_diffs = _time_diffs(timestamps, len(key_hashes), header)
    new = layout.chain_entries(key_hashes, log_offsets, time_diffs, file.slots, header.index_count)
    file.write_entries(header.index_count, new.encoded)
    file.slots[new.slots] = new.values
    first, last = ((int(log_offsets[row]), int(timestamps[row])) for row in (0, -1))
    file.write_header(header.with_entries(len(key_hashes), new.new_slots, first=first, last=last).pack())


def _time_diffs(timestamps: np.ndarray, count: int, header: layout.IndexHeader) -> np.ndarray:
    """`layout.time_diffs` of `count` entries, which may have one timestamp."""
    if len(timestamps) == count:
        return layout.time_diffs(timestamps, header)
    first, others = layout.time_diffs(np.repeat(timestamps, 2), header).tolist()
    diffs = np.full(count, others, np.int32)
    diffs[0] = first
    return diffs
