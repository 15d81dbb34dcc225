"""Passes batches to a concurrent listener, on several threads, and applies its answer.

    CONSUME_SUCCESS                               messages up to the context's ackIndex are done, the others failed
    RECONSUME_LATER, None, an exception, else     all failed
    not called: the body cannot be inflated       it failed, and becomes a dead letter (`undecoded`)

The service sends failed messages back to the broker (CLUSTERING) or drops them (BROADCASTING). If no broker takes a
message, the service counts one more retry in memory. It passes the message to the listener again after five seconds;
until then the message holds the progress.

`consume_messages` does this with objects, `consume_arrow` with rows. Source: ConsumeMessageConcurrentlyService.java
(ConsumeRequest#run, processConsumeResult, cleanExpireMsg).
"""

from __future__ import annotations

import logging
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from functools import partial
from typing import Generic, Protocol, TypeVar

from rmq_store.client.backend.backend import Backend
from rmq_store.client.consume_service.executor import Executor
from rmq_store.client.consume_service.listener import ConsumeConcurrentlyContext, ConsumeConcurrentlyStatus
from rmq_store.client.consume_service.process_queue import Batch, Left, Messages, ProcessQueue
from rmq_store.client.consume_service.send_back import MessageSender
from rmq_store.client.consume_service.undecoded import DEAD_LETTER_LEVEL, log_failure
from rmq_store.client.group.consumer_config import MessageModel, PushConsumerConfig
from rmq_store.client.group.offset_store import OffsetStore
from rmq_store.client.group.rebalance import Assignment
from rmq_store.protocol.messages import MessageQueue

RESUBMIT_MS = 5000
EXPIRED_DELAY_LEVEL = 3
EXPIRED_MAX = 16

_log = logging.getLogger(__name__)


Shown = TypeVar("Shown", bound=Messages, contravariant=True)


class Listener(Protocol[Shown]):
    """A MessageListenerConcurrently or a MessageListenerArrow."""

    def consume_message(self, shown: Shown, context: ConsumeConcurrentlyContext, /) -> object:
        """Handle a batch; returns the outcome."""


