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

A row that cannot be read goes to the manual list by itself (`illegal`), before anything of it is sent.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import sqlalchemy as sa

from rmq_store.client import Message, MessageIllegalError
from rmq_store.errors import UsageError
from rmq_store.format.frames.message import changed
from rmq_store.format.properties.new_message import OUTBOX_ID
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.reliable.database import manual_list
from rmq_store.reliable.database.inserting import insert_new
from rmq_store.reliable.database.leases import new_token
from rmq_store.reliable.database.manual_list import ILLEGAL, MAXIMUM, NO_GROUP, ManualEntry
from rmq_store.reliable.database.message_id import UNIQUE_KEY, check_message_id
from rmq_store.reliable.database.raw_rows import fault_of, fetch_raw, is_storable, raw_columns, shown
from rmq_store.reliable.database.tables import UNCONFIRMED, Tables
from rmq_store.reliable.outbox.first_sends import find_first_sends, is_unsent, may_be_sent
from rmq_store.reliable.outbox.sending import Claimed
from rmq_store.reliable.outbox.sending_rules import SendingRules
from rmq_store.reliable.outbox.stub import as_filter, message_of, unknown_statuses, without_content

CLAIM_BYTES_MAX: Final = 16 << 20
SUSPECT_COUNT: Final = 2
"""What has been claimed so often, by senders that never told its outcome, may have killed them. It is claimed alone,
so that the counts of others do not go up with its own."""

_TURN: Final = "claim"
_NUMBER_MAX: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Claim:
    """The stubs of one claim. `given_up`: those put on the manual list instead. `is_full`: there may be more."""

    claimed: Sequence[Claimed]
    given_up: Sequence[ManualEntry] = ()
    is_full: bool = False


def claim_first_sends(
    connection: sa.Connection,
    tables: Tables,
    rules: SendingRules,
    now_ms: int,
    limit: int,
    without_topics: Collection[str] = (),
    probed_topics: Collection[str] = (),
) -> Claim:
    """Claim up to `limit` messages that no broker has, in a short transaction of the caller. A message that was sent as
    often as allowed is put on the manual list instead.
    """
    take_turn(connection, tables)
    stub = tables.stub
    found, is_all = find_first_sends(connection, tables, rules, now_ms, limit, without_topics, probed_topics)
    readable, broken = _readable(found, tables, now_ms)
    spent, taken = _one_page(readable, rules)
    is_free = sa.and_(is_unsent(tables), may_be_sent(tables, rules, now_ms))
    entries = {row.seq: _at_maximum(row, now_ms) for row in spent}
    given_up = list_stubs(connection, tables, broken | entries, is_free)
    until_ms = now_ms + rules.lease_ms
    seqs = [row.seq for row in taken]
    claim = _claim(connection, tables, seqs, is_free, now_ms, until_ms, {stub.c.resend_ms: until_ms})
    claimed = _in_order(connection, tables, taken, claim.claimed, now_ms)
    is_full = not is_all or len(taken) + len(spent) + len(broken) < len(found)
    return Claim(claimed, [*given_up, *claim.given_up], is_full)


