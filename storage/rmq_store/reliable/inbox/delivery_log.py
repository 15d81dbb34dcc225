"""The log of messages that a group has received and not yet done (H03 of docs/conformance.md).

It and the high-water marks are written in a transaction before the effect's: the sender must see which messages have
arrived, also while a worker has them. A row of the log has a lease (a worker has the message), or waits for its retry,
or is dead. It is deleted when the message is done. The lease only saves work: `inbox` decides whether a message is
done.

    C2   `receive`    one transaction: rows with our lease, marks, and the holder of each message
    E1   `fail`       one transaction: the lease given back, the time until which the row blocks a resend, dead letters

A row has the place at which its message was first received; a retry that takes it over changes only the lease.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any, Final

import sqlalchemy as sa

from rmq_store.lazy.dataclasses import dataclass
from rmq_store.reliable.database import manual_list
from rmq_store.reliable.database.inserting import chunks, inserted_ids
from rmq_store.reliable.database.leases import horizon_ms
from rmq_store.reliable.database.tables import VOID, Tables
from rmq_store.reliable.inbox import inbox
from rmq_store.reliable.inbox.deliveries import Delivery, Queue
from rmq_store.reliable.inbox.high_water import write_marks

UNCLEAR: Final = (
    "a worker of an older version has done a message with its OUTBOX_ID, which was copied from another message: "
    "perhaps this one"
)


@dataclass(slots=True)
class Received:
    """The findings of C2, by id: `ours` to work on, `done` before, `void`, and `busy`: {id: end of the other worker's
    lease}. `others`: the id is done, as another message. `unclear`: a worker of version 1 may have done it under the id
    that it was copied with. `took_over`: at least one of `ours` had a worker whose result is unknown, and which may be
    alive.
    """

    ours: set[str] = field(default_factory=set)
    done: set[str] = field(default_factory=set)
    void: set[str] = field(default_factory=set)
    others: set[str] = field(default_factory=set)
    unclear: set[str] = field(default_factory=set)
    busy: dict[str, int] = field(default_factory=dict)
    took_over: bool = False


def receive(
    connection: sa.Connection,
    tables: Tables,
    group: str,
    deliveries: Sequence[Delivery],
    *,
    token: str,
    now_ms: int,
    lease_ms: int,
    marks: Mapping[Queue, int],
    void: Collection[str] | None = None,
) -> Received:
    """C2: write log rows and marks, and find out what to do with each message (ids differ from each other).

    Rows are written before the inbox is read. When another worker has done a message, it has deleted its row: so either
    our INSERT finds its row, or we find its inbox row. This needs READ COMMITTED, as in `transact`.

    `void`: of the ids, those whose stub in another database is void; None: the stubs are in this database. The number
    of statements is the same for any 1,000 messages.
    """
    found = Received(void=set(void or ()))
    left: list[str] = []
    until_ms = now_ms + lease_ms
    rows = {delivery.message_id: _log_row(group, delivery, token, now_ms, until_ms) for delivery in deliveries}
    there = rows.keys() - inserted_ids(connection, tables.log, list(rows.values()), token)
    for ids in chunks(sorted(there)):
        found.took_over |= _take_over(connection, tables, group, ids, token=token, now_ms=now_ms, lease_ms=lease_ms)
    # No row: it went after our INSERT found it, and before this transaction could see why.
    holders: dict[str, tuple[str | None, int]] = dict.fromkeys(rows, (None, now_ms))
    fingerprints = {delivery.message_id: delivery.fingerprint for delivery in deliveries}
    copied = {delivery.message_id: delivery.copied_id for delivery in deliveries if delivery.copied_id is not None}
    of_version_1: set[str] = set()
    column = inbox.fingerprint_column(connection, tables)
    for ids in chunks(sorted({*rows, *copied.values()})):
        state = _state(tables, group, ids, column, with_stubs=void is None)
        for kind, message_id, text, time_ms in connection.execute(state):
            if kind == "inbox":
                if text is None:
                    of_version_1.add(message_id)
                is_other = inbox.is_other(text, fingerprints.get(message_id))
                (found.others if is_other else found.done).add(message_id)
            elif kind == "stub":
                found.void.add(message_id)
            else:
                holders[message_id] = (text, time_ms)
    found.others &= rows.keys()
    found.done &= rows.keys()
    found.void = (found.void & rows.keys()) - found.done - found.others
    found.unclear = {each for each, copied_id in copied.items() if copied_id in of_version_1} - found.done
    settled = found.done | found.void | found.others | found.unclear
    for message_id in rows.keys() - settled:
        holder, held_until_ms = holders[message_id]
        by_copied_id, its_end_ms = holders.get(copied.get(message_id, ""), (None, 0))
        if holder != token:
            found.busy[message_id] = held_until_ms
        elif by_copied_id not in (None, token) and now_ms < its_end_ms <= horizon_ms(now_ms, lease_ms):
            # Perhaps a worker of version 1 is at it.
            found.busy[message_id] = its_end_ms
            left.append(message_id)
        else:
            found.ours.add(message_id)
    delete(connection, tables, group, {*settled, *left})
    write_marks(connection, tables, group, marks)
    return found


def fail(
    connection: sa.Connection,
    tables: Tables,
    group: str,
    deliveries: Sequence[Delivery],
    *,
    token: str,
    now_ms: int,
    slack_ms: int,
    detail: str,
) -> set[str]:
    """E1: give back the leases of `token`. The rows block a resend until the retry is due and `slack_ms` more. A row of
    the last delivery becomes dead, and is put on the manual list. Returns the ids that the group has done meanwhile:
    another worker has, or this one without an answer from the database. Their log rows are deleted.
    """
    ids = [delivery.message_id for delivery in deliveries]
    done = inbox.done_ids(connection, tables, group, ids)
    if done:
        done -= inbox.others(connection, tables, group, {each.message_id: each.fingerprint for each in deliveries})
    delete(connection, tables, group, done)
    steps: dict[tuple[int, bool], list[str]] = {}
    for delivery in deliveries:
        if delivery.message_id not in done:
            steps.setdefault((delivery.retry_ms, delivery.is_last), []).append(delivery.message_id)
    log = tables.log
    for (retry_ms, is_last), ids in sorted(steps.items()):
        for some in chunks(sorted(ids)):
            connection.execute(
                sa.update(log)
                .where(log.c.group_name == group, log.c.message_id.in_(some), log.c.lease_token == token)
                .values(
                    lease_token=None,
                    lease_until_ms=0,
                    blocks_until_ms=now_ms + retry_ms + slack_ms,
                    is_dead=is_last,
                )
            )
        if is_last:
            manual_list.add_all(
                connection,
                tables,
                [manual_list.ManualEntry(each, group, manual_list.DEAD_LETTER, detail, now_ms) for each in ids],
            )
    return done


def renew(
    connection: sa.Connection, tables: Tables, group: str, message_ids: Iterable[str], token: str, until_ms: int
) -> None:
    """Let the leases of `token` end at `until_ms`. Rows that other workers have taken over do not change."""
    log = tables.log
    for some in chunks(sorted(message_ids)):
        connection.execute(
            sa.update(log)
            .where(log.c.group_name == group, log.c.message_id.in_(some), log.c.lease_token == token)
            .values(lease_until_ms=until_ms)
        )


def delete(connection: sa.Connection, tables: Tables, group: str, message_ids: Iterable[str]) -> None:
    """Delete the log rows of messages that are done or void, whoever holds them."""
    log = tables.log
    for some in chunks(sorted(message_ids)):
        connection.execute(sa.delete(log).where(log.c.group_name == group, log.c.message_id.in_(some)))


def _take_over(
    connection: sa.Connection, tables: Tables, group: str, ids: list[str], *, token: str, now_ms: int, lease_ms: int
) -> bool:
    """Put our lease on rows that nobody works on any more, or that have our token; True if one of them had another
    worker, whose lease is not live. A message that people have sent again after it was dead is dead no more.
    """
    log = tables.log
    here = (log.c.group_name == group, log.c.message_id.in_(ids))
    is_over = sa.or_(log.c.lease_until_ms <= now_ms, log.c.lease_until_ms > horizon_ms(now_ms, lease_ms))
    ours = {"lease_token": token, "lease_until_ms": now_ms + lease_ms, "blocks_until_ms": 0, "is_dead": False}
    abandoned = sa.update(log).where(*here, log.c.lease_token.is_not(None), log.c.lease_token != token, is_over)
    took_over = connection.execute(abandoned.values(ours)).rowcount > 0
    free = sa.update(log).where(*here, sa.or_(log.c.lease_token.is_(None), log.c.lease_token == token))
    connection.execute(free.values(ours))
    return took_over


def _state(
    tables: Tables, group: str, ids: list[str], fingerprint: sa.ColumnElement[Any], *, with_stubs: bool
) -> sa.CompoundSelect[Any]:
    """(kind, id, text, time) of inbox rows, void stubs and log rows, in one statement."""
    done, log, stub = tables.inbox, tables.log, tables.stub
    parts = [
        sa.select(sa.literal_column("'inbox'"), done.c.message_id, fingerprint, done.c.done_ms).where(
            done.c.group_name == group, done.c.message_id.in_(ids)
        ),
        sa.select(sa.literal_column("'log'"), log.c.message_id, log.c.lease_token, log.c.lease_until_ms).where(
            log.c.group_name == group, log.c.message_id.in_(ids)
        ),
    ]
    if with_stubs:
        parts.append(
            sa.select(sa.literal_column("'stub'"), stub.c.message_id, stub.c.status, stub.c.created_ms).where(
                stub.c.message_id.in_(ids), stub.c.status == VOID
            )
        )
    return sa.union_all(*parts)


def _log_row(group: str, delivery: Delivery, token: str, now_ms: int, until_ms: int) -> dict[str, object]:
    return {
        "group_name": group,
        "message_id": delivery.message_id,
        "broker_name": delivery.broker_name,
        "topic": delivery.topic,
        "queue_id": delivery.queue_id,
        "queue_offset": delivery.queue_offset,
        "received_ms": now_ms,
        "reconsume_times": delivery.reconsume_times,
        "lease_token": token,
        "lease_until_ms": until_ms,
        "blocks_until_ms": 0,
        "is_dead": False,
    }
