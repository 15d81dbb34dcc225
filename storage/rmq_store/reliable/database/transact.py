"""A transaction at READ COMMITTED that is retried when the database asks for it.

    retried    deadlock, lock timeout, serialization failure, SQLITE_BUSY, a connection that was lost or refused,
               a pool without a free connection

`work` may run several times, each in a transaction of its own, so all its effects must be in that transaction. After a
lost connection the commit may have happened: `work` must begin with a write whose repetition it recognises.

At READ COMMITTED each statement sees the rows that were committed before it began. At REPEATABLE READ (the default of
MariaDB and MySQL) a decision would rest on a snapshot older than another transaction's commit. On PostgreSQL a row that
another transaction has changed would end the transaction.
"""

from __future__ import annotations

import random
import sqlite3
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import sqlalchemy as sa

from rmq_store.reliable.database.engine import ONLY_READS

T = TypeVar("T")

TRIES: Final = 8
FIRST_PAUSE_S: Final = 0.02
PAUSE_S_MAX: Final = 2.0

_READ_COMMITTED: Final = "READ COMMITTED"

# Lock wait timeout, deadlock, "record has changed since last read" (innodb_snapshot_isolation), connections that are
# refused or lost, too many of them, a server that is going down.
_MYSQL_CODES = {1205, 1213, 1020, 2002, 2003, 2006, 2013, 1040, 1053}
# Serialization failure, deadlock, lock not available, a server that shuts down or starts, too many connections.
_POSTGRESQL_CODES = {"40001", "40P01", "55P03", "57P01", "57P02", "57P03", "53300"}

_needs_level: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()


def transact(
    engine: sa.Engine,
    work: Callable[[sa.Connection], T],
    *,
    tries: int = TRIES,
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """Run `work` in a transaction and commit it; returns its result, durable in the database.

    Raises:
        sqlalchemy.exc.SQLAlchemyError: an error that a retry cannot help, or the error of the last attempt.
        An exception of `work` rolls back.
    """
    for attempt in range(1, tries + 1):
        try:
            with begin(engine) as connection:
                return work(connection)
        except (sa.exc.DBAPIError, sa.exc.TimeoutError) as error:
            if attempt == tries or not is_transient(error):
                raise
        sleep(min(FIRST_PAUSE_S * 2**attempt, PAUSE_S_MAX) * random.uniform(0.5, 1))
    raise AssertionError("unreachable")


def read(engine: sa.Engine, work: Callable[[sa.Connection], T]) -> T:
    """Run `work`, which only reads committed rows; in SQLite it waits for no writer. Raises as `transact`."""
    return transact(engine.execution_options(**{ONLY_READS: True}), work)


@contextmanager
def begin(engine: sa.Engine) -> Iterator[sa.Connection]:
    """A connection in one transaction at READ COMMITTED (SQLite: serializable), which is committed at the end."""
    with engine.connect() as connection:
        if _must_set_level(connection):
            connection.execution_options(isolation_level=_READ_COMMITTED)
        with connection.begin():
            yield connection


def _must_set_level(connection: sa.Connection) -> bool:
    """Whether connections of this engine begin at another level; asked once for each pool."""
    if connection.dialect.name == "sqlite":
        return False
    pool = connection.engine.pool
    if pool not in _needs_level:
        _needs_level[pool] = connection.get_isolation_level() != _READ_COMMITTED
    return _needs_level[pool]


def is_transient(error: sa.exc.DBAPIError | sa.exc.TimeoutError) -> bool:
    """True if the same transaction may succeed when it is retried."""
    if isinstance(error, sa.exc.TimeoutError) or error.connection_invalidated:
        return True
    original: Any = error.orig
    if isinstance(original, sqlite3.OperationalError):
        code = getattr(original, "sqlite_errorcode", 0) & 0xFF
        return code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
    state = getattr(original, "sqlstate", None)
    if state in _POSTGRESQL_CODES:
        return True
    # libpq could not connect. There is no code, because no server has answered.
    if isinstance(error, sa.exc.OperationalError) and type(original).__module__.startswith("psycopg") and not state:
        return True
    arguments: tuple[Any, ...] = getattr(original, "args", ())
    return bool(arguments) and arguments[0] in _MYSQL_CODES


def is_duplicate(error: sa.exc.IntegrityError) -> bool:
    """True if a row with this key existed. Other violations (NOT NULL, foreign keys) are no duplicates."""
    original: Any = error.orig
    if isinstance(original, sqlite3.IntegrityError):
        return original.sqlite_errorcode in (sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY, sqlite3.SQLITE_CONSTRAINT_UNIQUE)
    if getattr(original, "sqlstate", None) == "23505":
        return True
    arguments: tuple[Any, ...] = getattr(original, "args", ())
    return bool(arguments) and arguments[0] == 1062
