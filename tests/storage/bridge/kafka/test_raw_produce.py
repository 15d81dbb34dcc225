"""What kafka-python's accumulator and sender make of our batches, without a broker: their steps are called by hand.

These tests also run with the oldest kafka-python that is allowed: test_internals.py.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from kafka.errors import (
    IllegalStateError,
    InvalidRecordError,
    KafkaError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    NotLeaderForPartitionError,
    TransactionAbortedError,
)
from kafka.producer.record_accumulator import RecordAccumulator
from kafka.producer.sender import Sender
from kafka.producer.transaction_manager import ProducerIdAndEpoch, TransactionManager, TransactionState
from kafka.structs import TopicPartition

from kafka_rows import log, one_batch, rows, table
from rmq_store.bridge.kafka.client import Partition
from rmq_store.bridge.kafka.raw_produce import EncodedRecords, RawProducer, Sent
from rmq_store.bridge.records.batch_header import HEADER, TRANSACTIONAL_FLAG
from rmq_store.bridge.records.batches import decode

PLACE = Partition("topic", 3)
TOPIC_PARTITION = TopicPartition(*PLACE)
NODE = 0
INT_MAX = (1 << 31) - 1


class Producer:
    """The part of a KafkaProducer behind its connections, in a transaction."""

    def __init__(self, transactional_id: str | None = "mirror") -> None:
        self.cluster = SimpleNamespace(
            leader_for_partition=lambda place: NODE,
            partitions_for_broker=lambda node: {TOPIC_PARTITION},
            request_update=MagicMock(),
        )
        self._transaction_manager = TransactionManager(transactional_id, 60_000, 0, (4, 0), self.cluster)
        self._transaction_manager.producer_id_and_epoch = ProducerIdAndEpoch(4711, 2)
        if transactional_id:
            self._transaction_manager._current_state = TransactionState.IN_TRANSACTION
            self._transaction_manager._partitions_in_transaction.add(TOPIC_PARTITION)
        settings = {"transaction_manager": self._transaction_manager, "retry_backoff_ms": 0}
        self._accumulator = RecordAccumulator(**settings)
        client = MagicMock(cluster=self.cluster)
        self._sender = Sender(client, self.cluster, self._accumulator, guarantee_message_order=True, **settings)
        self.raw = RawProducer(self)

    def partitions_for(self, topic: str) -> set[int]:
        return {PLACE.partition} if topic == PLACE.topic else set()

    def add(self, count: int = 5) -> Sent:
        return self.raw.add(PLACE, one_batch(rows(count)))

    def drain(self) -> list[Any]:
        """What the sender would send now."""
        ready, _, _ = self._accumulator.ready(self.cluster)
        drained: list[Any] = self._accumulator.drain(self.cluster, ready, 1 << 20).get(NODE, [])
        return drained

    def answer(self, batch: Any, error_code: int = 0, base_offset: int = 0, record_errors: Any = ()) -> None:
        self._accumulator.muted.add(TOPIC_PARTITION)  # as of every partition that is sent to
        self._sender._complete_batch(
            batch,
            SimpleNamespace(
                error_code=error_code, base_offset=base_offset, log_append_time_ms=-1, log_start_offset=-1,
                error_message=None, record_errors=record_errors,
            ),
        )  # fmt: skip


def fields(batch: Any) -> tuple[int, int, int, bool]:
    """Producer id, epoch, base sequence, and whether it is of a transaction; as it is sent."""
    header = HEADER.unpack_from(batch.records.buffer())
    return header[9], header[10], header[11], bool(header[5] & TRANSACTIONAL_FLAG)


def test_a_batch_is_sent_with_the_state_of_the_producer() -> None:
    producer = Producer()
    sent = producer.add()
    assert not sent.is_done
    (batch,) = producer.drain()
    assert fields(batch) == (4711, 2, 0, True)
    assert decode(bytes(batch.records.buffer()), 0, []).rows.equals(table(rows(5)))
    producer.answer(batch, base_offset=1234)
    assert (sent.is_done, sent.wait(0), sent.record_count, sent.partition) == (True, 1234, 5, PLACE)
    assert not producer._accumulator.has_incomplete


def test_sequence_numbers_count_records() -> None:
    producer = Producer(None)
    for count in (5, 7, 1):
        producer.add(count)
    assert [fields(batch)[2:] for _ in range(3) for batch in producer.drain()] == [(0, False), (5, False), (12, False)]


def test_sequence_numbers_begin_anew_behind_the_last_one() -> None:
    producer = Producer()
    producer._transaction_manager.set_sequence_number(TOPIC_PARTITION, INT_MAX - 2)
    for count in (2, 3, 4):
        producer.add(count)
    # The second batch has the numbers 2147483647, 0, 1.
    assert [fields(batch)[2] for _ in range(3) for batch in producer.drain()] == [INT_MAX - 2, INT_MAX, 2]


def test_a_batch_that_is_sent_again_is_the_same() -> None:
    producer = Producer()
    sent = producer.add()
    (batch,) = producer.drain()
    first = bytes(batch.records.buffer())
    producer.add(3)
    producer.answer(batch, NotLeaderForPartitionError.errno)
    producer._transaction_manager.set_sequence_number(TOPIC_PARTITION, 999)
    (again,) = producer.drain()
    assert again is batch
    assert bytes(again.records.buffer()) == first
    assert not sent.is_done
    with pytest.raises(IllegalStateError, match="keeps its producer state"):
        again.records.set_producer_state(1, 1, 1, True)
    (second,) = producer.drain()
    assert fields(second)[2] == 999


def test_a_batch_that_is_too_large_is_not_split_and_fails() -> None:
    producer = Producer()
    sent = producer.add()
    (batch,) = producer.drain()
    producer.answer(batch, MessageSizeTooLargeError.errno)
    with pytest.raises(MessageSizeTooLargeError):
        sent.wait(0)
    assert producer.drain() == []
    assert not producer._accumulator.has_incomplete
    assert producer._transaction_manager.has_abortable_error()


def test_other_batches_are_still_split() -> None:
    producer = Producer()
    for number in range(4):
        producer._accumulator.append(TOPIC_PARTITION, 0, None, b"%d" % number, [])
    (batch,) = producer.drain() or producer.drain()
    producer.answer(batch, MessageSizeTooLargeError.errno)
    assert [half.record_count for half in producer._accumulator._batches[TOPIC_PARTITION]] == [2, 2]


def test_records_that_the_broker_refuses_are_named() -> None:
    producer = Producer()
    sent = producer.add(6)
    (batch,) = producer.drain()
    producer.answer(batch, InvalidRecordError.errno, record_errors=[(1, "no key"), (4, None)])
    with pytest.raises(InvalidRecordError):
        sent.wait(0)
    assert sent.refused_rows() == [1, 4]


def test_without_names_all_records_are_refused() -> None:
    producer = Producer()
    sent = producer.add(3)
    assert sent.refused_rows() == []
    (batch,) = producer.drain()
    producer.answer(batch, InvalidRecordError.errno)
    assert sent.refused_rows() == [0, 1, 2]


def test_an_aborted_transaction_ends_what_was_not_sent() -> None:
    producer = Producer()
    first, second = producer.add(), producer.add()
    (batch,) = producer.drain()
    producer._accumulator.abort_undrained_batches(TransactionAbortedError())
    with pytest.raises(TransactionAbortedError):
        second.wait(0)
    # The first one may have been written: its answer is waited for.
    assert not first.is_done
    producer.answer(batch, base_offset=3)
    assert first.wait(0) == 3


def test_a_producer_that_is_closed_by_force_ends_all() -> None:
    producer = Producer()
    first, second = producer.add(), producer.add()
    producer.drain()
    producer._accumulator.abort_incomplete_batches()
    for sent in (first, second):
        with pytest.raises(IllegalStateError, match="closed forcefully"):
            sent.wait(0)
    producer._accumulator.close()
    with pytest.raises(IllegalStateError, match="the producer is closed"):
        producer.add()


def test_a_batch_that_waits_too_long_fails() -> None:
    producer = Producer()
    sent = producer.add()
    with pytest.raises(KafkaTimeoutError, match="no answer for a batch"):
        sent.wait(0)
    (expired,) = producer._accumulator.expired_batches(now=sent._batch.created + 121)
    producer._accumulator.muted.add(TOPIC_PARTITION)
    producer._sender._complete_batch_with_exception(expired, KafkaTimeoutError("delivery timeout"))
    with pytest.raises(KafkaTimeoutError, match="delivery timeout"):
        sent.wait(0)


def test_single_records_of_the_partition_keep_their_order() -> None:
    producer = Producer()
    producer._accumulator.append(TOPIC_PARTITION, 0, b"first", b"", [])
    producer.add(2)
    producer._accumulator.append(TOPIC_PARTITION, 0, b"last", b"", [])
    producer._accumulator.begin_flush()
    drained = [batch for _ in range(3) for batch in producer.drain()]
    keys = [decode(bytes(batch.records.buffer()), 0, []).rows.column("key").to_pylist() for batch in drained]
    assert keys == [[b"first"], [one.key for one in rows(2)], [b"last"]]
    assert [fields(batch)[2] for batch in drained] == [0, 1, 3]


def test_an_unknown_partition_is_refused() -> None:
    with pytest.raises(KafkaError, match="topic topic has no partition 7"):
        Producer().raw.add(Partition("topic", 7), one_batch(rows(1)))


def test_a_partition_becomes_part_of_the_transaction_before_it_is_sent_to() -> None:
    producer = Producer()
    producer._transaction_manager._partitions_in_transaction.clear()
    producer.add()
    assert producer._transaction_manager.has_partitions_to_add()
    assert producer.drain() == []


def test_nothing_can_be_added_outside_of_a_transaction() -> None:
    producer = Producer()
    producer._transaction_manager._current_state = TransactionState.READY
    with pytest.raises(IllegalStateError):
        producer.add()
    assert not producer._accumulator.has_incomplete


def test_metrics_see_what_was_sent() -> None:
    batch = one_batch(rows(50), "zstd")
    records = EncodedRecords(batch)
    assert records.size_in_bytes() == len(batch.data)
    assert 0 < records.compression_rate() < 1
    assert records.is_full()
    assert len(log(rows(50))) == batch.plain_bytes
