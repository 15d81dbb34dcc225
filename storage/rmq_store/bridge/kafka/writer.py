"""`KafkaWriter` over Kafka's transaction protocol: rows become batches, batches are sent while more are added."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, Final

import pyarrow as pa

from rmq_store.bridge.kafka.broker_link import BrokerLink
from rmq_store.bridge.kafka.client import KafkaWriter, Partition
from rmq_store.bridge.kafka.transactions import Batch, Producer, TransactionLink
from rmq_store.bridge.record_batches.batches import EncodedBatch, encode
from rmq_store.errors import RecordTooLargeError, StoreError, UsageError

# Kafka aborts a transaction that lasts longer. Readers of committed records wait as long for what a killed mirror left.
TRANSACTION_TIMEOUT_MS: Final = 60_000
PATIENCE_MS: Final = 30_000
_REQUEST_BYTES: Final = 1 << 20
_MOST_UNSENT_BYTES: Final = 32 << 20
_SEQUENCES: Final = 1 << 31
# Broker's default of max.message.bytes.
_MESSAGE_BYTES: Final = 1_048_588

TopicSettings = Callable[[str], Mapping[str, str]]
"""The settings of a topic by name, as `KafkaAdministration.topic_settings` gives them."""


class KafkaPythonWriters:
    """Writers over the same connections; only one of them has a transaction open at a time.

    Batches have the topic's `compression.type`, if it sets one, else `compression`: otherwise Kafka would compress them
    again, and check their size afterwards. Once `is_stopping()`, no call waits for brokers any more.

    Raises (when constructed):
        KafkaUnavailableError: no broker answers.
    """

    def __init__(
        self,
        options: Mapping[str, Any],
        topic_settings: TopicSettings,
        *,
        compression: str = "none",
        transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS,
        patience_ms: int = PATIENCE_MS,
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._brokers = BrokerLink(options, patience_ms=patience_ms, is_stopping=is_stopping)
        self._topic_settings = topic_settings
        self._compression = compression
        self._transaction_timeout_ms = transaction_timeout_ms

    def writer(self, transactional_id: str) -> KafkaPythonWriter:
        """A writer with this id. At its first `begin` it takes the id from any other writer."""
        link = TransactionLink(self._brokers, transactional_id, transaction_timeout_ms=self._transaction_timeout_ms)
        return KafkaPythonWriter(link, self._topic_settings, self._compression)

    def high_watermark(self, partition: Partition) -> int:
        """As `KafkaWriters.high_watermark`."""
        return self._brokers.high_watermark(partition)

    def close(self) -> None:
        """Close the connections. Close the writers first."""
        self._brokers.close()


class KafkaPythonWriter(KafkaWriter):
    """A writer of `KafkaPythonWriters`. It buffers at most 32 MiB of unsent batches."""

    def __init__(self, link: TransactionLink, topic_settings: TopicSettings, compression: str) -> None:
        self._link = link
        self._topic_settings = topic_settings
        self._compression = compression
        self._limits: dict[str, tuple[str, int]] = {}
        self._producer: Producer | None = None
        self._sequences: dict[Partition, int] = defaultdict(int)
        self._is_open = False
        self._must_reset = False
        self._unsent: list[Batch] = []
        self._started: Any = None
        self._forget_transaction()

    def begin(self) -> None:
        """As `KafkaWriter.begin`."""
        if self._must_reset or self._is_open:
            raise UsageError("A transaction is open, or its end is not known: reset the writer first.")
        if self._producer is None:
            self._producer = self._link.initialise(None)
        self._is_open = True

    def add(self, partition: Partition, rows: pa.RecordBatch) -> None:
        """As `KafkaWriter.add`. `RecordRefusedError` and network errors may be about records that were added before."""
        if not self._is_open:
            raise UsageError("There is no transaction: begin one first.")
        compression, most_bytes = self._limits_of(partition.topic)
        try:
            encoded = encode(rows, compression, most_bytes)
        except RecordTooLargeError as error:
            raise RecordTooLargeError(f"Topic {partition.topic!r} of Kafka: {error}", error.row) from error
        self._queue(partition, encoded)
        if self._unsent_bytes >= _REQUEST_BYTES:
            self._must_reset = True  # until this is known to have gone well
            if self._started is None or self._started.is_done or self._unsent_bytes > _MOST_UNSENT_BYTES:
                self._finish()
                self._start()
            self._must_reset = False

    def flush(self) -> Mapping[Partition, int]:
        """As `KafkaWriter.flush`."""
        if not self._is_open:
            raise UsageError("There is no transaction: begin one first.")
        self._must_reset = True
        self._finish()
        self._start()
        self._finish()
        self._must_reset = False
        return dict(self._ends)

    def commit(self) -> None:
        """As `KafkaWriter.commit`: all replicas in sync have all records before the transaction is ended."""
        self.flush()
        assert self._producer is not None
        self._is_open, self._must_reset = False, True
        if self._added:
            self._link.end(self._producer, commit=True)
        self._must_reset = False
        self._forget_transaction()

    def reset(self, *, takes_over: bool = False) -> None:
        """As `KafkaWriter.reset`."""
        self._is_open, self._must_reset = False, True
        if self._started is not None:
            with contextlib.suppress(StoreError):  # it is why we are here
                self._link.finish(self._started)
        self._forget_transaction()
        self._limits.clear()
        self._sequences.clear()
        self._producer = self._link.initialise(None if takes_over else self._producer)
        self._must_reset = False

    def close(self) -> None:
        """As `KafkaWriter.close`. If the transaction cannot be aborted now, Kafka aborts it later."""
        if self._is_open and self._producer is not None:
            self._is_open = False
            with contextlib.suppress(StoreError):
                self._finish()
                if self._added:
                    self._link.end(self._producer, commit=False)

    def _limits_of(self, topic: str) -> tuple[str, int]:
        if topic not in self._limits:
            settings = self._topic_settings(topic)
            kept = settings.get("compression.type", "producer")
            compression = {"producer": self._compression, "uncompressed": "none"}.get(kept, kept)
            self._limits[topic] = compression, int(settings.get("max.message.bytes", _MESSAGE_BYTES))
        return self._limits[topic]

    def _queue(self, partition: Partition, encoded: list[EncodedBatch]) -> None:
        assert self._producer is not None
        for batch in encoded:
            sequence = self._sequences[partition]
            batch.set_producer(self._producer.producer_id, self._producer.epoch, sequence, transactional=True)
            self._sequences[partition] = (sequence + batch.record_count) % _SEQUENCES
            first_row = self._row_counts[partition]
            self._row_counts[partition] += batch.record_count
            self._unsent.append(Batch(partition, bytes(batch.data), range(first_row, self._row_counts[partition])))
            self._unsent_bytes += len(batch.data)

    def _start(self) -> None:
        if not self._unsent:
            return
        assert self._producer is not None
        new = {batch.partition for batch in self._unsent} - self._added
        self._started = self._link.start_producing(self._producer, new, self._unsent)
        self._added |= new
        self._unsent, self._unsent_bytes = [], 0

    def _finish(self) -> None:
        started, self._started = self._started, None
        if started is not None:
            self._ends |= self._link.finish(started)

    def _forget_transaction(self) -> None:
        self._added: set[Partition] = set()
        self._row_counts: dict[Partition, int] = defaultdict(int)
        self._unsent, self._unsent_bytes = [], 0
        self._started = None
        self._ends: dict[Partition, int] = {}
