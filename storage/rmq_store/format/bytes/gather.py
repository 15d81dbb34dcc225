"""Collect many pieces of one buffer at once (data plane): fixed-size fields with numpy, slices with Arrow.

Nothing here checks bounds for slices: the caller has proved every length before it comes here. Results are copies.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_store.errors import UsageError
from rmq_store.format.bytes import native
from rmq_store.format.bytes.utf8 import decode_utf8

Bytes = npt.NDArray[np.uint8]
Positions = npt.NDArray[np.int64]

_WORD_BYTES = 8

SLICES_BYTES_MAX = (1 << 31) - 1  # what the int32 offsets of a binary array can address


def gather_fields(data: Bytes, positions: Positions, dtype: npt.DTypeLike) -> npt.NDArray[np.void]:
    """Copy one `dtype` from each byte position, aligned or not: (n,) dtype.

    A dtype with fields is moved as plain bytes, which numpy does by memcpy instead of field by field.
    """
    wanted = np.dtype(dtype)
    if len(positions) == 0:
        return np.empty(0, wanted)
    moved = np.dtype((np.void, wanted.itemsize)) if wanted.names else wanted
    # One overlapping window at every byte; numpy itself refuses a position behind the last window.
    windows = np.ndarray((len(data) - wanted.itemsize + 1,), moved, data, strides=(1,))
    return windows[positions].view(wanted)


def sum_words(data: Bytes, positions: Positions) -> int:
    """The sum of the big-endian 32-bit words that begin at byte positions, aligned or not; 0 of none."""
    if native.LOADED:
        return native.functions.sum_words(data, positions)
    return int(gather_fields(data, positions, ">u4").sum(dtype=np.uint64))


def leading_words(data: Bytes, positions: Positions) -> npt.NDArray[np.uint64]:
    """The 8 bytes from each position on, (n,), the first byte lowest; zeros beyond the end of the data."""
    if len(data) < _WORD_BYTES:
        data = np.append(data, np.zeros(_WORD_BYTES, np.uint8))
    places = np.minimum(positions, len(data) - _WORD_BYTES)
    words = gather_fields(data, places, "<u8").view(np.uint64)
    missing_bytes = np.minimum(positions - places, _WORD_BYTES - 1)
    return words >> (missing_bytes * 8).astype(np.uint64)


def begins_with(
    data: Bytes, positions: Positions, text: bytes, words: npt.NDArray[np.uint64] | None = None
) -> npt.NDArray[np.bool_]:
    """True for the positions at which `text` begins, (n,) bool. `words`: their `leading_words`, if the caller has them
    already.

    The compared bytes may extend beyond the end of a slice, so the caller must compare lengths.
    """
    found = _is_word(leading_words(data, positions) if words is None else words, text[:_WORD_BYTES])
    for at in range(_WORD_BYTES, len(text), _WORD_BYTES):
        rows = np.flatnonzero(found)
        found[rows] = _is_word(leading_words(data, positions[rows] + at), text[at : at + _WORD_BYTES])
    return found


def _is_word(words: npt.NDArray[np.uint64], text: bytes) -> npt.NDArray[np.bool_]:
    mask = np.uint64((1 << 8 * len(text)) - 1)
    same: npt.NDArray[np.bool_] = words & mask == np.uint64(int.from_bytes(text, "little"))
    return same


def take_slices(buffer: pa.Buffer, starts: Positions, ends: Positions) -> pa.BinaryArray:
    """Copy `buffer[starts[i]:ends[i]]` for every i, in any order: a binary array of n rows.

    Raises:
        UsageError: together they have 2 GiB or more; ask for fewer rows.
    """
    assert buffer.size <= SLICES_BYTES_MAX
    count = len(starts)
    total_bytes = int(np.sum(ends - starts))
    _refuse_over(count, total_bytes)
    if native.LOADED:
        return _take_natively(buffer, starts, ends, total_bytes)
    if count == 0:
        return pa.array([], pa.binary())
    # The slots of this array are, in turn, a wanted slice and the gap behind it; only the wanted ones are ever read.
    # The last offset ends a gap too: it makes the mean length, by which Arrow reserves memory, that of the slices.
    offsets = np.empty(2 * count + 1, np.int32)
    offsets[0:-1:2] = starts
    offsets[1::2] = ends
    offsets[-1] = min(int(starts[0]) + 2 * total_bytes, buffer.size)
    slots = pa.BinaryArray.from_buffers(pa.binary(), 2 * count, [None, pa.py_buffer(offsets), buffer])
    return slots.take(pa.array(np.arange(0, 2 * count, 2, dtype=np.int32)))


def _refuse_over(count: int, total_bytes: int) -> None:
    if total_bytes > SLICES_BYTES_MAX:
        raise UsageError(f"{count} rows with {total_bytes} bytes do not fit one batch: ask for fewer rows")


def _take_natively(buffer: pa.Buffer, starts: Positions, ends: Positions, total_bytes: int) -> pa.BinaryArray:
    """As `take_slices`, of slices of so many bytes together."""
    offsets = np.empty(len(starts) + 1, np.int32)
    values = pa.allocate_buffer(total_bytes)
    starts, ends = np.ascontiguousarray(starts, np.int64), np.ascontiguousarray(ends, np.int64)
    native.functions.copy_slices(buffer, starts, ends, offsets, values)
    return pa.BinaryArray.from_buffers(pa.binary(), len(starts), [None, pa.py_buffer(offsets), values])


def as_text(values: pa.Array) -> pa.StringArray:
    """Binary rows as text; if any row is malformed UTF-8, malformed bytes become U+FFFD as in Java."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([None if raw is None else decode_utf8(raw) for raw in values.to_pylist()], pa.string())


def repeated(text: str, count: int) -> pa.StringArray:
    """The same text in every row, (count,). UsageError: together they have 2 GiB or more."""
    raw = text.encode()
    _refuse_over(count, count * len(raw))
    offsets = np.arange(0, (count + 1) * len(raw), len(raw), dtype=np.int32) if raw else np.zeros(count + 1, np.int32)
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(raw * count))


def all_are(values: pa.StringArray, raw: bytes) -> bool:
    """True if every row is the text of these bytes."""
    offsets, data = value_bytes(values)
    if values.null_count or not bool((np.diff(offsets) == len(raw)).all()):
        return False
    return data[int(offsets[0]) : int(offsets[-1])].tobytes() == raw * len(values)


def value_bytes(values: pa.Array) -> tuple[npt.NDArray[np.int64], Bytes]:
    """Offsets (n+1,) and bytes of a string or binary array, large or not: row i is data[offsets[i]:offsets[i + 1]]."""
    if len(values) == 0:
        return np.zeros(1, np.int64), np.zeros(0, np.uint8)
    large = pa.types.is_large_string(values.type) or pa.types.is_large_binary(values.type)
    stored = np.frombuffer(values.buffers()[1], np.int64 if large else np.int32)
    offsets = stored[values.offset : values.offset + len(values) + 1].astype(np.int64)
    return offsets, np.frombuffer(values.buffers()[2] or b"", np.uint8)
