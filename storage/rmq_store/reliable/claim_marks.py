"""What a sender writes when it knows what became of its claim: where messages went, or that they were not sent.

By the token of the claim: what somebody else has claimed meanwhile stays as it is. A few statements, however many rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import sqlalchemy as sa

from rmq_store.reliable.backoff import ResendBackoff
from rmq_store.reliable.sending import NotSent, Sent
from rmq_store.reliable.tables import Tables

ROWS_PER_STATEMENT: Final = 250


def mark_sent(connection: sa.Connection, tables: Tables, sent: Sequence[Sent], backoff: ResendBackoff) -> int:
    """Write where messages went and when they may be sent again, and give their claims back. Rows that somebody else
    has claimed meanwhile stay as they are. Returns how many were marked.
    """
    marked = 0
    for rows in _slices(sent):
        seqs = [each.claimed.seq for each in rows]
        resend_ms = [backoff.resend_at_ms(each.claimed.send_count, each.sent_ms, each.deliver_ms) for each in rows]
        marked += _mark(
            connection,
            tables,
            rows[0].claimed.claim_token,
            seqs,
            {
                "sent_ms": [each.sent_ms for each in rows],
                "broker_name": [each.broker_name for each in rows],
                "sent_queue_id": [each.queue_id for each in rows],
                "queue_offset": [each.queue_offset for each in rows],
                "resend_ms": resend_ms,
            },
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
    for rows in _slices(not_sent):
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
        )
    return given


def _mark(
    connection: sa.Connection,
    tables: Tables,
    token: str,
    seqs: Sequence[int],
    columns: Mapping[str, Sequence[Any]],
) -> int:
    stub = tables.stub
    statement = stub.update().where(stub.c.seq.in_(seqs), stub.c.claim_token == token)
    values = {name: _by_seq(stub, name, seqs, each) for name, each in columns.items()}
    return connection.execute(statement.values(claim_token=None, claim_until_ms=0, **values)).rowcount


def _by_seq(stub: sa.Table, name: str, seqs: Sequence[int], values: Sequence[Any]) -> Any:
    """One value for all rows, or a CASE."""
    if len(set(values)) == 1:
        return values[0]
    kind = stub.c[name].type
    whens = [(seq, sa.literal(value, kind)) for seq, value in zip(seqs, values, strict=True)]
    return sa.case(*whens, value=stub.c.seq)  # type: ignore[arg-type]


def _slices(rows: Sequence[Any]) -> list[Sequence[Any]]:
    """Rows of one token each."""
    by_token: dict[str, list[Any]] = {}
    for row in rows:
        by_token.setdefault(row.claimed.claim_token, []).append(row)
    return [
        of_token[start : start + ROWS_PER_STATEMENT]
        for of_token in by_token.values()
        for start in range(0, len(of_token), ROWS_PER_STATEMENT)
    ]
