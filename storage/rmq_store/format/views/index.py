"""The hash index file: header, slots, entries chained from newest to oldest in their slot (data plane).

Header, then one int32 for each slot (number of its newest entry, 0 = empty), then entry 0 (never used), 1, 2, ...:

    bytes  field                 meaning
    0-7    begin_timestamp       int64, ms, store time of the first entry
    8-15   end_timestamp         int64, ms, store time of the last entry
    16-23  begin_phy_offset      int64, commit-log offset of the first entry
    24-31  end_phy_offset        int64, commit-log offset of the last entry
    32-35  hash_slot_count       int32, slots in use; brokers up to 4.7.0 count each entry
    36-39  index_count           int32, number of the next entry; starts at 1

    entry  field                 meaning
    0-3    key_hash              int32, index_hash of topic + "#" + key
    4-11   phy_offset            int64, commit-log offset of the frame
    12-15  time_diff             int32, s, store time after begin_timestamp
    16-19  previous              int32, next older entry of the slot, 0 = none

A message is put under its UNIQ_KEY, then each of its KEYS. 5.5.0 also puts it under "T#" + TAGS, so as if that were one
more key, the last.
Source: IndexHeader.java, IndexFile.java (putKey); files of a 5.5.0 broker.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rmq_store.errors import CorruptIndexError
from rmq_store.format.bytes import native

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
IntArray = npt.NDArray[np.integer[Any]]

HEADER = np.dtype(
    [
        ("begin_timestamp", ">i8"),
        ("end_timestamp", ">i8"),
        ("begin_phy_offset", ">i8"),
        ("end_phy_offset", ">i8"),
        ("hash_slot_count", ">i4"),
        ("index_count", ">i4"),
    ]
)
ENTRY = np.dtype([("key_hash", ">i4"), ("phy_offset", ">i8"), ("time_diff", ">i4"), ("previous", ">i4")])
SLOT = np.dtype(">i4")
HEADER_BYTES = 40
ENTRY_BYTES = 20
SLOT_BYTES = 4
_HEADER = struct.Struct(">qqqqii")
_ENTRY = struct.Struct(">iqii")
assert _HEADER.size == HEADER.itemsize == HEADER_BYTES
assert ENTRY.itemsize == ENTRY_BYTES

INT32_MAX = (1 << 31) - 1


def slot_position(slot: int) -> int:
    """Byte position of slot number `slot` in the file."""
    return HEADER_BYTES + SLOT_BYTES * slot


def entry_position(slot_count: int, number: int) -> int:
    """Byte position of entry `number` in a file of `slot_count` slots."""
    return HEADER_BYTES + SLOT_BYTES * slot_count + ENTRY_BYTES * number


def file_size(slot_count: int, index_count_max: int) -> int:
    """Size in bytes: maxHashSlotNum, maxIndexNum. Entry 0 is unused, so it holds `index_count_max` - 1 entries."""
    return entry_position(slot_count, index_count_max)


class IndexHeader(NamedTuple):
    """The header as a value."""

    begin_timestamp: int = 0
    end_timestamp: int = 0
    begin_phy_offset: int = 0
    end_phy_offset: int = 0
    hash_slot_count: int = 0
    index_count: int = 1

    @classmethod
    def unpack(cls, raw: bytes | memoryview, path: str = "index") -> IndexHeader:
        """Read the first 40 bytes; an index count below 1 is read as 1, as in Java.

        Raises:
            CorruptIndexError: the file at `path` is shorter than a header.
        """
        if len(raw) < HEADER_BYTES:
            raise CorruptIndexError(path, len(raw), f"an index header has {HEADER_BYTES} bytes")
        begin_ms, end_ms, begin_offset, end_offset, slot_count, index_count = _HEADER.unpack_from(raw)
        return cls(begin_ms, end_ms, begin_offset, end_offset, slot_count, max(1, index_count))

    def pack(self) -> bytes:
        """The 40 bytes."""
        return _HEADER.pack(*self)

    def next_file(self) -> IndexHeader:
        """Header of the file after this one: begin and end are this one's end until the first entry comes."""
        return IndexHeader(self.end_timestamp, self.end_timestamp, self.end_phy_offset, self.end_phy_offset)

    def with_entries(
        self, entry_count: int, new_slots: int, *, first: tuple[int, int], last: tuple[int, int]
    ) -> IndexHeader:
        """The header after `entry_count` more entries, `new_slots` of them in empty slots; `first`, `last`: (offset,
        store ms).

        The number of slots in use is never read: a damaged count without room for more stays at the maximum.
        """
        begin_offset, begin_ms = first if self.index_count <= 1 else (self.begin_phy_offset, self.begin_timestamp)
        slots = min(self.hash_slot_count + new_slots, INT32_MAX)
        return IndexHeader(begin_ms, last[1], begin_offset, last[0], slots, self.index_count + entry_count)


