"""Java's String.hashCode, and the hash that the index files make of it (data plane: whole columns with numpy).

    h = 0; for each UTF-16 code unit c: h = 31 * h + c   (modulo 2^32, read as signed int32)

Source: String.hashCode; IndexFile.java (indexKeyHashMethod).
"""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_store.format.bytes import native

Int32Array = npt.NDArray[np.int32]

_MULTIPLIER = 31
_MODULUS = 1 << 32
_LENGTH_OF_UINT8 = 255
_TAIL_UNITS = 12  # of a unique id: the digits of time and counter


def java_hash(text: str, seed: int = 0) -> int:
    """`text.hashCode()` of Java, signed: -2^31 <= h < 2^31. Code points above U+FFFF count as two surrogates.

    `seed`: the hash of the text before `text`.
    """
    units: bytes | memoryview
    units = text.encode() if text.isascii() else memoryview(text.encode("utf-16-le", "surrogatepass")).cast("H")
    value = seed
    for unit in units:
        value = (_MULTIPLIER * value + unit) & 0xFFFFFFFF
    return value - _MODULUS if value >= 1 << 31 else value


def index_hash(value: int) -> int:
    """The non-negative hash that index entries hold: abs, but 0 for -2^31, whose abs does not fit an int32."""
    return 0 if value == -(1 << 31) else abs(value)


def topic_key_hash(topic: str, key: str) -> int:
    """Index hash of `topic + "#" + key`."""
    # All that comes before the last characters is mostly the same again: topics are few, and so are the beginnings of
    # unique ids.
    head, tail = key[:-_TAIL_UNITS], key[-_TAIL_UNITS:]
    return index_hash(java_hash(tail, _known_hash(f"{topic}#{head}")))


_known_hash = functools.lru_cache(maxsize=1024)(java_hash)


def java_hashes(texts: pa.Array) -> Int32Array:
    """`java_hash` of every row: (n,) int32, 0 for null; `texts` is string, binary (UTF-8), or a dictionary of these."""
    if pa.types.is_dictionary(texts.type):
        values = np.append(java_hashes(texts.dictionary), np.int32(0))
        codes = texts.indices.fill_null(len(texts.dictionary)).to_numpy(zero_copy_only=False)
        taken: Int32Array = values[codes]
        return taken
    return _hashes(texts, seed=0)


def index_hashes(values: Int32Array) -> Int32Array:
    """`index_hash` of every element; dtype int32, same shape."""
    absolute: Int32Array = np.abs(values)
    absolute[absolute < 0] = 0
    return absolute


def topic_key_hashes(topic: str, keys: pa.Array) -> Int32Array:
    """Index hash of `topic + "#" + key` for every row of `keys` (string or binary): (n,) int32, 0 for null."""
    return index_hashes(_hashes(keys, seed=java_hash(f"{topic}#")))


def _hashes(texts: pa.Array, seed: int) -> Int32Array:
    """Hash of (some text whose hash is `seed`) + row; null rows give 0."""
    starts, ends, data = _bytes_of(texts)
    hashes = np.empty(len(texts), np.uint32)
    if native.LOADED and native.functions.slice_hashes(data, starts, ends, seed % _MODULUS, hashes):
        if texts.null_count:
            hashes[texts.is_null().to_numpy(zero_copy_only=False)] = 0
        return hashes.view(np.int32)
    lengths = ends - starts
    if len(texts) and data.size and int(lengths[0]) and bool((lengths == lengths[0]).all()):
        hashes = _equal_length_hashes(data[starts[0] : ends[-1]].reshape(len(texts), int(lengths[0])))
    else:
        hashes = _mixed_length_hashes(data, starts, lengths)
    if seed:
        longest = int(lengths.max(initial=0))
        hashes += np.uint32(seed % _MODULUS) * _powers(longest + 1)[lengths]
    result = hashes.view(np.int32)
    if data.size and int(data[starts[0] : ends[-1]].max(initial=0)) > 0x7F:
        _hash_non_ascii(texts, data, starts, ends, seed, result)
    if texts.null_count:
        result[texts.is_null().to_numpy(zero_copy_only=False)] = 0
    return result