class ConsumeConcurrentlyService(ABC, Generic[Left]):
    """Runs a listener on batches of any queue, as many at a time as the executor has threads."""

    def __init__(
        self,
        listener: Listener[Left],
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

    # -- what objects and rows do each in their way -----------------------------------------------------------------

    @abstractmethod
    def _failed(self, shown: Left, done: int, batch: Batch[Left]) -> Left:
        """The failed messages that are still in the batch: of those `shown`, the first `done` are done."""

    @abstractmethod
    def _send_back(self, failed: Left, queue: MessageQueue, delay_level: int) -> Left:
        """Send messages of the queue back; returns those that no broker took, with one retry more."""

    @abstractmethod
    def _send_expired_back(self, late: Left, queue: MessageQueue) -> tuple[Left, bool]:
        """Send the first messages back, one or more; returns the remaining ones, and True if all were taken."""

    @abstractmethod
    def _name(self, messages: Left, queue: MessageQueue) -> str:
        """Text that identifies the messages of the queue in the log."""

    # -- what is the same for both ----------------------------------------------------------------------------------

    def clean_expired(self, assignments: Iterable[Assignment[ProcessQueue[Left]]]) -> None:
        """Send back messages that a listener has had for too long, from the front. The listener is not interrupted."""
        if not self._is_clustering:
            return
        for assignment in assignments:
            process_queue = assignment.process_queue
            for _ in range(EXPIRED_MAX):
                with process_queue.settle_lock:
                    batch = process_queue.first_expired(self._config.consume_timeout_ms, self._clock())
                    if batch is None or process_queue.dropped:
                        break
                    left, all_taken = self._send_expired_back(batch.left(), assignment.queue)
                    self._settle(assignment, batch, left)
                    if not all_taken:
                        break

    def _add(self, assignment: Assignment[ProcessQueue[Left]], batch: Batch[Left]) -> None:
        """Add a batch after all others; a thread consumes it when one is free."""
        assignment.process_queue.put(batch)
        if self._config.consume_timeout_includes_queueing:
            batch.started_ms = self._clock()
        self._executor.submit(partial(self._wait_turn, assignment, batch))

    def _wait_turn(self, assignment: Assignment[ProcessQueue[Left]], batch: Batch[Left]) -> None:
        """Let the rate limiter decide when the batch is consumed; until then it stays in its queue."""
        if not batch.count or assignment.process_queue.dropped:
            return
        limiter = self._config.rate_limiter
        wait_ms = 0 if limiter is None else limiter.wait_ms(batch.count)
        if wait_ms > 0:
            self._executor.submit_later(partial(self._consume, assignment, batch), wait_ms)
        else:
            self._consume(assignment, batch)

    def _consume(self, assignment: Assignment[ProcessQueue[Left]], batch: Batch[Left]) -> None:
        queue, process_queue = assignment.queue, assignment.process_queue
        if process_queue.dropped:
            return
        now_ms = self._clock()
        shown = batch.left(now_ms)
        # It may have waited for so long that it was sent back already.
        if not len(shown):
            return
        if not self._config.consume_timeout_includes_queueing:
            batch.started_ms = now_ms
        gave_up = False

        def extend() -> bool:
            nonlocal gave_up
            gave_up = self._executor.is_stopped or process_queue.dropped
            if batch.started_ms is not None:
                batch.started_ms = self._clock()
            return not gave_up

        context = ConsumeConcurrentlyContext(queue, extend=extend)
        if batch.is_undecoded:
            log_failure(self._group, self._name(shown, queue))
            context.delay_level_when_next_consume, done = DEAD_LETTER_LEVEL, 0
        else:
            # A list of its own: what a listener does to it changes nothing here.
            call = partial(self._listener.consume_message, shown[:], context)
            done = done_count(call, context, len(shown), self._group, partial(self._name, shown, queue))
        if gave_up:
            return
        with process_queue.settle_lock:
            if process_queue.dropped:
                _log.warning("group %s: %s went to another member; its result is void", self._group, queue)
                return
            if not batch.count:
                return
            # Some may have taken too long, and were sent back while the listener had them: once is enough.
            failed = self._failed(shown, done, batch)
            self._settle(assignment, batch, self._give_back(failed, queue, context.delay_level_when_next_consume))
            if batch.count:
                self._executor.submit_later(partial(self._wait_turn, assignment, batch), RESUBMIT_MS)

    def _give_back(self, failed: Left, queue: MessageQueue, delay_level: int) -> Left:
        """Send failed messages back (CLUSTERING) or drop them (BROADCASTING); returns those to keep."""
        if not len(failed):
            return failed
        if self._is_clustering:
            return self._send_back(failed, queue, delay_level)
        _log.warning("group %s: broadcasting, so these are dropped: %s", self._group, self._name(failed, queue))
        return failed[len(failed) :]

    def _settle(self, assignment: Assignment[ProcessQueue[Left]], batch: Batch[Left], left: Left) -> None:
        offset = assignment.process_queue.settle(batch, left)
        self._offsets.update(assignment.queue, offset, increase_only=True)


def done_count(
    call: Callable[[], object],
    context: ConsumeConcurrentlyContext,
    count: int,
    group: str,
    what: Callable[[], str],
) -> int:
    """Call the listener with `count` messages, and return how many of them it has done: the first ones, [0, n).

    Never raises the listener's exceptions, except those that end a process (SystemExit). `what` names the messages for
    the log.
    """
    try:
        status = call()
        ack_index = operator.index(context.ack_index)
    except Exception:
        _log.warning("group %s: the listener failed on %s", group, what(), exc_info=True)
        return 0
    if not isinstance(status, ConsumeConcurrentlyStatus):
        _log.warning("group %s: the listener returned %r for %s, so all of them failed", group, status, what())
        return 0
    if status is not ConsumeConcurrentlyStatus.CONSUME_SUCCESS:
        return 0
    return max(0, min(ack_index + 1, count))
