"""A consumer that polls for messages: queues by subscription or by choice, seek, commit.

    with LitePullConsumer("cg_report", "/data/store") as consumer:
        consumer.subscribe("Orders")
        consumer.start()
        messages = consumer.poll(1000)

`subscribe`: the members of the group share the queues, which move when members come and go. `assign`: this consumer
reads the named queues, even if others read them. A message counts as consumed when `poll` is called again. `commit`
stores the consumed offsets; so do `poll` every five seconds, and `shutdown`. There are no retry topics here: the caller
handles failures. Nothing is pulled ahead of `poll`; Java's client pulls ahead on its own threads. Java's `shutdown`
does not store the offsets consumed after the last five-second commit. Sources: DefaultLitePullConsumer.java,
DefaultLitePullConsumerImpl.java, AssignedMessageQueue.java.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from types import TracebackType

from rmq_store import real_time
from rmq_store.arguments import checked_methods
from rmq_store.broker.filter.subscription import MessageSelector, Subscription
from rmq_store.client.backend.backend import Backend, broker_of
from rmq_store.client.backend.local import StorePlaces, backend_of
from rmq_store.client.consume_service.ordered_process_queue import OrderedProcessQueue
from rmq_store.client.consumer.lite_pull_service import LitePullService
from rmq_store.client.consumer.polled_offsets import PolledOffsets
from rmq_store.client.group.client_id import make_client_id
from rmq_store.client.group.consumer_config import LitePullConsumerConfig, MessageModel
from rmq_store.client.group.membership import Membership, report_never_started
from rmq_store.client.group.offset_store import checked_offset, open_offset_store
from rmq_store.client.group.rebalance import Assignment, Rebalance
from rmq_store.client.group.timers import SteadyClock
from rmq_store.errors import UsageError
from rmq_store.files.locks.background import Background
from rmq_store.files.locks.guard import Event, Guard
from rmq_store.format.text.names import validate_group, validate_topic
from rmq_store.protocol.errors import ClientError, ClientErrorCode, MQClientError
from rmq_store.protocol.messages import MessageExt, MessageQueue

_WAIT_S = 0.02
_BEAT_S = 0.2

_log = logging.getLogger(__name__)


@checked_methods("seek", constructor=True)
class LitePullConsumer:
    """A consumer driven by `poll`. Safe for threads; a second `poll` waits until the first one ends its round.
    `backend`: as for PushConsumer.

    Raises (when constructed):
        UsageError: a bad group name or configuration.
    """

    def __init__(
        self,
        consumer_group: str,
        backend: Backend | StorePlaces,
        config: LitePullConsumerConfig | None = None,
        *,
        client_id: str | None = None,
    ) -> None:
        validate_group(consumer_group)
        self.config = config or LitePullConsumerConfig()
        self.consumer_group = consumer_group
        self.auto_commit = self.config.auto_commit
        self._backend, self._close_own = backend_of(backend)
        is_broadcasting = self.config.message_model is MessageModel.BROADCASTING
        self.client_id = client_id or make_client_id(
            self.config.instance_name, is_broadcasting=is_broadcasting, suffix="@STREAM"
        )
        self._guard = Guard()
        self._subscriptions: dict[str, Subscription] = {}
        self._assigned: dict[MessageQueue, Assignment[OrderedProcessQueue]] | None = None
        self._polled = PolledOffsets()
        self._paused: set[MessageQueue] = set()
        self._state = "new"
        self._steady_clock = SteadyClock(self._backend.clock)
        self._next_auto_commit_ms = -1
        self._offsets = open_offset_store(self._backend, consumer_group, self.client_id, self.config)
        self._pulls = LitePullService(
            self._backend, consumer_group, self.config, self._offsets, self._polled, self._steady_clock
        )
        self._rebalance = Rebalance(
            self._backend,
            consumer_group,
            self.client_id,
            self.config,
            self._offsets,
            OrderedProcessQueue,
            ordered=False,
            on_removed=lambda assignment: self._forget(assignment.queue),
        )
        self._membership = Membership(
            self._backend, consumer_group, self.client_id, self._rebalance, self._topics,
            shares=not is_broadcasting, guard=self._guard,
        )  # fmt: skip
        self._failure: BaseException | None = None
        self._ending = Event()
        self._thread = Background(self._stay_alive, f"LitePull_{consumer_group}")

    def __enter__(self) -> LitePullConsumer:
        """Leave the start to `start` in the block: the consumer may be set up there."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Shut the consumer down. UsageError: it was set up, and nobody has started it."""
        is_idle = self._state == "new" and (bool(self._subscriptions) or self._assigned is not None)
        self.shutdown()
        if is_idle:
            report_never_started(self.consumer_group, "subscribe() or assign()", error)

    # -- what to read -----------------------------------------------------------------------------------------------

    def subscribe(self, topic: str, selector: str | MessageSelector = "*") -> None:
        """Share a topic's queues with the group.

        Raises:
            UsageError: a bad topic or expression, or queues were assigned.
            LeaseHeldError: started, and a stream of the group reads the topic; nothing has changed.
            ClientError: started, and a broker cannot be reached; nothing has changed.
        """
        validate_topic(topic)
        with self._guard.entered():
            if self._assigned is not None:
                raise UsageError("subscribe() and assign() exclude each other")
            self._subscribe({**self._subscriptions, topic: Subscription.of(topic, selector)})

    def unsubscribe(self, topic: str) -> None:
        """Release a topic's queues."""
        with self._guard.entered():
            self._subscriptions = {name: each for name, each in self._subscriptions.items() if name != topic}
            self._membership.hurry()

    def _subscribe(self, wanted: dict[str, Subscription]) -> None:
        def change() -> None:
            self._subscriptions = wanted

        if self._state == "running":
            self._membership.change_topics(wanted, change)
        else:
            change()

    def assign(self, queues: Iterable[MessageQueue]) -> None:
        """Read exactly these queues. Queues that were assigned before continue at their position.

        Raises:
            UsageError: topics were subscribed to.
            MQClientError: one of the queues does not exist; nothing has changed.
        """
        with self._guard.entered():
            if self._subscriptions and self._assigned is None:
                raise UsageError("subscribe() and assign() exclude each other")
            known, wanted = self._assigned or {}, sorted(set(queues))
            for queue in wanted:
                if queue not in known:
                    self._check_exists(queue)
            for queue in known.keys() - set(wanted):
                self._forget(queue)
            self._assigned = {
                queue: known.get(queue) or Assignment(queue, OrderedProcessQueue(), -1) for queue in wanted
            }

    def set_sub_expression_for_assign(self, topic: str, selector: str | MessageSelector) -> None:
        """Filter the assigned queues of a topic. UsageError: a bad expression, or started already."""
        with self._guard.entered():
            if self._state != "new":
                raise UsageError("set_sub_expression_for_assign() comes before start()")
            self._assigned = self._assigned or {}
            self._subscriptions = {**self._subscriptions, topic: Subscription.of(topic, selector)}

    def fetch_message_queues(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic that can be read, sorted."""
        return self._backend.subscribe_queues(topic)

    def assignment(self) -> list[MessageQueue]:
        """The queues that are read now, sorted."""
        with self._guard.entered():
            return self._queues()

    # -- life -------------------------------------------------------------------------------------------------------

    def start(self, *, threads: bool = True) -> None:
        """Join the group. A thread keeps this consumer in the group between polls; without `threads` only `poll` does.

        Raises:
            UsageError: started before.
            LeaseHeldError: another live member has this client id, or a stream of the group reads a subscribed topic.
            ClientError: a broker cannot be reached; nothing was started.
        """
        with self._guard.entered():
            if self._state != "new":
                raise UsageError(f"consumer group {self.consumer_group!r}: it was started before; make a new consumer")
            self._membership.join()
            self._state = "running"
            if threads:
                self._thread.start()

    def shutdown(self) -> None:
        """Store the committed offsets, with `auto_commit` also the consumed ones, and leave the group. Messages that
        the last `poll` returned come again unless they were committed. Does nothing the second time. Raises
        ClientError.
        """
        before = ""
        try:
            with self._guard.entered():
                before = self._state
                self._state = "ended"
            if before == "new":
                self._close_own()
            elif before == "running":
                self._end()
        except BaseException as error:
            if not isinstance(error, Exception):  # an interrupt (Ctrl-C): it is to be shut down again
                self._state = before or self._state
            raise

    def _end(self) -> None:
        self._ending.set()
        self._thread.join()
        try:
            with self._guard.entered():
                if self.auto_commit:
                    self._set_committed(self._polled.consumed(self._queues()))
                self._offsets.persist(self._queues())
        finally:
            try:
                self._membership.leave()
            finally:
                self._close_own()

    # -- reading ----------------------------------------------------------------------------------------------------

    def poll(self, timeout_millis: int | None = None) -> list[MessageExt]:
        """The next messages of one of the queues, at most `pull_batch_size`; [] if none came within the time.

        Raises:
            UsageError: not running.
            The error that ended the thread of `start`.
        """
        wait_ms = self.config.poll_timeout_millis if timeout_millis is None else timeout_millis
        deadline = real_time.monotonic() + wait_ms / 1000
        with self._guard.entered():
            self._check_running()
            self._polled.begin_poll()
        while True:
            with self._guard.entered():
                self._check_running()
                self._maybe_auto_commit()
                self._membership.run_due()
                messages = self._pulls.next_messages(self._assignments(), self._subscriptions, self._paused)
            left_s = deadline - real_time.monotonic()
            if messages or left_s <= 0:
                return messages
            time.sleep(min(left_s, _WAIT_S))

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue at `offset` of a queue. The next commit stores this offset, too.

        Raises:
            MQClientError: the queue does not (or no longer) belong to this consumer; or the offset is no number, or
                outside of the queue.
        """
        self._seek(queue, lambda first, last: offset)

    def seek_to_begin(self, queue: MessageQueue) -> None:
        """Continue at the first message that still exists. Raises as `seek`."""
        self._seek(queue, lambda first, last: first)

    def seek_to_end(self, queue: MessageQueue) -> None:
        """Continue after the last message. Raises as `seek`."""
        self._seek(queue, lambda first, last: last)

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Leave these queues out of `poll`."""
        with self._guard.entered():
            self._paused.update(queues)

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Read these queues again."""
        with self._guard.entered():
            self._paused.difference_update(queues)

    def offset_for_timestamp(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The first offset stored at or after the time. Raises ClientError, as for a queue that does not exist."""
        self._check_exists(queue)
        return broker_of(self._backend, queue).offset_by_time(queue, timestamp_ms)

    # -- progress ---------------------------------------------------------------------------------------------------

    def commit(
        self, offsets: Mapping[MessageQueue, int] | Collection[MessageQueue] | None = None, *, persist: bool = True
    ) -> None:
        """Commit the polled offsets of all queues, of the given queues, or the given offsets. Durable on return, unless
        `persist` is False: then with the next commit or at shutdown.

        Raises:
            MQClientError: an impossible offset, a queue that does not (or no longer) belong to this consumer, or an
                unknown broker. Nothing is committed, and the state of this consumer has not changed.
            ClientError: a broker did not answer; its part is committed with the next commit or at shutdown.
        """
        with self._guard.entered():
            self._commit(offsets, persist=persist)

    def committed(self, queue: MessageQueue) -> int | None:
        """The last committed offset; None: never committed. Raises ClientError, as for a queue that does not exist."""
        self._check_exists(queue)
        return self._offsets.read(queue)

    # -- steps ------------------------------------------------------------------------------------------------------

    def _seek(self, queue: MessageQueue, choose: Callable[[int, int], int]) -> None:
        """Continue at the offset that `choose` takes of [first, last]: asked for once, as retention moves the first."""
        with self._guard.entered():
            assignment = self._find(queue)
            broker = broker_of(self._backend, queue)
            first, last = broker.min_offset(queue), broker.max_offset(queue)
            number = checked_offset(queue, choose(first, last))
            if not first <= number <= last:
                raise MQClientError(f"{queue}: offset {number} is not in {first}..{last}")
            assignment.next_offset = number
            self._polled.seek(queue, number)

    def _maybe_auto_commit(self) -> None:
        now_ms = self._steady_clock()
        if self.auto_commit and now_ms >= self._next_auto_commit_ms:
            self._next_auto_commit_ms = now_ms + self.config.auto_commit_interval_millis
            try:
                self._commit(None, persist=True)
            except ClientError as error:
                _log.warning("group %s: progress is not stored yet: %s", self.consumer_group, error)

    def _commit(self, offsets: Mapping[MessageQueue, int] | Collection[MessageQueue] | None, *, persist: bool) -> None:
        ours = self._queues() if offsets is None else list(offsets)
        for queue in ours:
            broker_of(self._backend, queue)
        if isinstance(offsets, Mapping):
            chosen = {self._find(queue).queue: checked_offset(queue, offset) for queue, offset in offsets.items()}
        else:
            chosen = self._polled.of(ours)
        self._set_committed(chosen)
        if persist:
            self._offsets.persist(chosen.keys())

    def _set_committed(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Set these offsets as the next ones to store."""
        for queue, offset in offsets.items():
            self._offsets.update(queue, offset, increase_only=False)
            self._polled.committed(queue)

    def _assignments(self) -> Collection[Assignment[OrderedProcessQueue]]:
        return self._rebalance.assignments() if self._assigned is None else self._assigned.values()

    def _queues(self) -> list[MessageQueue]:
        return sorted(each.queue for each in self._assignments())

    def _find(self, queue: MessageQueue) -> Assignment[OrderedProcessQueue]:
        for assignment in self._assignments():
            if assignment.queue == queue:
                return assignment
        raise MQClientError(f"{queue} is not assigned to this consumer, perhaps not any more")

    def _check_exists(self, queue: MessageQueue) -> None:
        """Raise MQClientError if the broker, topic or queue does not exist."""
        broker_of(self._backend, queue)
        if queue not in self._backend.subscribe_queues(queue.topic):
            code = ClientErrorCode.NOT_FOUND_TOPIC_EXCEPTION
            raise MQClientError(f"{queue} does not exist, or may not be read", code)

    def _forget(self, queue: MessageQueue) -> None:
        self._polled.forget(queue)
        self._paused.discard(queue)

    def _stay_alive(self) -> None:
        try:
            while not self._ending.wait(_BEAT_S):
                self._membership.run_due()
        except BaseException as error:
            _log.exception("group %s: consumption stops", self.consumer_group)
            self._failure = error

    def _topics(self) -> Collection[str]:
        return self._subscriptions if self._assigned is None else ()

    def _check_running(self) -> None:
        if self._state != "running":
            raise UsageError(f"consumer group {self.consumer_group!r}: this consumer is not running")
        if self._failure is not None:
            raise self._failure
