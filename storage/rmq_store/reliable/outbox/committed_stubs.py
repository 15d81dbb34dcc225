"""Stubs that a process may send right after a commit: they were really committed, are still its own, and their sharding
key has no older unsent stub.

The answer of a commit may have been lost, a savepoint may have been rolled back, and a long transaction may have
outlived the claim with which its stubs were inserted. Only the table knows.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import field

import sqlalchemy as sa

from rmq_store.lazy.dataclasses import dataclass
from rmq_store.reliable.database.tables import UNCONFIRMED, Tables
from rmq_store.reliable.database.transact import read, transact
from rmq_store.reliable.outbox.sending import Claimed
from rmq_store.reliable.outbox.sent_marks import SentMarks
from rmq_store.reliable.outbox.stub import Stub, is_open

_Key = tuple[str, str]


@dataclass(slots=True)
class Committed:
    """`ready` to be sent now, `held_back` by an older message of their key; `left` has the reasons for the others."""

    ready: list[Claimed] = field(default_factory=list)
    held_back: list[Claimed] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, stubs: Sequence[Stub], there: Collection[str]) -> Committed:
        """The result if just these ids are committed, claimed by this process long enough, and without keys."""
        found = cls()
        for stub in stubs:
            if stub.message_id in there:
                found.ready.append(_claimed(stub, stub.claim_until_ms))
            else:
                found.left[stub.message_id] = "its stub is not there: a savepoint was rolled back"
        return found


def look(
    engine: sa.Engine,
    tables: Tables,
    stubs: Sequence[Stub],
    marks: SentMarks,
    *,
    now_ms: int,
    lease_ms: int,
) -> Committed:
    """Check stubs of this process in the order in which they are to be sent; renews claims that are half over. One
    statement for the stubs, and one for each sharding key.
    """
    renewed_ms = 0
    if any(stub.claim_until_ms - now_ms < lease_ms // 2 for stub in stubs):
        renewed_ms = now_ms + lease_ms
        transact(engine, lambda connection: _renew(connection, tables, stubs, renewed_ms))
    claims, oldest = read(engine, lambda connection: _facts(connection, tables, stubs, marks))
    found = Committed()
    for stub in stubs:
        if stub.message_id not in claims:
            found.left[stub.message_id] = (
                "its stub is not there (rolled back, or not committed), or somebody else sends it"
            )
            continue
        claimed = _claimed(stub, claims[stub.message_id])
        if oldest.get(_key_of(stub), stub.seq) < stub.seq:
            found.left[stub.message_id] = "an older message of its sharding key is not sent yet"
            found.held_back.append(claimed)
        else:
            found.ready.append(claimed)
    return found


def _is_ours(tables: Tables, stubs: Sequence[Stub]) -> sa.ColumnElement[bool]:
    stub = tables.stub
    return sa.and_(
        # Not by number: one that was rolled back is given again.
        stub.c.message_id.in_([each.message_id for each in stubs]),
        stub.c.claim_token.in_(sorted({each.claim_token or "" for each in stubs})),
        stub.c.status == UNCONFIRMED,
        stub.c.sent_ms.is_(None),
    )


def _renew(connection: sa.Connection, tables: Tables, stubs: Sequence[Stub], until_ms: int) -> None:
    connection.execute(
        tables.stub.update().where(_is_ours(tables, stubs)).values(claim_until_ms=until_ms, resend_ms=until_ms)
    )


def _facts(
    connection: sa.Connection, tables: Tables, stubs: Sequence[Stub], marks: SentMarks
) -> tuple[dict[str, int], dict[_Key, int]]:
    """Until when each id is claimed by us, and the oldest unsent message of each key that is not among them."""
    stub = tables.stub
    asked = sa.select(stub.c.message_id, stub.c.claim_until_ms).where(_is_ours(tables, stubs))
    claims = {row.message_id: row.claim_until_ms for row in connection.execute(asked)}
    ours = {each.seq for each in stubs if each.message_id in claims}
    keys = sorted({_key_of(each) for each in stubs if each.message.sharding_key})
    return claims, {
        key: oldest for key in keys if (oldest := _oldest_other(connection, tables, key, ours, marks)) is not None
    }


def _oldest_other(
    connection: sa.Connection, tables: Tables, key: _Key, ours: Collection[int], marks: SentMarks
) -> int | None:
    stub = tables.stub
    topic, sharding_key = key
    # Among so many rows of a key is one that this process has not sent, if there is any and it sends nothing now.
    enough = marks.waiting_count() + len(ours) + 1
    unsent = (
        sa.select(stub.c.seq)
        .where(
            stub.c.topic == topic,
            stub.c.sharding_key == sharding_key,
            stub.c.sent_ms.is_(None),
            is_open(tables),
        )
        .order_by(stub.c.seq)
        .limit(enough)
    )
    seqs = list(connection.scalars(unsent))
    others = [seq for seq in seqs if seq not in ours and not marks.was_sent(seq)]
    if others:
        return int(others[0])
    return int(seqs[0]) - 1 if len(seqs) == enough else None


def _claimed(stub: Stub, until_ms: int) -> Claimed:
    return Claimed(stub.seq, stub.message_id, stub.message, 1, stub.claim_token or "", until_ms)


def _key_of(stub: Stub) -> _Key:
    return stub.message.topic, stub.message.sharding_key or ""
