"""The rows of what a group has done: `rmq_store.reliable.inbox.inbox`."""

from __future__ import annotations

import asyncio

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from helpers.consuming import KINDS, Databases, Worker, is_waiting, statements_of
from rmq_store.reliable import Tables
from rmq_store.reliable.database.transact import transact
from rmq_store.reliable.inbox import inbox


@pytest.fixture
def tables(databases: Databases) -> Tables:
    return databases.tables


@pytest.fixture(params=KINDS)
def engine(request: pytest.FixtureRequest, databases: Databases) -> sa.Engine:
    return databases.empty(request.param)


on_servers = pytest.mark.parametrize("engine", KINDS[1:], indirect=True)


def test_a_message_is_done_once_for_each_group(engine: sa.Engine, tables: Tables) -> None:
    with engine.begin() as connection:
        assert inbox.insert(connection, tables, "A", "M1", 1)
        assert not inbox.insert(connection, tables, "A", "M1", 2)
    with engine.begin() as connection:
        assert not inbox.insert(connection, tables, "A", "M1", 3)
        assert inbox.insert(connection, tables, "B", "M1", 4), "what A has done is not done by B"
        assert inbox.insert(connection, tables, "A", "m1", 5), "ids differ by case"
        assert inbox.done_ids(connection, tables, "A", ["M1", "m1", "M2"]) == {"M1", "m1"}


def test_a_set_returns_the_ids_that_are_new(engine: sa.Engine, tables: Tables) -> None:
    ids = [f"M{number}" for number in range(2_500)]
    with engine.begin() as connection:
        assert inbox.insert_set(connection, tables, "A", ids[::2], 1) == set(ids[::2])
    with engine.begin() as connection:
        assert inbox.insert_set(connection, tables, "A", [*ids, *ids], 2) == set(ids[1::2])
    with engine.begin() as connection:
        assert inbox.insert_set(connection, tables, "A", ids, 3) == set()
        assert inbox.insert_set(connection, tables, "A", [], 3) == set()
        assert inbox.done_ids(connection, tables, "A", ids) == set(ids)


def test_a_transaction_that_is_tried_again_does_not_take_its_first_rows_for_new_ones(
    engine: sa.Engine, tables: Tables
) -> None:
    """A commit whose answer is lost: the second try must find that the message is done."""
    for ids in (["M1"], ["M2", "M3"]):
        with engine.begin() as connection:
            inbox.insert_set(connection, tables, "A", ids, 1)
        with engine.begin() as connection:
            assert inbox.insert_set(connection, tables, "A", ids, 1) == set()


@pytest.mark.parametrize("ids", [["M1"], ["M1", "M2"]], ids=["one", "a set"])
@pytest.mark.parametrize("commits", [True, False], ids=["commits", "rolls back"])
def test_a_second_worker_waits_for_the_first(engine: sa.Engine, tables: Tables, ids: list[str], commits: bool) -> None:
    first = engine.connect()
    with first:
        transaction = first.begin()
        inbox.insert_set(first, tables, "A", ids, 1)
        second = Worker(lambda: transact(engine, lambda other: inbox.insert_set(other, tables, "A", ids, 2)))
        assert is_waiting(engine, second)
        if commits:
            transaction.commit()
        else:
            transaction.rollback()
    assert second.outcome() == (set() if commits else set(ids))


@pytest.mark.parametrize("ids", [["M1"], ["M1", "M2"]], ids=["one", "a set"])
@on_servers
def test_the_insert_decides_and_not_an_old_snapshot(engine: sa.Engine, tables: Tables, ids: list[str]) -> None:
    """In SQLite, a transaction of the kit is the only one that writes, and sees the newest state."""
    with engine.connect() as connection, connection.begin():
        assert inbox.done_ids(connection, tables, "A", ids) == set()
        with engine.begin() as other:
            inbox.insert_set(other, tables, "A", ids, 1)
        assert inbox.insert_set(connection, tables, "A", ids, 2) == set()


def test_only_a_duplicate_counts_as_one(engine: sa.Engine, tables: Tables) -> None:
    group: str = None  # type: ignore[assignment]
    for ids in (["M1"], ["M1", "M2"]):
        with pytest.raises(sa.exc.IntegrityError), engine.begin() as connection:
            inbox.insert_set(connection, tables, group, ids, 1)


def test_a_set_takes_one_statement_or_two_for_a_thousand_ids(engine: sa.Engine, tables: Tables) -> None:
    expected = 2 if engine.dialect.name == "mysql" else 1
    for size in (10, 1_000):
        ids = [f"{size}-{number}" for number in range(size)]
        with statements_of(engine) as seen, engine.begin() as connection:
            seen.clear()
            inbox.insert_set(connection, tables, "A", ids, 1)
            assert len(seen) == expected, seen


def test_purge_deletes_what_is_older_in_chunks(engine: sa.Engine, tables: Tables) -> None:
    with engine.begin() as connection:
        inbox.insert_set(connection, tables, "A", [f"old{number}" for number in range(2_100)], 99)
        inbox.insert_set(connection, tables, "A", ["new"], 100)
        inbox.insert_set(connection, tables, "B", ["old0"], 99)
    assert inbox.purge(engine, tables, "A", 100) == 2_100
    assert inbox.purge(engine, tables, "A", 100) == 0
    with engine.begin() as connection:
        assert inbox.done_ids(connection, tables, "A", ["old0", "new"]) == {"new"}
        assert inbox.done_ids(connection, tables, "B", ["old0"]) == {"old0"}


ASYNC_DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+psycopg", "mysql": "mysql+aiomysql"}


@pytest.mark.parametrize("ids", [["M1"], ["M1", "M2"]], ids=["one", "a set"])
def test_an_async_connection_reaches_the_inbox_by_run_sync(engine: sa.Engine, tables: Tables, ids: list[str]) -> None:
    async def main() -> None:
        made = create_async_engine(engine.url.set(drivername=ASYNC_DRIVERS[engine.dialect.name]))
        try:
            async with made.begin() as connection:
                assert await connection.run_sync(inbox.insert_set, tables, "A", ids, 1) == set(ids)
            async with AsyncSession(made) as session, session.begin():
                # In the session's transaction, with what it writes.
                connection = await session.connection()
                assert await connection.run_sync(inbox.insert_set, tables, "A", [*ids, "M3"], 2) == {"M3"}
            async with made.begin() as connection:
                assert not await connection.run_sync(inbox.insert, tables, "A", "M3", 3)
        finally:
            await made.dispose()

    asyncio.run(main())
    with engine.begin() as connection:
        assert inbox.done_ids(connection, tables, "A", [*ids, "M3"]) == {*ids, "M3"}
