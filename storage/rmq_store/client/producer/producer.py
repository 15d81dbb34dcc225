"""The producer: sends messages, retries, and knows which brokers to avoid (DefaultMQProducer.java).

    with Producer("pg_orders", "/data/store") as producer:
        producer.send(Message("Orders", b"..."))

The rules are in the modules beside this one: valid messages (`message_rules`), the choice of a queue
(`queue_selection`, `fault_strategy`), and retries (`send_loop`).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, NamedTuple, Self

from rmq_store import real_time
from rmq_store.arguments import checked_methods, integer
from rmq_store.client.backend.backend import Backend, Broker
from rmq_store.client.backend.local import StorePlaces, backend_of
from rmq_store.client.backend.queue_selection import (
    MessageQueueSelector,
    ThreadLocalIndex,
    select_message_queue_by_hash,
)
from rmq_store.client.producer.async_sending import AsyncSender, Limit, OnException, OnSuccess
from rmq_store.client.producer.fault_strategy import MQFaultStrategy
from rmq_store.client.producer.message_rules import MessagePreparer, check_producer_group, check_topic
from rmq_store.client.producer.producer_config import ProducerConfig
from rmq_store.client.producer.send_loop import Attempt, Request, SendLoop
from rmq_store.errors import UsageError
from rmq_store.format.frames.frame_check import SysFlag
from rmq_store.format.frames.message import Message
from rmq_store.format.text.recall_handle import RecallHandle
from rmq_store.protocol.errors import ClientErrorCode, MessageIllegalError, MQClientError
from rmq_store.protocol.messages import MessageQueue
from rmq_store.protocol.results import SendResult


@checked_methods("check", "send", "send_batch", "send_oneway", "send_async", constructor=True)
class Producer:
    """A producer of one group, for all topics. Safe for threads, not across fork.

    `backend` is a cluster, an argument of `LocalBackend` (a path, an open Store, several of them), or the name servers
    of real brokers as `rmq://ns1:9876;ns2:9876`. `shutdown` closes a cluster made from such an argument. `config`
    has the settings. `timer` (ms, never goes back) and `sleep` (ms) measure the time budget and the waits. `rng`
    chooses the first queue, and the jitter.

    The producer sends a message without a chosen queue to the queues in turn, and tries again after failures. A message
    with a `sharding_key`, a `selector` or an explicit queue is ordered: the producer sends it to that queue only, in
    one try. Retries carry the same UNIQ_KEY, so that consumers can detect duplicates.

    Each send is a new message: of the properties of a received message, which its maker hands on, those are left out
    that belong to that message (ids, retries, marks of brokers and mirrors; docs/columns.md). With `keep_unique_key` a
    send is a copy of one message: UNIQ_KEY and OUTBOX_ID stay, and consumers take it for that message.
    """

    def __init__(
        self,
        group: str,
        backend: Backend | StorePlaces,
        config: ProducerConfig | None = None,
        *,
        timer: Callable[[], float] = lambda: real_time.monotonic() * 1000,
        sleep: Callable[[float], None] = lambda duration_ms: time.sleep(duration_ms / 1000),
        rng: random.Random | None = None,
    ) -> None:
        check_producer_group(group)
        self.group = group
        self.config = config or ProducerConfig()
        self._given = backend
        self._backend: Backend | None = None
        self._state = "CREATE_JUST"
        self._timer = timer
        self._rng = rng or random.Random()
        self._indexes: dict[str, ThreadLocalIndex] = {}
        self._preparer = MessagePreparer(self.config)
        self._strategy = MQFaultStrategy(
            self.config.latency_preset,
            send_latency_fault_enable=self.config.send_latency_fault_enable,
            timer=timer,
            random_start=self._random_start,
        )
        self._loop = SendLoop(
            self.config, self._strategy, self._retries_not_ok, timer=timer, sleep=sleep, uniform=self._rng.uniform
        )
        self._async: AsyncSender | None = None
        self._is_of_block = False

    def start(self) -> None:
        """Make the producer ready. Opens stores that were given by path. Does nothing in a `with` block, which has done
        so.

        Raises:
            MQClientError: it was started before, or shut down.
        """
        if self._is_of_block and self._state == "RUNNING":
            return
        if self._state != "CREATE_JUST":
            raise MQClientError(f"the producer cannot be started: {self._state}")
        self._backend, self._close_own = backend_of(self._given)
        limited = self.config.enable_backpressure_for_async_mode
        self._async = AsyncSender(
            self.config.async_sender_threads,
            Limit(max(self.config.back_pressure_for_async_send_num, 10)) if limited else None,
            Limit(max(self.config.back_pressure_for_async_send_size, 1 << 20)) if limited else None,
        )
        self._state = "RUNNING"

    def shutdown(self) -> None:
        """Wait for asynchronous sends, and release all resources. Does nothing the second time, unless an interrupt
        (Ctrl-C) ended the first.
        """
        if self._state == "RUNNING":
            assert self._async is not None
            try:
                self._state = "SHUTDOWN_ALREADY"
                self._async.shutdown()
                self._close_own()
            except BaseException as error:
                if not isinstance(error, Exception):
                    self._state = "RUNNING"
                raise

    def __enter__(self) -> Self:
        """Start the producer, unless it runs. Raises as `start`."""
        if self._state != "RUNNING":
            self.start()
            self._is_of_block = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    def fetch_publish_message_queues(self, topic: str) -> list[MessageQueue]:
        """The queues that may be written.

        Raises:
            MQClientError: there are none: 10004 the cluster has no broker, 10005 no such topic.
        """
        self._check_running()
        check_topic(topic)
        return self._route(topic)

    def check(self, message: Message) -> None:
        """Refuse a message that `send` would refuse at any cluster, so that the caller does not keep it for later.

        Raises:
            MessageIllegalError: the message breaks a rule.
        """
        self._preparer.check(message)

    def send(
        self,
        message: Message,
        timeout: int | None = None,
        *,
        queue: MessageQueue | None = None,
        selector: MessageQueueSelector | None = None,
        arg: Any = None,
        keep_unique_key: bool = False,
    ) -> SendResult:
        """Send and wait for the outcome, at most `timeout` ms (default: send_msg_timeout).

        On return the message is stored, durable as the broker's flushDiskType says. With a status other than SEND_OK it
        is stored but perhaps not yet durable. After an error it may be stored too, unless nothing was sent.

        Raises:
            MessageIllegalError: the message breaks a rule; nothing was sent.
            MQClientError: no route, or the last try failed; `response_code` has the reason.
            MQBrokerError: an answer that is not retried.
            RemotingError: of an ordered message.
            RemotingTooMuchRequestError: the time was used up before a try.
            TimerNotSupportedError: the message has a deliver time, and brokers older than 5.0 would ignore it.
        """
        request = self._request(message, self._begin(timeout), _Wish(queue, selector, arg, keep_unique_key))
        if request.fixed_queue is not None:
            return self._loop.send_once(request)
        return self._loop.send(request, self.config.retry_times_when_send_failed)

    def send_batch(
        self,
        messages: Sequence[Message],
        timeout: int | None = None,
        *,
        queue: MessageQueue | None = None,
        keep_unique_key: bool = False,
    ) -> SendResult:
        """Send messages of one topic in one request to one queue: all of them are stored or none. Ids in the result are
        joined by commas, its offsets are those of the first. Bodies are not compressed. Raises as `send`.

        If the caller chooses `queue`, the messages may have any sharding keys, as in RocketMQ. The caller then keeps
        the order of a key by always choosing the same queue.
        """
        begin = self._begin(timeout)
        ready = self._preparer.prepare_batch(messages, self._cluster().clock(), keep_unique_key=keep_unique_key)
        if any(message.queue_id is not None for message in ready):
            raise MessageIllegalError("a batch goes to one queue: no queue ids in its messages", -1)
        if queue is None and len({message.sharding_key or None for message in ready}) > 1:
            raise MessageIllegalError("a batch goes to one queue: one sharding key at most, or an explicit queue", -1)

        def attempt(queue: MessageQueue, timeout_ms: int) -> SendResult:
            return self._broker(queue.broker_name).send_batch(ready, queue.queue_id, timeout_ms, self.group)

        request = self._routed(ready[0], attempt, begin, _Wish(queue, None, None, keep_unique_key))
        if request.fixed_queue is not None:
            return self._loop.send_once(request)
        return self._loop.send(request, self.config.retry_times_when_send_failed)

    def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: MessageQueueSelector | None = None,
        arg: Any = None,
        keep_unique_key: bool = False,
    ) -> None:
        """Send without waiting for an answer, in one try. An error that the broker answers is logged, not raised.

        Raises:
            MessageIllegalError, MQClientError, RemotingTooMuchRequestError: as `send`.
            RemotingError: of an ordered message.
        """
        self._loop.send_oneway(self._request(message, self._begin(None), _Wish(queue, selector, arg, keep_unique_key)))

    def send_async(
        self,
        message: Message,
        on_success: OnSuccess | None = None,
        on_exception: OnException | None = None,
        timeout: int | None = None,
        *,
        queue: MessageQueue | None = None,
        selector: MessageQueueSelector | None = None,
        arg: Any = None,
        keep_unique_key: bool = False,
    ) -> Future[SendResult]:
        """Send in the background. Every outcome goes to the callback, then to the future; also that of a message that
        breaks a rule. The callback runs in a thread of the producer (after a refusal by back-pressure: in the
        caller's). Blocks only for back-pressure. Raises MQClientError if the producer was not started.
        """
        begin = self._begin(timeout)
        assert self._async is not None

        def send() -> SendResult:
            request = self._request(message, begin, _Wish(queue, selector, arg, keep_unique_key))
            if request.fixed_queue is not None:
                return self._loop.send_once(request)
            return self._loop.send_async(request)

        for name, callback in (("on_success", on_success), ("on_exception", on_exception)):
            if not (callback is None or callable(callback)):
                raise UsageError(f"{name}: a function is expected, got {type(callback).__name__}")
        size = len(message.body) if isinstance(message, Message) and isinstance(message.body, bytes) else 0
        return self._async.submit(
            send, size, lambda: begin.timeout_ms - (self._timer() - begin.at_ms), on_success, on_exception
        )

    def recall_message(self, topic: str, recall_handle: str) -> str:
        """Take a message with a delivery time back, by `SendResult.recall_handle`, and return its unique key: it is
        never delivered. See `Store.recall_message` for a store; a broker needs its setting recallMessageEnable.

        Raises:
            UsageError: no such handle. MQClientError: no route, or the broker of the handle is not there.
            MQBrokerError: 16, the broker recalls no messages; 17, no such topic; 604, the message does not wait there
                any more, or the handle is one of another topic.
        """
        self._check_running()
        handle = RecallHandle.parse(recall_handle)
        self._route(topic)
        return self._broker(handle.broker_name).recall_message(topic, recall_handle)

    # -- for producers of transactions ------------------------------------------------------------------------------

    def _with_unique_key(self, message: Message) -> Message:
        """The message with its UNIQ_KEY. Raises as `check`."""
        self._preparer.check(message)
        return self._preparer.with_unique_key(message, self._cluster().clock(), keep_unique_key=False)

    def _send_half(self, message: Message, timeout: int | None) -> SendResult:
        """Send a message with its UNIQ_KEY and TRAN_MSG. It is tried again only if no broker can have received it.
        Raises as `send`.
        """
        request = self._request(message, self._begin(timeout), _Wish(None, None, None, True))
        if request.fixed_queue is not None:
            return self._loop.send_once(request)
        return self._loop.send(request, self.config.retry_times_when_send_failed)

    # -- making a request -------------------------------------------------------------------------------------------

    def _begin(self, timeout: int | None) -> _Begin:
        self._check_running()
        if timeout is not None:
            timeout = integer("timeout", timeout)
        return _Begin(self._timer(), self.config.send_msg_timeout if timeout is None else timeout)

    def _request(self, message: Message, begin: _Begin, wish: _Wish) -> Request:
        now_ms = self._cluster().clock()
        ready, sys_flag = self._preparer.prepare(message, now_ms, keep_unique_key=wish.keep_unique_key)

        def attempt(queue: MessageQueue, timeout_ms: int) -> SendResult:
            broker = self._broker(queue.broker_name)
            return broker.send(ready, queue.queue_id, timeout_ms, self.group, sys_flag=sys_flag)

        is_half = bool(sys_flag & SysFlag.TRANSACTION_PREPARED)
        return self._routed(message, attempt, begin, wish, is_half=is_half)

    def _routed(
        self, message: Message, attempt: Attempt, begin: _Begin, wish: _Wish, *, is_half: bool = False
    ) -> Request:
        fixed = wish.queue
        if fixed is not None:
            if not isinstance(fixed, MessageQueue):
                raise MessageIllegalError(f"queue={fixed!r} is no MessageQueue", -1)
            if fixed.topic != message.topic:
                raise MessageIllegalError(f"the message is for {message.topic!r}, the queue of {fixed.topic!r}", -1)
            queues = [fixed]
        else:
            queues = self._route(message.topic)
            fixed = _fixed_queue(queues, message, wish)
        index = self._indexes.setdefault(message.topic, ThreadLocalIndex(self._random_start))
        return Request(message.topic, queues, fixed, index, attempt, begin.at_ms, begin.timeout_ms, is_half)

    def _route(self, topic: str) -> list[MessageQueue]:
        cluster = self._cluster()
        queues = cluster.publish_queues(topic, self.config.default_topic_queue_nums)
        if not queues and not cluster.brokers():
            raise MQClientError("the cluster has no broker", ClientErrorCode.NO_NAME_SERVER_EXCEPTION)
        if not queues:
            reason = ""
            if cluster.subscribe_queues(topic):
                # Asked once more: somebody may have made it meanwhile.
                if queues := cluster.publish_queues(topic, self.config.default_topic_queue_nums):
                    return queues
                reason = ": it has no queue that may be written; look at its writeQueueNums and perm"
            raise MQClientError(
                f"No route info of this topic: {topic}{reason}", ClientErrorCode.NOT_FOUND_TOPIC_EXCEPTION
            )
        return queues

    def _broker(self, name: str) -> Broker:
        broker = self._cluster().brokers().get(name)
        if broker is None:
            raise MQClientError(f"The broker[{name}] not exist")
        return broker

    def _check_running(self) -> None:
        if self._state != "RUNNING":
            raise MQClientError(f"the producer is not running ({self._state}): start it, or use it in a with block")

    def _cluster(self) -> Backend:
        # Also while it shuts down: sends under way come to their end.
        assert self._backend is not None
        return self._backend

    def _retries_not_ok(self, broker_name: str) -> bool:
        own = self.config.retry_another_broker_when_not_store_ok
        return self._broker(broker_name).retry_another_broker_when_not_store_ok if own is None else own

    def _random_start(self) -> int:
        return self._rng.getrandbits(31)


class _Begin(NamedTuple):
    """The time at which a send began, by the producer's timer, and its time limit."""

    at_ms: float
    timeout_ms: int


class _Wish(NamedTuple):
    """The caller's choice of a queue for the message; and whether it is a copy, which keeps its ids."""

    queue: MessageQueue | None
    selector: MessageQueueSelector | None
    arg: Any
    keep_unique_key: bool


def _fixed_queue(queues: Sequence[MessageQueue], message: Message, wish: _Wish) -> MessageQueue | None:
    """The one queue of an ordered message; None for an ordinary one."""
    if wish.selector is not None:
        try:
            chosen = wish.selector(queues, message, wish.arg)
        except Exception as error:
            raise MQClientError(f"select message queue threw exception: {error!r}") from error
        if chosen is None:
            raise MQClientError("select message queue return null")
        if not isinstance(chosen, MessageQueue):
            raise MQClientError(f"select message queue returned {chosen!r}, which is no MessageQueue")
        return chosen
    if message.sharding_key:
        return select_message_queue_by_hash(queues, message, message.sharding_key)
    if message.queue_id is not None:
        named = [queue for queue in queues if queue.queue_id == message.queue_id]
        if not named:
            raise MessageIllegalError(f"no broker has queue {message.queue_id} of topic {message.topic!r}", -1)
        if len(named) > 1:
            raise MessageIllegalError(
                f"{len(named)} brokers have queue {message.queue_id} of topic {message.topic!r}: give queue=", -1
            )
        return named[0]
    return None
