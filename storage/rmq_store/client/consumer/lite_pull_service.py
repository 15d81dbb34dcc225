"""Pulls the queues of a lite pull consumer in turn, until one has messages.

Source: DefaultLitePullConsumerImpl.java (PullTaskImpl), which pulls ahead on threads of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from rmq_store.broker.filter.subscription import Subscription
from rmq_store.client.backend.backend import Backend, broker_of
from rmq_store.client.consume_service.ordered_process_queue import OrderedProcessQueue
from rmq_store.client.consumer.due_messages import deliver_due
from rmq_store.client.consumer.polled_offsets import PolledOffsets
from rmq_store.client.consumer.pull_service import pause_after_ms, with_bounds
from rmq_store.client.group.consumer_config import LitePullConsumerConfig
from rmq_store.client.group.offset_store import OffsetStore
from rmq_store.client.group.rebalance import Assignment
from rmq_store.client.group.start_offset import pull_from_where
from rmq_store.client.group.timers import SteadyClock
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.protocol.errors import ClientError
from rmq_store.protocol.messages import MessageExt, MessageQueue, PullStatus

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class LitePullService:
    """Pulls assigned queues in turn, and moves their offsets in `polled`. Not safe for threads."""

    _backend: Backend
    _consumer_group: str
    _config: LitePullConsumerConfig
    _offsets: OffsetStore
    _polled: PolledOffsets
    _steady_clock: SteadyClock
    _rounds: int = 0

    def next_messages(
        self,
        assignments: Collection[Assignment[OrderedProcessQueue]],
        subscriptions: Mapping[str, Subscription],
        paused: Collection[MessageQueue],
    ) -> list[MessageExt]:
        """The next messages of one queue, at most `pull_batch_size`; [] if no queue has some now. Each call begins with
        another queue. `subscriptions`: filters by topic. A queue that cannot be pulled is logged, and rests a while.
        """
        deliver_due(self._backend.brokers())
        in_order = sorted(assignments, key=lambda each: each.queue)
        self._rounds += 1
        for number in range(len(in_order)):
            assignment = in_order[(self._rounds + number) % len(in_order)]
            if assignment.queue in paused:
                continue
            messages = self._pull(assignment, subscriptions.get(assignment.queue.topic))
            if messages:
                return messages
        return []

    def _pull(self, assignment: Assignment[OrderedProcessQueue], subscription: Subscription | None) -> list[MessageExt]:
        queue, now_ms = assignment.queue, self._steady_clock()
        if now_ms < assignment.not_before_ms:
            return []
        tags = subscription.tags if subscription else None
        try:
            if assignment.next_offset < 0:
                assignment.next_offset = self._start(queue)
            result = broker_of(self._backend, queue).pull(
                self._consumer_group, queue, assignment.next_offset, self._config.pull_batch_size, tags
            )
        except ClientError as error:
            assignment.not_before_ms = now_ms + pause_after_ms(error)
            _log.warning("group %s: %s cannot be pulled: %s", self._consumer_group, queue, error)
            return []
        if result.status is PullStatus.OFFSET_ILLEGAL:
            _log.warning("%s has no offset %d; going on at %d", queue, assignment.next_offset, result.next_begin_offset)
        consumed = self._polled.uncommitted(queue)
        if result.next_begin_offset != assignment.next_offset:
            assignment.next_offset = result.next_begin_offset
            self._polled.advance(queue, result.next_begin_offset)
        wanted = (each for each in result.messages if subscription is None or subscription.matches(each.properties))
        messages = with_bounds(wanted, result)
        if messages:
            self._polled.hand_out(queue, consumed)
        return messages

    def _start(self, queue: MessageQueue) -> int:
        timestamp_ms = self._config.consume_timestamp_ms(self._backend.clock())
        return pull_from_where(self._backend, self._offsets, queue, self._config.consume_from_where, timestamp_ms)
