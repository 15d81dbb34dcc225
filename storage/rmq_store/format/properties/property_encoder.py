r"""Makes the property strings of many messages at once (data plane), as `Message.stored_properties` and
`encode_properties` do for one.

Order: UNIQ_KEY, KEYS, TAGS, __SHARDINGKEY from their columns where these are not empty, then the entries of the map.
An entry is left out if a column has given its name already. `__CRC32#` is a checksum and never taken from a caller.
Source: MessageDecoder.java (messageProperties2String), MessageConst.java.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_store.errors import UsageError
from rmq_store.format.bytes.gather import Positions, value_bytes
from rmq_store.format.properties import property_string as names
from rmq_store.lazy.arrow_compute import pc

Mask = npt.NDArray[np.bool_]


# Columns of a batch that become properties, in the order in which they are stored. Those in capitals are the broker's.
NAMED_COLUMNS = {"keys": names.KEYS, "tags": names.TAGS, "shardingKey": names.SHARDING_KEY} | {
    name: name
    for name in (
        names.DELAY_TIME_LEVEL, names.TIMER_DELIVER_MS, names.REAL_TOPIC, names.REAL_QUEUE_ID, names.TIMER_OUT_MS
    )
}  # fmt: skip


def no_separator() -> pa.Scalar:
    """The separator between the parts of a join: none.

    Not a constant: the first Arrow scalar of a process loads pandas if it is installed, and importing must stay cheap.
    """
    return pa.scalar(b"", pa.large_binary())


class PropertyParts(NamedTuple):
    """The property strings of n messages in parts. Joined row by row, nulls skipped, the parts make the strings.

    A part is a large_binary array (n,) or scalar. `tags`, `keys` and `unique_keys` (n,) string are the values of these
    names in the strings, null where absent.
    """

    parts: list[pa.Array | pa.Scalar]
    tags: pa.StringArray
    keys: pa.StringArray
    unique_keys: pa.StringArray


class MapEntries:
    """The entries of a map<string, string> column that are to be stored, and the row that each belongs to.

    Raises:
        UsageError: an empty name or value, or one that holds a separator. Entries with a null value are skipped, as in
            Java.
    """

    def __init__(self, column: pa.Array | None, row_count: int, dropped: frozenset[str]) -> None:
        self.row_count = row_count
        if column is None or column.null_count == row_count:
            self._set(pa.array([], pa.string()), pa.array([], pa.string()), np.zeros(0, np.int64))
            return
        offsets = column.offsets.to_numpy().astype(np.int64)
        span = slice(int(offsets[0]), int(offsets[-1]))
        rows = np.repeat(np.arange(row_count), np.diff(offsets))
        self._set(checked_text(column.keys[span], "properties"), checked_text(column.items[span], "properties"), rows)
        # A null row may have entries under it.
        unwanted = np.zeros(len(rows), np.bool_)
        if column.null_count:
            unwanted |= column.is_null().to_numpy(zero_copy_only=False)[rows]
        if self.values.null_count:
            unwanted |= self.values.is_null().to_numpy(zero_copy_only=False)
        for name in dropped | {names.CRC32}:
            unwanted |= self.named(name)
        self.drop(unwanted)
        self._refuse_bad_entries()

    def named(self, name: str) -> Mask:
        """Entries that have this name."""
        code = self._names.dictionary.index(name).as_py()
        found: Mask = self._codes == code if code >= 0 else np.zeros(len(self._codes), np.bool_)
        return found

    def column(self, name: str) -> pa.StringArray:
        """The values of one name, (n,) string, null where absent."""
        entries = np.flatnonzero(self.named(name))
        place = np.full(self.row_count, -1, np.int64)
        place[self.rows[entries]] = entries
        return self.values.take(pa.array(place, mask=place < 0))

    def drop(self, unwanted: Mask) -> None:
        """Forget some of the entries."""
        if bool(unwanted.any()):
            kept = ~unwanted
            mask = pa.array(kept)
            self._set(self._names.filter(mask), self.values.filter(mask), self.rows[kept])

    def encoded(self) -> pa.LargeBinaryArray:
        """`name x01 value x02` of all entries of each row, (n,)."""
        heads = pc.binary_join_element_wise(_large(self._names.dictionary), _constant("\x01"), no_separator())
        name_parts = heads.take(self._names.indices)
        pieces = pc.binary_join_element_wise(name_parts, _large(self.values), _constant("\x02"), no_separator())
        piece_offsets, _ = value_bytes(pieces)
        row_ends = np.cumsum(np.bincount(self.rows, minlength=self.row_count))
        offsets = piece_offsets[np.append(0, row_ends)]
        return pa.LargeBinaryArray.from_buffers(
            pa.large_binary(), self.row_count, [None, pa.py_buffer(offsets), pieces.buffers()[2]]
        )

    def _set(self, name_array: pa.Array, values: pa.Array, rows: Positions) -> None:
        is_encoded = pa.types.is_dictionary(name_array.type)
        self._names = name_array if is_encoded else name_array.dictionary_encode()
        self._codes = self._names.indices.to_numpy()
        self.values = values
        self.rows = rows

    def _refuse_bad_entries(self) -> None:
        for code, name in enumerate(self._names.dictionary.to_pylist()):
            if not name or "\x01" in name or "\x02" in name:
                entries = np.flatnonzero(self._codes == code)
                if len(entries):
                    reason = f"a separator, \\x01 or \\x02, in the name {name!r}" if name else "an empty property name"
                    raise refusal(int(self.rows[entries[0]]), "properties", reason)
        entry = first_with_separator(self.values)
        reason = "a separator, \\x01 or \\x02, in the value of"
        if entry is None:
            offsets, _ = value_bytes(self.values)
            empty = np.flatnonzero(offsets[1:] == offsets[:-1])
            entry = int(empty[0]) if len(empty) else None
            reason = "an empty value, which cannot be stored, of"
        if entry is not None:
            raise refusal(int(self.rows[entry]), "properties", f"{reason} property {self._names[entry].as_py()!r}")


def property_parts(
    columns: dict[str, pa.StringArray], entries: MapEntries, unique_keys: pa.StringArray | None
) -> PropertyParts:
    """Prepare the property strings of a batch.

    `columns` holds those of NAMED_COLUMNS that the batch has, `unique_keys` the new ids, null for messages that keep
    the one in their map or have none.

    Raises:
        UsageError: a separator in a value, or one that is not valid UTF-8.
    """
    given: dict[str, pa.StringArray] = {}
    if unique_keys is not None:
        given[names.UNIQUE_KEY] = unique_keys
    for column, name in NAMED_COLUMNS.items():
        if column in columns:
            given[name] = _null_if_empty(checked_text(columns[column], column))
            row = first_with_separator(given[name])
            if row is not None:
                raise refusal(row, column, "a separator, \\x01 or \\x02")

    parts: list[pa.Array | pa.Scalar] = []
    stored: dict[str, pa.StringArray] = {}
    for name, values in given.items():
        if bool((in_map := entries.named(name)).any()):
            has_value = values.is_valid().to_numpy(zero_copy_only=False)
            entries.drop(in_map & has_value[entries.rows])
            stored[name] = pc.coalesce(values, entries.column(name))
        else:
            stored[name] = values
        if values.null_count < len(values):
            part = [_constant(f"{name}\x01"), _large(values), _constant("\x02")]
            parts += [pc.binary_join_element_wise(*part, no_separator())] if values.null_count else part
    if len(entries.rows):
        parts.append(entries.encoded())
    tags, keys, unique = (
        stored[name] if name in stored else entries.column(name) for name in (names.TAGS, names.KEYS, names.UNIQUE_KEY)
    )
    return PropertyParts(parts, tags, keys, unique)


def checked_text(values: pa.StringArray, column: str) -> pa.StringArray:
    """`values` if they are valid UTF-8. Arrow itself does not check, and Spark's strings can hold any bytes."""
    try:
        values.validate(full=True)
    except pa.ArrowInvalid as error:
        raise UsageError(f"column {column!r}: text that is not valid UTF-8") from error
    return values


def first_with_separator(values: pa.Array) -> int | None:
    """The first row whose value holds x01 or x02, or None."""
    offsets, data = value_bytes(values)
    seen = data[int(offsets[0]) : int(offsets[-1])]
    # uint8 wraps: 0 becomes 255.
    found = np.flatnonzero(seen - np.uint8(1) < 2) if seen.size else np.zeros(0, np.int64)
    for row in np.unique(np.searchsorted(offsets, found + offsets[0], side="right") - 1):
        if values[int(row)].is_valid:
            return int(row)
    return None


def refusal(row: int, column: str, reason: str) -> UsageError:
    """The error for a value that cannot be stored."""
    return UsageError(f"row {row}, column {column!r}: {reason}")


def _null_if_empty(values: pa.StringArray) -> pa.StringArray:
    offsets, _ = value_bytes(values)
    if bool((offsets[1:] > offsets[:-1]).all()):
        return values
    return pc.if_else(pc.equal(pc.binary_length(values), 0), pa.scalar(None, pa.string()), values)


def _large(values: pa.Array) -> pa.LargeBinaryArray:
    return values.cast(pa.large_binary())


def _constant(text: str) -> pa.Scalar:
    return pa.scalar(text.encode(), pa.large_binary())
