"""The stubs that may be sent for the first time now: queries of the senders' database, which change nothing.

A stub whose sharding key has an older unsent stub that must wait, waits too.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import sqlalchemy as sa

from rmq_store.reliable.database.tables import UNCONFIRMED, Tables
from rmq_store.reliable.outbox.sending_rules import SendingRules

KEYS_PER_STATEMENT: Final = 500


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
    """True if a claim would find something. It saves the write of an empty claim."""
    stub = tables.stub
    found = sa.select(stub.c.seq).where(is_unsent(tables), may_be_sent(tables, rules, now_ms)).limit(1)
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
    committed the older one before. So if a page has the younger one, the second query sees the older one waiting. There
    is no join: databases would sort all unsent rows for each page.
    """
    found: list[sa.Row[Any]] = []
    closed: set[tuple[str, str]] = set()
    after = 0
    while True:
        page = connection.execute(_page(tables, rules, now_ms, after, without_topics, closed).limit(limit)).all()
        waiting: dict[tuple[str, str], int] = {}
        if any(row.sharding_key is not None for row in page):
            first = connection.execute(_first_that_wait(tables, rules, now_ms))
            waiting = {(row.topic, row.sharding_key): row.seq for row in first}
        for row in page:
            key = (row.topic, row.sharding_key)
            if waiting.get(key, row.seq) < row.seq:
                closed.add(key)
            else:
                found.append(row)
        is_all = len(page) < limit
        if is_all or len(found) >= limit:
            return found[:limit], is_all and len(found) <= limit
        after = page[-1].seq


def _page(
    tables: Tables,
    rules: SendingRules,
    now_ms: int,
    after: int,
    without_topics: Collection[str],
    without_keys: Collection[tuple[str, str]],
) -> sa.Select[Any]:
    stub = tables.stub
    asked = (
        sa.select(
            stub.c.seq,
            stub.c.message_id,
            stub.c.topic,
            stub.c.sharding_key,
            stub.c.send_count,
            stub.c.claim_token,
            sa.func.length(stub.c.body).label("body_bytes"),
        )
        .where(is_unsent(tables), may_be_sent(tables, rules, now_ms), stub.c.seq > after)
        .order_by(stub.c.seq)
    )
    if without_topics:
        asked = asked.where(stub.c.topic.not_in(sorted(without_topics)))
    if without_keys:
        some = sorted(without_keys)[:KEYS_PER_STATEMENT]
        is_other = sa.tuple_(stub.c.topic, stub.c.sharding_key).not_in(some)
        asked = asked.where(sa.or_(stub.c.sharding_key.is_(None), is_other))
    return asked


def _first_that_wait(tables: Tables, rules: SendingRules, now_ms: int) -> sa.Select[Any]:
    """By sharding key, the oldest unsent message that must wait: for its time, for its sender, or for people."""
    stub = tables.stub
    columns = stub.c.topic, stub.c.sharding_key, stub.c.seq
    unsent = sa.and_(stub.c.sent_ms.is_(None), stub.c.status == UNCONFIRMED, stub.c.sharding_key.is_not(None))
    until_ms = rules.last_wait_ms(now_ms)
    for_their_time = sa.select(*columns).where(unsent, stub.c.resend_ms > now_ms, stub.c.resend_ms <= until_ms)
    for_people = sa.select(*columns).where(unsent, stub.c.is_manual == sa.true())
    wait = sa.union_all(for_their_time, for_people).subquery("wait")
    return sa.select(wait.c.topic, wait.c.sharding_key, sa.func.min(wait.c.seq).label("seq")).group_by(
        wait.c.topic, wait.c.sharding_key
    )
