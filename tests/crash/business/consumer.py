"""The consuming processes: one member of a group each."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from crash.business import points
from crash.business.network import FAILS, POISON
from crash.business.setting import (
    LEASE_MS,
    MAX_RECONSUME_TIMES,
    RETRY_LADDER_MS,
    Group,
    Setting,
    Word,
    effects,
)

if TYPE_CHECKING:
    import pyarrow as pa
    import sqlalchemy as sa

    from rmq_store import Store
    from rmq_store.client import MessageExt
    from rmq_store.reliable import Idempotency

# Of the store's clock, which is fast: half a second.
_INVISIBLE = timedelta(seconds=10)
_AWAIT = timedelta(seconds=2)
_POLL_S = 0.05


class PlannedError(Exception):
    """A handler that fails as its message says."""


def run_consumer(setting: Setting, group: Group, trap: points.Trap, skew_ms: int) -> None:
    """Consume until all ends."""
    from rmq_store import Store
    from rmq_store.reliable import Idempotency, open_engine

    points.arm_consumer(trap)
    with ExitStack() as ends:
        engine = open_engine(setting.effects_url)
        ends.callback(engine.dispose)
        stubs = None
        if not setting.is_one_database:
            stubs = open_engine(setting.stubs_url)
            ends.callback(stubs.dispose)
        store = ends.enter_context(Store.open(setting.store_path, clock=setting.store_clock))
        once = ends.enter_context(
            Idempotency(
                group.name, engine, setting.tables,
                redis=setting.redis_url, stubs=stubs, lease_ms=LEASE_MS, retry_ladder_ms=RETRY_LADDER_MS,
                retry_slack_ms=200, max_reconsume_times=MAX_RECONSUME_TIMES, busy_wait_ms=500,
                clock=setting.clock(skew_ms),
            )
        )  # fmt: skip
        member = _simple if group.how == "simple" else _push
        member(setting, group, store, once, Handler(setting, group, trap))


class Handler:
    """The effect of a group."""

    def __init__(self, setting: Setting, group: Group, trap: points.Trap) -> None:
        self._setting = setting
        self._group = group
        self._trap = trap

    def inside(self, connection: sa.Connection, message: MessageExt) -> None:
        """Write through the connection, and perhaps fail behind it."""
        order_id, body = message.properties["OUTBOX_ID"], message.body.decode()
        connection.execute(effects.insert().values(group_name=self._group.name, order_id=order_id, body=body))
        self._trap.reach(points.CONSUMER[3])
        self._fail(message.properties)

    def outside(self, message: MessageExt) -> None:
        """Have an effect that no database takes back."""
        self._fail(message.properties)
        body = message.body.decode()
        self._setting.note(f"effects of {self._group.name}", message.properties["OUTBOX_ID"], body, str(os.getpid()))
        self._trap.reach(points.CONSUMER[3])

    def rows(self, connection: sa.Connection, batch: pa.RecordBatch) -> None:
        """`inside` for a set."""
        found = []
        for row in batch.select(["body", "properties"]).to_pylist():
            properties = dict(row["properties"])
            found.append(properties)
            values = {"order_id": properties["OUTBOX_ID"], "body": row["body"].decode()}
            connection.execute(effects.insert().values(group_name=self._group.name, **values))
        self._trap.reach(points.CONSUMER[3])
        for properties in found:
            self._fail(properties)

    def _fail(self, properties: Any) -> None:
        kind, order_id = f"failures of {self._group.name}", properties["OUTBOX_ID"]
        if FAILS in properties and [order_id] not in self._setting.notes(kind):
            self._setting.note(kind, order_id)
            raise PlannedError("at first")
        if POISON in properties and not self._setting.words[Word.POISON_IS_CURED]:
            raise PlannedError("until it is cured")


def _push(setting: Setting, group: Group, store: Store, once: Idempotency, handler: Handler) -> None:
    from rmq_store.client import ConsumeFromWhere, PushConsumer, PushConsumerConfig

    is_arrow, is_ordered = group.how == "arrow", group.how == "orderly"
    config = PushConsumerConfig(
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        consume_thread_nums=3,
        consume_message_batch_max_size=8 if is_arrow else 1,
        max_reconsume_times=-1 if is_ordered else MAX_RECONSUME_TIMES,
        poll_interval_millis=50,
    )
    listener: Any
    if is_arrow:
        listener = once.arrow(handler.rows)
    else:
        make = once.orderly if is_ordered else once.concurrently
        listener = make(handler.outside, outside=True) if group.outside else make(handler.inside)
    with PushConsumer(group.name, store, config) as consumer:
        consumer.subscribe(group.topic)
        consumer.register_message_listener(listener)
        consumer.start()
        while not setting.words[Word.ALL_END] and consumer.failure is None:
            time.sleep(_POLL_S)


def _simple(setting: Setting, group: Group, store: Store, once: Idempotency, handler: Handler) -> None:
    from rmq_store.client import ConsumeFromWhere, SimpleConsumer

    call: Callable[..., object] = handler.outside if group.outside else handler.inside
    with SimpleConsumer(
        group.name, store, {group.topic: "*"},
        await_duration=_AWAIT, consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        max_delivery_attempts=MAX_RECONSUME_TIMES + 1,
    ) as consumer:  # fmt: skip
        while not setting.words[Word.ALL_END]:
            once.receive(consumer, call, 4, _INVISIBLE, outside=group.outside)
