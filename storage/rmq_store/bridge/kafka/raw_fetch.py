"""A KafkaConsumer that returns Arrow rows: inside of `poll` it decodes whole record sets by `record_batches.batches`.

kafka-python's fetcher turns each response of a partition into an object of its class `PartitionRecords`, takes from it
the records that `poll` returns, and then moves the position to the object's `next_fetch_offset`. `attach` replaces this
class by one that returns a single `Fetched` instead of thousands of ConsumerRecords. Everything around it stays:
sessions, epochs, pauses, seeks. A response whose partition was revoked, or sought elsewhere, is never decoded.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from kafka import KafkaConsumer

from rmq_store.bridge.kafka.client import Partition
from rmq_store.bridge.kafka.internals import PartitionRecords
from rmq_store.bridge.record_batches.batches import MAX_PLAIN_BYTES, decode_some
from rmq_store.bridge.record_batches.schema import Fetched
from rmq_store.errors import CorruptBatchError

_READ_COMMITTED = 1


class RawPartitionRecords(PartitionRecords):  # type: ignore[misc]
    """One response of one partition: `take` returns the rest of it as at most one `Fetched`."""

    next_fetch_offset: int
    leader_epoch: int

    def __init__(
        self, fetch_offset: int, tp: Any, records: Any, *args: Any, aborted_transactions: Any = None, **settings: Any
    ) -> None:
        super().__init__(fetch_offset, tp, records, *args, aborted_transactions=aborted_transactions, **settings)
        self._data = memoryview(records._buffer)
        self._aborted = None
        if self.isolation_level == _READ_COMMITTED:
            self._aborted = [(one.producer_id, one.first_offset) for one in aborted_transactions or ()]

    def take(self, n: int | None = None) -> list[Fetched]:
        """The next rows, decoded; none if nothing is left. At a broken batch each call fails."""
        if not self:
            return []
        try:
            fetched, is_all = decode_some(
                self._data,
                self.next_fetch_offset,
                self._aborted,
                check_crcs=self.check_crcs,
                max_plain_bytes=MAX_PLAIN_BYTES,
            )
        except CorruptBatchError as error:
            raise CorruptBatchError(
                offset=error.offset,
                reason=error.reason,
                next_offset=error.next_offset,
                partition=(self.topic_partition.topic, self.topic_partition.partition),
            ) from error
        has_moved = fetched.next_offset > self.next_fetch_offset
        self.next_fetch_offset = fetched.next_offset
        self.leader_epoch = max(self.leader_epoch, fetched.leader_epoch)
        self.records_read += fetched.rows.num_rows
        self.bytes_read += len(self._data)
        if is_all or not has_moved:
            self.drain()
            self._data = memoryview(b"")
        return [fetched] if has_moved else []


def attach(consumer: KafkaConsumer) -> None:
    """Make `poll` below return this consumer's records, without deserializers. Call it before the first poll."""
    consumer._fetcher.PartitionRecords = RawPartitionRecords


def poll(consumer: KafkaConsumer, timeout_ms: int, max_fetched: int) -> dict[Partition, Fetched]:
    """Fetched rows of an attached consumer; empty after `timeout_ms`. Positions move to the end of these rows.

    At most `max_fetched` responses of partitions are decoded, each with about `batches.MAX_PLAIN_BYTES` of records at
    most. A partition whose position moved without records (markers, aborted ones, compaction) has a `Fetched` without
    rows.

    Raises:
        CorruptBatchError: a batch of `partition` is broken. Its position stays before the broken batch's response:
            another
            poll fails again, until the caller seeks beyond `next_offset`.
        KafkaError: as KafkaConsumer's poll.
    """
    found = consumer.poll(timeout_ms=timeout_ms, max_records=max_fetched)
    return {Partition(place.topic, place.partition): _joined(parts) for place, parts in found.items()}


def _joined(parts: list[Fetched]) -> Fetched:
    if len(parts) == 1:
        return parts[0]
    table = pa.Table.from_batches([part.rows for part in parts]).combine_chunks()
    rows = table.to_batches()[0] if table.num_rows else parts[0].rows
    return Fetched(rows, parts[-1].next_offset, max(part.leader_epoch for part in parts))
