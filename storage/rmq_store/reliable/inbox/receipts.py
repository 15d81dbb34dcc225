"""The log of messages that a group has received and not yet done (H03 of docs/conformance.md); high-water marks.

Both are written in a transaction before the effect's: the sender must see which messages have arrived, also while a
worker has them. A row of the log has a lease (a worker has the message), or waits for its retry, or is dead. It is
deleted when the message is done. The lease only saves work: `inbox` decides whether a message is done.

    C2   `receive`    one transaction: rows with our lease, marks, and the holder of each message
    E1   `fail`       one transaction: the lease given back, the time until which the row blocks a resend, dead letters

A row has the place at which its message was first received; a retry that takes it over changes only the lease.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite

from rmq_store.lazy.dataclasses import dataclass
from rmq_store.reliable.database import manual_list
from rmq_store.reliable.database.inserting import chunks, inserted_ids
from rmq_store.reliable.database.leases import horizon_ms
from rmq_store.reliable.database.tables import MESSAGE_ID_CHARACTERS_MAX, VOID, Tables
from rmq_store.reliable.inbox import inbox

RETRY_TOPIC_PREFIX: Final = "%RETRY%"

UNCLEAR: Final = (
    "a worker of an older version has done a message with its OUTBOX_ID, which was copied from another message: "
    "perhaps this one"
)

Queue = tuple[str, str, int]
"""Broker name, topic, queue id."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """One delivery of a message. `topic`, `queue_id`, `queue_offset`: the place of the delivered message; for a retry
    this is in the retry topic.

    `retry_ms`: the wait before its next delivery if this one fails. `is_last`: if this one fails, the message is dead.
    `fingerprint`: tells it from another message with its id; None: unknown. `copied_id`: the OUTBOX_ID of the message
    that it was made of, by which workers of version 1 know it.
    """

    message_id: str
    broker_name: str
    topic: str
    queue_id: int
    queue_offset: int
    reconsume_times: int
    retry_ms: int
    is_last: bool
    fingerprint: str | None = None
    copied_id: str | None = None

    def under_its_own_id(self) -> Receipt:
        """The same delivery under an id of the message's own, made of its id and its fingerprint: the id that it has is
        another message's.
        """
        return replace(self, message_id=own_id(self.message_id, self.fingerprint))

    @property
    def place(self) -> str:
        """The place of the delivered message, for people."""
        return f"offset {self.queue_offset} of queue {self.queue_id} of {self.topic} ({self.broker_name})"

    @property
    def is_first_delivery(self) -> bool:
        """True if it counts for the high-water mark: it is neither a retry, nor was it delivered before."""
        return self.reconsume_times == 0 and not self.topic.startswith(RETRY_TOPIC_PREFIX)

    @property
    def queue(self) -> Queue:
        """The queue that holds the delivered message."""
        return self.broker_name, self.topic, self.queue_id


def own_id(message_id: str, fingerprint: str | None) -> str:
    """The id of a message that has the id of another one."""
    own = f"{message_id}#{fingerprint}"
    if len(own) <= MESSAGE_ID_CHARACTERS_MAX:
        return own
    return f"{hashlib.blake2b(message_id.encode(), digest_size=16).hexdigest()}#{fingerprint}"


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
    receipts: Sequence[Receipt],
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
    rows = {receipt.message_id: _log_row(group, receipt, token, now_ms, until_ms) for receipt in receipts}
    there = rows.keys() - inserted_ids(connection, tables.log, list(rows.values()), token)
    for ids in chunks(sorted(there)):
        found.took_over |= _take_over(connection, tables, group, ids, token=token, now_ms=now_ms, lease_ms=lease_ms)
    # No row: it went after our INSERT found it, and before this transaction could see why.
    holders: dict[str, tuple[str | None, int]] = dict.fromkeys(rows, (None, now_ms))
    fingerprints = {receipt.message_id: receipt.fingerprint for receipt in receipts}
    copied = {receipt.message_id: receipt.copied_id for receipt in receipts if receipt.copied_id is not None}
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
    receipts: Sequence[Receipt],
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
    ids = [receipt.message_id for receipt in receipts]
    done = inbox.done_ids(connection, tables, group, ids)
    if done:
        done -= inbox.others(connection, tables, group, {each.message_id: each.fingerprint for each in receipts})
    delete(connection, tables, group, done)
    steps: dict[tuple[int, bool], list[str]] = {}
    for receipt in receipts:
        if receipt.message_id not in done:
            steps.setdefault((receipt.retry_ms, receipt.is_last), []).append(receipt.message_id)
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


def write_marks(connection: sa.Connection, tables: Tables, group: str, marks: Mapping[Queue, int]) -> None:
    """Raise the high-water marks of queues; a smaller value changes nothing. Two processes may do so at the same time.
    """
    if not marks:
        return
    high_water = tables.high_water
    rows = [
        {"group_name": group, "broker_name": broker, "topic": topic, "queue_id": queue_id, "queue_offset": offset}
        for (broker, topic, queue_id), offset in sorted(marks.items())
    ]
    dialect = connection.dialect.name
    if dialect in ("mysql", "mariadb"):
        new = mysql.insert(high_water)
        larger = sa.func.greatest(high_water.c.queue_offset, new.inserted.queue_offset)
        connection.execute(new.on_duplicate_key_update(queue_offset=larger), rows)
        return
    insert = (sqlite if dialect == "sqlite" else postgresql).insert(high_water)
    connection.execute(
        insert.on_conflict_do_update(
            index_elements=list(high_water.primary_key),
            set_={"queue_offset": insert.excluded.queue_offset},
            where=high_water.c.queue_offset < insert.excluded.queue_offset,
        ),
        rows,
    )


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


def _log_row(group: str, receipt: Receipt, token: str, now_ms: int, until_ms: int) -> dict[str, object]:
    return {
        "group_name": group,
        "message_id": receipt.message_id,
        "broker_name": receipt.broker_name,
        "topic": receipt.topic,
        "queue_id": receipt.queue_id,
        "queue_offset": receipt.queue_offset,
        "received_ms": now_ms,
        "reconsume_times": receipt.reconsume_times,
        "lease_token": token,
        "lease_until_ms": until_ms,
        "blocks_until_ms": 0,
        "is_dead": False,
    }
