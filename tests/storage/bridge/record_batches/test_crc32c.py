"""CRC-32C: by the processor, by tables, by numpy."""

from __future__ import annotations

from random import Random

import crc32c as library
import pytest

from rmq_store.bridge.record_batches.crc32c import crc32c, crc32c_in_python
from rmq_store.format.bytes import native

SIZES = [*range(40), 255, 256, 4095, 4096, 4097, 5000, 65_537, 1_000_003]


@pytest.mark.parametrize("size", SIZES)
def test_all_ways_agree_with_the_library(size: int) -> None:
    data = Random(size).randbytes(size)
    expected = library.crc32c(data)
    assert crc32c_in_python(data) == expected
    assert crc32c(memoryview(data)) == expected


@pytest.mark.skipif(not native.LOADED, reason="no extension")
@pytest.mark.parametrize("size", SIZES)
def test_tables_agree_with_the_processor(size: int) -> None:
    data = memoryview(Random(size).randbytes(size + 3))[3:]
    try:
        assert not native.functions.crc32c_by_processor(False)
        by_tables = native.functions.crc32c(data)
    finally:
        native.functions.crc32c_by_processor(True)
    assert by_tables == library.crc32c(data)


def test_the_value_of_the_standard() -> None:
    """RFC 3720, B.4."""
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"123456789") == crc32c_in_python(b"123456789") == 0xE3069283
