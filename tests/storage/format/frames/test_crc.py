"""CRCs in bulk, and filled-in fields without a second look at the frame: always what zlib says. Vector: spec 14.5."""

from __future__ import annotations

import zlib

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_store.format.frames.crc import (
    array_crcs,
    body_crc,
    body_crcs,
    crc_digits,
    extend_crc,
    patch_crcs,
    shift_crcs,
    slice_crcs,
)
from rmq_store.format.frames.frame_check import crc_property

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)


def test_body_crc_has_no_sign_bit_and_is_zero_without_a_body() -> None:
    assert body_crc(b"Hello world") == 198614610  # CRC-32 0x8BD69E52
    assert body_crc(b"Hello RocketMQ") == 1774740973
    assert body_crc(b"") == 0


@given(st.lists(st.binary(max_size=40)), st.integers(0, 3), st.booleans())
def test_crcs_of_a_column_are_those_of_its_rows(rows: list[bytes], skipped: int, large: bool) -> None:
    column = pa.array(rows, pa.large_binary() if large else pa.binary())[skipped:]
    assert array_crcs(column).tolist() == [zlib.crc32(row) for row in rows[skipped:]]
    assert body_crcs(column).tolist() == [body_crc(row) for row in rows[skipped:]]


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_a_crc_is_extended_by_what_follows(text: bytes, more: bytes) -> None:
    assert extend_crc(zlib.crc32(text), memoryview(more)) == zlib.crc32(text + more)


@pytest.mark.parametrize("size", [8191, 8192, 8193, 100_000])
def test_a_crc_is_extended_by_any_length(size: int) -> None:
    more = bytes(range(256)) * (size // 256 + 1)
    assert extend_crc(zlib.crc32(b"text"), memoryview(more)[:size]) == zlib.crc32(b"text" + more[:size])


def test_slices_go_on_from_the_crc_of_what_comes_before() -> None:
    data = np.frombuffer(b"header-body-tail", np.uint8)
    starts, ends = np.array([7, 0]), np.array([16, 6])
    assert slice_crcs(data, starts, ends).tolist() == [zlib.crc32(b"body-tail"), zlib.crc32(b"header")]
    seeds = np.array([zlib.crc32(b"header-"), zlib.crc32(b"")], np.uint32)
    assert slice_crcs(data, starts, ends, seeds).tolist() == [zlib.crc32(b"header-body-tail"), zlib.crc32(b"header")]


@given(st.binary(max_size=20), st.lists(st.binary(max_size=1000), min_size=1, max_size=5))
def test_crcs_of_two_texts_are_joined_by_a_shift(first: bytes, seconds: list[bytes]) -> None:
    shifted = shift_crcs(np.full(len(seconds), zlib.crc32(first), np.uint32), np.array(list(map(len, seconds))))
    joined = shifted ^ np.array([zlib.crc32(second) for second in seconds], np.uint32)
    assert joined.tolist() == [zlib.crc32(first + second) for second in seconds]


@pytest.mark.parametrize("count", [255, 256, 65535, 65536, 70_000, (1 << 24) + 257])
def test_shift_by_many_bytes_uses_every_level_of_the_tables(count: int) -> None:
    shifted = shift_crcs(np.array([zlib.crc32(b"x")], np.uint32), np.array([count]))
    assert shifted.tolist() == [zlib.crc32(b"x" + bytes(count)) ^ zlib.crc32(bytes(count))]


frames = st.lists(
    st.tuples(st.binary(min_size=100, max_size=400), st.booleans(), INT64, INT64, INT64), min_size=1, max_size=6
)


def filled(raw: bytes, born_bytes: int, queue_offset: int, physical_offset: int, store_timestamp: int) -> bytes:
    frame = bytearray(raw)
    frame[20:28] = queue_offset.to_bytes(8, "big", signed=True)
    frame[28:36] = physical_offset.to_bytes(8, "big", signed=True)
    frame[48 + born_bytes : 56 + born_bytes] = store_timestamp.to_bytes(8, "big", signed=True)
    return bytes(frame)


@given(frames)
def test_patched_crc_is_that_of_the_frame_with_its_fields_filled_in(
    rows: list[tuple[bytes, bool, int, int, int]],
) -> None:
    born = [20 if is_ipv6 else 8 for _, is_ipv6, *_ in rows]
    zeroed = [filled(raw, width, 0, 0, 0) for (raw, *_), width in zip(rows, born, strict=True)]
    crcs = patch_crcs(
        np.array([zlib.crc32(frame) for frame in zeroed], np.uint32),
        np.array([len(frame) for frame in zeroed]),
        np.array(born),
        *(np.array([row[column] for row in rows]) for column in (2, 3, 4)),
    )
    assert crcs.tolist() == [
        zlib.crc32(filled(raw, width, *late)) for (raw, _, *late), width in zip(rows, born, strict=True)
    ]


def test_patched_crc_takes_one_host_width_for_all() -> None:
    offsets = np.arange(3)
    crc0 = np.full(3, zlib.crc32(bytes(120)), np.uint32)
    crcs = patch_crcs(crc0, np.full(3, 120), 20, offsets, offsets, np.full(3, 7))
    assert crcs.tolist() == [zlib.crc32(filled(bytes(120), 20, offset, offset, 7)) for offset in range(3)]


def test_no_frames_have_no_crcs() -> None:
    none = np.zeros(0, np.int64)
    assert patch_crcs(np.zeros(0, np.uint32), none, 8, none, none, none).tolist() == []
    assert crc_digits(np.zeros(0, np.uint32)).shape == (0, 10)


@given(st.lists(st.integers(0, (1 << 32) - 1)))
def test_digits_are_those_of_the_scalar_crc_property(crcs: list[int]) -> None:
    digits = crc_digits(np.array(crcs, np.uint32))
    assert [row.tobytes() for row in digits] == [crc_property(crc)[9:19] for crc in crcs]


def test_digits_begin_with_the_least_significant_one() -> None:
    assert crc_digits(np.array([1480484954], np.uint32)).tobytes() == b"4594840841"
