"""The hash index: from `topic#key` to commit-log offsets (a view of the log).

    <root>/index/<yyyyMMddHHmmssSSS>      header 40 | slots 4 each | entries 20 each, number 0 unused

A file is named after the storeTimestamp of the first message in it, so that a rebuild gives the same name.
Source: IndexService (buildIndex, deleteExpiredFile); docs/formats.md.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rmq_store.files import durable
from rmq_store.files.rooted import root_of
from rmq_store.files.segments.listing import Listing
from rmq_store.format.text.names import index_file_name
from rmq_store.format.views import index as layout
from rmq_store.log.views.index_file import IndexFile

_NAME_DIGITS = 17
NO_FILE = 0
UNKNOWN = -1
# Entries for so many of its slots, one of 16, are many: for fewer it takes longer to copy the slots than it saves.
_MANY_SHARE = 16


class IndexState(NamedTuple):
    """The end of the index: the newest file's name as a number (NO_FILE: there is none) and its 40 header bytes.

    UNKNOWN: saved by a process that keeps no index (messageIndexEnable=false), and therefore did not change it.
    """

    file: int
    header: bytes


EMPTY = IndexState(NO_FILE, bytes(layout.HEADER_BYTES))
NOT_KEPT = IndexState(UNKNOWN, bytes(layout.HEADER_BYTES))


class HashIndex:
    """The files of `<root>/index`, written under the append lock."""

    def __init__(self, directory: Path, slot_count: int, entry_max: int) -> None:
        self.directory = directory
        self.slot_count = slot_count
        self.entry_max = entry_max
        self._newest: IndexFile | None = None
        self._many = 0  # entries that come together, if they are many
        self._root = root_of(directory)
        self._prefix = f"{directory}/"
        self._listing = Listing(str(directory), _numbers)

    def names(self) -> Sequence[int]:
        """File names as numbers, ascending; other names are passed over. If the same object is returned again, no file
        was added or removed since.
        """
        try:
            return self._listing.get(self._root)
        except FileNotFoundError:
            return ()

    def path(self, name: int) -> Path:
        """The path of a file."""
        return self.directory / f"{name:0{_NAME_DIGITS}d}"

    def name(self, name: int) -> str:
        """As `path`, as text."""
        return f"{self._prefix}{name:0{_NAME_DIGITS}d}"

    def state(self) -> IndexState:
        """The end of the index now; EMPTY without files."""
        newest = self.newest()
        return IndexState(newest.number, newest.header_bytes) if newest else EMPTY

    def restore(self, state: IndexState) -> None:
        """Go back to `state`: newer files are unlinked, the newest remaining one is cut."""
        if state.file == UNKNOWN:
            return
        self._newest, self._many = None, 0  # also after an interrupt on the way out of `putting`
        for name in self.names():
            if name > state.file:
                durable.before("unlink", self.path(name))
                self.path(name).unlink()
        newest = self.newest()
        if newest is not None and newest.number == state.file:
            newest.cut(state.header)

    def make_room(self, timestamp: int) -> None:
        """Create the file that `put` begins with, unless it exists; its first entry has this timestamp (ms)."""
        self._file_for(timestamp)

    @contextlib.contextmanager
    def putting(self, key_count: int) -> Iterator[None]:
        """A block that puts `key_count` entries or none. If they are many, the slots are written when the block ends,
        or a file is full. If the block fails, the caller must call `restore`.
        """
        self._many = key_count if key_count >= self.slot_count // _MANY_SHARE else 0
        try:
            yield
            if self._newest is not None:
                self._newest.write_slots()
        finally:
            self._many = 0

    def put(self, key_hashes: np.ndarray, log_offsets: np.ndarray, timestamps: np.ndarray) -> None:
        """Add one entry per hash, in order; int32, int64 and int64 (ms) arrays of one length, or one timestamp for all.

        `key_hashes` are index hashes (not negative). Files roll when full.
        """
        done = 0
        while done < len(key_hashes):
            left = timestamps[done:] if len(timestamps) > 1 else timestamps
            file = self._file_for(int(left[0]))
            done += file.put(key_hashes[done:], log_offsets[done:], left)

    def put_one(self, key_hashes: Sequence[int], log_offset: int, timestamp: int) -> None:
        """As `put`, for the keys of one record. The caller has read `state` under the same lock, which checked the
        files.
        """
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
        """endTimestamp of the newest full file, as in RocketMQ's checkpoint; 0 if no file is full."""
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
        """Unlink the oldest file. False if `name` is another file, or it is the only one. The caller holds the append
        lock, and fsyncs the directory.
        """
        names = self.names()
        if len(names) < 2 or names[0] != name:
            return False
        durable.before("unlink", self.path(name))
        self.path(name).unlink()
        return True

    def look_at_newest(self) -> IndexFile | None:
        """The newest file, for reading; changes nothing on disk. None without files."""
        names = self.names()
        return IndexFile(self.path(names[-1]), self.slot_count, self.entry_max, writable=False) if names else None

    def close(self) -> None:
        """Let go of the file that entries go to; what is asked later opens it again."""
        self._newest = None

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

    def _file_for(self, timestamp_ms: int) -> IndexFile:
        """The file that the next entry goes to, its slots held if many come."""
        file = self.newest()
        if file is None or file.header.index_count >= self.entry_max:
            file = self._roll(timestamp_ms, file)
        if self._many:
            file.hold_slots(self._many)
        return file

    def _roll(self, timestamp_ms: int, full: IndexFile | None) -> IndexFile:
        """Create the next file. Its header starts from the end of the full one, as Java's does (section 3.4, quirk)."""
        name = int(index_file_name(timestamp_ms))
        if full is not None:
            full.write_slots()
            name = max(name, full.number + 1)
        durable.make_directory(self.directory)
        file = IndexFile(self.path(name), self.slot_count, self.entry_max)
        if full is not None and full.header.end_timestamp > 0:
            file.write_header(full.header.next_file().pack())
        if full is not None:
            file.counts_entries = full.counts_entries
        self._newest = file
        return file


def _numbers(names: list[str]) -> tuple[int, ...]:
    return tuple(sorted(int(name) for name in names if name.isascii() and name.isdigit()))
