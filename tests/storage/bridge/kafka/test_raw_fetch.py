"""What kafka-python's fetcher makes of our record sets, without a broker: responses are put into its queue by hand.

These tests also run with the oldest kafka-python that is allowed: test_internals.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from kafka.consumer.fetcher import CompletedFetch, Fetcher
from kafka.consumer.subscription_state import SubscriptionState
from kafka.structs import TopicPartition

from helpers.kafka_rows import log, marker, row, rows, stored, table, transactional
from helpers.kafka_rows import one_batch as encoded
from rmq_store.bridge.kafka import raw_fetch
from rmq_store.bridge.kafka.client import Partition
from rmq_store.bridge.record_batches import batches
from rmq_store.bridge.record_batches.schema import Fetched
from rmq_store.errors import CorruptBatchError

A, B = TopicPartition("topic", 0), TopicPartition("topic", 1)


class Consumer:
    """The part of a KafkaConsumer behind its connections."""

    def __init__(self, isolation_level: str = "read_committed") -> None:
        self.subscriptions = SubscriptionState("none")
        self.subscriptions.assign_from_user([A, B])
        self._fetcher = Fetcher(MagicMock(), self.subscriptions, isolation_level=isolation_level, metrics=None)
        self.seek(A, 0)
        self.seek(B, 0)
        raw_fetch.attach(self)

    def seek(self, place: Any, offset: int) -> None:
        self.subscriptions.seek(place, offset)

    def position(self, place: Any) -> int:
        position: int = self.subscriptions.assignment[place].position.offset
        return position

    def receive(
        self, place: Any, data: bytes, offset: int = 0, aborted: Sequence[tuple[int, int]] = (), version: int = 12
    ) -> None:
        """A response to a fetch at `offset`."""
        answer = SimpleNamespace(
            error_code=0,
            high_watermark=1000,
            records=data,
            aborted_transactions=[SimpleNamespace(producer_id=one, first_offset=first) for one, first in aborted],
            diverging_epoch=None,
            preferred_read_replica=-1,
            current_leader=None,
        )
        self._fetcher._completed_fetches.append(CompletedFetch(place, offset, version, answer, None))

    def poll(self, timeout_ms: int, max_records: int) -> Any:
        return self._fetcher.fetched_records(max_records)[0]


def poll(consumer: Any, max_fetched: int = 100) -> dict[Partition, Fetched]:
    return raw_fetch.poll(consumer, 0, max_fetched)


def test_each_partition_gives_its_rows_at_once_and_its_position_moves() -> None:
    consumer = Consumer()
    consumer.receive(A, log(rows(50), "lz4", 500))
    consumer.receive(B, log(rows(3)))
    found = poll(consumer)
    assert found == {
        Partition("topic", 0): Fetched(table(rows(50)), 50, 7),
        Partition(*B): Fetched(table(rows(3)), 3, 7),
    }
    assert (consumer.position(A), consumer.position(B)) == (50, 3)
    assert consumer.subscriptions.assignment[A].position.leader_epoch == 7
    assert poll(consumer) == {}


def test_no_more_partitions_are_decoded_than_wanted() -> None:
    consumer = Consumer()
    consumer.receive(A, log(rows(50)))
    consumer.receive(B, log(rows(3)))
    assert poll(consumer, 1).keys() == {Partition(*A)}
    assert (consumer.position(A), consumer.position(B)) == (50, 0)
    assert poll(consumer, 1).keys() == {Partition(*B)}


def test_markers_alone_move_the_position() -> None:
    consumer = Consumer()
    consumer.receive(A, transactional(rows(5), 11) + marker(5, 11, 0), aborted=[(11, 0)])
    assert poll(consumer) == {Partition(*A): Fetched(table([]), 6, 7)}
    assert consumer.position(A) == 6


def test_uncommitted_records_are_read_only_if_asked_for() -> None:
    data = transactional(rows(5), 11) + marker(5, 11, 0)
    consumer = Consumer("read_uncommitted")
    consumer.receive(A, data, aborted=[(11, 0)])
    assert poll(consumer)[Partition(*A)].rows.num_rows == 5


def test_an_answer_without_records_gives_nothing() -> None:
    consumer = Consumer()
    consumer.receive(A, b"")
    assert poll(consumer) == {}
    assert consumer.position(A) == 0


def test_a_broken_batch_is_an_error_at_every_poll_until_it_is_passed() -> None:
    consumer = Consumer()
    broken = bytearray(log(rows(5, 3)))
    broken[-1] ^= 1
    consumer.receive(A, log(rows(3)) + bytes(broken))
    for _ in range(3):
        with pytest.raises(CorruptBatchError, match="offset 3 of partition 0 of topic topic is broken") as caught:
            poll(consumer)
        assert (caught.value.partition, caught.value.offset, caught.value.next_offset) == (("topic", 0), 3, 8)
        assert consumer.position(A) == 0
    consumer.seek(A, 8)
    consumer.receive(A, log(rows(2, 8)), 8)
    assert poll(consumer)[Partition(*A)].next_offset == 10


def test_the_others_come_before_the_error() -> None:
    consumer = Consumer()
    broken = bytearray(log(rows(5)))
    broken[-1] ^= 1
    consumer.receive(A, log(rows(3)))
    consumer.receive(B, bytes(broken))
    assert poll(consumer).keys() == {Partition(*A)}
    with pytest.raises(CorruptBatchError):
        poll(consumer)
    assert (consumer.position(A), consumer.position(B)) == (3, 0)


def test_a_paused_partition_keeps_its_response() -> None:
    consumer = Consumer()
    consumer.receive(A, log(rows(5)))
    consumer.subscriptions.pause(A)
    assert poll(consumer) == {}
    consumer.subscriptions.resume(A)
    assert poll(consumer)[Partition(*A)].next_offset == 5


def test_a_response_that_was_sought_away_from_is_dropped() -> None:
    consumer = Consumer()
    consumer.receive(A, log(rows(5)))
    consumer.seek(A, 3)
    assert poll(consumer) == {}
    consumer.receive(A, log(rows(5)), 3)
    assert poll(consumer) == {Partition(*A): Fetched(table(rows(5)[3:]), 5, 7)}


def test_a_response_of_a_partition_that_was_taken_away_is_dropped() -> None:
    consumer = Consumer()
    consumer.receive(A, log(rows(5)))
    consumer.subscriptions.assign_from_user([B])
    assert poll(consumer) == {}


def test_what_is_unpacked_at_once_is_bounded_and_the_rest_comes_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw_fetch, "MAX_PLAIN_BYTES", 12_000)
    data = b"".join(log([row(offset, bytes(5000))], "zstd") for offset in range(10))
    consumer = Consumer()
    consumer.receive(A, data)
    sizes = []
    while found := poll(consumer, 1):
        sizes.append(found[Partition(*A)].rows.num_rows)
        assert consumer.position(A) == found[Partition(*A)].next_offset == sum(sizes)
    assert sum(sizes) == 10
    assert max(sizes) <= 3


def test_parts_of_one_partition_are_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw_fetch, "MAX_PLAIN_BYTES", 100)
    records = [row(offset, bytes(90)) for offset in range(9)]
    consumer = Consumer()
    consumer.receive(A, b"".join(log([one]) for one in records) + marker(9, 1, 1))
    assert poll(consumer) == {Partition(*A): Fetched(table(records), 10, 7)}


def test_compacted_offsets_at_the_end_are_passed() -> None:
    consumer = Consumer()
    consumer.receive(A, stored(encoded(rows(2)), 0, last_offset_delta=41))
    assert poll(consumer)[Partition(*A)].next_offset == consumer.position(A) == 42


def test_a_response_is_held_no_longer_than_needed() -> None:
    consumer = Consumer()
    consumer.receive(A, log(rows(5)))
    part = consumer._fetcher._parse_fetched_data(consumer._fetcher._completed_fetches.popleft())
    assert part
    part.take(1)
    assert not part
    assert part.take(1) == []
    assert batches.MAX_PLAIN_BYTES == raw_fetch.MAX_PLAIN_BYTES
