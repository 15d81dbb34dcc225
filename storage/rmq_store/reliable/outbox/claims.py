"""Claims: each gives one sender the right to send some stubs, until a time.

A claim is a token, a time at which it ends, and a count that goes up when it is taken: a message that kills its sender
is not sent for ever. Claimers take the row of `relay` first, so no two of them see half of each other's work, and their
transaction ends before anything is sent. Senders that have written a stub themselves were born with its claim.

    nobody sends                                   resend_ms of what is not sent    claim_token, claim_until_ms
    somebody sends for the first time, until T     T                                token, T
    that failed, again from T on                   T                                null, 0

So a first send that must wait, for whatever reason, has its resend_ms in the future, and one index finds all of them. A
time further off than any wait was written by a clock that had jumped, and does not count.

A sharding key is claimed from its oldest unsent row on, up to the first that must wait. One that is on the manual list
waits for people, and so does its key; void and confirmed ones hold up nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import sqlalchemy as sa

from rmq_store.errors import UsageError
from rmq_store.reliable.database import manual_list
from rmq_store.reliable.database.leases import horizon_ms, new_token
from rmq_store.reliable.database.new_rows import insert_new
from rmq_store.reliable.database.tables import UNCONFIRMED, Tables
from rmq_store.reliable.outbox.backoff import WAIT_MS_MAX, ResendBackoff
from rmq_store.reliable.outbox.sending import Claimed
from rmq_store.reliable.outbox.stub import message_of

CLAIM_BYTES_MAX: Final = 16 << 20
KEYS_PER_STATEMENT: Final = 500
SUSPECT_COUNT: Final = 2
"""What has been claimed so often, by senders that never told its outcome, may have killed them. It is claimed alone,
so that the counts of others do not go up with its own."""

_TURN: Final = "claim"


@dataclass(frozen=True, slots=True)
class SendingRules:
    """Settings that all senders of a database share: how long a claim lasts, how often a message is sent, and its
    waits.

    Raises:
        UsageError: a lease or a count that cannot be.
    """

    lease_ms: int = 30_000
    max_send_count: int = 16
    backoff: ResendBackoff = field(default_factory=ResendBackoff)

    def __post_init__(self) -> None:
        if not 0 < self.lease_ms <= WAIT_MS_MAX:
            raise UsageError(f"lease_ms={self.lease_ms}: 1 ms to 24 h")
        if self.max_send_count < 1:
            raise UsageError(f"max_send_count={self.max_send_count}: at least 1")

    def last_wait_ms(self, now_ms: int) -> int:
        """The latest time until which a claim, or a first send that failed, can wait."""
        return horizon_ms(now_ms, max(self.lease_ms, self.backoff.max_retry_ms))


@dataclass(frozen=True, slots=True)
class Claim:
    """The stubs that a claimer got. `at_maximum`: ids that went to the manual list instead. `is_full`: there may be
    more.
    """

    claimed: Sequence[Claimed]
    at_maximum: Sequence[str]
    is_full: bool


def claim_first_sends(
    connection: sa.Connection,
    tables: Tables,
    rules: SendingRules,
    now_ms: int,
    limit: int,
    without_topics: Collection[str] = (),
) -> Claim:
    """Claim up to `limit` messages that no broker has, in a short transaction of the caller's. A message that was sent
    as often as is allowed goes to the manual list.
    """
    take_turn(connection, tables)
    stub = tables.stub
    found, is_all = _find_first_sends(connection, tables, rules, now_ms, limit, without_topics)
    spent, taken = _one_page(found, rules)
    is_free = sa.and_(_is_unsent(tables), _may_be_sent(tables, rules, now_ms))
    at_maximum = _flag(connection, tables, [_given_up(row, now_ms) for row in spent], is_free)
    until_ms = now_ms + rules.lease_ms
    claimed = _claim(connection, tables, [row.seq for row in taken], is_free, until_ms, {stub.c.resend_ms: until_ms})
    claimed = _in_order(connection, tables, taken, claimed, now_ms)
    return Claim(claimed, at_maximum, not is_all or len(taken) + len(spent) < len(found))


def _in_order(
    connection: sa.Connection, tables: Tables, taken: Sequence[sa.Row[Any]], claimed: list[Claimed], now_ms: int
) -> list[Claimed]:
    """What of `claimed` may be sent. The sender of an older message of a key may have given it back, with a wait, after
    it was looked at and before it was claimed; what is behind that one is given back, too.
    """
    got = {each.seq for each in claimed}
    if len(got) == len(taken):
        return claimed
    first_missing: dict[tuple[str, str], int] = {}
    for row in taken:
        if row.sharding_key is not None and row.seq not in got:
            first_missing.setdefault((row.topic, row.sharding_key), row.seq)
    behind = {
        each.seq
        for each in claimed
        if each.seq > first_missing.get((each.message.topic, each.message.sharding_key or ""), each.seq)
    }
    if behind:
        stub = tables.stub
        connection.execute(
            stub.update()
            .where(stub.c.seq.in_(sorted(behind)))
            .values(claim_token=None, claim_until_ms=0, resend_ms=now_ms, send_count=stub.c.send_count - 1)
        )
    return [each for each in claimed if each.seq not in behind]


def count_first_sends(connection: sa.Connection, tables: Tables, rules: SendingRules, now_ms: int) -> int:
    """How many messages a claim without a limit would take now, or give up."""
    stub = tables.stub
    first = _first_that_wait(tables, rules, now_ms).subquery("first_that_waits")
    same_key = sa.and_(first.c.topic == stub.c.topic, first.c.sharding_key == stub.c.sharding_key)
    found = (
        sa.select(sa.func.count())
        .select_from(stub.outerjoin(first, same_key))
        .where(
            _is_unsent(tables),
            _may_be_sent(tables, rules, now_ms),
            sa.or_(first.c.seq.is_(None), stub.c.seq < first.c.seq),
        )
    )
    return connection.scalar(found) or 0


def is_anything_unsent(connection: sa.Connection, tables: Tables, rules: SendingRules, now_ms: int) -> bool:
    """Whether a claim is worth its write: False if there is nothing to take."""
    stub = tables.stub
    found = sa.select(stub.c.seq).where(_is_unsent(tables), _may_be_sent(tables, rules, now_ms)).limit(1)
    return connection.scalar(found) is not None


def claim_resends(
    connection: sa.Connection, tables: Tables, rules: SendingRules, seqs: Sequence[int], now_ms: int
) -> list[Claimed]:
    """Claim messages that were looked at before; those that somebody else has had meanwhile are left out."""
    take_turn(connection, tables)
    return _claim(connection, tables, seqs, is_due_again(tables, rules, now_ms), now_ms + rules.lease_ms, {})


def put_on_manual_list(
    connection: sa.Connection,
    tables: Tables,
    rules: SendingRules,
    entries: Sequence[manual_list.ManualEntry],
    now_ms: int,
) -> list[str]:
    """Flag stubs that are due for a resend and still unconfirmed, and list them. Returns the ids of those that were."""
    take_turn(connection, tables)
    return _flag(connection, tables, entries, is_due_again(tables, rules, now_ms))


def take_turn(connection: sa.Connection, tables: Tables) -> None:
    """Wait until no other claimer is in its transaction. The first statement of a claim: what is read behind it, in
    whatever isolation, is at least as new as what the last claimer wrote.
    """
    relay = tables.relay
    count = relay.update().where(relay.c.name == _TURN).values(turns=relay.c.turns + 1)
    if not connection.execute(count).rowcount:
        insert_new(connection, relay, [{"name": _TURN, "turns": 0}])
        connection.execute(count)


def is_due_again(tables: Tables, rules: SendingRules, now_ms: int) -> sa.ColumnElement[bool]:
    """Sent, not confirmed, its resend time past, and nobody sends it now."""
    stub = tables.stub
    return sa.and_(
        stub.c.status == UNCONFIRMED,
        stub.c.is_manual == sa.false(),
        stub.c.sent_ms.is_not(None),
        stub.c.resend_ms <= now_ms,
        sa.or_(stub.c.claim_until_ms <= now_ms, stub.c.claim_until_ms > rules.last_wait_ms(now_ms)),
    )


def count_again(connection: sa.Connection, tables: Tables, rules: SendingRules, now_ms: int) -> int:
    """The clock has been set back since these were sent: their time counts from now. Returns how many there were."""
    stub = tables.stub
    jumped = sa.and_(
        stub.c.status == UNCONFIRMED,
        stub.c.is_manual == sa.false(),
        stub.c.resend_ms > now_ms + rules.backoff.max_wait_ms,
        stub.c.sent_ms > now_ms,
    )
    again_ms = now_ms + rules.backoff.first_wait_ms
    return connection.execute(stub.update().where(jumped).values(sent_ms=now_ms, resend_ms=again_ms)).rowcount


# -- claims ------------------------------------------------------------------------------------------------------------


def _is_unsent(tables: Tables) -> sa.ColumnElement[bool]:
    stub = tables.stub
    return sa.and_(stub.c.sent_ms.is_(None), stub.c.status == UNCONFIRMED, stub.c.is_manual == sa.false())


def _may_be_sent(tables: Tables, rules: SendingRules, now_ms: int) -> sa.ColumnElement[bool]:
    resend_ms = tables.stub.c.resend_ms
    return sa.or_(resend_ms <= now_ms, resend_ms > rules.last_wait_ms(now_ms))


def _find_first_sends(
    connection: sa.Connection,
    tables: Tables,
    rules: SendingRules,
    now_ms: int,
    limit: int,
    without_topics: Collection[str],
) -> tuple[list[sa.Row[Any]], bool]:
    """At most `limit` messages that may be sent for the first time now, oldest first, and whether these are all.

    Each page is read before the keys that wait: who has locked something between two messages of a key has committed
    the older one before, so where the younger one is seen, the older one is seen to wait. No join: databases would sort
    all that is unsent for each page.
    """
    found: list[sa.Row[Any]] = []
    closed: set[tuple[str, str]] = set()
    after = 0
    while True:
        page = connection.execute(_page(tables, rules, now_ms, after, without_topics, closed).limit(limit)).all()
        waiting: dict[tuple[str, str], int] = {}
        if any(row.sharding_key is not None for row in page):
            first = connection.execute(_first_that_wait(tables, rules, now_ms))
            waiting = {(row.topic, row.sharding_key): row.seq for row in first}
        for row in page:
            key = (row.topic, row.sharding_key)
            if waiting.get(key, row.seq) < row.seq:
                closed.add(key)
            else:
                found.append(row)
        is_all = len(page) < limit
        if is_all or len(found) >= limit:
            return found[:limit], is_all and len(found) <= limit
        after = page[-1].seq


def _page(
    tables: Tables,
    rules: SendingRules,
    now_ms: int,
    after: int,
    without_topics: Collection[str],
    without_keys: Collection[tuple[str, str]],
) -> sa.Select[Any]:
    stub = tables.stub
    asked = (
        sa.select(
            stub.c.seq,
            stub.c.message_id,
            stub.c.topic,
            stub.c.sharding_key,
            stub.c.send_count,
            stub.c.claim_token,
            sa.func.length(stub.c.body).label("body_bytes"),
        )
        .where(_is_unsent(tables), _may_be_sent(tables, rules, now_ms), stub.c.seq > after)
        .order_by(stub.c.seq)
    )
    if without_topics:
        asked = asked.where(stub.c.topic.not_in(sorted(without_topics)))
    if without_keys:
        some = sorted(without_keys)[:KEYS_PER_STATEMENT]
        is_other = sa.tuple_(stub.c.topic, stub.c.sharding_key).not_in(some)
        asked = asked.where(sa.or_(stub.c.sharding_key.is_(None), is_other))
    return asked


def _first_that_wait(tables: Tables, rules: SendingRules, now_ms: int) -> sa.Select[Any]:
    """By sharding key, the oldest unsent message that must wait: for its time, for its sender, or for people."""
    stub = tables.stub
    columns = stub.c.topic, stub.c.sharding_key, stub.c.seq
    unsent = sa.and_(stub.c.sent_ms.is_(None), stub.c.status == UNCONFIRMED, stub.c.sharding_key.is_not(None))
    until_ms = rules.last_wait_ms(now_ms)
    for_their_time = sa.select(*columns).where(unsent, stub.c.resend_ms > now_ms, stub.c.resend_ms <= until_ms)
    for_people = sa.select(*columns).where(unsent, stub.c.is_manual == sa.true())
    wait = sa.union_all(for_their_time, for_people).subquery("wait")
    return sa.select(wait.c.topic, wait.c.sharding_key, sa.func.min(wait.c.seq).label("seq")).group_by(
        wait.c.topic, wait.c.sharding_key
    )


def _one_page(found: Sequence[sa.Row[Any]], rules: SendingRules) -> tuple[list[sa.Row[Any]], list[sa.Row[Any]]]:
    """What is given up, and what is claimed: as much as fits in memory, nothing behind what is given up of its key, and
    a suspect alone.
    """
    spent: list[sa.Row[Any]] = []
    taken: list[sa.Row[Any]] = []
    closed: set[tuple[str, str]] = set()
    size = 0
    for row in found:
        if row.sharding_key is not None and (row.topic, row.sharding_key) in closed:
            continue
        if row.send_count >= rules.max_send_count:
            spent.append(row)
            if row.sharding_key is not None:
                closed.add((row.topic, row.sharding_key))
            continue
        # With few sends allowed, a second claim in company could be the last one.
        is_suspect = row.claim_token is not None and row.send_count >= min(SUSPECT_COUNT, rules.max_send_count - 1)
        size += row.body_bytes
        if taken and (is_suspect or size > CLAIM_BYTES_MAX):
            break
        taken.append(row)
        if is_suspect:
            break
    return spent, taken


def _given_up(row: sa.Row[Any], now_ms: int) -> manual_list.ManualEntry:
    detail = f"tried {row.send_count} times, and it is not known that a broker has it"
    if row.sharding_key is not None:
        detail += "; what has the same sharding key waits for it"
    return manual_list.ManualEntry(row.message_id, manual_list.NO_GROUP, manual_list.MAXIMUM, detail, now_ms)


def _flag(
    connection: sa.Connection,
    tables: Tables,
    entries: Sequence[manual_list.ManualEntry],
    is_free: sa.ColumnElement[bool],
) -> list[str]:
    """Flag and list those for which `is_free` holds when their rows are locked; returns their ids."""
    if not entries:
        return []
    stub = tables.stub
    named = stub.c.message_id.in_([entry.message_id for entry in entries])
    ids = set(connection.scalars(sa.select(stub.c.message_id).where(named, is_free).with_for_update()))
    if ids:
        connection.execute(stub.update().where(stub.c.message_id.in_(sorted(ids))).values(is_manual=True))
        manual_list.add_all(connection, tables, [entry for entry in entries if entry.message_id in ids])
    return sorted(ids)


def _claim(
    connection: sa.Connection,
    tables: Tables,
    seqs: Sequence[int],
    is_free: sa.ColumnElement[bool],
    until_ms: int,
    also: Mapping[sa.Column[Any], Any],
) -> list[Claimed]:
    if not seqs:
        return []
    stub, token = tables.stub, new_token()
    connection.execute(
        stub.update()
        .where(stub.c.seq.in_(seqs), is_free)
        .values({"claim_token": token, "claim_until_ms": until_ms, "send_count": stub.c.send_count + 1})
        .values({column.name: value for column, value in also.items()})
    )
    taken = sa.select(stub).where(stub.c.seq.in_(seqs), stub.c.claim_token == token).order_by(stub.c.seq)
    return [
        Claimed(row.seq, row.message_id, message_of(row), row.send_count, token, until_ms)
        for row in connection.execute(taken)
    ]
