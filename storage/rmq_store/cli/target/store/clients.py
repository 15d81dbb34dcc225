"""Stores messages in a store, and consumes them: `rmq send`, `rmq consume`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from rmq_store.cli.target.rows import SentRow

if TYPE_CHECKING:
    import pyarrow as pa

    from rmq_store import Message, Store
    from rmq_store.cli.target.view import QueueName
    from rmq_store.client import PushConsumer, PushConsumerConfig


class StoreSender:
    """See `Sender`. The store is open for writing."""

    def __init__(self, store: Store) -> None:
        self.message_bytes_max = store.config.max_message_size
        self._store = store

    def now_ms(self) -> int:
        """By the clock of the store."""
        return self._store.clock()

    def send(self, message: Message, queue: QueueName | None) -> SentRow:
        """See `Sender`."""
        sent = self._store.send(_to_queue(message, queue))
        return SentRow(
            sent.topic, None, sent.queue_id, sent.queue_offset, sent.msg_id, sent.offset_msg_id, sent.status.value
        )

    def appender(
        self, template: Message, queue: QueueName | None
    ) -> tuple[Message, Callable[[pa.RecordBatch], object]]:
        """As `Sender`; a line may name another queue."""
        return _to_queue(template, queue), lambda rows: self._store.append(rows, template.topic)


def _to_queue(message: Message, queue: QueueName | None) -> Message:
    return message if queue is None else replace(message, queue_id=int(queue))


class StoreConsuming:
    """See `Consuming`. The store is open for writing."""

    names_brokers: Final = False

    def __init__(self, store: Store) -> None:
        self._store = store

    def now_ms(self) -> int:
        """By the clock of the store."""
        return self._store.clock()

    def consumer(self, group: str, config: PushConsumerConfig) -> PushConsumer:
        """See `Consuming`."""
        from rmq_store.client import PushConsumer

        return PushConsumer(group, self._store, config)

    def is_empty(self, consumer: PushConsumer, idle_s: float) -> bool:
        """A round without messages: there was none."""
        return True
