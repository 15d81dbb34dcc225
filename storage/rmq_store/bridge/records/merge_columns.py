"""Puts entries from several sources together, row by row, as a column of properties or of headers (data plane)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_store.bridge.records.entries import Int64, Mask
from rmq_store.format.bytes.gather import take_slices, value_bytes
from rmq_store.lazy.arrow_compute import pc
from rmq_store.lazy.dataclasses import dataclass

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Pieces:
    """Texts within one byte array: the k-th is `data[starts[k]:ends[k]]`."""

    data: Bytes
    starts: Int64
    ends: Int64

    @classmethod
    def of(cls, values: pa.Array) -> Pieces:
        """The values of a text or binary array; a null becomes an empty one."""
        offsets, data = value_bytes(values)
        return cls(data, offsets[:-1], offsets[1:])

    @classmethod
    def same(cls, text: bytes, count: int) -> Pieces:
        """One text, `count` times."""
        return cls(np.frombuffer(text, np.uint8), np.zeros(count, np.int64), np.full(count, len(text), np.int64))

    def take(self, places: Int64 | Mask | slice) -> Pieces:
        """Some of the pieces."""
        return Pieces(self.data, self.starts[places], self.ends[places])

    @property
    def sizes(self) -> Int64:
        """The size of each piece in bytes, (k,)."""
        return self.ends - self.starts

    def array(self) -> pa.BinaryArray:
        """A copy as a column."""
        return take_slices(pa.py_buffer(self.data), self.starts, self.ends)


def text_where(values: pa.Array, chosen: Mask) -> pa.StringArray:
    """The values `chosen` (n,), which are valid UTF-8, as text; null elsewhere."""
    if chosen.all():
        return values.view(pa.string())
    pieces = Pieces.of(values)
    texts = Pieces(pieces.data, pieces.starts, np.where(chosen, pieces.ends, pieces.starts)).array()
    valid = pa.py_buffer(np.packbits(chosen, bitorder="little"))
    return pa.StringArray.from_buffers(len(values), *texts.buffers()[1:], valid, int(len(chosen) - chosen.sum()))


def joined(count: int, *parts: str | pa.StringArray) -> pa.StringArray:
    """Texts (count,) put together row by row out of columns, and of texts that are the same in all rows; null where a
    column is. Most often the values of a column have one length, and then all rows are filled at once.
    """
    pieces = [(part.encode(), len(part.encode())) if isinstance(part, str) else _one_width(part) for part in parts]
    if count == 0 or any(piece is None for piece in pieces):
        arrays = [pa.scalar(part) if isinstance(part, str) else part for part in parts]
        together: pa.StringArray = pc.binary_join_element_wise(*arrays, "") if count else pa.array([], pa.string())
        return together
    found = [piece for piece in pieces if piece is not None]
    width = sum(size for _, size in found)
    rows = np.empty((count, width), np.uint8)
    at = 0
    for text, size in found:
        rows[:, at : at + size] = np.frombuffer(text, np.uint8).reshape(-1, size) if size else 0
        at += size
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(width)
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(rows))


def _one_width(values: pa.StringArray) -> tuple[Bytes, int] | None:
    """The bytes of values that all have one length, and this length; None if they have not."""
    offsets, data = value_bytes(values)
    if values.null_count or len(values) == 0:
        return None
    width = int(offsets[1] - offsets[0])
    if width == 0 or bool((np.diff(offsets) != width).any()):
        return None
    return data[int(offsets[0]) : int(offsets[-1])], width


@dataclass(frozen=True, slots=True)
class Part:
    """Entries for some rows, `rows` (m,) ascending; None: one for every row. Their names: `codes` (m,) are indexes in
    `names`; None: all have the first one. `is_null` (m,): values that are None.
    """

    rows: Int64 | None
    names: Sequence[bytes]
    codes: npt.NDArray[np.int32] | None
    values: Pieces
    is_null: Mask | None = None


@dataclass(frozen=True, slots=True)
class Woven:
    """Entries of all rows: offsets (n + 1,) int32, names and values (m,) binary."""

    offsets: npt.NDArray[np.int32]
    names: pa.BinaryArray
    values: pa.BinaryArray

    def properties(self) -> pa.MapArray:
        """A map column. The caller knows that all values are valid UTF-8 and none is null."""
        return pa.MapArray.from_arrays(
            pa.array(self.offsets), self.names.view(pa.string()), self.values.view(pa.string())
        )

    def headers(self, kind: pa.ListType) -> pa.ListArray:
        """A column of RECORDS_SCHEMA."""
        pairs = pa.StructArray.from_arrays([self.names, self.values], fields=list(kind.value_type))
        return pa.ListArray.from_arrays(pa.array(self.offsets), pairs, type=kind)


def weave(row_count: int, parts: Sequence[Part]) -> Woven:
    """Put the entries of all parts together, row by row, within a row part by part."""
    counts = np.zeros(row_count, np.int64)
    for part in parts:
        counts += 1 if part.rows is None else np.bincount(part.rows, minlength=row_count)
    offsets = np.zeros(row_count + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    total = int(offsets[-1])
    free = offsets[:-1].copy()  # where the next entry of each row goes
    starts, ends = np.empty(total, np.int64), np.empty(total, np.int64)
    codes = np.empty(total, np.int32)
    is_null = np.zeros(total, np.bool_)
    texts: list[Bytes] = []
    names: list[bytes] = []
    at = 0
    for part in parts:
        places = _places(part.rows, free)
        starts[places], ends[places] = part.values.starts + at, part.values.ends + at
        codes[places] = len(names) if part.codes is None else part.codes + len(names)
        if part.is_null is not None:
            is_null[places] = part.is_null
        names += part.names
        texts.append(part.values.data)
        at += len(part.values.data)
    values = take_slices(pa.py_buffer(np.concatenate([*texts, np.zeros(0, np.uint8)])), starts, ends)
    if is_null.any():
        valid = pa.py_buffer(np.packbits(~is_null, bitorder="little"))
        values = pa.BinaryArray.from_buffers(pa.binary(), total, [valid, *values.buffers()[1:]])
    return Woven(offsets.astype(np.int32), _names(names, codes), values)


def _places(rows: Int64 | None, free: Int64) -> Int64:
    """The positions of a part's entries; moves `free` on."""
    if rows is None:
        places = free.copy()
        free += 1
        return places
    if len(rows) == 0:
        return rows
    is_first = np.append(True, rows[1:] != rows[:-1])
    firsts = np.flatnonzero(is_first)
    within = np.arange(len(rows)) - np.repeat(firsts, np.diff(np.append(firsts, len(rows))))
    places = free[rows] + within
    free[rows[firsts]] += np.diff(np.append(firsts, len(rows)))
    return places


def _names(names: list[bytes], codes: npt.NDArray[np.int32]) -> pa.BinaryArray:
    """The names of entries, (m,)."""
    known = Pieces.of(pa.array(names, pa.binary()))
    return known.take(codes.astype(np.int64)).array()
