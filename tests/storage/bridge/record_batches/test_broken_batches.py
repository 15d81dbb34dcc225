"""Bytes that no broker sends: each is an error with a place and a reason, the same in the extension and in Python."""

from __future__ import annotations

from random import Random
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.kafka_rows import LARGE, log, marker, one_batch, row, rows, stored, table
from rmq_store.bridge.record_batches.batch_header import HEADER, HEADER_BYTES
from rmq_store.bridge.record_batches.batches import decode, encode, seal
from rmq_store.bridge.record_batches.batches_python import REASONS
from rmq_store.errors import CorruptBatchError
from rmq_store.format.bytes import native

WAYS = [pytest.param(True, marks=pytest.mark.skipif(not native.LOADED, reason="no extension")), False]


def with_records(records: bytes, count: int = 1, last_delta: int | None = None, codec: int = 0) -> bytes:
    """A batch at offset 50 whose records are these bytes."""
    last_delta = count - 1 if last_delta is None else last_delta
    length = HEADER_BYTES - 12 + len(records)
    data = bytearray(HEADER.pack(50, length, 3, 2, 0, codec, last_delta, 0, 0, -1, -1, -1, count) + records)
    seal(data)
    return bytes(data)


def record(body: bytes) -> bytes:
    return bytes([2 * len(body)]) + body


SOUND = record(b"\x00\x00\x00\x01\x01\x00")
BROKEN = {
    "cut in the length": (b"\x80", 1, 1),
    "no record at all": (b"", 1, 1),
    "longer than the batch": (b"\x10" + SOUND[1:], 1, 1),
    "of no bytes": (b"\x00", 1, 1),
    "of a negative length": (b"\x01" + SOUND[1:], 1, 1),
    "a huge length": (b"\xfe\xff\xff\xff\x0f" + SOUND, 1, 1),
    "only attributes": (record(b"\x00"), 1, 1),
    "a key beyond its record": (record(b"\x00\x00\x00\x7e") + bytes(100), 1, 1),
    "a huge key": (record(b"\x00\x00\x00\xfe\xff\xff\xff\x0f\x01\x00"), 1, 1),
    "a value beyond its record": (record(b"\x00\x00\x00\x01\x10abc"), 1, 1),
    "headers that are not there": (record(b"\x00\x00\x00\x01\x01\x04"), 1, 1),
    "two thousand million headers": (record(b"\x00\x00\x00\x01\x01\xfe\xff\xff\xff\x0f"), 1, 1),
    "a header without a value": (record(b"\x00\x00\x00\x01\x01\x02\x02a"), 1, 1),
    "a number of six bytes": (record(b"\x00\x00\x80\x80\x80\x80\x80\x00\x01\x01\x00"), 1, 2),
    "a timestamp of eleven bytes": (record(b"\x00" + b"\x80" * 10 + b"\x00\x00\x01\x01\x00"), 1, 2),
    "bytes behind its headers": (record(b"\x00\x00\x00\x01\x01\x00!"), 1, 3),
    "a negative number of headers": (record(b"\x00\x00\x00\x01\x01\x01"), 1, 4),
    "a header without a name": (record(b"\x00\x00\x00\x01\x01\x02\x01\x01"), 1, 5),
    "an offset twice": (SOUND + SOUND, 2, 6),
    "an offset beyond the batch": (record(b"\x00\x00\x02\x01\x01\x00"), 1, 6),
    "a negative offset": (record(b"\x00\x00\x01\x01\x01\x00"), 1, 6),
    "a record too many": (SOUND + record(b"\x00\x00\x02\x01\x01\x00"), 1, 7),
}


@pytest.mark.parametrize("is_native", WAYS, ids=["in C", "in Python"])
@pytest.mark.parametrize("name", BROKEN)
def test_broken_records_are_refused_with_their_place_and_the_reason(name: str, is_native: bool) -> None:
    records, count, reason = BROKEN[name]
    with patch.object(native, "LOADED", is_native), pytest.raises(CorruptBatchError) as caught:
        decode(log(rows(50)) + with_records(records, count), 0, [])
    assert (caught.value.offset, caught.value.next_offset, caught.value.reason) == (50, 50 + count, REASONS[reason])
    assert str(caught.value) == f"the record batch at offset 50 is broken: {REASONS[reason]}"


def test_every_reason_has_a_test() -> None:
    assert {reason for _, _, reason in BROKEN.values()} == set(range(1, len(REASONS)))


def test_a_sound_record_is_read() -> None:
    assert decode(with_records(SOUND), 0, []).rows.to_pylist() == [
        {"offset": 50, "timestampMs": 0, "timestampType": 0, "key": None, "value": None, "headers": []}
    ]


def test_a_checksum_that_does_not_fit_is_an_error() -> None:
    data = log(rows(3)) + log(rows(5, 3))
    for place in (len(data) - 1, len(data) - 30):
        flipped = bytearray(data)
        flipped[place] ^= 4
        with pytest.raises(
            CorruptBatchError, match=r"offset 3 is broken: its CRC-32C is 0x[0-9a-f]{8}, and it says"
        ) as caught:
            decode(bytes(flipped), 0, [])
        assert caught.value.next_offset == 8
        # Not asked for: whatever the records say.
        with patch("rmq_store.bridge.record_batches.batches.crc32c", side_effect=AssertionError):
            assert decode(data, 0, [], check_crcs=False).rows.num_rows == 8


