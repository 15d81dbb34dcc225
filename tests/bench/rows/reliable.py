"""Outbox, relay and idempotent consumers on real databases, each beside what an application does without them."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from bench.case import Case, Pair, Target
from bench.rows.peers_clients import Seen
from bench.scratch import Scratch
from helpers import servers
from rmq_store import Message, Store
from rmq_store.client import (
    ConsumeConcurrentlyStatus,
    ConsumeFromWhere,
    LocalBackend,
    MessageListenerConcurrently,
    Producer,
    PushConsumer,
    PushConsumerConfig,
)
from rmq_store.reliable import Idempotency, Outbox, Relay, Tables, open_engine

KINDS = {"sqlite": "SQLite", "postgresql": "PostgreSQL", "mariadb": "MariaDB"}
TOPIC, GROUP = "Orders", "cg_stock"
BODY_BYTES = 100
SENT, RELAYED, UPDATED, CONSUMED = 400, 4_000, 400, 400
THREADS = 4
DURABLE = (
    "fsync is on (SQLite: WAL, synchronous=FULL; PostgreSQL 15 and MariaDB 10.11 as released, on a socket and on "
    "loopback, READ COMMITTED). Sync engine, psycopg 3 and PyMySQL; the store ASYNC_FLUSH, in this process."
)

metadata = sa.MetaData()
orders = sa.Table(
    "orders",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("body", sa.LargeBinary(BODY_BYTES), nullable=False),
)


@dataclass
class Shop:
    """A database with the tables, and a store with the topic."""

    engine: sa.Engine
    tables: Tables
    store: Store
    backend: LocalBackend
    numbers: Iterator[int] = field(default_factory=itertools.count)


@contextlib.contextmanager
def shop(scratch: Scratch, kind: str) -> Iterator[Shop]:
    """A fresh one; the database is the server's, and goes with this block."""
    with contextlib.ExitStack() as ends:
        engine = open_engine(_url(kind, scratch.directory, ends))
        ends.callback(engine.dispose)
        tables = Tables()
        tables.metadata.create_all(engine)
        metadata.create_all(engine)
        store = ends.enter_context(Store.open(scratch.directory / "store", create=True))
        store.create_topic(TOPIC, queue_count=4)
        yield Shop(engine, tables, store, ends.enter_context(LocalBackend(store)))


def _url(kind: str, directory: Path, ends: contextlib.ExitStack) -> str:
    if kind == "sqlite":
        return f"sqlite:///{directory / 'shop.sqlite'}"
    server: servers.DatabaseServer = servers.postgresql() if kind == "postgresql" else servers.mariadb()
    return server.url(ends.enter_context(server.new_database()))


def body() -> bytes:
    return bytes(BODY_BYTES)


def insert(connection: sa.Connection) -> None:
    """What the business writes."""
    connection.execute(orders.insert().values(body=body()))


def rate(count: int, work: Callable[[], object]) -> float:
    """`count` per second of the call."""
    begin_s = time.perf_counter()
    work()
    return count / (time.perf_counter() - begin_s)


@contextlib.contextmanager
def sending(scratch: Scratch, kind: str) -> Iterator[Pair]:
    """Messages, or rows, per second."""
    count = scratch.rows(SENT)
    with shop(scratch, kind) as place, Producer("pg_shop", place.backend) as producer:

        def send_all() -> None:
            # Its end writes the last marks.
            with Outbox(producer, place.engine, place.tables, groups=(GROUP,)) as outbox:
                for _ in range(count):
                    with outbox.begin() as connection:
                        insert(connection)
                        outbox.add(connection, Message(TOPIC, body()))

        def insert_all() -> None:
            for _ in range(count):
                with place.engine.begin() as connection:
                    insert(connection)

        def ours() -> float:
            figure = rate(count, send_all)
            stub = place.tables.stub
            with place.engine.connect() as connection:
                unmarked = connection.scalar(sa.select(sa.func.count()).where(stub.c.sent_ms.is_(None)))
            assert not unmarked, f"{unmarked} of {count} are not marked"
            return figure

        yield Pair(ours, lambda: rate(count, insert_all))


@contextlib.contextmanager
def relaying(scratch: Scratch, kind: str) -> Iterator[Pair]:
    """Messages, or rows, per second."""
    count, updated = scratch.rows(RELAYED), scratch.rows(UPDATED)
    with (
        shop(scratch, kind) as place,
        Producer("pg_shop", place.backend) as producer,
        Outbox(producer, place.engine, place.tables, groups=(GROUP,)) as outbox,
    ):
        relay = Relay(producer, place.engine, place.tables, backend=place.backend)
        with place.engine.begin() as connection:
            connection.execute(orders.insert(), [{"body": body()}] * updated)

        def ours() -> float:
            with place.engine.begin() as connection:
                for _ in range(count):
                    outbox.add(connection, Message(TOPIC, body()), send_now=False)
            before = relay.total.sent
            figure = rate(count, relay.run_once)
            assert relay.total.sent - before == count
            return figure

        def update_all() -> None:
            for number in range(1, updated + 1):
                with place.engine.begin() as connection:
                    # MariaDB writes nothing where nothing changes.
                    changed = orders.update().where(orders.c.id == number).values(body=os.urandom(BODY_BYTES))
                    connection.execute(changed)

        yield Pair(ours, lambda: rate(updated, update_all))


