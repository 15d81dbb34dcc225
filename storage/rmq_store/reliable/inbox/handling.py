"""Converts a listener's messages for `exactly_once`, and its outcomes into RocketMQ's answers.

    MessageExt, MessageView, RecordBatch  ->  deliveries  ->  `ExactlyOnce`  ->  outcomes
    outcomes  ->  ack index, delay level, handle

A message without an id cannot be done once. It fails each time and becomes a dead letter, or is put on the manual list.

A message may have the id of another one that is done: it was made of that one, and its properties were copied. It is
done under an id of its own. Rows that a program may have changed before are not proof enough for that: they are put on
the manual list.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from functools import partial
from typing import Final

import pyarrow as pa
import sqlalchemy as sa

from rmq_store import real_time
from rmq_store.client import (
    ClientError,
    ConsumeConcurrentlyContext,
    ConsumeConcurrentlyStatus,
    MessageExt,
    MessageView,
    SimpleConsumer,
)
from rmq_store.errors import InvalidReceiptHandleError, NoMessageIdError
from rmq_store.reliable.database import manual_list
from rmq_store.reliable.inbox.consume_counters import Counters
from rmq_store.reliable.inbox.deliveries import (
    OF_ROW,
    Delivery,
    Ladder,
    Retry,
    deliveries_of,
    delivery_of,
    message_ids_of,
    prefix_length,
)
from rmq_store.reliable.inbox.effect import GroupTables
from rmq_store.reliable.inbox.exactly_once import ExactlyOnce, HandlerOutcome, Verdicts

HIDDEN_MORE_MS: Final = 1000
"""How much longer than the lease of another worker a message stays hidden."""

ArrowHandler = Callable[[sa.Connection, pa.RecordBatch], object]

EXTENSIONS_PER_DURATION: Final = 3
"""How often a worker that waits asks for another invisible duration."""

_log = logging.getLogger(__name__)


class Handling:
    """The conversions for one group. Safe for threads."""

    def __init__(
        self,
        once: ExactlyOnce,
        group_tables: GroupTables,
        ladder: Ladder,
        counters: Counters,
        ending: threading.Event,
        *,
        busy_wait_ms: int,
        clock: Callable[[], int],
    ) -> None:
        self._once = once
        self._group, self._tables = group_tables.group, group_tables.tables
        self._ladder = ladder
        self._counters = counters
        self._ending = ending
        self._busy_wait_ms = busy_wait_ms
        self._clock = clock
        self._refused_topics: set[str] = set()

    def extending(self, extend: Callable[[], bool]) -> AbstractContextManager[None]:
        """As `WorkerWait.extending`."""
        return self._once.worker_wait.extending(extend)

    def message(
        self,
        message: MessageExt,
        topic: str,
        retry: Retry,
        handler: Callable[..., object],
        outside: bool,
        busy_wait_ms: int | None,
    ) -> tuple[HandlerOutcome | None, int]:
        """The outcome of a message (None: it has no id), and its wait in ms if another worker has it."""
        try:
            delivery = delivery_of(message, topic, message.reconsume_times, retry)
        except NoMessageIdError as error:
            self._refuse(topic, 1, error)
            return None, 0
        return self._run_one(delivery, message, handler, outside, None if retry.is_last else busy_wait_ms)

    def view(
        self,
        simple_consumer: SimpleConsumer,
        view: MessageView,
        retry: Retry,
        handler: Callable[..., object],
        outside: bool,
    ) -> HandlerOutcome:
        """The outcome of a message. If another worker has it, it stays hidden until that worker's lease ends; at its
        last delivery, this thread waits for that.
        """
        try:
            delivery = delivery_of(view.message, view.received_from, view.delivery_attempt - 1, retry)
        except NoMessageIdError as error:
            self._refuse(view.received_from, 1, error)
            return HandlerOutcome.FAILED
        outcome, wait_ms = self._run_one(delivery, view.message, handler, outside, 0)
        while outcome is HandlerOutcome.LATER:
            hidden = timedelta(milliseconds=wait_ms + HIDDEN_MORE_MS)
            if not self.with_handle(view, partial(simple_consumer.change_invisible_duration, view, hidden)):
                break
            if not retry.is_last or self._ending.is_set():
                break
            outcome, wait_ms = self._run_one(delivery, view.message, handler, outside, wait_ms)
        return outcome

    def _run_one(
        self,
        delivery: Delivery,
        message: MessageExt,
        handler: Callable[..., object],
        outside: bool,
        wait_ms: int | None,
    ) -> tuple[HandlerOutcome, int]:
        """The outcome of a message, and its wait in ms if another worker has it."""

        def run(delivery: Delivery) -> Verdicts:
            if outside:
                return self._once.run_outside(delivery, lambda: handler(message), wait_ms=wait_ms)
            return self._once.run([delivery], lambda connection, _: handler(connection, message), wait_ms=wait_ms)

        verdicts = run(delivery)
        if verdicts.outcomes[delivery.message_id] is HandlerOutcome.OTHER:
            delivery = delivery.under_its_own_id()
            verdicts = run(delivery)
        return verdicts.outcomes[delivery.message_id], verdicts.wait_ms

    def rows(
        self, batch: pa.RecordBatch, topic: str, handler: ArrowHandler, lease_token: str | None, *, kind: str
    ) -> tuple[list[HandlerOutcome], int]:
        """The outcome of each row, and the wait in ms if other workers have some of them. `kind`: of the fingerprints
        (`deliveries`).
        """
        ids, error = message_ids_of(batch)
        if error is not None:
            self._refuse(topic, ids.count(None), error)
        deliveries = deliveries_of(batch, ids, topic, self._ladder, kind)
        first_rows: dict[tuple[str, str | None], int] = {}
        waiting: list[tuple[int, Delivery]] = []
        for row, delivery in enumerate(deliveries):
            if delivery is not None and first_rows.setdefault((delivery.message_id, delivery.fingerprint), row) == row:
                waiting.append((row, delivery))
        is_last = any(delivery.is_last for _, delivery in waiting)
        busy_wait_ms = None if is_last else self._busy_wait_ms
        outcomes: dict[int, HandlerOutcome] = {}
        wait_ms = 0
        while waiting:
            # Of several messages with one id the first ones.
            now: dict[str, tuple[int, Delivery]] = {}
            then: list[tuple[int, Delivery]] = []
            for row, delivery in waiting:
                if now.setdefault(delivery.message_id, (row, delivery)) != (row, delivery):
                    then.append((row, delivery))
            handle = partial(_handle_rows, handler, batch, {message_id: row for message_id, (row, _) in now.items()})
            some = [delivery for _, delivery in now.values()]
            verdicts = self._once.run(some, handle, wait_ms=busy_wait_ms, lease_token=lease_token)
            wait_ms = max(wait_ms, verdicts.wait_ms)
            for row, delivery in now.values():
                outcome = verdicts.outcomes[delivery.message_id]
                if outcome is HandlerOutcome.OTHER and kind != OF_ROW:
                    then.append((row, delivery.under_its_own_id()))
                else:
                    outcomes[row] = self._listed(delivery) if outcome is HandlerOutcome.OTHER else outcome
            waiting = then
        found = [
            HandlerOutcome.FAILED if each is None else outcomes[first_rows[each.message_id, each.fingerprint]]
            for each in deliveries
        ]
        return found, wait_ms

    def _listed(self, delivery: Delivery) -> HandlerOutcome:
        """The outcome of a row whose id is another message's."""
        detail = (
            f"another message with its id {delivery.message_id} is done. This one was made of that, as its body says, "
            "and is not done"
        )
        self._once.list_same_id(delivery.under_its_own_id(), detail)
        return HandlerOutcome.LISTED

    def row_outside(self, row: pa.RecordBatch, topic: str, handler: Callable[[], object]) -> HandlerOutcome:
        """The outcome of the message of a batch with one row, whose effect is outside of the database."""
        ids, error = message_ids_of(row)
        if error is not None:
            self._refuse(topic, 1, error)
            return HandlerOutcome.FAILED
        (delivery,) = deliveries_of(row, ids, topic, self._ladder, OF_ROW)
        assert delivery is not None
        wait_ms = None if delivery.is_last else self._busy_wait_ms
        outcome = self._once.run_outside(delivery, handler, wait_ms=wait_ms).outcomes[delivery.message_id]
        return self._listed(delivery) if outcome is HandlerOutcome.OTHER else outcome

    def answer(
        self, context: ConsumeConcurrentlyContext, outcomes: Sequence[HandlerOutcome], wait_ms: int
    ) -> ConsumeConcurrentlyStatus:
        """Acknowledge messages before the first one that is not done; busy ones come again after their lease."""
        context.ack_index = prefix_length([outcome.is_success for outcome in outcomes]) - 1
        if HandlerOutcome.LATER in outcomes and HandlerOutcome.FAILED not in outcomes:
            context.delay_level_when_next_consume = self._ladder.level_of(wait_ms)
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    def with_handle(self, view: MessageView, call: Callable[[], None]) -> bool:
        """Run `call`, which uses the receipt handle of the view. False: the message was visible again before; it comes,
        or came, again.
        """
        try:
            call()
        except InvalidReceiptHandleError as error:
            _log.info("group %s: message %s comes again: %s", self._group, view.message_id, error)
            return False
        return True

    def extend_views(
        self, simple_consumer: SimpleConsumer, views: Sequence[MessageView], duration: timedelta
    ) -> Callable[[], bool]:
        """A function that keeps the views invisible while a thread waits: it asks for another `duration` in the last
        two thirds of each, so a message does not come again because its worker could not begin it.
        """
        left = list(views)
        every_s = duration.total_seconds() / EXTENSIONS_PER_DURATION
        # The time of the receiving has gone to the messages before these.
        asked_s = -every_s

        def extend() -> bool:
            nonlocal asked_s, left
            now_s = real_time.monotonic()
            if now_s - asked_s < every_s:
                return True
            asked_s = now_s
            try:
                left = [
                    view
                    for view in left
                    if self.with_handle(view, partial(simple_consumer.change_invisible_duration, view, duration))
                ]
            except ClientError as error:
                _log.warning("group %s: messages are not hidden for longer: %s", self._group, error)
            return True

        return extend

    def _refuse(self, topic: str, count: int, error: NoMessageIdError) -> None:
        """A message without an id fails, each time, and becomes a dead letter. One line in the log per topic."""
        self._counters.refuse(count)
        if topic not in self._refused_topics:
            self._refused_topics.add(topic)
            _log.error("group %s: %s. More of this topic are only counted", self._group, error)

    def list_nameless(self, message: MessageExt) -> None:
        """Put a message without an id on the manual list, with its place in the log as the id."""
        detail = f"offset {message.queue_offset} of queue {message.queue_id} of {message.topic} ({message.broker_name})"
        add = partial(
            manual_list.add, tables=self._tables, message_id=message.offset_msg_id, group_name=self._group,
            reason=manual_list.NO_ID, detail=detail, now_ms=self._clock(),
        )  # fmt: skip
        self._once.worker_wait.transact(add)


def _handle_rows(
    handler: ArrowHandler,
    batch: pa.RecordBatch,
    rows: Mapping[str, int],
    connection: sa.Connection,
    message_ids: Collection[str],
) -> object:
    """Call the handler with the rows of some messages; `rows` has the row of each id."""
    if len(message_ids) == batch.num_rows:
        return handler(connection, batch)
    wanted = [row for message_id, row in rows.items() if message_id in message_ids]
    return handler(connection, batch.take(pa.array(wanted, pa.int32())))
