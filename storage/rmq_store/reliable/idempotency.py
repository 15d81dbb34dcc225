"""A consumer group that does each message once: `Idempotency`, and what it makes of a handler.

    with Idempotency("cg_stock", engine, redis="env:REDIS_URL") as once:
        consumer.register_message_listener(once.concurrently(take_from_stock))

    def take_from_stock(connection, message):
        connection.execute(stock.update()..., ...)      # commits together with the inbox row: exactly once

The document's section 6.3 and 6.4. RocketMQ has nothing of the kind ("not considered", apache/rocketmq#10263); answers
are those of ConsumeMessageConcurrentlyService, ConsumeMessageOrderlyService and SimpleConsumerImpl.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

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
    MessageView,
    SimpleConsumer,
)
from rmq_store.errors import InvalidReceiptHandleError, NoMessageIdError, UsageError
from rmq_store.reliable import inbox, leases
from rmq_store.reliable.consume_counters import ConsumeCounts, Counters
from rmq_store.reliable.deliveries import first_rows, message_ids_of, prefix_length
from rmq_store.reliable.engine import open_engine
from rmq_store.reliable.lease_keeper import LeaseKeeper
from rmq_store.reliable.message_id import message_id_of
from rmq_store.reliable.once import Once, Outcome, Places, Verdicts
from rmq_store.reliable.receipts import Receipt
from rmq_store.reliable.redis_filter import RedisFilter, open_client
from rmq_store.reliable.tables import Tables

if TYPE_CHECKING:
    import redis as redis_client

RETRY_LADDER_MS: Final = tuple(
    seconds * 1000 for seconds in (10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
)
"""RocketMQ's: messageDelayLevel from its third level on (DelayLevel 3 + reconsumeTimes)."""

MAX_RECONSUME_TIMES: Final = 16
ALWAYS_AGAIN: Final = -1
"""Of an ordered consumer: its default, it never gives a message up."""

STORE_RETENTION_MS: Final = 72 * 3_600_000
"""RocketMQ's fileReservedTime."""

SUSPEND_MS: Final = 1000
SUSPEND_MS_MAX: Final = 30_000
_DAY_MS: Final = 24 * 3_600_000

ConnectionHandler = Callable[[sa.Connection, MessageExt], object]
OutsideHandler = Callable[[MessageExt], object]
ArrowHandler = Callable[[sa.Connection, pa.RecordBatch], object]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReceiveCounts:
    """What one `Idempotency.receive` did: messages acknowledged, put off because another worker has them, failed."""

    done: int = 0
    later: int = 0
    failed: int = 0