def test_aborted_and_control_batches_are_checked_as_well() -> None:
    flipped = bytearray(marker(0, 11, 0))
    flipped[-1] ^= 1
    with pytest.raises(CorruptBatchError, match="CRC-32C"):
        decode(bytes(flipped), 0, [])


def test_a_batch_that_lies_before_the_position_is_not_checked() -> None:
    """It was checked when its own records were read."""
    broken = bytearray(log(rows(3)))
    broken[-1] ^= 1
    assert decode(bytes(broken) + log(rows(2, 3)), 3, []).rows.num_rows == 2


@pytest.mark.parametrize(
    ("place", "value", "reason"),
    [
        (8, (-1 & 0xFFFFFFFF).to_bytes(4), "its length is -1 bytes"),
        (8, (1 << 31).to_bytes(4), "its length is -2147483648 bytes"),
        (8, (48).to_bytes(4), "its length is 48 bytes"),
        (16, b"\x03", "its format (magic 3) is not known"),
        (16, b"\xff", "its format (magic -1) is not known"),
        (0, (1).to_bytes(8), "the batch before it ends at 3"),
        (0, b"\x80" + bytes(7), "the batch before it ends at 3"),
        (0, ((1 << 63) - 2).to_bytes(8), "its header says that it has 5 records up to offset delta 4"),
        (23, b"\xff\xff\xff\xff", "its header says that it has 5 records up to offset delta -1"),
        (57, b"\x80\x00\x00\x00", "its header says that it has -2147483648 records up to offset delta 4"),
    ],
)
def test_a_broken_header_is_refused(place: int, value: bytes, reason: str) -> None:
    data = bytearray(log(rows(5, 3)))
    data[place : place + len(value)] = value
    with pytest.raises(CorruptBatchError) as caught:
        decode(log(rows(3)) + bytes(data), 0, [])
    assert caught.value.reason == reason
    assert caught.value.next_offset is None


def test_a_huge_length_is_a_batch_that_has_not_come_yet() -> None:
    data = bytearray(log(rows(5)))
    data[8:12] = ((1 << 31) - 1).to_bytes(4)
    assert decode(bytes(data), 0, []).next_offset == 0


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_a_compression_that_nobody_knows_is_refused(codec: int) -> None:
    with pytest.raises(CorruptBatchError, match=f"compression {codec} is not known"):
        decode(with_records(SOUND, codec=codec), 0, [])


def test_a_batch_that_grows_too_much_is_refused_and_can_be_passed() -> None:
    bomb = log([row(0, bytes(4 << 20))], "zstd", LARGE << 4)
    assert len(bomb) < 1000
    with pytest.raises(CorruptBatchError, match="more than 1000000 bytes when decompressed") as caught:
        decode(bomb, 0, [], max_plain_bytes=1_000_000)
    assert caught.value.next_offset == 1


def test_a_marker_without_a_type_is_refused() -> None:
    data = stored(one_batch([row(0, b"", b"\x00")]), 0, attributes=0x30, producer_id=1)
    with pytest.raises(CorruptBatchError, match="the key of its control record has no type"):
        decode(data, 0, [])


def outcome(data: bytes, is_native: bool) -> object:
    with patch.object(native, "LOADED", is_native):
        try:
            fetched = decode(data, 0, [(1, 0)], check_crcs=False, max_plain_bytes=1 << 16)
        except CorruptBatchError as error:
            return error.offset, error.reason, error.next_offset
    fetched.rows.validate(full=True)
    return fetched


@pytest.mark.skipif(not native.LOADED, reason="no extension")
@given(
    seed=st.integers(0, 1 << 32),
    changes=st.integers(1, 4),
    compression=st.sampled_from(["none", "none", "lz4", "zstd"]),
)
@settings(max_examples=150, deadline=None)
def test_damage_of_any_kind_has_the_same_outcome_in_both_ways(seed: int, changes: int, compression: str) -> None:
    random = Random(seed)
    data = bytearray(log(rows(12), compression, 300) + marker(12, 1, 0) + log(rows(6, 13), compression))
    for _ in range(changes):
        place = random.randrange(len(data))
        kind = random.randrange(4)
        if kind == 0:
            data[place] ^= 1 << random.randrange(8)
        elif kind == 1:
            data[place] = random.choice([0, 1, 0x7F, 0x80, 0xFF])
        elif kind == 2:
            del data[place : place + random.randrange(1, 9)]
        else:
            data[place:place] = random.choice([b"\xff\xff\xff\xff\x0f", b"\x80", bytes(3), random.randbytes(4)])
    assert outcome(bytes(data), True) == outcome(bytes(data), False)


def test_encoded_batches_survive_no_flipped_bit() -> None:
    (batch,) = encode(table(rows(3)), "none", LARGE)
    for place in range(21, len(batch.data)):
        flipped = bytearray(batch.data)
        flipped[place] ^= 1
        with pytest.raises(CorruptBatchError):
            decode(bytes(flipped), 0, [])