@contextlib.contextmanager
def consuming(scratch: Scratch, kind: str, *, with_redis: bool) -> Iterator[Pair]:
    """Messages per second, from the first that is done to the last."""
    count = scratch.rows(CONSUMED)
    with shop(scratch, kind) as place:
        with Producer("pg_shop", place.backend) as producer, Outbox(producer, place.engine, place.tables) as outbox:
            with place.engine.begin() as connection:
                for _ in range(count):
                    outbox.add(connection, Message(TOPIC, body()), groups=(GROUP,), send_now=False)
            Relay(producer, place.engine, place.tables, backend=place.backend).run_once()
        redis = None
        if with_redis:
            servers.redis().start()
            redis = servers.redis().url()

        def plain(messages: Any, context: Any) -> ConsumeConcurrentlyStatus:
            with place.engine.begin() as connection:
                insert(connection)
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

        def ours() -> float:
            with Idempotency(_new_group(place), place.engine, place.tables, redis=redis) as once:
                listener = once.concurrently(lambda connection, message: insert(connection))
                return _consume(place, once.group, count, listener.consume_message)

        yield Pair(ours, lambda: _consume(place, _new_group(place), count, plain))


def _new_group(place: Shop) -> str:
    """One that has consumed nothing yet."""
    return f"{GROUP}_{next(place.numbers)}"


def _consume(place: Shop, group: str, count: int, listen: Callable[[Any, Any], ConsumeConcurrentlyStatus]) -> float:
    seen = Seen(count)

    def counted(messages: Any, context: Any) -> ConsumeConcurrentlyStatus:
        answer = listen(messages, context)
        seen(messages, context)
        return answer

    config = PushConsumerConfig(
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, consume_thread_nums=THREADS
    )
    with PushConsumer(group, place.backend, config) as consumer:
        consumer.subscribe(TOPIC)
        consumer.register_message_listener(MessageListenerConcurrently(counted))
        consumer.start()
        return seen.rate()


CASES = (
    *(
        Case(
            name=f"reliable-send-{kind}",
            title=f"stub, and send after the commit, {name}",
            group="reliable",
            body_bytes=BODY_BYTES,
            yardstick="the same INSERT + commit alone",
            unit="msgs/s",
            target=Target(0.5),
            settings=(
                f"{SENT:,} transactions, one after the other: an INSERT of the business and `Outbox.add`, then the "
                "commit and the send, until the last *sent* mark is written (at most 100 ms late). The yardstick "
                "writes the business row only.",
                DURABLE,
            ),
            prepare=partial(sending, kind=kind),
            limit=(
                "A message adds two rows and the check before the commit: 620 calls of functions beyond those of "
                "the INSERT, mostly of SQLAlchemy and the send. They take longer after each wait for the database "
                "than in a row. Another thread writes the marks; Python runs one thread at a time."
            ),
        )
        for kind, name in KINDS.items()
    ),
    *(
        Case(
            name=f"reliable-relay-{kind}",
            title=f"relay: claim, fetch, send, mark, {name}",
            group="reliable",
            body_bytes=BODY_BYTES,
            yardstick="one UPDATE + commit per row",
            unit="msgs/s",
            target=Target(4),
            settings=(
                f"{RELAYED:,} committed stubs that nobody has sent, one `Relay.run_once`. The yardstick changes "
                f"{UPDATED:,} rows by their key, each in a transaction of its own, through the same engine.",
                DURABLE,
            ),
            prepare=partial(relaying, kind=kind),
            limit=(
                "Claims and marks are a few statements per 1,000 rows. Half of the time goes to the store and to the "
                "messages in Python."
            ),
        )
        for kind, name in KINDS.items()
    ),
    *(
        Case(
            name=f"reliable-consume-{'redis-' if with_redis else ''}{kind}",
            title=f"idempotent consumer{', Redis before it' if with_redis else ''}, {name}",
            group="reliable",
            body_bytes=BODY_BYTES,
            yardstick="a plain consumer with the same INSERT + commit",
            unit="msgs/s",
            target=None,
            settings=(
                f"{CONSUMED:,} messages with stubs in 4 queues, a new group each time, {THREADS} threads. The push "
                "consumer calls its listener for each message, which inserts a row; rate from the first to the last "
                "message.",
                DURABLE,
            ),
            prepare=partial(consuming, kind=kind, with_redis=with_redis),
            limit=(
                "A message takes two transactions, one of the log and one of the effect, of about eight statements. "
                "Redis before the database saves nothing where no message comes twice."
            ),
        )
        for kind, name in KINDS.items()
        for with_redis in (False, True)
    ),
)
