"""Our batches through a real broker, and what kafka-python and we read of them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import CorruptRecordError, InvalidRecordError, MessageSizeTooLargeError

import kafka_server
from kafka_rows import CODECS, rows, table
from rmq_store.bridge.kafka import raw_fetch
from rmq_store.bridge.kafka.client import Partition
from rmq_store.bridge.kafka.raw_produce import RawProducer
from rmq_store.bridge.records.batches import EncodedBatch, encode
from rmq_store.bridge.records.batches_python import Row

pytestmark = pytest.mark.slow

NOW_MS = int(time.time() * 1000)
BATCH_BYTES = 10_000
WAIT_S = 60


def records(count: int, first: int = 0) -> list[Row]:
    return [one._replace(timestamp_ms=NOW_MS + one.offset) for one in rows(count, first)]


def batches(found: list[Row], compression: str = "none") -> list[EncodedBatch]:
    return encode(table(found), compression, BATCH_BYTES)


@contextmanager
def producer(server: kafka_server.KafkaServer, **settings: Any) -> Iterator[KafkaProducer]:
    made = KafkaProducer(bootstrap_servers=server.address, acks="all", **settings)
    try:
        yield made
    finally:
        made.close(timeout=10)


@contextmanager
def consumer(server: kafka_server.KafkaServer, topic: str, offset: int = 0, **settings: Any) -> Iterator[KafkaConsumer]:
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


def read(server: kafka_server.KafkaServer, topic: str, offset: int = 0, **settings: Any) -> tuple[list[Row], int]:
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


def test_rows_of_all_compressions_come_back(kafka: kafka_server.KafkaServer) -> None:
    topic, expected = kafka.new_topic("codecs"), records(100 * len(CODECS))
    with producer(kafka) as made:
        raw = RawProducer(made)
        for number, compression in enumerate(CODECS):
            part = expected[100 * number : 100 * (number + 1)]
            sent = [raw.add(Partition(topic, 0), batch) for batch in batches(part, compression)]
            assert sent[0].wait(WAIT_S) == 100 * number
    assert read(kafka, topic) == (expected, len(expected))
    assert read(kafka, topic, 237)[0] == expected[237:]
    assert read(kafka, topic, 237, max_partition_fetch_bytes=1)[0] == expected[237:]


def test_the_broker_takes_our_compressed_batches_apart(kafka: kafka_server.KafkaServer) -> None:
    """To pack them anew it must read each record. Java then reads names of headers as UTF-8, and loses others."""
    expected = [one._replace(headers=one.headers[:1]) for one in records(60)]
    for compression in CODECS:
        topic = kafka.new_topic(
            "packed-anew", settings={"compression.type": "gzip" if compression != "gzip" else "zstd"}
        )
        with producer(kafka) as made:
            for batch in batches(expected, compression):
                RawProducer(made).add(Partition(topic, 0), batch).wait(WAIT_S)
        assert read(kafka, topic) == (expected, 60)


def test_aborted_transactions_are_not_read(kafka: kafka_server.KafkaServer) -> None:
    topic, offset, committed = kafka.new_topic("transactions"), 0, []
    with producer(kafka, transactional_id=f"tx-{topic}") as made:
        made.init_transactions()
        raw = RawProducer(made)
        for number in range(6):
            made.begin_transaction()
            part = records(20, offset)
            sent = [raw.add(Partition(topic, 0), batch) for batch in batches(part)]
            assert sent[0].wait(WAIT_S) == offset
            if number % 3 == 1:
                made.abort_transaction()
            else:
                made.commit_transaction()
                committed += part
            offset += 21  # with the marker
    assert read(kafka, topic) == (committed, offset)
    assert len(read(kafka, topic, isolation_level="read_uncommitted")[0]) == 120


def test_a_header_that_stops_kafka_python_does_not_stop_us(kafka: kafka_server.KafkaServer) -> None:
    topic, expected = kafka.new_topic("odd-names"), [records(1)[0]._replace(headers=[(b"\xff", b"value")])]
    with producer(kafka) as made:
        RawProducer(made).add(Partition(topic, 0), batches(expected)[0]).wait(WAIT_S)
    with consumer(kafka, topic) as theirs, pytest.raises(CorruptRecordError, match="UnicodeDecodeError"):
        theirs.poll(WAIT_S * 1000)
    assert read(kafka, topic) == (expected, 1)


def test_a_batch_keeps_its_sequence_numbers_across_their_end(kafka: kafka_server.KafkaServer) -> None:
    topic = kafka.new_topic("sequences")
    with producer(kafka) as made:
        raw = RawProducer(made)
        place = TopicPartition(topic, 0)
        made.partitions_for(topic)
        # A broker takes any first number of a producer that it has not met.
        made._transaction_manager.set_sequence_number(place, (1 << 31) - 3)
        counts = [2, 3, 4, 1]
        sent = [raw.add(Partition(topic, 0), batches(records(count))[0]) for count in counts]
        assert [one.wait(WAIT_S) for one in sent] == [0, 2, 5, 9]
        assert made._transaction_manager.sequence_number(place) == 7
    assert read(kafka, topic)[1] == sum(counts)


def test_what_the_broker_refuses_fails_by_name(kafka: kafka_server.KafkaServer) -> None:
    compacted = kafka.new_topic("compacted", settings={"cleanup.policy": "compact"})
    small = kafka.new_topic("small", settings={"max.message.bytes": "1000"})
    found = records(30)
    with producer(kafka) as made:
        refused = RawProducer(made).add(Partition(compacted, 0), batches(found)[0])
        with pytest.raises(InvalidRecordError):
            refused.wait(WAIT_S)
        assert refused.refused_rows() == [place for place, one in enumerate(found) if one.key is None]
    with producer(kafka) as made:
        too_large = RawProducer(made).add(Partition(small, 0), batches(records(300))[0])
        with pytest.raises(MessageSizeTooLargeError):
            too_large.wait(WAIT_S)
    assert read(kafka, compacted) == read(kafka, small) == ([], 0)
