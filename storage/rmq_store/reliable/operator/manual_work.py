"""Decisions of a person about a message: send it again, void it, or remove it from the manual list.

    retry   sends the message once more, as a new one: after the unsent messages of its key, whatever its offset, with
            its send count at 0. Entries are removed, but entries in doubt stay. If it fails again, a new entry says so.
            A stub that is older than inbox rows are kept is refused: nobody could tell that a group has done it
    void    the message has no effect from now on: groups that have not done it will do nothing (`stub.void`)
    clear   removes entries, and does nothing else: for work that a person has done by hand, and for doubts that are
        over

The sender's database comes first. If the process dies before it has changed the consumers' databases, the message is
sent or void already. An entry that is left is removed when its message is done or cleared.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from functools import partial
from typing import Final

import sqlalchemy as sa

from rmq_store.reliable.database import manual_list
from rmq_store.reliable.database.manual_list import DEAD_LETTER, IN_DOUBT, NO_ID, OF_SENDING, REASONS, SAME_ID
from rmq_store.reliable.database.tables import CONFIRMED, UNCONFIRMED, VOID, Tables
from rmq_store.reliable.database.transact import read, transact
from rmq_store.reliable.outbox.stub import is_open, status_of, void
from rmq_store.reliable.relay.inboxes import Inboxes


class ManualResult(StrEnum):
    """The result for one message. CHANGED: the requested change was made. After any other result nothing was changed.
    """

    CHANGED = "CHANGED"
    CONFIRMED = "CONFIRMED"
    """Every group has done it."""
    VOID = "VOID"
    """It was taken back before."""
    NO_STUB = "NO_STUB"
    """This database has promised no such message."""
    NOT_LISTED = "NOT_LISTED"
    """The manual list has nothing of it that can be cleared."""
    STILL_OPEN = "STILL_OPEN"
    """Sending has given up, and cleared it would be lost: retry it, or void it."""
    TOO_OLD = "TOO_OLD"
    """Inbox rows of its time may be purged: its effect could happen a second time."""


_OF_CONSUMING: Final = (DEAD_LETTER, IN_DOUBT, NO_ID, SAME_ID)


def plan(
    inboxes: Inboxes, tables: Tables, message_ids: Sequence[str], action: str, *, oldest_ms: int = 0
) -> dict[str, ManualResult]:
    """The outcome that `action` ("retry", "void", "clear") would have for each message; changes nothing. `oldest_ms`:
    older stubs are not retried.
    """
    statuses = read(inboxes.stubs, partial(status_of, tables=tables, message_ids=message_ids))
    if action == "clear":
        return {message_id: _clearable(inboxes, tables, message_id, statuses) for message_id in message_ids}
    outcomes = {message_id: _changeable(statuses.get(message_id)) for message_id in message_ids}
    if action == "retry":
        asked = sa.select(tables.stub.c.message_id).where(
            tables.stub.c.message_id.in_(message_ids), tables.stub.c.created_ms < oldest_ms
        )
        for message_id in read(inboxes.stubs, lambda connection: connection.scalars(asked).all()):
            if outcomes[message_id] is ManualResult.CHANGED:
                outcomes[message_id] = ManualResult.TOO_OLD
    return outcomes


def done_groups(inboxes: Inboxes, tables: Tables, message_ids: Sequence[str]) -> dict[str, list[str]]:
    """The groups that have confirmed a stub already, by id. A person who voids a message should know them."""
    stub_group = tables.stub_group
    asked = sa.select(stub_group.c.message_id, stub_group.c.group_name).where(
        stub_group.c.message_id.in_(message_ids), stub_group.c.confirmed_ms.is_not(None)
    )
    found: dict[str, list[str]] = {}
    for row in read(inboxes.stubs, lambda connection: connection.execute(asked).all()):
        found.setdefault(row.message_id, []).append(row.group_name)
    return found


def retry(inboxes: Inboxes, tables: Tables, message_id: str, now_ms: int, *, oldest_ms: int = 0) -> ManualResult:
    """Have a message sent again by the relay, unless its stub is older than `oldest_ms`; durable on return."""
    work = partial(_retry_stub, tables=tables, message_id=message_id, now_ms=now_ms, oldest_ms=oldest_ms)
    outcome = transact(inboxes.stubs, work)
    if outcome is ManualResult.CHANGED:
        for engine in inboxes.engines():
            transact(engine, partial(_revive, tables=tables, message_id=message_id))
    return outcome


def void_message(inboxes: Inboxes, tables: Tables, message_id: str) -> ManualResult:
    """Void a message; durable on return. A group that works on it right now may finish first."""
    outcome = transact(inboxes.stubs, partial(_void_stub, tables=tables, message_id=message_id))
    if outcome is ManualResult.CHANGED:
        for engine in inboxes.engines():
            transact(engine, partial(_remove, tables=tables, message_id=message_id, reasons=(*OF_SENDING, DEAD_LETTER)))
    return outcome


def clear(inboxes: Inboxes, tables: Tables, message_id: str) -> ManualResult:
    """Remove a message from the manual list, entries in doubt included; durable on return."""
    outcome = plan(inboxes, tables, [message_id], "clear")[message_id]
    if outcome is ManualResult.CHANGED:
        is_there = read(inboxes.stubs, partial(status_of, tables=tables, message_ids=[message_id]))
        reasons = _OF_CONSUMING if is_there else REASONS
        for engine in inboxes.engines():
            transact(engine, partial(_remove, tables=tables, message_id=message_id, reasons=reasons))
    return outcome


def _changeable(status: str | None) -> ManualResult:
    if status is None:
        return ManualResult.NO_STUB
    return {CONFIRMED: ManualResult.CONFIRMED, VOID: ManualResult.VOID}.get(status, ManualResult.CHANGED)


def _clearable(inboxes: Inboxes, tables: Tables, message_id: str, statuses: dict[str, str]) -> ManualResult:
    reasons: set[str] = set()
    for engine in inboxes.engines():
        entries = read(engine, partial(manual_list.list_entries, tables=tables, limit=1_000, message_ids=[message_id]))
        reasons |= {entry.reason for entry in entries}
    if reasons & set(_OF_CONSUMING):
        return ManualResult.CHANGED
    if not reasons:
        return ManualResult.NOT_LISTED
    if message_id not in statuses:  # nothing can be lost with an entry whose stub somebody has deleted
        return ManualResult.CHANGED
    return ManualResult.NOT_LISTED if statuses[message_id] in (CONFIRMED, VOID) else ManualResult.STILL_OPEN


def _retry_stub(
    connection: sa.Connection, *, tables: Tables, message_id: str, now_ms: int, oldest_ms: int
) -> ManualResult:
    stub = tables.stub
    # Without an offset no group's mark holds it back, and without a time of sending it is a first send.
    unsent = {"sent_ms": None, "broker_name": None, "sent_queue_id": None, "queue_offset": None, "send_count": 0}
    free = {"claim_token": None, "claim_until_ms": 0, "is_manual": False, "resend_ms": now_ms}
    ours = stub.c.message_id == message_id
    stub_group = tables.stub_group
    # Fields that are computed anew here: a row in which only these are damaged is sent.
    pending = sa.select(sa.func.count()).where(
        stub_group.c.message_id == message_id, stub_group.c.confirmed_ms.is_(None)
    )
    counted = {"status": UNCONFIRMED, "pending_groups": pending.scalar_subquery()}
    changed = connection.execute(
        sa.update(stub).where(ours, is_open(tables), stub.c.created_ms >= oldest_ms).values(**unsent, **free, **counted)
    ).rowcount
    if not changed:
        outcome = _changeable(connection.scalar(sa.select(stub.c.status).where(ours).with_for_update()))
        return ManualResult.TOO_OLD if outcome is ManualResult.CHANGED else outcome
    _remove(connection, tables=tables, message_id=message_id, reasons=OF_SENDING)
    return ManualResult.CHANGED


def _void_stub(connection: sa.Connection, *, tables: Tables, message_id: str) -> ManualResult:
    before = _changeable(status_of(connection, tables, [message_id]).get(message_id))
    if before is not ManualResult.CHANGED:
        return before
    return ManualResult.CHANGED if void(connection, tables, message_id) == VOID else ManualResult.CONFIRMED


def _revive(connection: sa.Connection, *, tables: Tables, message_id: str) -> None:
    """The consumers' side of a retry: automatic resends may look after it again."""
    log = tables.log
    dead = sa.select(tables.manual.c.group_name).where(
        tables.manual.c.message_id == message_id, tables.manual.c.reason == DEAD_LETTER
    )
    groups = connection.scalars(dead).all()
    if groups:
        connection.execute(
            sa.update(log)
            .where(log.c.group_name.in_(groups), log.c.message_id == message_id)
            .values(is_dead=False, blocks_until_ms=0)
        )
    for group in groups:  # not what another group lists meanwhile: its log row is still dead
        manual_list.remove(connection, tables, message_id, group, DEAD_LETTER)


def _remove(connection: sa.Connection, *, tables: Tables, message_id: str, reasons: Sequence[str]) -> None:
    for reason in reasons:
        manual_list.remove(connection, tables, message_id, reason=reason)
