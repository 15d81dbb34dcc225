"""Rows as they lie in a table, whatever somebody has written into them by hand.

One row that cannot be read must not hide the rows beside it. So no value is converted while rows are fetched, and
`fault_of` says afterwards what is wrong with one of them: SQLite keeps any type in any column, also text that is no
UTF-8, and tables of an application's own migrations may allow NULL.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from types import NoneType
from typing import Any, Final

import sqlalchemy as sa

_UNCONVERTED: Final = sa.types.NullType()
_VALUE_SHOWN: Final = 60


def raw_columns(table: sa.Table, *, without: Collection[str] = ()) -> list[sa.ColumnElement[Any]]:
    """The columns of the table but some, to be selected without a conversion of their values."""
    return [
        sa.type_coerce(column, _UNCONVERTED).label(column.name)
        for column in table.columns
        if column.name not in without
    ]


def fetch_raw(
    connection: sa.Connection, statement: sa.Select[Any], given: Mapping[str, Any] | None = None
) -> Sequence[sa.Row[Any]]:
    """All rows of a statement that selects `raw_columns`; `given`: its parameters."""
    with _any_text(connection):
        return connection.execute(statement, given).all()


def raw_value(value: Any) -> Any:
    """A value that was fetched raw, to be compared with its column: text that is no UTF-8, bytes, or None, too."""
    if isinstance(value, str) and _has_surrogates(value):
        return sa.cast(sa.literal(value.encode("utf-8", "surrogateescape"), sa.LargeBinary), sa.Text)
    return sa.literal(value, sa.LargeBinary) if isinstance(value, bytes) else value


def fault_of(table: sa.Table, row: sa.Row[Any]) -> str | None:
    """The first wrong type in a row of `table`, as text for a person; None: there is none. It looks at the columns that
    the row has.
    """
    # Nearly each row is right: one look at the types of its values says so, and only another one is searched.
    usual, flags = _usual_types(table, row._fields)
    for value, types in zip(row, usual, strict=True):
        if types is not None and (type(value) not in types or (type(value) is str and not value.isascii())):
            break
    else:
        if all(row[place] in (0, 1, None) for place in flags):
            return None
    for name, value in row._mapping.items():
        column = table.columns.get(name)
        if column is None:
            continue
        if value is None:
            if not column.nullable:
                return f"its {name} is NULL"
        elif (fault := _fault_of_value(column.type, value)) is not None:
            return f"its {name} {fault}"
    return None


def shown(value: object) -> str:
    """A value in a text for a person, cut."""
    text = repr(value)
    return text if len(text) <= _VALUE_SHOWN else f"{text[:_VALUE_SHOWN]}..."


def is_storable(text: object) -> bool:
    """True for text that every database takes as a key."""
    return isinstance(text, str) and text != "" and "\0" not in text and not _has_surrogates(text)


@lru_cache(maxsize=256)
def _usual_types(
    table: sa.Table, names: tuple[str, ...]
) -> tuple[tuple[frozenset[type] | None, ...], tuple[int, ...]]:
    """By value of a row: the types that are right, for text that is ASCII, and for flags that are 0 or 1. None: it is
    no column. And the places of the flags.
    """
    columns = [table.columns.get(name) for name in names]
    flags = [n for n, column in enumerate(columns) if column is not None and isinstance(column.type, sa.Boolean)]
    return tuple([None if column is None else _usual_types_of(column) for column in columns]), tuple(flags)


def _usual_types_of(column: sa.Column[Any]) -> frozenset[type]:
    missing = {NoneType} if column.nullable else set()
    if isinstance(column.type, sa.String):
        return frozenset({str} | missing)
    if isinstance(column.type, sa.LargeBinary):
        return frozenset({bytes, bytearray, memoryview} | missing)
    return frozenset({int, bool} | missing)


def _fault_of_value(kind: sa.types.TypeEngine[Any], value: object) -> str | None:
    if isinstance(kind, sa.String):
        if not isinstance(value, str):
            return f"is no text: {shown(value)}"
        return "is no valid text" if _has_surrogates(value) else None
    if isinstance(kind, sa.LargeBinary):
        return None if isinstance(value, bytes | bytearray | memoryview) else "is text, and no bytes"
    if isinstance(kind, sa.Boolean):
        return None if value in (0, 1) else f"is neither true nor false: {shown(value)}"
    return None if isinstance(value, int) else f"is no number: {shown(value)}"


def _has_surrogates(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


@contextmanager
def _any_text(connection: sa.Connection) -> Iterator[None]:
    """SQLite's driver raises at text that is no UTF-8, and the whole statement fails: here it is read with escapes."""
    if connection.dialect.name != "sqlite":
        yield
        return
    driver: Any = connection.connection.dbapi_connection
    usual = driver.text_factory
    driver.text_factory = _escaped
    try:
        yield
    finally:
        driver.text_factory = usual


def _escaped(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")
