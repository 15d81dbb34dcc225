"""The manual list: messages about which a person must decide, in the database where the failure was noticed.

    maximum       sent as often as allowed, and not confirmed                  (sender's database)
    ordered       a resend would come after later messages of its key          (sender's database)
    stuck         for a day nobody can tell whether it must be sent again      (sender's database)
    illegal       its row cannot be read, or brokers refuse such a message     (sender's database)
    dead_letter   the group gave up; the message is in %DLQ%group              (consumer's database)
    in_doubt      an effect outside of the transaction may have happened       (consumer's database)
    no_id         the message has no id; its place is used as the id           (consumer's database)
    same_id       it has the id of another message that is done, and was left  (consumer's database)

H11 of docs/conformance.md asks for this list at the maximum. An entry exists once, however often it is added. Entries
are removed when the message is done. Entries in doubt stay until a person removes them: the message was done again
after the doubtful effect, so that effect may have happened twice. An entry that was removed and is added again is new:
people are notified again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import sqlalchemy as sa

from rmq_store.errors import UsageError
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.reliable.database.inserting import insert_new
from rmq_store.reliable.database.raw_rows import fetch_raw, raw_columns, shown
from rmq_store.reliable.database.tables import CONFIRMED, VOID, Tables
from rmq_store.reliable.database.transact import read, transact

MAXIMUM: Final = "maximum"
ORDERED: Final = "ordered"
DEAD_LETTER: Final = "dead_letter"
STUCK: Final = "stuck"
ILLEGAL: Final = "illegal"
IN_DOUBT: Final = "in_doubt"
NO_ID: Final = "no_id"
SAME_ID: Final = "same_id"
OF_SENDING: Final = (MAXIMUM, ORDERED, STUCK, ILLEGAL)
"""While such an entry stands, nobody sends the message."""
REASONS: Final = (*OF_SENDING, DEAD_LETTER, IN_DOUBT, NO_ID, SAME_ID)

NO_GROUP: Final = ""
"""The group of an entry that is about sending."""

DETAIL_CHARACTERS_MAX: Final = 4_000
# Rows that one statement names; SQLite takes 32,766 parameters, and a row has three key columns.
_ROWS_PER_STATEMENT = 1_000


@dataclass(frozen=True, slots=True)
class ManualEntry:
    """One row. `group_name`: the group that failed, "" if sending failed. `reason`: one of `REASONS`. `detail`: text
    for a person, perhaps with untrusted text. Times in ms since 1970; `notified_ms` is None until a person was
    notified.
    """

    message_id: str
    group_name: str
    reason: str
    detail: str
    created_ms: int
    notified_ms: int | None = None

    @property
    def key(self) -> tuple[str, str, str]:
        """The key that makes it unique."""
        return self.message_id, self.group_name, self.reason


def add(
    connection: sa.Connection,
    tables: Tables,
    message_id: str,
    group_name: str,
    reason: str,
    detail: str,
    now_ms: int,
) -> None:
    """Put a message on the list, in the caller's transaction. If the entry exists, nothing changes: it keeps its time,
    and nobody is notified again.

    Raises:
        UsageError: an unknown reason.
    """
    add_all(connection, tables, [ManualEntry(message_id, group_name, reason, detail, now_ms)])


def add_all(connection: sa.Connection, tables: Tables, entries: Iterable[ManualEntry]) -> None:
    """`add` for many entries, in one statement per thousand."""
    rows = {entry.key: _row(entry) for entry in entries}
    # In the order of their key, so that two writers wait for each other, and do not deadlock.
    ordered = [rows[key] for key in sorted(rows)]
    for start in range(0, len(ordered), _ROWS_PER_STATEMENT):
        insert_new(connection, tables.manual, ordered[start : start + _ROWS_PER_STATEMENT])


def list_entries(
    connection: sa.Connection,
    tables: Tables,
    *,
    limit: int,
    after: ManualEntry | None = None,
    group_name: str | None = None,
    reason: str | None = None,
    message_ids: Sequence[str] | None = None,
) -> list[ManualEntry]:
    """At most `limit` entries, oldest first; the next page begins `after` the last one of this page."""
    manual = tables.manual
    statement = sa.select(*raw_columns(manual))
    if after is not None:
        place = sa.tuple_(manual.c.created_ms, *_key(manual))
        statement = statement.where(place > sa.tuple_(sa.literal(after.created_ms), *map(sa.literal, after.key)))
    if group_name is not None:
        statement = statement.where(manual.c.group_name == group_name)
    if reason is not None:
        statement = statement.where(manual.c.reason == reason)
    if message_ids is not None:
        statement = statement.where(manual.c.message_id.in_(message_ids))
    return _entries(connection, statement.order_by(manual.c.created_ms, *_key(manual)).limit(limit))


def not_notified(connection: sa.Connection, tables: Tables, *, limit: int) -> list[ManualEntry]:
    """At most `limit` entries about which nobody was notified, oldest first."""
    manual = tables.manual
    statement = sa.select(*raw_columns(manual)).where(manual.c.notified_ms.is_(None))
    return _entries(connection, statement.order_by(manual.c.created_ms, *_key(manual)).limit(limit))


def mark_notified(connection: sa.Connection, tables: Tables, entries: Sequence[ManualEntry], now_ms: int) -> None:
    """Record that somebody was notified of these entries. One that was removed meanwhile, and added again, is new."""
    manual = tables.manual
    known_by = sa.tuple_(*_key(manual), manual.c.created_ms)
    for start in range(0, len(entries), _ROWS_PER_STATEMENT):
        told = [(*entry.key, entry.created_ms) for entry in entries[start : start + _ROWS_PER_STATEMENT]]
        # A time that cannot be read was shown as 0; such an entry is known by its key alone.
        without_time = [key[:3] for key in told if key[3] == 0]
        is_told: sa.ColumnElement[bool] = known_by.in_(told)
        if without_time:
            is_told = sa.or_(is_told, sa.tuple_(*_key(manual)).in_(without_time))
        connection.execute(
            sa.update(manual).where(is_told, manual.c.notified_ms.is_(None)),
            {"notified_ms": now_ms},
        )


def count(connection: sa.Connection, tables: Tables) -> dict[str, int]:
    """{reason: number of entries}, for reasons that have entries."""
    manual = tables.manual
    statement = sa.select(manual.c.reason, sa.func.count().label("entries")).group_by(manual.c.reason)
    return {row.reason: row.entries for row in connection.execute(statement)}


def remove(
    connection: sa.Connection,
    tables: Tables,
    message_id: str,
    group_name: str | None = None,
    reason: str | None = None,
) -> int:
    """Remove the entries of a message: all, or those of a group or reason. Returns their number."""
    manual = tables.manual
    statement = sa.delete(manual).where(manual.c.message_id == message_id)
    if group_name is not None:
        statement = statement.where(manual.c.group_name == group_name)
    if reason is not None:
        statement = statement.where(manual.c.reason == reason)
    return connection.execute(statement).rowcount


def remove_all(
    connection: sa.Connection, tables: Tables, message_ids: Sequence[str], group_name: str, reason: str
) -> int:
    """Remove the entries of many messages with one group and reason. Returns their number."""
    manual = tables.manual
    removed = 0
    for start in range(0, len(message_ids), _ROWS_PER_STATEMENT):
        removed += connection.execute(
            sa.delete(manual).where(
                manual.c.message_id.in_(message_ids[start : start + _ROWS_PER_STATEMENT]),
                manual.c.group_name == group_name,
                manual.c.reason == reason,
            )
        ).rowcount
    return removed


def remove_done(connection: sa.Connection, tables: Tables) -> int:
    """Remove entries that need no person any more: dead letters that are void, or that their group has done since (by a
    redrive, a resend, or another worker), and entries about sending whose stub is confirmed or void. Returns their
    number.

    A confirmed stub says nothing about a dead letter: the stub need not name the letter's group. A database that holds
    one side only has neither entries nor rows of the other side.
    """
    return connection.execute(sa.delete(tables.manual).where(_is_over(tables))).rowcount


def clean(engine: sa.Engine, tables: Tables) -> int:
    """`remove_done` in a transaction of its own, durable on return. If nothing is to be removed, it only reads, because
    SQLite has one writer at a time.
    """
    asked = sa.select(tables.manual.c.reason).where(_is_over(tables)).limit(1)
    if read(engine, lambda connection: connection.scalar(asked)) is None:
        return 0
    return transact(engine, lambda connection: remove_done(connection, tables))


def _is_over(tables: Tables) -> sa.ColumnElement[bool]:
    manual, inbox, stub = tables.manual, tables.inbox, tables.stub
    of_inbox = sa.and_(inbox.c.group_name == manual.c.group_name, inbox.c.message_id == manual.c.message_id)
    # No EXISTS: PostgreSQL would read the whole inbox once, and keep it, for a list of some hundred entries.
    is_done = sa.select(inbox.c.message_id).where(of_inbox).scalar_subquery().is_not(None)
    status = sa.select(stub.c.status).where(stub.c.message_id == manual.c.message_id).scalar_subquery()
    is_settled = status.in_((CONFIRMED, VOID))
    is_void = status == VOID
    return sa.or_(
        sa.and_(manual.c.reason == DEAD_LETTER, sa.or_(is_done, is_void)),
        sa.and_(manual.c.reason.in_(OF_SENDING), is_settled),
    )


def _key(manual: sa.Table) -> tuple[sa.Column[Any], ...]:
    return manual.c.message_id, manual.c.group_name, manual.c.reason


def _entries(connection: sa.Connection, statement: sa.Select[Any]) -> list[ManualEntry]:
    """Entries for people and their notifications: one that somebody has damaged is shown as well as it can be."""
    return [
        ManualEntry(
            _text(row.message_id), _text(row.group_name), _text(row.reason), _text(row.detail),
            row.created_ms if isinstance(row.created_ms, int) else 0,
            row.notified_ms if isinstance(row.notified_ms, int) else None,
        )
        for row in fetch_raw(connection, statement)
    ]  # fmt: skip


def _text(value: object) -> str:
    return value if isinstance(value, str) else "" if value is None else shown(value)


def _row(entry: ManualEntry) -> dict[str, Any]:
    if entry.reason not in REASONS:
        raise UsageError(f"reason {entry.reason!r} of an entry of the manual list: one of {', '.join(REASONS)}")
    # PostgreSQL has no text with a NUL, and no database takes half a surrogate pair; strangers send both.
    text = entry.detail[:DETAIL_CHARACTERS_MAX].replace("\0", "\N{REPLACEMENT CHARACTER}")
    return {
        "message_id": entry.message_id,
        "group_name": entry.group_name,
        "reason": entry.reason,
        "detail": text.encode("utf-8", "replace").decode("utf-8"),
        "created_ms": entry.created_ms,
        "notified_ms": entry.notified_ms,
    }
