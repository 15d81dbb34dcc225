"""A consumer group that does each message once: `Idempotency`, and what it makes of a handler.

    with Idempotency("cg_stock", engine, redis="env:REDIS_URL") as once:
        consumer.register_message_listener(once.concurrently(take_from_stock))

    def take_from_stock(connection, message):
        connection.execute(stock.update()..., ...)      # commits together with the inbox row: exactly once

H01 to H08 of docs/conformance.md. RocketMQ has nothing of the kind ("not considered", apache/rocketmq#10263); answers
are those of ConsumeMessageConcurrentlyService, ConsumeMessageOrderlyService and SimpleConsumerImpl.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa
import sqlalchemy as sa

from rmq_store.client import (
    ConsumeConcurrentlyContext,
    ConsumeConcurrentlyStatus,
    ConsumeOrderlyContext,
    ConsumeOrderlyStatus,
    MessageExt,
    MessageListenerArrow,
    MessageListenerConcurrently,
    MessageListenerOrderly,
    SimpleConsumer,
)
from rmq_store.errors import UsageError
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.reliable.database import leases
from rmq_store.reliable.database.drivers import require_engine
from rmq_store.reliable.database.engine import open_engine
from rmq_store.reliable.database.tables import Tables
from rmq_store.reliable.database.transact import transact
from rmq_store.reliable.inbox import inbox
from rmq_store.reliable.inbox.consume_counters import ConsumeCounts, Counters
from rmq_store.reliable.inbox.deliveries import (
    OF_BODY,
    OF_ROW,
    RETRY_LADDER_MS,
    Ladder,
    Retry,
)
from rmq_store.reliable.inbox.effect import GroupTables
from rmq_store.reliable.inbox.exactly_once import ExactlyOnce, HandlerOutcome
from rmq_store.reliable.inbox.handler_connection import HandlerRunner
from rmq_store.reliable.inbox.handling import ArrowHandler, Handling
from rmq_store.reliable.inbox.lease_keeper import LeaseKeeper
from rmq_store.reliable.inbox.redis_filter import RedisFilter, open_client

if TYPE_CHECKING:
    import redis as redis_client

    from rmq_store.reliable.outbox.outbox import Outbox

L = TypeVar("L", MessageListenerArrow, MessageListenerConcurrently, MessageListenerOrderly)

MAX_RECONSUME_TIMES: Final = 16
ALWAYS_AGAIN: Final = -1
"""Of an ordered consumer: its default, it never gives a message up."""

STORE_RETENTION_MS: Final = 72 * 3_600_000
"""RocketMQ's fileReservedTime."""

BUSY_WAIT_MS: Final = 30_000
SUSPEND_MS: Final = 1000
SUSPEND_MS_MAX: Final = 30_000
_DAY_MS: Final = 24 * 3_600_000

ConnectionHandler = Callable[[sa.Connection, MessageExt], object]
OutsideHandler = Callable[[MessageExt], object]


@dataclass(frozen=True, slots=True)
class ReceiveCounts:
    """The counts of one `Idempotency.receive`: messages acknowledged, held by another worker, and failed."""

    done: int = 0
    later: int = 0
    failed: int = 0


