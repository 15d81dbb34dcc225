"""A transaction that is tried again when the database asks for it.

    tried again     deadlock, lock timeout, serialization failure, SQLITE_BUSY, and a connection that was lost

`work` may run several times, each in a transaction of its own, so its effects must all be in that transaction. After a
lost connection the commit may have happened: `work` must begin with a write whose repetition it recognises.
"""

from __future__ import annotations

import random
import sqlite3
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

import sqlalchemy as sa

T = TypeVar("T")

TRIES: Final = 6
FIRST_PAUSE_S: Final = 0.02

_MYSQL_CODES = {1205, 1213}  # lock wait timeout, deadlock
_POSTGRESQL_CODES = {"40001", "40P01", "55P03"}  # serialization failure, deadlock, lock not available


def transact(
    engine: sa.Engine,
    work: Callable[[sa.Connection], T],
    *,
    tries: int = TRIES,
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """Run `work` in a transaction and commit it; returns what it returns, durable in the database.

    Raises:
        sqlalchemy.exc.DBAPIError: what no try cures, or the last try's error. What `work` raises rolls back.
    """
    for attempt in range(1, tries + 1):
        try:
            with engine.begin() as connection:
                return work(connection)
        except sa.exc.DBAPIError as error:
            if attempt == tries or not is_transient(error):
                raise
        sleep(FIRST_PAUSE_S * 2**attempt * random.uniform(0.5, 1))
    raise AssertionError("unreachable")


def is_transient(error: sa.exc.DBAPIError) -> bool:
    """Whether the same transaction may succeed when it is tried again."""
    if error.connection_invalidated:
        return True
    original: Any = error.orig
    if isinstance(original, sqlite3.OperationalError):
        code = getattr(original, "sqlite_errorcode", 0) & 0xFF
        return code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
    if getattr(original, "sqlstate", None) in _POSTGRESQL_CODES:
        return True
    arguments: tuple[Any, ...] = getattr(original, "args", ())
    return bool(arguments) and arguments[0] in _MYSQL_CODES


def is_duplicate(error: sa.exc.IntegrityError) -> bool:
    """Whether a row of this key was there. Other breaches (NOT NULL, foreign keys) are no duplicates."""
    original: Any = error.orig
    if isinstance(original, sqlite3.IntegrityError):
        return original.sqlite_errorcode in (sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY, sqlite3.SQLITE_CONSTRAINT_UNIQUE)
    if getattr(original, "sqlstate", None) == "23505":
        return True
    arguments: tuple[Any, ...] = getattr(original, "args", ())
    return bool(arguments) and arguments[0] == 1062
