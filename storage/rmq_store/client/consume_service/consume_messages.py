"""Passes objects to a concurrent listener: `consume_concurrently` for messages that are sent back one at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rmq_store.client.consume_service.consume_concurrently import EXPIRED_DELAY_LEVEL, ConsumeConcurrentlyService
from rmq_store.client.consume_service.message_batch import MessageBatch
from rmq_store.client.consume_service.process_queue import Batch, ProcessQueue
from rmq_store.client.consume_service.undecoded import parts
from rmq_store.client.group.rebalance import Assignment
from rmq_store.protocol.messages import MessageExt, MessageQueue
from rmq_store.protocol.stored_messages import MessageRows


class ConsumeMessagesService(ConsumeConcurrentlyService[Sequence[MessageExt]]):
    """The service for a listener that takes objects."""

    def submit(
        self, assignment: Assignment[ProcessQueue[Sequence[MessageExt]]], messages: Sequence[MessageRows]
    ) -> None:
        """Consume messages that were just pulled, in batches. Each batch comes from one pull of pull_batch_size."""
        pull_size, size = self._config.pull_batch_size, self._config.consume_message_batch_max_size
        for rows in messages:
            for first in range(0, len(rows), pull_size):
                behind = min(first + pull_size, len(rows))
                for part in parts(first, behind, size, rows.undecoded):
                    batch = MessageBatch(rows, part.first, part.behind, is_undecoded=part.is_undecoded)
                    self._add(assignment, batch)

    def _failed(
        self, shown: Sequence[MessageExt], done: int, batch: Batch[Sequence[MessageExt]]
    ) -> Sequence[MessageExt]:
        return [message for message in shown[done:] if message.queue_offset >= batch.begin]

    def _send_back(self, failed: Sequence[MessageExt], queue: MessageQueue, delay_level: int) -> Sequence[MessageExt]:
        kept = (message for message in failed if not self._sender.send_back(message, delay_level))
        return [replace(message, reconsume_times=message.reconsume_times + 1) for message in kept]

    def _send_expired_back(self, late: Sequence[MessageExt], queue: MessageQueue) -> tuple[Sequence[MessageExt], bool]:
        taken = self._sender.send_back(late[0], EXPIRED_DELAY_LEVEL)
        return late[1:] if taken else late, taken

    def _name(self, messages: Sequence[MessageExt], queue: MessageQueue) -> str:
        return ", ".join(f"{each.msg_id} ({each.topic} {each.queue_id}:{each.queue_offset})" for each in messages)
