"""Passes messages of a queue to an ordered listener, one batch after the other. Source:
ConsumeMessageOrderlyService.java.

    answer                            autoCommit True        autoCommit False
    SUCCESS                           the offset moves       nothing moves
    COMMIT                            the offset moves       all taken so far is committed
    ROLLBACK                          the offset moves       all taken so far comes again, after a pause
    SUSPEND_CURRENT_QUEUE_A_MOMENT    the batch comes again after a pause, and no later message before it
    None, exception                   as SUSPEND_CURRENT_QUEUE_A_MOMENT
    not called: the body cannot be    the message becomes a dead letter, and the offset moves unless something that
    inflated (`undecoded`)            is taken waits for a COMMIT

After too many deliveries the service sends a message to the group's retry topic, and the queue continues. The broker of
that topic makes it a dead letter. The number of deliveries is in memory only: another member starts to count from zero.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from rmq_store.client.backend.backend import Backend
from rmq_store.client.consume_service.executor import Executor
from rmq_store.client.consume_service.listener import (
    ConsumeOrderlyContext,
    ConsumeOrderlyStatus,
    MessageListenerOrderly,
)
from rmq_store.client.consume_service.ordered_process_queue import NOTHING, OrderedProcessQueue
from rmq_store.client.consume_service.send_back import MessageSender, reset_retry_topic
from rmq_store.client.consume_service.undecoded import DEAD_LETTER_LEVEL, log_failure
from rmq_store.client.group.consumer_config import MessageModel, PushConsumerConfig
from rmq_store.client.group.offset_store import OffsetStore
from rmq_store.client.group.rebalance import Assignment
from rmq_store.protocol.messages import MessageExt, MessageQueue

RELOCK_MS = 3000
CONTINUOUS_MS_MAX = 60_000
MAX_RECONSUME_TIMES_ORDERED = (1 << 31) - 1  # Integer.MAX_VALUE: again and again

_log = logging.getLogger(__name__)


class ConsumeOrderlyService:
    """Runs a listener on one batch of a queue at a time; `lock` requests the queue's lock from the broker."""

    def __init__(
        self,
        listener: MessageListenerOrderly,
        group: str,
        config: PushConsumerConfig,
        executor: Executor,
        backend: Backend,
        offsets: OffsetStore,
        lock: Callable[[MessageQueue], bool],
    ) -> None:
        self._listener = listener
        self._group = group
        self._config = config
        self._executor = executor
        self._offsets = offsets
        self._clock = backend.clock
        self._lock = lock
        self._is_clustering = config.message_model is MessageModel.CLUSTERING
        times = config.max_reconsume_times
        self._max_reconsume_times = MAX_RECONSUME_TIMES_ORDERED if times == -1 else times
        self._sender = MessageSender(backend, group, self._max_reconsume_times)

    def submit(self, assignment: Assignment[OrderedProcessQueue], messages: Sequence[MessageExt]) -> None:
        """Add messages that were just pulled, and start consumption unless it already runs."""
        if assignment.process_queue.put(messages):
            self._executor.submit(partial(self._run, assignment.queue, assignment.process_queue))

    def _run(self, queue: MessageQueue, process_queue: OrderedProcessQueue, reserved: bool = False) -> None:
        """Consume messages until none is left, or until the queue must wait."""
        begin_ms = self._clock()
        while not process_queue.dropped:
            if self._is_clustering and not process_queue.is_locked(self._clock()) and not self._lock(queue):
                self._again(queue, process_queue, RELOCK_MS)
                return
            if self._clock() - begin_ms > CONTINUOUS_MS_MAX:
                # Other queues wait for this thread.
                self._executor.submit(partial(self._run, queue, process_queue))
                return
            messages = process_queue.take(self._config.consume_message_batch_max_size)
            if not messages:
                return
            wait_ms = 0 if reserved else self._wait_ms(len(messages))
            reserved = False
            if wait_ms > 0:
                process_queue.consume_again(messages)
                self._executor.submit_later(partial(self._run, queue, process_queue, True), wait_ms)
                return
            with process_queue.consume_lock:
                if process_queue.dropped:
                    return
                consume = self._give_up if messages[0].is_compressed else self._consume
                pause_ms = consume(queue, process_queue, messages)
            if pause_ms is not None:
                self._again(queue, process_queue, pause_ms)
                return

    def _wait_ms(self, count: int) -> int:
        limiter = self._config.rate_limiter
        return 0 if limiter is None else limiter.wait_ms(count)

    def _again(self, queue: MessageQueue, process_queue: OrderedProcessQueue, delay_ms: int) -> None:
        self._executor.submit_later(partial(self._run, queue, process_queue), delay_ms)

    def _consume(
        self, queue: MessageQueue, process_queue: OrderedProcessQueue, messages: Sequence[MessageExt]
    ) -> int | None:
        """Pass the batch to the listener and apply its answer; returns the pause in ms before the batch comes again."""
        gave_up = False

        def extend() -> bool:
            nonlocal gave_up
            gave_up = self._executor.is_stopped or process_queue.dropped
            return not gave_up

        context = ConsumeOrderlyContext(queue, extend=extend)
        shown = [reset_retry_topic(message, self._group, {}) for message in messages]
        status = self._call(shown, context)
        if gave_up:
            process_queue.consume_again(messages)
            return RELOCK_MS
        if status is ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT:
            again = self._not_exhausted(process_queue, shown, messages)
            if again:
                process_queue.consume_again(again)
                return self._config.suspend_ms(context.suspend_current_queue_time_millis)
        elif status is ConsumeOrderlyStatus.ROLLBACK and not context.auto_commit:
            process_queue.consume_again()
            return self._config.suspend_ms(context.suspend_current_queue_time_millis)
        if context.auto_commit or status is ConsumeOrderlyStatus.COMMIT:
            if context.auto_commit and status in (ConsumeOrderlyStatus.COMMIT, ConsumeOrderlyStatus.ROLLBACK):
                _log.warning("group %s: %s has a meaning with auto_commit False only", self._group, status)
            self._commit(queue, process_queue)
        return None

    def _give_up(
        self, queue: MessageQueue, process_queue: OrderedProcessQueue, messages: Sequence[MessageExt]
    ) -> int | None:
        """Make a dead letter of a message that no listener gets; the pause in ms before it is tried again, if no broker
        took it.
        """
        (message,) = messages
        if not process_queue.has_given_up(message):
            log_failure(self._group, f"{message.msg_id} ({message.topic} {message.queue_id}:{message.queue_offset})")
            if not self._is_clustering:
                _log.warning("group %s: broadcasting, so %s is dropped", self._group, message.msg_id)
            elif not self._sender.send_back(reset_retry_topic(message, self._group, {}), DEAD_LETTER_LEVEL):
                process_queue.consume_again(messages)
                return self._config.suspend_ms(-1)
            process_queue.give_up(message)
        if process_queue.is_taken_alone(message):
            self._commit(queue, process_queue)
        return None

    def _commit(self, queue: MessageQueue, process_queue: OrderedProcessQueue) -> None:
        offset = process_queue.commit()
        if offset != NOTHING and not process_queue.dropped:
            self._offsets.update(queue, offset, increase_only=False)

    def _call(self, messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
        suspended = ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
        try:
            status = self._listener.consume_message(messages, context)
        except Exception:
            _log.warning("group %s: the listener failed on %s", self._group, context.message_queue, exc_info=True)
            return suspended
        if not isinstance(status, ConsumeOrderlyStatus):
            _log.warning(
                "group %s: the listener returned %r for %s, which suspends the queue",
                self._group, status, context.message_queue,
            )  # fmt: skip
            return suspended
        return status

    def _not_exhausted(
        self, process_queue: OrderedProcessQueue, shown: Sequence[MessageExt], taken: Sequence[MessageExt]
    ) -> list[MessageExt]:
        """Send messages away that came too often; the others, with one retry more (checkReconsumeTimes)."""
        again: list[MessageExt] = []
        gone: list[MessageExt] = []
        for message, original in zip(shown, taken, strict=True):
            if message.reconsume_times < self._max_reconsume_times or not self._send_away(message):
                again.append(replace(original, reconsume_times=original.reconsume_times + 1))
            else:
                gone.append(original)
        if again:
            # Sent once, and not again when the rest of the batch is repeated.
            for message in gone:
                process_queue.forget_taken(message)
        return again

    def _send_away(self, message: MessageExt) -> bool:
        if self._is_clustering:
            return self._sender.send_as_normal_message(message)
        _log.warning("group %s: broadcasting, so %s is dropped", self._group, message.msg_id)
        return True
