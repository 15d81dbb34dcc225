"""A database that only reads, goes away or has no free connection: messages are held, and no retry is used."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from helpers import servers
from helpers.consuming import Consumer, Databases, Worker, effects, is_waiting, message, write_effect
from helpers.patient import PATIENT
from rmq_store import Message, Store
from rmq_store.backoff import Backoff
from rmq_store.client import (
    ConsumeFromWhere,
    MessageExt,
    Producer,
    PushConsumer,
    PushConsumerConfig,
    SimpleConsumer,
)
from rmq_store.reliable import ConsumeCounts, Outbox, ReceiveCounts, Relay, Tables, holding_metrics, open_engine
from rmq_store.reliable.database import transact as of_transact
from rmq_store.reliable.inbox import worker_wait

SERVERS = ("postgresql", "mariadb")
on_servers = pytest.mark.parametrize("database_kind", SERVERS, indirect=True)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_wait, "AWAY_PAUSES", Backoff(first_ms=10, max_ms=50))
    for module in (of_transact, worker_wait):
        monkeypatch.setattr(module, "PAUSES", Backoff(first_ms=15, max_ms=15))


@pytest.fixture
def tables() -> Tables:
    return Tables()


@pytest.fixture
def consumer(database_server: servers.DatabaseServer, database_url: str, tables: Tables) -> Iterator[Consumer]:
    """A group at a server, with the rights of an application."""
    database = sa.make_url(database_url).database
    assert database is not None
    engine = open_engine(database_server.application_url(database))
    tables.metadata.create_all(engine)
    effects.metadata.create_all(engine)
    made = Consumer(engine, tables, max_reconsume_times=0)
    with made.once:
        yield made
    engine.dispose()


@pytest.fixture
def lite(databases: Databases) -> Iterator[Consumer]:
    made = Consumer(databases.empty("sqlite"), databases.tables, max_reconsume_times=0)
    with made.once:
        yield made


@contextmanager
def only_reads(engine: sa.Engine) -> Iterator[None]:
    """SQLite refuses to write, as on a file system that was mounted again read-only."""
    flag = threading.Event()
    flag.set()

    def _checked_out(connection: Any, _record: object, _proxy: object) -> None:
        connection.execute(f"PRAGMA query_only = {int(flag.is_set())}")

    sa.event.listen(engine, "checkout", _checked_out)
    try:
        yield
    finally:
        flag.clear()
        with engine.connect():
            pass
        # Connections of the pool were told not to write; each is told otherwise when it is taken again.


def wait_for(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.005)


def holding() -> dict[str, float]:
    (gauge, _) = holding_metrics()
    return {labels[0]: value for labels, value in gauge.samples}


# -- the inbox --------------------------------------------------------------------------------------------------------


@on_servers
def test_a_server_that_only_reads_holds_messages_before_their_handler(
    consumer: Consumer, database_server: servers.DatabaseServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Its connections are alive: only a write tells. At the last delivery a failure would be a dead letter."""
    assert consumer.consume(message("M0")) == 1
    calls: list[str] = []

    def handler(connection: sa.Connection, one: MessageExt) -> None:
        calls.append("")
        write_effect(connection, one)

    with database_server.read_only():
        held = Worker(lambda: consumer.consume(message(body=b"2"), handler=handler))
        assert is_waiting(consumer.engine, held)
        assert (calls, holding()["group cg"]) == ([], 1)
    assert held.outcome() == 1
    assert (len(calls), consumer.effects()) == (1, ["1", "2"])
    assert consumer.once.counts() == ConsumeCounts(done=2, database_outages=1)
    assert consumer.manual() == set()
    lines = [line.partition(" (")[0] for line in caplog.messages if line.startswith("group cg")]
    assert lines == ["group cg: the database is away", "group cg: the database is back"], "once per outage"
    assert holding()["group cg"] == 0


