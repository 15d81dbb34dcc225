"""Record batches that are encoded already, sent by a KafkaProducer.

kafka-python's accumulator keeps batches by partition; its sender gives them producer state and sequence numbers, sends
them, and sends them again. `RawProducer.add` puts a batch of ours among them whose records are `EncodedRecords`, which
answers what a MemoryRecordsBuilder would. All around it stays as it is: retries keep their producer state, partitions
of a transaction are added before they are sent to, order is kept.

What differs: a batch that the broker finds too large is not split, since its maker has bounded it; it fails.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from kafka import KafkaProducer
from kafka.errors import IllegalStateError, KafkaError, KafkaTimeoutError
from kafka.structs import TopicPartition

from rmq_store.bridge.kafka.client import Partition
from rmq_store.bridge.kafka.internals import ProducerBatch
from rmq_store.bridge.records.batches import EncodedBatch


class EncodedRecords:
    """An encoded batch as kafka-python's accumulator and sender see it: full from the beginning."""

    def __init__(self, batch: EncodedBatch) -> None:
        self._batch = batch
        self._is_closed = False
        self.producer_id = -1
        self.producer_epoch = -1
        self.base_sequence = -1

    def append(self, timestamp: int, key: bytes | None, value: bytes | None, headers: Any = None) -> None:
        """No room: what `KafkaProducer.send` adds to the partition goes into a batch of its own."""

    def set_producer_state(
        self, producer_id: int, producer_epoch: int, base_sequence: int, is_transactional: bool
    ) -> None:
        """Called once, before the batch is sent for the first time: a batch that is sent again must stay the same, or
        the broker cannot know it again.
        """
        if self._is_closed:
            raise IllegalStateError("a batch that was sent keeps its producer state")
        self._batch.set_producer(producer_id, producer_epoch, base_sequence, is_transactional)
        self.producer_id, self.producer_epoch, self.base_sequence = producer_id, producer_epoch, base_sequence

    def close(self) -> None:
        """As often as the sender likes."""
        self._is_closed = True

    def is_full(self) -> bool:
        """Nothing is waited for: it is sent at once."""
        return True

    def next_offset(self) -> int:
        """How many records it has: that many sequence numbers it takes."""
        return self._batch.record_count

    def size_in_bytes(self) -> int:
        """As it is sent."""
        return len(self._batch.data)

    def compression_rate(self) -> float:
        """For the producer's metrics."""
        return len(self._batch.data) / self._batch.plain_bytes

    def buffer(self) -> bytearray:
        """What is sent."""
        return self._batch.data


class EncodedProducerBatch(ProducerBatch):  # type: ignore[misc]
    """A batch in the accumulator; keeps the error of the whole batch, which kafka-python gives to single records."""

    batch_error: Exception | None = None
    record_errors: Callable[[int], Exception] | None = None

    def complete_exceptionally(self, top_level_exception: Exception, record_exceptions_fn: Any) -> Any:
        """As ProducerBatch."""
        self.batch_error, self.record_errors = top_level_exception, record_exceptions_fn
        return super().complete_exceptionally(top_level_exception, record_exceptions_fn)


class Sent:
    """A batch on its way."""

    def __init__(self, partition: Partition, batch: EncodedProducerBatch) -> None:
        self.partition = partition
        self.record_count: int = batch.record_count
        self._batch = batch

    @property
    def is_done(self) -> bool:
        """Whether `wait` answers at once."""
        return bool(self._batch.is_done)

    def wait(self, timeout_s: float) -> int:
        """The offset of its first record, when the broker has answered.

        Raises:
            KafkaTimeoutError: it has not, in so many seconds; the batch is still on its way.
            KafkaError: the batch failed, or its producer was closed or its transaction aborted before it was sent.
        """
        if not self._batch.produce_future.wait(timeout_s):
            raise KafkaTimeoutError(f"no answer for a batch of {self.partition} in {timeout_s} s")
        base_offset, _, error_of = self._batch.produce_future.value
        if error_of is not None:
            raise self._batch.batch_error or error_of(0)
        return int(base_offset)

    def refused_rows(self) -> list[int]:
        """Of a batch that failed: the records that the broker named, by their place in the batch, or all of them if it
        named none (KIP-467).
        """
        error_of = self._batch.record_errors
        if error_of is None:
            return []
        # Of the others it says that they were in a batch with those, by the most general class.
        return [row for row in range(self.record_count) if type(error_of(row)) is not KafkaError]


class RawProducer:
    """Sends encoded batches by a KafkaProducer, which other records may be sent by as well."""

    def __init__(self, producer: KafkaProducer) -> None:
        self._producer = producer
        self._accumulator = producer._accumulator
        self._sender = producer._sender
        can_split = self._sender._can_split
        # On this one sender: an error of size of a batch of ours is final, as for a single record.
        self._sender._can_split = lambda batch, error: (
            not isinstance(batch, EncodedProducerBatch) and can_split(batch, error)
        )

    def add(self, partition: Partition, batch: EncodedBatch) -> Sent:
        """Send a batch, behind those that were added to the partition before. Waits for nothing but metadata, at most
        `max_block_ms`. In a transaction, the partition is made a part of it. The batch belongs to the producer now.

        kafka-python bounds nothing: the caller bounds what was added and is not answered.

        Raises:
            KafkaTimeoutError: no metadata of the topic in time.
            IllegalStateError: the producer is closed, or no transaction has begun.
            KafkaError: something of this transaction has failed already.
        """
        producer, place = self._producer, TopicPartition(*partition)
        if partition.partition not in (producer.partitions_for(partition.topic) or ()):
            raise KafkaError(f"topic {partition.topic} has no partition {partition.partition}")
        manager = producer._transaction_manager
        if manager is not None and manager.is_transactional():
            manager.maybe_add_partition_to_transaction(place)
        queued = EncodedProducerBatch(place, EncodedRecords(batch), now=time.monotonic())
        accumulator = self._accumulator
        accumulator._appends_in_progress.increment()
        try:
            with accumulator._tp_lock(place):
                if accumulator._closed:
                    raise IllegalStateError("the producer is closed")
                accumulator._batches[place].append(queued)
                accumulator._incomplete.add(queued)
        finally:
            accumulator._appends_in_progress.decrement()
        self._sender.wakeup()
        return Sent(partition, queued)
