"""Marks that a sender writes when it knows the result of its claim: where messages went, or that they were not sent.

Rows are matched by the token of the claim, so rows that another sender has claimed meanwhile stay as they are. The
number of statements is small, for any number of rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, TypeVar

import sqlalchemy as sa

from rmq_store.reliable.database.tables import Tables
from rmq_store.reliable.outbox.resend_times import ResendBackoff
from rmq_store.reliable.outbox.sending import NotSent, Sent

T = TypeVar("T")

ROWS_PER_STATEMENT: Final = 250


def mark_sent(connection: sa.Connection, tables: Tables, sent: Sequence[Sent], backoff: ResendBackoff) -> int:
    """Write where messages went and when they may be sent again, and give their claims back. Rows that somebody else
    has claimed meanwhile stay as they are. Returns how many were marked.
    """
    marked = 0
    for rows in _slices(sent, lambda each: (each.claimed.claim_token, each.broker_name)):
        seqs = [each.claimed.seq for each in rows]
        resend_ms = [backoff.resend_at_ms(each.claimed.send_count, each.sent_ms, each.deliver_ms) for each in rows]
        marked += _mark(
            connection,
            tables,
            rows[0].claimed.claim_token,
            seqs,
            {
                "sent_ms": [each.sent_ms for each in rows],
                "sent_queue_id": [each.queue_id for each in rows],
                "queue_offset": [each.queue_offset for each in rows],
                "resend_ms": resend_ms,
            },
            {"broker_name": rows[0].broker_name},
        )
    return marked


def give_back(
    connection: sa.Connection,
    tables: Tables,
    not_sent: Sequence[NotSent],
    backoff: ResendBackoff,
    now_ms: int,
    streaks: Mapping[str, int] = MappingProxyType({}),
) -> int:
    """Give claims back of what was not sent, for a later try: at once if there is no error. `streaks` {topic: how many
    rounds of this process have failed for it}: while a broker is away, tries become rare.
    """
    given = 0
    for rows in _slices(not_sent, lambda each: each.claimed.claim_token):
        seqs = [each.claimed.seq for each in rows]
        counts = [each.claimed.send_count - (not each.is_counted) for each in rows]
        failures = [max(each.claimed.send_count, streaks.get(each.claimed.message.topic, 0)) for each in rows]
        waits_ms = [
            0 if each.error is None else backoff.retry_wait_ms(count)
            for each, count in zip(rows, failures, strict=True)
        ]
        given += _mark(
            connection,
            tables,
            rows[0].claimed.claim_token,
            seqs,
            {"resend_ms": [now_ms + wait_ms for wait_ms in waits_ms], "send_count": counts},
            {},
        )
    return given


def _mark(
    connection: sa.Connection,
    tables: Tables,
    token: str,
    seqs: Sequence[int],
    columns: Mapping[str, Sequence[int | None]],
    same: Mapping[str, Any],
) -> int:
    """One UPDATE of rows that get different numbers, from a table that goes along as one JSON text [[seq, numbers]]: a
    CASE for each column would cost more than everything else that a sender does. It is joined, and so read once: a
    lookup in it per row would read it as often as there are rows, unless the database keeps what it has read.
    """
    stub = tables.stub
    marks = _marks(connection.dialect.name, tuple(columns))
    statement = (
        stub.update()
        .where(stub.c.seq == marks.c.seq, stub.c.claim_token == sa.bindparam("token"))
        .values(claim_token=None, claim_until_ms=0, **same, **{name: marks.c[f"new_{name}"] for name in columns})
    )
    rows = list(zip(seqs, *columns.values(), strict=True))
    given = {"token": token, "marks": json.dumps(rows, separators=(",", ":"))}
    return connection.execute(statement, given).rowcount


def _marks(dialect: str, names: Sequence[str]) -> sa.Subquery:
    """The JSON text "marks" as a table: seq, and new_... of each name, NULL for null."""
    columns = ["seq", *(f"new_{name}" for name in names)]
    places = list(enumerate(columns))
    if dialect == "postgresql":
        picked = ", ".join(f"CAST(mark ->> {place} AS BIGINT) AS {name}" for place, name in places)
        query = f"SELECT {picked} FROM jsonb_array_elements(CAST(:marks AS JSONB)) AS mark"
    elif dialect == "sqlite":
        picked = ", ".join(f"json_extract(value, '$[{place}]') AS {name}" for place, name in places)
        query = f"SELECT {picked} FROM json_each(:marks)"
    else:
        picked = ", ".join(f"{name} BIGINT PATH '$[{place}]'" for place, name in places)
        query = f"SELECT * FROM JSON_TABLE(:marks, '$[*]' COLUMNS ({picked})) AS mark"
    typed = [sa.column(name, sa.BigInteger) for name in columns]
    return sa.text(query).bindparams(sa.bindparam("marks", type_=sa.Text)).columns(*typed).subquery("marks")


def _slices(rows: Sequence[T], alike: Callable[[T], Hashable]) -> list[Sequence[T]]:
    """Rows that are alike, so many as one statement takes."""
    of_kind: dict[Hashable, list[T]] = {}
    for row in rows:
        of_kind.setdefault(alike(row), []).append(row)
    return [
        some[start : start + ROWS_PER_STATEMENT]
        for some in of_kind.values()
        for start in range(0, len(some), ROWS_PER_STATEMENT)
    ]
