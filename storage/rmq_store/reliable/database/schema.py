"""The tables in a database: made, compared, and brought to this version. Nothing here runs by itself.

    create_tables      makes what is missing, and changes nothing that is there
    migrate            the steps from an older version to this one; refuses a newer one
    validate_schema    compares, and names every difference

An application with migrations of its own gives `Tables(metadata)` to them, and calls `validate_schema` at its start.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final

import sqlalchemy as sa

from rmq_store.errors import SchemaMismatchError
from rmq_store.reliable.database import tables as of_tables
from rmq_store.reliable.database.drivers import require_engine
from rmq_store.reliable.database.inserting import insert_new
from rmq_store.reliable.database.leases import now_ms
from rmq_store.reliable.database.schema_columns import column_differences
from rmq_store.reliable.database.tables import Tables, indexes_of
from rmq_store.reliable.database.transact import read, transact

Step = Callable[[sa.Connection, Tables], None]

_FIRST_VERSION: Final = 1



def _add_column(connection: sa.Connection, column: sa.Column[Any]) -> None:
    """Add a column, which may be NULL, unless it is there."""
    table = column.table
    assert isinstance(table, sa.Table)
    if column.name not in {there["name"] for there in sa.inspect(connection).get_columns(table.name, table.schema)}:
        name = connection.dialect.identifier_preparer.format_table(table)
        declaration = sa.schema.CreateColumn(column).compile(dialect=connection.dialect)
        connection.exec_driver_sql(f"ALTER TABLE {name} ADD COLUMN {declaration}")


def _add_indexes(connection: sa.Connection, table: sa.Table) -> None:
    """Make the indexes that are not there. Writers of the table wait meanwhile on PostgreSQL."""
    for index in indexes_of(table, connection.dialect.name):
        index.create(connection, checkfirst=True)


def _to_version_2(connection: sa.Connection, tables: Tables) -> None:
    _add_column(connection, tables.inbox.c.fingerprint)
    _add_indexes(connection, tables.stub)


STEPS: Final[Mapping[int, Step]] = {2: _to_version_2}
"""{version: what brings the version before it to it}. DDL of MySQL commits by itself, and a migration may be killed: a
step looks at what is there, and may run again. Workers of the version before are still at work while a step runs: it
adds only what they need not know.
"""


def create_tables(engine: sa.Engine, tables: Tables | None = None) -> None:
    """Create the tables that do not exist. Other tables in the same metadata are not touched.

    Raises:
        SchemaMismatchError: the tables have a newer version.
    """
    require_engine(engine)
    tables = tables or Tables()
    found = _version(engine, tables)
    if found is not None:
        _refuse_newer(found, tables)
    # Another process may make them at the same time, and each table or index may be the one where both meet.
    tries = sum(1 + len(table.indexes) for table in tables.all())
    for left in reversed(range(tries)):
        try:
            _create_missing(engine, tables)
            break
        except sa.exc.DBAPIError:
            if not left:
                raise
    if found is None:
        made = _version_of_columns(engine, tables)
        transact(engine, lambda connection: _record(connection, tables, made))


def migrate(engine: sa.Engine, tables: Tables | None = None) -> list[int]:
    """Bring the tables to this version, step by step, or create them; returns the versions that were reached. Senders,
    relays and consumers may be at work, also those of the version before. Tables that other migrations created are
    accepted: if they are right, their version is recorded.

    Raises:
        SchemaMismatchError: the tables have a newer version, or have no version and are not those of this version.
    """
    require_engine(engine)
    tables = tables or Tables()
    found = _version(engine, tables)
    if found is None:
        if any(_existing(engine, tables)):
            validate_schema(engine, tables)
            transact(engine, lambda connection: _record(connection, tables, of_tables.SCHEMA_VERSION))
        else:
            create_tables(engine, tables)
        return [of_tables.SCHEMA_VERSION]
    _refuse_newer(found, tables)
    reached: list[int] = []
    for version in range(found + 1, of_tables.SCHEMA_VERSION + 1):
        step = STEPS[version]

        def run(connection: sa.Connection, step: Step = step, version: int = version) -> None:
            step(connection, tables)
            _record(connection, tables, version)

        try:
            transact(engine, run)
        except sa.exc.DBAPIError:
            # Another process may have made the same step meanwhile.
            if (_version(engine, tables) or 0) < version:
                transact(engine, run)
        reached.append(version)
    return reached


def validate_schema(engine: sa.Engine, tables: Tables | None = None, *, only: Collection[str] | None = None) -> None:
    """Compare the tables of a database with those of the kit. `only`: the names (without prefix) of the tables that
    this database needs, for example "stub", "stub_group", "relay" and "manual" for senders.

    Raises:
        SchemaMismatchError: they differ; `differences` has a line for each difference.
    """
    require_engine(engine)
    tables = tables or Tables()
    inspector = sa.inspect(engine)
    found: list[str] = []
    for table in tables.all():
        if only is None or table.name.removeprefix(tables.prefix) in only:
            found += _differences(engine, inspector, table)
    version = _version(engine, tables)
    if version is not None and version != of_tables.SCHEMA_VERSION:
        found.append(
            f"{tables.schema_version.name}: the tables are of version {version}, not {of_tables.SCHEMA_VERSION}"
        )
    if found:
        raise SchemaMismatchError(
            f"{len(found)} differences between the database and the tables of rmq_store.reliable, the first one: "
            f"{found[0]}. See .differences; create_tables or migrate may help",
            differences=tuple(found),
        )


def _create_missing(engine: sa.Engine, tables: Tables) -> None:
    tables.metadata.create_all(engine, tables=tables.all())
    # A process that was killed behind a CREATE TABLE has left its indexes to the next one.
    for table in tables.all():
        for index in indexes_of(table, engine.dialect.name):
            index.create(engine, checkfirst=True)


# -- versions ----------------------------------------------------------------------------------------------------------


def _existing(engine: sa.Engine, tables: Tables) -> list[str]:
    inspector = sa.inspect(engine)
    return [table.name for table in tables.all() if inspector.has_table(table.name, table.schema)]


def _version(engine: sa.Engine, tables: Tables) -> int | None:
    """The newest version that was noted; None without one."""
    versions = tables.schema_version
    if not sa.inspect(engine).has_table(versions.name, versions.schema):
        return None
    newest: int | None = read(engine, lambda connection: connection.scalar(sa.select(sa.func.max(versions.c.version))))
    return newest


def _version_of_columns(engine: sa.Engine, tables: Tables) -> int:
    """The version of tables without a version: a process was killed before it noted that, perhaps one of version 1."""
    inspector = sa.inspect(engine)
    for table in tables.all():
        there = {column["name"] for column in inspector.get_columns(table.name, table.schema)}
        if not there.issuperset(column.name for column in table.columns):
            return _FIRST_VERSION
    return of_tables.SCHEMA_VERSION


def _record(connection: sa.Connection, tables: Tables, version: int) -> None:
    insert_new(connection, tables.schema_version, [{"version": version, "applied_ms": now_ms()}])


def _refuse_newer(found: int, tables: Tables) -> None:
    if found > of_tables.SCHEMA_VERSION:
        difference = (
            f"{tables.schema_version.name}: version {found}, this kit knows {of_tables.SCHEMA_VERSION} and older"
        )
        raise SchemaMismatchError(
            f"a newer rmq_store has made these tables: {difference}. Install that version", differences=(difference,)
        )


# -- differences -------------------------------------------------------------------------------------------------------


def _differences(engine: sa.Engine, inspector: sa.Inspector, table: sa.Table) -> Iterator[str]:
    if not inspector.has_table(table.name, table.schema):
        yield f"{table.name}: the table is missing"
        return
    yield from column_differences(engine, inspector, table)
    found_key = inspector.get_pk_constraint(table.name, table.schema)["constrained_columns"]
    key = [column.name for column in table.primary_key.columns]
    if set(found_key) != set(key):
        yield f"{table.name}: the primary key is ({', '.join(found_key)}), not ({', '.join(key)})"
    indexes = [
        tuple(name for name in index["column_names"] if name is not None)
        for index in inspector.get_indexes(table.name, table.schema)
    ]
    unique = {tuple(each["column_names"]) for each in inspector.get_unique_constraints(table.name, table.schema)} | {
        tuple(name for name in index["column_names"] if name is not None)
        for index in inspector.get_indexes(table.name, table.schema)
        if index["unique"]
    }
    for column in table.columns:
        if column.unique and (column.name,) not in unique:
            yield f"{table.name}.{column.name}: it is not unique"
    for index in indexes_of(table, engine.dialect.name):
        names = tuple(column.name for column in index.columns)
        if not any(found[: len(names)] == names for found in indexes):
            yield f"{table.name}: no index of ({', '.join(names)})"
    yield from _engine_differences(engine, inspector, table)


def _engine_differences(engine: sa.Engine, inspector: sa.Inspector, table: sa.Table) -> Iterator[str]:
    if engine.dialect.name in ("mysql", "mariadb"):
        options: Mapping[str, Any] = inspector.get_table_options(table.name, table.schema)
        kind = next((value for name, value in options.items() if name.endswith("_engine")), None)
        if kind is not None and str(kind).lower() != "innodb":
            yield f"{table.name}: the engine {kind} has no transactions; InnoDB has"
