r"""The property strings of many frames at once (data plane): the same answers as `properties.parse_properties`.

All pieces `name %x01 value %x02` of a column are found with a few passes over its bytes; then the wanted names and
values are collected with one Arrow `take` each. No Python object is made per message.
Source: MessageDecoder.java (string2messageProperties).
"""

from __future__ import annotations

from dataclasses import field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_store.format.bytes import native
from rmq_store.format.bytes.gather import Bytes, Positions, as_text, gather_fields, take_slices, value_bytes
from rmq_store.format.properties import property_string as names
from rmq_store.lazy.arrow_compute import pc
from rmq_store.lazy.dataclasses import dataclass

_NAME_VALUE_SEPARATOR = 1
_PROPERTY_SEPARATOR = 2
_WORD_BYTES = 8
_DENSE_ROW_PIECES_MAX = 32
_ROW_PIECES_EXPECTED = 8  # on average; if there are more, the extension looks a second time

KEYS_AND_TAGS = (names.UNIQUE_KEY, names.TAGS, names.KEYS)
"""The properties that have columns of their own, and what an index entry is made of."""

LAST_WINS = names.NAME_VALUE_SEPARATOR
"""In the place of a name of which the first one counts: no property can have it."""


class PropertyColumns(NamedTuple):
    """The result of `parse_property_column`; n rows each, `tags`, `keys` and `uniq_key` null where absent."""

    properties: pa.MapArray
    tags: pa.StringArray
    keys: pa.StringArray
    uniq_key: pa.StringArray


def parse_property_column(column: pa.Array) -> PropertyColumns:
    """`parse_properties` of every row of a binary array; a null row has no properties. Never raises for its bytes."""
    pieces = split_properties(column)
    return PropertyColumns(
        pieces.to_map(), pieces.column(names.TAGS), pieces.column(names.KEYS), pieces.column(names.UNIQUE_KEY)
    )


def split_properties(column: pa.Array, *, first_wins: str = names.UNIQUE_KEY) -> PropertyPieces:
    """Find every property in a binary array, one property string a row (UTF-8, repaired as Java does if it is not).
    `first_wins` as `split_property_slices` takes it.
    """
    offsets, data = value_bytes(column.fill_null(b"") if column.null_count else column)
    return split_property_slices(data, offsets[:-1], offsets[1:], first_wins=first_wins)


def split_property_slices(
    data: Bytes,
    starts: Positions,
    ends: Positions,
    noted: tuple[str, ...] = KEYS_AND_TAGS,
    *,
    first_wins: str = names.UNIQUE_KEY,
) -> PropertyPieces:
    """As `split_properties`, for the property strings `data[starts[i]:ends[i]]`. The result may refer to `data`.

    `noted`: up to 8 names whose columns will be requested; these cost least. `first_wins`: the name whose first value
    counts if a row has several; LAST_WINS for none, as in Java.
    """
    if native.LOADED:
        pieces = _split_natively(data, starts, ends, noted, first_wins)
        if pieces is not None:
            return pieces
    return _split(as_text(take_slices(pa.py_buffer(data), starts, ends)), first_wins)


def _split_natively(
    data: Bytes, starts: Positions, ends: Positions, noted: tuple[str, ...], first_wins: str
) -> _NativePieces | None:
    """As `_split`, without a copy; None if some string is not valid UTF-8, or has very many pieces."""
    counts, values = np.empty(len(starts), np.int64), np.empty((2, len(noted), len(starts)), np.int64)
    fixed = first_wins.encode(), names.CRC32.encode(), tuple(name.encode() for name in noted)
    count, room = _ROW_PIECES_EXPECTED * len(starts), -1
    while count > room:
        room = count
        found = np.empty((3, room), np.int64)
        split = native.functions.split_pieces(data, starts, ends, *fixed, counts, *found, *values)
        if split is None:
            return None
        count, is_ascii = split
    if not is_ascii:
        try:
            take_slices(pa.py_buffer(data), starts, ends).cast(pa.string())
        except pa.ArrowInvalid:
            return None
    pieces = found[:, :count]
    return _NativePieces(data, counts, pieces[0], pieces[1], pieces[2], values[0], values[1], noted)


