"""KAFKA_RECORD of many rows at once (data plane). `exact` is the reference for one row.

Rows are written piece by piece with one gather, padded so that one call makes base64 of all of them. They are read in
step: first the key of all rows, then the first header of all rows that have one, and so on.
"""

from __future__ import annotations

import binascii

import numpy as np
import pyarrow as pa

from rmq_store.bridge.records.entries import Int64, Mask
from rmq_store.bridge.records.merge_columns import Bytes, Pieces
from rmq_store.format.bytes.gather import take_slices, value_bytes
from rmq_store.lazy.dataclasses import dataclass

HEADERS_IN_STEP_MAX = 64
"""Rows with more headers are read one by one: each step looks at all rows that still have some."""

_VARINT_BYTES_MAX = 5
_PIECES_OF_KEY = 3  # its length, its bytes, and how many headers there are
_PIECES_OF_HEADER = 4

# The kind of a character of base64: 0 one of its 64, 1 padding, 2 anything else.
_PADDING, _OTHER = 1, 2
_KINDS = np.full(256, _OTHER, np.uint8)
_KINDS[np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8)] = 0
_KINDS[ord("=")] = _PADDING


def encode_exact_column(
    keys: pa.BinaryArray, rows: Int64, names: Pieces, values: Pieces, is_null: Mask
) -> pa.StringArray:
    """KAFKA_RECORD of n rows with `keys`; m headers belong to `rows` (m,) ascending; `is_null` (m,): header None."""
    count = len(keys)
    has_no_key = keys.is_null().to_numpy(zero_copy_only=False)
    own = Pieces.of(keys.fill_null(b"") if keys.null_count else keys)
    counts = np.bincount(rows, minlength=count)
    firsts = np.append(0, np.cumsum(_PIECES_OF_KEY + _PIECES_OF_HEADER * counts + 1))
    within = np.arange(len(rows)) - np.repeat(np.append(0, np.cumsum(counts))[:-1], counts)
    at = firsts[rows] + _PIECES_OF_KEY + _PIECES_OF_HEADER * within
    numbers = np.concatenate(
        (np.where(has_no_key, -1, own.sizes), counts, names.sizes, np.where(is_null, -1, values.sizes))
    )
    varints = _varints(numbers)
    nothing = Pieces(values.data, values.starts, np.where(is_null, values.starts, values.ends))
    split = np.cumsum((count, count, len(rows)))
    starts, ends = np.empty(firsts[-1], np.int64), np.empty(firsts[-1], np.int64)
    texts: list[Bytes] = []
    offset = 0
    for places, pieces in (
        (firsts[:-1], varints.take(slice(0, split[0]))),
        (firsts[:-1] + 1, own),
        (firsts[:-1] + 2, varints.take(slice(split[0], split[1]))),
        (at, varints.take(slice(split[1], split[2]))),
        (at + 1, names),
        (at + 2, varints.take(slice(split[2], None))),
        (at + 3, nothing),
    ):
        starts[places], ends[places] = pieces.starts + offset, pieces.ends + offset
        texts.append(pieces.data)
        offset += len(pieces.data)
    pads = firsts[1:] - 1
    starts[pads] = ends[pads] = offset
    sizes = np.add.reduceat(ends - starts, firsts[:-1]) if count else np.zeros(0, np.int64)
    padding = -sizes % 3
    ends[pads] += padding
    raw = take_slices(pa.py_buffer(np.concatenate([*texts, np.zeros(2, np.uint8)])), starts, ends)
    text = np.frombuffer(bytearray(binascii.b2a_base64(value_bytes(raw)[1].data, newline=False)), np.uint8)
    offsets = np.append(0, np.cumsum((sizes + padding) // 3 * 4))
    text[offsets[1:][padding > 0] - 1] = ord("=")
    text[offsets[1:][padding > 1] - 2] = ord("=")
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(text))


@dataclass(frozen=True, slots=True)
class ExactRows:
    """The contents of n texts. `is_read` (n,): True for texts that were read here. `keys` (n,). Of the headers of these
    rows: `rows` (m,) ascending, names, values, `is_null` (m,).
    """

    is_read: Mask
    keys: pa.BinaryArray
    rows: Int64
    names: Pieces
    values: Pieces
    is_null: Mask


def decode_exact_column(texts: pa.Array) -> ExactRows:
    """Read n texts, none of them null. Texts with many headers, and damaged ones, are left for `decode_exact`."""
    reader = _Reader(texts)
    count = len(texts)
    rows = np.flatnonzero(reader.is_good)
    starts, ends, has_no_key = reader.bytes_of(rows)
    key_starts, key_ends, keyless = np.zeros(count, np.int64), np.zeros(count, np.int64), np.ones(count, np.bool_)
    key_starts[rows], key_ends[rows], keyless[rows] = starts, ends, has_no_key
    left = np.zeros(count, np.int64)
    left[rows] = reader.varints(rows)
    reader.is_good &= (left >= 0) & (left <= HEADERS_IN_STEP_MAX)
    found = []
    while len(rows := np.flatnonzero(reader.is_good & (left > 0))):
        name_starts, name_ends, has_no_name = reader.bytes_of(rows)
        reader.is_good[rows[has_no_name]] = False
        found.append((rows, name_starts, name_ends, *reader.bytes_of(rows)))
        left[rows] -= 1
    reader.is_good &= reader.at == reader.ends
    none = np.zeros(0, np.int64)
    columns = [np.concatenate(column) for column in zip(*found, (none, none, none, none, none, none > 0), strict=True)]
    order = np.argsort(columns[0], kind="stable")
    order = order[reader.is_good[columns[0][order]]]
    rows, name_starts, name_ends, value_starts, value_ends, is_null = (column[order] for column in columns)
    keys = Pieces(reader.raw, key_starts, np.where(keyless, key_starts, key_ends)).array()
    valid = pa.py_buffer(np.packbits(~keyless, bitorder="little"))
    return ExactRows(
        reader.is_good,
        pa.BinaryArray.from_buffers(pa.binary(), count, [valid, *keys.buffers()[1:]]),
        rows,
        Pieces(reader.raw, name_starts, name_ends),
        Pieces(reader.raw, value_starts, value_ends),
        is_null,
    )


class _Reader:
    """The bytes of n texts, `raw`, and where in them the next thing of each row is, `at` (n,), and its end (n,).
    `is_good` (n,): nothing is wrong with the row yet.
    """

    def __init__(self, texts: pa.Array) -> None:
        offsets, data = value_bytes(texts)
        used = data[int(offsets[0]) : int(offsets[-1])]
        offsets -= offsets[0]
        kinds = _KINDS[used]
        sizes = np.diff(offsets)
        self.is_good: Mask = (sizes % 4 == 0) & (sizes > 0)
        self.is_good[np.searchsorted(offsets, np.flatnonzero(kinds == _OTHER), side="right") - 1] = False
        padded = np.flatnonzero(kinds == _PADDING)
        rows = np.searchsorted(offsets, padded, side="right") - 1
        self.is_good[rows[padded < offsets[rows + 1] - 2]] = False
        padding = np.bincount(rows, minlength=len(sizes))
        # Padding is at the end: of two characters only the last one, or both.
        ends_with_it = kinds[np.maximum(offsets[1:] - 1, 0)] == _PADDING if len(used) else padding > 0
        self.is_good &= (padding == 0) | ends_with_it
        if not self.is_good.all():
            # Base64 of all in one call needs rows that are whole: the others count as empty.
            texts = take_slices(pa.py_buffer(used), offsets[:-1], np.where(self.is_good, offsets[1:], offsets[:-1]))
            offsets, used = value_bytes(texts)
            padding = np.where(self.is_good, padding, 0)
        plain = used[: int(offsets[-1])].copy()
        plain[plain == ord("=")] = ord("A")
        decoded = np.frombuffer(binascii.a2b_base64(plain.data), np.uint8)
        self.raw: Bytes = np.append(decoded, np.uint8(0))
        self.at: Int64 = offsets[:-1] // 4 * 3
        self.ends: Int64 = offsets[1:] // 4 * 3 - padding

    def varints(self, rows: Int64) -> Int64:
        """The next number of some rows."""
        at, ends = self.at[rows], self.ends[rows]
        is_whole = at < ends
        numbers = self._bytes(at)
        more = numbers > 0x7F
        numbers &= 0x7F
        self.at[rows] = at + 1
        for place in range(1, _VARINT_BYTES_MAX):
            longer = np.flatnonzero(more)
            if len(longer) == 0:
                break
            found = self._bytes(at[longer] + place)
            numbers[longer] |= (found & 0x7F) << 7 * place
            is_whole[longer] &= at[longer] + place < ends[longer]
            self.at[rows[longer]] += 1
            more[longer] = found > 0x7F
        self.is_good[rows[more | ~is_whole]] = False
        signed: Int64 = (numbers >> 1) ^ -(numbers & 1)
        return signed

    def bytes_of(self, rows: Int64) -> tuple[Int64, Int64, Mask]:
        """The next bytes of some rows: where they begin and end, and whether they are None."""
        sizes = self.varints(rows)
        starts, ends = self.at[rows], self.ends[rows]
        stops = starts + np.maximum(sizes, 0)
        self.is_good[rows[stops > ends]] = False
        stops = np.maximum(np.minimum(stops, ends), starts)
        self.at[rows] = stops
        return starts, stops, sizes < 0

    def _bytes(self, places: Int64) -> Int64:
        found: Int64 = self.raw[np.minimum(places, len(self.raw) - 1)].astype(np.int64)
        return found


def _varints(numbers: Int64) -> Pieces:
    """Numbers as zigzag varints."""
    rest = numbers << 1 ^ numbers >> 63
    sizes = np.ones(len(rest), np.int64)
    written = np.empty((len(rest), _VARINT_BYTES_MAX), np.uint8)
    for place in range(_VARINT_BYTES_MAX):
        written[:, place] = rest & 0x7F
        rest = rest >> 7
        more = rest > 0
        if not more.any():
            break
        written[:, place] |= np.where(more, np.uint8(0x80), np.uint8(0))
        sizes += more
    starts = np.arange(len(numbers)) * _VARINT_BYTES_MAX
    return Pieces(written.ravel(), starts, starts + sizes)
