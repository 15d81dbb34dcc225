"""Transactions of the real Kafka: what is committed, what is not, and who is told."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Mapping

import kafka.errors as kafka_errors
import pyarrow as pa
import pytest

from helpers.kafka_server import KafkaServer
from rmq_store import (
    KafkaRefusedError,
    KafkaUnavailableError,
    MirrorConflictError,
    RecordRefusedError,
    RecordTooLargeError,
    UsageError,
)
from rmq_store.bridge.kafka.administration import KafkaPythonAdministration
from rmq_store.bridge.kafka.broker_link import ours
from rmq_store.bridge.kafka.client import Partition, Position
from rmq_store.bridge.kafka.connection import KafkaConnection
from rmq_store.bridge.kafka.reader import KafkaPythonReader
from rmq_store.bridge.kafka.writer import KafkaPythonWriter, KafkaPythonWriters
from rmq_store.bridge.record_batches.schema import RECORDS_SCHEMA

Make = Callable[..., KafkaPythonWriter]
Headers = list[tuple[bytes, bytes | None]]


@pytest.fixture
def make(kafka: KafkaServer) -> Iterator[Make]:
    """Makes writers; each has connections of its own, as those of another process."""
    opened: list[KafkaPythonWriters] = []
    administration = KafkaPythonAdministration(KafkaConnection((kafka.address,)))

    def writer(name: str, *, settings: Mapping[str, str] | None = None, **options: int | str) -> KafkaPythonWriter:
        told = administration.topic_settings if settings is None else lambda topic: settings
        writers = KafkaPythonWriters({"bootstrap_servers": [kafka.address]}, told, **options)  # type: ignore[arg-type]
        opened.append(writers)
        return writers.writer(name)

    yield writer
    for writers in opened:
        writers.close()
    administration.close()


def rows(
    *values: bytes | None, key: bytes | None = None, headers: Headers | None = None, ms: int = 0
) -> pa.RecordBatch:
    pairs = [{"name": name, "value": value} for name, value in headers or []]
    made = {"offset": 0, "timestampMs": ms or int(time.time() * 1000), "timestampType": 0, "key": key, "headers": pairs}
    return pa.RecordBatch.from_pylist([{**made, "value": value} for value in values], schema=RECORDS_SCHEMA)


def reset(kafka: KafkaServer, writer: KafkaPythonWriter) -> None:
    """Reset a writer that nobody has fenced. An old broker cannot tell, and the caller of `reset` must decide."""
    if kafka.knows_writers:
        writer.reset()
        return
    with pytest.raises(MirrorConflictError):
        writer.reset()
    writer.reset(takes_over=True)


def committed(kafka: KafkaServer, topic: str, partition: int = 0) -> list[bytes | None]:
    """The values that a reader of committed records has, to the end of the partition."""
    place = Partition(topic, partition)
    reader = KafkaPythonReader(KafkaConnection((kafka.address,)))
    writers = KafkaPythonWriters({"bootstrap_servers": [kafka.address]}, lambda topic: {})
    found: list[bytes | None] = []
    try:
        end = writers.high_watermark(place)
        reader.assign({place: Position(0)})
        stop_s = time.monotonic() + 60
        while reader.position(place) < end:
            assert time.monotonic() < stop_s, "a transaction stays open"
            for fetched in reader.poll(100).values():
                found += fetched.rows.column("value").to_pylist()
    finally:
        reader.close()
        writers.close()
    return found


def test_a_transaction_writes_to_partitions_and_tells_where_they_end(kafka: KafkaServer, make: Make) -> None:
    topic = kafka.new_topic(partition_count=2)
    writer = make(topic)
    for number in range(3):
        writer.begin()
        writer.add(Partition(topic, 0), rows(b"a%d" % number))
        writer.add(Partition(topic, 1), rows(None, b"", headers=[(b"h", None), (b"", b"\x00")]))
        writer.add(Partition(topic, 0), rows(b"b%d" % number))
        ends = writer.flush()
        # Each transaction before has left a marker in the partition.
        assert ends == {Partition(topic, 0): 3 * number + 2, Partition(topic, 1): 3 * number + 2}
        writer.commit()
    assert committed(kafka, topic, 0) == [b"a0", b"b0", b"a1", b"b1", b"a2", b"b2"]
    assert committed(kafka, topic, 1) == [None, b""] * 3


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_what_is_larger_than_a_request_comes_in_order(kafka: KafkaServer, make: Make, compression: str) -> None:
    topic = kafka.new_topic()
    writer = make(topic, compression=compression)
    values = [b"%06d" % number + bytes(50_000) for number in range(100)]
    writer.begin()
    for first in range(0, 100, 20):
        writer.add(Partition(topic, 0), rows(*values[first : first + 20]))
    writer.commit()
    assert committed(kafka, topic) == values


def test_an_aborted_transaction_is_never_seen_and_its_repetition_once(kafka: KafkaServer, make: Make) -> None:
    topic = kafka.new_topic()
    writer = make(topic)
    writer.begin()
    writer.add(Partition(topic, 0), rows(b"never"))
    writer.flush()
    epoch = writer._producer
    reset(kafka, writer)
    # A request that is still on its way somewhere cannot become part of the next transaction.
    assert epoch is not None and writer._producer is not None and writer._producer.epoch > epoch.epoch
    writer.begin()
    writer.add(Partition(topic, 0), rows(b"once"))
    writer.commit()
    assert committed(kafka, topic) == [b"once"]


def test_a_second_writer_fences_the_first_and_is_not_fenced_back(kafka: KafkaServer, make: Make) -> None:
    topic = kafka.new_topic()
    first, second = make(topic), make(topic)
    first.begin()
    first.add(Partition(topic, 0), rows(b"of the first"))
    first.flush()
    second.begin()
    with pytest.raises(KafkaUnavailableError, match="another writer has taken"):
        first.commit()
    with pytest.raises(MirrorConflictError, match="Another writer") as caught:
        first.reset()
    assert topic in str(caught.value)
    second.add(Partition(topic, 0), rows(b"of the second"))
    second.commit()
    assert committed(kafka, topic) == [b"of the second"]


def test_a_transaction_that_took_too_long_is_aborted_and_its_writer_goes_on(kafka: KafkaServer, make: Make) -> None:
    topic = kafka.new_topic()
    writer = make(topic, transaction_timeout_ms=1000)
    writer.begin()
    writer.add(Partition(topic, 0), rows(b"too long"))
    writer.flush()
    assert committed(kafka, topic) == []  # this waits until Kafka has aborted it
    with pytest.raises(KafkaUnavailableError, match="took too long"):
        writer.commit()
    reset(kafka, writer)
    writer.begin()
    writer.add(Partition(topic, 0), rows(b"again"))
    writer.commit()
    assert committed(kafka, topic) == [b"again"]


def test_a_commit_whose_answer_is_lost_is_settled_by_a_reset(
    kafka: KafkaServer, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = kafka.new_topic()
    writer = make(topic)
    end = writer._link.end

    def lost(*arguments: object, **named: object) -> None:
        end(*arguments, **named)  # type: ignore[arg-type]
        raise KafkaUnavailableError("the answer is lost")

    monkeypatch.setattr(writer._link, "end", lost)
    writer.begin()
    writer.add(Partition(topic, 0), rows(b"committed"))
    with pytest.raises(KafkaUnavailableError):
        writer.commit()
    with pytest.raises(UsageError, match="reset the writer"):
        writer.begin()
    writer.reset()
    assert committed(kafka, topic) == [b"committed"]


def test_a_commit_is_not_asked_for_if_records_failed(
    kafka: KafkaServer, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = kafka.new_topic()
    writer = make(topic)
    finish, ended = writer._link.finish, []

    def failed(started: object) -> Mapping[Partition, int]:
        finish(started)
        raise KafkaUnavailableError("a batch failed")

    monkeypatch.setattr(writer._link, "finish", failed)
    monkeypatch.setattr(writer._link, "end", lambda *arguments, **named: ended.append(named))
    writer.begin()
    writer.add(Partition(topic, 0), rows(b"x"))
    with pytest.raises(KafkaUnavailableError, match="a batch failed"):
        writer.commit()
    assert not ended


def test_batches_keep_to_what_the_topic_takes_as_it_compresses(kafka: KafkaServer, make: Make) -> None:
    topic = kafka.new_topic(settings={"max.message.bytes": "1000", "compression.type": "uncompressed"})
    writer = make(topic, compression="gzip")
    writer.begin()
    writer.add(Partition(topic, 0), rows(*[b"%d" % (number % 10) * 100 for number in range(50)]))
    with pytest.raises(RecordTooLargeError, match="1000") as caught:
        writer.add(Partition(topic, 0), rows(b"not added", bytes(2000), b"not added"))
    assert caught.value.row == 1
    writer.commit()
    assert committed(kafka, topic) == [b"%d" % (number % 10) * 100 for number in range(50)]


def test_kafkas_verdict_names_the_rows(kafka: KafkaServer, make: Make) -> None:
    compacted = kafka.new_topic(settings={"cleanup.policy": "compact"})
    # Before 4.0 any time is allowed.
    plain = kafka.new_topic(settings={} if kafka.knows_writers else {"message.timestamp.difference.max.ms": "3600000"})
    writer = make(compacted)
    writer.begin()
    writer.add(Partition(compacted, 0), rows(b"good", key=b"k"))
    writer.flush()
    writer.add(Partition(compacted, 0), pa.concat_batches([rows(b"good", key=b"k"), rows(b"without a key")]))
    with pytest.raises(RecordRefusedError, match="InvalidRecordError: ") as caught:
        writer.commit()
    assert caught.value.partition == Partition(compacted, 0)
    assert caught.value.rows == [2]
    reset(kafka, writer)
    writer.begin()
    writer.add(Partition(plain, 0), rows(b"of tomorrow", ms=int(time.time() * 1000) + 86_400_000))
    with pytest.raises(RecordRefusedError, match="timestamp") as caught:
        writer.commit()
    assert caught.value.rows == [0]
    reset(kafka, writer)
    assert committed(kafka, compacted) == committed(kafka, plain) == []


def test_a_topic_that_kafka_does_not_have_is_not_made(
    kafka: KafkaServer, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmq_store.bridge.kafka.broker_link._NEW_TOPIC_S", 0.2)
    writer = make("none", settings={})
    writer.begin()
    writer.add(Partition("none", 0), rows(b"x"))
    with pytest.raises(KafkaRefusedError, match="Make the topic"):
        writer.commit()


def test_nobody_waits_for_ever_for_a_broker_that_does_not_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(KafkaUnavailableError, match="Is it running"):
            KafkaPythonWriters({"bootstrap_servers": [address]}, lambda topic: {}, patience_ms=300)


def test_a_kafka_that_is_too_old_for_transactions_of_a_mirror_is_told() -> None:
    told = ours(kafka_errors.IncompatibleBrokerVersion("InitProducerIdRequest"), "a transaction")
    assert isinstance(told, KafkaRefusedError) and "2.7 or later" in str(told)