def _split(text: pa.StringArray, first_wins: str) -> PropertyPieces:
    count = len(text)
    offsets, data = value_bytes(text)
    filled = offsets[1:] > offsets[:-1]
    if not bool((data[offsets[1:][filled] - 1] == _PROPERTY_SEPARATOR).all()):
        # Some row was written by 4.9.1 .. 5.1.4, without the last separator: now every row ends with one.
        text = pc.binary_join_element_wise(text, "", "\x02")
        offsets, data = value_bytes(text)
    first, last = int(offsets[0]), int(offsets[-1])
    data, offsets = data[first:last], offsets - first

    ends = np.flatnonzero(data == _PROPERTY_SEPARATOR)
    starts = np.empty_like(ends)
    starts[:1] = 0
    starts[1:] = ends[:-1] + 1
    counts = np.diff(np.searchsorted(ends, offsets))
    separators = np.flatnonzero(data == _NAME_VALUE_SEPARATOR)
    if len(separators) != len(ends) or not bool(((starts < separators) & (separators + 1 < ends)).all()):
        # Not exactly one separator in each piece: take the first behind each start, drop pieces that are none.
        found = np.searchsorted(separators, starts)
        separators = np.append(separators, len(data))[found]
        good = (starts < separators) & (separators + 1 < ends)
        counts = np.bincount(np.repeat(np.arange(count), counts)[good], minlength=count)
        starts, separators, ends = starts[good], separators[good], ends[good]
    return PropertyPieces(data, counts.astype(np.int64), starts, separators, ends, first_wins=first_wins)


