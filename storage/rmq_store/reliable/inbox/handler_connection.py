"""The statements that a handler may run on the connection that it is given (C4 of docs/reliable-design.md).

The effect commits with the inbox row, so the transaction belongs to the handler's caller. Three checks enforce that:

    events       SQLAlchemy's commit and rollback, and statements that begin or end a transaction, are refused before
                 they run; on MariaDB and MySQL also DDL and the other statements that commit by themselves
    flag         a refusal counts although the handler catches it
    savepoint    around the handler: its release fails if the transaction was ended behind SQLAlchemy's back, or by
                 the database after an error that the handler hid

Savepoints of the handler's own are allowed: `connection.begin_nested()`, or an ORM session on the connection with
`join_transaction_mode="create_savepoint"`.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from typing import Any, Final, TypeVar

import sqlalchemy as sa

from rmq_store.errors import HandlerTransactionError
from rmq_store.reliable.database.transact import is_transient
from rmq_store.reliable.database.trouble import mysql_code_of, sqlstate_of

T = TypeVar("T")

# Comments that the server does not run, and the begin of those that MariaDB and MySQL do.
_BEFORE_STATEMENT: Final = r"(?:\s+|;|\(|--[^\n]*(?:\n|\Z)|#[^\n]*(?:\n|\Z)|/\*(?!M?!).*?\*/|/\*M?!\d*)*"
_FIRST_WORDS: Final = re.compile(rf"{_BEFORE_STATEMENT}([A-Za-z]+)(?:\s+([A-Za-z_@]+))?", re.DOTALL)
_ROLLBACK_TO: Final = re.compile(
    rf"{_BEFORE_STATEMENT}ROLLBACK\s+(?:WORK\s+|TRANSACTION\s+)?TO\b", re.IGNORECASE | re.DOTALL
)

_ENDS_OR_BEGINS: Final = frozenset({"COMMIT", "ROLLBACK", "BEGIN", "START", "END", "ABORT", "XA"})
# docs: MySQL 8.0 Reference Manual, 13.3.3 Statements That Cause an Implicit Commit; MariaDB has the same list.
_COMMITS_BY_ITSELF: Final = frozenset({
    "ALTER", "ANALYZE", "CACHE", "CHANGE", "CHECK", "CREATE", "DROP", "FLUSH", "GRANT", "INSTALL", "LOCK", "OPTIMIZE",
    "RENAME", "REPAIR", "RESET", "REVOKE", "STOP", "TRUNCATE", "UNINSTALL", "UNLOCK",
})  # fmt: skip
_SETS_AUTOCOMMIT: Final = re.compile(r"\bautocommit\b|\bSET\s+PASSWORD\b", re.IGNORECASE)

_POSTGRESQL_NO_SAVEPOINT = {"3B001", "25P01"}  # invalid savepoint, no active transaction
_POSTGRESQL_FAILED = "25P02"  # a transaction in which a statement has failed takes no more
_MYSQL_NO_SAVEPOINT = 1305


class TransactionEndedError(HandlerTransactionError):
    """It was found when the transaction was gone; nobody knows what was committed."""


class HandlerRunner:
    """Calls handlers on connections of one engine, whose events it listens to until `close`. Safe for threads."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        # Listeners are for the whole engine and stay, because adding them per call would not be safe for threads.
        self._watches: dict[sa.Connection, _Watch] = {}
        self._listeners: tuple[tuple[str, Callable[..., None]], ...] = (
            ("commit", self._on_commit),
            ("rollback", self._on_rollback),
            ("before_cursor_execute", self._on_execute),
            ("handle_error", self._on_error),
        )
        call: Callable[..., None]
        for name, call in self._listeners:
            sa.event.listen(engine, name, call)

    def close(self) -> None:
        """Listen no more; nothing runs then."""
        call: Callable[..., None]
        for name, call in self._listeners:
            sa.event.remove(self._engine, name, call)

    def run(self, connection: sa.Connection, call: Callable[[], T]) -> T:
        """Call a handler that writes through `connection`, inside a savepoint; nothing is durable on return.

        Raises:
            TransactionEndedError: it ended the transaction. The connection is closed.
            HandlerTransactionError: it tried to, and was refused. The connection is closed, and so is rolled back.
            what the handler raises; the caller rolls back. If the database ended the transaction (a deadlock in MariaDB
                and MySQL), its error, also if the handler or a savepoint hid it.
        """
        try:
            return self._run(connection, call)
        except HandlerTransactionError:
            # SQLAlchemy takes a commit that was refused for one that failed, and would roll back no more.
            connection.invalidate()
            raise

    def _run(self, connection: sa.Connection, call: Callable[[], T]) -> T:
        # Neither a context manager nor a rollback to the savepoint: after a deadlock both raise "no such savepoint".
        savepoint = connection.begin_nested()
        watch = _Watch()
        self._watches[connection] = watch
        try:
            result = call()
        except Exception as error:
            watch.check()
            if watch.ending is not None and (_says_no_savepoint(error) or _says_failed(error)):
                raise watch.ending from error
            raise
        finally:
            self._watches.pop(connection, None)
        watch.check()
        try:
            savepoint.commit()
        except (sa.exc.DBAPIError, sa.exc.InvalidRequestError) as error:
            if watch.ending is not None and (_says_no_savepoint(error) or _says_failed(error)):
                raise watch.ending from error
            if not _says_no_savepoint(error):
                raise
            raise TransactionEndedError(
                "the handler ended the transaction that it was called in, by a way around its connection. What it has "
                "written may be committed"
            ) from error
        return result

    def _on_commit(self, connection: sa.Connection) -> None:
        if watch := self._watches.get(connection):
            watch.refuse("a commit")

    def _on_rollback(self, connection: sa.Connection) -> None:
        if watch := self._watches.get(connection):
            watch.refuse("a rollback, or the end of the connection")

    def _on_execute(
        self, connection: sa.Connection, cursor: Any, statement: str, parameters: Any, context: Any, many: bool
    ) -> None:
        if watch := self._watches.get(connection):
            words = refused_statement(statement, connection.dialect.name)
            if words is not None:
                watch.refuse(f"the statement {words}")

    def _on_error(self, context: sa.engine.ExceptionContext) -> None:
        error = context.sqlalchemy_exception
        if context.connection is None or not isinstance(error, sa.exc.DBAPIError) or not is_transient(error):
            return
        if watch := self._watches.get(context.connection):
            watch.ending = error


