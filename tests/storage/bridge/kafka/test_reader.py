"""Committed records of the real Kafka: what comes, from where, and when it is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from helpers.kafka_server import KafkaServer
from helpers.kafka_upstream import numbered, produce, produce_in_transactions
from rmq_store import KafkaOffsetError, MirrorSourceError
from rmq_store.bridge.kafka.client import Partition, Position
from rmq_store.bridge.kafka.connection import KafkaConnection
from rmq_store.bridge.kafka.reader import KafkaPythonReader
from rmq_store.bridge.record_batches.schema import CREATE_TIME, LOG_APPEND_TIME, RECORDS_SCHEMA, Fetched

PATIENCE_POLLS = 100
POLL_MS = 300


@pytest.fixture
def reader(kafka: KafkaServer) -> Iterator[KafkaPythonReader]:
    opened = KafkaPythonReader(KafkaConnection((kafka.address,)))
    yield opened
    opened.close()


def read_to(reader: KafkaPythonReader, ends: dict[Partition, int]) -> dict[Partition, list[Fetched]]:
    """Everything up to these positions."""
    found: dict[Partition, list[Fetched]] = {partition: [] for partition in ends}
    for _ in range(PATIENCE_POLLS):
        if all(reader.position(partition) >= end for partition, end in ends.items()):
            return found
        for partition, fetched in reader.poll(POLL_MS).items():
            found[partition].append(fetched)
    raise AssertionError({partition: reader.position(partition) for partition in ends})


def column(fetched: list[Fetched], name: str) -> list[object]:
    return [value for one in fetched for value in one.rows.column(name).to_pylist()]


def test_records_come_as_they_were_written(kafka: KafkaServer, reader: KafkaPythonReader) -> None:
    topic = kafka.new_topic(partition_count=2)
    written = [(b"k", b"v", [("a", b"1"), ("a", b"")]), (None, b"v", []), (b"\xff\x00", None, [("b", b"\x01")])]
    produce(kafka, topic, written, partition=1)
    partition = Partition(topic, 1)
    reader.assign({partition: Position(0)})
    fetched = read_to(reader, {partition: 3})[partition]
    assert all(one.rows.schema == RECORDS_SCHEMA for one in fetched)
    assert column(fetched, "offset") == [0, 1, 2]
    assert column(fetched, "key") == [b"k", None, b"\xff\x00"]
    assert column(fetched, "value") == [b"v", b"v", None]
    assert [[(header["name"], header["value"]) for header in row] for row in column(fetched, "headers")] == [
        [(b"a", b"1"), (b"a", b"")],
        [],
        [(b"b", b"\x01")],
    ]
    assert set(column(fetched, "timestampType")) == {CREATE_TIME}
    assert fetched[-1].next_offset == 3 and fetched[-1].leader_epoch == 0


@pytest.mark.parametrize("compression", ["gzip", "snappy", "lz4", "zstd"])
def test_all_compressions_are_read(compression: str, kafka: KafkaServer, reader: KafkaPythonReader) -> None:
    topic = kafka.new_topic()
    records = numbered(500)
    produce(kafka, topic, records, compression_type=compression)
    partition = Partition(topic, 0)
    reader.assign({partition: Position(0)})
    assert column(read_to(reader, {partition: 500})[partition], "value") == [value for _, value, _ in records]


def test_a_reader_begins_where_it_is_told_within_a_batch(kafka: KafkaServer, reader: KafkaPythonReader) -> None:
    topic = kafka.new_topic()
    produce(kafka, topic, numbered(50), linger_ms=1000, compression_type="gzip")
    partition = Partition(topic, 0)
    reader.assign({partition: Position(17)})
    assert column(read_to(reader, {partition: 50})[partition], "offset") == list(range(17, 50))


def test_aborted_records_and_markers_move_the_position_and_give_no_rows(
    kafka: KafkaServer, reader: KafkaPythonReader
) -> None:
    topic = kafka.new_topic()
    produce_in_transactions(
        kafka, topic, [(True, numbered(3)), (False, numbered(2, 3)), (True, numbered(1, 5)), (False, numbered(2, 6))]
    )
    partition = Partition(topic, 0)
    reader.assign({partition: Position(0)})
    end = reader.stable_ends([partition])[partition]
    fetched = read_to(reader, {partition: end})[partition]
    assert column(fetched, "value") == [b"value 0", b"value 1", b"value 2", b"value 5"]
    assert end == 12 == fetched[-1].next_offset == reader.position(partition)


def test_a_topic_of_append_times_says_so(kafka: KafkaServer, reader: KafkaPythonReader) -> None:
    topic = kafka.new_topic(settings={"message.timestamp.type": "LogAppendTime"})
    produce(kafka, topic, numbered(1))
    partition = Partition(topic, 0)
    reader.assign({partition: Position(0)})
    assert column(read_to(reader, {partition: 1})[partition], "timestampType") == [LOG_APPEND_TIME]


def test_a_paused_partition_gives_nothing_until_it_is_resumed(kafka: KafkaServer, reader: KafkaPythonReader) -> None:
    topic = kafka.new_topic(partition_count=2)
    for number in range(2):
        produce(kafka, topic, numbered(5), partition=number)
    paused, other = Partition(topic, 0), Partition(topic, 1)
    reader.assign({paused: Position(0), other: Position(0)})
    reader.pause([paused])
    assert column(read_to(reader, {other: 5})[other], "offset") == list(range(5))
    assert reader.position(paused) == 0
    reader.resume([paused])
    assert column(read_to(reader, {paused: 5})[paused], "offset") == list(range(5))


def test_partitions_that_go_on_are_not_read_again(kafka: KafkaServer, reader: KafkaPythonReader) -> None:
    topic = kafka.new_topic(partition_count=2)
    for number in range(2):
        produce(kafka, topic, numbered(5), partition=number)
    first, second = Partition(topic, 0), Partition(topic, 1)
    reader.assign({first: Position(0)})
    read_to(reader, {first: 5})
    reader.assign({first: Position(5, 0), second: Position(2)})
    found = read_to(reader, {first: 5, second: 5})
    assert column(found[first], "offset") == []
    assert column(found[second], "offset") == [2, 3, 4]


def test_an_offset_that_retention_took_is_an_error_with_its_place(
    kafka: KafkaServer, reader: KafkaPythonReader
) -> None:
    topic = kafka.new_topic()
    produce(kafka, topic, numbered(10))
    kafka.delete_records(topic, 0, 6)
    partition = Partition(topic, 0)
    assert reader.starts([partition]) == {partition: 6}
    reader.assign({partition: Position(2)})
    with pytest.raises(KafkaOffsetError, match=f"{topic}/0 offset 2") as told:
        poll_until(reader, lambda: False)
    assert told.value.offsets == {(topic, 0): 2}


def test_an_offset_beyond_the_end_is_an_error(kafka: KafkaServer, reader: KafkaPythonReader) -> None:
    topic = kafka.new_topic()
    produce(kafka, topic, numbered(3))
    reader.assign({Partition(topic, 0): Position(4)})
    with pytest.raises(KafkaOffsetError, match="offset 4"):
        poll_until(reader, lambda: False)


def test_a_position_of_an_epoch_that_the_leader_does_not_know_is_a_truncated_source(
    kafka: KafkaServer, reader: KafkaPythonReader
) -> None:
    """The offset is there, but not what was before it: only the epoch tells (KIP-320)."""
    topic = kafka.new_topic()
    produce(kafka, topic, numbered(10))
    reader.assign({Partition(topic, 0): Position(5, 7)})
    with pytest.raises(MirrorSourceError, match=topic):
        poll_until(reader, lambda: False)


def test_offsets_are_found_by_time(kafka: KafkaServer, reader: KafkaPythonReader) -> None:
    topic = kafka.new_topic(partition_count=2)
    offsets = produce(kafka, topic, numbered(3))
    early, late = Partition(topic, 0), Partition(topic, 1)
    assert reader.offsets_at([early, late], 0) == {early: offsets[0], late: 0}
    assert reader.offsets_at([early, late], 1 << 45) == {early: 3, late: 0}


def test_partitions_that_came_while_the_reader_lives_are_asked_for(
    kafka: KafkaServer, reader: KafkaPythonReader
) -> None:
    topic = kafka.new_topic()
    reader.assign({Partition(topic, 0): Position(0)})
    assert reader.stable_ends([Partition(topic, 0)]) == {Partition(topic, 0): 0}
    with kafka.admin() as admin:
        admin.create_partitions({topic: 4})
        admin.wait_for_topics([topic])
    produce(kafka, topic, numbered(2), partition=3)
    places = [Partition(topic, number) for number in range(4)]
    assert reader.stable_ends(places)[places[3]] == 2
    assert reader.starts(places) == dict.fromkeys(places, 0)


def poll_until(reader: KafkaPythonReader, is_done: Callable[[], bool]) -> None:
    for _ in range(PATIENCE_POLLS):
        reader.poll(POLL_MS)
        if is_done():
            return
