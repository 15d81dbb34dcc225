"""Messages that a group has done: one row each, written by the transaction of the effect.

The row is the *first* write of that transaction. A second worker with the same message waits for that transaction. Then
it finds the row (done before: it rolls back), or none (the first worker rolled back: it goes on). Rows stay after
success, because a resend, a retry or a redrive may bring a duplicate; `purge` deletes old rows.
"""

from __future__ import annotations

from collections.abc import Collection

import sqlalchemy as sa

from rmq_store.reliable.database.inserting import CHUNK_ROWS, chunks, inserted_ids
from rmq_store.reliable.database.leases import new_token
from rmq_store.reliable.database.tables import Tables
from rmq_store.reliable.database.transact import transact


def insert(connection: sa.Connection, tables: Tables, group: str, message_id: str, now_ms: int) -> bool:
    """Record that the group does a message in this transaction. False: the group has done it before, and nothing is
    written.

    Waits for another transaction that has written the same row, until it ends or the database gives up (then `transact`
    tries again). Durable when the caller commits.
    """
    return bool(insert_set(connection, tables, group, [message_id], now_ms))


def insert_set(
    connection: sa.Connection, tables: Tables, group: str, message_ids: Collection[str], now_ms: int
) -> set[str]:
    """`insert` for many ids: returns those that this transaction has to do; the others were done before.

    One statement per 1,000 ids (two on MariaDB and MySQL). Durable when the caller commits.
    """
    # New at each call: a transaction that is tried again must not take the rows of its first try for its own.
    token = new_token()
    rows = [
        {"group_name": group, "message_id": message_id, "done_ms": now_ms, "token": token}
        for message_id in set(message_ids)
    ]
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
