"""Messages of magic 0 and 1, which old segments still have."""

from __future__ import annotations

import zlib

import pytest
from kafka.record.legacy_records import LegacyRecordBatchBuilder

from helpers.kafka_rows import log, row, rows, table
from rmq_store.bridge.record_batches.batches import decode
from rmq_store.bridge.record_batches.batches_python import Row
from rmq_store.errors import CorruptBatchError

GZIP, SNAPPY, LZ4 = 1, 2, 3
LOG_APPEND_TIME_FLAG = 8


def message_set(magic: int, codec: int, records: list[Row]) -> bytearray:
    """As a producer of the time made it; a compressed one as a broker stored it, with the offset of its last record."""
    builder = LegacyRecordBatchBuilder(magic, codec, 1 << 20)
    for place, one in enumerate(records):
        inner = one.offset if magic == 0 or not codec else place
        builder.append(inner, timestamp=one.timestamp_ms if magic else None, key=one.key, value=one.value)
    data: bytearray = builder.build()
    if codec:
        data[:8] = records[-1].offset.to_bytes(8)
    return data


def expected(magic: int, records: list[Row]) -> list[Row]:
    return [one if magic else one._replace(timestamp_ms=-1) for one in records]


RECORDS = [row(40), row(41, None), row(42, b"", None), row(43, b"x" * 500, b"")]


@pytest.mark.parametrize(("magic", "codec"), [(0, 0), (0, GZIP), (0, SNAPPY), (1, 0), (1, GZIP), (1, SNAPPY), (1, LZ4)])
def test_old_messages_are_read(magic: int, codec: int) -> None:
    data = bytes(message_set(magic, codec, RECORDS))
    fetched = decode(data, 40, [])
    assert fetched.rows.equals(table(expected(magic, RECORDS)))
    assert fetched.next_offset == 44
    assert decode(data, 42, []).rows.equals(table(expected(magic, RECORDS[2:])))


def sign(data: bytearray) -> None:
    data[12:16] = zlib.crc32(data[16:]).to_bytes(4)


def test_lz4_of_magic_0_is_refused_by_name() -> None:
    """Its frames have wrong checksums; nobody has written it since Kafka 0.9."""
    data = message_set(0, GZIP, RECORDS)
    data[17] = LZ4
    sign(data)
    with pytest.raises(CorruptBatchError, match="LZ4 of magic 0"):
        decode(bytes(data), 40, [])


def test_old_and_new_formats_lie_behind_each_other() -> None:
    data = bytes(message_set(1, GZIP, RECORDS)) + log(rows(3, 44)) + bytes(message_set(1, 0, [row(47)]))
    fetched = decode(data, 41, [])
    assert fetched.rows.equals(table([*RECORDS[1:], *rows(3, 44), row(47)]))
    assert (fetched.next_offset, fetched.leader_epoch) == (48, 7)


def test_log_append_time_of_an_old_batch_is_that_of_its_wrapper() -> None:
    data = message_set(1, GZIP, RECORDS)
    data[17] |= LOG_APPEND_TIME_FLAG
    data[18:26] = (4711).to_bytes(8)
    sign(data)
    fetched = decode(bytes(data), 40, [])
    assert fetched.rows.column("timestampMs").to_pylist() == [4711] * 4
    assert fetched.rows.column("timestampType").to_pylist() == [1] * 4


@pytest.mark.parametrize("codec", [0, GZIP])
@pytest.mark.parametrize("magic", [0, 1])
def test_damage_in_an_old_message_is_refused(magic: int, codec: int) -> None:
    data = bytes(message_set(magic, codec, RECORDS if codec else RECORDS[:1]))
    for place in range(16, len(data)):
        flipped = bytearray(data)
        flipped[place] ^= 1
        with pytest.raises(CorruptBatchError):
            decode(bytes(flipped), 40, [])
        try:
            decode(bytes(flipped), 40, [], check_crcs=False).rows.validate(full=True)
        except CorruptBatchError:
            continue
    for size in range(12, len(data)):
        assert decode(data[:size], 40, []).next_offset == 40
