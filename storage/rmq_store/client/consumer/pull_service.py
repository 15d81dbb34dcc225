"""Pulls the consumer's queues, each once per round, while the unfinished messages stay within limits.

    more than 1000 messages or 100 MiB of a queue pulled and not done     not pulled in this round
    more than 2000 offsets from first to last (concurrent only)           not pulled in this round
    ordered, and not locked                                               not pulled in this round
    the broker refuses                                                    not pulled for 3 s (flow control: 20 ms)

A pull requests pullBatchSize messages. A store answers with more, up to these limits, because reading two thousand rows
costs nearly the same as reading one. Listeners get batches as if each pull had been separate.

Source: DefaultMQPushConsumerImpl.java (pullMessage). A round comes every 50 ms, which is Java's pause for flow control.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Generic, Protocol, TypeVar

import pyarrow as pa

from rmq_store.broker.filter.subscription import Subscription
from rmq_store.client.backend.backend import Backend, Broker, broker_of
from rmq_store.client.consume_service.send_back import reset_retry_topics
from rmq_store.client.group.consumer_config import MessageModel, PushConsumerConfig
from rmq_store.client.group.offset_store import OffsetStore
from rmq_store.client.group.rebalance import Assignment, Held, Rebalance
from rmq_store.client.group.timers import SteadyClock
from rmq_store.format.properties.property_string import MAX_OFFSET, MIN_OFFSET
from rmq_store.protocol.errors import ClientError, MQBrokerError, ResponseCode
from rmq_store.protocol.messages import MessageExt, MessageQueue, Pulled, PullResult, PullStatus, add_properties
from rmq_store.protocol.stored_messages import MessageRows

PULL_AFTER_ERROR_MS = 3000
PULL_AFTER_FLOW_CONTROL_MS = 20
# A read costs as much as some thousand rows of it do. More would hardly be pulled: consumeConcurrentlyMaxSpan is 2,000.
ROOM_MAX = 2048
_MIB = 1 << 20
_NO_PULL = -1

_log = logging.getLogger(__name__)


Wanted = TypeVar("Wanted")

Fetch = Callable[[Broker, str, MessageQueue, int, int, int, Subscription], tuple[Pulled, list[Wanted]]]
"""(broker, group, queue, offset, max_count, room, subscription) -> what the pull says, what of it the client wants."""


class ConsumeService(Protocol[Held, Wanted]):
    """The receiver of pulled messages."""

    def submit(self, assignment: Assignment[Held], messages: list[Wanted]) -> None:
        """Take messages of a queue, in queue order."""


class PullService(Generic[Held, Wanted]):
    """The work of the pull loop. `fetch` is `pull_messages`, `pull_rows` or `pull_batches`, as the service needs it.
    The loop calls `on_removed` after it gave up a queue that should be acquired again.
    """

    def __init__(
        self,
        backend: Backend,
        group: str,
        config: PushConsumerConfig,
        rebalance: Rebalance[Held],
        offsets: OffsetStore,
        fetch: Fetch[Wanted],
        service: ConsumeService[Held, Wanted],
        *,
        ordered: bool,
        on_removed: Callable[[], None],
    ) -> None:
        self._backend = backend
        self._steady_clock = SteadyClock(backend.clock)
        self._group = group
        self._config = config
        self._rebalance = rebalance
        self._offsets = offsets
        self._fetch = fetch
        self._service = service
        self._ordered = ordered
        self._needs_lock = ordered and config.message_model is MessageModel.CLUSTERING
        self._on_removed = on_removed

    def pull_all(self, subscriptions: Mapping[str, Subscription]) -> bool:
        """Pull each queue once; True if the position of one of them changed."""
        moved = False
        assignments = self._rebalance.assignments()
        for assignment in assignments:
            subscription = subscriptions.get(assignment.queue.topic)
            if subscription is not None:
                room = self._room(assignment, len(assignments))
                if room >= 0:
                    moved |= self._pull(assignment, subscription, room)
        return moved

    def _room(self, assignment: Assignment[Held], queue_count: int) -> int:
        """How many more messages the limits allow, at most ROOM_MAX; below 0: the queue is not pulled."""
        config, process_queue = self._config, assignment.process_queue
        if process_queue.dropped or self._steady_clock() < assignment.not_before_ms:
            return _NO_PULL
        count_max, size_max = config.pull_threshold_for_queue, config.pull_threshold_size_for_queue
        if config.pull_threshold_for_topic != -1:
            count_max = max(1, config.pull_threshold_for_topic // queue_count)
        if config.pull_threshold_size_for_topic != -1:
            size_max = max(1, config.pull_threshold_size_for_topic // queue_count)
        if process_queue.size_bytes // _MIB > size_max:
            return _NO_PULL
        room = count_max - process_queue.count
        if not self._ordered:
            room = min(room, config.consume_concurrently_max_span - process_queue.max_span)
        elif self._needs_lock and not process_queue.is_locked(self._backend.clock()):
            return _NO_PULL
        return min(room, ROOM_MAX)

    def _pull(self, assignment: Assignment[Held], subscription: Subscription, room: int) -> bool:
        queue, offset, now_ms = assignment.queue, assignment.next_offset, self._steady_clock()
        count = self._config.pull_batch_size
        if self._config.pull_interval:
            room = 0  # so many in so much time are wanted
        try:
            broker = broker_of(self._backend, queue)
            result, wanted = self._fetch(broker, self._group, queue, offset, count, room, subscription)
        except ClientError as error:
            assignment.not_before_ms = now_ms + pause_after_ms(error)
            _log.warning("group %s: %s cannot be pulled: %s", self._group, queue, error)
            return False
        if result.status is PullStatus.OFFSET_ILLEGAL:
            self._start_anew(assignment, result.next_begin_offset)
            return True
        assignment.next_offset = result.next_begin_offset
        assignment.not_before_ms = now_ms + self._config.pull_interval
        if wanted:
            for first in range(0, len(wanted), count):
                self._service.submit(assignment, wanted[first : first + count])
        elif assignment.process_queue.count == 0 and not assignment.process_queue.dropped:
            # This is how the progress passes messages that were filtered out.
            self._offsets.update(queue, result.next_begin_offset, increase_only=True)
        return result.next_begin_offset != offset

    def _start_anew(self, assignment: Assignment[Held], offset: int) -> None:
        """Continue at an offset that exists. The queue lost the requested one by retention, or is another store's."""
        queue, old = assignment.queue, assignment.next_offset
        _log.warning("group %s: %s has no offset %d; going on at %d", self._group, queue, old, offset)
        self._offsets.update(queue, offset, increase_only=False)
        self._rebalance.remove(queue)
        self._on_removed()


