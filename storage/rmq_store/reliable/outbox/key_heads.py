"""The sharding keys of a topic that may go on: those whose oldest unsent stub may be sent.

The database goes from key to key in the index of unsent stubs by topic and key, and reads few entries of each. So the
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

_MYSQL = ("mysql", "mariadb")


def find_heads(
    connection: sa.Connection, tables: Tables, topic: Any, asked: sa.Select[Any], limit: int
) -> Sequence[sa.Row[Any]]:
    """At most `limit` stubs that may be sent, and are the oldest unsent ones of their keys. `asked` selects from unsent
    stubs; its column `is_ready` tells that one may be sent.
    """
    stub = tables.stub
    keys = _grouped_keys(tables, topic) if is_mysql(connection) else _recursive_keys(tables, topic)
    is_of_key = sa.and_(_of_topic(stub, topic), stub.c.sharding_key == keys.c.sharding_key)
    if connection.dialect.name == "postgresql":  # which would hash the whole table for the join below
        oldest = asked.where(is_of_key).order_by(*by_seq_of_key(connection, stub)).limit(1).correlate(keys)
        heads: sa.FromClause = oldest.lateral("heads")
        found = sa.select(heads).select_from(keys.join(heads, sa.true()))
    else:
        seq = sa.select(stub.c.seq).where(is_of_key, is_open(tables)).order_by(stub.c.seq).limit(1).correlate(keys)
        seq = without_primary_key(seq, stub)
        first = sa.select(seq.scalar_subquery().label("seq")).select_from(keys).subquery("first")
        heads = asked.join_from(first, stub, stub.c.seq == first.c.seq).subquery("heads")
        found = sa.select(heads)
    return fetch_raw(connection, found.where(heads.c.is_ready != 0).limit(limit))


def by_seq_of_key(connection: sa.Connection, stub: sa.Table) -> Sequence[sa.Column[Any]]:
    """The order of the unsent stubs of one key, or of those of a topic without a key: `seq`, as the index has them.
    PostgreSQL does not know that IS NULL leaves one value, and would sort; MariaDB does, and sorts for more columns.
    """
    if connection.dialect.name == "postgresql":
        return stub.c.topic, stub.c.sharding_key, stub.c.sent_ms, stub.c.seq
    return (stub.c.seq,)


def is_mysql(connection: sa.Connection) -> bool:
    """True for MariaDB and MySQL."""
    return connection.dialect.name in _MYSQL


def without_primary_key(asked: sa.Select[Any], stub: sa.Table) -> sa.Select[Any]:
    """`asked`, ordered by another index: with LIMIT, MariaDB and MySQL like to go through all rows by their numbers."""
    for dialect in _MYSQL:
        asked = asked.with_hint(stub, "IGNORE INDEX FOR ORDER BY (PRIMARY)", dialect)
    return asked


def _recursive_keys(tables: Tables, topic: Any) -> sa.FromClause:
    stub = tables.stub
    asked = sa.select(stub.c.sharding_key).where(_of_topic(stub, topic))
    asked = asked.order_by(stub.c.topic, stub.c.sharding_key).limit(1)
    # Scalar subqueries: SQLite has no parentheses around a part with LIMIT.
    first = asked.where(stub.c.sharding_key.is_not(None)).scalar_subquery()
    key = sa.select(first.label("sharding_key")).cte("key", recursive=True)
    following = asked.where(stub.c.sharding_key > key.c.sharding_key).correlate(key).scalar_subquery()
    key = key.union_all(sa.select(following).where(key.c.sharding_key.is_not(None)))
    return sa.select(key.c.sharding_key).where(key.c.sharding_key.is_not(None)).subquery("keys")


def _grouped_keys(tables: Tables, topic: Any) -> sa.FromClause:
    stub = tables.stub
    return (
        sa.select(stub.c.sharding_key)
        .where(_of_topic(stub, topic), stub.c.sharding_key.is_not(None))
        .group_by(stub.c.sent_ms, stub.c.topic, stub.c.sharding_key)
        .subquery("keys")
    )


def _of_topic(stub: sa.Table, topic: Any) -> sa.ColumnElement[bool]:
    return sa.and_(stub.c.sent_ms.is_(None), stub.c.topic == raw_value(topic))