def refused_statement(statement: str, dialect: str) -> str | None:
    """The words by which a statement ends or begins a transaction, or commits by itself; None if it may run."""
    found = _FIRST_WORDS.match(statement)
    if found is None:
        return None
    first, second = found[1].upper(), (found[2] or "").upper()
    if first == "ROLLBACK" and _ROLLBACK_TO.match(statement):
        return None
    if first in _ENDS_OR_BEGINS or (first, second) == ("PREPARE", "TRANSACTION"):
        return f"{first} {second}".strip()
    if dialect in ("mysql", "mariadb"):
        # Tables of one session do not commit.
        if first in ("CREATE", "DROP") and second == "TEMPORARY":
            return None
        if first in _COMMITS_BY_ITSELF or (first, second) == ("LOAD", "INDEX"):
            return f"{first} {second}".strip()
        if first == "SET" and _SETS_AUTOCOMMIT.search(statement):
            return f"{first} {second}".strip()
    return None


class _Watch:
    """Events while a handler ran. `ending`: an error by which the database may have ended its transaction."""

    def __init__(self) -> None:
        self.ending: sa.exc.DBAPIError | None = None
        self._refused: str | None = None

    def refuse(self, what: str) -> None:
        """Raise before it happens."""
        self._refused = (
            f"the handler called for {what}, but the transaction is its caller's: it commits together with the row "
            "that says that the message is done. Write, and return"
        )
        raise HandlerTransactionError(self._refused)

    def check(self) -> None:
        """Raise what was refused, whether the handler let it pass or not."""
        if self._refused is not None:
            raise HandlerTransactionError(self._refused)


def _says_no_savepoint(error: Exception) -> bool:
    if not isinstance(error, sa.exc.DBAPIError):
        return True  # SQLAlchemy knows itself that its transaction is over
    original: Any = error.orig
    if isinstance(original, sqlite3.Error):
        return "no such savepoint" in str(original)
    return sqlstate_of(original) in _POSTGRESQL_NO_SAVEPOINT or mysql_code_of(original) == _MYSQL_NO_SAVEPOINT


def _says_failed(error: Exception) -> bool:
    return isinstance(error, sa.exc.DBAPIError) and sqlstate_of(error.orig) == _POSTGRESQL_FAILED