class Idempotency:
    """Everything that makes a group idempotent. Safe for threads, not across fork. Close it after its consumers.

    `engine`: of the database of the effects, or a reference for `open_engine`. Each consuming thread uses one
    connection at a time, and so does the thread that renews leases: the pool must be as large. `stubs`: the engine of
    the stubs if they are in another database. `outbox`: an outbox of this database. Messages that handlers add to it
    are sent right after the commit; without it, a relay sends them. `redis`: a client (give it a short socket
    time-out), or a reference to its URL: `env:NAME`, `file:/path`, a URL. `lease_ms`: the time after which another
    worker may take over from one that died; the lease is renewed while a handler runs. `retry_ladder_ms`,
    `max_reconsume_times`: the waits before the group's retries, and their number, as its consumers and brokers have
    them. A failed message is not resent until its next retry is due and `retry_slack_ms` more. `inbox_retention`: how
    long a duplicate is recognised. It must be longer than a resend or redrive may take, and never counts for less than
    the store's retention (72 h) and the ladder together. `busy_wait_ms`: how long a listener waits for a message that
    another worker has, before it asks for a later delivery; if no delivery is left, it waits without limit.
    `redis_prefix`: begins each key; use one per environment if several share a Redis. `clock`: the wall clock in ms.

    While the database is unavailable, listeners keep their messages, and do not answer.

    Raises (when constructed):
        UsageError: a reference that cannot be resolved, or a number outside its range.
    """

    def __init__(
        self,
        group: str,
        engine: sa.Engine | str,
        tables: Tables | None = None,
        *,
        redis: redis_client.Redis | str | None = None,
        stubs: sa.Engine | str | None = None,
        outbox: Outbox | None = None,
        lease_ms: int = 60_000,
        retry_ladder_ms: Sequence[int] = RETRY_LADDER_MS,
        retry_slack_ms: int = 60_000,
        max_reconsume_times: int = MAX_RECONSUME_TIMES,
        inbox_retention: timedelta = timedelta(days=30),
        redis_prefix: str = "rmq:",
        busy_wait_ms: int = BUSY_WAIT_MS,
        clock: Callable[[], int] = leases.now_ms,
    ) -> None:
        if not isinstance(group, str) or not group:
            raise UsageError(f"group={group!r}: the name of a consumer group is expected")
        _check_number("lease_ms", lease_ms, 1, _DAY_MS)
        _check_number("retry_slack_ms", retry_slack_ms, 0, _DAY_MS)
        _check_number("max_reconsume_times", max_reconsume_times, 0, 1 << 31)
        _check_number("busy_wait_ms", busy_wait_ms, 0, _DAY_MS)
        if not retry_ladder_ms:
            raise UsageError("retry_ladder_ms is empty: at least one step is expected")
        for step_ms in retry_ladder_ms:
            _check_number("retry_ladder_ms", step_ms, 0, _DAY_MS)
        if not isinstance(inbox_retention, timedelta) or inbox_retention <= timedelta(0):
            raise UsageError(f"inbox_retention={inbox_retention!r}: a datetime.timedelta of more than 0 is expected")
        self.group = group
        self.tables = tables if tables is not None else Tables()
        self._ladder = Ladder(tuple(retry_ladder_ms), max_reconsume_times)
        self._busy_wait_ms = busy_wait_ms
        self._clock = clock
        self._ending = threading.Event()
        self._counters = Counters()
        self._retention_ms = max(
            inbox_retention // timedelta(milliseconds=1), STORE_RETENTION_MS + sum(retry_ladder_ms)
        )
        self._close: list[Callable[[], object]] = []
        try:
            self._engine = self._engine_of(engine)
            stubs_engine = None if stubs is None else self._engine_of(stubs)
            group_tables = GroupTables(group, self._engine, self.tables, stubs_engine)
            redis_filter = None if redis is None else self._filter(redis, redis_prefix, lease_ms)
        except BaseException:
            self.close()
            raise
        handlers = HandlerRunner(self._engine)
        keeper = LeaseKeeper(self._engine, self.tables, group, lease_ms=lease_ms, clock=clock, redis=redis_filter)
        self._close += [handlers.close, keeper.close]
        once = ExactlyOnce(
            group_tables, keeper, self._counters, handlers, self._ending,
            redis=redis_filter, outbox=outbox, lease_ms=lease_ms, slack_ms=retry_slack_ms, clock=clock,
        )  # fmt: skip
        self._outage = once.worker_wait.outage
        self._handling = Handling(
            once, group_tables, self._ladder, self._counters, self._ending, busy_wait_ms=busy_wait_ms, clock=clock
        )

    # -- listeners ----------------------------------------------------------------------------------------------------

    def concurrently(
        self, handler: ConnectionHandler | OutsideHandler, outside: bool = False
    ) -> MessageListenerConcurrently:
        """A listener for a PushConsumer. `handler(connection, message)` writes its effect through the connection:
        exactly once, durable before the answer. With `outside`, `handler(message)` has its effect elsewhere: at least
        once, and the manual list names the messages in doubt.

        All messages of a batch are tried. Those before the first one that is not done are acknowledged. Later ones that
        are done come again, and are recognised.
        """

        def consume(messages: Sequence[MessageExt], context: ConsumeConcurrentlyContext) -> ConsumeConcurrentlyStatus:
            outcomes: list[HandlerOutcome] = []
            longest_ms = 0
            for message in messages:
                retry = self._ladder.retry(message.reconsume_times)
                with self._handling.extending(context.extend):
                    outcome, wait_ms = self._handling.message(
                        message, context.message_queue.topic, retry, handler, outside, self._busy_wait_ms
                    )
                outcomes.append(outcome or HandlerOutcome.FAILED)
                longest_ms = max(longest_ms, wait_ms)
            return self._handling.answer(context, outcomes, longest_ms)

        return _of_group(MessageListenerConcurrently(consume))

    def orderly(
        self,
        handler: ConnectionHandler | OutsideHandler,
        outside: bool = False,
        *,
        suspend_ms: int = SUSPEND_MS,
        max_reconsume_times: int = ALWAYS_AGAIN,
    ) -> MessageListenerOrderly:
        """As `concurrently`, in the order of each queue. The first message that is not done ends its batch, and
        suspends the queue for `suspend_ms`. If another worker has the message, the queue is suspended until that lease
        ends, at most 30 s at a time.

        `max_reconsume_times`: the consumer's. With -1, its default, a message is retried for ever. A message without an
        id would then suspend its queue for ever. So it is put on the manual list (no_id), and the queue goes on.
        """
        _check_number("suspend_ms", suspend_ms, 0, SUSPEND_MS_MAX)
        _check_number("max_reconsume_times", max_reconsume_times, ALWAYS_AGAIN, 1 << 31)
        # A suspension counts where deliveries are counted, so nothing is left but to wait.
        busy_wait_ms = self._busy_wait_ms if max_reconsume_times == ALWAYS_AGAIN else None

        def consume(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
            for message in messages:
                retry = Retry(suspend_ms, 0 <= max_reconsume_times <= message.reconsume_times)
                topic = context.message_queue.topic
                with self._handling.extending(context.extend):
                    outcome, wait_ms = self._handling.message(message, topic, retry, handler, outside, busy_wait_ms)
                    if outcome is None:
                        self._handling.list_nameless(message)
                if outcome is not None and not outcome.is_success:
                    context.suspend_current_queue_time_millis = min(max(suspend_ms, wait_ms), SUSPEND_MS_MAX)
                    return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
            return ConsumeOrderlyStatus.SUCCESS

        return _of_group(MessageListenerOrderly(consume))

    def arrow(self, handler: ArrowHandler) -> MessageListenerArrow:
        """A listener that gives `handler(connection, record_batch)` the rows of a batch that are not done: without
        duplicates, also within the batch, and without void messages. One transaction per batch, a fixed number of
        statements per 1,000 rows. The handler is not called if no row is left.

        The handler may be called several times for a row, each time after a rollback. If it fails, the batch is halved
        until the failing rows are alone, each part in a transaction of its own.
        """

        def consume(batch: pa.RecordBatch, context: ConsumeConcurrentlyContext) -> ConsumeConcurrentlyStatus:
            with self._handling.extending(context.extend):
                outcomes, wait_ms = self._handling.rows(batch, context.message_queue.topic, handler, None, kind=OF_BODY)
            return self._handling.answer(context, outcomes, wait_ms)

        return _of_group(MessageListenerArrow(consume))

    # -- without a listener -------------------------------------------------------------------------------------------

    def receive(
        self,
        simple_consumer: SimpleConsumer,
        handler: ConnectionHandler | OutsideHandler,
        max_message_num: int,
        invisible_duration: timedelta,
        *,
        outside: bool = False,
    ) -> ReceiveCounts:
        """Receive messages, run the handler, and acknowledge the messages that are done. The others come again after
        `invisible_duration`; messages that another worker has, when its lease is over.

        A message whose acknowledgement came too late comes again, and is recognised.

        Raises:
            UsageError, ClientError: as `SimpleConsumer.receive` and `ack`; messages that are done stay done.
        """
        done = later = failed = 0
        views = simple_consumer.receive(max_message_num, invisible_duration)
        for place, view in enumerate(views):
            retry_ms = invisible_duration // timedelta(milliseconds=1)
            retry = Retry(retry_ms, view.delivery_attempt > self._ladder.max_reconsume_times)
            with self._handling.extending(
                self._handling.extend_views(simple_consumer, views[place:], invisible_duration)
            ):
                outcome = self._handling.view(simple_consumer, view, retry, handler, outside)
            if outcome.is_success:
                done += 1
                self._handling.with_handle(view, partial(simple_consumer.ack, view))
            elif outcome is HandlerOutcome.LATER:
                later += 1
            else:
                failed += 1
        return ReceiveCounts(done, later, failed)

    def apply(
        self, batch: pa.RecordBatch, topic: str, handler: ArrowHandler, *, lease_token: str | None = None
    ) -> list[bool]:
        """Process the rows of a batch as `arrow` does, for callers that have rows and answer in their own way. Returns
        a flag for each row: True if it is done. `topic`: the topic that holds the rows, or from which they came.
        `lease_token`: the token of an earlier attempt at the same work, whose leases are no reason to wait. The handler
        raises `RowsFailedError` to fail only some rows. A row with the id of another message that is done counts as
        done, and is put on the manual list (same_id).
        """
        outcomes, _ = self._handling.rows(batch, topic, handler, lease_token, kind=OF_ROW)
        return [outcome.is_success for outcome in outcomes]

    def apply_outside(self, row: pa.RecordBatch, topic: str, handler: Callable[[], object]) -> bool:
        """Process the message of a batch with one row, whose effect is outside of the database, as
        `concurrently(outside=True)` does. Returns True if it is done. `topic`: as for `apply`.
        """
        return self._handling.row_outside(row, topic, handler).is_success

    # -- administration -----------------------------------------------------------------------------------------------

    def counts(self) -> ConsumeCounts:
        """Counts of the messages so far."""
        return replace(self._counters.snapshot(), database_outages=self._outage.count)

    def purge(self) -> int:
        """Delete the inbox rows of the group that are older than `inbox_retention`; returns their number. Log rows are
        not touched. It deletes 1,000 rows per transaction, so it may run beside consumers.

        The present time is the earliest of three: this process's, the database's, and that of the newest message done.
        So a clock that has jumped ahead deletes nothing.
        """
        times = transact(self._engine, lambda connection: inbox.newest_and_now_ms(connection, self.tables, self.group))
        before_ms = min(self._clock(), *times) - self._retention_ms
        return inbox.purge(self._engine, self.tables, self.group, before_ms)

    def close(self) -> None:
        """End the thread that renews leases, and close the engines and clients that were opened by reference. Calls
        that wait for another worker, or for the database, stop waiting: their messages come again.
        """
        self._ending.set()
        while self._close:
            self._close.pop()()

    def __enter__(self) -> Idempotency:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- what it opens ------------------------------------------------------------------------------------------------

    def _engine_of(self, engine: sa.Engine | str) -> sa.Engine:
        if not isinstance(engine, str):
            return require_engine(engine)
        made = open_engine(engine)
        self._close.append(made.dispose)
        return made

    def _filter(self, client: Any, prefix: str, lease_ms: int) -> RedisFilter:
        if isinstance(client, str):
            client = open_client(client)
            self._close.append(client.close)
        return RedisFilter(
            client, self.group,
            prefix=prefix, lease_ms=lease_ms, done_ttl_ms=self._retention_ms + _DAY_MS, on_outage=self._counters.outage,
        )  # fmt: skip


def _of_group(listener: L) -> L:
    """The listener, which a broadcasting consumer refuses: the key of the inbox names no member of the group."""
    listener.requires_clustering = True
    return listener


def _check_number(name: str, value: object, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise UsageError(f"{name}={value!r}: an integer of {least} to {most} is expected")
