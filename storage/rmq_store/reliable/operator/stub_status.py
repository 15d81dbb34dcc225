"""The next step of a stub, and why it is not sent yet: for people (`rmq resend list` and `show`).

    unsent     no broker has confirmed a send yet
    waiting    sent; its resend time has not come, or each group may still get it
    due        sent, and the next round sends it again
    manual     on the manual list: nobody sends it
    void       a person has voided it
    confirmed  every group has done it

A view is read without locks, a page at a time. The number of statements per page does not depend on its rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import sqlalchemy as sa

from rmq_store.lazy.dataclasses import dataclass
from rmq_store.reliable.database.raw_rows import fault_of, fetch_raw, is_storable, raw_columns, shown
from rmq_store.reliable.database.tables import CONFIRMED, UNCONFIRMED, VOID, Tables
from rmq_store.reliable.database.transact import read
from rmq_store.reliable.operator.stub_reason import DUE, MANUAL, UNSENT, WAITING, GroupStatus, judge
from rmq_store.reliable.outbox.stub import has_unknown_status
from rmq_store.reliable.outbox.stub import is_open as is_still_open
from rmq_store.reliable.relay.group_rows import GroupRows
from rmq_store.reliable.relay.inboxes import Inboxes

STATES: Final = (UNSENT, WAITING, DUE, MANUAL, VOID)

PAGE_ROWS: Final = 500


@dataclass(frozen=True, slots=True)
class StubStatus:
    """A stub without its body. `why`: one line for a person. Times in ms since 1970."""

    seq: int
    message_id: str
    topic: str
    sharding_key: str | None
    state: str
    why: str
    created_ms: int
    send_count: int
    sent_ms: int | None
    resend_ms: int
    broker_name: str | None
    queue_id: int | None
    queue_offset: int | None
    groups: tuple[GroupStatus, ...]


def stubs_in(
    inboxes: Inboxes, tables: Tables, states: Sequence[str], now_ms: int, *, group: str | None = None
) -> Iterator[StubStatus]:
    """Stubs in one of the `states`, oldest first. With `group`, only stubs that this group has not confirmed."""
    seq = -1
    stub, stub_group = tables.stub, tables.stub_group
    while True:
        asked = sa.select(*_columns(tables)).where(stub.c.seq > seq, sa.or_(*_kinds(tables, states)))
        if group is not None:
            asked = asked.where(
                sa.exists().where(
                    stub_group.c.message_id == stub.c.message_id,
                    stub_group.c.group_name == group,
                    stub_group.c.confirmed_ms.is_(None),
                )
            )
        rows = read(inboxes.stubs, partial(_rows, asked=asked.order_by(stub.c.seq).limit(PAGE_ROWS)))
        if not rows:
            return
        yield from (found for found in _statuses(inboxes, tables, rows, now_ms) if found.state in states)
        seq = rows[-1].seq


def stubs_named(inboxes: Inboxes, tables: Tables, message_ids: Sequence[str], now_ms: int) -> dict[str, StubStatus]:
    """The stubs of these ids, whatever their state; ids without a stub are left out."""
    asked = sa.select(*_columns(tables)).where(tables.stub.c.message_id.in_(message_ids))
    rows = read(inboxes.stubs, partial(_rows, asked=asked))
    return {found.message_id: found for found in _statuses(inboxes, tables, rows, now_ms)}


def _rows(connection: sa.Connection, asked: sa.Select[Any]) -> Sequence[sa.Row[Any]]:
    return fetch_raw(connection, asked)


def _columns(tables: Tables) -> list[sa.ColumnElement[Any]]:
    """The columns of `stub`, without those that may be large."""
    return raw_columns(tables.stub, without=("body", "properties"))


def _kinds(tables: Tables, states: Sequence[str]) -> Iterator[sa.ColumnElement[bool]]:
    """The condition on a state in the database; `judge` separates waiting from due."""
    stub = tables.stub
    is_open = sa.and_(stub.c.status == UNCONFIRMED, sa.not_(stub.c.is_manual))
    if UNSENT in states:
        yield sa.and_(is_open, stub.c.sent_ms.is_(None))
        yield sa.and_(has_unknown_status(tables), sa.not_(stub.c.is_manual))
    if WAITING in states or DUE in states:
        yield sa.and_(is_open, stub.c.sent_ms.is_not(None))
    if MANUAL in states:
        yield sa.and_(is_still_open(tables), stub.c.is_manual)
    if VOID in states:
        yield stub.c.status == VOID


def _statuses(inboxes: Inboxes, tables: Tables, rows: Sequence[sa.Row[Any]], now_ms: int) -> Iterator[StubStatus]:
    groups = _groups(inboxes, tables, rows)
    oldest = _oldest_of_keys(inboxes.stubs, tables, rows)
    for row in rows:
        own = tuple(groups.get(row.message_id, ()))
        older = oldest.get((row.topic, row.sharding_key))
        older = older if older is not None and older.seq < row.seq else None
        state, why = judge(row, own, older, now_ms, _fault_of(tables, row))
        yield StubStatus(
            row.seq, _text(row.message_id) or f"seq={row.seq}", _text(row.topic) or "", _text(row.sharding_key),
            state, why, _number(row.created_ms) or 0, _number(row.send_count) or 0, _number(row.sent_ms),
            _number(row.resend_ms) or 0, _text(row.broker_name), _number(row.sent_queue_id),
            _number(row.queue_offset), own,
        )  # fmt: skip


def _text(value: object) -> str | None:
    """Text that can be shown, of a column that may hold anything."""
    return value if value is None or is_storable(value) or value == "" else shown(value)  # type: ignore[return-value]


def _number(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _fault_of(tables: Tables, row: sa.Row[Any]) -> str | None:
    if (fault := fault_of(tables.stub, row)) is None and row.status not in (UNCONFIRMED, CONFIRMED, VOID):
        return f"its status is unknown: {shown(row.status)}"
    return fault


def _groups(inboxes: Inboxes, tables: Tables, rows: Sequence[sa.Row[Any]]) -> Mapping[str, list[GroupStatus]]:
    ids = [row.message_id for row in rows if is_storable(row.message_id)]
    stub_group = tables.stub_group
    asked = sa.select(stub_group).where(stub_group.c.message_id.in_(ids))
    asked = asked.order_by(stub_group.c.message_id, stub_group.c.group_name)
    pairs = read(inboxes.stubs, partial(_rows, asked=asked))
    known = GroupRows()
    groups = {pair.group_name for pair in pairs}
    topics = sorted({row.topic for row in rows if is_storable(row.topic)})
    known.read_all(inboxes, tables, groups, ids, topics, _pass_if_away)
    stubs = {row.message_id: row for row in rows}
    found: dict[str, list[GroupStatus]] = {}
    for pair in pairs:
        stub = stubs[pair.message_id]
        mark = known.marks.get((pair.group_name, stub.broker_name or "", stub.topic, stub.sent_queue_id))
        is_known = stub.queue_offset is not None
        status = _status(known, pair.group_name, pair.message_id, pair.confirmed_ms, mark if is_known else None)
        found.setdefault(pair.message_id, []).append(status)
    return found


def group_statuses(engine: sa.Engine, tables: Tables, message_id: str, groups: Sequence[str]) -> list[GroupStatus]:
    """Those of the groups that have received or done a message, whether or not it has a stub."""
    known = GroupRows()
    read(engine, partial(known.add, tables=tables, groups=groups, ids=[message_id], topics=[]))
    found = [_status(known, group, message_id, None, None) for group in groups]
    return [group for group in found if group.done_ms is not None or group.log is not None]


def _status(rows: GroupRows, group: str, message_id: str, confirmed_ms: int | None, mark: int | None) -> GroupStatus:
    key = (group, message_id)
    is_known, is_readable = group not in rows.unreachable, key not in rows.unreadable
    return GroupStatus(group, confirmed_ms, rows.done.get(key), rows.logs.get(key), mark, is_known, is_readable)


def _pass_if_away(groups: Sequence[str], error: sa.exc.SQLAlchemyError) -> None:
    if not isinstance(error, sa.exc.OperationalError):
        raise error


def _oldest_of_keys(
    engine: sa.Engine, tables: Tables, rows: Sequence[sa.Row[Any]]
) -> Mapping[tuple[str, str], sa.Row[Any]]:
    """{(topic, sharding key): the oldest stub of it that no broker has}, of the keys of unsent rows."""
    stub = tables.stub
    keys = {
        (row.topic, row.sharding_key)
        for row in rows
        if row.sharding_key is not None and row.sent_ms is None and fault_of(stub, row) is None
    }
    if not keys:
        return {}
    first = (
        sa.select(sa.func.min(stub.c.seq))
        .where(
            sa.tuple_(stub.c.topic, stub.c.sharding_key).in_(sorted(keys)),
            is_still_open(tables),
            stub.c.sent_ms.is_(None),
        )
        .group_by(stub.c.topic, stub.c.sharding_key)
    )
    asked = sa.select(stub.c.topic, stub.c.sharding_key, stub.c.seq, stub.c.message_id, stub.c.is_manual)
    found = read(engine, partial(_rows, asked=asked.where(stub.c.seq.in_(first))))
    return {(row.topic, row.sharding_key): row for row in found}
