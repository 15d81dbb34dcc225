"""Objects to a concurrent listener: `consume_concurrently` for messages that are sent back one at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rmq_store.client.backend import Backend, MessageExt, MessageQueue
from rmq_store.client.consume_concurrently import EXPIRED_DELAY_LEVEL, ConsumeConcurrentlyService
from rmq_store.client.consumer_config import PushConsumerConfig
from rmq_store.client.executor import Executor
from rmq_store.client.listener import ConsumeConcurrentlyContext, MessageListenerConcurrently
from rmq_store.client.message_batch import MessageBatch
from rmq_store.client.offset_store import OffsetStore
from rmq_store.client.process_queue import Batch, ProcessQueue
from rmq_store.client.rebalance import Assignment
from rmq_store.client.stored_messages import MessageRows


class ConsumeMessagesService(ConsumeConcurrentlyService[Sequence[MessageExt]]):
    """For a listener that takes objects."""

    def __init__(
        self,
        listener: MessageListenerConcurrently,
        group: str,
        config: PushConsumerConfig,
        executor: Executor,
        backend: Backend,
        offsets: OffsetStore,
    ) -> None:
        super().__init__(group, config, executor, backend, offsets)
        self._listener = listener

    def submit(
        self, assignment: Assignment[ProcessQueue[Sequence[MessageExt]]], messages: Sequence[MessageRows]
    ) -> None:
        """Consume messages that were just pulled, in batches, which are of one pull of pull_batch_size each."""
        pull_size, size = self._config.pull_batch_size, self._config.consume_message_batch_max_size
        for rows in messages:
            for first in range(0, len(rows), pull_size):
                behind = min(first + pull_size, len(rows))
                for start in range(first, behind, size):
                    self._add(assignment, MessageBatch(rows, start, min(start + size, behind)))

    def _call(self, shown: Sequence[MessageExt], context: ConsumeConcurrentlyContext) -> object:
        # The list is the listener's; what it does to it changes nothing here.
        return self._listener.consume_message(list(shown), context)

    def _failed(
        self, shown: Sequence[MessageExt], done: int, batch: Batch[Sequence[MessageExt]]
    ) -> Sequence[MessageExt]:
        return [message for message in shown[done:] if message.queue_offset >= batch.begin]

    def _send_back(
        self, failed: Sequence[MessageExt], queue: MessageQueue, delay_level: int
    ) -> Sequence[MessageExt]:
        kept = (message for message in failed if not self._sender.send_back(message, delay_level))
        return [replace(message, reconsume_times=message.reconsume_times + 1) for message in kept]

    def _send_expired_back(
        self, late: Sequence[MessageExt], queue: MessageQueue
    ) -> tuple[Sequence[MessageExt], bool]:
        taken = self._sender.send_back(late[0], EXPIRED_DELAY_LEVEL)
        return late[1:] if taken else late, taken

    def _name(self, messages: Sequence[MessageExt], queue: MessageQueue) -> str:
        return ", ".join(f"{each.msg_id} ({each.topic} {each.queue_id}:{each.queue_offset})" for each in messages)
