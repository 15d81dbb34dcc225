"""Headers of many records, or properties of many messages, as flat arrays (data plane: no Python object per record)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_store.format.bytes.gather import take_slices, value_bytes
from rmq_store.lazy.arrow_compute import pc

Mask = npt.NDArray[np.bool_]
Int64 = npt.NDArray[np.int64]

# Rows of up to so many entries: comparing each with its next ones costs less than sorting all.
_DENSE_ROW_ENTRIES_MAX = 32
_LOWEST_PLAIN_BYTE = 3


class Entries:
    """Name and value pairs, those of row i at [offsets[i], offsets[i + 1]).

    `codes` (m,) are indexes in `names`, which has each name once. `values` (m,) binary, null for a header None.
    """

    def __init__(self, offsets: Int64, name_array: pa.Array, values: pa.Array) -> None:
        self.offsets = offsets
        coded = pc.dictionary_encode(name_array.cast(pa.binary()))
        self.names: list[bytes] = coded.dictionary.to_pylist()
        self.codes: npt.NDArray[np.int32] = coded.indices.to_numpy()
        self.values = values.cast(pa.binary())

    @classmethod
    def of_headers(cls, headers: pa.ListArray) -> Entries:
        """The entries of a column of RECORDS_SCHEMA."""
        pairs = headers.flatten()
        return cls(_offsets(headers), pairs.field(0), pairs.field(1))

    @classmethod
    def of_properties(cls, properties: pa.MapArray) -> Entries:
        """The entries of a column of MESSAGE_SCHEMA."""
        offsets = _offsets(properties)
        first = int(properties.offsets[0].as_py()) if len(properties) else 0
        span = slice(first, first + int(offsets[-1]))
        return cls(offsets, properties.keys[span], properties.items[span])

    @property
    def row_count(self) -> int:
        """The number of rows."""
        return len(self.offsets) - 1

    @cached_property
    def rows(self) -> Int64:
        """The row of each entry, (m,)."""
        return np.repeat(np.arange(self.row_count), np.diff(self.offsets))

    def code(self, name: str) -> int:
        """The index of a name in `names`; -1: no row has it."""
        raw = name.encode()
        return self.names.index(raw) if raw in self.names else -1

    def named(self, *wanted: str) -> Mask:
        """(m,) True for entries that have one of these names."""
        return self.chosen([name.encode() for name in wanted])

    def chosen(self, wanted: Sequence[bytes]) -> Mask:
        """(m,) True for entries that have one of these names."""
        among = set(wanted)
        return self.judged(np.array([name in among for name in self.names], np.bool_))

    def judged(self, verdicts: Mask) -> Mask:
        """(m,) The value of each entry's name; `verdicts` (k,) has a value per name."""
        if not verdicts.any():
            return np.zeros(len(self.codes), np.bool_)
        found: Mask = verdicts[self.codes]
        return found

    def column(self, name: str) -> tuple[pa.BinaryArray, Int64]:
        """A name's values, (n,), the last one of several, null without one; and the number in each row, (n,)."""
        code = self.code(name)
        if code < 0:
            return pa.nulls(self.row_count, pa.binary()), np.zeros(self.row_count, np.int64)
        places = np.flatnonzero(self.codes == code)
        rows = self.rows[places]
        offsets, data = value_bytes(self.values)
        starts, ends = np.zeros(self.row_count, np.int64), np.zeros(self.row_count, np.int64)
        starts[rows], ends[rows] = offsets[places], offsets[places + 1]
        is_valid = np.zeros(self.row_count, np.bool_)
        is_valid[rows] = True
        if self.values.null_count:
            is_valid[rows] = self.values.is_valid().to_numpy(zero_copy_only=False)[places]
        found = take_slices(pa.py_buffer(data), starts, ends)
        if not is_valid.all():
            valid = pa.py_buffer(np.packbits(is_valid, bitorder="little"))
            found = pa.BinaryArray.from_buffers(pa.binary(), self.row_count, [valid, *found.buffers()[1:]])
        return found, np.bincount(rows, minlength=self.row_count)

    def rows_with_a_name_twice(self, among: Mask) -> Mask:
        """(n,) True for rows that have one name in two of the entries `among`."""
        found = np.zeros(self.row_count, np.bool_)
        if not among.any():
            return found
        rows = self.rows[among]
        identity = rows * len(self.names) + self.codes[among]
        most = int(np.bincount(rows).max())
        if most > _DENSE_ROW_ENTRIES_MAX:
            identity = np.sort(identity)
            found[identity[1:][identity[1:] == identity[:-1]] // len(self.names)] = True
            return found
        for step in range(1, most):
            found[rows[step:][identity[step:] == identity[:-step]]] = True
        return found


def plain_texts(values: pa.Array) -> Mask:
    """(n,) True for values that are UTF-8 text, not null, not empty, and without the bytes 0, 1 and 2."""
    offsets, data = value_bytes(values)
    plain: Mask = offsets[1:] > offsets[:-1]
    if values.null_count:
        plain &= values.is_valid().to_numpy(zero_copy_only=False)
    used = data[int(offsets[0]) : int(offsets[-1])]
    low = np.flatnonzero(used < _LOWEST_PLAIN_BYTE)
    if len(low):
        plain[np.searchsorted(offsets, low + offsets[0], side="right") - 1] = False
    try:
        values.cast(pa.string())
    except pa.ArrowInvalid:
        for place in np.flatnonzero(plain).tolist():
            plain[place] = _is_utf8(values[place].as_py())
    return plain


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def _offsets(column: pa.Array) -> Int64:
    if len(column) == 0:
        return np.zeros(1, np.int64)
    offsets: Int64 = column.offsets.to_numpy().astype(np.int64)
    offsets -= offsets[0]
    return offsets
