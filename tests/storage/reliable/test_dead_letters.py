"""Dead letters on their way to the manual list: `rmq_store.reliable.relay.dead_letters`."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from helpers.patient import PATIENT
from rmq_store import Message, Store, StoreConfig
from rmq_store.client import LocalBackend, MessageQueue, MQClientError, Producer
from rmq_store.errors import UsageError
from rmq_store.reliable import OUTBOX_ID, Tables, open_engine
from rmq_store.reliable.database import manual_list
from rmq_store.reliable.database.leases import now_ms
from rmq_store.reliable.database.manual_list import ManualEntry
from rmq_store.reliable.relay import dead_letter_pages
from rmq_store.reliable.relay.dead_letters import CollectReport, DeadLetters

QUEUE = MessageQueue("Orders", "rmq-embedded", 0)


@pytest.fixture
def tables() -> Tables:
    return Tables()


@pytest.fixture
def engine(database_url: str, tables: Tables) -> Iterator[sa.Engine]:
    made = open_engine(database_url)
    tables.metadata.create_all(made)
    yield made
    made.dispose()


@pytest.fixture
def backend(scratch: Path) -> Iterator[LocalBackend]:
    with Store.open(scratch / "store", create=True) as store:
        store.create_topic("Orders", queue_count=1)
        with LocalBackend(store) as made:
            yield made


def kill(backend: LocalBackend, *message_ids: str, reasons: dict[str, str] | None = None) -> None:
    """Send messages of these ids, and let the group `cg` give each up."""
    broker = backend.brokers()[QUEUE.broker_name]
    start = broker.max_offset(QUEUE)
    for message_id in message_ids:
        own = {OUTBOX_ID: message_id, "UNIQ_KEY": message_id}
        broker.send(Message("Orders", b"tea", properties=own, queue_id=0), 0, 5_000, "pg")
    for message in broker.pull("cg", QUEUE, start, len(message_ids)).messages:
        broker.send_message_back("cg", message, -1, None, 5_000, properties=reasons or {})


def entries(engine: sa.Engine, tables: Tables) -> list[ManualEntry]:
    with engine.connect() as connection:
        return manual_list.list_entries(connection, tables, limit=5_000)


def ids(engine: sa.Engine, tables: Tables) -> set[str]:
    return {entry.message_id for entry in entries(engine, tables)}


def mark_done(engine: sa.Engine, tables: Tables, message_id: str) -> None:
    row = {"group_name": "cg", "message_id": message_id, "done_ms": 5, "token": "t"}
    with engine.begin() as connection:
        connection.execute(sa.insert(tables.inbox), [row])


def add_stub(engine: sa.Engine, tables: Tables, message_id: str, status: str = "unconfirmed") -> None:
    row: dict[str, Any] = {
        "message_id": message_id, "topic": "Orders", "body": b"", "flag": 0, "properties": "[]", "status": status,
        "pending_groups": 1, "created_ms": 1, "send_count": 1, "resend_ms": 1, "claim_until_ms": 0, "is_manual": False,
    }  # fmt: skip
    with engine.begin() as connection:
        connection.execute(sa.insert(tables.stub), [row])
        connection.execute(sa.insert(tables.stub_group), [{"message_id": message_id, "group_name": "cg"}])


def status(engine: sa.Engine, tables: Tables, message_id: str) -> str | None:
    with engine.connect() as connection:
        return connection.scalar(sa.select(tables.stub.c.status).where(tables.stub.c.message_id == message_id))


@pytest.mark.statement("H08")
def test_a_dead_letter_is_listed_once_with_what_is_known_of_it(
    backend: LocalBackend, engine: sa.Engine, tables: Tables
) -> None:
    kill(backend, "A1", reasons={"PYRMQ_ERROR_CLASS": "LookupError", "PYRMQ_ERROR_MESSAGE": "no such customer"})
    kill(backend, "B2")
    collector = DeadLetters(backend, engine, tables)
    assert collector.collect("cg") == CollectReport(read=2, listed=2)
    assert collector.collect("cg") == CollectReport()
    first, second = sorted(entries(engine, tables), key=lambda entry: entry.message_id)
    assert (first.group_name, first.reason) == ("cg", "dead_letter")
    assert first.detail == (
        "LookupError: no such customer, from Orders, reconsumeTimes 1, in %DLQ%cg queue 0 offset 0 at rmq-embedded"
    )
    assert second.detail == "from Orders, reconsumeTimes 1, in %DLQ%cg queue 0 offset 1 at rmq-embedded"


@pytest.mark.statement("H08")
def test_a_dead_letter_that_its_group_has_done_is_not_listed_and_confirms_its_stub(
    backend: LocalBackend, engine: sa.Engine, tables: Tables
) -> None:
    for message_id in ("done", "dead"):
        add_stub(engine, tables, message_id)
    mark_done(engine, tables, "done")
    kill(backend, "done", "dead")
    assert DeadLetters(backend, engine, tables).collect("cg") == CollectReport(read=2, listed=1, done=1)
    assert ids(engine, tables) == {"dead"}
    assert [status(engine, tables, message_id) for message_id in ("done", "dead")] == ["confirmed", "unconfirmed"]


def test_a_dead_letter_of_a_void_stub_is_not_listed(backend: LocalBackend, engine: sa.Engine, tables: Tables) -> None:
    add_stub(engine, tables, "void", "void")
    kill(backend, "void")
    assert DeadLetters(backend, engine, tables).collect("cg") == CollectReport(read=1, void=1)
    assert entries(engine, tables) == []


def test_from_a_dead_letter_on_people_decide_and_no_relay_sends_it(
    backend: LocalBackend, engine: sa.Engine, tables: Tables
) -> None:
    """Also if its log row says that it waits for a retry, and if there is none."""
    waiting = {
        "group_name": "cg", "message_id": "A1", "broker_name": "b", "topic": "Orders", "queue_id": 0,
        "queue_offset": 0, "received_ms": 1, "reconsume_times": 3, "lease_token": None, "lease_until_ms": 0,
        "blocks_until_ms": 77, "is_dead": False,
    }  # fmt: skip
    with engine.begin() as connection:
        connection.execute(sa.insert(tables.log), [waiting])
    kill(backend, "A1", "B2")
    DeadLetters(backend, engine, tables).collect("cg")
    log = tables.log
    with engine.connect() as connection:
        asked = sa.select(log.c.message_id, log.c.is_dead, log.c.reconsume_times).order_by(log.c.message_id)
        found = [tuple(row) for row in connection.execute(asked)]
    assert found == [("A1", True, 3), ("B2", True, 1)]


def test_stubs_of_another_database_are_asked_and_confirmed_there(
    backend: LocalBackend, engine: sa.Engine, tables: Tables, second_database_url: str
) -> None:
    stubs = open_engine(second_database_url)
    tables.metadata.create_all(stubs)
    for message_id, kind in (("done", "unconfirmed"), ("void", "void"), ("dead", "unconfirmed")):
        add_stub(stubs, tables, message_id, kind)
    mark_done(engine, tables, "done")
    kill(backend, "done", "void", "dead")
    report = DeadLetters(backend, engine, tables, stubs=stubs).collect("cg")
    assert report == CollectReport(read=3, listed=1, done=1, void=1)
    assert ids(engine, tables) == {"dead"}
    assert status(stubs, tables, "done") == "confirmed"
    stubs.dispose()


# ---- what does not depend on the database


@pytest.fixture
def sqlite(tmp_path: Path, tables: Tables) -> Iterator[sa.Engine]:
    made = open_engine(f"sqlite:///{tmp_path}/business.db")
    tables.metadata.create_all(made)
    yield made
    made.dispose()


def test_the_mark_and_the_entries_are_one_transaction(
    backend: LocalBackend, sqlite: sa.Engine, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A collector that dies between them would lose the dead letters that it has read."""
    kill(backend, "A1")

    def die(*given: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(manual_list, "add_all", die)
        with pytest.raises(KeyboardInterrupt):
            DeadLetters(backend, sqlite, tables).collect("cg")
    assert DeadLetters(backend, sqlite, tables).collect("cg").listed == 1


def test_of_two_collectors_one_goes_on(
    backend: LocalBackend, sqlite: sa.Engine, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill(backend, "A1")
    slow, fast = DeadLetters(backend, sqlite, tables), DeadLetters(backend, sqlite, tables)
    slow.collect("cg")
    kill(backend, "B2", "C3")
    mark = slow._mark

    def beaten(group: str, queue: MessageQueue) -> int | None:
        read = mark(group, queue)
        fast.collect("cg")
        kill(backend, "D4")
        fast.collect("cg")
        return read

    monkeypatch.setattr(slow, "_mark", beaten)
    assert slow.collect("cg") == CollectReport()
    assert ids(sqlite, tables) == {"A1", "B2", "C3", "D4"}
    assert fast.collect("cg") == CollectReport()


def test_of_two_collectors_that_read_a_first_page_one_lists_it(
    backend: LocalBackend, sqlite: sa.Engine, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one would list again what a person has just had sent again, and no relay would send it."""
    kill(backend, "A1")
    slow, fast = DeadLetters(backend, sqlite, tables), DeadLetters(backend, sqlite, tables)

    def beaten(group: str, queue: MessageQueue) -> None:
        assert fast.collect("cg").listed == 1
        with sqlite.begin() as connection:
            manual_list.remove(connection, tables, "A1")

    monkeypatch.setattr(slow, "_mark", beaten)
    assert slow.collect("cg") == CollectReport()
    assert entries(sqlite, tables) == []


def test_more_dead_letters_than_a_transaction_holds_are_collected_in_several(
    backend: LocalBackend, sqlite: sa.Engine, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letter_pages, "PAGE_ROWS", 3)
    kill(backend, *(f"M{number}" for number in range(8)))
    texts: list[str] = []
    sa.event.listen(sqlite, "before_cursor_execute", lambda _c, _k, text, *_: texts.append(text))
    assert DeadLetters(backend, sqlite, tables).collect("cg") == CollectReport(read=8, listed=8)
    assert len([text for text in texts if re.match("UPDATE rmq_high_water", text)]) == 3
    assert ids(sqlite, tables) == {f"M{number}" for number in range(8)}


def test_what_no_table_can_name_is_listed_by_its_place(
    backend: LocalBackend, sqlite: sa.Engine, tables: Tables
) -> None:
    kill(backend, "no id", "A1", "x" * 256)
    collector = DeadLetters(backend, sqlite, tables)
    assert collector.collect("cg") == CollectReport(read=3, listed=1, without_id=2)
    assert collector.collect("cg") == CollectReport()
    assert [(entry.message_id, entry.reason) for entry in entries(sqlite, tables)] == [
        ("A1", "dead_letter"), ("rmq-embedded/%DLQ%cg/0/0", "no_id"), ("rmq-embedded/%DLQ%cg/0/2", "no_id"),
    ]  # fmt: skip


def test_dead_letters_that_may_not_be_read_are_an_error_that_says_what_to_do(
    scratch: Path, sqlite: sa.Engine, tables: Tables
) -> None:
    with Store.open(scratch / "closed", create=True, config=StoreConfig(dlq_perm=2)) as store:
        store.create_topic("Orders", queue_count=1)
        with LocalBackend(store) as backend:
            assert DeadLetters(backend, sqlite, tables).collect("cg") == CollectReport(), "there are none"
            kill(backend, "A1")
            with pytest.raises(UsageError, match=r"rmq updateTopicPerm -t %DLQ%cg -p 6"):
                DeadLetters(backend, sqlite, tables).collect("cg")


def test_the_first_dead_letter_may_come_while_the_topic_is_looked_up(
    backend: LocalBackend, sqlite: sa.Engine, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look_up_then_kill(look_up: Callable[[str], list[MessageQueue]], topic: str) -> list[MessageQueue]:
        queues = look_up(topic)
        monkeypatch.undo()
        kill(backend, "A1")
        return queues

    for method in (backend.subscribe_queues, backend.publish_queues):
        monkeypatch.setattr(backend, method.__name__, partial(look_up_then_kill, method))
    collector = DeadLetters(backend, sqlite, tables)
    assert collector.collect("cg") + collector.collect("cg") == CollectReport(read=1, listed=1)


def test_the_topic_may_be_deleted_while_it_is_looked_up(
    backend: LocalBackend, sqlite: sa.Engine, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill(backend, "A1")
    look_up = backend.subscribe_queues

    def delete_then_look_up(topic: str) -> list[MessageQueue]:
        backend.brokers()[QUEUE.broker_name].store.admin.delete_topic(topic)
        return look_up(topic)

    monkeypatch.setattr(backend, "subscribe_queues", delete_then_look_up)
    assert DeadLetters(backend, sqlite, tables).collect("cg") == CollectReport()


def test_a_broker_that_is_not_listed_yet_is_an_error_of_the_cluster(
    backend: LocalBackend, sqlite: sa.Engine, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Routes and the list of brokers are asked for by themselves, and each may be half a minute old."""
    kill(backend, "A1")
    monkeypatch.setattr(backend, "brokers", dict)
    with pytest.raises(MQClientError, match="rmq-embedded"):
        DeadLetters(backend, sqlite, tables).collect("cg")


def test_a_topic_that_began_anew_is_collected_from_its_start(
    backend: LocalBackend, scratch: Path, sqlite: sa.Engine, tables: Tables
) -> None:
    kill(backend, "A1", "B2")
    DeadLetters(backend, sqlite, tables).collect("cg")
    with Store.open(scratch / "other", create=True, config=StoreConfig()) as store:
        store.create_topic("Orders", queue_count=1)
        with LocalBackend(store) as other:
            kill(other, "C3")
            collector = DeadLetters(other, sqlite, tables)
            assert collector.collect("cg") == CollectReport(read=1, listed=1)
            assert collector.collect("cg") == CollectReport()


def test_who_was_told_of_a_dead_letter_is_told_again_when_it_dies_again(
    backend: LocalBackend, sqlite: sa.Engine, tables: Tables
) -> None:
    collector = DeadLetters(backend, sqlite, tables)
    kill(backend, "A1")
    collector.collect("cg")
    tell(sqlite, tables, now_ms())
    kill(backend, "A1")
    collector.collect("cg")
    with sqlite.connect() as connection:
        assert manual_list.not_notified(connection, tables, limit=9) == [], "a minute has not passed: it is one death"
    hour_ago_ms = now_ms() - 3_600_000
    with sqlite.begin() as connection:
        manual_list.remove(connection, tables, "A1")
        manual_list.add(connection, tables, "A1", "cg", "dead_letter", "long ago", hour_ago_ms)
    tell(sqlite, tables, hour_ago_ms)
    kill(backend, "A1")
    collector.collect("cg")
    (entry,) = entries(sqlite, tables)
    assert (entry.notified_ms, "offset 2" in entry.detail) == (None, True)


def tell(engine: sa.Engine, tables: Tables, at_ms: int) -> None:
    with engine.begin() as connection:
        told = manual_list.not_notified(connection, tables, limit=9)
        manual_list.mark_notified(connection, tables, told, at_ms)


def test_dead_letters_that_retention_took_unseen_are_told_of(
    backend: LocalBackend,
    sqlite: sa.Engine,
    tables: Tables,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    kill(backend, "A1", "B2", "C3", "D4")
    collector = DeadLetters(backend, sqlite, tables)
    monkeypatch.setattr(collector, "_mark", lambda group, queue: None)
    collector.collect("cg")
    monkeypatch.undo()
    with sqlite.begin() as connection:
        connection.execute(sa.update(tables.high_water).values(queue_offset=0))
    broker = backend.brokers()[QUEUE.broker_name]
    monkeypatch.setattr(broker, "min_offset", lambda queue: 3)
    with caplog.at_level(logging.WARNING):
        report = collector.collect("cg")
    assert (report.gone, report.read) == (2, 3)
    assert "2 dead letters were deleted before they were collected" in caplog.text


def test_dead_letters_that_retention_takes_before_they_are_read_are_told_of(
    backend: LocalBackend, sqlite: sa.Engine, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill(backend, "A1", "B2", "C3", "D4")
    broker: Any = backend.brokers()[QUEUE.broker_name]
    pull_batch = broker.pull_batch

    def delete_then_pull(group: str, queue: MessageQueue, offset: int, count: int) -> Any:
        monkeypatch.setattr(broker, "min_offset", lambda queue: 3)
        return pull_batch(group, queue, max(offset, 3), count)

    monkeypatch.setattr(broker, "pull_batch", delete_then_pull)
    assert DeadLetters(backend, sqlite, tables).collect("cg") == CollectReport(read=1, listed=1, gone=3)


def test_the_groups_are_those_that_consume_with_this_database(
    backend: LocalBackend, sqlite: sa.Engine, tables: Tables
) -> None:
    kill(backend, "A1")
    collector = DeadLetters(backend, sqlite, tables)
    assert (collector.groups(), collector.collect_all()) == ([], CollectReport())
    place = {"broker_name": "b", "topic": "Orders", "queue_offset": 9}
    with sqlite.begin() as connection:
        rows = [{"group_name": "cg", "queue_id": queue_id, **place} for queue_id in range(2)]
        connection.execute(sa.insert(tables.high_water), rows)
    assert (collector.groups(), collector.collect_all().listed) == (["cg"], 1)


def test_a_redriven_dead_letter_leaves_the_list_when_it_is_done(
    backend: LocalBackend, sqlite: sa.Engine, tables: Tables
) -> None:
    kill(backend, "A1")
    DeadLetters(backend, sqlite, tables).collect("cg")
    with sqlite.begin() as connection:
        assert manual_list.remove_done(connection, tables) == 0
    mark_done(sqlite, tables, "A1")
    with sqlite.begin() as connection:
        assert manual_list.remove_done(connection, tables) == 1


def test_a_producer_that_gives_no_outbox_id_is_known_by_its_unique_key(
    backend: LocalBackend, sqlite: sa.Engine, tables: Tables
) -> None:
    broker = backend.brokers()[QUEUE.broker_name]
    with Producer("pg", backend, PATIENT) as producer:
        sent = producer.send(Message("Orders", b"tea"))
    (message,) = broker.pull("cg", QUEUE, 0, 1).messages
    broker.send_message_back("cg", message, -1, None, 5_000)
    DeadLetters(backend, sqlite, tables).collect("cg")
    assert ids(sqlite, tables) == {sent.msg_id}
