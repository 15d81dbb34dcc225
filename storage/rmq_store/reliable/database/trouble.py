"""The meaning of an error of a database: one table for every driver, from the databases' own lists of codes.

    CONFLICT               two transactions met: deadlock, lock timeout, serialization; the same one may succeed at once
    POOL_FULL              every connection of the pool is in use
    AWAY                   nobody can use, or write, this database now: lost, refused, starting, full, read-only
    READ_ONLY_TRANSACTION  the transaction may not write. AWAY if a fresh connection may not write either; otherwise the
                           connection was of an earlier time, or the application made its own transaction read-only

Sources: PostgreSQL, Appendix A (Error Codes); MySQL Server and Client Error Message Reference; MariaDB Error Code
Reference; SQLite, Result Codes; PgBouncer and ProxySQL give codes of the databases, and some of their own.
"""

from __future__ import annotations

import re
import sqlite3
from enum import StrEnum
from typing import Any, Final

import sqlalchemy as sa


class Trouble(StrEnum):
    """The kinds of errors that pass by themselves."""

    CONFLICT = "conflict"
    POOL_FULL = "pool_full"
    AWAY = "away"
    READ_ONLY_TRANSACTION = "read_only_transaction"


# Serialization failure, deadlock, lock not available.
_SQLSTATE_CONFLICT: Final = frozenset({"40001", "40P01", "55P03"})
# Classes: connection exception (PgBouncer's own errors, too); insufficient resources: disk full, out of memory, too
# many connections.
_SQLSTATE_CLASSES_AWAY: Final = ("08", "53")
# Shutdown by the administrator, after a crash, at its start or in recovery; a session that was idle for too long; a
# commit whose outcome is unknown.
_SQLSTATE_AWAY: Final = frozenset({"57P01", "57P02", "57P03", "57P05", "40003"})
# Wrong password or user, no such database (it is being restored, or its password was changed).
_SQLSTATE_NO_ENTRY: Final = frozenset({"28000", "28P01", "3D000", "57P04"})
_SQLSTATE_READ_ONLY_TRANSACTION: Final = "25006"

# Lock wait timeout, deadlock, "record has changed since last read" (innodb_snapshot_isolation), NOWAIT, the lock table
# is full, rolled back by group replication.
_MYSQL_CONFLICT: Final = frozenset({1205, 1213, 1020, 3572, 1206, 3101})
_MYSQL_AWAY: Final = frozenset({
    # Of the client: cannot connect, lost, the server has gone away or breaks off.
    2002, 2003, 2006, 2012, 2013, 2055,
    # Connections: too many, of a user or of all; no thread for one; this host is blocked; killed; idle for too long.
    1040, 1203, 1226, 1135, 1129, 1927, 3169, 4031,
    # Of the network, as the server sees it.
    1152, 1154, 1155, 1156, 1157, 1158, 1159, 1160, 1161, 1184,
    # A shutdown; offline mode; a service that is not available; a member that has left its group.
    1053, 1077, 1078, 1079, 3032, 3168, 3100,
    # Disk or table full, out of memory.
    1021, 1114, 1037, 1038, 1041,
    # In read-only mode: of the whole server, of InnoDB.
    1836, 1874,
    # ProxySQL has reached no server in time.
    9001,
})  # fmt: skip
# These mean something else, too, so their text decides.
_MYSQL_AWAY_BY_TEXT: Final = {
    1290: ("read-only", "read_only"),  # "running with the --read-only option", of many options
    1047: ("wsrep",),  # "WSREP has not yet prepared node for application use"
    1030: ("error 28", "no space"),  # from the storage engine
    1026: ("errno: 28", "errcode: 28", "no space"),  # a file cannot be written
    3: ("errno: 28", "errcode: 28", "no space"),
}
_MYSQL_NO_ENTRY: Final = frozenset({1045, 1049, 1698})
_MYSQL_READ_ONLY_TRANSACTION: Final = 1792
_MYSQL_DUPLICATE: Final = 1062
# The first place with brackets in an answer of PostgreSQL in any language; in MySQL's the last words, behind the value.
_KEYS: Final = (
    re.compile(r"\(([A-Za-z_]\w*)\)=\("),
    re.compile(r"UNIQUE constraint failed: ([\w.]+)\Z"),
    re.compile(r"for key '([^']+)'[^']*\Z"),
)

_SQLITE_CONFLICT: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL})
_SQLITE_AWAY: Final = frozenset({
    sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN,
})  # fmt: skip

