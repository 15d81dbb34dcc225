"""A page of stubs that are due for a resend, with the state of each in databases and at brokers: reads only, without
locks.

Pages follow each other by (resend_ms, seq). The number of statements does not depend on how many rows a page has.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from rmq_store.client import Backend, ClientError, MessageQueue
from rmq_store.errors import StoreError
from rmq_store.late.dataclasses import dataclass
from rmq_store.reliable.database.tables import Tables
from rmq_store.reliable.database.transact import read
from rmq_store.reliable.outbox.claims import is_due_again
from rmq_store.reliable.outbox.sending_rules import SendingRules
from rmq_store.reliable.outbox.stub import pending_groups_of
from rmq_store.reliable.relay.group_rows import GroupRows
from rmq_store.reliable.relay.inboxes import Inboxes
from rmq_store.reliable.relay.resend_rule import GroupState, SentStub

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A stub that is due. `queue` None: it is unknown. `is_suspect`: its last sender's result is unknown."""

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
    """At most `limit` candidates after the key `after`, each with the groups that have not confirmed."""
    rows, pending = read(inboxes.stubs, lambda connection: _due(connection, tables, rules, now_ms, after, limit))
    states = GroupRows()
    groups = {group for names in pending.values() for group in names}
    ids, topics = [row.message_id for row in rows], sorted({row.topic for row in rows})
    states.read_all(inboxes, tables, groups, ids, topics, _warn)
    ends = {queue: max_offset(queue) for queue in {_queue_of(row) for row in rows} if queue is not None}
    return [_candidate(row, pending.get(row.message_id, ()), states, ends) for row in rows]


def end_of_queue(backend: Backend | None) -> Callable[[MessageQueue], int | None]:
    """A function that asks a broker for the end of a queue; it returns None if there is no broker to ask, or no answer.
    """

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


def _state_of(rows: GroupRows, group: str, message_id: str, queue: MessageQueue | None) -> GroupState:
    if group in rows.unreachable:
        return GroupState(is_unreachable=True)
    key = (group, message_id)
    mark = None if queue is None else rows.marks.get((group, queue.broker_name, queue.topic, queue.queue_id))
    return GroupState(key in rows.done, mark, rows.logs.get(key))


def _warn(groups: Sequence[str], error: sa.exc.SQLAlchemyError) -> None:
    _LOG.warning("the inbox of %s cannot be read, their messages wait: %s", ", ".join(groups), _reason(error))


def _reason(error: sa.exc.SQLAlchemyError) -> object:
    # The text of SQLAlchemy holds the statement and its values, which are an application's.
    return getattr(error, "orig", None) or type(error).__name__


def _queue_of(row: sa.Row[Any]) -> MessageQueue | None:
    if row.queue_offset is None or row.broker_name is None:
        return None
    return MessageQueue(row.topic, row.broker_name, row.sent_queue_id)


def _candidate(
    row: sa.Row[Any], groups: Sequence[str], states: GroupRows, ends: Mapping[MessageQueue, int | None]
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
        {group: _state_of(states, group, row.message_id, queue) for group in groups},
    )
