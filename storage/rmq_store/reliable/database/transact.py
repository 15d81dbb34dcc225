"""A transaction at READ COMMITTED that is retried when the database asks for it.

    retried    what `trouble` names: deadlock, lock timeout, serialization failure, a connection that was lost or
               refused, a database that is full or only reads, a pool without a free connection

`work` may run several times, each in a transaction of its own, so all its effects must be in that transaction. After a
lost connection the commit may have happened: `work` must begin with a write whose repetition it recognises.

When the database is away, all connections of the pool are dropped: behind a fail-over they may lead to a server that
is up and only reads.

At READ COMMITTED each statement sees the rows that were committed before it began. At REPEATABLE READ (the default of
MariaDB and MySQL) a decision would rest on a snapshot older than another transaction's commit. On PostgreSQL a row that
another transaction has changed would end the transaction.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import sqlalchemy as sa

from rmq_store import real_time
from rmq_store.backoff import Backoff
from rmq_store.reliable.database.engine import ONLY_READS
from rmq_store.reliable.database.trouble import Trouble, trouble_of

T = TypeVar("T")

TRIES: Final = 8
PAUSES: Final = Backoff(first_ms=30, max_ms=1_500, jitter=1 / 3)
"""Two transactions that met do not meet again: each waits for a time at random."""
AWAY_S_MAX: Final = 10.0
"""Behind so much time no try follows while the database is away: a server that never answers takes a time-out each."""

_READ_COMMITTED: Final = "READ COMMITTED"

_needs_level: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()


def transact(
    engine: sa.Engine,
    work: Callable[[sa.Connection], T],
    *,
    tries: int = TRIES,
    sleep: Callable[[float], object] = time.sleep,
) -> T:
    """Run `work` in a transaction and commit it; returns its result, durable in the database.

    Raises:
        sqlalchemy.exc.SQLAlchemyError: an error that a retry cannot help, or the error of the last attempt.
        An exception of `work` rolls back.
    """
    begin_s = real_time.monotonic()
    for attempt in range(1, tries + 1):
        try:
            with begin(engine) as connection:
                return work(connection)
        except (sa.exc.DBAPIError, sa.exc.TimeoutError) as error:
            trouble = trouble_of(error)
            drop_stale(engine, trouble)
            is_late = trouble is not Trouble.CONFLICT and real_time.monotonic() - begin_s > AWAY_S_MAX
            if attempt == tries or trouble is None or is_late:
                raise
        sleep(PAUSES.wait_s(attempt))
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
    return trouble_of(error) is not None


def drop_stale(engine: sa.Engine, trouble: Trouble | None) -> None:
    """After an error of this kind, close the idle connections of the pool if they may be stale. Connections in use are
    closed when they come back. A database in memory lives in its connections, which stay.
    """
    is_in_memory = engine.dialect.name == "sqlite" and "memory" in str(engine.url)
    if trouble in (Trouble.AWAY, Trouble.READ_ONLY_TRANSACTION) and not is_in_memory:
        engine.dispose()
