"""One index file, mapped: its header, and the chains of its slots, each from the newest entry to the oldest (data
plane).

A search reads little of it: the header if the caller gives times, the slot, and one entry per step of the slot's chain.
Each step is checked: a chain must stay in its slot and in the file, and go to an older entry. The inner loops have
twins in native/chains.c, and one of its functions walks through all files (`newest_entries`).

Source: IndexFile.java (selectPhyOffset).
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from rmq_store.format.bytes import native
from rmq_store.format.bytes.gather import gather_fields
from rmq_store.format.views import index as layout

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]

_ENTRY = struct.Struct(">iqii")
_SLOT = struct.Struct(">i")
assert _ENTRY.size == layout.ENTRY_BYTES

# A chain is followed so far with arrays; of one that is longer (a key of many messages) the entries are read in a row.
_STEPS_MAX = 1000
_BLOCK_ENTRIES = 1 << 18


class BrokenChainError(Exception):
    """Entry `number` does not belong to the chain that points to it."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class IndexMap:
    """One file of `slot_count` slots and entries with numbers below `entry_max`."""

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
        """The header as it is now."""
        return layout.IndexHeader.unpack(self._map[: layout.HEADER_BYTES])

    def first_offset(self) -> int:
        """Log offset in the first entry."""
        _, offset, _, _ = _ENTRY.unpack_from(self._map, self._entries_at + layout.ENTRY_BYTES)
        return int(offset)

    def chain(self, key_hash: int, window: tuple[int, int, int], log_range: tuple[int, int]) -> Iterator[int]:
        """Log offsets in [start, end) of the entries with this hash, newest first, as IndexFile#selectPhyOffset finds
        them; `window`: (begin ms, end ms, begin ms of the file). BrokenChainError.
        """
        begin_ms, end_ms, first_ms = window
        log_start, log_end = log_range
        slot = key_hash % self._slot_count
        (number,) = _SLOT.unpack_from(self._map, layout.slot_position(slot))
        above = self._entry_max
        while number:
            if not 0 < number < above:
                raise BrokenChainError(number)
            entry_hash, offset, seconds, previous = _ENTRY.unpack_from(
                self._map, self._entries_at + layout.ENTRY_BYTES * number
            )
            if entry_hash < 0 or entry_hash % self._slot_count != slot:
                raise BrokenChainError(number)
            if seconds < 0 or offset < log_start:
                return
            time_ms = first_ms + seconds * 1000
            if entry_hash == key_hash and begin_ms <= time_ms <= end_ms and offset < log_end:
                yield offset
            if time_ms < begin_ms:
                return
            above, number = number, previous

    def chains(self, key_hashes: Int32, log_range: tuple[int, int]) -> Iterator[Int64]:
        """Log offsets in [start, end) of all entries with one of these hashes, (n,) int64 each. Each step advances all
        chains. Times are ignored. BrokenChainError.
        """
        first, step = (self._native_first, self._native_step) if native.LOADED else (self._first, self._step)
        key_hashes, numbers = first(key_hashes)
        above = np.full(len(numbers), self._entry_max, np.int32)
        for _ in range(_STEPS_MAX):
            if not len(numbers):
                return
            found, key_hashes, numbers, above = step(key_hashes, numbers, above, log_range)
            yield found
        if len(numbers):
            yield from self._in_a_row(key_hashes, int(numbers.max()), log_range)

    def _first(self, key_hashes: Int32) -> tuple[Int32, Int32]:
        """Those hashes whose slots are not empty, and the newest entries of these."""
        numbers = self._slots[key_hashes % self._slot_count].astype(np.int32)
        going = np.flatnonzero(numbers)
        return key_hashes[going], numbers[going]

    def _native_first(self, key_hashes: Int32) -> tuple[Int32, Int32]:
        key_hashes, numbers = key_hashes.copy(), np.empty(len(key_hashes), np.int32)
        going = native.functions.read_slots(self._data, self._slot_count, self._entry_max, key_hashes, numbers)
        return key_hashes[:going], numbers[:going]

    def _step(
        self, key_hashes: Int32, numbers: Int32, above: Int32, log_range: tuple[int, int]
    ) -> tuple[Int64, Int32, Int32, Int32]:
        """The entries `numbers`, and the chains that go on: hashes, next entries, the ones before."""
        log_start, log_end = log_range
        _refuse((numbers <= 0) | (numbers >= above), numbers)
        places = self._entries_at + layout.ENTRY_BYTES * numbers.astype(np.int64)
        entries = gather_fields(self._data, places, layout.ENTRY)
        entry_hashes = entries["key_hash"].astype(np.int32)
        offsets = entries["phy_offset"].astype(np.int64)
        _refuse((entry_hashes < 0) | (entry_hashes % self._slot_count != key_hashes % self._slot_count), numbers)
        found = offsets[(entry_hashes == key_hashes) & (offsets >= log_start) & (offsets < log_end)]
        previous = entries["previous"].astype(np.int32)
        # Offsets go back along a chain as its numbers do.
        going = np.flatnonzero((previous != 0) & (offsets >= log_start))
        return found, key_hashes[going], previous[going], numbers[going]

    def _native_step(
        self, key_hashes: Int32, numbers: Int32, above: Int32, log_range: tuple[int, int]
    ) -> tuple[Int64, Int32, Int32, Int32]:
        """As `_step`; what it is given is used up."""
        found = np.empty(len(numbers), np.int64)
        going, found_count, broken = native.functions.follow_chains(
            self._data, self._slot_count, self._entry_max, key_hashes, numbers, above, *log_range, found
        )
        if broken >= 0:
            raise BrokenChainError(int(numbers[broken]))
        return found[:found_count], key_hashes[:going], numbers[:going], above[:going]

    def _in_a_row(self, key_hashes: Int32, last_number: int, log_range: tuple[int, int]) -> Iterator[Int64]:
        for first in range(1, last_number + 1, _BLOCK_ENTRIES):
            count = min(_BLOCK_ENTRIES, last_number + 1 - first)
            at = self._entries_at + layout.ENTRY_BYTES * first
            page_at = at - at % mmap.PAGESIZE
            self._map.madvise(mmap.MADV_WILLNEED, page_at, at - page_at + layout.ENTRY_BYTES * count)
            entries = np.frombuffer(self._map, layout.ENTRY, count, at)
            hits = entries["phy_offset"][np.isin(entries["key_hash"].astype(np.int32), key_hashes)].astype(np.int64)
            yield hits[(hits >= log_range[0]) & (hits < log_range[1])]


def newest_entries(
    maps: tuple[mmap.mmap, ...],
    geometry: tuple[int, int],
    key_hash: int,
    window: tuple[int, int],
    log_range: tuple[int, int],
) -> list[int] | None:
    """Log offsets in [start, end) of the entries with this hash in all files, newest file first, as
    `IndexSearch.newest_first`. One call serves one key of few messages in sound files. None: the caller must search
    file by file, because there is no extension, a chain is broken, or the key has more than a few messages.

    `geometry`: slots and `entry_max` of each file. `window`: (begin ms, end ms).
    """
    if not native.LOADED:
        return None
    return native.functions.newest_entries(maps, *geometry, key_hash, *window, *log_range)


def _refuse(bad: npt.NDArray[np.bool_], numbers: Int32) -> None:
    if bad.any():
        raise BrokenChainError(int(numbers[int(bad.argmax())]))
