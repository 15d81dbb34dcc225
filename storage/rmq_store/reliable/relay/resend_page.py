"""A page of stubs that are due for a resend, and what the databases and brokers say of them: reads only, without locks.

Pages follow each other by (resend_ms, seq). The number of statements does not depend on how many rows a page has.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from rmq_store.client import Backend, ClientError, MessageQueue
from rmq_store.errors import StoreError
from rmq_store.reliable.database.tables import Tables
from rmq_store.reliable.database.transact import read
from rmq_store.reliable.outbox.claims import SendingRules, is_due_again
from rmq_store.reliable.outbox.stub import pending_groups_of
from rmq_store.reliable.relay.inboxes import Inboxes
from rmq_store.reliable.relay.resend_rule import GroupState, LogState, SentStub

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A stub that is due. `queue` None: where the message went is not known. `is_suspect`: who claimed it last has
    never said what became of it.
    """

    seq: int
    message_id: str
    topic: str
    resend_ms: int
    queue: MessageQueue | None
    is_suspect: bool
    body_bytes: int
    stub: SentStub
    groups: Mapping[str, GroupState]

    @property
    def place(self) -> tuple[int, int]:
        """The key at which the next page begins."""
        return self.resend_ms, self.seq


def due_page(
    inboxes: Inboxes,
    tables: Tables,
    rules: SendingRules,
    now_ms: int,
    after: tuple[int, int],
    limit: int,
    max_offset: Callable[[MessageQueue], int | None],
) -> list[Candidate]:
    """At most `limit` candidates behind a place, with the groups that have not confirmed."""
    rows, pending = read(inboxes.stubs, lambda connection: _due(connection, tables, rules, now_ms, after, limit))
    states = _states(inboxes, tables, rows, pending)
    ends = {queue: max_offset(queue) for queue in {_queue_of(row) for row in rows} if queue is not None}
    return [_candidate(row, pending.get(row.message_id, ()), states, ends) for row in rows]


def end_of_queue(backend: Backend | None) -> Callable[[MessageQueue], int | None]:
    """Asks brokers for the offset behind their last message; None if there is nobody to ask, or no answer."""

    def ask(queue: MessageQueue) -> int | None:
        broker = None if backend is None else backend.brokers().get(queue.broker_name)
        if broker is None:
            return None
        try:
            return broker.max_offset(queue)
        except (ClientError, StoreError) as error:
            _LOG.warning("%s: its end is not known: %s", queue, error)
            return None

    return ask


def _due(
    connection: sa.Connection, tables: Tables, rules: SendingRules, now_ms: int, after: tuple[int, int], limit: int
) -> tuple[Sequence[sa.Row[Any]], Mapping[str, Sequence[str]]]:
    stub = tables.stub
    resend_ms, seq = after
    asked: sa.Select[Any] = (
        sa.select(
            *(column for column in stub.columns if column.name not in ("body", "properties")),
            sa.func.length(stub.c.body).label("body_bytes"),
        )
        .where(
            is_due_again(tables, rules, now_ms),
            stub.c.resend_ms >= resend_ms,
            sa.or_(stub.c.resend_ms > resend_ms, stub.c.seq > seq),
        )
        .order_by(stub.c.resend_ms, stub.c.seq)
        .limit(limit)
    )
    rows = connection.execute(asked).all()
    return rows, pending_groups_of(connection, tables, [row.message_id for row in rows])


class _States:
    """Rows of consumers' databases, by (group, id) and by (group, broker, topic, queue id)."""

    def __init__(self) -> None:
        self.done: set[tuple[str, str]] = set()
        self.logs: dict[tuple[str, str], LogState] = {}
        self.marks: dict[tuple[str, str, str, int], int] = {}
        self.unreachable: set[str] = set()

    def read_from(
        self,
        connection: sa.Connection,
        tables: Tables,
        groups: Sequence[str],
        ids: Sequence[str],
        topics: Sequence[str],
    ) -> None:
        log, inbox, mark = tables.log, tables.inbox, tables.high_water
        logs = sa.select(log).where(log.c.group_name.in_(groups), log.c.message_id.in_(ids))
        for row in connection.execute(logs):
            lease_until_ms = row.lease_until_ms if row.lease_token is not None else 0
            state = LogState(lease_until_ms, row.blocks_until_ms, bool(row.is_dead))
            self.logs[row.group_name, row.message_id] = state
        marks = sa.select(mark).where(mark.c.group_name.in_(groups), mark.c.topic.in_(topics))
        for row in connection.execute(marks):
            self.marks[row.group_name, row.broker_name, row.topic, row.queue_id] = row.queue_offset
        # Last: what was done between these reads is then seen as done, and not as a message without a log row.
        done = sa.select(inbox.c.group_name, inbox.c.message_id).where(
            inbox.c.group_name.in_(groups), inbox.c.message_id.in_(ids)
        )
        self.done.update((row.group_name, row.message_id) for row in connection.execute(done))

    def of(self, group: str, message_id: str, queue: MessageQueue | None) -> GroupState:
        """The state of the message in the group."""
        if group in self.unreachable:
            return GroupState(is_unreachable=True)
        key = (group, message_id)
        mark = None if queue is None else self.marks.get((group, queue.broker_name, queue.topic, queue.queue_id))
        return GroupState(key in self.done, mark, self.logs.get(key))


def _states(
    inboxes: Inboxes, tables: Tables, rows: Sequence[sa.Row[Any]], pending: Mapping[str, Sequence[str]]
) -> _States:
    states = _States()
    groups_at: dict[sa.Engine, set[str]] = {}
    for groups in pending.values():
        for group in groups:
            groups_at.setdefault(inboxes.of(group), set()).add(group)
    ids = [row.message_id for row in rows]
    topics = sorted({row.topic for row in rows})
    for engine, names in groups_at.items():
        asked = sorted(names)

        def read_all(connection: sa.Connection, asked: Sequence[str] = asked) -> None:
            states.read_from(connection, tables, asked, ids, topics)

        try:
            read(engine, read_all)
        except sa.exc.SQLAlchemyError as error:
            _LOG.warning("the inbox of %s cannot be read, their messages wait: %s", ", ".join(asked), _reason(error))
            states.unreachable |= names
    return states


def _reason(error: sa.exc.SQLAlchemyError) -> object:
    # The text of SQLAlchemy holds the statement and its values, which are an application's.
    return getattr(error, "orig", None) or type(error).__name__


def _queue_of(row: sa.Row[Any]) -> MessageQueue | None:
    if row.queue_offset is None or row.broker_name is None:
        return None
    return MessageQueue(row.topic, row.broker_name, row.sent_queue_id)


def _candidate(
    row: sa.Row[Any], groups: Sequence[str], states: _States, ends: Mapping[MessageQueue, int | None]
) -> Candidate:
    queue = _queue_of(row)
    stub = SentStub(
        row.send_count,
        row.sent_ms,
        row.resend_ms,
        None if queue is None else row.queue_offset,
        row.sharding_key is not None,
        None if queue is None else ends[queue],
    )
    return Candidate(
        row.seq,
        row.message_id,
        row.topic,
        row.resend_ms,
        queue,
        row.claim_token is not None,
        row.body_bytes,
        stub,
        {group: states.of(group, row.message_id, queue) for group in groups},
    )
