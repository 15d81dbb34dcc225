"""The list of messages that a person must look at: `rmq_store.reliable.database.manual_list`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from rmq_store.errors import UsageError
from rmq_store.reliable import Tables, open_engine
from rmq_store.reliable.database import manual_list
from rmq_store.reliable.database.manual_list import ManualEntry


@pytest.fixture
def tables() -> Tables:
    return Tables()


@pytest.fixture
def engine(database_url: str, tables: Tables) -> Iterator[sa.Engine]:
    made = open_engine(database_url)
    tables.metadata.create_all(made)
    yield made
    made.dispose()


def listed(engine: sa.Engine, tables: Tables, **wanted: object) -> list[ManualEntry]:
    with engine.connect() as connection:
        return manual_list.list_entries(connection, tables, limit=100, **wanted)  # type: ignore[arg-type]


def stub_row(message_id: str, status: str) -> dict[str, object]:
    return {
        "message_id": message_id, "topic": "Orders", "body": b"", "flag": 0, "properties": "[]", "status": status,
        "pending_groups": 1, "created_ms": 1, "send_count": 1, "resend_ms": 1, "claim_until_ms": 0, "is_manual": True,
    }  # fmt: skip


def test_an_entry_that_is_there_stays_as_it_is(engine: sa.Engine, tables: Tables) -> None:
    with engine.begin() as connection:
        manual_list.add(connection, tables, "A", "cg", "dead_letter", "timed out", 1_000)
    with engine.begin() as connection:
        manual_list.mark_notified(connection, tables, listed_in(connection, tables), 1_500)
        manual_list.add(connection, tables, "A", "cg", "dead_letter", "another text", 2_000)
        manual_list.add(connection, tables, "A", "cg", "in_doubt", "another reason", 2_000)
    assert listed(engine, tables) == [
        ManualEntry("A", "cg", "dead_letter", "timed out", 1_000, 1_500),
        ManualEntry("A", "cg", "in_doubt", "another reason", 2_000, None),
    ]


def listed_in(connection: sa.Connection, tables: Tables) -> list[ManualEntry]:
    return manual_list.list_entries(connection, tables, limit=100)


def test_pages_follow_each_other_through_entries_of_one_time(engine: sa.Engine, tables: Tables) -> None:
    with engine.begin() as connection:
        entries = [ManualEntry(f"M{number}", "", "maximum", "", 7) for number in range(5)]
        manual_list.add_all(connection, tables, entries)
        first = manual_list.list_entries(connection, tables, limit=2)
        second = manual_list.list_entries(connection, tables, limit=2, after=first[-1])
        third = manual_list.list_entries(connection, tables, limit=2, after=second[-1])
    assert [*first, *second, *third] == entries


def test_a_list_may_be_of_one_group_reason_or_message(engine: sa.Engine, tables: Tables) -> None:
    with engine.begin() as connection:
        manual_list.add(connection, tables, "A", "", "maximum", "", 1)
        manual_list.add(connection, tables, "B", "", "ordered", "", 2)
        manual_list.add(connection, tables, "A", "cg", "in_doubt", "", 3)
        assert manual_list.count(connection, tables) == {"maximum": 1, "ordered": 1, "in_doubt": 1}
    assert [entry.reason for entry in listed(engine, tables, group_name="")] == ["maximum", "ordered"]
    assert [entry.message_id for entry in listed(engine, tables, reason="ordered")] == ["B"]
    assert [entry.reason for entry in listed(engine, tables, message_ids=["A"])] == ["maximum", "in_doubt"]


def test_only_what_nobody_was_told_of_is_to_be_notified(engine: sa.Engine, tables: Tables) -> None:
    with engine.begin() as connection:
        manual_list.add(connection, tables, "A", "", "maximum", "", 1)
        manual_list.add(connection, tables, "B", "", "maximum", "", 2)
        (first,) = manual_list.not_notified(connection, tables, limit=1)
        manual_list.mark_notified(connection, tables, [first], 9)
        assert [entry.message_id for entry in manual_list.not_notified(connection, tables, limit=10)] == ["B"]
    assert [entry.notified_ms for entry in listed(engine, tables)] == [9, None]


def test_removal_takes_what_is_named_and_says_how_many(engine: sa.Engine, tables: Tables) -> None:
    with engine.begin() as connection:
        manual_list.add(connection, tables, "A", "", "maximum", "", 1)
        manual_list.add(connection, tables, "A", "cg", "in_doubt", "", 2)
        manual_list.add(connection, tables, "B", "cg", "in_doubt", "", 3)
        assert manual_list.remove(connection, tables, "A", reason="maximum") == 1
        assert manual_list.remove(connection, tables, "A", group_name="other") == 0
        assert manual_list.remove(connection, tables, "A") == 1
    assert [entry.message_id for entry in listed(engine, tables)] == ["B"]


def test_what_was_done_since_needs_no_person_but_a_doubt_does(engine: sa.Engine, tables: Tables) -> None:
    """The stub that others have confirmed says nothing about the dead letter of a group that it does not name."""
    with engine.begin() as connection:
        for message_id in ("done", "dead", "confirmed"):
            manual_list.add(connection, tables, message_id, "cg", "dead_letter", "", 1)
        manual_list.add(connection, tables, "done", "cg", "in_doubt", "", 1)
        manual_list.add(connection, tables, "void", "cg", "dead_letter", "", 1)
        for message_id in ("confirmed", "void", "open"):
            manual_list.add(connection, tables, message_id, "", "maximum", "", 1)
        connection.execute(
            sa.insert(tables.inbox), [{"group_name": "cg", "message_id": "done", "done_ms": 5, "token": "t"}]
        )
        states = {"confirmed": "confirmed", "void": "void", "open": "unconfirmed"}
        connection.execute(sa.insert(tables.stub), [stub_row(*state) for state in states.items()])
        assert manual_list.remove_done(connection, tables) == 4
        assert manual_list.remove_done(connection, tables) == 0
    assert {(entry.message_id, entry.reason) for entry in listed(engine, tables)} == {
        ("dead", "dead_letter"), ("confirmed", "dead_letter"), ("done", "in_doubt"), ("open", "maximum"),
    }  # fmt: skip


def test_a_detail_of_a_stranger_is_cut_and_becomes_text_that_each_database_takes(
    engine: sa.Engine, tables: Tables
) -> None:
    with engine.begin() as connection:
        manual_list.add(connection, tables, "A", "cg", "dead_letter", "a\0b\ud800" + "x" * 10_000, 1)
    (entry,) = listed(engine, tables)
    assert entry.detail == "a\N{REPLACEMENT CHARACTER}b?" + "x" * 3_996


def test_an_unknown_reason_is_the_callers_mistake(engine: sa.Engine, tables: Tables) -> None:
    with engine.begin() as connection, pytest.raises(UsageError, match="'lost'"):
        manual_list.add(connection, tables, "A", "cg", "lost", "", 1)


def test_thousands_of_entries_take_a_statement_per_thousand(engine: sa.Engine, tables: Tables) -> None:
    statements: list[str] = []
    with engine.begin() as connection:
        sa.event.listen(
            connection, "before_cursor_execute", lambda _c, _k, text, *_: statements.append(text), retval=False
        )
        manual_list.add_all(connection, tables, [ManualEntry(f"M{n}", "", "maximum", "", n) for n in range(2_500)])
    assert len(statements) == 3
    with engine.connect() as connection:
        assert manual_list.count(connection, tables) == {"maximum": 2_500}