def time_diffs(store_timestamps_ms: Int64Array, header: IndexHeader) -> Int32Array:
    """`time_diff` of entries that are added in this order after those of `header`: (n,) int32, whole s, 0 .. 2^31 - 1.

    The first entry of a file counts from the begin time that the header holds *before* it. In the second and later
    files that is the end of the previous file (a quirk that queries allow for). The next entries count from the first
    one's time.
    """
    begins = np.full(len(store_timestamps_ms), header.begin_timestamp, np.int64)
    if header.index_count <= 1:
        begins[1:] = store_timestamps_ms[:1]
    seconds = np.clip((store_timestamps_ms - begins) // 1000, 0, INT32_MAX)
    seconds[begins <= 0] = 0
    result: Int32Array = seconds.astype(np.int32)
    return result


def seconds_after(begin_ms: int, time_ms: int) -> int:
    """`time_diff` of an entry with this store time, counted from `begin_ms`."""
    return min(max((time_ms - begin_ms) // 1000, 0), INT32_MAX) if begin_ms > 0 else 0


def encode_entries(
    key_hashes: IntArray, phy_offsets: IntArray, time_diffs_s: IntArray, previous: IntArray
) -> npt.NDArray[np.void]:
    """(n,) ENTRY, contiguous, from four arrays (n,)."""
    encoded = np.empty(len(key_hashes), ENTRY)
    encoded["key_hash"] = key_hashes
    encoded["phy_offset"] = phy_offsets
    encoded["time_diff"] = time_diffs_s
    encoded["previous"] = previous
    return encoded


class Chain(NamedTuple):
    """The links between new entries and the slots.

    `previous` (n,) int32 belongs into the entries; slot `slots[k]` gets the value `values[k]` ((u,) int64 ascending and
    int32); `new_slots` of these were empty.
    """

    previous: Int32Array
    slots: Int64Array
    values: Int32Array
    new_slots: int


def build_chain(slot_numbers: IntArray, slot_values: IntArray, first_number: int) -> Chain:
    """Chain n new entries, numbered from `first_number`, into their slots.

    `slot_numbers` (n,) is hash % slot_count of each new entry, `slot_values` (n,) the present values of those slots. A
    slot value that is not the number of an older entry counts as empty. One sort replaces putKey's loop over the
    entries.
    """
    assert len(slot_numbers) == len(slot_values)
    count = len(slot_numbers)
    numbers = np.arange(first_number, first_number + count, dtype=np.int64)
    # Slot number above entry number in one int64: sorts several times faster than a stable argsort does.
    ordered = np.sort(slot_numbers.astype(np.int64) << 32 | numbers)
    slots = ordered >> 32
    ordered_numbers = ordered & 0xFFFFFFFF
    starts = np.ones(count, np.bool_)
    np.not_equal(slots[1:], slots[:-1], out=starts[1:])

    sorted_previous = np.zeros(count, np.int64)
    sorted_previous[1:] = ordered_numbers[:-1]
    before = slot_values[ordered_numbers[starts] - first_number].astype(np.int64)
    before[(before <= 0) | (before >= first_number)] = 0
    sorted_previous[starts] = before
    previous = np.empty(count, np.int32)
    previous[ordered_numbers - first_number] = sorted_previous
    ends = np.roll(starts, -1)  # the last of a run stands before the next run's first
    return Chain(previous, slots[starts], ordered_numbers[ends].astype(np.int32), int(np.count_nonzero(before == 0)))


class NewEntries(NamedTuple):
    """Entries ready for the file: `encoded` (n,) ENTRY. Slot `slots[k]` then gets the value `values[k]`: (u,) int64,
    each once, and int32; `new_slots` of these were empty.
    """

    encoded: npt.NDArray[np.void]
    slots: Int64Array
    values: Int32Array
    new_slots: int


def chain_entries(
    key_hashes: Int32Array,
    phy_offsets: Int64Array,
    time_diffs_s: Int32Array,
    slots: npt.NDArray[np.int32],
    first_number: int,
) -> NewEntries:
    """The entries of n keys, numbered from `first_number`. Hashes must not be negative; the first three arguments are
    (n,).

    `slots`: the present slots of the file (SLOT); they are not changed.
    """
    count = len(key_hashes)
    if native.LOADED:
        encoded, met, newest = np.empty(count, ENTRY), np.empty(count, np.int64), np.empty(count, np.int32)
        met_count, new_slots = native.functions.chain_entries(
            np.ascontiguousarray(key_hashes, np.int32),
            np.ascontiguousarray(phy_offsets, np.int64),
            time_diffs_s,
            slots.view(np.uint8),
            first_number,
            encoded.view(np.uint8),
            met,
            newest,
        )
        return NewEntries(encoded, met[:met_count], newest[:met_count], new_slots)
    slot_numbers = key_hashes % len(slots)
    chain = build_chain(slot_numbers, slots[slot_numbers], first_number)
    encoded = encode_entries(key_hashes, phy_offsets, time_diffs_s, chain.previous)
    return NewEntries(encoded, chain.slots, chain.values, chain.new_slots)


def chain_and_point(
    key_hashes: Int32Array,
    phy_offsets: Int64Array,
    time_diffs_s: Int32Array,
    slots: npt.NDArray[np.int32],
    first_number: int,
) -> tuple[npt.NDArray[np.void], int]:
    """As `chain_entries`, but sets the new values in `slots`, which must not be those of a file. Returns `encoded` and
    `new_slots`. A slot value counts as empty if no entry has that number when the slot is processed.
    """
    if native.LOADED:
        encoded = np.empty(len(key_hashes), ENTRY)
        new_slots = native.functions.chain_and_point(
            np.ascontiguousarray(key_hashes, np.int32),
            np.ascontiguousarray(phy_offsets, np.int64),
            time_diffs_s,
            slots.view(np.uint8),
            first_number,
            encoded.view(np.uint8),
        )
        return encoded, new_slots
    new = chain_entries(key_hashes, phy_offsets, time_diffs_s, slots, first_number)
    slots[new.slots] = new.values
    return new.encoded, new.new_slots


class OneRecordsEntries(NamedTuple):
    """Entries of one record, numbered from `first_number`, ready for the file: `encoded`; then slots get new values
    (slot, value), a later pair for a slot replacing an earlier one; then the file gets the `header`.
    """

    first_number: int
    encoded: bytes
    slots: list[tuple[int, int]]
    header: bytes


def chain_one(
    slots: npt.NDArray[np.int32],
    header: bytes,
    key_hashes: list[int],
    phy_offset: int,
    timestamp_ms: int,
    entry_max: int,
) -> OneRecordsEntries:
    """The entries of a record with these keys, as many as there is room for; as `chain_entries`, without arrays
    (IndexFile#putKey).
    """
    if native.LOADED:
        made = native.functions.chain_one(slots, header, key_hashes, phy_offset, timestamp_ms, entry_max)
        if made is not None:
            return OneRecordsEntries._make(made)
    old = IndexHeader.unpack(header)
    begin_ms, first = old.begin_timestamp, old.index_count
    encoded = b""
    newest: dict[int, int] = {}
    pairs: list[tuple[int, int]] = []
    new_slots = 0
    for number, key_hash in enumerate(key_hashes[: max(entry_max - first, 0)], first):
        slot = key_hash % len(slots)
        previous = newest.get(slot) or int(slots[slot])
        if not 0 < previous < number:
            previous = 0
            new_slots += 1
        encoded += _ENTRY.pack(key_hash, phy_offset, seconds_after(begin_ms, timestamp_ms), previous)
        newest[slot] = number
        pairs.append((slot, number))
        if number <= 1:
            begin_ms = timestamp_ms  # the header of a new file gets its begin with the first entry, and counts from it
    place = (phy_offset, timestamp_ms)
    return OneRecordsEntries(
        first, encoded, pairs, old.with_entries(len(pairs), new_slots, first=place, last=place).pack()
    )


def point_slots(slots: npt.NDArray[np.int32], entry_hashes: IntArray, first_number: int) -> None:
    """Set slots (SLOT, big-endian as on disk) to the newest of their entries. The entries have these key hashes, are
    numbered from `first_number` on, and are newer than all entries that the slots point at.
    """
    numbers = np.arange(first_number, first_number + len(entry_hashes))
    # With repeated slots numpy keeps the last value assigned: the newest entry.
    slots[np.asarray(entry_hashes, np.int64) % len(slots)] = numbers
