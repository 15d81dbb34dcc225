"""One file of the hash index, and how entries get into it (a view of the log; `hash_index` has them all).

Entries are written first, then slots, then the header, whose indexCount is the next free number. A reader uses an
entry only if its record lies below the reader's end of the log. Source: IndexFile#putKey; docs/formats.md.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rmq_store.files.segments.prefix_mapped import PrefixMappedFile
from rmq_store.format.bytes import native
from rmq_store.format.views import index as layout

_INDEX_COUNT = slice(36, 40)  # of the header
_CUT_ENTRIES = 1 << 19  # looked at together: 10 MB
# Chained together: they, and their slots anywhere in 20 MB, stay in the processor's cache until all is written.
_PUT_ENTRIES = 1 << 14
_CACHE_LINE_BYTES = 64
_LOOK_ENTRIES = 256  # the newest ones, which tell how a broker counts


class IndexFile:
    """One index file: header and slots mapped, entries written with pwrite."""

    def __init__(self, path: Path, slot_count: int, entry_max: int, *, writable: bool = True) -> None:
        self.path = path
        self.number = int(path.name)
        self.slot_count = slot_count
        self.entry_max = entry_max
        size = layout.file_size(slot_count, entry_max)
        self._file = PrefixMappedFile(path, size, layout.slot_position(slot_count), writable=writable)
        self.slots = np.frombuffer(self._file.map, dtype=layout.SLOT, count=slot_count, offset=layout.HEADER_BYTES)
        self._held_slots: np.ndarray | None = None
        self.counts_entries = writable and self._counts_entries()
        """Whether hash_slot_count grows with each entry, as in brokers up to 4.7.0, and not with each slot in use."""

    def _counts_entries(self) -> bool:
        """The newest entries tell: one that has another one before it in its slot took none into use."""
        header = self.header
        count = min(header.index_count - 1, self.entry_max - 1)
        if count < 2 or header.hash_slot_count != count:
            return False
        newest = self.read_entries(max(1, count + 1 - _LOOK_ENTRIES), count + 1)
        return bool((newest["previous"] != 0).any())

    def exists(self) -> bool:
        """True if the file has not been unlinked since it was opened."""
        return self._file.exists()

    def is_current(self) -> bool:
        """True if it is certainly the newest file: no process starts another one while this one has room."""
        return self.exists() and int.from_bytes(self._file.map[_INDEX_COUNT]) < self.entry_max

    @property
    def fd(self) -> int:
        """The descriptor; it is closed with this object."""
        return self._file.fd

    @property
    def map(self) -> mmap.mmap:
        """Header and slots."""
        return self._file.map

    @property
    def header_bytes(self) -> bytes:
        """The 40 header bytes as they are on disk."""
        return self._file.map[: layout.HEADER_BYTES]

    @property
    def header(self) -> layout.IndexHeader:
        """The header; an indexCount of 0 reads as 1, as Java does."""
        return layout.IndexHeader.unpack(self.header_bytes)

    def write_header(self, data: bytes) -> None:
        """Write the 40 header bytes, behind all that was written before."""
        native.release_fence()
        self._file.map[: layout.HEADER_BYTES] = data

    def write_entries(self, first_number: int, entries: np.ndarray) -> None:
        """Write entries, contiguous, with numbers from `first_number` on."""
        self._file.write(entries.view(np.uint8).data, layout.entry_position(self.slot_count, first_number))

    def hold_slots(self, entry_count: int) -> None:
        """Until `write_slots`, let `put` change a copy of the slots in memory instead of the file. The caller expects
        `entry_count` entries, or as many as there is room for. Nothing happens if the slots are held already.

        Many entries touch nearly every page of the slots, so it is faster to write all slots once. The slots then come
        after the header. A reader in between does not find the new entries, which are not visible yet.
        """
        if self._held_slots is None:
            self._held_slots = _slots_in_memory(self.slot_count)
            np.copyto(self._held_slots, self.slots)
            position = layout.entry_position(self.slot_count, self.header.index_count)
            self._file.reserve(position, entry_count * layout.ENTRY_BYTES)

    def write_slots(self) -> None:
        """Write the held slots that `put` changed, if any; StoreFullError, StoreFailedError."""
        if self._held_slots is not None:
            self._file.write(self._held_slots.view(np.uint8).data, layout.slot_position(0))
            self._held_slots = None

    def put(self, key_hashes: np.ndarray, log_offsets: np.ndarray, timestamps: np.ndarray) -> int:
        """Add entries as `HashIndex.put`, from the first one on, as many as there is room for; returns how many."""
        header = self.header
        count = min(len(key_hashes), self.entry_max - header.index_count, _PUT_ENTRIES)
        key_hashes, log_offsets, timestamps = key_hashes[:count], log_offsets[:count], timestamps[:count]
        diffs = _time_diffs(timestamps, count, header)
        if self._held_slots is None:
            new = layout.chain_entries(key_hashes, log_offsets, diffs, self.slots, header.index_count)
            self.write_entries(header.index_count, new.encoded)
            native.release_fence()
            self.slots[new.slots] = new.values
            new_slots = new.new_slots
        else:
            encoded, new_slots = layout.chain_and_point(
                key_hashes, log_offsets, diffs, self._held_slots, header.index_count
            )
            self.write_entries(header.index_count, encoded)
        first, last = ((int(log_offsets[row]), int(timestamps[row])) for row in (0, -1))
        new_slots = count if self.counts_entries else new_slots
        self.write_header(header.with_entries(count, new_slots, first=first, last=last).pack())
        return count

    def put_one(self, key_hashes: Sequence[int], log_offset: int, timestamp: int) -> int:
        """Add entries for keys of one record, as many as there is room for; returns how many (IndexFile#putKey)."""
        first_number, encoded, slots, header = layout.chain_one(
            self.slots, self.header_bytes, list(key_hashes), log_offset, timestamp, self.entry_max
        )
        if slots and self.counts_entries:
            used = min(self.header.hash_slot_count + len(slots), layout.INT32_MAX)
            header = layout.IndexHeader.unpack(header)._replace(hash_slot_count=used).pack()
        if slots:
            self._file.write(encoded, layout.entry_position(self.slot_count, first_number))
            native.release_fence()
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
        """Go back to the state that `header` describes: later entries are zeroed, slots recomputed from the others.

        The present values of the slots are not used: after a power cut any part of the file may be old or new.
        """
        count = layout.IndexHeader.unpack(header).index_count
        slots = _slots_in_memory(self.slot_count)
        slots[:] = 0
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


def _slots_in_memory(count: int) -> np.ndarray:
    """(count,) SLOT, for a write of all of them; what they hold is not defined.

    As far from a multiple of _CACHE_LINE_BYTES as in the file: when bytes lay otherwise, the kernel wrote a slot in two
    steps, and in between readers saw a number that it never had.
    """
    size_bytes = layout.SLOT_BYTES * count
    room = np.empty(size_bytes + _CACHE_LINE_BYTES, np.uint8)
    first = (layout.slot_position(0) - room.ctypes.data) % _CACHE_LINE_BYTES
    return room[first : first + size_bytes].view(layout.SLOT)


def _time_diffs(timestamps: np.ndarray, count: int, header: layout.IndexHeader) -> np.ndarray:
    """`layout.time_diffs` of `count` entries, which may have one timestamp."""
    if len(timestamps) > 1:
        return layout.time_diffs(timestamps, header)
    time_ms = int(timestamps[0])
    begin_ms = header.begin_timestamp if header.index_count > 1 else time_ms
    diffs = np.full(count, layout.seconds_after(begin_ms, time_ms), np.int32)
    diffs[0] = layout.seconds_after(header.begin_timestamp, time_ms)
    return diffs
