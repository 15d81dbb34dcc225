"""A consumer that calls a listener with the messages of its topics, retries included.

    consumer = PushConsumer("cg_orders", "/data/store", PushConsumerConfig(max_reconsume_times=3))
    consumer.subscribe("Orders", "TagA || TagB")
    consumer.register_message_listener(MessageListenerConcurrently(handle))
    consumer.start()
    ...
    consumer.shutdown()

A MessageListenerArrow gets rows instead of objects, a MessageListenerOrderly the messages of a queue in order.

One thread pulls, one runs the timers, and `consume_thread_nums` threads call the listener. With `start(threads=False)`
no thread runs: each `run_once` is one round of everything, on the caller's thread. Delivery is at least once. If a
consumer dies, its unfinished messages are delivered again. So are the finished ones after the smallest unfinished
message of their queue. Sources: DefaultMQPushConsumerImpl.java, MQClientInstance.java.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from types import TracebackType

from rmq_store.arguments import checked_methods
from rmq_store.broker.filter.subscription import MessageSelector, Subscription
from rmq_store.client.backend.backend import Backend
from rmq_store.client.backend.local import StorePlaces, backend_of
from rmq_store.client.consume_service.executor import Executor
from rmq_store.client.consume_service.listener import MessageListener, MessageListenerOrderly
from rmq_store.client.consumer.due_messages import deliver_due
from rmq_store.client.consumer.push_parts import make_parts
from rmq_store.client.group.client_id import make_client_id
from rmq_store.client.group.consumer_config import MessageModel, PushConsumerConfig
from rmq_store.client.group.membership import report_never_started
from rmq_store.errors import UsageError
from rmq_store.files.locks.background import Background
from rmq_store.files.locks.guard import Event, Guard
from rmq_store.format.text.names import retry_topic, validate_group, validate_topic
from rmq_store.protocol.errors import ClientError
from rmq_store.protocol.messages import MessageQueue

PERSIST_FIRST_MS, PERSIST_MS = 10_000, 5000

_log = logging.getLogger(__name__)


@checked_methods("register_message_listener", constructor=True)
class PushConsumer:
    """A member of a consumer group. `backend`: a cluster, an argument of `LocalBackend` (a path, an open Store, several
    of them), or the name servers of real brokers as `rmq://ns1:9876;ns2:9876`. `shutdown` closes a cluster that was
    made from such an argument. `client_id` None: generated, see `PushConsumerConfig.instance_name`.

    Raises (when constructed):
        UsageError: a bad group name or configuration.
    """

    def __init__(
        self,
        consumer_group: str,
        backend: Backend | StorePlaces,
        config: PushConsumerConfig | None = None,
        *,
        client_id: str | None = None,
    ) -> None:
        validate_group(consumer_group)
        self.config = config or PushConsumerConfig()
        self.consumer_group = consumer_group
        self._backend, self._close_own = backend_of(backend)
        self._is_clustering = self.config.message_model is MessageModel.CLUSTERING
        self.client_id = client_id or make_client_id(self.config.instance_name, is_broadcasting=not self._is_clustering)
        self._subscriptions: dict[str, Subscription] = {}
        self._listener: MessageListener | None = None
        self._state = "new"
        # A listener may end its consumer while that still starts.
        self._guard = Guard()
        # Held by `run_once`, but not while listeners run.
        self._round = Guard()
        self._suspended = False
        self._failure: BaseException | None = None
        self._ending = Event()
        self._loops: list[Background] = []
        self._executor = Executor(self._backend.clock)

    def __enter__(self) -> PushConsumer:
        """Leave the start to `start` in the block: the consumer may be set up there."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Shut the consumer down. UsageError: it was set up, and nobody has started it."""
        is_idle = self._state == "new" and (self._listener is not None or bool(self._subscriptions))
        self.shutdown()
        if is_idle:
            report_never_started(self.consumer_group, "subscribe() and register_message_listener()", error)

    # -- before it starts -------------------------------------------------------------------------------------------

    def subscribe(self, topic: str, selector: str | MessageSelector = "*") -> None:
        """Consume a topic; `selector`: "TagA || TagB" or a MessageSelector. A second call replaces the first.

        Raises:
            UsageError: a bad topic name or expression.
            LeaseHeldError: started, and a stream of the group reads the topic; nothing has changed.
            ClientError: started, and a broker cannot be reached; nothing has changed.
        """
        validate_topic(topic)
        subscription = Subscription.of(topic, selector)

        def change() -> None:
            self._subscriptions = {**self._subscriptions, topic: subscription}

        if self._state == "running":
            self._membership.change_topics({*self._subscriptions, topic}, change)
        else:
            change()

    def unsubscribe(self, topic: str) -> None:
        """Stop consuming the topic. A rebalance follows at once, and releases its queues."""
        self._subscriptions = {name: each for name, each in self._subscriptions.items() if name != topic}
        if self._state == "running":
            self._membership.hurry()

    def register_message_listener(self, listener: MessageListener) -> None:
        """Set the listener. Its class decides whether it gets rows, and whether in order. Raises UsageError for any
        other class, for a listener that a broadcasting consumer cannot have, and after `start`.
        """
        if not isinstance(listener, MessageListener):
            raise UsageError(
                "a listener is a MessageListenerConcurrently, a MessageListenerArrow or a MessageListenerOrderly, "
                f"not {type(listener).__name__}: MessageListenerConcurrently(function) makes one of a function"
            )
        if listener.requires_clustering and not self._is_clustering:
            raise UsageError(
                f"consumer group {self.consumer_group!r} is broadcasting: this listener does each message once for the "
                "whole group, so other members would not get it. Use MessageModel.CLUSTERING"
            )
        if self._state != "new":
            raise UsageError("the listener is registered before start()")
        self._listener = listener

    def start(self, *, threads: bool = True) -> None:
        """Join the group and acquire queues; messages come from now on (without `threads`: by `run_once`).

        Raises:
            UsageError: no listener, no subscription, started before, or shut down while it started.
            LeaseHeldError: another live member has this client id, or a stream of the group reads one of the topics.
            ClientError: a broker cannot be reached; nothing was started.
        """
        if self._state != "new":
            raise UsageError(f"consumer group {self.consumer_group!r}: it was started before; make a new consumer")
        if self._listener is None or not self._subscriptions:
            raise UsageError("a consumer needs subscribe() and register_message_listener() before start()")
        if self._is_clustering:
            self.subscribe(retry_topic(self.consumer_group))
        self._offsets, self._rebalance, self._membership, self._pulls = make_parts(
            self._listener, self._backend, self.consumer_group, self.client_id, self.config, self._executor,
            lambda: self._subscriptions,
        )  # fmt: skip
        self._membership.every(PERSIST_MS, self._persist, first_ms=PERSIST_FIRST_MS)
        self._membership.join()
        try:
            self._publish_max_reconsume_times()
            with self._guard.entered():
                if self._state != "new":  # a shutdown that found nothing to stop
                    raise UsageError(f"consumer group {self.consumer_group!r}: it was shut down while it started")
                self._state = "running"
        except BaseException:
            self._membership.leave()
            raise
        if threads:
            with self._guard.entered():
                self._start_threads()

    def _start_threads(self) -> None:
        self._executor.start(self.config.consume_thread_nums, f"ConsumeMessageThread_{self.consumer_group}")
        for name, loop in (("PullMessageService", self._pull_round), ("ClientFactoryScheduled", self._timer_round)):
            name = f"{name}_{self.consumer_group}"
            thread = Background(functools.partial(self._loop, loop), name)
            self._loops.append(thread)
            thread.start()

    # -- while it runs ----------------------------------------------------------------------------------------------

    def run_once(self) -> bool:
        """One round on this thread: timers, delivery of due messages, a pull of each queue, and the listener for pulled
        messages. True if anything progressed; until it is False there may be more to do now.

        Raises:
            UsageError: not started; or started with threads, which do the same work; or called by a signal handler
                during such a round of its own thread.
        """
        self._check_running()
        if self._loops:
            raise UsageError("run_once() is for a consumer that was started with threads=False")
        with self._round.entered():
            self._timer_round()
            moved = self._pull_round()
        return self._executor.run_ready() > 0 or moved

    @property
    def failure(self) -> BaseException | None:
        """The error that ended a thread of this consumer, which then consumes no more. `shutdown` raises it."""
        return self._failure or self._executor.failure

    def suspend(self) -> None:
        """Pull nothing until `resume`; messages already pulled are still consumed."""
        self._suspended = True

    def resume(self) -> None:
        """Pull again."""
        self._suspended = False

    def queues(self) -> list[MessageQueue]:
        """The queues that this consumer has now, sorted."""
        self._check_running()
        return self._rebalance.queues()

    def persist_consumer_offset(self) -> None:
        """Store the progress of all queues now; durable on return. Raises ClientError."""
        self._check_running()
        self._offsets.persist(self._rebalance.queues())

    def shutdown(self) -> None:
        """Stop pulling, wait for running listeners, store the progress, unlock and leave the group. Messages that were
        pulled but not begun are left to other members. Does nothing the second time, unless an interrupt (Ctrl-C) ended
        the first call.

        Raises:
            UsageError: a signal handler called this in the middle of `run_once` on its own thread. Nothing was done;
                or, while
                a message was being settled, the group was left without storing the progress.
            ClientError: a broker did not store the progress since the last time: those messages come again.
            The error that ended a thread of this consumer, see `failure`.
        """
        before = ""
        try:
            with self._round.entered(), self._guard.entered():
                before = self._state
                self._state = {"new": "ended", "running": "stopping"}.get(before, before)
            if before == "new":
                self._close_own()
            elif before == "running":
                self._end()
                self._state = "ended"
        except BaseException as error:
            if not isinstance(error, Exception):  # an interrupt (Ctrl-C): it is to be shut down again
                self._state = before if before in ("new", "running") else self._state
            elif before == "running":
                self._state = "ended"
            raise
        if before == "running" and self.failure is not None:
            raise self.failure

    def _end(self) -> None:
        self._ending.set()
        for thread in self._loops:
            thread.join()
        if not self._executor.stop(self.config.await_termination_millis_when_shutdown):
            _log.warning("group %s: listeners still run; their messages come again", self.consumer_group)
        try:
            if self.failure is None:
                self._offsets.persist(self._rebalance.queues())
                self._rebalance.remove_all()
        finally:
            try:
                self._membership.leave()
            finally:
                self._close_own()

    # -- rounds -----------------------------------------------------------------------------------------------------

    def _loop(self, work: Callable[[], bool]) -> None:
        try:
            while not self._ending.is_set() and self.failure is None:
                if not work():
                    self._ending.wait(self.config.poll_interval_millis / 1000)
        except BaseException as error:
            _log.exception("group %s: consumption stops", self.consumer_group)
            self._failure = self._failure or error
        if self.failure is not None:
            # Others take over at once; what this consumer has not done is void.
            self._membership.leave()

    def _timer_round(self) -> bool:
        self._membership.run_due()
        return False

    def _pull_round(self) -> bool:
        """Deliver due messages and pull each queue once; True if the position of one of them changed."""
        self._executor.release_due()
        deliver_due(self._backend.brokers())
        if self._suspended:
            return False
        return self._pulls.pull_all(self._subscriptions)

    def _persist(self) -> None:
        try:
            self._offsets.persist(self._rebalance.queues())
        except ClientError as error:
            _log.warning("group %s: progress is not stored yet: %s", self.consumer_group, error)

    # -- parts ------------------------------------------------------------------------------------------------------

    def _publish_max_reconsume_times(self) -> None:
        """Make this consumer's maximum the group's, for members that set none themselves; the last consumer wins."""
        times = self.config.max_reconsume_times
        if self._is_clustering and times != -1 and not isinstance(self._listener, MessageListenerOrderly):
            for _, broker in sorted(self._backend.brokers().items()):
                broker.set_max_reconsume_times(self.consumer_group, times)

    def _check_running(self) -> None:
        if self._state != "running":
            raise UsageError(f"consumer group {self.consumer_group!r}: this consumer is not running")