@on_servers
@pytest.mark.long
@pytest.mark.parametrize("then", ["raises", "hides it", "raises its own"])
def test_an_outage_in_an_effect_uses_no_retry(
    consumer: Consumer, database_server: servers.DatabaseServer, then: str
) -> None:
    """Longer than the tries of a transaction; at the last delivery, too; whatever the handler makes of the error."""
    calls: list[str] = []

    def handler(connection: sa.Connection, one: MessageExt) -> None:
        calls.append("")
        if len(calls) == 1:
            database_server.kill()
        try:
            write_effect(connection, one)
        except sa.exc.DBAPIError as error:
            if then == "raises":
                raise
            if then == "raises its own":
                raise ValueError("the shop is closed") from error

    held = Worker(lambda: consumer.consume(message(), handler=handler))
    wait_for(lambda: bool(calls))
    assert is_waiting(consumer.engine, held)
    database_server.start()
    assert held.outcome() == 1
    assert len(calls) == 2, "not while the database is away"
    assert consumer.effects() == ["1"]
    assert consumer.once.counts() == ConsumeCounts(done=1, database_outages=1)
    assert consumer.manual() == set()


@pytest.mark.parametrize("database_kind", ["postgresql"], indirect=True)
def test_a_handler_that_makes_its_transaction_read_only_fails_and_is_called_once(consumer: Consumer) -> None:
    """25006, as from a standby; but a fresh connection writes."""
    calls: list[str] = []

    def handler(connection: sa.Connection, one: MessageExt) -> None:
        calls.append("")
        connection.execute(sa.text("SET TRANSACTION READ ONLY"))
        write_effect(connection, one)

    assert consumer.consume(message(), handler=handler) == 0
    assert (len(calls), consumer.once.counts()) == (1, ConsumeCounts(failed=1))


@pytest.mark.parametrize("database_kind", ["postgresql"], indirect=True)
def test_stale_connections_of_the_pool_are_dropped(consumer: Consumer) -> None:
    """Those of before a fail-over lead to the old server; a fresh one leads to the new one."""
    engine = consumer.engine
    stale = [engine.connect() for _ in range(5)]
    for each in stale:
        assert each.connection.dbapi_connection is not None
        each.connection.dbapi_connection.execute("SET default_transaction_read_only = on")  # type: ignore[attr-defined]
        each.connection.dbapi_connection.commit()
        each.close()
    assert consumer.consume(message()) == 1
    assert consumer.effects() == ["1"]
    assert consumer.once.counts().failed == 0


def test_a_lasting_conflict_of_a_handler_ends_after_the_tries_of_today(lite: Consumer) -> None:
    calls: list[str] = []

    def handler(connection: sa.Connection, one: MessageExt) -> None:
        calls.append("")
        raise sa.exc.TimeoutError("a pool of the handler's own")

    assert lite.consume(message(), handler=handler) == 0
    assert len(calls) == of_transact.TRIES
    assert lite.once.counts().failed == 1


def test_a_file_of_sqlite_that_cannot_be_written_holds(lite: Consumer) -> None:
    with only_reads(lite.engine):
        held = Worker(lambda: lite.consume(message()))
        assert is_waiting(lite.engine, held)
    assert held.outcome() == 1
    assert (lite.effects(), lite.once.counts().failed) == (["1"], 0)


@on_servers
def test_a_full_pool_is_waited_for(database_url: str, tables: Tables) -> None:
    engine = open_engine(database_url, pool_size=1, max_overflow=0, pool_timeout=0.05)
    tables.metadata.create_all(engine)
    effects.metadata.create_all(engine)
    consumer = Consumer(engine, tables, max_reconsume_times=0)
    with consumer.once:
        with engine.connect():
            held = Worker(lambda: consumer.consume(message()))
            wait_for(lambda: consumer.once.counts().database_outages == 1)
            assert is_waiting(engine, held)
        assert held.outcome() == 1
        assert consumer.once.counts() == ConsumeCounts(done=1, database_outages=1)
    engine.dispose()


# -- consumers while their workers hold -------------------------------------------------------------------------------

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


