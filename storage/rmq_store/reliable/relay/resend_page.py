"""A page of stubs that are due for a resend, with the state of each in databases and at brokers: reads only, without
locks. The number of statements does not depend on how many rows a page has.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from rmq_store.client import Backend, ClientError, MessageQueue
from rmq_store.errors import StoreError
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.reliable.database.raw_rows import fault_of
from rmq_store.reliable.database.tables import Tables
from rmq_store.reliable.outbox.resend_times import WAIT_MS_MAX
from rmq_store.reliable.relay.group_rows import GroupRows
from rmq_store.reliable.relay.inboxes import Inboxes
from rmq_store.reliable.relay.resend_rule import GroupState, SentStub

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A stub that is due. `queue` None: it is unknown. `is_suspect`: its last sender's result is unknown. `groups`:
    those that have not confirmed.
    """

    seq: int
    message_id: str
    topic: str
    queue: MessageQueue | None
    is_suspect: bool
    body_bytes: int
    stub: SentStub
    groups: Mapping[str, GroupState]


def due_page(
    inboxes: Inboxes,
    tables: Tables,
    rows: Sequence[sa.Row[Any]],
    pending: Mapping[str, Sequence[str]],
    max_offset: Callable[[MessageQueue], int | None],
) -> list[Candidate]:
    """A candidate for each row of `stub`. `pending`: the groups that have not confirmed, by id."""
    states = GroupRows()
    groups = {group for row in rows for group in pending.get(row.message_id, ())}
    ids, topics = [row.message_id for row in rows], sorted({row.topic for row in rows})
    states.read_all(inboxes, tables, groups, ids, topics, _warn)
    ends = {queue: max_offset(queue) for queue in {_queue_of(row) for row in rows} if queue is not None}
    return [_candidate(row, pending.get(row.message_id, ()), states, ends) for row in rows]


def fault_of_sent(tables: Tables, row: sa.Row[Any], now_ms: int) -> str | None:
    """Why nobody can decide about a row of `stub` that was sent; None: it can be read."""
    if (fault := fault_of(tables.stub, row)) is not None:
        return fault
    if row.sent_ms > now_ms + WAIT_MS_MAX:  # a clock that was set back does not tell it: its resend time is past
        return f"its sent_ms lies in the future: {row.sent_ms}"
    return None


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


def _state_of(rows: GroupRows, group: str, message_id: str, queue: MessageQueue | None) -> GroupState:
    key = (group, message_id)
    if group in rows.unreachable or key in rows.unreadable:
        return GroupState(is_unreachable=True)
    mark = None if queue is None else rows.marks.get((group, queue.broker_name, queue.topic, queue.queue_id))
    return GroupState(key in rows.done, mark, rows.logs.get(key))


def _warn(groups: Sequence[str], error: sa.exc.SQLAlchemyError) -> None:
    _LOG.warning("the inbox of %s cannot be read, their messages wait: %s", ", ".join(groups), _reason(error))


def _reason(error: sa.exc.SQLAlchemyError) -> object:
    # The text of SQLAlchemy holds the statement and its values, which are an application's.
    return getattr(error, "orig", None) or type(error).__name__


def _queue_of(row: sa.Row[Any]) -> MessageQueue | None:
    if row.queue_offset is None or row.broker_name is None or row.sent_queue_id is None:
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
        queue,
        row.claim_token is not None,
        row.body_bytes,
        stub,
        {group: _state_of(states, group, row.message_id, queue) for group in groups},
    )
