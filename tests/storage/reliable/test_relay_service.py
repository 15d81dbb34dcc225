"""What runs beside a relay: `relay/relay_service.py`. The command: tests/storage/cli/test_resend_run.py."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa

from helpers.patient import PATIENT
from rmq_store import Message, Store
from rmq_store.client import LocalBackend, MessageQueue, Producer
from rmq_store.reliable import Relay, Tables, open_engine
from rmq_store.reliable.database import manual_list
from rmq_store.reliable.relay.inboxes import Inboxes
from rmq_store.reliable.relay.relay_service import RelayService

QUEUE = MessageQueue("Orders", "rmq-embedded", 0)


@pytest.fixture
def tables() -> Tables:
    return Tables()


@pytest.fixture
def engine(tmp_path: Path, tables: Tables) -> Iterator[sa.Engine]:
    made = open_engine(f"sqlite:///{tmp_path}/shop.db")
    tables.metadata.create_all(made)
    yield made
    made.dispose()


@pytest.fixture
def backend(scratch: Path) -> Iterator[LocalBackend]:
    with Store.open(scratch / "store", create=True) as store:
        store.create_topic("Orders", queue_count=1)
        with LocalBackend(store) as made:
            yield made


def kill(backend: LocalBackend, group: str, message_id: str) -> None:
    (broker,) = backend.brokers().values()
    start = broker.max_offset(QUEUE)
    own = {"OUTBOX_ID": message_id, "UNIQ_KEY": message_id}
    broker.send(Message("Orders", b"x", properties=own, queue_id=0), 0, 5_000, "pg")
    (message,) = broker.pull(group, QUEUE, start, 1).messages
    broker.send_message_back(group, message, -1, None, 5_000)


def has_consumed(engine: sa.Engine, tables: Tables, *groups: str) -> None:
    place = {"broker_name": "b", "topic": "Other", "queue_id": 0, "queue_offset": 1}
    with engine.begin() as connection:
        connection.execute(sa.insert(tables.high_water), [{"group_name": group, **place} for group in groups])


def listed(engine: sa.Engine, tables: Tables) -> list[str]:
    with engine.connect() as connection:
        return [entry.message_id for entry in manual_list.list_entries(connection, tables, limit=9)]


def test_a_group_whose_dead_letters_cannot_be_read_does_not_keep_others_from_theirs(
    backend: LocalBackend, engine: sa.Engine, tables: Tables, caplog: pytest.LogCaptureFixture
) -> None:
    kill(backend, "cg_a", "A1")
    kill(backend, "cg_b", "B2")
    store = backend.brokers()[QUEUE.broker_name].store
    known = store.topics()["%DLQ%cg_a"]
    store.admin.update_topic("%DLQ%cg_a", lambda config: replace(config, perm=2), default=known)
    has_consumed(engine, tables, "cg_a", "cg_b")
    with Producer("pg", backend, PATIENT) as producer:
        service = RelayService(Relay(producer, engine, tables), backend, Inboxes(engine), tables)
        with caplog.at_level(logging.WARNING):
            report = service.run_once()
    assert (report.collected.listed, report.problem, listed(engine, tables)) == (1, "", ["B2"])
    assert "the dead letters of cg_a were not collected" in caplog.text


def test_dead_letters_are_collected_now_and_then_and_go_to_the_database_of_their_group(
    backend: LocalBackend, engine: sa.Engine, tables: Tables, tmp_path: Path
) -> None:
    """A group that once consumed with another database has marks there, too."""
    stock = open_engine(f"sqlite:///{tmp_path}/stock.db")
    tables.metadata.create_all(stock)
    for one in (engine, stock):
        has_consumed(one, tables, "cg")
    kill(backend, "cg", "A1")
    clock = [100.0]
    with Producer("pg", backend, PATIENT) as producer:
        inboxes = Inboxes(engine, {"cg": stock})
        relay = Relay(producer, engine, tables, inboxes=inboxes)
        service = RelayService(relay, backend, inboxes, tables, collect_every_s=10, monotonic=lambda: clock[0])
        assert service.run_once().collected.listed == 1
        assert (listed(engine, tables), listed(stock, tables)) == ([], ["A1"])
        kill(backend, "cg", "B2")
        clock[0] = 109.9
        assert service.run_once().collected.read == 0
        clock[0] = 110.0
        assert service.run_once().collected.listed == 1
        with stock.begin() as connection:
            row = {"group_name": "cg", "message_id": "A1", "done_ms": 5, "token": "t"}
            connection.execute(sa.insert(tables.inbox), [row])
        clock[0] = 120.0
        service.run_once()
    assert listed(stock, tables) == ["B2"]
    stock.dispose()


def test_a_manual_list_without_anything_over_is_only_looked_at(
    backend: LocalBackend, engine: sa.Engine, tables: Tables
) -> None:
    """SQLite has one writer at a time, and a relay looks every second."""
    with engine.begin() as connection:
        manual_list.add(connection, tables, "A1", "cg", "dead_letter", "", 1)
    with Producer("pg", backend, PATIENT) as producer:
        service = RelayService(Relay(producer, engine, tables), backend, Inboxes(engine), tables, collect_every_s=0)
        texts: list[str] = []
        sa.event.listen(engine, "before_cursor_execute", lambda _c, _k, text, *_: texts.append(text))
        service.run_once()
        assert texts and not [text for text in texts if text.startswith("DELETE FROM rmq_manual")]
        with engine.begin() as connection:
            row = {"group_name": "cg", "message_id": "A1", "done_ms": 5, "token": "t"}
            connection.execute(sa.insert(tables.inbox), [row])
        service.run_once()
    assert listed(engine, tables) == []


def test_an_error_that_waiting_does_not_cure_ends_the_service(
    backend: LocalBackend, engine: sa.Engine, tables: Tables
) -> None:
    with Producer("pg", backend, PATIENT) as producer:
        service = RelayService(Relay(producer, engine, tables), backend, Inboxes(engine), tables)
        tables.metadata.drop_all(engine)
        with pytest.raises(sa.exc.OperationalError, match="no such table"):
            service.run_once()
