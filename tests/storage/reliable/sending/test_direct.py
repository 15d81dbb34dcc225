"""Statements that go to the driver as text, and what SQLAlchemy does for any statement: they have it, too."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from rmq_store import Message
from rmq_store.reliable import Tables
from rmq_store.reliable.database.direct import DirectStatement
from rmq_store.reliable.outbox.outbox import Outbox

from .cluster import World


def stub_ids(engine: sa.Engine, tables: Tables) -> list[str]:
    with engine.connect() as connection:
        return [*connection.scalars(sa.select(tables.stub.c.message_id))]


def test_a_stub_and_its_groups_are_as_few_statements_as_the_database_takes(world: World) -> None:
    seen: list[str] = []
    sa.event.listen(world.engine, "before_cursor_execute", lambda *given: seen.append(given[2]))
    outbox = world.outbox()
    with world.engine.begin() as connection:
        stub = outbox.add(connection, Message("Orders", b"x"), groups=("a", "b"))
    inserts = [text for text in seen if "INSERT" in text]
    assert len(inserts) == (1 if world.engine.dialect.name == "postgresql" else 2)
    with world.engine.connect() as connection:
        found = connection.execute(sa.select(world.tables.stub_group)).all()
        (seq,) = connection.scalars(sa.select(world.tables.stub.c.seq))
    assert sorted(found) == [(stub.message_id, "a", None), (stub.message_id, "b", None)]
    assert stub.seq == seq


@pytest.mark.parametrize("body", [b"\0\xff%s :x ?", b"x" * 70_000], ids=["odd", "large"])
def test_values_arrive_as_they_are(world: World, body: bytes) -> None:
    topic, text = "Orders", "%s ? :id 100%"
    with world.outbox().begin() as connection:
        world.outboxes[-1].add(connection, Message(topic, body, properties={"a": text}))
    with world.engine.connect() as connection:
        (row,) = connection.execute(sa.select(world.tables.stub))
    assert bytes(row.body) == body
    assert text in row.properties
    assert row.is_manual is False


def test_an_engine_that_renames_schemas_is_obeyed(world: World) -> None:
    """The text of the statement would have the name of before."""
    tables = Tables(prefix="moved_", schema="before")
    here = {"sqlite": None, "postgresql": "public"}.get(world.engine.dialect.name, world.engine.url.database)
    engine = world.engine.execution_options(schema_translate_map={"before": here})
    tables.metadata.create_all(engine)
    try:
        with Outbox(world.producer, engine, tables, groups=("stock",)) as outbox, outbox.begin() as connection:
            stub = outbox.add(connection, Message("Orders", b"x"))
        assert stub_ids(engine, tables) == [stub.message_id]
        assert world.broker.requests == [[b"x"]]
    finally:
        tables.metadata.drop_all(engine)


def test_what_the_driver_refuses_is_the_error_of_sqlalchemy(world: World) -> None:
    missing = DirectStatement(sa.text("SELECT nothing FROM nowhere WHERE id = :id").bindparams(sa.bindparam("id")))
    for ask in (missing.fetch_quietly, missing.execute):
        with world.engine.connect() as connection, pytest.raises(sa.exc.DBAPIError):
            ask(connection, {"id": 1})


def test_a_query_gives_its_rows_quietly(world: World) -> None:
    seen: list[Any] = []
    sa.event.listen(world.engine, "before_cursor_execute", lambda *given: seen.append(given[2]))
    ids = world.tables.stub.c.message_id
    query = DirectStatement(sa.select(ids).where(ids == sa.bindparam("id")))
    with world.outbox().begin() as connection:
        stub = world.outboxes[-1].add(connection, Message("Orders", b"x"))
        seen.clear()
        assert [tuple(row) for row in query.fetch_quietly(connection, {"id": stub.message_id})] == [(stub.message_id,)]
        assert query.fetch_quietly(connection, {"id": "another"}) == []
        assert seen == []