def pause_after_ms(error: ClientError) -> int:
    """How long a queue rests after a pull that failed; a broker that limits pulls (215) wants a short pause."""
    is_limited = isinstance(error, MQBrokerError) and error.response_code == ResponseCode.FLOW_CONTROL
    return PULL_AFTER_FLOW_CONTROL_MS if is_limited else PULL_AFTER_ERROR_MS


def pull_messages(
    broker: Broker, group: str, queue: MessageQueue, offset: int, max_count: int, room: int, subscription: Subscription
) -> tuple[Pulled, list[MessageExt]]:
    """Pull messages as objects."""
    result = broker.pull(group, queue, offset, max_count, subscription.tags, room=room)
    return result, with_bounds((each for each in result.messages if subscription.matches(each.properties)), result)


def pull_rows(
    broker: Broker, group: str, queue: MessageQueue, offset: int, max_count: int, room: int, subscription: Subscription
) -> tuple[Pulled, list[MessageRows]]:
    """Pull rows. The service makes messages of them when it calls a listener, as the listener sees them."""
    result = broker.pull_batch(group, queue, offset, max_count, subscription.tags, room=room)
    wanted = (subscription.select(batch) for batch in result.batches)
    shown = (reset_retry_topics(batch, queue.topic, group) for batch in wanted if batch.num_rows)
    return result, [MessageRows(batch, queue.broker_name, _bounds(result)) for batch in shown]


def pull_batches(
    broker: Broker, group: str, queue: MessageQueue, offset: int, max_count: int, room: int, subscription: Subscription
) -> tuple[Pulled, list[pa.RecordBatch]]:
    """Pull messages as rows. `room` is ignored: a batch for the listener comes from one pull. The properties do not
    include a client's MIN_OFFSET and MAX_OFFSET.
    """
    result = broker.pull_batch(group, queue, offset, max_count, subscription.tags)
    wanted = (subscription.select(batch) for batch in result.batches)
    return result, [batch for batch in wanted if batch.num_rows]


def with_bounds(messages: Iterable[MessageExt], result: PullResult) -> list[MessageExt]:
    """Messages with the client's properties MIN_OFFSET and MAX_OFFSET, the queue's bounds at the time of the pull."""
    bounds = _bounds(result)
    bounded = list(messages)
    for message in bounded:
        add_properties(message, bounds)
    return bounded


def _bounds(result: Pulled) -> dict[str, str]:
    return {MIN_OFFSET: str(result.min_offset), MAX_OFFSET: str(result.max_offset)}
