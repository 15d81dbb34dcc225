"""Records of the real Kafka come into a store once, in their order, and the position with them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from helpers.kafka_server import KafkaServer
from helpers.kafka_upstream import numbered, produce, produce_in_transactions, producer
from rmq_store import MirrorConflictError, MirrorSourceError, Store, StoreConfig
from rmq_store.bridge.kafka.client import Partition
from rmq_store.bridge.positions.store_positions import StorePositions
from storage.bridge.kills.kill_loop import committed
from storage.bridge.mirror.into_store_lab import PATIENCE_S, copied, copy_all, mirror, options, source_offsets


@pytest.fixture
def store(scratch: Path, small: StoreConfig) -> Iterator[Store]:
    with Store.open(scratch / "store", create=True, config=small) as opened:
        yield opened


def test_records_are_copied_with_their_keys_and_headers(kafka: KafkaServer, store: Store) -> None:
    topic = kafka.new_topic(partition_count=2)
    for partition in range(2):
        produce(kafka, topic, numbered(100, 1000 * partition), partition=partition)
    report = copy_all(kafka, store, options(topic))
    assert (report.copied, report.letters, report.dropped_loops, report.lost) == (200, 0, 0, 0)
    assert report.is_caught_up and report.lag == 0
    for partition in range(2):
        found = copied(store, topic, partition)
        start = 1000 * partition
        assert [message.body for message in found] == [f"value {start + n}".encode() for n in range(100)]
        assert [message.key for message in found] == [f"k{start + n}" for n in range(100)]
        assert [message.properties["n"] for message in found] == [str(start + n) for n in range(100)]
        assert source_offsets(store, topic, partition) == list(range(100))


def test_a_second_run_goes_on_where_the_first_one_ended(kafka: KafkaServer, store: Store) -> None:
    topic = kafka.new_topic()
    produce(kafka, topic, numbered(10))
    assert copy_all(kafka, store, options(topic)).copied == 10
    assert copy_all(kafka, store, options(topic)).copied == 0
    produce(kafka, topic, numbered(5, 10))
    assert copy_all(kafka, store, options(topic)).copied == 5
    assert source_offsets(store, topic) == list(range(15))


def test_a_topic_that_ends_with_a_marker_is_caught_up(kafka: KafkaServer, store: Store) -> None:
    topic = kafka.new_topic()
    produce_in_transactions(kafka, topic, [(True, numbered(3)), (False, numbered(4, 3)), (True, numbered(2, 7))])
    report = copy_all(kafka, store, options(topic))
    assert [message.body for message in copied(store, topic)] == [f"value {n}".encode() for n in (0, 1, 2, 7, 8)]
    assert report.is_caught_up
    assert report.partitions[Partition(topic, 0)].next_offset == 12


@pytest.mark.slow
def test_a_compacted_topic_is_copied_with_its_gaps_and_tombstones(kafka: KafkaServer, store: Store) -> None:
    topic = kafka.new_topic(
        settings={
            "cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.01",
            "delete.retention.ms": "600000", "min.compaction.lag.ms": "0",
        }
    )  # fmt: skip
    for turn in range(4):
        produce(kafka, topic, [(f"k{n % 5}".encode(), f"{turn}/{n}".encode(), []) for n in range(50)])
        time.sleep(0.15)
    produce(kafka, topic, [(b"k0", None, []), (b"k9", b"last", [])])
    deadline_s = time.monotonic() + PATIENCE_S
    while len(expected := committed(kafka, topic, 0)) > 100:
        assert time.monotonic() < deadline_s, "the cleaner has not come"
        time.sleep(0.2)
    report = copy_all(kafka, store, options(topic))
    found = copied(store, topic)
    assert report.is_caught_up
    # What the cleaner takes between the two readers is in neither's way.
    offsets = source_offsets(store, topic)
    assert offsets == sorted(set(offsets)) and len(offsets) <= len(expected)
    assert (found[-2].body, found[-2].properties["KAFKA_TOMBSTONE"]) == (b"", "1")
    assert "KAFKA_TOMBSTONE" not in found[-1].properties


@pytest.mark.parametrize("compression", ["gzip", "snappy", "lz4", "zstd"])
def test_all_compressions_are_copied(compression: str, kafka: KafkaServer, store: Store) -> None:
    topic = kafka.new_topic()
    records = numbered(300)
    produce(kafka, topic, records, compression_type=compression, linger_ms=50)
    assert copy_all(kafka, store, options(topic)).copied == 300
    assert [message.body for message in copied(store, topic)] == [value for _, value, _ in records]


def test_records_of_a_megabyte_are_copied(kafka: KafkaServer, scratch: Path, small: StoreConfig) -> None:
    topic = kafka.new_topic(settings={"max.message.bytes": str(4 << 20)})
    bodies = [bytes([n]) * (1 << 20) for n in range(5)]
    produce(kafka, topic, [(b"k", body, []) for body in bodies])
    large = replace(small, mapped_file_size_commit_log=4 << 20)
    with Store.open(scratch / "large", create=True, config=large) as store:
        assert copy_all(kafka, store, options(topic)).copied == 5
        assert [message.body for message in copied(store, topic)] == bodies


@pytest.mark.slow
def test_a_topic_of_64_partitions_is_copied(kafka: KafkaServer, store: Store) -> None:
    topic = kafka.new_topic(partition_count=64)
    with producer(kafka) as made:
        for n in range(640):
            made.send(topic, key=str(n).encode(), value=str(n).encode(), partition=n % 64)
        made.flush()
    assert copy_all(kafka, store, options(topic)).copied == 640
    for partition in range(64):
        assert [int(message.body) for message in copied(store, topic, partition)] == list(range(partition, 640, 64))


def test_partitions_that_grow_are_copied_from_their_beginning(kafka: KafkaServer, store: Store) -> None:
    topic = kafka.new_topic()
    produce(kafka, topic, numbered(5))
    wanted = options(topic, start="latest")
    assert copy_all(kafka, store, wanted).copied == 0
    with kafka.admin() as admin:
        admin.create_partitions({topic: 3})
        admin.wait_for_topics([topic])
    produce(kafka, topic, numbered(5), partition=2)
    assert copy_all(kafka, store, wanted).copied == 5
    assert source_offsets(store, topic, 2) == list(range(5))


def test_a_topic_that_is_made_again_has_another_id_and_is_refused(kafka: KafkaServer, store: Store) -> None:
    topic = kafka.new_topic()
    produce(kafka, topic, numbered(5))
    copy_all(kafka, store, options(topic))
    kafka.delete_topic(topic)
    kafka.create_topic(topic)
    produce(kafka, topic, numbered(9, 100))
    with pytest.raises(MirrorSourceError, match="deleted and made again"):
        copy_all(kafka, store, options(topic))
    assert copy_all(kafka, store, options(topic, restart_replaced=True)).copied == 9
    assert source_offsets(store, topic) == [*range(5), *range(9)]


def test_what_retention_took_is_a_loss_by_option(kafka: KafkaServer, store: Store) -> None:
    topic = kafka.new_topic()
    produce(kafka, topic, numbered(10))
    with mirror(kafka, store, options(topic)):
        pass
    kafka.delete_records(topic, 0, 6)
    with pytest.raises(MirrorSourceError, match=r"\[0, 6\) were deleted"):
        copy_all(kafka, store, options(topic))
    report = copy_all(kafka, store, options(topic, on_data_loss="count"))
    assert (report.copied, report.lost) == (4, 6)
    assert source_offsets(store, topic) == [6, 7, 8, 9]


def test_of_two_mirrors_of_one_name_one_is_told(kafka: KafkaServer, store: Store) -> None:
    topic = kafka.new_topic()
    with mirror(kafka, store, options(topic)) as first:
        produce(kafka, topic, numbered(5))
        copy_all(kafka, store, options(topic))
        with pytest.raises(MirrorConflictError):
            first.run(until_caught_up=True)
    assert source_offsets(store, topic) == list(range(5))


def test_records_whose_times_are_odd_are_copied_with_their_times(kafka: KafkaServer, store: Store) -> None:
    """Clocks of producers: a day behind, at 1970, and as far ahead as Kafka takes."""
    topic = kafka.new_topic(settings={"retention.ms": "-1"})
    now_ms = time.time_ns() // 1_000_000
    times_ms = [now_ms - 86_400_000, 1, now_ms + 3_000_000]
    with producer(kafka) as made:
        for time_ms in times_ms:
            made.send(topic, b"x", timestamp_ms=time_ms)
    copy_all(kafka, store, options(topic))
    (batch,) = store.read(topic, 0, 0, 3, columns=["bornTimestamp"])
    assert [value // 1000 for value in batch.column("bornTimestamp").cast("int64").to_pylist()] == times_ms


def test_a_position_of_a_leader_that_has_lost_it_is_refused(kafka: KafkaServer, store: Store) -> None:
    """As after an unclean election: the offset is there again, but not what was copied below it (KIP-320)."""
    topic = kafka.new_topic()
    produce(kafka, topic, numbered(10))
    copy_all(kafka, store, options(topic))
    positions = StorePositions(store, "m", kafka.cluster_id)
    known = positions.read(topic)
    assert known is not None
    positions.advance(known, 0, known.partitions[0], next_offset=10, leader_epoch=5)
    produce(kafka, topic, numbered(10, 10))
    with pytest.raises(MirrorSourceError, match="unclean leader election"):
        copy_all(kafka, store, options(topic))
