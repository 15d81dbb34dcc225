"""Rows of Kafka records to record batches and back."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record import MemoryRecords
from kafka.record.memory_records import MemoryRecordsBuilder

from helpers import kafka_rows
from helpers.kafka_rows import (
    CODECS,
    LARGE,
    log,
    log_append_time,
    marker,
    one_batch,
    row,
    rows,
    stored,
    table,
    transactional,
)
from rmq_store.bridge.record_batches.batch_header import HEADER, HEADER_BYTES
from rmq_store.bridge.record_batches.batches import decode, decode_some, encode, seal
from rmq_store.bridge.record_batches.batches_python import Row
from rmq_store.bridge.record_batches.schema import RECORDS_SCHEMA, Fetched
from rmq_store.errors import RecordTooLargeError, UsageError
from rmq_store.format.bytes import native

WAYS = [pytest.param(True, marks=pytest.mark.skipif(not native.LOADED, reason="no extension")), False]
ABORT, COMMIT, SNAPSHOT_HEADER = 0, 1, 3


@pytest.fixture(params=WAYS, ids=["in C", "in Python"])
def way(request: pytest.FixtureRequest) -> object:
    with patch.object(native, "LOADED", request.param):
        yield request.param


def offsets(fetched: Fetched) -> list[int]:
    found: list[int] = fetched.rows.column("offset").to_pylist()
    return found


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("compression", CODECS)
def test_rows_come_back_as_they_were(compression: str) -> None:
    records = rows(500)
    fetched = decode(log(records, compression, 4000), 0, [])
    fetched.rows.validate(full=True)
    assert fetched.rows.schema.equals(RECORDS_SCHEMA)
    assert fetched.rows.equals(table(records))
    assert (fetched.next_offset, fetched.leader_epoch) == (500, 7)


@pytest.mark.usefixtures("way")
@given(records=kafka_rows.records(), compression=st.sampled_from(CODECS), batch_bytes=st.sampled_from([2500, LARGE]))
@settings(max_examples=30, deadline=None)
def test_any_rows_come_back_as_they_were(records: list[Row], compression: str, batch_bytes: int) -> None:
    fetched = decode(log(records, compression, batch_bytes), 0, [])
    fetched.rows.validate(full=True)
    assert fetched.rows.equals(table(records))


@pytest.mark.skipif(not native.LOADED, reason="no extension")
@given(records=kafka_rows.records(), batch_bytes=st.sampled_from([2500, LARGE]))
@settings(max_examples=30, deadline=None)
def test_python_writes_the_same_bytes_as_the_extension(records: list[Row], batch_bytes: int) -> None:
    batches = encode(table(records), "none", batch_bytes)
    with patch.object(native, "LOADED", False):
        assert encode(table(records), "none", batch_bytes) == batches


@pytest.mark.parametrize("compression", CODECS)
def test_kafka_python_reads_what_we_write(compression: str) -> None:
    records = [one._replace(headers=[pair for pair in one.headers if pair[0] != b"\xff"]) for one in rows(300)]
    read = []
    for batch in MemoryRecords(log(records, compression, 5000)):
        assert batch.validate_crc()
        for one in batch:
            headers = [(name.encode(), value) for name, value in one.headers]
            read.append(Row(one.offset, one.timestamp, 0, one.key, one.value, headers))
    assert read == records


@pytest.mark.parametrize("codec", range(len(CODECS)))
def test_we_read_what_kafka_python_writes(codec: int) -> None:
    records = [row(offset, b"value" * 20, b"k%d" % offset, (b"h", b"%d" % offset)) for offset in range(200)]
    builder = MemoryRecordsBuilder(2, codec, LARGE)
    for one in records:
        builder.append(one.timestamp_ms, one.key, one.value, [(name.decode(), value) for name, value in one.headers])
    builder.close()
    assert decode(bytes(builder.buffer()), 0, []).rows.equals(table(records))


def test_an_uncompressed_batch_is_what_kafka_python_writes() -> None:
    records = [row(offset, b"value" * offset, b"k", (b"h", b"%d" % offset)) for offset in range(70)]
    builder = MemoryRecordsBuilder(2, 0, LARGE)
    for one in records:
        builder.append(one.timestamp_ms, one.key, one.value, [(name.decode(), value) for name, value in one.headers])
    builder.set_producer_state(4711, 3, 17, True)
    builder.close()
    ours = one_batch(records)
    ours.set_producer(4711, 3, 17, True)
    # Only the partition's leader epoch differs, which producers do not know: Java says -1, kafka-python 0.
    assert ours.data[:12] + ours.data[16:] == builder.buffer()[:12] + builder.buffer()[16:]
    assert decode(bytes(ours.data), 0, []).rows.num_rows == 70


@pytest.mark.usefixtures("way")
def test_records_below_the_position_are_left_out() -> None:
    data = log(rows(30), "zstd", LARGE) + log(rows(30, 30))
    fetched = decode(data, 17, [])
    assert fetched.rows.equals(table(rows(60)[17:]))
    assert offsets(decode(data, 30, [])) == list(range(30, 60))
    assert decode(data, 60, []) == Fetched(table([]), 60, -1)


@pytest.mark.usefixtures("way")
def test_a_last_batch_that_is_cut_off_is_left_for_the_next_fetch() -> None:
    first, second = log(rows(10)), log(rows(10, 10))
    for cut in range(len(second)):
        fetched = decode(first + second[:cut], 0, [])
        assert (fetched.rows.num_rows, fetched.next_offset) == (10, 10)


@pytest.mark.usefixtures("way")
def test_a_compacted_batch_is_passed_to_its_own_last_offset() -> None:
    batch = one_batch(rows(3))
    fetched = decode(stored(batch, 100, last_offset_delta=49), 100, [])
    assert (offsets(fetched), fetched.next_offset) == ([100, 101, 102], 150)
    assert decode(stored(batch, 100, last_offset_delta=49), 120, []) == Fetched(table([]), 150, 7)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_a_batch_without_records_moves_the_position(compression: str) -> None:
    """Compaction keeps the header of a producer's last batch, and nothing else of it."""
    data = bytearray(stored(one_batch(rows(60), compression), 200, last_offset_delta=9, record_count=0)[:HEADER_BYTES])
    data[8:12] = (HEADER_BYTES - 12).to_bytes(4)
    seal(data)
    assert decode(bytes(data) + log(rows(2, 210)), 200, []).next_offset == 212
    assert decode(bytes(data), 200, []) == Fetched(table([]), 210, 7)


