"""The drivers that the kit works with, a pooler between them and the server, and the door for all others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from helpers import servers
from helpers.consuming import Consumer, Worker, effects, message, write_effect
from helpers.patient import PATIENT
from rmq_store import Message, Store
from rmq_store.client import LocalBackend, MessageExt, Producer
from rmq_store.errors import UsageError
from rmq_store.reliable import (
    ConsumeCounts,
    DeadLetters,
    Idempotency,
    Inboxes,
    Outbox,
    Relay,
    Tables,
    create_tables,
    migrate,
    open_engine,
    validate_schema,
)

on_postgresql = pytest.mark.parametrize("database_kind", ["postgresql"], indirect=True)


@pytest.fixture
def store(scratch: Path) -> Iterator[Store]:
    with Store.open(scratch / "store", create=True, broker_name="broker-a") as made:
        made.create_topic("Orders", queue_count=2)
        yield made


@pytest.fixture
def producer(store: Store) -> Iterator[Producer]:
    with Producer("pg", store, PATIENT) as made:
        yield made


def bodies(store: Store) -> list[bytes]:
    return [
        body
        for queue_id, found in store.queue_ranges("Orders").items()
        for batch in store.read("Orders", queue_id, found.min_offset, found.max_offset)
        for body in batch["body"].to_pylist()
    ]


def all_of_it(engine: sa.Engine, producer: Producer, store: Store, *, threads: int, messages: int) -> Consumer:
    """Senders, relay and consumers, several at a time; the consumer, which a caller closes."""
    tables = Tables()
    create_tables(engine, tables)
    validate_schema(engine, tables)
    effects.metadata.create_all(engine)
    consumer = Consumer(engine, tables)
    with Outbox(producer, engine, tables, groups=["cg"]) as outbox:

        def send(number: int) -> None:
            for count in range(messages):
                with outbox.begin() as connection:
                    connection.execute(sa.select(sa.literal(1)))
                    outbox.add(connection, Message("Orders", b"%d-%d" % (number, count)), send_now=count % 2 == 0)
                consumer.consume(message(f"{number}-{count}", body=b"%d-%d" % (number, count)))

        workers = [Worker(lambda number=each: send(number)) for each in range(threads)]  # type: ignore[misc]
        for worker in workers:
            worker.outcome()
        with outbox.begin() as connection:
            outbox.add(connection, Message("Orders", b"chosen"), message_id="CHOSEN")
            with pytest.raises(UsageError, match="has a stub already"):
                outbox.add(connection, Message("Orders", b"again"), message_id="CHOSEN")
        autocommit = engine.execution_options(isolation_level="AUTOCOMMIT")
        with autocommit.connect() as connection, pytest.raises(UsageError, match="commits each statement"):
            outbox.add(connection, Message("Orders", b"lost"))
    Relay(producer, engine, tables).run_once()
    return consumer


@on_postgresql
def test_psycopg2_is_a_driver_of_the_kit(database_url: str, producer: Producer, store: Store) -> None:
    engine = open_engine(database_url.replace("+psycopg", "+psycopg2"))
    assert engine.dialect.driver == "psycopg2"
    consumer = all_of_it(engine, producer, store, threads=2, messages=4)
    with consumer.once:
        assert len(consumer.effects()) == 8
        assert consumer.consume(message("0-0", body=b"0-0")) == 1, "a duplicate"

        def ends_it(connection: sa.Connection, one: MessageExt) -> None:
            connection.commit()

        def deadlocked(connection: sa.Connection, one: MessageExt) -> None:
            write_effect(connection, one)
            if len(calls := attempts.setdefault("calls", [])) < 1:
                calls.append("")
                connection.execute(sa.text("DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '40P01'; END $$"))

        attempts: dict[str, list[str]] = {}
        assert consumer.consume(message("M2"), handler=ends_it) == 0
        assert consumer.consume(message("M3", body=b"again"), handler=deadlocked) == 1
        assert consumer.effects().count("again") == 1
        assert consumer.once.counts() == ConsumeCounts(done=9, duplicates_by_inbox=1, failed=1)
    engine.dispose()


@on_postgresql
def test_asyncpg_promises_messages(engine: sa.Engine, producer: Producer, store: Store) -> None:
    """The kit's own transactions use another driver; the application's are of asyncpg."""
    create_tables(engine)
    own = open_engine(engine.url.render_as_string(hide_password=False))
    with Outbox(producer, own, groups=["cg"]) as outbox:

        async def main() -> None:
            there = create_async_engine(engine.url.set(drivername="postgresql+asyncpg"))
            async with AsyncSession(there) as session:
                stub = await session.run_sync(outbox.add, Message("Orders", b"kept\0\xff"), message_id="KEPT")
                with pytest.raises(RuntimeError):
                    async with session.begin_nested():
                        lost = await session.run_sync(outbox.add, Message("Orders", b"lost"))
                        raise RuntimeError
                with pytest.raises(UsageError, match="has a stub already"):
                    await session.run_sync(outbox.add, Message("Orders", b"again"), message_id="KEPT")
                await session.commit()
            flushed = await asyncio.to_thread(outbox.flush_after_commit, stub, lost)
            assert flushed.sent.keys() == {"KEPT"}
            async with there.connect() as connection:
                autocommit = await connection.execution_options(isolation_level="AUTOCOMMIT")
                with pytest.raises(UsageError, match="commits each statement"):
                    await autocommit.run_sync(outbox.add, Message("Orders", b"never"))
            async with there.connect() as connection:  # without a statement before it
                await connection.run_sync(outbox.add, Message("Orders", b"rolled back"))
            await there.dispose()

        asyncio.run(main())
    own.dispose()
    assert bodies(store) == [b"kept\0\xff"]


@on_postgresql
@pytest.mark.parametrize("driver", ["postgresql", "postgresql+psycopg2"])
def test_behind_a_pooler_in_transaction_mode(
    driver: str, database_url: str, pgbouncer: servers.PgBouncer, producer: Producer, store: Store
) -> None:
    """Without a word in the URL. Statements that a driver has prepared by itself are not there in the next one."""
    database = sa.make_url(database_url).database
    assert database is not None
    engine = open_engine(pgbouncer.url(database, driver))
    consumer = all_of_it(engine, producer, store, threads=6, messages=12)
    with consumer.once:
        assert sorted(consumer.effects()) == sorted(f"{one}-{two}" for one in range(6) for two in range(12))
        assert consumer.once.counts() == ConsumeCounts(done=72)
    assert len(bodies(store)) == 73
    engine.dispose()


@on_postgresql
def test_options_of_the_url_reach_the_driver(database_url: str) -> None:
    for options, threshold in (("", None), ("&prepare_threshold=3", 3), ("&prepare_threshold=none", None)):
        engine = open_engine(f"{database_url}{options}&application_name=shop&connect_timeout=7")
        with engine.connect() as connection:
            driver: Any = connection.connection.driver_connection
            assert driver.prepare_threshold == threshold
            parameters = driver.info.get_parameters()
            assert (parameters["application_name"], parameters["connect_timeout"]) == ("shop", "7")
            assert parameters["tcp_user_timeout"] == "30000", "what the URL does not say is as by default"
        engine.dispose()


@pytest.mark.parametrize("database_kind", ["mariadb"], indirect=True)
def test_a_server_that_takes_connections_and_says_nothing_is_given_up(
    database_url: str, database_server: servers.DatabaseServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyMySQL would wait for its greeting for ever. A statement may take longer."""
    from rmq_store.reliable.database import drivers

    assert drivers._DEFAULTS["pymysql"]["read_timeout"] == drivers.CONNECT_TIMEOUT_S
    monkeypatch.setitem(drivers._DEFAULTS["pymysql"], "read_timeout", 1)
    engine = open_engine(database_url)
    with engine.connect() as connection:
        assert connection.scalar(sa.text("SELECT SLEEP(1.5)")) == 0
    engine.dispose()
    database_server.suspend()
    try:
        with pytest.raises(sa.exc.OperationalError), engine.connect():
            pass
    finally:
        database_server.resume()
    engine.dispose()


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("postgresql+pg8000://u:hunter2@h/d", r"pg8000 of postgresql is not supported: use postgresql\+psycopg, "),
        ("mysql+mysqlconnector://u:hunter2@h/d", r"mysqlconnector of mysql is not supported: use mysql\+pymysql"),
        ("mysql+mysqldb://u:hunter2@h/d", "mysqldb of mysql is not supported"),
        ("mariadb+mariadbconnector://u:hunter2@h/d", r"is not supported: use mariadb\+pymysql"),
        ("mysql+asyncmy://u:hunter2@h/d", "is not supported"),
        ("postgresql+asyncpg://u:hunter2@h/d?prepared_statement_cache_size=0", "asyncpg of postgresql is asynchronous"),
        ("postgresql+psycopg_async://u:hunter2@h/d", "is asynchronous"),
        ("sqlite+aiosqlite:///x.db", "is asynchronous"),
        ("oracle+oracledb://u:hunter2@h/d", "'oracle' is not supported"),
        ("mssql+pyodbc://u:hunter2@h/d", "'mssql' is not supported"),
        ("postgresql://u:hunter2@h/d?prepare_threshold=many", "prepare_threshold='many'"),
        ("mysql://u:hunter2@h/d?autocommit=true", "autocommit in the URL"),
        ("mysql://u:hunter2@h/d?connect_timeout=soon", "an option in the URL has an invalid value: .*'soon'"),
        ("sqlite:///x.db?timeout=soon", "an option in the URL has an invalid value: .*'soon'"),
    ],
)
def test_a_url_with_a_driver_that_does_not_work_is_refused(url: str, why: str) -> None:
    with pytest.raises(UsageError, match=why) as error:
        open_engine(url)
    assert "hunter2" not in str(error.value)