def _bytes_of(texts: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """Row starts and ends (n,) into the value bytes of a string or binary array."""
    large = pa.types.is_large_string(texts.type) or pa.types.is_large_binary(texts.type)
    if not (large or pa.types.is_string(texts.type) or pa.types.is_binary(texts.type)):
        raise TypeError(f"expected a string or binary array, got {texts.type}")
    _, offset_buffer, value_buffer = texts.buffers()
    if len(texts) == 0 or offset_buffer is None:
        none = np.zeros(0, np.int64)
        return none, none, np.zeros(0, np.uint8)
    stored = np.frombuffer(offset_buffer, np.int64 if large else np.int32)
    offsets: npt.NDArray[np.int64] = stored[texts.offset : texts.offset + len(texts) + 1].astype(np.int64, copy=False)
    data: npt.NDArray[np.uint8] = np.frombuffer(value_buffer or b"", np.uint8)
    return offsets[:-1], offsets[1:], data


def _powers(count: int) -> npt.NDArray[np.uint32]:
    """31^0 .. 31^(count-1) modulo 2^32."""
    powers = np.full(count, _MULTIPLIER, np.uint32)
    powers[:1] = 1
    return np.multiply.accumulate(powers, dtype=np.uint32)


def _equal_length_hashes(rows: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint32]:
    """Horner's rule, one column at a time; unique ids are all of one length, so this is the common case."""
    hashes = np.zeros(len(rows), np.uint32)
    for column in range(rows.shape[1]):
        hashes *= np.uint32(_MULTIPLIER)
        hashes += rows[:, column]
    return hashes


def _mixed_length_hashes(
    data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
) -> npt.NDArray[np.uint32]:
    """Horner's rule by character position, over rows sorted by length so that the rows still going are a prefix."""
    hashes = np.zeros(len(starts), np.uint32)
    longest = int(lengths.max(initial=0))
    if longest > _LENGTH_OF_UINT8:
        for row in np.flatnonzero(lengths > _LENGTH_OF_UINT8):
            hashes[row] = _long_row_hash(data[starts[row] : starts[row] + lengths[row]])
        lengths = np.where(lengths > _LENGTH_OF_UINT8, 0, lengths)
        longest = int(lengths.max())
    # uint8: numpy sorts those by radix, in linear time.
    order = np.argsort(np.uint8(_LENGTH_OF_UINT8) - lengths.astype(np.uint8), kind="stable")
    places = starts[order]
    longer_counts = len(starts) - np.cumsum(np.bincount(lengths, minlength=1))
    sorted_hashes = np.zeros(len(starts), np.uint32)
    for column in range(longest):
        going = int(longer_counts[column])
        running = sorted_hashes[:going]
        running *= np.uint32(_MULTIPLIER)
        running += data[places[:going]]
        places[:going] += 1
    short = lengths[order] > 0
    hashes[order[short]] = sorted_hashes[short]
    return hashes


def _long_row_hash(row: npt.NDArray[np.uint8]) -> np.uint32:
    """Every byte times 31^(bytes behind it), summed."""
    return np.uint32(np.sum(_powers(len(row))[::-1] * row, dtype=np.uint32))


def _hash_non_ascii(
    texts: pa.Array,
    data: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
    seed: int,
    result: Int32Array,
) -> None:
    """Replace the hashes of rows that hold a byte above 0x7F: there bytes are not UTF-16 units."""
    first = int(starts[0])
    high = np.flatnonzero(data[first : int(ends[-1])] > 0x7F) + first
    for row in np.unique(np.searchsorted(ends, high, side="right")):
        text = data[starts[row] : ends[row]].tobytes().decode(errors="replace")
        units = memoryview(text.encode("utf-16-le")).cast("H")
        value = seed
        for unit in units:
            value = _MULTIPLIER * value + unit
        result[row] = ((value + (1 << 31)) % _MODULUS) - (1 << 31)
