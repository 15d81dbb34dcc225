"""Messages to a concurrent listener, and what its answer does. Source: ConsumeMessageConcurrentlyService.java.

What an answer means is in `consume_rules`. A failed message is sent back to the broker (CLUSTERING) or dropped
(BROADCASTING). One that nobody takes back counts one more retry in memory and goes to the listener again after five
seconds; until then it holds the progress back.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

from rmq_store.client.backend import Backend, MessageExt, MessageQueue
from rmq_store.client.consume_rules import EXPIRED_DELAY_LEVEL, EXPIRED_MAX, RESUBMIT_MS, done_count, run_at_rate
from rmq_store.client.consumer_config import MessageModel, PushConsumerConfig
from rmq_store.client.executor import Executor
from rmq_store.client.listener import ConsumeConcurrentlyContext, MessageListenerConcurrently
from rmq_store.client.offset_store import OffsetStore
from rmq_store.client.process_queue import Batch, ProcessQueue
from rmq_store.client.rebalance import Assignment
from rmq_store.client.send_back import MessageSender
from rmq_store.client.stored_messages import MessageRows
from rmq_store.format.properties import CONSUME_START_TIME

_log = logging.getLogger(__name__)


class ConsumeConcurrentlyService:
    """Runs a listener on batches of any queue, as many at a time as the executor has threads."""

    def __init__(
        self,
        listener: MessageListenerConcurrently,
        group: str,
        config: PushConsumerConfig,
        executor: Executor,
        backend: Backend,
        offsets: OffsetStore,
    ) -> None:
        self._listener = listener
        self._group = group
        self._config = config
        self._executor = executor
        times = config.max_reconsume_times
        self._sender = MessageSender(backend, group, None if times == -1 else times)
        self._offsets = offsets
        self._clock = backend.clock
        self._is_clustering = config.message_model is MessageModel.CLUSTERING

    def submit(self, assignment: Assignment[ProcessQueue], messages: Sequence[MessageRows]) -> None:
        """Consume messages that were just pulled, in batches, which are of one pull of pull_batch_size each."""
        process_queue, config = assignment.process_queue, self._config
        now_ms = self._clock()
        for rows in messages:
            for first in range(0, len(rows), config.pull_batch_size):
                behind = min(first + config.pull_batch_size, len(rows))
                for start in range(first, behind, config.consume_message_batch_max_size):
                    batch = Batch.of(rows, start, min(start + config.consume_message_batch_max_size, behind))
                    process_queue.put(batch)
                    if config.consume_timeout_includes_queueing:
                        batch.started_ms = now_ms
                    self._executor.submit(partial(self._wait_turn, assignment.queue, process_queue, batch))

    def clean_expired(self, assignments: Iterable[Assignment[ProcessQueue]]) -> None:
        """Send back the first messages of each queue that a listener has had for too long; it is not interrupted."""
        if not self._is_clustering:
            return
        for assignment in assignments:
            process_queue = assignment.process_queue
            for _ in range(EXPIRED_MAX):
                with process_queue.settle_lock:
                    batch = process_queue.first_expired(self._config.consume_timeout_ms, self._clock())
                    if batch is None or process_queue.dropped:
                        break
                    message, *others = process_queue.left(batch, {})
                    if not self._sender.send_back(message, EXPIRED_DELAY_LEVEL):
                        break
                    self._settle(assignment.queue, process_queue, batch, others)

    def _wait_turn(self, queue: MessageQueue, process_queue: ProcessQueue, batch: Batch) -> None:
        """Let the rate limiter decide when the batch is consumed; until then it stays in its queue."""
        if batch.count and not process_queue.dropped:
            work = partial(self._consume, queue, process_queue, batch)
            run_at_rate(self._executor, self._config.rate_limiter, batch.count, work)

    def _consume(self, queue: MessageQueue, process_queue: ProcessQueue, batch: Batch) -> None:
        if process_queue.dropped:
            return
        now_ms = self._clock()
        shown = process_queue.left(batch, {CONSUME_START_TIME: str(now_ms)})
        # Some may have waited for so long that they were sent back already.
        if not shown:
            return
        if not self._config.consume_timeout_includes_queueing:
            batch.started_ms = now_ms
        context = ConsumeConcurrentlyContext(queue)
        call = partial(self._listener.consume_message, shown, context)
        done = done_count(call, context, len(shown), self._group, partial(_names, shown))
        with process_queue.settle_lock:
            if process_queue.dropped:
                _log.warning("group %s: %s went to another member; its result is void", self._group, queue)
                return
            if not batch.count:
                return
            # The first ones may have taken too long, and were sent back while the listener had them: once is enough.
            failed = [message for message in shown[done:] if message.queue_offset >= batch.begin]
            kept = self._give_back(failed, context)
            self._settle(queue, process_queue, batch, kept)
            if kept:
                self._executor.submit_later(partial(self._wait_turn, queue, process_queue, batch), RESUBMIT_MS)

    def _give_back(
        self, failed: Sequence[MessageExt], context: ConsumeConcurrentlyContext
    ) -> list[MessageExt]:
        """Send failed messages back; returns those that must be kept here, one retry older."""
        if not self._is_clustering:
            if failed:
                _log.warning("group %s: broadcasting, so these are dropped: %s", self._group, _names(failed))
            return []
        delay_level = context.delay_level_when_next_consume
        kept = (message for message in failed if not self._sender.send_back(message, delay_level))
        return [replace(message, reconsume_times=message.reconsume_times + 1) for message in kept]

    def _settle(
        self, queue: MessageQueue, process_queue: ProcessQueue, batch: Batch, left: Sequence[MessageExt]
    ) -> None:
        self._offsets.update(queue, process_queue.settle(batch, left), increase_only=True)


def _names(messages: Sequence[MessageExt]) -> str:
    return ", ".join(f"{each.msg_id} ({each.topic} {each.queue_id}:{each.queue_offset})" for each in messages)
