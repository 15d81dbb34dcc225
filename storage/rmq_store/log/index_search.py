"""Finding places in the log by key hash, newest first: one key as RocketMQ walks, thousands at once with arrays.

A file is mapped whole and read at a few places: the header if times were asked for, the slot, and one entry for each
step of the slot's chain. Nothing is believed: a chain has to stay in its slot and in the file, and to go back with
every step. While somebody appends, or takes an append back, a slot may lead for a moment to an entry that another one
has taken; then the slot is read again. What is found are candidates, since other keys have the same hash: the caller
asks the records.

Source: IndexService.java (queryOffset), IndexFile.java (selectPhyOffset, isTimeMatched); store-format.md 3.6.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from rmq_store.errors import CorruptIndexError, CorruptionError
from rmq_store.files import durable
from rmq_store.files.segments import OpenFile, OpenFiles
from rmq_store.format import index as layout
from rmq_store.format.gather import gather_fields
from rmq_store.format.ids import UNBOUNDED_MS
from rmq_store.log.hash_index import HashIndex

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
T = TypeVar("T")

_ENTRY = struct.Struct(">iqii")
_SLOT = struct.Struct(">i")
assert _ENTRY.size == layout.ENTRY_BYTES

# A chain is followed so far with arrays; of one that is longer (a key of many messages) the entries are read in a row.
_STEPS_MAX = 1000
_BLOCK_ENTRIES = 1 << 18

_TRIES = 5


class _BrokenChainError(Exception):
    """An entry that does not belong to the chain that led to it."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class IndexSearch:
    """Reads the files of one index; whatever lies at or above the caller's end of the log is passed over."""

    def __init__(self, index: HashIndex, files: OpenFiles) -> None:
        self._index = index
        self._files = files
        self._file_bytes = layout.file_size(index.slot_count, index.entry_max)

    def newest_first(self, key_hash: int, begin_ms: int, end_ms: int, log_range: tuple[int, int]) -> Iterator[int]:
        """Log offsets in [start, end) of the entries with this hash that RocketMQ takes for stored in [begin_ms,
        end_ms], newest first; an offset may come again.

        The time of an entry is known to a second only, counted from the file's first: of a message less than a second
        younger than `begin_ms` RocketMQ may find that it is too old. Raises as `candidates`.
        """
        if begin_ms <= 0 and end_ms == UNBOUNDED_MS:
            for path, view in self._newest_views():  # no header is looked at: a page of each file less
                yield from _settled(path, partial(view.chain, key_hash, (begin_ms, end_ms, 0), log_range))
            return
        for path, view in self._newest_views():
            header = view.header()
            first_ms, last_ms = header.begin_timestamp, header.end_timestamp
            inside = first_ms <= begin_ms <= last_ms or first_ms <= end_ms <= last_ms
            if inside or (begin_ms < first_ms and end_ms > last_ms):
                window = (begin_ms, end_ms, first_ms)
                yield from _settled(path, partial(view.chain, key_hash, window, log_range))
            if first_ms < begin_ms:
                return

    def candidates(self, key_hashes: Int32, log_range: tuple[int, int]) -> Iterator[Int64]:
        """Log offsets in [start, end) of all entries with one of these hashes, (n,) int64 each; an offset may come
        again. Times are not looked at: those in the files do not tell if a clock was ever set back.

        Raises:
            CorruptIndexError: a file is damaged.
        """
        # In the order of their slots, which is the same in each file: a page of slots is looked at once.
        key_hashes = key_hashes[np.argsort(key_hashes % self._index.slot_count)]
        for path, view in self._newest_views():
            header = view.header()
            if header.end_phy_offset < log_range[0] or header.begin_phy_offset >= log_range[1]:
                continue
            yield from _settled(path, partial(view.chains, key_hashes, log_range))

    def covered(self) -> list[tuple[int, int]]:
        """The log offsets of the first and of the last record that have entries, of each file; newest file first.

        What the headers say of a file's begin does not help: Java writes the end of the file before there.
        Raises as `candidates`.
        """
        return [
            (view.first_offset(), view.header().end_phy_offset)
            for _, view in self._newest_views()
            if view.header().index_count > 1
        ]

    def _newest_views(self) -> Iterator[tuple[str, _View]]:
        """The files there are now, newest first. Of those that come later no record is visible to the caller yet."""
        names = self._index.names()
        for name in reversed(names):
            path = self._index.name(name)
            file = self._open(path, being_made=name == names[-1])
            if file is not None:
                if not isinstance(file.view, _View):
                    file.view = _View(file.map, self._index.slot_count, self._index.entry_max)
                yield path, file.view

    def _open(self, path: str, *, being_made: bool) -> OpenFile | None:
        """None if the file is gone (retention took it, or the append that it was made for was taken back), or has no
        size yet: its first entries are of an append under way, or of one that was killed.
        """
        for left in reversed(range(_TRIES)):
            try:
                return self._files.get(path, self._file_bytes, writable=False, pin=False)
            except FileNotFoundError:
                return None
            except OSError as error:
                raise durable.translate(error, path) from error
            except CorruptionError as error:
                if being_made and _is_blank(path):
                    return None
                if not left:
                    raise damaged_index(path, error.offset, error.reason) from error
        raise AssertionError


