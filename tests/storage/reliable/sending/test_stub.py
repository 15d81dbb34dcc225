"""Stubs: a message as a row and back, confirmation by several groups, voiding."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from rmq_store import Message
from rmq_store.reliable import Tables
from rmq_store.reliable.database.transact import transact
from rmq_store.reliable.outbox.stub import (
    Confirmation,
    confirm,
    confirm_all,
    message_of,
    message_row,
    pending_groups_of,
    status_of,
    void,
)

NOW = 1_700_000_000_000


def write(engine: sa.Engine, tables: Tables, message_id: str, *groups: str, **columns: Any) -> None:
    row: dict[str, Any] = {
        **message_row(Message("Orders", b"tea")), "message_id": message_id, "status": "unconfirmed",
        "pending_groups": len(groups), "created_ms": NOW, "send_count": 1, "resend_ms": NOW, "claim_until_ms": 0,
        "is_manual": False, **columns,
    }  # fmt: skip
    with engine.begin() as connection:
        connection.execute(tables.stub.insert(), row)
        for group in groups:
            connection.execute(tables.stub_group.insert(), {"message_id": message_id, "group_name": group})


def stub_of(engine: sa.Engine, tables: Tables, message_id: str) -> tuple[str, int]:
    stub = tables.stub
    with engine.connect() as connection:
        asked = sa.select(stub.c.status, stub.c.pending_groups).where(stub.c.message_id == message_id)
        row = connection.execute(asked).one()
    return row.status, row.pending_groups


# -- message <-> row --------------------------------------------------------------------------------------------------

TEXT = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\x00\x01\x02"), min_size=1, max_size=8)
NAMES = st.sampled_from(["KEYS", "TAGS", "__SHARDINGKEY", "DELAY", "TIMER_DELIVER_MS", "UNIQ_KEY", "a", "é"])
MESSAGES = st.builds(
    Message,
    topic=st.just("Orders"),
    body=st.binary(min_size=1, max_size=20),
    tags=st.none() | TEXT,
    keys=st.none() | TEXT | st.lists(st.sampled_from(["K1", "K2"]), max_size=2),
    properties=st.lists(st.tuples(NAMES, TEXT | st.sampled_from(["0", "3", "-1", "007"])), max_size=5).map(dict),
    flag=st.integers(-(2**31), 2**31 - 1),
    queue_id=st.none() | st.integers(0, 7),
    sharding_key=st.none() | TEXT,
    born_timestamp_ms=st.none() | st.integers(0, 2**41),
    delay_level=st.integers(-1, 18),
    deliver_timestamp_ms=st.none() | st.integers(0, 2**41),
)


def through_a_row(message: Message) -> Message:
    class Row:
        def __init__(self, columns: Mapping[str, Any]) -> None:
            self.__dict__.update(columns)

    return message_of(Row(message_row(message)))  # type: ignore[arg-type]


@given(MESSAGES)
def test_a_message_that_was_a_row_is_stored_as_it_would_have_been(message: Message) -> None:
    back = through_a_row(message)
    assert list(back.stored_properties().items()) == list(message.stored_properties().items())
    for name in ("topic", "body", "flag", "queue_id", "born_timestamp_ms"):
        assert getattr(back, name) == getattr(message, name)
    # By this field, and not by the property, a producer chooses the queue.
    assert (back.sharding_key or None) == (message.sharding_key or None)


def test_the_fields_of_a_message_are_fields_again() -> None:
    message = Message(
        "Orders", b"tea", tags="TagA", keys="K1 K2", properties={"b": "2", "a": "1"}, flag=7, queue_id=3,
        sharding_key="ORD-1", born_timestamp_ms=NOW, delay_level=4, deliver_timestamp_ms=NOW + 5,
    )  # fmt: skip
    assert through_a_row(message) == message


def test_a_row_in_a_database_gives_the_message_back(engine: sa.Engine, tables: Tables) -> None:
    message = Message("Orders", bytes(range(256)) * 300, tags="é\U0001f375", properties={"a": "\x00\n'\"\\"}, flag=-1)
    write(engine, tables, "M", **message_row(message))
    with engine.connect() as connection:
        row = connection.execute(sa.select(tables.stub)).one()
    assert message_of(row) == message


# -- confirmation -----------------------------------------------------------------------------------------------------


def test_a_stub_is_confirmed_when_the_last_of_its_groups_has_confirmed(engine: sa.Engine, tables: Tables) -> None:
    write(engine, tables, "M", "stock", "mail")
    with engine.begin() as connection:
        assert confirm(connection, tables, "stock", "M", NOW) is Confirmation.CONFIRMED
    assert stub_of(engine, tables, "M") == ("unconfirmed", 1)
    with engine.begin() as connection:
        assert pending_groups_of(connection, tables, ["M", "N"]) == {"M": ["mail"]}
        assert confirm(connection, tables, "stock", "M", NOW) is Confirmation.ALREADY
        assert confirm(connection, tables, "mail", "M", NOW) is Confirmation.CONFIRMED
        assert status_of(connection, tables, ["M", "N"]) == {"M": "confirmed"}
    assert stub_of(engine, tables, "M") == ("confirmed", 0)


def test_a_confirmation_takes_the_message_off_the_hands_of_people(engine: sa.Engine, tables: Tables) -> None:
    write(engine, tables, "M", "stock", "mail", is_manual=True)
    for group, is_manual in (("stock", True), ("mail", False)):
        with engine.begin() as connection:
            confirm(connection, tables, group, "M", NOW)
            assert connection.scalar(sa.select(tables.stub.c.is_manual)) is is_manual


def test_a_group_that_the_stub_does_not_name_has_nothing_to_confirm(engine: sa.Engine, tables: Tables) -> None:
    write(engine, tables, "M", "stock")
    with engine.begin() as connection:
        assert confirm(connection, tables, "audit", "M", NOW) is Confirmation.NO_STUB
        assert confirm(connection, tables, "stock", "N", NOW) is Confirmation.NO_STUB
        assert confirm_all(connection, tables, "audit", ["M", "N"], NOW) == dict.fromkeys("MN", Confirmation.NO_STUB)
    assert stub_of(engine, tables, "M") == ("unconfirmed", 1)


def test_many_ids_are_answered_as_one_by_one(engine: sa.Engine, tables: Tables) -> None:
    for message_id in ("A", "B", "C", "D"):
        write(engine, tables, message_id, "stock", "mail")
    with engine.begin() as connection:
        confirm(connection, tables, "stock", "B", NOW)
        void(connection, tables, "C")
    with engine.begin() as connection:
        assert confirm_all(connection, tables, "stock", ["A", "B", "C", "D", "E"], NOW) == {
            "A": Confirmation.CONFIRMED, "B": Confirmation.ALREADY, "C": Confirmation.VOID,
            "D": Confirmation.CONFIRMED, "E": Confirmation.NO_STUB,
        }  # fmt: skip
        assert set(confirm_all(connection, tables, "mail", ["A", "B", "D"], NOW).values()) == {Confirmation.CONFIRMED}
    assert [stub_of(engine, tables, each) for each in "ABD"] == [("confirmed", 0)] * 3
    assert stub_of(engine, tables, "C") == ("void", 2)


@pytest.mark.parametrize("in_sets", [False, True])
def test_groups_that_confirm_at_one_time_all_count(engine: sa.Engine, tables: Tables, in_sets: bool) -> None:
    groups = [f"g{number}" for number in range(4)]
    write(engine, tables, "M", *groups)
    together, failures = threading.Barrier(len(groups)), []

    def run(group: str) -> None:
        def work(connection: sa.Connection) -> None:
            # The snapshot of a REPEATABLE READ transaction begins here, before anybody has confirmed. With SQLite that
            # would be a wait for each other's write lock.
            if connection.dialect.name != "sqlite" and not together.broken:
                connection.execute(sa.select(tables.stub)).all()
                together.wait(20)
            if in_sets:
                assert confirm_all(connection, tables, group, ["M"], NOW) == {"M": Confirmation.CONFIRMED}
            else:
                assert confirm(connection, tables, group, "M", NOW) is Confirmation.CONFIRMED

        try:
            transact(engine, work)
        except BaseException as error:
            failures.append(error)
            together.abort()

    threads = [threading.Thread(target=run, args=(group,)) for group in groups]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert stub_of(engine, tables, "M") == ("confirmed", 0)


# -- voiding ----------------------------------------------------------------------------------------------------------


def test_a_void_stub_is_told_to_the_group_that_confirms_too_late(engine: sa.Engine, tables: Tables) -> None:
    write(engine, tables, "M", "stock")
    with engine.begin() as connection:
        assert void(connection, tables, "M") == "void"
    with engine.connect() as connection:
        assert confirm(connection, tables, "stock", "M", NOW) is Confirmation.VOID
        connection.rollback()
    assert stub_of(engine, tables, "M") == ("void", 1)


def test_what_is_confirmed_cannot_be_taken_back(engine: sa.Engine, tables: Tables) -> None:
    write(engine, tables, "M", "stock")
    with engine.begin() as connection:
        confirm(connection, tables, "stock", "M", NOW)
        assert void(connection, tables, "M") == "confirmed"
        assert void(connection, tables, "N") is None
    assert stub_of(engine, tables, "M") == ("confirmed", 0)


def test_a_void_that_is_not_in_the_snapshot_of_a_confirmation_counts(engine: sa.Engine, tables: Tables) -> None:
    write(engine, tables, "M", "stock")
    for run in (confirm, lambda c, t, group, one, now: confirm_all(c, t, group, [one], now)[one]):
        with engine.connect() as connection:
            # SQLite has one writer at a time: nobody can void while a confirmation's transaction is open.
            if engine.dialect.name != "sqlite":
                connection.execute(sa.select(tables.stub)).all()
            with engine.begin() as other:
                void(other, tables, "M")
            assert run(connection, tables, "stock", "M", NOW) is Confirmation.VOID
            connection.rollback()
