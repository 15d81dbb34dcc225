"""The transaction of the effect: inbox rows, the handler, confirmation, deletion of the log rows (C3 to C6)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa

from rmq_store.lazy.dataclasses import dataclass
from rmq_store.reliable.database.tables import Tables
from rmq_store.reliable.database.trouble import mysql_code_of, sqlstate_of
from rmq_store.reliable.inbox import delivery_log, inbox
from rmq_store.reliable.inbox.handler_connection import HandlerRunner
from rmq_store.reliable.inbox.worker_wait import Calls, WorkerWait
from rmq_store.reliable.outbox import stub

if TYPE_CHECKING:
    from rmq_store.reliable.outbox.outbox import Outbox

LOCK_TIMEOUT_S: Final = 5
"""How long a worker that takes over waits for one that hangs in its transaction."""

Handle = Callable[[sa.Connection, Collection[str]], object]
"""Gets the connection, and the ids that are to be done."""


@dataclass(frozen=True, slots=True)
class GroupTables:
    """The tables that have the group's rows. `stubs`: the engine of the stubs; None if they are in the same database.
    """

    group: str
    engine: sa.Engine
    tables: Tables
    stubs: sa.Engine | None = None


class VoidStubsError(Exception):
    """Stubs were voided during the effect; it is rolled back."""

    def __init__(self, message_ids: set[str]) -> None:
        super().__init__(f"void stubs: {len(message_ids)}")
        self.message_ids = message_ids


class BusyError(Exception):
    """A worker whose lease is over is still in its transaction; nothing was done."""


class Effect:
    """Runs the transaction. Safe for threads."""

    def __init__(
        self,
        group_tables: GroupTables,
        handlers: HandlerRunner,
        worker_wait: WorkerWait,
        clock: Callable[[], int],
        outbox: Outbox | None = None,
    ) -> None:
        self._outbox = outbox
        self._worker_wait = worker_wait
        self._group_tables = group_tables
        self._handlers = handlers
        self._clock = clock

    def run(self, fingerprints: inbox.Fingerprints, handle: Handle, *, may_wait: bool) -> tuple[set[str], set[str]]:
        """Do messages in one transaction, durable on return; returns those that were not done before, and those whose
        ids were done as other messages. `handle` may be called several times, `TRIES` at most, each time after a
        rollback. While the database is away it is not called.

        `may_wait` False: the worker has taken over from one that may still be alive, and waits only a moment for its
        transaction.

        Raises (nothing was done then):
            VoidStubsError, BusyError, HoldEndedError.
            Errors of `handle`.
            HandlerTransactionError: the handler may have committed statements itself.
        """
        calls = Calls()

        def counted(connection: sa.Connection, ids: Collection[str]) -> object:
            calls.count += 1
            return handle(connection, ids)

        run = partial(self._run, fingerprints=fingerprints, handle=counted, may_wait=may_wait)
        mine, others, stubs = self._worker_wait.transact(run, calls)
        if self._outbox is not None and stubs:
            # If this process dies here, a relay sends them.
            self._outbox.flush_after_commit(*stubs)
        return mine, others

    def confirm(self, connection: sa.Connection, message_ids: Collection[str], now_ms: int) -> set[str]:
        """Confirm stubs of this database in the caller's transaction; returns the ids of void ones."""
        if self._group_tables.stubs is not None:
            return set()
        return confirm(connection, self._group_tables, message_ids, now_ms)

    def _run(
        self, connection: sa.Connection, fingerprints: inbox.Fingerprints, handle: Handle, may_wait: bool
    ) -> tuple[set[str], set[str], list[stub.Stub]]:
        group, tables = self._group_tables.group, self._group_tables.tables
        now_ms = self._clock()
        message_ids = set(fingerprints)
        insert = partial(inbox.insert_set, connection, tables, group, message_ids, now_ms, fingerprints)
        mine = insert() if may_wait else _within_lock_timeout(connection, insert)
        left = {message_id: fingerprints[message_id] for message_id in message_ids - mine}
        others = inbox.others(connection, tables, group, left)
        stubs: list[stub.Stub] = []
        if mine:
            collecting = contextlib.nullcontext(stubs) if self._outbox is None else self._outbox.collecting(connection)
            with collecting as stubs:
                self._handlers.run(connection, lambda: handle(connection, frozenset(mine)))
        void = self.confirm(connection, message_ids, now_ms) & mine
        if void:
            raise VoidStubsError(void)
        delivery_log.delete(connection, tables, group, message_ids)
        return mine, others, stubs


def confirm(
    connection: sa.Connection, group_tables: GroupTables, message_ids: Collection[str], now_ms: int
) -> set[str]:
    """C5: confirm stubs for the group, in the caller's transaction; returns the ids of void ones."""
    if len(message_ids) == 1:
        (message_id,) = message_ids
        answer = stub.confirm(connection, group_tables.tables, group_tables.group, message_id, now_ms)
        return {message_id} if answer is stub.Confirmation.VOID else set()
    answers = stub.confirm_all(connection, group_tables.tables, group_tables.group, message_ids, now_ms)
    return {message_id for message_id, answer in answers.items() if answer is stub.Confirmation.VOID}


def _within_lock_timeout(connection: sa.Connection, insert: Callable[[], set[str]]) -> set[str]:
    """The insert, which waits only so long for a transaction that has the same key."""
    dialect = connection.dialect.name
    if dialect == "postgresql":
        before: Any = connection.scalar(sa.text("SELECT current_setting('lock_timeout')"))
        set_timeout = sa.text("SELECT set_config('lock_timeout', :value, true)")
        connection.execute(set_timeout, {"value": f"{LOCK_TIMEOUT_S}s"})
    elif dialect in ("mysql", "mariadb"):
        before = connection.scalar(sa.text("SELECT @@innodb_lock_wait_timeout"))
        set_timeout = sa.text("SET innodb_lock_wait_timeout = :value")
        connection.execute(set_timeout, {"value": LOCK_TIMEOUT_S})
    else:  # in SQLite the transaction itself has waited for the other one
        return insert()
    try:
        found = insert()
    except sa.exc.DBAPIError as error:
        # In PostgreSQL it ends with the transaction, which takes no statement any more.
        if dialect != "postgresql" and not error.connection_invalidated:
            connection.execute(set_timeout, {"value": before})
        if _is_lock_timeout(error):
            raise BusyError from error
        raise
    connection.execute(set_timeout, {"value": before})
    return found


def _is_lock_timeout(error: sa.exc.DBAPIError) -> bool:
    return sqlstate_of(error.orig) == "55P03" or mysql_code_of(error.orig) == 1205