@dataclass
class PropertyPieces:
    """All properties of a column: piece i is `data[starts[i]:separators[i]]` = name, up to `ends[i]` its value.

    `counts` (n,) says how many pieces each row has; all of them are valid UTF-8. Duplicates may still be there.
    """

    data: Bytes
    counts: Positions
    starts: Positions
    separators: Positions
    ends: Positions
    first_wins: str = field(default=names.UNIQUE_KEY, kw_only=True)

    def column(self, name: str) -> pa.StringArray:
        """The values of one property, (n,) string, null where absent; of duplicates the last, of `first_wins` the
        first.
        """
        count = len(self.counts)
        hits = np.flatnonzero(self._named(name))
        rows = self._rows[hits]
        if len(hits) == count and bool((rows == np.arange(count)).all()):
            return self._values(hits)
        piece_of_row = np.full(count, -1, np.int64)
        in_winning_order = slice(None, None, -1 if name == self.first_wins else 1)
        piece_of_row[rows[in_winning_order]] = np.arange(len(hits))[in_winning_order]
        return self._values(hits).take(pa.array(piece_of_row, mask=piece_of_row < 0))

    def to_map(self) -> pa.MapArray:
        """All properties but `__CRC32#` as map<string, string>, no name twice in a row."""
        kept = ~self._named(names.CRC32)
        pieces = self if bool(kept.all()) else self._filter(kept)
        name_array = pieces._take(pieces.starts, pieces.separators)
        winners = pieces._winners(name_array)
        if winners is not None:
            pieces, name_array = pieces._filter(winners), name_array.filter(pa.array(winners))
        return pieces._map(name_array, pieces._values(slice(None)))

    def _map(self, name_array: pa.StringArray, values: pa.StringArray) -> pa.MapArray:
        offsets = np.zeros(len(self.counts) + 1, np.int32)
        np.cumsum(self.counts, out=offsets[1:])
        return pa.MapArray.from_arrays(pa.array(offsets), name_array, values)

    @cached_property
    def _rows(self) -> Positions:
        """The row of each piece."""
        return np.repeat(np.arange(len(self.counts)), self.counts)

    @cached_property
    def _first_words(self) -> npt.NDArray[np.uint64]:
        """The first 8 bytes from each start on, the first one lowest; zeros behind the end of the data."""
        data = self.data if len(self.data) >= _WORD_BYTES else np.append(self.data, np.zeros(_WORD_BYTES, np.uint8))
        places = np.minimum(self.starts, len(data) - _WORD_BYTES)
        words = gather_fields(data, places, "<u8").view(np.uint64)
        return words >> ((self.starts - places) * 8).astype(np.uint64)

    def _named(self, name: str) -> npt.NDArray[np.bool_]:
        """Flags of the pieces that have this name, of ASCII characters."""
        length = len(name)
        head, tail = name[:_WORD_BYTES].encode(), name[_WORD_BYTES:].encode()
        word = np.uint64(int.from_bytes(head, "little"))
        mask = np.uint64((1 << 8 * len(head)) - 1)
        named: npt.NDArray[np.bool_] = (self.separators - self.starts == length) & (self._first_words & mask == word)
        if tail:
            hits = np.flatnonzero(named)
            found = gather_fields(self.data, self.starts[hits] + _WORD_BYTES, f"S{len(tail)}")
            named[hits] = found == np.bytes_(tail)
        return named

    def _winners(self, name_array: pa.StringArray) -> npt.NDArray[np.bool_] | None:
        """Flags of the pieces that stay if a row keeps each name once; None: all stay."""
        if len(name_array) == 0:
            return None
        codes = name_array.dictionary_encode()
        identity = self._rows * len(codes.dictionary) + codes.indices.to_numpy()
        most = int(self.counts.max())
        if most <= _DENSE_ROW_PIECES_MAX:
            # Rows are short: compare each piece with its next ones, which is cheaper than sorting all.
            if not any((identity[step:] == identity[:-step]).any() for step in range(1, most)):
                return None
        order = np.argsort(identity, kind="stable")
        ordered = identity[order]
        changes = ordered[1:] != ordered[:-1]
        if bool(changes.all()):
            return None
        last = np.append(changes, True)
        first = np.append(True, changes)
        winners = np.empty(len(order), np.bool_)
        winners[order] = np.where(self._named(self.first_wins)[order], first, last)
        return winners

    def _filter(self, kept: npt.NDArray[np.bool_]) -> PropertyPieces:
        counts = np.bincount(self._rows[kept], minlength=len(self.counts)).astype(np.int64)
        places = self.starts[kept], self.separators[kept], self.ends[kept]
        return PropertyPieces(self.data, counts, *places, first_wins=self.first_wins)

    def _values(self, pieces: Positions | slice) -> pa.StringArray:
        return self._take(self.separators[pieces] + 1, self.ends[pieces])

    def _take(self, starts: Positions, ends: Positions) -> pa.StringArray:
        # Cut at ASCII bytes out of valid UTF-8: valid too, so nothing needs to be checked again.
        return take_slices(pa.py_buffer(self.data), starts, ends).view(pa.string())


@dataclass
class _NativePieces(PropertyPieces):
    """The output of the extension: no name is in a row twice, `__CRC32#` is in none, and `data` is more than the
    pieces.

    `data[value_starts[k, i]:value_ends[k, i]]` is the value of the property `noted[k]` in row i, empty without one.
    """

    value_starts: Positions
    value_ends: Positions
    noted: tuple[str, ...]

    def column(self, name: str) -> pa.StringArray:
        if name not in self.noted:
            return super().column(name)
        starts, ends = self.value_starts[self.noted.index(name)], self.value_ends[self.noted.index(name)]
        values = take_slices(pa.py_buffer(self.data), starts, ends)
        missing = len(ends) - int(np.count_nonzero(ends))
        valid = pa.py_buffer(np.packbits(ends > 0, bitorder="little")) if missing else None
        return pa.StringArray.from_buffers(len(ends), *values.buffers()[1:], valid, missing)

    def to_map(self) -> pa.MapArray:
        count, room = len(self.starts), int(np.sum(self.ends - self.starts))
        texts = [(np.empty(count + 1, np.int32), pa.allocate_buffer(room)) for _ in range(2)]
        sizes = native.functions.copy_pieces(self.data, self.starts, self.separators, self.ends, *texts[0], *texts[1])
        arrays = [
            pa.StringArray.from_buffers(count, pa.py_buffer(offsets), text.slice(0, size))
            for (offsets, text), size in zip(texts, sizes, strict=True)
        ]
        return self._map(*arrays)
