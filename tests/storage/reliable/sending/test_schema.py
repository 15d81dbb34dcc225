"""Making, comparing and migrating the tables."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
import sqlalchemy as sa

from rmq_store.errors import SchemaMismatchError
from rmq_store.reliable import Tables, create_tables, migrate, open_engine, validate_schema
from rmq_store.reliable.database import schema
from rmq_store.reliable.database import tables as of_tables


@pytest.fixture
def empty(database_url: str) -> Iterator[sa.Engine]:
    made = open_engine(database_url)
    yield made
    made.dispose()


def differences(engine: sa.Engine, tables: Tables | None = None) -> list[str]:
    try:
        validate_schema(engine, tables)
    except SchemaMismatchError as error:
        return list(error.differences)
    return []


def versions(engine: sa.Engine, tables: Tables) -> list[int]:
    with engine.connect() as connection:
        return list(connection.scalars(sa.select(tables.schema_version.c.version).order_by("version")))


def test_tables_that_were_made_here_are_those_of_the_kit(empty: sa.Engine, tables: Tables) -> None:
    create_tables(empty)
    create_tables(empty, tables)
    assert differences(empty) == []
    assert versions(empty, tables) == [2]
    assert migrate(empty) == []


def test_several_processes_may_make_them_at_one_time(empty: sa.Engine, tables: Tables) -> None:
    failures: list[BaseException] = []

    def run() -> None:
        try:
            create_tables(empty, Tables())
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (failures, differences(empty)) == ([], [])


def test_what_a_killed_process_has_not_made_is_made_by_the_next(empty: sa.Engine, tables: Tables) -> None:
    no_index(tables)
    tables.metadata.create_all(empty, tables=[tables.stub, tables.inbox])
    create_tables(empty)
    assert differences(empty) == []


def test_tables_of_the_application_are_left_alone(empty: sa.Engine) -> None:
    metadata = sa.MetaData()
    sa.Table("orders", metadata, sa.Column("id", sa.Integer, primary_key=True))
    create_tables(empty, Tables(metadata, prefix="shop_"))
    assert not sa.inspect(empty).has_table("orders")
    assert differences(empty, Tables(prefix="shop_")) == []


def test_an_empty_database_lacks_every_table(empty: sa.Engine, tables: Tables) -> None:
    assert differences(empty) == [f"{table.name}: the table is missing" for table in tables.all()]


def test_a_database_of_senders_needs_their_tables_only(empty: sa.Engine, tables: Tables) -> None:
    senders = ("stub", "stub_group", "relay", "manual")
    tables.metadata.create_all(empty, tables=[getattr(tables, name) for name in senders])
    validate_schema(empty, only=senders)
    with pytest.raises(SchemaMismatchError, match="rmq_log: the table is missing"):
        validate_schema(empty)


Change = Callable[[Tables], None]


def short_id(tables: Tables) -> None:
    tables.stub.c.message_id.type = of_tables.text_type(64)


def small_number(tables: Tables) -> None:
    tables.stub.c.queue_offset.type = sa.Integer()


def text_for_number(tables: Tables) -> None:
    tables.log.c.received_ms.type = sa.String(20)


def number_for_text(tables: Tables) -> None:
    tables.inbox.c.token.type = sa.Integer()


def not_null(tables: Tables) -> None:
    tables.stub.c.sharding_key.nullable = False


def no_index(tables: Tables) -> None:
    tables.stub.indexes.clear()


def not_unique(tables: Tables) -> None:
    tables.stub.c.message_id.unique = False
    tables.stub.constraints.discard(
        next(each for each in tables.stub.constraints if isinstance(each, sa.UniqueConstraint))
    )


def new_column(tables: Tables) -> None:
    tables.relay.append_column(sa.Column("owner", sa.Integer, nullable=False))


COMMON = {
    "number_for_text": (number_for_text, "rmq_inbox.token: the type is INTEGER"),
    "text_for_number": (text_for_number, "rmq_log.received_ms: the type is VARCHAR(20)"),
    "not_null": (not_null, "rmq_stub.sharding_key: it refuses NULL"),
    "no_index": (no_index, "rmq_stub: no index of (status, is_manual, resend_ms, seq)"),
    "not_unique": (not_unique, "rmq_stub.message_id: it is not unique"),
    "new_column": (new_column, "rmq_relay.owner: a column that the kit does not know"),
}
SERVERS = {
    "short_id": (short_id, "rmq_stub.message_id: VARCHAR(64)"),
    "small_number": (small_number, "rmq_stub.queue_offset: INTEGER is too small"),
}


@pytest.mark.parametrize("case", [*COMMON, *SERVERS])
def test_a_difference_is_named(empty: sa.Engine, tables: Tables, case: str) -> None:
    change, expected = {**COMMON, **SERVERS}[case]
    change(tables)
    tables.metadata.create_all(empty)
    found = differences(empty)
    if case in SERVERS and empty.dialect.name == "sqlite":
        # It takes no notice of lengths.
        assert found == []
    else:
        assert any(each.startswith(expected) for each in found), found


def test_a_missing_column_is_named(empty: sa.Engine, tables: Tables) -> None:
    create_tables(empty)
    with empty.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE rmq_stub DROP COLUMN flag")
    assert differences(empty) == ["rmq_stub.flag: the column is missing"]


def test_a_column_that_mysql_would_compare_or_cut_wrongly_is_named(empty: sa.Engine, tables: Tables) -> None:
    create_tables(empty)
    if empty.dialect.name not in ("mysql", "mariadb"):
        assert differences(empty) == []
        return
    for statement in (
        "ALTER TABLE rmq_inbox MODIFY message_id VARCHAR(255) COLLATE utf8mb4_general_ci NOT NULL",
        "ALTER TABLE rmq_stub MODIFY body BLOB NOT NULL",
        "ALTER TABLE rmq_stub MODIFY seq BIGINT NOT NULL",
        "ALTER TABLE rmq_relay ENGINE = MyISAM",
    ):
        with empty.begin() as connection:
            connection.exec_driver_sql(statement)
    found = differences(empty)
    for expected in (
        "rmq_inbox.message_id: the collation utf8mb4_general_ci",
        "rmq_stub.body: BLOB is too short",
        "rmq_stub.seq: it does not count by itself",
        "rmq_relay: the engine MyISAM",
    ):
        assert any(each.startswith(expected) for each in found), found
    assert len(found) == 4


# -- versions ----------------------------------------------------------------------------------------------------------


def test_migrate_makes_tables_or_notes_the_version_of_those_that_others_made(empty: sa.Engine, tables: Tables) -> None:
    assert migrate(empty) == [2]
    with empty.begin() as connection:
        connection.execute(tables.schema_version.delete())
    assert migrate(empty) == [2]
    assert versions(empty, tables) == [2]


def test_migrate_does_not_take_other_tables_for_its_own(empty: sa.Engine, tables: Tables) -> None:
    no_index(tables)
    tables.metadata.create_all(empty)
    with pytest.raises(SchemaMismatchError):
        migrate(empty)
    assert versions(empty, tables) == []


def test_steps_run_in_their_order_and_once(
    empty: sa.Engine, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_tables(empty)
    ran: list[int] = []

    def step(version: int) -> schema.Step:
        return lambda connection, tables: ran.append(version)

    monkeypatch.setattr(of_tables, "SCHEMA_VERSION", 4)
    monkeypatch.setattr(schema, "STEPS", {3: step(3), 4: step(4)})
    assert differences(empty) == ["rmq_schema: the tables are of version 2, not 4"]
    assert migrate(empty) == [3, 4]
    assert migrate(empty) == []
    assert ran == [3, 4]
    assert versions(empty, tables) == [2, 3, 4]


def test_a_step_that_fails_is_run_again(empty: sa.Engine, tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    create_tables(empty)

    def fail(connection: sa.Connection, tables: Tables) -> None:
        raise RuntimeError("killed")

    monkeypatch.setattr(of_tables, "SCHEMA_VERSION", 3)
    monkeypatch.setattr(schema, "STEPS", {3: fail})
    with pytest.raises(RuntimeError):
        migrate(empty)
    assert versions(empty, tables) == [2]
    monkeypatch.setattr(schema, "STEPS", {3: lambda connection, tables: None})
    assert migrate(empty) == [3]


def make_version_1(engine: sa.Engine, tables: Tables) -> None:
    """The tables as version 1 made them."""
    create_tables(engine)
    with engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE rmq_inbox DROP COLUMN fingerprint")
        connection.execute(tables.schema_version.update().values(version=1))


def test_version_1_becomes_version_2_and_keeps_its_rows(empty: sa.Engine, tables: Tables) -> None:
    make_version_1(empty, tables)
    with empty.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO rmq_inbox (group_name, message_id, done_ms, token) VALUES ('g', 'A', 1, 't')"
        )
    create_tables(empty)
    assert differences(empty) == [
        "rmq_inbox.fingerprint: the column is missing", "rmq_schema: the tables are of version 1, not 2"
    ]  # fmt: skip
    assert migrate(empty) == [2]
    assert differences(empty) == []
    with empty.connect() as connection:
        assert connection.execute(sa.select(tables.inbox)).one() == ("g", "A", 1, "t", None)


def test_two_processes_may_migrate_at_one_time_and_one_that_was_killed_is_repeated(
    empty: sa.Engine, tables: Tables
) -> None:
    make_version_1(empty, tables)
    failures: list[BaseException] = []

    def run() -> None:
        try:
            migrate(empty, Tables())
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (failures, differences(empty)) == ([], [])
    # MySQL's DDL commits by itself: the column is there, and its version is not noted.
    with empty.begin() as connection:
        connection.execute(tables.schema_version.delete().where(tables.schema_version.c.version == 2))
    assert migrate(empty) == [2]
    assert differences(empty) == []


def test_tables_of_version_1_whose_version_was_never_noted_are_not_taken_for_newer_ones(
    empty: sa.Engine, tables: Tables
) -> None:
    make_version_1(empty, tables)
    with empty.begin() as connection:
        connection.execute(tables.schema_version.delete())
    create_tables(empty)
    assert versions(empty, tables) == [1]
    assert migrate(empty) == [2]
    assert differences(empty) == []


def test_tables_of_a_newer_kit_are_left_alone(empty: sa.Engine, tables: Tables) -> None:
    create_tables(empty)
    with empty.begin() as connection:
        connection.execute(tables.schema_version.insert(), {"version": 9, "applied_ms": 0})
    for refused in (create_tables, migrate, validate_schema):
        with pytest.raises(SchemaMismatchError, match="version 9"):
            refused(empty)
