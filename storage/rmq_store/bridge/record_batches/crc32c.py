"""CRC-32C (Castagnoli) of record batches; in the extension, or slower by numpy.

The slow way processes many equal stretches of the data side by side, one byte of each in a step, and then joins them.
The CRC register is linear: the effect of zero bytes on it is a table for each of its four bytes.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from rmq_store.format.bytes import native

_UInt32 = npt.NDArray[np.uint32]

_POLYNOMIAL = 0x82F63B78
_ALL = 0xFFFFFFFF
# Below this the joining costs more than the bytes.
_LANES_BYTES_MIN = 4096


def crc32c(data: bytes | bytearray | memoryview) -> int:
    """The CRC-32C of contiguous bytes."""
    return native.functions.crc32c(data) if native.LOADED else crc32c_in_python(data)


def crc32c_in_python(data: bytes | bytearray | memoryview) -> int:
    """`crc32c` without the extension."""
    text = np.frombuffer(data, np.uint8)
    register, done = _ALL, 0
    if len(text) >= _LANES_BYTES_MIN:
        width = 1 << (len(text).bit_length() // 2)
        done = len(text) // width * width
        register = _joined(register, _lane_registers(text[:done].reshape(-1, width)), width)
    table = _table_list()
    for byte in text[done:].tolist():
        register = table[(register ^ byte) & 0xFF] ^ register >> 8
    return register ^ _ALL


def _lane_registers(lanes: npt.NDArray[np.uint8]) -> _UInt32:
    """The register after each row, from 0."""
    table, registers = _table(), np.zeros(len(lanes), np.uint32)
    for column in np.ascontiguousarray(lanes.T):
        registers = table[(registers ^ column) & np.uint32(0xFF)] ^ (registers >> np.uint32(8))
    return registers


def _joined(register: int, lanes: _UInt32, width: int) -> int:
    low, second, third, high = _zeros_tables(width)
    for lane in lanes.tolist():
        first_half = low[register & 0xFF] ^ second[register >> 8 & 0xFF]
        register = first_half ^ third[register >> 16 & 0xFF] ^ high[register >> 24] ^ lane
    return register


@lru_cache(maxsize=1)
def _table() -> _UInt32:
    values = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        values = (values >> np.uint32(1)) ^ (np.uint32(_POLYNOMIAL) * (values & np.uint32(1)))
    return values


@lru_cache(maxsize=1)
def _table_list() -> list[int]:
    return [int(value) for value in _table()]


@lru_cache(maxsize=64)
def _zeros_tables(width: int) -> tuple[list[int], list[int], list[int], list[int]]:
    """The value of each byte of a register after `width` zero bytes."""
    values = np.arange(256, dtype=np.uint32)
    places = np.concatenate([values << np.uint32(8 * place) for place in range(4)])
    table = _table()
    for _ in range(width):
        places = table[places & np.uint32(0xFF)] ^ (places >> np.uint32(8))
    low, second, third, high = places.reshape(4, 256).tolist()
    return low, second, third, high
