"""Rows of consumers' databases about some messages: log, inbox and high water of their groups. Reads without locks.

One page of messages takes three statements in each database, whatever the page has.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

import sqlalchemy as sa

from rmq_store.lazy.dataclasses import dataclass
from rmq_store.reliable.database.raw_rows import fault_of, fetch_raw, raw_columns, shown
from rmq_store.reliable.database.tables import Tables
from rmq_store.reliable.database.transact import read
from rmq_store.reliable.relay.inboxes import Inboxes
from rmq_store.reliable.relay.resend_rule import LogState

# No others: workers of an older version may have made the table.
_OF_INBOX: Final = ("group_name", "message_id", "done_ms")
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LogRow(LogState):
    """A message that a group has received and not done. `received_ms`: ms since 1970."""

    received_ms: int
    reconsume_times: int


class GroupRows:
    """`logs` and `done` ({...: ms since 1970}) by (group, message id); `marks`, the high water, by (group, broker,
    topic, queue id). `unreachable`: groups whose database did not answer. `unreadable`: (group, message id) of which a
    row cannot be read; nobody can tell what the group has done.
    """

    def __init__(self) -> None:
        self.logs: dict[tuple[str, str], LogRow] = {}
        self.done: dict[tuple[str, str], int] = {}
        self.marks: dict[tuple[str, str, str, int], int] = {}
        self.unreachable: set[str] = set()
        self.unreadable: set[tuple[str, str]] = set()

    def read_all(
        self,
        inboxes: Inboxes,
        tables: Tables,
        groups: Iterable[str],
        ids: Sequence[str],
        topics: Sequence[str],
        on_error: Callable[[Sequence[str], sa.exc.SQLAlchemyError], None],
    ) -> None:
        """Add rows from the groups' databases. `on_error` gets groups that cannot be read, and may raise."""
        groups_at: dict[sa.Engine, set[str]] = {}
        for group in sorted(groups):
            groups_at.setdefault(inboxes.of(group), set()).add(group)
        for engine, names in groups_at.items():
            try:
                read(engine, partial(self.add, tables=tables, groups=sorted(names), ids=ids, topics=topics))
            except sa.exc.SQLAlchemyError as error:
                on_error(sorted(names), error)
                self.unreachable |= names

    def add(
        self,
        connection: sa.Connection,
        *,
        tables: Tables,
        groups: Sequence[str],
        ids: Sequence[str],
        topics: Sequence[str],
    ) -> None:
        """Add the rows of one database about the groups, and the messages `ids` in `topics`."""
        log, inbox, mark = tables.log, tables.inbox, tables.high_water
        logs = sa.select(*raw_columns(log)).where(log.c.group_name.in_(groups), log.c.message_id.in_(ids))
        for row in fetch_raw(connection, logs):
            if (fault := fault_of(log, row)) is not None:
                self.unreadable.add((row.group_name, row.message_id))
                _LOG.warning(
                    "%s: the row of %s and group %s cannot be read, and the message waits: %s",
                    log.name, shown(row.message_id), row.group_name, fault,
                )  # fmt: skip
                continue
            lease_ms = row.lease_until_ms if row.lease_token is not None else 0
            found = LogRow(lease_ms, row.blocks_until_ms, bool(row.is_dead), row.received_ms, row.reconsume_times)
            self.logs[row.group_name, row.message_id] = found
        marks = sa.select(*raw_columns(mark)).where(mark.c.group_name.in_(groups), mark.c.topic.in_(topics))
        for row in fetch_raw(connection, marks):
            if (fault := fault_of(mark, row)) is not None:  # without a mark its messages wait
                _LOG.warning("%s: a row of group %s cannot be read: %s", mark.name, row.group_name, fault)
                continue
            self.marks[row.group_name, row.broker_name, row.topic, row.queue_id] = row.queue_offset
        # Last: a message that is done between these reads is then seen as done, and not as one without a log row.
        columns = raw_columns(inbox, without=[each.name for each in inbox.columns if each.name not in _OF_INBOX])
        done = sa.select(*columns).where(inbox.c.group_name.in_(groups), inbox.c.message_id.in_(ids))
        for row in fetch_raw(connection, done):
            # The row alone says that it is done, whatever its time.
            self.done[row.group_name, row.message_id] = row.done_ms if isinstance(row.done_ms, int) else 0
