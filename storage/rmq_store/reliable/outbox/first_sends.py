"""The stubs that may be sent for the first time now: queries of the senders' database, which change nothing.

A stub whose sharding key has an older unsent stub that must wait, waits too.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import sqlalchemy as sa

from rmq_store.reliable.database.raw_rows import fault_of, fetch_raw
from rmq_store.reliable.database.tables import UNCONFIRMED, Tables
from rmq_store.reliable.outbox.sending_rules import SendingRules
from rmq_store.reliable.outbox.stub import has_unknown_status, without_content


def count_first_sends(connection: sa.Connection, tables: Tables, rules: SendingRules, now_ms: int) -> int:
    """The number of messages that a claim without a limit would take now, or give up."""
    stub = tables.stub
    first = _first_that_wait(tables, rules, now_ms).subquery("first_that_waits")
    same_key = sa.and_(first.c.topic == stub.c.topic, first.c.sharding_key == stub.c.sharding_key)
    found = (
        sa.select(sa.func.count())
        .select_from(stub.outerjoin(first, same_key))
        .where(
            is_unsent(tables),
            may_be_sent(tables, rules, now_ms),
            sa.or_(first.c.seq.is_(None), stub.c.seq < first.c.seq),
        )
    )
    return connection.scalar(found) or 0


def is_anything_unsent(connection: sa.Connection, tables: Tables, rules: SendingRules, now_ms: int) -> bool:
    """True if a claim would find something. It saves the write of an empty claim. Its order makes SQLite take the index
    of unsent stubs, and not that of all unconfirmed ones.
    """
    stub = tables.stub
    found = sa.select(stub.c.seq).where(is_unsent(tables), may_be_sent(tables, rules, now_ms))
    found = found.order_by(stub.c.seq).limit(1)
    return connection.scalar(found) is not None


def is_unsent(tables: Tables) -> sa.ColumnElement[bool]:
    """Condition: no broker has the message yet, and it is neither void nor on the manual list."""
    stub = tables.stub
    return sa.and_(stub.c.sent_ms.is_(None), stub.c.status == UNCONFIRMED, stub.c.is_manual == sa.false())


def may_be_sent(tables: Tables, rules: SendingRules, now_ms: int) -> sa.ColumnElement[bool]:
    """Condition: the time of the first send has come, or is beyond any possible wait (the clock had jumped)."""
    resend_ms = tables.stub.c.resend_ms
    return sa.or_(resend_ms <= now_ms, resend_ms > rules.last_wait_ms(now_ms))


def find_first_sends(
    connection: sa.Connection,
    tables: Tables,
    rules: SendingRules,
    now_ms: int,
    limit: int,
    without_topics: Collection[str],
) -> tuple[list[sa.Row[Any]], bool]:
    """At most `limit` messages that may be sent for the first time now, oldest first, and whether these are all.

    Each page is read before the keys that wait. A sender that has locked a row between two messages of a key has
    committed the older one before. So if a page has the younger one, the second query sees the older one waiting. The
    first page is read without a join: databases would sort all unsent rows for it. A key that waited at one page stays
    left out of the later ones: its wait may end in between, and the messages that were left out are older than those.
    """
    found: list[sa.Row[Any]] = []
    after, is_held = 0, False
    closed: set[tuple[str, str]] = set()
    while True:
        asked = _page(tables, rules, now_ms, after, without_topics)
        page = fetch_raw(connection, (_not_held(asked, tables, rules, now_ms) if is_held else asked).limit(limit))
        waiting: dict[tuple[str, str], int] = {}
        if any(row.sharding_key is not None for row in page):
            first = fetch_raw(connection, _first_that_wait(tables, rules, now_ms))
            waiting = {(row.topic, row.sharding_key): row.seq for row in first}
        for row in page:
            key = (row.topic, row.sharding_key)
            is_behind = row.sharding_key is not None and (key in closed or waiting.get(key, row.seq) < row.seq)
            if is_behind and fault_of(tables.stub, row) is None:
                is_held = True
                closed.add(key)
            else:
                found.append(row)
        is_all = len(page) < limit
        if is_all or len(found) >= limit:
            return found[:limit], is_all and len(found) <= limit
        after = page[-1].seq


def _page(
    tables: Tables, rules: SendingRules, now_ms: int, after: int, without_topics: Collection[str]
) -> sa.Select[Any]:
    stub = tables.stub
    asked = (
        sa.select(*without_content(stub))
        .where(is_unsent(tables), may_be_sent(tables, rules, now_ms), stub.c.seq > after)
        .order_by(stub.c.seq)
    )
    if without_topics:
        asked = asked.where(stub.c.topic.not_in(sorted(without_topics)))
    return asked


def _not_held(asked: sa.Select[Any], tables: Tables, rules: SendingRules, now_ms: int) -> sa.Select[Any]:
    """`asked` without the messages of keys that wait, which may be many: the database leaves them out, and not the
    pages after them.
    """
    stub = tables.stub
    first = _first_that_wait(tables, rules, now_ms).subquery("first_that_waits")
    same_key = sa.and_(first.c.topic == stub.c.topic, first.c.sharding_key == stub.c.sharding_key)
    return asked.outerjoin(first, same_key).where(sa.or_(first.c.seq.is_(None), stub.c.seq < first.c.seq))


def _first_that_wait(tables: Tables, rules: SendingRules, now_ms: int) -> sa.Select[Any]:
    """By sharding key, the oldest unsent message that must wait: for its time, for its sender, or for people."""
    stub = tables.stub
    columns = stub.c.topic, stub.c.sharding_key, stub.c.seq
    of_key = sa.and_(stub.c.sent_ms.is_(None), stub.c.sharding_key.is_not(None))
    unsent = sa.and_(of_key, stub.c.status == UNCONFIRMED)
    until_ms = rules.last_wait_ms(now_ms)
    for_their_time = sa.select(*columns).where(unsent, stub.c.resend_ms > now_ms, stub.c.resend_ms <= until_ms)
    for_people = sa.select(*columns).where(unsent, stub.c.is_manual == sa.true())
    for_a_status = sa.select(*columns).where(of_key, has_unknown_status(tables))
    wait = sa.union_all(for_their_time, for_people, for_a_status).subquery("wait")
    return sa.select(wait.c.topic, wait.c.sharding_key, sa.func.min(wait.c.seq).label("seq")).group_by(
        wait.c.topic, wait.c.sharding_key
    )
