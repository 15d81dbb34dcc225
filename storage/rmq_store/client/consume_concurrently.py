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
from rmq_store.client.process_queue import NOTHING, ProcessQueue
from rmq_store.client.rebalance import Assignment
from rmq_store.client.send_back import MessageSender, reset_retry_topic
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

    def submit(self, assignment: Assignment[ProcessQueue], messages: Sequence[MessageExt]) -> None:
        """Consume messages that were just pulled, in batches."""
        queue, process_queue = assignment.queue, assignment.process_queue
        process_queue.put(messages)
        if self._config.consume_timeout_includes_queueing:
            process_queue.mark_started((message.queue_offset for message in messages), self._clock())
        size = self._config.consume_message_batch_max_size
        for start in range(0, len(messages), size):
            self._executor.submit(partial(self._wait_turn, queue, process_queue, messages[start : start + size]))

    def clean_expired(self, assignments: Iterable[Assignment[ProcessQueue]]) -> None:
        """Send back the first messages of each queue that a listener has had for too long; it is not interrupted."""
        if not self._is_clustering:
            return
        for assignment in assignments:
            process_queue = assignment.process_queue
            for _ in range(EXPIRED_MAX):
                with process_queue.settle_lock:
                    message = process_queue.first_expired(self._config.consume_timeout_ms, self._clock())
                    if message is None or process_queue.dropped:
                        break
                    shown = reset_retry_topic(message, self._group, {})
                    if not self._sender.send_back(shown, EXPIRED_DELAY_LEVEL):
                        break
                    self._done(assignment.queue, process_queue, [message])

    def _wait_turn(self, queue: MessageQueue, process_queue: ProcessQueue, messages: Sequence[MessageExt]) -> None:
        """Let the rate limiter decide when the batch is consumed; until then it stays in its queue."""
        if not process_queue.dropped:
            work = partial(self._consume, queue, process_queue, messages)
            run_at_rate(self._executor, self._config.rate_limiter, len(messages), work)

    def _consume(self, queue: MessageQueue, process_queue: ProcessQueue, messages: Sequence[MessageExt]) -> None:
        # Some may have waited for so long that they were sent back already.
        batch = [message for message in messages if process_queue.holds(message.queue_offset)]
        if process_queue.dropped or not batch:
            return
        now_ms = self._clock()
        if not self._config.consume_timeout_includes_queueing:
            process_queue.mark_started((message.queue_offset for message in batch), now_ms)
        started = {CONSUME_START_TIME: str(now_ms)}
        shown = [reset_retry_topic(message, self._group, started) for message in batch]
        context = ConsumeConcurrentlyContext(queue)
        call = partial(self._listener.consume_message, shown, context)
        done = done_count(call, context, len(shown), self._group, partial(_names, shown))
        with process_queue.settle_lock:
            if process_queue.dropped:
                _log.warning("group %s: %s went to another member; its result is void", self._group, queue)
                return
            given_back = self._give_back(queue, process_queue, shown[done:], context)
            self._done(queue, process_queue, [*shown[:done], *given_back])

    def _give_back(
        self,
        queue: MessageQueue,
        process_queue: ProcessQueue,
        failed: Sequence[MessageExt],
        context: ConsumeConcurrentlyContext,
    ) -> list[MessageExt]:
        """Send failed messages back; returns those that need not be kept here."""
        if not self._is_clustering:
            if failed:
                _log.warning("group %s: broadcasting, so these are dropped: %s", self._group, _names(failed))
            return list(failed)
        gone: list[MessageExt] = []
        kept: list[MessageExt] = []
        for message in failed:
            # A message that took too long was sent back while its listener still had it: once is enough.
            taken = not process_queue.holds(message.queue_offset) or self._sender.send_back(
                message, context.delay_level_when_next_consume
            )
            (gone if taken else kept).append(message)
        if kept:
            again = [replace(message, reconsume_times=message.reconsume_times + 1) for message in kept]
            process_queue.replace(again)
            self._executor.submit_later(partial(self._wait_turn, queue, process_queue, again), RESUBMIT_MS)
        return gone

    def _done(self, queue: MessageQueue, process_queue: ProcessQueue, messages: Sequence[MessageExt]) -> None:
        offset = process_queue.remove(message.queue_offset for message in messages)
        if offset != NOTHING:
            self._offsets.update(queue, offset, increase_only=True)


def _names(messages: Sequence[MessageExt]) -> str:
    return ", ".join(f"{each.msg_id} ({each.topic} {each.queue_id}:{each.queue_offset})" for each in messages)