@pytest.mark.usefixtures("way")
def test_aborted_records_and_markers_are_left_out() -> None:
    data = (
        transactional(rows(5, 0), 11)
        + transactional(rows(5, 5), 22)
        + marker(10, 11, ABORT)
        + transactional(rows(5, 11), 11)
        + marker(16, 22, COMMIT)
        + log(rows(4, 17))
        + marker(21, 11, COMMIT)
    )
    fetched = decode(data, 0, [(11, 0)])
    assert offsets(fetched) == [*range(5, 10), *range(11, 16), *range(17, 21)]
    assert fetched.next_offset == 22
    assert offsets(decode(data, 0, None)) == [*range(10), *range(11, 16), *range(17, 21)]


@pytest.mark.usefixtures("way")
def test_a_transaction_that_was_aborted_before_the_position_does_not_hide_the_next_one_of_its_producer() -> None:
    data = transactional(rows(5, 0), 11) + marker(5, 11, ABORT) + transactional(rows(5, 6), 11) + marker(11, 11, ABORT)
    data += transactional(rows(5, 12), 11) + marker(17, 11, COMMIT)
    assert offsets(decode(data, 6, [(11, 0), (11, 6)])) == list(range(12, 17))
    assert decode(data[: len(data) // 2], 6, [(11, 0), (11, 6)]).rows.num_rows == 0


@pytest.mark.usefixtures("way")
def test_a_transaction_that_began_before_the_response_is_aborted_too() -> None:
    data = transactional(rows(5, 100), 11) + marker(105, 11, ABORT) + log(rows(1, 106))
    assert offsets(decode(data, 100, [(11, 3)])) == [106]


@pytest.mark.usefixtures("way")
def test_only_transactional_batches_of_the_producer_are_aborted() -> None:
    data = stored(one_batch(rows(3)), 0, producer_id=11) + transactional(rows(3, 3), 11)
    assert offsets(decode(data, 0, [(11, 0)])) == [0, 1, 2]


@pytest.mark.usefixtures("way")
def test_control_batches_of_other_types_are_passed() -> None:
    data = transactional(rows(2, 0), 11) + marker(2, 11, SNAPSHOT_HEADER) + transactional(rows(2, 3), 11)
    assert decode(data, 0, [(11, 0)]) == Fetched(table([]), 5, 7)
    assert offsets(decode(data, 0, [])) == [0, 1, 3, 4]


@pytest.mark.usefixtures("way")
def test_log_append_time_is_the_batches() -> None:
    fetched = decode(log_append_time(rows(3), 1234), 0, [])
    assert fetched.rows.column("timestampMs").to_pylist() == [1234] * 3
    assert fetched.rows.column("timestampType").to_pylist() == [1] * 3


@pytest.mark.usefixtures("way")
def test_timestamps_wrap_as_java_numbers_do() -> None:
    highest, lowest = (1 << 63) - 1, -(1 << 63)
    records = [row(offset)._replace(timestamp_ms=ms) for offset, ms in enumerate([highest, lowest, -1, 0])]
    assert decode(log(records), 0, []).rows.equals(table(records))


@pytest.mark.usefixtures("way")
def test_what_is_unpacked_at_once_has_an_end() -> None:
    data = b"".join(log([row(offset, bytes(5000))], "zstd") for offset in range(20))
    seen, position, is_all = [], 0, False
    while not is_all:
        fetched, is_all = decode_some(data, position, [], max_plain_bytes=12_000)
        assert 0 < fetched.rows.num_rows <= 3
        seen, position = seen + offsets(fetched), fetched.next_offset
    assert seen == list(range(20))


@pytest.mark.usefixtures("way")
def test_batches_are_as_large_as_allowed_and_no_larger() -> None:
    records = rows(400)
    batches = encode(table(records), "none", 1000)
    assert sum(batch.record_count for batch in batches) == 400
    assert all(len(batch.data) <= 1000 for batch in batches)
    assert all(len(one.data) + len(next_one.data) > 1000 for one, next_one in pairwise(batches))
    assert [batch.max_timestamp_ms for batch in batches][-1] == records[-1].timestamp_ms


@pytest.mark.usefixtures("way")
def test_a_record_that_is_too_large_is_named() -> None:
    records = [*rows(7), row(7, bytes(range(256)) * 10), *rows(3)]
    with pytest.raises(RecordTooLargeError, match="record 7 is larger than 1000 bytes") as caught:
        encode(table(records), "none", 1000)
    assert caught.value.row == 7


@pytest.mark.usefixtures("way")
def test_a_record_that_is_too_large_even_when_compressed_is_named() -> None:
    records = [row(0), row(1, Random(1).randbytes(5000))]
    with pytest.raises(RecordTooLargeError, match="record 1 is larger than 1000 bytes"):
        encode(table(records), "zstd", 1000)


@pytest.mark.usefixtures("way")
def test_a_record_that_only_fits_when_compressed_has_a_batch_of_its_own() -> None:
    records = [row(0), row(1, bytes(100_000)), row(2)]
    batches = encode(table(records), "zstd", 1000)
    assert [batch.record_count for batch in batches] == [1, 1, 1]
    assert all(len(batch.data) <= 1000 for batch in batches)
    assert decode(stored(batches[1], 1), 1, []).rows.equals(table(records[1:2]))


@pytest.mark.usefixtures("way")
def test_what_does_not_get_smaller_is_not_compressed() -> None:
    batch = one_batch([row(0, b"x")], "gzip")
    assert HEADER.unpack_from(batch.data)[5] == 0
    assert decode(bytes(batch.data), 0, []).rows.equals(table([row(0, b"x")]))


@pytest.mark.usefixtures("way")
def test_a_part_of_a_table_is_encoded_by_itself() -> None:
    records = rows(100)
    for first, count in [(0, 100), (13, 40), (99, 1), (50, 0)]:
        (data,) = [b"".join(bytes(one.data) for one in encode(table(records).slice(first, count), "none", LARGE))]
        found = decode(data, 0, []).rows
        expected = table(records[first : first + count])
        assert found.drop_columns(["offset"]).equals(expected.drop_columns(["offset"]))


@pytest.mark.usefixtures("way")
def test_a_batch_of_a_producer_says_so_and_keeps_its_records() -> None:
    batch = one_batch(rows(5), "none")
    batch.set_producer(1 << 40, 12, (1 << 31) - 1, True)
    assert HEADER.unpack_from(batch.data)[9:12] == (1 << 40, 12, (1 << 31) - 1)
    assert HEADER.unpack_from(batch.data)[5] & 0x10
    assert decode(bytes(batch.data), 0, []).rows.equals(table(rows(5)))
    batch.set_producer(1, 1, 1, False)
    assert not HEADER.unpack_from(batch.data)[5] & 0x10


def test_wrong_arguments_of_encode_are_refused() -> None:
    with pytest.raises(UsageError, match="RECORDS_SCHEMA"):
        encode(table(rows(1)).drop_columns(["key"]), "none", LARGE)
    with pytest.raises(UsageError, match="none, gzip, snappy, lz4, zstd, not 'brotli'"):
        encode(table(rows(1)), "brotli", LARGE)
    with pytest.raises(UsageError, match="61 bytes of its header"):
        encode(table(rows(1)), "none", 61)
