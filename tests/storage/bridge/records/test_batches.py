"""Rows of Kafka records to record batches and back."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record import MemoryRecords
from kafka.record.memory_records import MemoryRecordsBuilder

import kafka_rows
from kafka_rows import CODECS, LARGE, log, row, rows, table
from rmq_store.bridge.records.batches import decode, encode
from rmq_store.bridge.records.batches_python import Row
from rmq_store.bridge.records.schema import RECORDS_SCHEMA
from rmq_store.format import native

WAYS = [pytest.param(True, marks=pytest.mark.skipif(not native.LOADED, reason="no extension")), False]


@pytest.fixture(params=WAYS, ids=["in C", "in Python"])
def way(request: pytest.FixtureRequest) -> object:
    with patch.object(native, "LOADED", request.param):
        yield request.param


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
    data = log(records, compression, batch_bytes)
    fetched = decode(data, 0, [])
    fetched.rows.validate(full=True)
    assert fetched.rows.equals(table(records))


@given(records=kafka_rows.records(), batch_bytes=st.sampled_from([2500, LARGE]))
@settings(max_examples=30, deadline=None)
def test_python_writes_the_same_bytes_as_the_extension(records: list[Row], batch_bytes: int) -> None:
    batches = encode(table(records), "none", batch_bytes)
    with patch.object(native, "LOADED", False):
        assert encode(table(records), "none", batch_bytes) == batches


@pytest.mark.parametrize("compression", CODECS)
def test_kafka_python_reads_what_we_write(compression: str) -> None:
    records = rows(300)
    records = [
        one._replace(headers=[(name, value) for name, value in one.headers if name != b"\xff"]) for one in records
    ]
    read = []
    for batch in MemoryRecords(log(records, compression, 5000)):
        assert batch.validate_crc()
        read += [
            Row(
                one.offset,
                one.timestamp,
                0,
                one.key,
                one.value,
                [(name.encode(), value) for name, value in one.headers],
            )
            for one in batch
        ]
    assert read == records


@pytest.mark.parametrize("codec", range(len(CODECS)))
def test_we_read_what_kafka_python_writes(codec: int) -> None:
    records = [row(offset, b"value" * 20, b"k%d" % offset, (b"h", b"%d" % offset)) for offset in range(200)]
    builder = MemoryRecordsBuilder(2, codec, LARGE)
    for one in records:
        builder.append(one.timestamp_ms, one.key, one.value, [(name.decode(), value) for name, value in one.headers])
    builder.close()
    assert decode(bytes(builder.buffer()), 0, []).rows.equals(table(records))