class Idempotency:
    """Everything that makes a group idempotent. Safe for threads, not across fork; close it behind its consumers.

    `engine`: of the database that holds the effects, or a reference that `open_engine` takes. Each consuming thread
    uses one connection at a time, and so does the thread that renews leases: the pool must be as large. `stubs`: the
    engine of the stubs if they lie in another database.
    `redis`: a client (give it a short socket time-out), or a reference to its URL: `env:NAME`, `file:/path`, a URL.
    `lease_ms`: how soon another worker may take over from one that died; renewed while a handler runs.
    `retry_ladder_ms`, `max_reconsume_times`: how long the group's retries wait, and how many there are, as its
    consumers and brokers have it. A failed message blocks its resend until the next step and `retry_slack_ms` more.
    `inbox_retention`: how long a duplicate is recognised: longer than a resend or redrive may take to come. It never
    counts for less than the store's retention (72 h) and the ladder together.

    Raises (when constructed):
        UsageError: a reference that leads nowhere, or a number out of bounds.
    """

    def __init__(
        self,
        group: str,
        engine: sa.Engine | str,
        tables: Tables | None = None,
        *,
        redis: redis_client.Redis | str | None = None,
        stubs: sa.Engine | str | None = None,
        lease_ms: int = 60_000,
        retry_ladder_ms: Sequence[int] = RETRY_LADDER_MS,
        retry_slack_ms: int = 60_000,
        max_reconsume_times: int = MAX_RECONSUME_TIMES,
        inbox_retention: timedelta = timedelta(days=30),
        redis_prefix: str = "rmq:",
        clock: Callable[[], int] = leases.now_ms,
    ) -> None:
        if not isinstance(group, str) or not group:
            raise UsageError(f"group={group!r}: the name of a consumer group is expected")
        _check_number("lease_ms", lease_ms, 1, _DAY_MS)
        _check_number("retry_slack_ms", retry_slack_ms, 0, _DAY_MS)
        _check_number("max_reconsume_times", max_reconsume_times, 0, 1 << 31)
        if not retry_ladder_ms:
            raise UsageError("retry_ladder_ms is empty: at least one step is expected")
        for step_ms in retry_ladder_ms:
            _check_number("retry_ladder_ms", step_ms, 0, _DAY_MS)
        if not isinstance(inbox_retention, timedelta) or inbox_retention <= timedelta(0):
            raise UsageError(f"inbox_retention={inbox_retention!r}: a datetime.timedelta of more than 0 is expected")
        self.group = group
        self.tables = tables if tables is not None else Tables()
        self._ladder_ms = tuple(retry_ladder_ms)
        self._max_reconsume_times = max_reconsume_times
        self._clock = clock
        self._counters = Counters()
        self._reasons_logged: set[str] = set()
        self._retention_ms = max(
            inbox_retention // timedelta(milliseconds=1), STORE_RETENTION_MS + sum(self._ladder_ms)
        )
        self._close: list[Callable[[], object]] = []
        try:
            places = Places(
                group, self._engine_of(engine), self.tables, None if stubs is None else self._engine_of(stubs)
            )
            self._engine = places.engine
            filter_ = None if redis is None else self._filter(redis, redis_prefix, lease_ms)
        except BaseException:
            self.close()
            raise
        keeper = LeaseKeeper(self._engine, self.tables, group, lease_ms=lease_ms, clock=clock, redis=filter_)
        self._close.append(keeper.close)
        self._once = Once(
            places,
            keeper,
            self._counters,
            redis=filter_,
            lease_ms=lease_ms,
            slack_ms=retry_slack_ms,
            clock=clock,
        )

    # -- listeners ----------------------------------------------------------------------------------------------------

    def concurrently(
        self, handler: ConnectionHandler | OutsideHandler, outside: bool = False
    ) -> MessageListenerConcurrently:
        """A listener for a PushConsumer. `handler(connection, message)` writes its effect through the connection:
        exactly once, durable before the answer. With `outside`, `handler(message)` has its effect elsewhere: at least
        once, and the manual list names what is in doubt.

        All messages of a batch are tried. Those before the first that is not done are acknowledged; later ones that are
        done come again, and are recognised.
        """

        def consume(messages: Sequence[MessageExt], context: ConsumeConcurrentlyContext) -> ConsumeConcurrentlyStatus:
            queue = context.message_queue
            done = [
                self._do(message, queue.topic, self._ladder(message.reconsume_times), handler, outside)[0]
                for message in messages
            ]
            context.ack_index = prefix_length(done) - 1
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

        return MessageListenerConcurrently(consume)

    def orderly(
        self,
        handler: ConnectionHandler | OutsideHandler,
        outside: bool = False,
        *,
        suspend_ms: int = SUSPEND_MS,
        max_reconsume_times: int = ALWAYS_AGAIN,
    ) -> MessageListenerOrderly:
        """The same in the order of each queue. The first message that is not done ends its batch, and suspends the
        queue for `suspend_ms`; while another worker has it, until that one's lease is over, at most 30 s at a time.

        `max_reconsume_times`: the consumer's; -1, as its default: a message is never given up.
        """
        _check_number("suspend_ms", suspend_ms, 0, SUSPEND_MS_MAX)
        _check_number("max_reconsume_times", max_reconsume_times, -1, 1 << 31)

        def consume(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
            for message in messages:
                retry = _Retry(suspend_ms, 0 <= max_reconsume_times <= message.reconsume_times)
                is_done, wait_ms = self._do(message, context.message_queue.topic, retry, handler, outside)
                if not is_done:
                    context.suspend_current_queue_time_millis = min(max(suspend_ms, wait_ms), SUSPEND_MS_MAX)
                    return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
            return ConsumeOrderlyStatus.SUCCESS

        return MessageListenerOrderly(consume)

    def arrow(self, handler: ArrowHandler) -> MessageListenerArrow:
        """A listener that gives `handler(connection, record_batch)` the rows of a batch that are to be done: without
        duplicates, also within the batch, and without void ones. One transaction per batch, a fixed number of
        statements per 1,000 rows. The handler is not called if no row is left.

        The handler may be called several times for a batch, each time after a rollback. If it fails, all rows fail.
        """

        def consume(batch: pa.RecordBatch, context: ConsumeConcurrentlyContext) -> ConsumeConcurrentlyStatus:
            done = self._do_rows(batch, context.message_queue.topic, handler)
            context.ack_index = prefix_length(done) - 1
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

        return MessageListenerArrow(consume)

    # -- simple consumers ---------------------------------------------------------------------------------------------

    def receive(
        self,
        simple_consumer: SimpleConsumer,
        handler: ConnectionHandler | OutsideHandler,
        max_message_num: int,
        invisible_duration: timedelta,
        *,
        outside: bool = False,
    ) -> ReceiveCounts:
        """Receive messages, do them, and acknowledge what is done; the rest comes again after `invisible_duration`.

        A message of which the acknowledgement came too late comes again, and is recognised.

        Raises:
            UsageError, ClientError: as `SimpleConsumer.receive` and `ack`; what is done stays done.
        """
        invisible_ms = invisible_duration // timedelta(milliseconds=1)
        done = later = failed = 0
        for view in simple_consumer.receive(max_message_num, invisible_duration):
            retry = _Retry(invisible_ms, view.delivery_attempt > self._max_reconsume_times)
            outcome = self._do_view(view, retry, handler, outside)
            if outcome.is_success:
                done += 1
                try:
                    simple_consumer.ack(view)
                except InvalidReceiptHandleError as error:
                    _log.info("group %s: message %s comes again: %s", self.group, view.message_id, error)
            elif outcome is Outcome.LATER:
                later += 1
            else:
                failed += 1
        return ReceiveCounts(done, later, failed)

    # -- administration -----------------------------------------------------------------------------------------------

    def counts(self) -> ConsumeCounts:
        """What happened to the messages so far."""
        return self._counters.snapshot()

    def purge(self) -> int:
        """Forget what the group has done longer ago than it must be recognised; returns how many messages. Log rows are
        not touched. A transaction per 1,000 messages, so it may run beside consumers.
        """
        return inbox.purge(self._engine, self.tables, self.group, self._clock() - self._retention_ms)

    def close(self) -> None:
        """End the thread that renews leases, and close what was opened here: engines and clients of references."""
        while self._close:
            self._close.pop()()

    def __enter__(self) -> Idempotency:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- one message, or rows -----------------------------------------------------------------------------------------

    def _do(
        self, message: MessageExt, topic: str, retry: _Retry, handler: Callable[..., object], outside: bool
    ) -> tuple[bool, int]:
        """Whether a message is done, and how long it must wait if another worker has it."""
        try:
            receipt = _receipt(message, topic, message.reconsume_times, retry)
        except NoMessageIdError as error:
            self._refuse(topic, 1, error)
            return False, 0
        verdicts = self._run_one(receipt, message, handler, outside)
        return verdicts.outcomes[receipt.message_id].is_success, verdicts.wait_ms

    def _do_view(self, view: MessageView, retry: _Retry, handler: Callable[..., object], outside: bool) -> Outcome:
        try:
            receipt = _receipt(view.message, view.received_from, view.delivery_attempt - 1, retry)
        except NoMessageIdError as error:
            self._refuse(view.received_from, 1, error)
            return Outcome.FAILED
        return self._run_one(receipt, view.message, handler, outside).outcomes[receipt.message_id]

    def _run_one(
        self, receipt: Receipt, message: MessageExt, handler: Callable[..., object], outside: bool
    ) -> Verdicts:
        if outside:
            return self._once.run_outside(receipt, lambda: handler(message))
        return self._once.run([receipt], lambda connection, _: handler(connection, message))

    def _do_rows(self, batch: pa.RecordBatch, topic: str, handler: ArrowHandler) -> list[bool]:
        """Which rows are done."""
        ids, error = message_ids_of(batch)
        if error is not None:
            self._refuse(topic, ids.count(None), error)
        rows = first_rows(ids)
        if not rows:
            return [False] * batch.num_rows
        columns = batch.select(["brokerName", "queueId", "queueOffset", "reconsumeTimes"]).take(
            pa.array(rows.values(), pa.int32())
        )
        receipts = []
        for message_id, broker, queue_id, offset, times in zip(
            rows, *(column.to_pylist() for column in columns.columns), strict=True
        ):
            retry = self._ladder(times)
            receipts.append(Receipt(message_id, broker, topic, queue_id, offset, times, retry.after_ms, retry.is_last))

        def handle(connection: sa.Connection, message_ids: Collection[str]) -> object:
            if len(message_ids) == batch.num_rows:
                return handler(connection, batch)
            wanted = [row for message_id, row in rows.items() if message_id in message_ids]
            return handler(connection, batch.take(pa.array(wanted, pa.int32())))

        outcomes: Mapping[str, Outcome] = self._once.run(receipts, handle).outcomes
        return [message_id is not None and outcomes[message_id].is_success for message_id in ids]

    def _ladder(self, reconsume_times: int) -> _Retry:
        step_ms = self._ladder_ms[min(reconsume_times, len(self._ladder_ms) - 1)]
        return _Retry(step_ms, reconsume_times >= self._max_reconsume_times)

    def _refuse(self, topic: str, count: int, error: NoMessageIdError) -> None:
        """A message without an id fails, each time, and becomes a dead letter. One line in the log per topic."""
        self._counters.refuse(count)
        if topic not in self._reasons_logged:
            self._reasons_logged.add(topic)
            _log.error("group %s: %s. More of this topic are only counted", self.group, error)

    # -- what it opens ------------------------------------------------------------------------------------------------

    def _engine_of(self, engine: sa.Engine | str) -> sa.Engine:
        if isinstance(engine, sa.Engine):
            return engine
        made = open_engine(engine)
        self._close.append(made.dispose)
        return made

    def _filter(self, client: Any, prefix: str, lease_ms: int) -> RedisFilter:
        if isinstance(client, str):
            client = open_client(client)
            self._close.append(client.close)
        return RedisFilter(
            client,
            self.group,
            prefix=prefix,
            lease_ms=lease_ms,
            done_ttl_ms=self._retention_ms + _DAY_MS,
            on_outage=self._counters.outage,
        )


@dataclass(frozen=True, slots=True)
class _Retry:
    """What follows a failure: the next delivery after so long, or none any more."""

    after_ms: int
    is_last: bool


def _receipt(message: MessageExt, topic: str, reconsume_times: int, retry: _Retry) -> Receipt:
    message_id = message_id_of(
        message.properties,
        f"the message at offset {message.queue_offset} of queue {message.queue_id} of {topic} ({message.broker_name})",
    )
    return Receipt(
        message_id,
        message.broker_name,
        topic,
        message.queue_id,
        message.queue_offset,
        reconsume_times,
        retry.after_ms,
        retry.is_last,
    )


def _check_number(name: str, value: object, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise UsageError(f"{name}={value!r}: an integer of {least} to {most} is expected")
