"""The stubs that may be sent for the first time now: queries of the senders' database, which change nothing.

A stub whose sharding key has an older unsent stub that must wait, waits too.

    first page    the oldest unsent stubs, whatever they wait for                   one statement
    by topics     if most of these must wait: of each topic the stubs without a     some statements for each topic
                  key, and the sharding keys whose oldest stub may be sent

So a search reads what may be sent, and few of the stubs that wait: a million of them may wait behind a key for which
people must decide, or for a topic without brokers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any, Final

import sqlalchemy as sa

from rmq_store.lazy.dataclasses import dataclass
from rmq_store.reliable.database.raw_rows import fault_of, fetch_raw, raw_value
from rmq_store.reliable.database.tables import UNCONFIRMED, Tables
from rmq_store.reliable.outbox.key_heads import by_seq_of_key, find_heads, is_mysql, without_primary_key
from rmq_store.reliable.outbox.sending_rules import SendingRules
from rmq_store.reliable.outbox.stub import as_filter, has_unknown_status, is_open, without_content

KEYS_READ_MAX: Final = 100
"""A search by topics reads further messages of so many sharding keys; of more keys, the oldest message of each."""

PROBE_ROWS: Final = 1


def count_first_sends(connection: sa.Connection, tables: Tables, rules: SendingRules, now_ms: int) -> int:
    """The number of messages that a claim without a limit would take now, or give up. It reads all unsent ones."""
    stub = tables.stub
    first = _first_that_wait(tables, rules, now_ms).subquery("first_that_waits")
    same_key = sa.and_(first.c.topic == stub.c.topic, first.c.sharding_key == stub.c.sharding_key)
    found = (
        sa.select(sa.func.count())
        .select_from(stub.outerjoin(first, same_key))
        .where(
            is_unsent(tables),
            may_be_sent(tables, rules, now_ms),
            sa.or_(first.c.seq.is_(None), stub.c.seq < first.c.seq),
        )
    )
    return connection.scalar(found) or 0


def is_unsent(tables: Tables) -> sa.ColumnElement[bool]:
    """Condition: no broker has the message yet, and it is neither void nor on the manual list."""
    stub = tables.stub
    return sa.and_(stub.c.sent_ms.is_(None), stub.c.status == UNCONFIRMED, stub.c.is_manual == sa.false())


def may_be_sent(tables: Tables, rules: SendingRules, now_ms: int) -> sa.ColumnElement[bool]:
    """Condition: the time of the first send has come, or is beyond any possible wait (the clock had jumped)."""
    resend_ms = tables.stub.c.resend_ms
    return sa.or_(resend_ms <= now_ms, resend_ms > rules.last_wait_ms(now_ms))


def find_first_sends(
    connection: sa.Connection,
    tables: Tables,
    rules: SendingRules,
    now_ms: int,
    limit: int,
    without_topics: Collection[str] = (),
    probed_topics: Collection[str] = (),
) -> tuple[list[sa.Row[Any]], bool]:
    """At most `limit` messages that may be sent for the first time now, by `seq`, none before an older one of its key;
    and whether these are all. `without_topics` are left out. Of `probed_topics`, whose brokers have not answered
    lately, it finds PROBE_ROWS messages each.

    One statement reads all that is needed of a key, oldest message first. A sender that has locked a row between two
    messages of a key has committed the older one before: a statement that sees the younger one sees both. A key that
    waited at the first page is left out to the end: its wait may end in between.
    """
    return _Search(tables, rules, now_ms, limit, without_topics, probed_topics).find(connection)


@dataclass(frozen=True, slots=True)
class _Search:
    tables: Tables
    rules: SendingRules
    now_ms: int
    limit: int
    without_topics: Collection[str]
    probed_topics: Collection[str]

    def find(self, connection: sa.Connection) -> tuple[list[sa.Row[Any]], bool]:
        stub = self.tables.stub
        # In the order of the index (sent_ms, seq); otherwise PostgreSQL goes through sent ones by their numbers.
        by_seq = (stub.c.sent_ms, stub.c.seq) if connection.dialect.name == "postgresql" else (stub.c.seq,)
        page = fetch_raw(connection, self._open().order_by(*by_seq).limit(self.limit))
        ready = _Ready(self)
        ready.take(page)
        if len(page) < self.limit:
            return ready.rows, not ready.is_cut
        if 2 * len(ready.rows) >= self.limit:
            return ready.rows, False
        return self._by_topics(connection, ready.closed)

    def _by_topics(
        self, connection: sa.Connection, closed: Mapping[tuple[Any, Any], int]
    ) -> tuple[list[sa.Row[Any]], bool]:
        plain: list[sa.Row[Any]] = []
        heads: list[sa.Row[Any]] = []
        is_all = True
        for topic in self._topics(connection):
            if topic in self.without_topics:
                continue
            is_probe = topic in self.probed_topics
            limit = PROBE_ROWS if is_probe else self.limit
            some_plain = fetch_raw(connection, self._plain(connection, topic).limit(limit))
            some_heads = list(find_heads(connection, self.tables, topic, self._open(), limit))
            is_all = is_all and max(len(some_plain), len(some_heads)) < limit
            some_heads = [row for row in some_heads if row.seq <= closed.get((row.topic, row.sharding_key), row.seq)]
            if is_probe:
                plain += sorted([*some_plain, *some_heads], key=_seq)[:limit]
            else:
                plain += some_plain
                heads += some_heads
        found = sorted([*plain, *heads], key=_seq)
        if len(found) >= self.limit:
            return found[: self.limit], False
        if len(heads) > KEYS_READ_MAX:
            return found, False
        left = self.limit - len(found)
        for head in heads:
            behind, is_end = self._behind(connection, head, left)
            found += behind
            left -= len(behind)
            is_all = is_all and is_end
            if not left:
                break
        return sorted(found, key=_seq), is_all

    def _behind(self, connection: sa.Connection, head: sa.Row[Any], limit: int) -> tuple[list[sa.Row[Any]], bool]:
        """At most `limit` messages of the key behind its oldest one, and whether nothing else of it may be sent."""
        rows = fetch_raw(connection, self._of_key(connection, head).limit(limit + 1))
        if not rows or rows[0].seq != head.seq:  # somebody else has it meanwhile
            return [], True
        ready = _Ready(self)
        ready.take(rows)
        return ready.rows[1:], len(rows) <= limit or len(ready.rows) < len(rows)

    def _topics(self, connection: sa.Connection) -> Iterator[Any]:
        """The topics of unsent stubs, by one question for each: no database skips from one to the next by itself. None,
        which own tables may allow, is always asked for.
        """
        stub = self.tables.stub
        asked = sa.select(*(column for column in without_content(stub) if column.name == "topic"))
        asked = asked.where(stub.c.sent_ms.is_(None)).order_by(stub.c.topic).limit(1)
        topic: Any = None
        is_after: sa.ColumnElement[bool] = stub.c.topic.is_not(None)
        yield topic
        while rows := fetch_raw(connection, asked.where(is_after)):
            topic = rows[0].topic
            yield topic
            is_after = stub.c.topic > raw_value(topic)

    def _open(self) -> sa.Select[Any]:
        """The unsent stubs, and whether each may be sent as far as it alone is concerned."""
        stub = self.tables.stub
        is_ready = sa.case((self._may_be_sent(), 1), else_=0).label("is_ready")
        asked = sa.select(*without_content(stub), is_ready).where(stub.c.sent_ms.is_(None), is_open(self.tables))
        return without_primary_key(asked, stub)

    def _may_be_sent(self) -> sa.ColumnElement[bool]:
        return sa.and_(is_unsent(self.tables), may_be_sent(self.tables, self.rules, self.now_ms))

    def _plain(self, connection: sa.Connection, topic: Any) -> sa.Select[Any]:
        """The stubs of a topic that may be sent, without sharding keys."""
        stub = self.tables.stub
        asked = self._open().where(
            stub.c.topic == raw_value(topic), stub.c.sharding_key.is_(None), as_filter(self._may_be_sent())
        )
        # These have no order among each other, and MariaDB would go through all unsent stubs for one.
        return asked if is_mysql(connection) else asked.order_by(*by_seq_of_key(connection, stub))

    def _of_key(self, connection: sa.Connection, row: sa.Row[Any]) -> sa.Select[Any]:
        stub = self.tables.stub
        asked = self._open().where(
            stub.c.topic == raw_value(row.topic), stub.c.sharding_key == raw_value(row.sharding_key)
        )
        return asked.order_by(*by_seq_of_key(connection, stub))


@dataclass(slots=True)
class _Ready:
    """Takes what may be sent out of rows that come oldest first. `closed` has the first row that waits, by key.
    `is_cut`: a probe has left some of it out.
    """

    of: _Search
    rows: list[sa.Row[Any]] = field(default_factory=list)
    closed: dict[tuple[Any, Any], int] = field(default_factory=dict)
    probes: Counter[Any] = field(default_factory=Counter)
    is_cut: bool = False

    def take(self, rows: Sequence[sa.Row[Any]]) -> None:
        for row in rows:
            key = (row.topic, row.sharding_key)
            if row.topic in self.of.without_topics:
                continue
            if not row.is_ready:
                self.closed.setdefault(key, row.seq)
            # A row that cannot be read goes to people, and not to a broker, whatever is before it.
            elif row.sharding_key is None or key not in self.closed or fault_of(self.of.tables.stub, row) is not None:
                self._take(row)

    def _take(self, row: sa.Row[Any]) -> None:
        if row.topic in self.of.probed_topics:
            self.probes[row.topic] += 1
            if self.probes[row.topic] > PROBE_ROWS:
                self.is_cut = True
                return
        self.rows.append(row)


def _seq(row: sa.Row[Any]) -> int:
    return int(row.seq)


def _first_that_wait(tables: Tables, rules: SendingRules, now_ms: int) -> sa.Select[Any]:
    """By sharding key, the oldest unsent message that must wait: for its time, for its sender, or for people."""
    stub = tables.stub
    columns = stub.c.topic, stub.c.sharding_key, stub.c.seq
    of_key = sa.and_(stub.c.sent_ms.is_(None), stub.c.sharding_key.is_not(None))
    unsent = sa.and_(of_key, stub.c.status == UNCONFIRMED)
    until_ms = rules.last_wait_ms(now_ms)
    for_their_time = sa.select(*columns).where(unsent, stub.c.resend_ms > now_ms, stub.c.resend_ms <= until_ms)
    for_people = sa.select(*columns).where(unsent, stub.c.is_manual == sa.true())
    for_a_status = sa.select(*columns).where(of_key, has_unknown_status(tables))
    wait = sa.union_all(for_their_time, for_people, for_a_status).subquery("wait")
    return sa.select(wait.c.topic, wait.c.sharding_key, sa.func.min(wait.c.seq).label("seq")).group_by(
        wait.c.topic, wait.c.sharding_key
    )
