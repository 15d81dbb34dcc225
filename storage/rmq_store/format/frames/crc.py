"""CRC-32 of bodies and frames, many at a time (data plane), and how to fill fields in without reading a frame again.

CRC-32 is affine: for two texts of one length, crc(a) ^ crc(b) depends only on a ^ b. To append a run of zero bytes to
a text is a linear map of its CRC. So the encoder computes the CRC of a frame before it holds the append lock, with
queueOffset, physicalOffset and storeTimestamp zero. The contribution of these 24 bytes is xored in when they are known.

    remainder(d)        CRC register after the bytes d, starting from 0, without the final complement: linear in d
    crc(a + b)          = shift(crc(a), len(b)) ^ crc(b)         shift(c, n) = the register c after n more zero bytes

Source: java.util.zip.CRC32 (= zlib.crc32); UtilAll.java (crc32), CommitLog.java (the CRC property).
"""

from __future__ import annotations

import zlib
from functools import cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_store.format.bytes import native
from rmq_store.format.bytes.gather import value_bytes
from rmq_store.format.frames.frame_check import CRC_MASK

Bytes = npt.NDArray[np.uint8]
Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
UInt32 = npt.NDArray[np.uint32]

# Where the late fields lie (frame_check): queueOffset and physicalOffset together, storeTimestamp behind the born host.
_OFFSETS_POSITION = 20
_BORN_HOST_POSITION = 48
_DIGITS = 10
# Of one text that is shorter, zlib says the CRC sooner than arrays for the extension are made.
_SHORT_BYTES = 8 << 10


def body_crc(body: bytes | memoryview) -> int:
    """The bodyCRC field of a body: CRC-32 without its highest bit; 0 for an empty one."""
    return zlib.crc32(body) & CRC_MASK


def body_crcs(bodies: pa.Array) -> Int32:
    """`body_crc` of every row of a binary or large_binary array without nulls: (n,) int32."""
    return (array_crcs(bodies) & np.uint32(CRC_MASK)).view(np.int32)


def array_crcs(values: pa.Array) -> UInt32:
    """CRC-32 (n,) of each row of a binary or large_binary array. For a null row, of the bytes that its offsets span."""
    offsets, data = value_bytes(values)
    return slice_crcs(data, offsets[:-1], offsets[1:])


def extend_crc(crc: int, data: bytes | memoryview) -> int:
    """The CRC-32 of a text followed by `data`, which is contiguous; `crc` is the CRC-32 of that text."""
    if not native.LOADED or len(data) < _SHORT_BYTES:
        return zlib.crc32(data, crc)
    text, seed, found = np.frombuffer(data, np.uint8), np.array([crc], np.uint32), np.empty(1, np.uint32)
    native.functions.slice_crcs(text, np.array([0]), np.array([len(text)]), seed, found)
    return int(found[0])


def slice_crcs(data: Bytes, starts: Int64, ends: Int64, seeds: UInt32 | None = None) -> UInt32:
    """CRC-32 (n,) of `data[starts[i]:ends[i]]`; `seeds` (n,) are the CRCs of the bytes before each slice."""
    if native.LOADED:
        crcs = np.empty(len(starts), np.uint32)
        native.functions.slice_crcs(data, starts, ends, seeds, crcs)
        return crcs
    crc32 = zlib.crc32
    view = data.data
    rows = zip(starts.tolist(), ends.tolist(), strict=True)
    if seeds is None:
        found = [crc32(view[start:end]) for start, end in rows]
    else:
        found = [crc32(view[start:end], seed) for (start, end), seed in zip(rows, seeds.tolist(), strict=True)]
    return np.array(found, np.uint32)


def shift_crcs(crcs: UInt32, zero_bytes: Int64) -> UInt32:
    """The CRC registers `crcs` (n,) after `zero_bytes` (n,) >= 0 more zero bytes each."""
    shifted = crcs
    level = 0
    remaining = zero_bytes
    while bool(remaining.any()):
        digits = remaining & 0xFF
        if int(digits[0]) and bool((digits == digits[0]).all()):
            shifted = _apply(_shift_tables(level)[int(digits[0])].reshape(4, 256), shifted)
        else:
            shifted = _apply_each(_shift_tables(level), digits, shifted)
        remaining = remaining >> 8
        level += 1
    return shifted


def patch_crcs(
    crc0: UInt32,
    covered_bytes: Int64,
    born_host_bytes: int | Int64,
    queue_offsets: Int64,
    physical_offsets: Int64,
    store_timestamps: Int64,
) -> UInt32:
    """The CRCs (n,) of frames once their late fields are filled in; not masked.

    `crc0` (n,) are the CRCs of the first `covered_bytes` (n,) bytes of the frames with queueOffset, physicalOffset and
    storeTimestamp zero; `born_host_bytes` is 8 or 20, for all or for each (n,).
    """
    added = np.zeros(len(crc0), np.uint32)
    _add_field(added, queue_offsets, bytes_behind=8)
    _add_field(added, physical_offsets, bytes_behind=0)
    # From the end of physicalOffset to storeTimestamp, which lies behind the born host.
    gaps = np.broadcast_to(np.asarray(born_host_bytes, np.int64), crc0.shape) + (
        _BORN_HOST_POSITION - _OFFSETS_POSITION - 16 + 8
    )
    added = shift_crcs(added, gaps)
    _add_field(added, store_timestamps, bytes_behind=0)
    # Bytes before the last late byte: 20 + 16, and the gap.
    return crc0 ^ shift_crcs(added, covered_bytes - gaps - (_OFFSETS_POSITION + 16))