class _View:
    """One file, mapped."""

    def __init__(self, file_map: mmap.mmap, slot_count: int, entry_max: int) -> None:
        self._map = file_map
        # Places are far from each other: what the kernel would read ahead is never looked at.
        self._map.madvise(mmap.MADV_RANDOM)
        self._data = np.frombuffer(self._map, np.uint8)
        self._slots = np.frombuffer(self._map, layout.SLOT, slot_count, layout.HEADER_BYTES)
        self._slot_count = slot_count
        self._entry_max = entry_max
        self._entries_at = layout.entry_position(slot_count, 0)

    def header(self) -> layout.IndexHeader:
        return layout.IndexHeader.unpack(self._map[: layout.HEADER_BYTES])

    def first_offset(self) -> int:
        """Log offset in the first entry."""
        _, offset, _, _ = _ENTRY.unpack_from(self._map, self._entries_at + layout.ENTRY_BYTES)
        return int(offset)

    def chain(self, key_hash: int, window: tuple[int, int, int], log_range: tuple[int, int]) -> Iterator[int]:
        """IndexFile#selectPhyOffset; `window`: (begin ms, end ms, begin ms of the file)."""
        begin_ms, end_ms, first_ms = window
        log_start, log_end = log_range
        slot = key_hash % self._slot_count
        (number,) = _SLOT.unpack_from(self._map, layout.slot_position(slot))
        above = self._entry_max
        while number:
            if not 0 < number < above:
                raise _BrokenChainError(number)
            entry_hash, offset, seconds, previous = _ENTRY.unpack_from(
                self._map, self._entries_at + layout.ENTRY_BYTES * number
            )
            if entry_hash < 0 or entry_hash % self._slot_count != slot:
                raise _BrokenChainError(number)
            if seconds < 0 or offset < log_start:
                return
            time_ms = first_ms + seconds * 1000
            if entry_hash == key_hash and begin_ms <= time_ms <= end_ms and offset < log_end:
                yield offset
            if time_ms < begin_ms:
                return
            above, number = number, previous

    def chains(self, key_hashes: Int32, log_range: tuple[int, int]) -> Iterator[Int64]:
        """All chains one step at a time."""
        log_start, log_end = log_range
        slots = key_hashes % self._slot_count
        numbers = self._slots[slots].astype(np.int64)
        above = np.full(len(numbers), self._entry_max, np.int64)
        going = np.flatnonzero(numbers)
        for _ in range(_STEPS_MAX):
            key_hashes, slots, numbers, above = key_hashes[going], slots[going], numbers[going], above[going]
            if not len(numbers):
                return
            _refuse((numbers < 0) | (numbers >= above), numbers)
            entries = gather_fields(self._data, self._entries_at + layout.ENTRY_BYTES * numbers, layout.ENTRY)
            entry_hashes = entries["key_hash"].astype(np.int32)
            offsets = entries["phy_offset"].astype(np.int64)
            _refuse((entry_hashes < 0) | (entry_hashes % self._slot_count != slots), numbers)
            yield offsets[(entry_hashes == key_hashes) & (offsets >= log_start) & (offsets < log_end)]
            above, numbers = numbers, entries["previous"].astype(np.int64)
            # Offsets go back along a chain as its numbers do.
            going = np.flatnonzero((numbers != 0) & (offsets >= log_start))
        if len(going):
            yield from self._in_a_row(key_hashes[going], int(numbers[going].max()), log_range)

    def _in_a_row(self, key_hashes: Int32, last_number: int, log_range: tuple[int, int]) -> Iterator[Int64]:
        for first in range(1, last_number + 1, _BLOCK_ENTRIES):
            count = min(_BLOCK_ENTRIES, last_number + 1 - first)
            at = self._entries_at + layout.ENTRY_BYTES * first
            page_at = at - at % mmap.PAGESIZE
            self._map.madvise(mmap.MADV_WILLNEED, page_at, at - page_at + layout.ENTRY_BYTES * count)
            entries = np.frombuffer(self._map, layout.ENTRY, count, at)
            hits = entries["phy_offset"][np.isin(entries["key_hash"].astype(np.int32), key_hashes)].astype(np.int64)
            yield hits[(hits >= log_range[0]) & (hits < log_range[1])]


def damaged_index(path: str, offset: int, reason: str) -> CorruptIndexError:
    """The error for an index that is not true; it says what helps."""
    return CorruptIndexError(path, offset, f"{reason}; `rmq repair --index` builds the index again")


def _is_blank(path: str) -> bool:
    """Whether nothing was written into the file yet."""
    try:
        fd = durable.open_nofollow(path, os.O_RDONLY)
    except FileNotFoundError:
        return True
    try:
        return not any(os.pread(fd, layout.HEADER_BYTES, 0))
    finally:
        os.close(fd)


def _refuse(bad: npt.NDArray[np.bool_], numbers: Int64) -> None:
    if bad.any():
        raise _BrokenChainError(int(numbers[int(bad.argmax())]))


def _settled(path: str, walk: Callable[[], Iterator[T]]) -> Iterator[T]:
    """Walk; again from the start if the chain was changed meanwhile."""
    for left in reversed(range(_TRIES)):
        try:
            yield from walk()
            return
        except _BrokenChainError as error:
            if not left:
                raise damaged_index(path, 0, f"entry {error.number} is not of the chain that leads to it") from error
