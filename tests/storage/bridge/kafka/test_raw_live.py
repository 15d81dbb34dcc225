"""Batches that we encode through a real broker, and what a consumer with our record sets reads of them.

These tests also run with the oldest kafka-python that is allowed: test_internals.py.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from kafka import KafkaConsumer, TopicPartition
from kafka.errors import CorruptRecordError

from helpers.kafka_rows import CODECS, rows, table
from helpers.kafka_server import KafkaServer
from rmq_store.bridge.kafka import raw_fetch
from rmq_store.bridge.kafka.client import Partition
from rmq_store.bridge.kafka.writer import KafkaPythonWriter, KafkaPythonWriters
from rmq_store.bridge.record_batches.batches_python import Row

pytestmark = pytest.mark.slow

NOW_MS = int(time.time() * 1000)
BATCH_BYTES = 4000
WAIT_S = 60


def records(count: int, first: int = 0) -> list[Row]:
    return [one._replace(timestamp_ms=NOW_MS + one.offset) for one in rows(count, first)]


@contextmanager
def writing(server: KafkaServer, name: str, compression: str = "none") -> Iterator[KafkaPythonWriter]:
    """A writer that asks no topic how it wants to be written to, and makes small batches."""
    settings = {"max.message.bytes": str(BATCH_BYTES)}
    writers = KafkaPythonWriters(
        {"bootstrap_servers": [server.address]}, lambda topic: settings, compression=compression
    )
    writer = writers.writer(name)
    try:
        yield writer
    finally:
        writer.close()
        writers.close()


def write(server: KafkaServer, topic: str, found: list[Row], compression: str = "none") -> None:
    with writing(server, topic, compression) as writer:
        writer.begin()
        writer.add(Partition(topic, 0), table(found))
        writer.commit()


@contextmanager
def consumer(server: KafkaServer, topic: str, offset: int = 0, **settings: Any) -> Iterator[KafkaConsumer]:
    settings = {
        "isolation_level": "read_committed",
        "auto_offset_reset": "none",
        "enable_auto_commit": False,
    } | settings
    made = KafkaConsumer(bootstrap_servers=server.address, **settings)
    try:
        made.assign([TopicPartition(topic, 0)])
        made.seek(TopicPartition(topic, 0), offset)
        yield made
    finally:
        made.close()


def read(server: KafkaServer, topic: str, offset: int = 0, **settings: Any) -> tuple[list[Row], int]:
    """All rows from an offset on, and the position behind them."""
    found: list[Row] = []
    with consumer(server, topic, offset, **settings) as reader:
        raw_fetch.attach(reader)
        (end,) = reader.end_offsets([TopicPartition(topic, 0)]).values()
        deadline = time.monotonic() + WAIT_S
        while offset < end and time.monotonic() < deadline:
            for fetched in raw_fetch.poll(reader, 500, 3).values():
                offset = fetched.next_offset
                for one in fetched.rows.to_pylist():
                    headers = [(pair["name"], pair["value"]) for pair in one["headers"]]
                    fields = (one["offset"], one["timestampMs"], one["timestampType"], one["key"], one["value"])
                    found.append(Row(*fields, headers))
        assert reader.position(TopicPartition(topic, 0)) == offset
    return found, offset


def test_rows_of_all_compressions_come_back(kafka: KafkaServer) -> None:
    topic, expected, first = kafka.new_topic("codecs"), [], 0
    for compression in CODECS:
        part = records(200, first)
        write(kafka, topic, part, compression)
        expected += part
        first += 201  # with the marker of the transaction
    assert read(kafka, topic) == (expected, first)
    tail = [one for one in expected if one.offset >= 337]
    assert read(kafka, topic, 337) == (tail, first)
    # One batch a response.
    assert read(kafka, topic, 337, max_partition_fetch_bytes=1) == (tail, first)


@pytest.mark.parametrize("compression", CODECS)
def test_the_broker_takes_our_compressed_batches_apart(kafka: KafkaServer, compression: str) -> None:
    """To pack them anew it must read each record. Java then reads names of headers as UTF-8, and loses others."""
    expected = [one._replace(headers=one.headers[:1]) for one in records(300)]
    other = "gzip" if compression != "gzip" else "zstd"
    topic = kafka.new_topic("packed-anew", settings={"compression.type": other})
    write(kafka, topic, expected, compression)
    assert read(kafka, topic) == (expected, 301)


def test_aborted_transactions_are_not_read(kafka: KafkaServer) -> None:
    topic, offset, committed = kafka.new_topic("transactions"), 0, []
    with writing(kafka, topic) as writer:
        for number in range(6):
            writer.begin()
            part = records(20, offset)
            writer.add(Partition(topic, 0), table(part))
            if number % 3 == 1:
                writer.flush()
                writer.reset(takes_over=not kafka.knows_writers)
            else:
                writer.commit()
                committed += part
            offset += 21  # with the marker
    assert read(kafka, topic) == (committed, offset)
    assert len(read(kafka, topic, isolation_level="read_uncommitted")[0]) == 120


def test_a_header_that_stops_kafka_python_does_not_stop_us(kafka: KafkaServer) -> None:
    topic, expected = kafka.new_topic("odd-names"), [records(1)[0]._replace(headers=[(b"\xff", b"value")])]
    write(kafka, topic, expected)
    with consumer(kafka, topic) as theirs, pytest.raises(CorruptRecordError, match="UnicodeDecodeError"):
        theirs.poll(WAIT_S * 1000)
    assert read(kafka, topic) == (expected, 2)