_DRIVERS_OF_LIBPQ: Final = ("psycopg", "psycopg2")


def trouble_of(error: BaseException) -> Trouble | None:
    """The kind of an error, of SQLAlchemy or of a driver; None: waiting cannot help."""
    if isinstance(error, sa.exc.TimeoutError):
        return Trouble.POOL_FULL
    is_wrapped = isinstance(error, sa.exc.DBAPIError)
    if isinstance(error, sa.exc.DBAPIError) and error.connection_invalidated:
        return Trouble.AWAY
    original: Any = error.orig if isinstance(error, sa.exc.DBAPIError) else error
    if isinstance(original, sqlite3.Error):
        return _of_sqlite(original)
    # Nothing was executed: there was no connection to do it.
    is_connecting = isinstance(error, sa.exc.DBAPIError) and error.statement is None
    if (code := mysql_code_of(original)) is not None:
        return _of_mysql(code, original, is_connecting=is_connecting)
    if (state := sqlstate_of(original)) is not None:
        return _of_sqlstate(state, is_connecting=is_connecting)
    # libpq could not connect. There is no code, because no server has answered.
    is_operational = type(original).__name__ in ("OperationalError", "ConnectionTimeout")
    if is_wrapped and is_operational and type(original).__module__.partition(".")[0] in _DRIVERS_OF_LIBPQ:
        return Trouble.AWAY
    return None


def sqlstate_of(original: object) -> str | None:
    """The SQLSTATE of an error of a driver for PostgreSQL (psycopg2 has its own name for it). PyMySQL gives one, too,
    that says less than its number.
    """
    if mysql_code_of(original) is not None:
        return None
    state = getattr(original, "sqlstate", None) or getattr(original, "pgcode", None)
    return state if isinstance(state, str) else None


def mysql_code_of(original: object) -> int | None:
    """The number of an error of a driver for MariaDB and MySQL."""
    arguments: tuple[Any, ...] = getattr(original, "args", ())
    is_number = bool(arguments) and isinstance(arguments[0], int) and not isinstance(original, OSError)
    return arguments[0] if is_number else None


def is_duplicate(error: sa.exc.IntegrityError) -> bool:
    """True if a row with this key existed. Other violations (NOT NULL, foreign keys) are no duplicates."""
    original: Any = error.orig
    if isinstance(original, sqlite3.IntegrityError):
        return original.sqlite_errorcode in (sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY, sqlite3.SQLITE_CONSTRAINT_UNIQUE)
    return sqlstate_of(original) == "23505" or mysql_code_of(original) == _MYSQL_DUPLICATE


def duplicate_key(error: sa.exc.IntegrityError) -> str:
    """Of an error for which `is_duplicate` is true the column of the key that a row had, as far as the driver says it:
    PostgreSQL and SQLite name columns, MariaDB and MySQL the index, which is "PRIMARY" for a primary key. Else "".
    """
    found = next((found for pattern in _KEYS if (found := pattern.search(str(error.orig))) is not None), None)
    return "" if found is None else found[1].rpartition(".")[2]


def _of_sqlite(original: sqlite3.Error) -> Trouble | None:
    code = getattr(original, "sqlite_errorcode", 0) & 0xFF
    if code in _SQLITE_CONFLICT:
        return Trouble.CONFLICT
    return Trouble.AWAY if code in _SQLITE_AWAY else None


def _of_sqlstate(state: str, *, is_connecting: bool) -> Trouble | None:
    if state in _SQLSTATE_CONFLICT:
        return Trouble.CONFLICT
    if state == _SQLSTATE_READ_ONLY_TRANSACTION:
        return Trouble.READ_ONLY_TRANSACTION
    if state in _SQLSTATE_AWAY or state.startswith(_SQLSTATE_CLASSES_AWAY):
        return Trouble.AWAY
    return Trouble.AWAY if is_connecting and state in _SQLSTATE_NO_ENTRY else None


def _of_mysql(code: int, original: BaseException, *, is_connecting: bool) -> Trouble | None:
    if code in _MYSQL_CONFLICT:
        return Trouble.CONFLICT
    if code == _MYSQL_READ_ONLY_TRANSACTION:
        return Trouble.READ_ONLY_TRANSACTION
    texts = _MYSQL_AWAY_BY_TEXT.get(code, ())
    if code in _MYSQL_AWAY or any(text in str(original).lower() for text in texts):
        return Trouble.AWAY
    return Trouble.AWAY if is_connecting and code in _MYSQL_NO_ENTRY else None
