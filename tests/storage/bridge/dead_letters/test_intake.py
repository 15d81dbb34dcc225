"""Topics of Kafka read into a store: each record once, whatever happens in between."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from helpers.kafka_in_memory import MemoryAdministration, MemoryKafka, MemoryReader
from rmq_store import MirrorConflictError, MirrorSourceError, Store, UsageError
from rmq_store.bridge.dead_letters.intake import Intake
from rmq_store.bridge.kafka.client import Partition


@pytest.fixture
def store(scratch: Path) -> Iterator[Store]:
    with Store.open(scratch / "store", create=True) as opened:
        opened.create_topic("Taken", 1)
        yield opened


@pytest.fixture
def kafka() -> MemoryKafka:
    made = MemoryKafka()
    made.create_topic("letters", 2)
    return made


def as_messages(rows: pa.RecordBatch, partition: Partition, topic_id: str) -> list[pa.RecordBatch]:
    count = rows.num_rows
    return [
        pa.record_batch(
            {"topic": ["Taken"] * count, "body": rows["value"], "queueId": pa.array([0] * count, pa.int32())}
        )
    ]


def intake(store: Store, kafka: MemoryKafka, target: str = "Taken", **options: Any) -> Intake:
    made = Intake(
        store, MemoryReader(kafka, 3), MemoryAdministration(kafka), "mine", "rocketmq-1", ["letters"], target,
        as_messages, **options,
    )  # fmt: skip
    made.refresh_topics()
    return made


def taken(store: Store) -> list[bytes]:
    first, last = store.queue_range("Taken", 0)
    return [
        body for batch in store.read("Taken", 0, first, last, columns=["body"]) for body in batch["body"].to_pylist()
    ]


def values(*numbers: int) -> list[Any]:
    return [(None, b"%d" % number, []) for number in numbers]


def test_each_record_comes_once_over_restarts(store: Store, kafka: MemoryKafka) -> None:
    kafka.produce("letters", *values(*range(7)))
    kafka.produce("letters", *values(70), partition=1)
    assert intake(store, kafka).poll(0) == 4  # and dies
    second = intake(store, kafka)
    while second.poll(0):
        pass
    kafka.produce("letters", *values(7))
    assert intake(store, kafka).poll(0) == 1
    assert sorted(taken(store)) == sorted([b"0", b"1", b"2", b"3", b"4", b"5", b"6", b"7", b"70"])


def test_two_of_one_name_do_not_both_append(store: Store, kafka: MemoryKafka) -> None:
    kafka.produce("letters", *values(0, 1))
    first, second = intake(store, kafka), intake(store, kafka)
    assert first.poll(0) == 2
    with pytest.raises(MirrorConflictError):
        second.poll(0)
    assert taken(store) == [b"0", b"1"]


def test_markers_move_the_position_that_is_written_at_the_end(store: Store, kafka: MemoryKafka) -> None:
    kafka.logs[Partition("letters", 0)] += [None] * 5
    reading = intake(store, kafka)
    assert reading.poll(0) == 0
    assert reading.next_offset(Partition("letters", 0)) == 3
    reading.poll(0)
    reading.write_positions()
    assert intake(store, kafka).next_offset(Partition("letters", 0)) == 5


def test_partitions_that_come_later_are_read_from_their_beginning(store: Store, kafka: MemoryKafka) -> None:
    reading = intake(store, kafka)
    topic = kafka.topics["letters"]
    kafka.topics["letters"] = type(topic)(topic.name, topic.topic_id, 3)
    kafka.produce("letters", *values(1), partition=2)
    reading.refresh_topics()
    assert reading.poll(0) == 1
    assert len(reading.partitions()) == 3


def test_a_topic_made_again_is_not_taken_for_the_old_one(store: Store, kafka: MemoryKafka) -> None:
    intake(store, kafka)
    kafka.create_topic("letters", 2)
    with pytest.raises(MirrorSourceError, match="deleted and made again"):
        intake(store, kafka)


def test_another_target_needs_another_name(store: Store, kafka: MemoryKafka) -> None:
    intake(store, kafka)
    with pytest.raises(UsageError, match="another --name"):
        intake(store, kafka, target="Other")


def test_a_missing_topic_is_named(store: Store, kafka: MemoryKafka) -> None:
    del kafka.topics["letters"]
    with pytest.raises(UsageError, match="no topic 'letters'"):
        intake(store, kafka)


def test_what_retention_took_stops_it_unless_it_is_to_be_counted(store: Store, kafka: MemoryKafka) -> None:
    kafka.produce("letters", *values(*range(9)))
    intake(store, kafka).poll(0)
    kafka.trim("letters", 7)
    with pytest.raises(MirrorSourceError, match="--on-data-loss count"):
        intake(store, kafka).poll(0)
    counting = intake(store, kafka, count_losses=True)
    assert (counting.poll(0), counting.lost_count) == (0, 4)
    counting.poll(0)
    assert taken(store) == [b"0", b"1", b"2", b"7", b"8"]


def test_a_partition_that_became_shorter_is_never_begun_again(store: Store, kafka: MemoryKafka) -> None:
    kafka.produce("letters", *values(1, 2, 3))
    intake(store, kafka).poll(0)
    del kafka.logs[Partition("letters", 0)][1:]
    with pytest.raises(MirrorSourceError, match="truncated"):
        intake(store, kafka, count_losses=True).poll(0)