def test_an_engine_with_a_driver_that_does_not_work_is_refused_at_each_door(
    producer: Producer, store: Store, tmp_path: Path
) -> None:
    """Before anything is written."""
    other = sa.create_engine(f"sqlite:///{tmp_path}/other.db")
    other.dialect.driver = "strange"
    good = open_engine(f"sqlite:///{tmp_path}/good.db")
    create_tables(good)
    doors: list[Callable[[], object]] = [
        lambda: create_tables(other), lambda: migrate(other), lambda: validate_schema(other),
        lambda: Outbox(producer, other), lambda: Relay(producer, other), lambda: Inboxes(good, {"cg": other}),
        lambda: Idempotency("cg", other), lambda: Idempotency("cg", good, stubs=other),
        lambda: DeadLetters(LocalBackend(store), other),
    ]  # fmt: skip
    for door in doors:
        with pytest.raises(UsageError, match="driver strange of sqlite is not supported"):
            door()
    with Outbox(producer, good, groups=["cg"]) as outbox, other.connect() as connection:
        with pytest.raises(UsageError, match="driver strange"):
            outbox.add(connection, Message("Orders", b"1"))
    asynchronous: Any = create_async_engine("sqlite+aiosqlite://")
    with pytest.raises(UsageError, match=r"a sqlalchemy\.Engine is expected"):
        Outbox(producer, asynchronous)
    with pytest.raises(UsageError, match="asynchronous driver aiosqlite"):
        Outbox(producer, asynchronous.sync_engine)
    assert sa.inspect(good).get_table_names() and not sa.inspect(other).get_table_names()
