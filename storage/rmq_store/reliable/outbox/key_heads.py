"""The sharding keys of a topic that may go on: those whose oldest unsent stub may be sent.

The database goes from key to key in the index (sent_ms, topic, sharding_key, seq), and reads one entry of each. So the
cost follows the number of keys that have unsent stubs, and not the number of stubs that wait behind them.

    SQLite, PostgreSQL    a recursive query: the next key is the first one after the last
    MariaDB, MySQL        GROUP BY by all columns of the index before seq: a loose index scan
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from rmq_store.reliable.database.raw_rows import fetch_raw, raw_value
from rmq_store.reliable.database.tables import Tables
from rmq_store.reliable.outbox.stub import is_open


def find_heads(
    connection: sa.Connection, tables: Tables, topic: Any, asked: sa.Select[Any], limit: int
) -> Sequence[sa.Row[Any]]:
    """At most `limit` stubs that may be sent, and are the oldest unsent ones of their keys, by key. `asked` selects
    from unsent stubs; its column `is_ready` tells that one may be sent.
    """
    stub = tables.stub
    is_server_grouping = connection.dialect.name in ("mysql", "mariadb")
    keys = _grouped_keys(tables, topic) if is_server_grouping else _recursive_keys(tables, topic)
    oldest = (
        sa.select(stub.c.seq)
        .where(_of_topic(stub, topic), stub.c.sharding_key == keys.c.sharding_key, is_open(tables))
        .order_by(*_index_of(stub), stub.c.seq)
        .limit(1)
        .correlate(keys)
        .scalar_subquery()
    )
    first = sa.select(oldest.label("seq")).select_from(keys).subquery("first")
    heads = asked.join_from(first, stub, stub.c.seq == first.c.seq).subquery("heads")
    return fetch_raw(connection, sa.select(heads).where(heads.c.is_ready == 1).limit(limit))


def _recursive_keys(tables: Tables, topic: Any) -> sa.FromClause:
    stub = tables.stub
    first = sa.select(stub.c.sharding_key).where(_of_topic(stub, topic), stub.c.sharding_key.is_not(None))
    first = first.order_by(*_index_of(stub)).limit(1)
    # Parentheses around a part with LIMIT: SQLite takes it as a scalar subquery only.
    key = sa.select(first.scalar_subquery().label("sharding_key")).cte("key", recursive=True)
    following = (
        sa.select(stub.c.sharding_key)
        .where(_of_topic(stub, topic), stub.c.sharding_key > key.c.sharding_key)
        .order_by(*_index_of(stub))
        .limit(1)
        .correlate(key)
        .scalar_subquery()
    )
    key = key.union_all(sa.select(following).where(key.c.sharding_key.is_not(None)))
    return sa.select(key.c.sharding_key).where(key.c.sharding_key.is_not(None)).subquery("keys")


def _grouped_keys(tables: Tables, topic: Any) -> sa.FromClause:
    stub = tables.stub
    return (
        sa.select(stub.c.sharding_key)
        .where(_of_topic(stub, topic), stub.c.sharding_key.is_not(None))
        .group_by(*_index_of(stub))
        .subquery("keys")
    )


def _of_topic(stub: sa.Table, topic: Any) -> sa.ColumnElement[bool]:
    return sa.and_(stub.c.sent_ms.is_(None), stub.c.topic == raw_value(topic))


def _index_of(stub: sa.Table) -> tuple[sa.Column[Any], ...]:
    """What the index has before seq. PostgreSQL does not know that IS NULL leaves one value: it is named, too."""
    return stub.c.sent_ms, stub.c.topic, stub.c.sharding_key
