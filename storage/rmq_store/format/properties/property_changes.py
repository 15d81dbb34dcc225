r"""Changes some properties of many property strings at once, and leaves every other byte as it is (data plane).

A piece ends with %x02, or with the string. Other pieces stay byte for byte and in their order, also those that
`parse_properties` would drop. So the copy of a message has the same properties as the message.
Source: MessageDecoder.java (messageProperties2String), MessageAccessor.java (putProperty, clearProperty).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_store.errors import UsageError
from rmq_store.format.bytes.gather import Bytes, Positions, begins_with, leading_words, take_slices, value_bytes
from rmq_store.format.properties.property_encoder import checked_text, first_with_separator, no_separator, refusal
from rmq_store.format.properties.property_string import CRC_PROPERTY_BYTES, CRC_PROPERTY_PREFIX
from rmq_store.lazy.arrow_compute import pc

Int64 = npt.NDArray[np.int64]

_NAME_VALUE_SEPARATOR = 1
_PROPERTY_SEPARATOR = 2


def set_properties(strings: pa.Array, changes: Mapping[str, pa.StringArray | str | None]) -> pa.LargeBinaryArray:
    r"""The property strings `strings` (n,) binary or large_binary without nulls, with other values for some names.

    `changes`: by name the new value, one for all rows or (n,). None, and a null in a row, removes the name. A value
    replaces the first piece of that name, and further pieces of it are removed. Without such a piece it is appended,
    in the order of `changes`. A CRC property at the end is left out. The caller checks the lengths of the results.

    Raises:
        UsageError: an empty name or value, or one that holds a separator (%x01, %x02).
    """
    count = len(strings)
    pieces = _Pieces(without_crc(strings))
    new = _NewPieces(len(pieces.data), count)
    cuts, behind = [_Cuts.none()], []
    for name, value in changes.items():
        first_number = new.add(name, value)
        hits = pieces.named(name)
        rows = pieces.rows(hits)
        is_first = np.append(True, rows[1:] != rows[:-1])[: len(rows)]
        cuts.append(_Cuts(rows, pieces.starts[hits], pieces.ends[hits], np.where(is_first, first_number + rows, -1)))
        numbers = first_number + np.arange(count)
        numbers[rows] = -1
        behind.append(numbers)
    return _assemble(pieces, new, _Cuts.joined(cuts), behind)


def without_crc(strings: pa.Array) -> pa.Array:
    """The same strings without the CRC property at their end; the type stays."""
    offsets, data = value_bytes(strings)
    starts, ends = offsets[:-1], offsets[1:]
    more = crc_property_bytes(data, starts, ends)
    if not bool(more.any()):
        return strings
    return take_slices(pa.py_buffer(data), starts, ends - more).cast(strings.type)


def crc_property_bytes(data: Bytes, starts: Positions, ends: Positions) -> Int64:
    """For the property strings `data[starts[i]:ends[i]]`: 20 if a CRC property ends the string, else 0; (n,)."""
    tails = ends - CRC_PROPERTY_BYTES
    found = tails >= starts
    if bool(found.any()):
        found[found] = begins_with(data, tails[found], CRC_PROPERTY_PREFIX)
    return found * np.int64(CRC_PROPERTY_BYTES)


class _Pieces:
    """All pieces of the strings, in order: each begins where the one before it ends.

    `offsets` (n + 1,) into `data` are the strings, `unfinished` the rows whose last piece has no separator behind it,
    as 4.9.1 .. 5.1.4 wrote.
    """

    def __init__(self, strings: pa.Array) -> None:
        offsets, data = value_bytes(strings)
        self.data = data[int(offsets[0]) : int(offsets[-1])]
        self.offsets = offsets - offsets[0]
        last_bytes = self.offsets[1:] - 1
        filled = np.flatnonzero(last_bytes >= self.offsets[:-1])
        self.unfinished = filled[self.data[last_bytes[filled]] != _PROPERTY_SEPARATOR]
        self.ends = np.flatnonzero(self.data == _PROPERTY_SEPARATOR) + 1
        if len(self.unfinished):
            self.ends = np.sort(np.concatenate((self.ends, self.offsets[1:][self.unfinished])), kind="stable")
        self.starts = np.append(0, self.ends[:-1])[: len(self.ends)]
        self._words = leading_words(self.data, self.starts)

    def named(self, name: str) -> Positions:
        """Pieces that begin with this name and a separator."""
        text = name.encode() + bytes([_NAME_VALUE_SEPARATOR])
        found = begins_with(self.data, self.starts, text, self._words)
        found &= self.ends - self.starts >= len(text)
        hits: Positions = np.flatnonzero(found)
        return hits

    def rows(self, pieces: Positions) -> Positions:
        """The row of each of these pieces."""
        rows: Positions = np.searchsorted(self.offsets, self.starts[pieces], side="right") - 1
        return rows


class _Cuts(NamedTuple):
    """Pieces that go: their rows, where they lie, and the number of the new piece that comes instead, or -1."""

    rows: Positions
    starts: Positions
    ends: Positions
    instead: Positions

    @classmethod
    def none(cls) -> _Cuts:
        """No piece at all."""
        return cls(*np.zeros((4, 0), np.int64))

    @classmethod
    def joined(cls, several: Sequence[_Cuts]) -> _Cuts:
        """All of them, in the order in which they lie."""
        rows, starts, ends, instead = map(np.concatenate, zip(*several, strict=True))
        order = np.argsort(starts, kind="stable")
        return cls(rows[order], starts[order], ends[order], instead[order])


class _NewPieces:
    """The pieces to be set, behind the `data_bytes` bytes of the old strings in one buffer."""

    def __init__(self, data_bytes: int, count: int) -> None:
        self._count = count
        self._end = data_bytes
        self.data: list[Bytes] = []
        self._starts: list[Int64] = []
        self._ends: list[Int64] = []

    def add(self, name: str, value: pa.StringArray | str | None) -> int:
        """Add a property; the number of its piece for row 0."""
        if not name or "\x01" in name or "\x02" in name:
            raise UsageError(f"{name!r} cannot be the name of a property")
        if value is None:
            offsets, data = np.zeros(self._count + 1, np.int64), np.zeros(0, np.uint8)
            starts, ends = offsets[:-1], offsets[1:]
        elif isinstance(value, str):
            if not value or "\x01" in value or "\x02" in value:
                raise UsageError(f"property {name!r}: {value!r} cannot be stored")
            data = np.frombuffer(f"{name}\x01{value}\x02".encode(), np.uint8)
            starts = np.full(self._count, self._end)
            ends = starts + len(data)
        else:
            pieces = _pieces_of(name, value)
            offsets, data = value_bytes(pieces)
            starts, ends = offsets[:-1] + self._end, offsets[1:] + self._end
        self.data.append(data)
        self._end += len(data)
        self._starts.append(starts)
        self._ends.append(ends)
        return (len(self._starts) - 1) * self._count

    def places(self) -> tuple[Int64, Int64]:
        """Start and end of each piece, by its number; number -1, the last one, is empty."""
        none = np.zeros(1, np.int64)
        return np.concatenate([*self._starts, none]), np.concatenate([*self._ends, none])


def _pieces_of(name: str, values: pa.StringArray) -> pa.LargeBinaryArray:
    """`name x01 value x02`, (n,), null where the value is."""
    values = checked_text(values, name)
    row = first_with_separator(values)
    reason = "a separator, \\x01 or \\x02, in the value of"
    if row is None:
        empty = pc.index(pc.equal(pc.binary_length(values), 0), True).as_py()
        row, reason = (empty if empty >= 0 else None), "an empty value, which cannot be stored, of"
    if row is not None:
        raise refusal(row, "properties", f"{reason} property {name!r}")
    head, tail = (pa.scalar(text, pa.large_binary()) for text in (f"{name}\x01".encode(), b"\x02"))
    return pc.binary_join_element_wise(head, values.cast(pa.large_binary()), tail, no_separator())


def _assemble(pieces: _Pieces, new: _NewPieces, cuts: _Cuts, behind: Sequence[Int64]) -> pa.LargeBinaryArray:
    """Copy, row by row: what is kept up to a piece that goes, what comes instead, ... the rest, what is appended."""
    count = len(pieces.offsets) - 1
    new_starts, new_ends = new.places()

    # Slots of a row: kept and new in turn, kept; the separator that its last piece lacks; what is appended.
    cut_counts = np.bincount(cuts.rows, minlength=count)
    slot_counts = 2 * cut_counts + 2 + len(behind)
    row_slots = np.append(0, np.cumsum(slot_counts))
    starts = np.zeros(int(row_slots[-1]), np.int64)
    ends = np.zeros(len(starts), np.int64)
    cuts_before = np.cumsum(cut_counts) - cut_counts
    cut_slots = row_slots[cuts.rows] + 2 * (np.arange(len(cuts.rows)) - cuts_before[cuts.rows])
    last_kept = row_slots[:-1] + 2 * cut_counts
    starts[row_slots[:-1]] = pieces.offsets[:-1]
    ends[cut_slots] = cuts.starts
    starts[cut_slots + 1], ends[cut_slots + 1] = new_starts[cuts.instead], new_ends[cuts.instead]
    starts[cut_slots + 2] = cuts.ends
    ends[last_kept] = pieces.offsets[1:]
    for slot, numbers in enumerate(behind, start=2):
        starts[last_kept + slot], ends[last_kept + slot] = new_starts[numbers], new_ends[numbers]

    separator = len(pieces.data) + sum(map(len, new.data))
    if len(pieces.unfinished):
        sums = np.append(0, np.cumsum(ends - starts))
        kept = last_kept[pieces.unfinished]
        # Only where the piece without a separator is still there, and something follows it.
        lacking = kept[(ends[kept] > starts[kept]) & (sums[row_slots[1:][pieces.unfinished]] > sums[kept + 1])]
        starts[lacking + 1], ends[lacking + 1] = separator, separator + 1

    sizes = ends - starts
    offsets = np.append(0, np.cumsum(sizes))[row_slots]
    used = np.flatnonzero(sizes)
    buffer = pa.py_buffer(np.concatenate([pieces.data, *new.data, np.array([_PROPERTY_SEPARATOR], np.uint8)]))
    copied = take_slices(buffer, starts[used], ends[used])
    return pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), count, [None, pa.py_buffer(offsets), copied.buffers()[2]]
    )
