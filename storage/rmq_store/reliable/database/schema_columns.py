"""Compares the columns of a table in a database with the kit's: missing ones, types, lengths, comparison of text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import sqlalchemy as sa

# MySQL's types by what they hold; SQLAlchemy tells them apart by name only.
_MYSQL_BYTES: Final = {
    "TINYTEXT": 2**8, "TINYBLOB": 2**8, "TEXT": 2**16, "BLOB": 2**16, "MEDIUMTEXT": 2**24, "MEDIUMBLOB": 2**24,
}  # fmt: skip
# Body and properties of the largest message, properties as JSON that escapes each character.
_LONG_BYTES: Final = 2**24
_SMALL_INTEGERS: Final = ("TINYINT", "SMALLINT", "MEDIUMINT")


def column_differences(engine: sa.Engine, inspector: sa.Inspector, table: sa.Table) -> Iterator[str]:
    """A line for each difference."""
    found = {column["name"]: column for column in inspector.get_columns(table.name, table.schema)}
    collations = _mysql_collations(engine, table)
    for column in table.columns:
        where = f"{table.name}.{column.name}"
        there = found.get(column.name)
        if there is None:
            yield f"{where}: the column is missing"
            continue
        kind = there["type"]
        if not _is_kind(column.type, kind):
            yield f"{where}: the type is {_name(kind)}, not {_name(column.type.dialect_impl(engine.dialect))}"
            continue
        if (short := _too_short(engine, column, kind)) is not None:
            yield f"{where}: {short}"
        if column.nullable and not there["nullable"]:
            yield f"{where}: it refuses NULL"
        if (collation := collations.get(column.name)) is not None and not _is_exact(collation):
            yield f"{where}: the collation {collation} does not tell all texts apart; utf8mb4_bin does"
    seq = table.autoincrement_column
    if seq is not None and seq.name in found and not _counts(engine, found[seq.name]):
        yield f"{table.name}.{seq.name}: it does not count by itself"
    known = {column.name for column in table.columns}
    for name, there in found.items():
        if name not in known and not there["nullable"] and there.get("default") is None:
            yield f"{table.name}.{name}: a column that the kit does not know must have a default, or allow NULL"


def _is_kind(wanted: sa.types.TypeEngine[Any], there: sa.types.TypeEngine[Any]) -> bool:
    if isinstance(wanted, sa.Boolean):
        return isinstance(there, sa.Boolean | sa.Integer)
    if isinstance(wanted, sa.Integer):
        return isinstance(there, sa.Integer) and not isinstance(there, sa.Boolean)
    if isinstance(wanted, sa.LargeBinary):
        return not isinstance(there, sa.types.NullType) and there.python_type is bytes
    return isinstance(there, sa.String)


def _too_short(engine: sa.Engine, column: sa.Column[Any], there: sa.types.TypeEngine[Any]) -> str | None:
    """The values that the type cannot hold; None: it holds all."""
    name = _name(there)
    wanted = column.type
    if isinstance(wanted, sa.Boolean) or engine.dialect.name == "sqlite":
        return None
    if isinstance(wanted, sa.BigInteger) and not isinstance(there, sa.BigInteger):
        return f"{name} is too small, BIGINT is needed"
    if isinstance(wanted, sa.Integer) and there.__class__.__name__.upper() in _SMALL_INTEGERS:
        return f"{name} is too small, INTEGER is needed"
    limit: int | None = getattr(there, "length", None)
    if isinstance(wanted, sa.Text | sa.LargeBinary):
        limit = _MYSQL_BYTES.get(there.__class__.__name__.upper(), limit) if _is_mysql(engine) else limit
        return f"{name} is too short, for {_LONG_BYTES} bytes must fit" if limit and limit < _LONG_BYTES else None
    length: int | None = getattr(wanted, "length", None)
    if length is not None and limit is not None and limit < length:
        return f"{name} is too short, {length} characters must fit"
    return None


def _is_mysql(engine: sa.Engine) -> bool:
    return engine.dialect.name in ("mysql", "mariadb")


def _mysql_collations(engine: sa.Engine, table: sa.Table) -> Mapping[str, str]:
    """By column; nothing on other databases, which compare text exactly unless somebody asks for something else."""
    if not _is_mysql(engine):
        return {}
    columns = sa.table(
        "columns",
        *(sa.column(name) for name in ("table_schema", "table_name", "column_name", "collation_name")),
        schema="information_schema",
    )
    asked = sa.select(columns.c.column_name, columns.c.collation_name).where(
        columns.c.table_name == table.name,
        columns.c.table_schema == (table.schema or sa.func.database()),
        columns.c.collation_name.is_not(None),
    )
    with engine.connect() as connection:
        return {row[0]: row[1] for row in connection.execute(asked)}


def _is_exact(collation: str) -> bool:
    return collation.startswith("utf8mb4") and collation.endswith(("_bin", "_as_cs"))


def _counts(engine: sa.Engine, there: Mapping[str, Any]) -> bool:
    """Whether the database counts the column up."""
    if engine.dialect.name == "sqlite":
        return isinstance(there["type"], sa.INTEGER)
    if there.get("identity") is not None or there.get("autoincrement") is True:
        return True
    return "nextval" in str(there.get("default"))


def _name(kind: sa.types.TypeEngine[Any]) -> str:
    return str(kind)
