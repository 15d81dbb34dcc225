"""Claims: each gives one sender the right to send some stubs, until a time.

A claim is a token, the time at which it ends, and a count of sends that grows with each claim: so a message that kills
its sender is not sent for ever. Claimers update the row of `relay` first, so no two of them see half of each other's
work. Their transaction ends before anything is sent. A sender inserts its own stubs with a claim.

    nobody sends                                   resend_ms of an unsent stub      claim_token, claim_until_ms
    a sender sends it for the first time, until T  T                                token, T
    that failed, again from T on                   T                                null, 0

So a first send that must wait, for whatever reason, has its resend_ms in the future, and one index finds all of them. A
time further in the future than any wait was written by a clock that had jumped, and does not count.

A sharding key is claimed from its oldest unsent row on, up to the first one that must wait. A row on the manual list
waits for people, and so does its key; void and confirmed rows hold up nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import sqlalchemy as sa

from rmq_store.late.dataclasses import dataclass
from rmq_store.reliable.database import manual_list
from rmq_store.reliable.database.leases import new_token
from rmq_store.reliable.database.new_rows import insert_new
from rmq_store.reliable.database.tables import UNCONFIRMED, Tables
from rmq_store.reliable.outbox.first_sends import find_first_sends, is_unsent, may_be_sent
from rmq_store.reliable.outbox.sending import Claimed
from rmq_store.reliable.outbox.sending_rules import SendingRules
from rmq_store.reliable.outbox.stub import message_of

CLAIM_BYTES_MAX: Final = 16 << 20
SUSPECT_COUNT: Final = 2
"""What has been claimed so often, by senders that never told its outcome, may have killed them. It is claimed alone,
so that the counts of others do not go up with its own."""

_TURN: Final = "claim"


@dataclass(frozen=True, slots=True)
class Claim:
    """The stubs of one claim. `at_maximum`: ids put on the manual list instead. `is_full`: there may be more."""

    claimed: Sequence[Claimed]
    at_maximum: Sequence[str]
    is_full: bool


def claim_first_sends(
    connection: sa.Connection,
    tables: Tables,
    rules: SendingRules,
    now_ms: int,
    limit: int,
    without_topics: Collection[str] = (),
) -> Claim:
    """Claim up to `limit` messages that no broker has, in a short transaction of the caller. A message that was sent as
    often as allowed is put on the manual list instead.
    """
    take_turn(connection, tables)
    stub = tables.stub
    found, is_all = find_first_sends(connection, tables, rules, now_ms, limit, without_topics)
    spent, taken = _one_page(found, rules)
    is_free = sa.and_(is_unsent(tables), may_be_sent(tables, rules, now_ms))
    at_maximum = _flag(connection, tables, [_given_up(row, now_ms) for row in spent], is_free)
    until_ms = now_ms + rules.lease_ms
    claimed = _claim(connection, tables, [row.seq for row in taken], is_free, until_ms, {stub.c.resend_ms: until_ms})
    claimed = _in_order(connection, tables, taken, claimed, now_ms)
    return Claim(claimed, at_maximum, not is_all or len(taken) + len(spent) < len(found))


def _in_order(
    connection: sa.Connection, tables: Tables, taken: Sequence[sa.Row[Any]], claimed: list[Claimed], now_ms: int
) -> list[Claimed]:
    """Those of `claimed` that may be sent. The sender of an older message of a key may have given it back, with a wait,
    after it was read and before it was claimed. Messages after that one are given back, too.
    """
    got = {each.seq for each in claimed}
    if len(got) == len(taken):
        return claimed
    first_missing: dict[tuple[str, str], int] = {}
    for row in taken:
        if row.sharding_key is not None and row.seq not in got:
            first_missing.setdefault((row.topic, row.sharding_key), row.seq)
    behind = {
        each.seq
        for each in claimed
        if each.seq > first_missing.get((each.message.topic, each.message.sharding_key or ""), each.seq)
    }
    if behind:
        stub = tables.stub
        connection.execute(
            stub.update()
            .where(stub.c.seq.in_(sorted(behind)))
            .values(claim_token=None, claim_until_ms=0, resend_ms=now_ms, send_count=stub.c.send_count - 1)
        )
    return [each for each in claimed if each.seq not in behind]


def claim_resends(
    connection: sa.Connection, tables: Tables, rules: SendingRules, seqs: Sequence[int], now_ms: int
) -> list[Claimed]:
    """Claim messages that were read before; those that another sender has had meanwhile are left out."""
    take_turn(connection, tables)
    return _claim(connection, tables, seqs, is_due_again(tables, rules, now_ms), now_ms + rules.lease_ms, {})


def put_on_manual_list(
    connection: sa.Connection,
    tables: Tables,
    rules: SendingRules,
    entries: Sequence[manual_list.ManualEntry],
    now_ms: int,
) -> list[str]:
    """Flag stubs that are due for a resend and still unconfirmed, and put them on the manual list. Returns their ids.
    """
    take_turn(connection, tables)
    return _flag(connection, tables, entries, is_due_again(tables, rules, now_ms))


def take_turn(connection: sa.Connection, tables: Tables) -> None:
    """Wait until no other claimer is in its transaction. This is the first statement of a claim: later reads, at any
    isolation level, see all that the last claimer wrote.
    """
    relay = tables.relay
    count = relay.update().where(relay.c.name == _TURN).values(turns=relay.c.turns + 1)
    if not connection.execute(count).rowcount:
        insert_new(connection, relay, [{"name": _TURN, "turns": 0}])
        connection.execute(count)


def is_due_again(tables: Tables, rules: SendingRules, now_ms: int) -> sa.ColumnElement[bool]:
    """Condition: sent, not confirmed, the resend time is past, and nobody sends the message now."""
    stub = tables.stub
    return sa.and_(
        stub.c.status == UNCONFIRMED,
        stub.c.is_manual == sa.false(),
        stub.c.sent_ms.is_not(None),
        stub.c.resend_ms <= now_ms,
        sa.or_(stub.c.claim_until_ms <= now_ms, stub.c.claim_until_ms > rules.last_wait_ms(now_ms)),
    )


def count_again(connection: sa.Connection, tables: Tables, rules: SendingRules, now_ms: int) -> int:
    """Handle a clock that was set back after messages were sent: their waits begin now. Returns their number."""
    stub = tables.stub
    jumped = sa.and_(
        stub.c.status == UNCONFIRMED,
        stub.c.is_manual == sa.false(),
        stub.c.resend_ms > now_ms + rules.backoff.max_wait_ms,
        stub.c.sent_ms > now_ms,
    )
    again_ms = now_ms + rules.backoff.first_wait_ms
    return connection.execute(stub.update().where(jumped).values(sent_ms=now_ms, resend_ms=again_ms)).rowcount


def _one_page(found: Sequence[sa.Row[Any]], rules: SendingRules) -> tuple[list[sa.Row[Any]], list[sa.Row[Any]]]:
    """The rows to give up, and the rows to claim: as many as fit in memory, none after a row of its key that is given
    up, and a suspect alone.
    """
    spent: list[sa.Row[Any]] = []
    taken: list[sa.Row[Any]] = []
    closed: set[tuple[str, str]] = set()
    size = 0
    for row in found:
        if row.sharding_key is not None and (row.topic, row.sharding_key) in closed:
            continue
        if row.send_count >= rules.max_send_count:
            spent.append(row)
            if row.sharding_key is not None:
                closed.add((row.topic, row.sharding_key))
            continue
        # With few sends allowed, a second claim in company could be the last one.
        is_suspect = row.claim_token is not None and row.send_count >= min(SUSPECT_COUNT, rules.max_send_count - 1)
        size += row.body_bytes
        if taken and (is_suspect or size > CLAIM_BYTES_MAX):
            break
        taken.append(row)
        if is_suspect:
            break
    return spent, taken


def _given_up(row: sa.Row[Any], now_ms: int) -> manual_list.ManualEntry:
    detail = f"tried {row.send_count} times, and it is not known that a broker has it"
    if row.sharding_key is not None:
        detail += "; what has the same sharding key waits for it"
    return manual_list.ManualEntry(row.message_id, manual_list.NO_GROUP, manual_list.MAXIMUM, detail, now_ms)


def _flag(
    connection: sa.Connection,
    tables: Tables,
    entries: Sequence[manual_list.ManualEntry],
    is_free: sa.ColumnElement[bool],
) -> list[str]:
    """Flag and list the stubs for which `is_free` holds when their rows are locked; returns their ids."""
    if not entries:
        return []
    stub = tables.stub
    named = stub.c.message_id.in_([entry.message_id for entry in entries])
    ids = set(connection.scalars(sa.select(stub.c.message_id).where(named, is_free).with_for_update()))
    if ids:
        connection.execute(stub.update().where(stub.c.message_id.in_(sorted(ids))).values(is_manual=True))
        manual_list.add_all(connection, tables, [entry for entry in entries if entry.message_id in ids])
    return sorted(ids)


def _claim(
    connection: sa.Connection,
    tables: Tables,
    seqs: Sequence[int],
    is_free: sa.ColumnElement[bool],
    until_ms: int,
    also: Mapping[sa.Column[Any], Any],
) -> list[Claimed]:
    if not seqs:
        return []
    stub, token = tables.stub, new_token()
    connection.execute(
        stub.update()
        .where(stub.c.seq.in_(seqs), is_free)
        .values({"claim_token": token, "claim_until_ms": until_ms, "send_count": stub.c.send_count + 1})
        .values({column.name: value for column, value in also.items()})
    )
    taken = sa.select(stub).where(stub.c.seq.in_(seqs), stub.c.claim_token == token).order_by(stub.c.seq)
    return [
        Claimed(row.seq, row.message_id, message_of(row), row.send_count, token, until_ms)
        for row in connection.execute(taken)
    ]