def crc_digits(crcs: UInt32) -> Bytes:
    """The ten digits of the CRC property, (n, 10) uint8 ASCII: decimal, least significant first; masked here."""
    values = crcs & np.uint32(CRC_MASK)
    table = _four_digits()
    digits = np.empty((len(values), 3), np.uint32)
    digits[:, 0] = table[values % 10_000]
    digits[:, 1] = table[values // 10_000 % 10_000]
    digits[:, 2] = table[values // 100_000_000]
    return digits.view(np.uint8).reshape(len(values), 12)[:, :_DIGITS]


@cache
def _byte_table() -> UInt32:
    """Remainder of each byte value: the table of the classic byte-wise CRC."""
    # zlib starts from all ones and complements at the end; both cancel out in a difference of two CRCs.
    return np.array([zlib.crc32(bytes([value])) ^ zlib.crc32(b"\0") for value in range(256)], np.uint32)


def _lanes() -> UInt32:
    """(4, 256): each byte value in each of the four bytes of a register, lowest first."""
    places = np.array([[0], [8], [16], [24]], np.uint32)
    lanes: UInt32 = np.arange(256, dtype=np.uint32) << places
    return lanes


@cache
def _zeros_tables(level: int) -> UInt32:
    """(4, 256): the map of 256^level zero bytes on a register, as the xor of one entry for each byte of it."""
    lanes = _lanes()
    if level == 0:
        one_byte: UInt32 = _byte_table()[lanes & np.uint32(0xFF)] ^ (lanes >> np.uint32(8))
        return one_byte
    return _apply(_shift_tables(level - 1)[255].reshape(4, 256), _apply(_zeros_tables(level - 1), lanes))


@cache
def _shift_tables(level: int) -> UInt32:
    """(256, 1024): for each count k the map of k * 256^level zero bytes; 1 MiB, made at first use."""
    step = _zeros_tables(level)
    tables = np.empty((256, 1024), np.uint32)
    tables[0] = _lanes().ravel()
    for count in range(1, 256):
        tables[count] = _apply(step, tables[count - 1])
    return tables


def _apply(tables: UInt32, registers: UInt32) -> UInt32:
    """One linear map, (4, 256), on many registers of any shape."""
    lanes = np.ascontiguousarray(registers, "<u4")[..., np.newaxis].view(np.uint8)
    mapped: UInt32 = (
        tables[0][lanes[..., 0]] ^ tables[1][lanes[..., 1]] ^ tables[2][lanes[..., 2]] ^ tables[3][lanes[..., 3]]
    )
    return mapped


def _apply_each(tables: UInt32, counts: Int64, registers: UInt32) -> UInt32:
    """The map `tables[counts[i]]` on `registers[i]`."""
    flat = tables.ravel()
    bases = counts << 10
    lanes = np.ascontiguousarray(registers, "<u4").view(np.uint8).reshape(-1, 4)
    mapped: UInt32 = flat[bases + lanes[:, 0]]
    for lane in range(1, 4):
        mapped ^= flat[bases + lanes[:, lane] + (lane << 8)]
    return mapped


@cache
def _position_table(bytes_behind: int) -> UInt32:
    """(256,): remainder of a byte that `bytes_behind` zero bytes follow."""
    return shift_crcs(_byte_table(), np.full(256, bytes_behind, np.int64))


def _add_field(remainders: UInt32, values: Int64, bytes_behind: int) -> None:
    """Xor the remainder of a big-endian int64, which `bytes_behind` zero bytes follow, into `remainders`, in place."""
    if len(values) == 0:
        return
    # The same for all rows, as storeTimestamp under the lock: one row is enough.
    constant = bool((values == values[0]).all())
    rows = values[:1] if constant else values
    lanes = np.ascontiguousarray(rows, "<i8").view(np.uint8).reshape(len(rows), 8)
    seen = int(np.bitwise_or.reduce(rows)) & ((1 << 64) - 1)
    for lane in range(8):
        if seen >> 8 * lane & 0xFF:  # a byte that is zero in every row adds nothing
            remainders ^= _position_table(bytes_behind + lane)[lanes[:, lane]]


@cache
def _four_digits() -> UInt32:
    """(10000,): four ASCII digits of a number, least significant first in memory."""
    numbers = np.arange(10_000, dtype=np.int64)[:, np.newaxis]
    digits = (numbers // np.array([1, 10, 100, 1000]) % 10 + ord("0")).astype(np.uint8)
    table: UInt32 = digits.view(np.uint32).ravel()
    return table
