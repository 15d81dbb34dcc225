"""Records of the real Kafka come into a store once, in their order, and the position with them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kafka_server import KafkaServer
from kafka_upstream import numbered, produce, produce_in_transactions
from rmq_store import Store, StoreConfig
from rmq_store.bridge.kafka.client import Partition
from storage.bridge.mirror.into_store_lab import copied, copy_all, options, source_offsets


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
