"""Messages that a group has done: one row each, written by the transaction of the effect.

The row is the *first* write of that transaction. A second worker with the same message waits for that transaction. Then
it finds the row (done before: it rolls back), or none (the first worker rolled back: it goes on). Rows stay after
success, because a resend, a retry or a redrive may bring a duplicate; `purge` deletes old rows.

An id may come with another message: somebody has made it of the first one, and has copied the properties. So a row has
a fingerprint of the message that it stands for (`deliveries`). NULL matches all: a worker of version 1 wrote the row,
or the table has no such column yet, because `migrate` was not called.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Collection, Mapping
from typing import Any, Final

import sqlalchemy as sa

from rmq_store import real_time
from rmq_store.reliable.database.inserting import CHUNK_ROWS, chunks, inserted_ids
from rmq_store.reliable.database.leases import new_token
from rmq_store.reliable.database.tables import Tables
from rmq_store.reliable.database.transact import transact

UNKNOWN: Final = "u"
"""The fingerprint of a message of which nobody knows it. NULL says more: a worker of version 1 wrote the row."""

ASK_AGAIN_S: Final = 60.0
"""How often a process looks whether a table without fingerprints has them now."""

Fingerprints = Mapping[str, str | None]
"""Of messages, by their ids; None: unknown."""

_log = logging.getLogger(__name__)

# By the pool of the database: {table: None (it has fingerprints), or the time at which to ask again}.
_lacking: weakref.WeakKeyDictionary[Any, dict[str, float | None]] = weakref.WeakKeyDictionary()


def insert(
    connection: sa.Connection,
    tables: Tables,
    group: str,
    message_id: str,
    now_ms: int,
    fingerprint: str | None = None,
) -> bool:
    """Record that the group does a message in this transaction. False: the id is done, and nothing is written.

    Waits for another transaction that has written the same row, until it ends or the database gives up (then `transact`
    tries again). Durable when the caller commits.
    """
    return bool(insert_set(connection, tables, group, [message_id], now_ms, {message_id: fingerprint}))


def insert_set(
    connection: sa.Connection,
    tables: Tables,
    group: str,
    message_ids: Collection[str],
    now_ms: int,
    fingerprints: Fingerprints | None = None,
) -> set[str]:
    """`insert` for many ids: returns those that this transaction has to do; the others were done before, perhaps by
    other messages: see `others`.

    One statement per 1,000 ids (two on MariaDB and MySQL). Durable when the caller commits.
    """
    # New at each call: a transaction that is tried again must not take the rows of its first try for its own.
    token = new_token()
    rows: list[dict[str, Any]] = [
        {"group_name": group, "message_id": message_id, "done_ms": now_ms, "token": token}
        for message_id in set(message_ids)
    ]
    if fingerprints is not None and has_fingerprints(connection, tables):
        rows = [{**row, "fingerprint": fingerprints.get(row["message_id"]) or UNKNOWN} for row in rows]
    return inserted_ids(connection, tables.inbox, rows, token)


def done_ids(connection: sa.Connection, tables: Tables, group: str, message_ids: Collection[str]) -> set[str]:
    """Those of the ids that the group has done, as far as this transaction sees. One statement per 1,000 ids.

    Use it only to save work: `insert` and `insert_set` decide.
    """
    inbox = tables.inbox
    found: set[str] = set()
    for some in chunks(message_ids):
        query = sa.select(inbox.c.message_id).where(inbox.c.group_name == group, inbox.c.message_id.in_(some))
        found.update(connection.execute(query).scalars())
    return found


def known(connection: sa.Connection, tables: Tables, group: str, message_ids: Collection[str]) -> dict[str, str | None]:
    """Those of the ids that the group has done, and their fingerprints. One statement per 1,000 ids."""
    inbox = tables.inbox
    found: dict[str, str | None] = {}
    if message_ids:
        column = fingerprint_column(connection, tables).label("fingerprint")
        for some in chunks(message_ids):
            query = sa.select(inbox.c.message_id, column).where(
                inbox.c.group_name == group, inbox.c.message_id.in_(some)
            )
            found.update((row.message_id, row.fingerprint) for row in connection.execute(query))
    return found


def others(connection: sa.Connection, tables: Tables, group: str, fingerprints: Fingerprints) -> set[str]:
    """Those of the ids that the group has done as other messages. One statement per 1,000 ids."""
    if not fingerprints or not has_fingerprints(connection, tables):
        return set()
    done = known(connection, tables, group, fingerprints)
    return {message_id for message_id, found in done.items() if is_other(found, fingerprints[message_id])}


def is_other(first: str | None, second: str | None) -> bool:
    """True if these are the fingerprints of two messages. Those of different kinds cannot be compared."""
    return bool(first and second and first[0] == second[0] and first != second)


def fingerprint_column(connection: sa.Connection, tables: Tables) -> sa.ColumnElement[Any]:
    """The column of fingerprints; NULL in its place, if the table has none."""
    return tables.inbox.c.fingerprint if has_fingerprints(connection, tables) else sa.null()


def has_fingerprints(connection: sa.Connection, tables: Tables) -> bool:
    """Whether the table is of version 2. It is asked once; a table of version 1 once a minute, because somebody may
    migrate it while this process works.
    """
    known, table = _lacking.setdefault(connection.engine.pool, {}), tables.inbox
    until_s = known.get(table.fullname, 0.0)
    if until_s is None:
        return True
    if real_time.monotonic() < until_s:
        return False
    columns = sa.inspect(connection).get_columns(table.name, table.schema)
    if any(column["name"] == table.c.fingerprint.name for column in columns):
        known[table.fullname] = None
        return True
    if not until_s:
        _log.warning(
            "%s is a table of version 1: of two messages with one id only the first is done, the other one counts as "
            "its duplicate. Call migrate, or `rmq resend schema --migrate`", table.fullname,
        )  # fmt: skip
    known[table.fullname] = real_time.monotonic() + ASK_AGAIN_S
    return False


def newest_and_now_ms(connection: sa.Connection, tables: Tables, group: str) -> tuple[int, int]:
    """When the group has done its newest message (0: none), and the database's time; ms since 1970."""
    newest = connection.scalar(sa.select(sa.func.max(tables.inbox.c.done_ms)).where(tables.inbox.c.group_name == group))
    seconds = {
        "sqlite": "CAST(strftime('%s', 'now') AS INTEGER)",
        "postgresql": "CAST(extract(epoch FROM clock_timestamp()) AS BIGINT)",
    }.get(connection.dialect.name, "UNIX_TIMESTAMP()")
    return int(newest or 0), int(connection.scalar(sa.text(f"SELECT {seconds}")) or 0) * 1000


def purge(engine: sa.Engine, tables: Tables, group: str, before_ms: int) -> int:
    """Delete rows of messages done before `before_ms`; returns their number. A transaction per 1,000 rows."""
    inbox = tables.inbox
    is_old = sa.and_(inbox.c.group_name == group, inbox.c.done_ms < before_ms)

    def delete_some(connection: sa.Connection) -> int:
        # In two steps, because MySQL refuses a LIMIT in the subquery of a DELETE.
        old = list(connection.execute(sa.select(inbox.c.message_id).where(is_old).limit(CHUNK_ROWS)).scalars())
        if old:
            connection.execute(sa.delete(inbox).where(is_old, inbox.c.message_id.in_(old)))
        return len(old)

    total = 0
    while deleted := transact(engine, delete_some):
        total += deleted
    return total
