"""The sent and due stubs that a round looks at, so many that its cost does not grow with the messages that wait.

    new     each stub once, soon after it has become due     at most NEW_ROWS_MAX per round, oldest first
    again   those that were looked at before, in turn        at most AGAIN_ROWS_MAX per round. When all had their turn,
            the next turn begins AGAIN_EVERY_MS after the last one has begun; at once if one round is enough for all

The positions are rows of `relay`. So relays of one database share the work, and one that restarts goes on. A stub that
becomes due behind the position of `new` (its sender's clock is late) has its turn with `again`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

import sqlalchemy as sa

from rmq_store.lazy.dataclasses import dataclass
from rmq_store.reliable.database.inserting import insert_new
from rmq_store.reliable.database.raw_rows import fetch_raw, is_storable
from rmq_store.reliable.database.tables import Tables
from rmq_store.reliable.outbox.claims import is_due_at
from rmq_store.reliable.outbox.resend_times import WAIT_MS_MAX
from rmq_store.reliable.outbox.sending_rules import SendingRules
from rmq_store.reliable.outbox.stub import pending_groups_of, without_content

NEW_ROWS_MAX: Final = 1_000
AGAIN_ROWS_MAX: Final = 500
AGAIN_EVERY_MS: Final = 15 * 60_000

StubPosition = tuple[int, int]
"""(resend_ms, seq) of the last stub that was looked at."""

START: Final = (-(1 << 62), 0)
_RESTING: Final = (-(1 << 62), 1)


@dataclass(frozen=True, slots=True)
class LookProgress:
    """How far the looks have come. `again` is START when a turn is to begin, and _RESTING when one is over.
    `again_since_ms`: when the turn began. `is_stored`: the table has them.
    """

    new: StubPosition = START
    again: StubPosition = START
    again_since_ms: int = 0
    is_stored: bool = False


@dataclass(frozen=True, slots=True)
class Looks:
    """The stubs that a round looks at, without bodies. `pending`: the groups that have not confirmed, by id. `is_full`:
    more stubs have become due.
    """

    new: Sequence[sa.Row[Any]]
    again: Sequence[sa.Row[Any]]
    pending: Mapping[str, Sequence[str]]
    is_full: bool
    progress: LookProgress
    now_ms: int

    def after(self, count: int) -> LookProgress:
        """The progress when `count` of the rows, new ones first, have been looked at."""
        new = _last(self.new[:count], self.progress.new)
        if self.progress.again == _RESTING:
            return replace(self.progress, new=new)
        begins = self.progress.again == START
        since_ms = self.now_ms if begins else self.progress.again_since_ms
        seen = self.again[: max(0, count - len(self.new))]
        if len(seen) == AGAIN_ROWS_MAX or len(seen) < len(self.again):
            return replace(self.progress, new=new, again=_last(seen, self.progress.again), again_since_ms=since_ms)
        # All had their turn; if one round is enough for all, they have one in each.
        return replace(self.progress, new=new, again=START if begins else _RESTING)


def find_looks(connection: sa.Connection, tables: Tables, rules: SendingRules, now_ms: int) -> Looks:
    """The stubs that a round at `now_ms` looks at: some statements, whatever waits."""
    progress = _read(connection, tables)
    if progress.new[0] > now_ms + WAIT_MS_MAX:  # the clock of its relay had jumped
        progress = replace(progress, new=START, again=START)
    if progress.again == _RESTING and not 0 <= now_ms - progress.again_since_ms < AGAIN_EVERY_MS:
        progress = replace(progress, again=START)
    with_again = progress.again != _RESTING and progress.new != START
    given = {
        **_numbers(progress), "now_ms": now_ms, "last_wait_ms": rules.last_wait_ms(now_ms),
        "new_rows": NEW_ROWS_MAX, "again_rows": AGAIN_ROWS_MAX,
    }  # fmt: skip
    rows = fetch_raw(connection, _due(tables, with_again), given)
    new = [row for row in rows if (row.resend_ms, row.seq) > progress.new][:NEW_ROWS_MAX]
    again = [row for row in rows if (row.resend_ms, row.seq) <= progress.new][:AGAIN_ROWS_MAX]
    ids = [row.message_id for row in (*new, *again) if is_storable(row.message_id)]
    pending = pending_groups_of(connection, tables, ids)
    return Looks(new, again, pending, len(new) == NEW_ROWS_MAX, progress, now_ms)


def save_progress(connection: sa.Connection, tables: Tables, progress: LookProgress) -> None:
    """Write how far the looks have come, in the caller's transaction. It overwrites the progress of another relay: at
    worst a stub is looked at twice.
    """
    relay = tables.relay
    numbers = _numbers(progress)
    value = sa.case(numbers, value=relay.c.name, else_=relay.c.turns)
    if progress.is_stored:
        connection.execute(relay.update().where(relay.c.name.in_(sorted(numbers))).values(turns=value))
    else:
        insert_new(connection, relay, [{"name": name, "turns": numbers[name]} for name in sorted(numbers)])


def _numbers(progress: LookProgress) -> dict[str, int]:
    (new_ms, new_seq), (again_ms, again_seq) = progress.new, progress.again
    return {
        "new_ms": new_ms, "new_seq": new_seq, "again_ms": again_ms, "again_seq": again_seq,
        "again_since_ms": progress.again_since_ms,
    }  # fmt: skip


def _read(connection: sa.Connection, tables: Tables) -> LookProgress:
    relay = tables.relay
    asked = sa.select(relay.c.name, relay.c.turns).where(relay.c.name.in_(sorted(_numbers(LookProgress()))))
    found: dict[str, int] = {row.name: row.turns for row in connection.execute(asked)}
    return LookProgress(
        (found.get("new_ms", START[0]), found.get("new_seq", START[1])),
        (found.get("again_ms", START[0]), found.get("again_seq", START[1])),
        found.get("again_since_ms", 0),
        len(found) == len(_numbers(LookProgress())),
    )


@lru_cache(maxsize=8)
def _due(tables: Tables, with_again: bool) -> sa.Select[Any]:
    """The stubs after both positions, by (resend_ms, seq). Made once: each round asks."""
    stub = tables.stub
    is_due = is_due_at(tables, _number("now_ms"), _number("last_wait_ms"))
    parts = _after(tables, is_due, "new")
    if with_again:
        position_ms, position_seq = _number("new_ms"), _number("new_seq")
        is_before = sa.or_(stub.c.resend_ms < position_ms, stub.c.seq <= position_seq)
        parts += _after(tables, sa.and_(is_due, stub.c.resend_ms <= position_ms, is_before), "again")
    due = sa.union_all(*(sa.select(part.subquery()) for part in parts)).subquery("due")
    return sa.select(due).order_by(due.c.resend_ms, due.c.seq)


def _after(tables: Tables, is_due: sa.ColumnElement[bool], position: str) -> list[sa.Select[Any]]:
    """The stubs after a position, by two queries. Stubs with the time of the position are sought by themselves: with
    OR, a database reads all stubs of this time, and many may have the same.
    """
    stub = tables.stub
    asked = sa.select(*without_content(stub)).where(is_due).limit(_number(f"{position}_rows"))
    resend_ms, seq = _number(f"{position}_ms"), _number(f"{position}_seq")
    return [
        asked.where(stub.c.resend_ms == resend_ms, stub.c.seq > seq).order_by(stub.c.seq),
        asked.where(stub.c.resend_ms > resend_ms).order_by(stub.c.resend_ms, stub.c.seq),
    ]


def _number(name: str) -> sa.BindParameter[int]:
    return sa.bindparam(name, type_=sa.BigInteger)


def _last(rows: Sequence[sa.Row[Any]], otherwise: StubPosition) -> StubPosition:
    return (rows[-1].resend_ms, rows[-1].seq) if rows else otherwise