def _in_order(
    connection: sa.Connection, tables: Tables, taken: Sequence[sa.Row[Any]], claimed: Sequence[Claimed], now_ms: int
) -> Sequence[Claimed]:
    """Those of `claimed` that may be sent. The sender of an older message of a key may have given it back, with a wait,
    after it was read and before it was claimed; or it cannot be read. Messages after that one are given back, too.
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
) -> Claim:
    """Claim messages that were read before; those that another sender has had meanwhile are left out."""
    take_turn(connection, tables)
    return _claim(connection, tables, seqs, is_due_again(tables, rules, now_ms), now_ms, now_ms + rules.lease_ms, {})


def put_on_manual_list(
    connection: sa.Connection,
    tables: Tables,
    rules: SendingRules,
    entries: Mapping[int, ManualEntry],
    now_ms: int,
) -> list[ManualEntry]:
    """Flag stubs, by their seq, that are due for a resend and still unconfirmed, and put them on the manual list.
    Returns their entries.
    """
    take_turn(connection, tables)
    return list_stubs(connection, tables, entries, is_due_again(tables, rules, now_ms))


def list_hidden(connection: sa.Connection, tables: Tables, now_ms: int, limit: int) -> list[ManualEntry]:
    """Put at most `limit` stubs that no other question of a relay finds on the manual list: their status is none of the
    three, or what says whether and when it is their turn has no value of its type. Returns their entries.
    """
    take_turn(connection, tables)
    is_hidden = sa.or_(*_hidden(tables))
    asked = sa.select(*without_content(tables.stub)).where(is_hidden).limit(limit)
    entries = {
        row.seq: _illegal(
            tables, row, fault_of(tables.stub, row) or f"its status is unknown: {shown(row.status)}", now_ms
        )
        for row in fetch_raw(connection, asked)
    }
    return list_stubs(connection, tables, entries, is_hidden)


def has_any_hidden(connection: sa.Connection, tables: Tables) -> bool:
    """True if `list_hidden` would find something. It saves a write."""
    return connection.scalar(_any_hidden(tables)) is not None


def _hidden(tables: Tables) -> list[sa.ColumnElement[bool]]:
    """The stubs of `list_hidden` in ranges of the index (status, is_manual, resend_ms)."""
    stub = tables.stub
    is_waiting = sa.and_(stub.c.status == UNCONFIRMED, stub.c.is_manual == sa.false())
    return [
        *(sa.and_(is_unknown, stub.c.is_manual == sa.false()) for is_unknown in unknown_statuses(tables)),
        *(
            sa.and_(stub.c.status == UNCONFIRMED, is_odd)
            for is_odd in (
                stub.c.is_manual.is_(None), stub.c.is_manual < sa.literal(False), stub.c.is_manual > sa.literal(True),
            )
        ),
        sa.and_(is_waiting, stub.c.resend_ms.is_(None)),
        # In SQLite each text is behind each number.
        sa.and_(is_waiting, stub.c.resend_ms > _NUMBER_MAX),
    ]  # fmt: skip


@lru_cache(maxsize=8)
def _any_hidden(tables: Tables) -> sa.Select[tuple[int]]:
    # Made once: each round asks, and to make it costs more than to ask. Range by range: SQLite scans all for an OR.
    asked = sa.select(tables.stub.c.seq).limit(1)
    parts = [asked.where(is_in_range).subquery() for is_in_range in _hidden(tables)]
    found = sa.union_all(*(sa.select(part.c.seq) for part in parts)).subquery("found")
    return sa.select(found.c.seq).limit(1)


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
    return is_due_at(tables, now_ms, rules.last_wait_ms(now_ms))


def is_due_at(
    tables: Tables, now_ms: int | sa.BindParameter[int], last_wait_ms: int | sa.BindParameter[int]
) -> sa.ColumnElement[bool]:
    """`is_due_again`; a claim that ends after `last_wait_ms` does not count."""
    stub = tables.stub
    return sa.and_(
        stub.c.status == UNCONFIRMED,
        stub.c.is_manual == sa.false(),
        stub.c.sent_ms.is_not(None),
        stub.c.resend_ms <= now_ms,
        sa.or_(
            stub.c.claim_until_ms <= now_ms,
            stub.c.claim_until_ms > last_wait_ms,
            stub.c.claim_until_ms.is_(None),  # by hand
        ),
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


def _readable(
    found: Sequence[sa.Row[Any]], tables: Tables, now_ms: int
) -> tuple[list[sa.Row[Any]], dict[int, ManualEntry]]:
    """The rows that can be read, but none after one of its key that cannot; and the entries of those that cannot."""
    readable: list[sa.Row[Any]] = []
    broken: dict[int, ManualEntry] = {}
    closed: set[tuple[Any, Any]] = set()
    for row in found:
        if (fault := fault_of(tables.stub, row)) is not None:
            broken[row.seq] = _illegal(tables, row, fault, now_ms)
            closed.add((row.topic, row.sharding_key))
        elif row.sharding_key is None or (row.topic, row.sharding_key) not in closed:
            readable.append(row)
    return readable, broken


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


def _at_maximum(row: sa.Row[Any], now_ms: int) -> ManualEntry:
    detail = f"tried {row.send_count} times, and it is not known that a broker has it"
    if row.sharding_key is not None:
        detail += "; what has the same sharding key waits for it"
    return ManualEntry(row.message_id, NO_GROUP, MAXIMUM, detail, now_ms)


def _illegal(tables: Tables, row: sa.Row[Any], fault: str, now_ms: int) -> ManualEntry:
    return illegal_entry(tables, row.seq, row.message_id, fault, now_ms)


def illegal_entry(tables: Tables, seq: int, message_id: object, fault: str, now_ms: int) -> ManualEntry:
    """The entry of a stub that cannot be sent as it is. A row whose id no table can hold is listed by its number."""
    where = f"row seq={seq} of {tables.stub.name}"
    named = message_id if isinstance(message_id, str) and is_storable(message_id) else f"seq={seq}"
    return ManualEntry(named, NO_GROUP, ILLEGAL, f"{fault} ({where}: correct it and retry, or void it)", now_ms)


def list_stubs(
    connection: sa.Connection,
    tables: Tables,
    entries: Mapping[int, ManualEntry],
    is_free: sa.ColumnElement[bool],
) -> list[ManualEntry]:
    """Flag and list the stubs, by their seq, for which `is_free` holds when their rows are locked; nobody sends them
    from then on. Returns their entries.
    """
    if not entries:
        return []
    stub = tables.stub
    seqs = sorted(
        connection.scalars(
            sa.select(stub.c.seq).where(stub.c.seq.in_(sorted(entries)), as_filter(is_free)).with_for_update()
        )
    )
    if seqs:
        freed = {"is_manual": True, "claim_token": None, "claim_until_ms": 0}
        connection.execute(stub.update().where(stub.c.seq.in_(seqs)).values(**freed))
        manual_list.add_all(connection, tables, [entries[seq] for seq in seqs])
    return [entries[seq] for seq in seqs]


def list_claimed(
    connection: sa.Connection, tables: Tables, entries: Mapping[int, ManualEntry], tokens: Collection[str]
) -> list[ManualEntry]:
    """`list_stubs` for rows that are still claimed by one of the `tokens`."""
    return list_stubs(connection, tables, entries, tables.stub.c.claim_token.in_(sorted(tokens)))


def _claim(
    connection: sa.Connection,
    tables: Tables,
    seqs: Sequence[int],
    is_free: sa.ColumnElement[bool],
    now_ms: int,
    until_ms: int,
    also: Mapping[sa.Column[Any], Any],
) -> Claim:
    if not seqs:
        return Claim(())
    stub, token = tables.stub, new_token()
    connection.execute(
        stub.update()
        .where(stub.c.seq.in_(seqs), as_filter(is_free))
        .values({"claim_token": token, "claim_until_ms": until_ms, "send_count": stub.c.send_count + 1})
        .values({column.name: value for column, value in also.items()})
    )
    is_ours = stub.c.claim_token == token
    taken = sa.select(*raw_columns(stub)).where(stub.c.seq.in_(seqs), is_ours).order_by(stub.c.seq)
    claimed: list[Claimed] = []
    illegal: dict[int, ManualEntry] = {}
    for row in fetch_raw(connection, taken):
        try:
            message = _message_of(stub, row)
        except (MessageIllegalError, UsageError) as error:
            illegal[row.seq] = _illegal(tables, row, str(error), now_ms)
        else:
            claimed.append(Claimed(row.seq, row.message_id, message, row.send_count, token, until_ms))
    return Claim(claimed, list_stubs(connection, tables, illegal, is_ours))


def _message_of(stub: sa.Table, row: sa.Row[Any]) -> Message:
    """The message of a row, with its id even if its properties have lost it: groups recognise it by that alone."""
    if (fault := fault_of(stub, row)) is not None:
        raise MessageIllegalError(fault)
    message = message_of(row)
    if message.properties.get(OUTBOX_ID):
        return message
    message_id = check_message_id(row.message_id)
    return changed(message, properties={UNIQUE_KEY: message_id, OUTBOX_ID: message_id, **message.properties})
