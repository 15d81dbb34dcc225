"""Rows that are inserted: many at once, only those that are new, and which of them were new.

The INSERT itself decides whether a row is new, never a SELECT before it. A SELECT shows the rows that were committed
when its snapshot began (REPEATABLE READ), and a failed INSERT ends a transaction of PostgreSQL. An INSERT waits for a
transaction that holds the key, and then finds that row or adds its own. Rows go in the order of their ids, so that two
sets cannot deadlock.

                          insert_new                         inserted_ids
    PostgreSQL, SQLite    ON CONFLICT DO NOTHING             the same, RETURNING
    MariaDB, MySQL        ON DUPLICATE KEY UPDATE of a       one row: error 1062 says that it existed. A set: the same
                          column by itself                   update, then the rows that have this transaction's token

Never INSERT IGNORE, which hides errors of other kinds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite

from rmq_store.reliable.database.trouble import is_duplicate

T = TypeVar("T")

CHUNK_ROWS: Final = 1000
"""The most ids in one statement."""

Row = Mapping[str, Any]


def insert_rows(connection: sa.Connection, table: sa.Table, rows: Sequence[Row]) -> None:
    """Insert rows with the same columns into `table`, in the caller's transaction. One statement per 1,000 rows, fewer
    if the database takes fewer parameters (SQLite: 32,766). On MariaDB and MySQL one statement per 1 MB, which is below
    max_allowed_packet.

    Raises:
        sqlalchemy.exc.DBAPIError: the database refuses a row.
    """
    if not rows:
        return
    statement = sa.insert(table)
    # PyMySQL joins rows itself. SQLAlchemy joins them only with RETURNING; psycopg would send one Execute per row.
    if connection.dialect.name in ("mysql", "mariadb"):
        connection.execute(statement, rows)
    else:
        connection.execute(statement.returning(sa.literal_column("1")), rows)


def insert_new(connection: sa.Connection, table: sa.Table, rows: Sequence[Row]) -> None:
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


def inserted_ids(connection: sa.Connection, table: sa.Table, rows: Sequence[Row], token: str) -> set[str]:
    """Insert rows of one group whose key (group_name, message_id) does not exist yet; returns the ids of the inserted
    rows.

    `token`: the value of the table's column `token` or `lease_token` in all `rows`. No other transaction has written
    it.
    """
    new: set[str] = set()
    for chunk in chunks(sorted(rows, key=lambda row: str(row["message_id"]))):
        new |= _insert_chunk(connection, table, chunk, token)
    return new


def chunks(items: Collection[T]) -> Iterator[list[T]]:
    """The items in lists of at most `CHUNK_ROWS`."""
    left = iter(items)
    while chunk := list(islice(left, CHUNK_ROWS)):
        yield chunk


def _insert_chunk(connection: sa.Connection, table: sa.Table, rows: list[Row], token: str) -> set[str]:
    dialect = connection.dialect.name
    if dialect == "sqlite":
        lite = sqlite.insert(table).on_conflict_do_nothing().returning(table.c.message_id)
        return set(connection.execute(lite, rows).scalars())
    if dialect == "postgresql":
        post = postgresql.insert(table).on_conflict_do_nothing().returning(table.c.message_id)
        return set(connection.execute(post, rows).scalars())
    if len(rows) == 1:
        try:
            connection.execute(sa.insert(table), rows)
        except sa.exc.IntegrityError as error:
            if not is_duplicate(error):
                raise
            return set()
        return {str(rows[0]["message_id"])}
    connection.execute(mysql.insert(table).on_duplicate_key_update(message_id=table.c.message_id), rows)
    written_by = table.c["token" if "token" in table.c else "lease_token"]
    found = sa.select(table.c.message_id).where(
        table.c.group_name == rows[0]["group_name"],
        table.c.message_id.in_([row["message_id"] for row in rows]),
        written_by == token,
    )
    return set(connection.execute(found).scalars())