@pytest.fixture
def store(scratch: Path) -> Iterator[Store]:
    with Store.open(scratch / "store", create=True, broker_name="broker-a") as made:
        made.create_topic("Orders", queue_count=1)
        yield made


def send(store: Store, *bodies: str) -> None:
    for body in bodies:
        store.send(Message("Orders", body.encode(), properties={"OUTBOX_ID": f"M{body}"}))


@pytest.mark.parametrize("kind", ["concurrently", "orderly", "arrow"])
def test_a_consumer_ends_at_once_while_its_workers_hold_and_no_retry_is_used(
    lite: Consumer, store: Store, kind: str
) -> None:
    """It would wait a day for them; and an answer would be a dead letter."""
    send(store, "1")

    def rows(connection: sa.Connection, batch: Any) -> None:
        connection.execute(effects.insert(), [{"body": body.decode()} for body in batch["body"].to_pylist()])

    listener: Any = {
        "concurrently": lambda: lite.once.concurrently(write_effect),
        "orderly": lambda: lite.once.orderly(write_effect, max_reconsume_times=0),
        "arrow": lambda: lite.once.arrow(rows),
    }[kind]()
    config = PushConsumerConfig(
        consume_from_where=FIRST, max_reconsume_times=0, await_termination_millis_when_shutdown=86_400_000
    )
    with only_reads(lite.engine):
        with PushConsumer("cg", store, config) as consumer:
            consumer.subscribe("Orders")
            consumer.register_message_listener(listener)
            consumer.start()
            wait_for(lambda: lite.once.counts().database_outages == 1)
    assert "%DLQ%cg" not in store.topics() and "%RETRY%cg" not in [
        topic for topic in store.topics() if sum(each.max_offset for each in store.queue_ranges(topic).values())
    ]
    with PushConsumer("cg", store, config) as again:
        again.subscribe("Orders")
        again.register_message_listener(listener)
        again.start()
        wait_for(lambda: lite.once.counts().done == 1)
    assert lite.effects() == ["1"]


def test_an_invisible_message_stays_invisible_while_its_worker_holds(lite: Consumer, scratch: Path) -> None:
    now_ms = [1_700_000_000_000]
    with Store.open(scratch / "s", create=True, broker_name="broker-a", clock=lambda: now_ms[0]) as store:
        store.create_topic("Orders", queue_count=1)
        send(store, "1", "2")
        with SimpleConsumer(
            "cg", store, {"Orders": "*"}, await_duration=timedelta(0), consume_from_where=FIRST, sleep=lambda _: None
        ) as simple:
            hidden = timedelta(seconds=1)
            with only_reads(lite.engine):
                held = Worker(lambda: lite.once.receive(simple, write_effect, 32, hidden))
                wait_for(lambda: lite.once.counts().database_outages == 1)
                for _ in range(6):
                    time.sleep(0.4)
                    now_ms[0] += 400
                    assert simple.receive(32, hidden) == []
            assert held.outcome() == ReceiveCounts(done=2)
    assert sorted(lite.effects()) == ["1", "2"]


# -- senders ----------------------------------------------------------------------------------------------------------


@on_servers
def test_a_relay_outlives_a_server_that_only_reads(
    consumer: Consumer, database_server: servers.DatabaseServer, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    stop = threading.Event()
    with Producer("pg", store, PATIENT) as producer, Outbox(producer, consumer.engine, groups=["cg"]) as outbox:
        with consumer.engine.begin() as connection:
            outbox.add(connection, Message("Orders", b"1"), send_now=False)
        with database_server.read_only():
            running = Worker(lambda: Relay(producer, consumer.engine).run(stop, 10))
            wait_for(lambda: any("relay: the database is away" in line for line in caplog.messages))
            assert running.is_alive()
            assert store.queue_ranges("Orders")[0].max_offset == 0
        wait_for(lambda: store.queue_ranges("Orders")[0].max_offset == 1)
        wait_for(lambda: any("relay: the database is back" in line for line in caplog.messages))
        stop.set()
        running.outcome()
    assert sum("relay: the database is away" in line for line in caplog.messages) == 1


