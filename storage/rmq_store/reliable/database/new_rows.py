"""Inserts rows only if their key is new. The INSERT itself decides that.

A SELECT before it would decide by an old snapshot (REPEATABLE READ), and a failed INSERT ends a transaction of
PostgreSQL. MariaDB and MySQL set a column to itself on a conflict: their INSERT IGNORE would hide every other error,
too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite


def insert_new(connection: sa.Connection, table: sa.Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert the rows of `table` whose primary key does not exist; the others change nothing. One statement for all, so
    deadlocks are rare if `rows` are sorted by their key.
    """
    if not rows:
        return
    name = connection.dialect.name
    if name == "sqlite":
        connection.execute(sqlite.insert(table).values(list(rows)).on_conflict_do_nothing())
    elif name == "postgresql":
        connection.execute(postgresql.insert(table).values(list(rows)).on_conflict_do_nothing())
    else:
        unchanged = next(iter(table.primary_key.columns))
        statement = mysql.insert(table).values(list(rows))
        connection.execute(statement.on_duplicate_key_update({unchanged.name: unchanged}))
