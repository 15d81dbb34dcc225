"""From asyncio: the sync core by `run_sync`, on aiosqlite, psycopg and aiomysql."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, create_async_engine

from rmq_store import Message, UsageError
from rmq_store.reliable import set_up_sqlite
from rmq_store.reliable.outbox.stub import Confirmation, confirm

from .cluster import START_MS, World

Work = Callable[[AsyncEngine], Awaitable[None]]


def run(world: World, work: Work) -> None:
    drivers = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+psycopg", "mysql": "mysql+aiomysql"}
    url = world.engine.url.set(drivername=drivers[world.engine.url.get_backend_name()])

    async def main() -> None:
        engine = create_async_engine(url)
        if world.engine.dialect.name == "sqlite":
            set_up_sqlite(engine.sync_engine)
        try:
            await work(engine)
        finally:
            await engine.dispose()

    asyncio.run(main())


async def order(world: World, target: AsyncConnection | AsyncSession, number: int) -> None:
    await target.execute(world.tables.metadata.tables["orders"].insert(), {"id": number, "what": "tea"})


def orders(world: World) -> list[int]:
    with world.engine.connect() as connection:
        return list(connection.scalars(sa.select(world.tables.metadata.tables["orders"].c.id).order_by("id")))


def test_a_message_is_promised_on_an_async_connection(world: World) -> None:
    outbox = world.outbox()

    async def work(engine: AsyncEngine) -> None:
        async with engine.begin() as connection:
            await order(world, connection, 1)
            stub = await connection.run_sync(outbox.add, Message("Orders", b"tea"), groups=("stock", "mail"))
        assert (await asyncio.to_thread(outbox.flush_after_commit, stub)).sent.keys() == {stub.message_id}
        with pytest.raises(RuntimeError):
            async with engine.begin() as connection:
                await order(world, connection, 2)
                stub = await connection.run_sync(outbox.add, Message("Orders", b"none"))
                raise RuntimeError
        assert "not there" in (await asyncio.to_thread(outbox.flush_after_commit, stub)).left[stub.message_id]

    run(world, work)
    assert (orders(world), world.bodies()) == ([1], [b"tea"])


def test_a_message_is_promised_on_an_async_session_with_savepoints(world: World) -> None:
    outbox = world.outbox()

    async def work(engine: AsyncEngine) -> None:
        async with AsyncSession(engine) as session:
            await order(world, session, 1)
            kept = await session.run_sync(outbox.add, Message("Orders", b"kept"), message_id="KEPT")
            with pytest.raises(RuntimeError):
                async with session.begin_nested():
                    lost = await session.run_sync(outbox.add, Message("Orders", b"lost"))
                    raise RuntimeError
            with pytest.raises(UsageError, match="has a stub already"):
                await session.run_sync(outbox.add, Message("Orders", b"again"), message_id="KEPT")
            await order(world, session, 2)
            await session.commit()
        flushed = await asyncio.to_thread(outbox.flush_after_commit, kept, lost)
        assert (flushed.sent.keys(), flushed.left.keys()) == ({"KEPT"}, {lost.message_id})

    run(world, work)
    assert (orders(world), world.bodies()) == ([1, 2], [b"kept"])


def test_a_stub_is_confirmed_on_an_async_connection(world: World) -> None:
    (message_id,) = world.add(Message("Orders", b"tea"))

    async def work(engine: AsyncEngine) -> None:
        async with engine.begin() as connection:
            answer = await connection.run_sync(confirm, world.tables, "stock", message_id, START_MS)
            assert answer is Confirmation.CONFIRMED

    run(world, work)
    assert world.stub(message_id).status == "confirmed"


def test_an_async_connection_that_commits_each_statement_is_refused(world: World) -> None:
    outbox = world.outbox()

    async def work(engine: AsyncEngine) -> None:
        async with engine.connect() as connection:
            if world.engine.dialect.name == "sqlite":
                await connection.exec_driver_sql("ROLLBACK")
            else:
                await connection.execution_options(isolation_level="AUTOCOMMIT")
            with pytest.raises(UsageError, match="AUTOCOMMIT"):
                await connection.run_sync(outbox.add, Message("Orders", b"tea"))

    run(world, work)
    assert world.stubs() == []
