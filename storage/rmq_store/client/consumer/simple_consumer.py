"""A consumer that receives messages on request and acknowledges each one: RocketMQ 5.x's SimpleConsumer.

    consumer = SimpleConsumer("cg_orders", "/data/store", {"Orders": FilterExpression("TagA || TagB")})
    for view in consumer.receive(16, timedelta(seconds=30)):
        handle(view.body)
        consumer.ack(view)

A message that is not acknowledged within its invisible duration comes again as soon as that ends. After too many
deliveries it becomes a dead letter. There is no rebalance: members of a group, in any number of processes, share every
queue. No stream of the group can read their topics until they are closed. Sources: SimpleConsumerImpl.java,
FilterExpression.java (rocketmq-clients).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from datetime import timedelta
from enum import StrEnum
from types import TracebackType
from typing import Final, TypeVar

from rmq_store.arguments import checked_methods
from rmq_store.broker.filter.subscription import MessageSelector, Subscription
from rmq_store.broker.pop.pop import MESSAGES_MAX
from rmq_store.client.backend.backend import Backend, Broker, brokers_for
from rmq_store.client.backend.local import StorePlaces, backend_of
from rmq_store.client.consumer.due_messages import deliver_due
from rmq_store.client.consumer.message_view import MessageView
from rmq_store.client.group.client_id import make_client_id
from rmq_store.client.group.consumer_config import ConsumeFromWhere
from rmq_store.errors import UsageError
from rmq_store.files.locks.background import Pool
from rmq_store.files.locks.guard import Guard
from rmq_store.format.text.names import retry_topic, validate_group, validate_topic
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.protocol.answers import is_away
from rmq_store.protocol.errors import ClientError

_log = logging.getLogger(__name__)

AWAIT_DURATION: Final = timedelta(seconds=30)
"""How long `receive` waits for a first message, unless told otherwise."""

POLL_INTERVAL_MS: Final = 20
"""How often it looks while it waits."""

_ASYNC_THREADS = 4

_T = TypeVar("_T")


class FilterExpressionType(StrEnum):
    """The language of a filter."""

    TAG = "TAG"
    SQL92 = "SQL92"


@dataclass(frozen=True, slots=True)
class FilterExpression:
    """Selects messages of a topic: by tags ("TagA || TagB", `*` for all), or by an SQL92 condition on properties."""

    expression: str = "*"
    type: FilterExpressionType = FilterExpressionType.TAG


Filter = str | FilterExpression | MessageSelector


@checked_methods(constructor=True)
class SimpleConsumer:
    """A member of a consumer group. Safe for threads, not across fork.

    `backend`: a cluster, which the caller closes, an argument of `LocalBackend` (a path, an open Store, several of
    them), or the name servers of 5.x brokers as `rmq://ns1:9876;ns2:9876`.
    `subscription_expressions`: {topic: filter}; a text is a tag expression. `await_duration`: how long `receive`
    waits for a first message. `max_delivery_attempts` None: the group's retryMaxTimes + 1. `consume_from_where`: the
    start of a group without an offset. `sleep` takes seconds.

    Raises (when constructed):
        UsageError: a bad name, filter or duration; CONSUME_FROM_TIMESTAMP, which RocketMQ does not offer here.
        LeaseHeldError: a stream of the group reads one of the topics, or the group's retry topic.
    """

    def __init__(
        self,
        consumer_group: str,
        backend: Backend | StorePlaces,
        subscription_expressions: Mapping[str, Filter] | None = None,
        *,
        await_duration: timedelta = AWAIT_DURATION,
        consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
        max_delivery_attempts: int | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        validate_group(consumer_group)
        if consume_from_where == ConsumeFromWhere.CONSUME_FROM_TIMESTAMP:
            raise UsageError(f"group {consumer_group!r}: a SimpleConsumer begins at the first or the last offset")
        self.consumer_group = consumer_group
        self._await_ms = _milliseconds("await_duration", await_duration)
        self._from_first = consume_from_where == ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
        self._attempts_max = max_delivery_attempts
        self._sleep = sleep
        self._guard = Guard()
        self._subscriptions: dict[str, Subscription] = {}
        self._receives = 0
        # Brokers that were away when they were asked last.
        self._away: set[str] = set()
        self._threads: Pool | None = None
        self._closed = False
        for topic, expression in (subscription_expressions or {}).items():
            self._subscriptions[topic] = _subscription(topic, expression)
        self._client_id = make_client_id(None)
        self._backend, self._close_own = backend_of(backend)
        try:
            self._share(self._subscriptions)
        except BaseException:
            self._leave()
            self._close_own()
            raise

    # -- subscriptions ----------------------------------------------------------------------------------------------

    def subscribe(self, topic: str, filter_expression: Filter = "*") -> None:
        """Receive from `topic` as well, or with another filter from now on.

        Raises:
            UsageError: a bad name or filter, or closed.
            LeaseHeldError: a stream of the group reads the topic; nothing has changed.
        """
        subscription = _subscription(topic, filter_expression)
        with self._guard.entered():
            self._check_open()
            wanted = {**self._subscriptions, topic: subscription}
            self._share(wanted)
            self._subscriptions = wanted

    def unsubscribe(self, topic: str) -> None:
        """Receive nothing from `topic` any more; messages already received can still be acknowledged."""
        with self._guard.entered():
            self._subscriptions = {name: each for name, each in self._subscriptions.items() if name != topic}
            if not self._closed:
                self._share(self._subscriptions)

    @property
    def subscription_expressions(self) -> Mapping[str, MessageSelector]:
        """The filters by topic."""
        with self._guard.entered():
            return {topic: subscription.selector for topic, subscription in self._subscriptions.items()}

    # -- messages ---------------------------------------------------------------------------------------------------

    def receive(self, max_message_num: int, invisible_duration: timedelta) -> list[MessageView]:
        """Return 1 to `max_message_num` (at most 32) messages, or [] if none came within `await_duration`.

        They are hidden from the group for `invisible_duration`: handle them within that time. All messages of one call
        are from one topic; topics, and the group's retry topic, take turns. A broker that is away has none, and does
        not hold up the others: a warning tells when it goes, and one when it is back.

        Raises:
            UsageError: no subscription, closed, or a number outside its range.
            ClientError: a refusal of a broker. Messages of other brokers are not lost: they come again.
        """
        if type(max_message_num) is not int or not 1 <= max_message_num <= MESSAGES_MAX:
            raise UsageError(f"max_message_num={max_message_num!r} is not an integer in 1..{MESSAGES_MAX}")
        invisible_ms = _milliseconds("invisible_duration", invisible_duration)
        if not invisible_ms:
            raise UsageError("invisible_duration is less than 1 ms: the message would come again at once")
        clock = self._backend.clock
        deadline_ms, slept_ms = clock() + self._await_ms, 0
        while True:
            found = self._poll_once(max_message_num, invisible_ms)
            # A clock that is only moved by hand must not make anybody wait for ever.
            left_ms = min(deadline_ms - clock(), self._await_ms - slept_ms)
            if found or left_ms <= 0:
                return found
            wait_ms = min(left_ms, POLL_INTERVAL_MS)
            self._sleep(wait_ms / 1000)
            slept_ms += wait_ms

    def receive_async(self, max_message_num: int, invisible_duration: timedelta) -> Future[list[MessageView]]:
        """`receive` on another thread."""
        return self._submit(lambda: self.receive(max_message_num, invisible_duration))

    def ack(self, message_view: MessageView) -> None:
        """Acknowledge a message.

        Raises:
            InvalidReceiptHandleError: its invisible duration is over, or it is acknowledged already: it comes, or came,
                again.
            ClientError: an error of a broker; it is unknown whether the message is acknowledged.
        """
        self._check_open()
        self._broker(message_view).ack_message(
            self.consumer_group, message_view.received_from, message_view.receipt_handle
        )

    def ack_async(self, message_view: MessageView) -> Future[None]:
        """`ack` on another thread."""
        return self._submit(lambda: self.ack(message_view))

    def change_invisible_duration(self, message_view: MessageView, invisible_duration: timedelta) -> None:
        """Hide a message for `invisible_duration` from now on; with zero it comes again at once. The view gets the new
        receipt handle; the old one is void. Raises as `ack`.
        """
        self._check_open()
        message_view.receipt_handle = self._broker(message_view).change_invisible_duration(
            self.consumer_group,
            message_view.received_from,
            message_view.receipt_handle,
            _milliseconds("invisible_duration", invisible_duration),
        )

    def change_invisible_duration_async(self, message_view: MessageView, invisible_duration: timedelta) -> Future[None]:
        """`change_invisible_duration` on another thread."""
        return self._submit(lambda: self.change_invisible_duration(message_view, invisible_duration))

    # -- life -------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the consumer, and wait for calls that run on other threads. Unacknowledged messages come again when
        their invisible duration ends.
        """
        with self._guard.entered():
            self._closed = True
            threads = self._threads
        if threads is not None:
            threads.shutdown()
        self._leave()
        self._close_own()

    def __enter__(self) -> SimpleConsumer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _poll_once(self, max_message_num: int, invisible_ms: int) -> list[MessageView]:
        """Poll topics and brokers once; stop at the first that has messages."""
        self._check_open()
        with self._guard.entered():
            if not self._subscriptions:
                raise UsageError(f"group {self.consumer_group!r} has no subscription: name a topic first")
            retry = Subscription.of(retry_topic(self.consumer_group), "*")
            wanted = [*self._subscriptions.values(), retry]
            turn = self._receives
            self._receives += 1
        brokers = self._backend.brokers()
        deliver_due(brokers)
        sources = [
            (subscription, name)
            for subscription in wanted
            for name in self._brokers_of(subscription.topic)
            if name in brokers  # a route may know a new broker first
        ]
        for number in range(len(sources)):
            subscription, name = sources[(turn + number) % len(sources)]
            try:
                popped = brokers[name].receive_message(
                    self.consumer_group,
                    subscription,
                    max_message_num,
                    invisible_ms,
                    from_first=self._from_first,
                    max_delivery_attempts=self._attempts_max,
                )
            except ClientError as error:
                if not is_away(error):
                    raise
                self._log_absence(f"broker {name}", error)
                continue
            self._log_absence(f"broker {name}", None)
            if popped:
                return [MessageView(one, self.consumer_group, name) for one in popped]
        return []

    def _brokers_of(self, topic: str) -> list[str]:
        """The brokers of a topic. Without a name server those of a topic that has had a message stay known; the others,
        mostly the retry topic, have none until one answers.
        """
        try:
            queues = self._backend.subscribe_queues(topic)
        except ClientError as error:
            if not is_away(error):
                raise
            self._log_absence(f"each name server that could tell where {topic} is", error)
            return []
        self._log_absence(f"each name server that could tell where {topic} is", None)
        return sorted({queue.broker_name for queue in queues})

    def _log_absence(self, name: str, error: ClientError | None) -> None:
        """A broker or a name server has just answered, or not; what changes is logged."""
        with self._guard.entered():
            was_away = name in self._away
            if error is None:
                self._away.discard(name)
            else:
                self._away.add(name)
        if error is not None and not was_away:
            _log.warning(
                "group %s: %s is away, and there are no messages from there until it is back: %s",
                self.consumer_group, name, error,
            )  # fmt: skip
        elif error is None and was_away:
            _log.warning("group %s: %s is back", self.consumer_group, name)

    def _share(self, topics: Collection[str]) -> None:
        shared = [*topics, retry_topic(self.consumer_group)] if topics else []
        for broker in brokers_for(self._backend, topics):
            broker.share_topics(self.consumer_group, self._client_id, shared)

    def _leave(self) -> None:
        for _, broker in sorted(self._backend.brokers().items()):
            try:
                broker.unregister(self.consumer_group, self._client_id)
            except ClientError as error:
                _log.warning("group %s: %s does not know that we left: %s", self.consumer_group, broker.name, error)

    def _broker(self, message_view: MessageView) -> Broker:
        name = message_view.broker_name
        broker = self._backend.brokers().get(name)
        if broker is None:
            raise UsageError(f"{message_view!r} is of broker {name!r}, which is not in this cluster")
        return broker

    def _submit(self, call: Callable[[], _T]) -> Future[_T]:
        with self._guard.entered():
            if self._closed:
                raise UsageError(f"the consumer of group {self.consumer_group!r} is closed")
            if self._threads is None:
                self._threads = Pool(_ASYNC_THREADS, "rmq-simple-consumer")
            return self._threads.submit(call)

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError(f"the consumer of group {self.consumer_group!r} is closed")


def _subscription(topic: str, filter_expression: Filter) -> Subscription:
    validate_topic(topic)
    if isinstance(filter_expression, FilterExpression):
        kind = FilterExpressionType(filter_expression.type)
        filter_expression = MessageSelector(kind.value, filter_expression.expression)
    return Subscription.of(topic, filter_expression)


def _milliseconds(name: str, duration: timedelta) -> int:
    if not isinstance(duration, timedelta) or duration < timedelta(0):
        raise UsageError(f"{name}={duration!r} is no datetime.timedelta of 0 or more")
    return duration // timedelta(milliseconds=1)
