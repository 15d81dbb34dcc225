"""Renews the leases of messages on which handlers work, so that a handler may take longer than one lease.

One daemon thread per `Idempotency`, started with the first message; it wakes up three times per lease. A renewal that
fails is repeated the next time. If a lease ends, two workers may do the same message, and the key of the inbox lets
only one commit. In SQLite the effect's own transaction holds the only write lock, so a renewal does not wait for it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Collection, Iterator
from typing import Final

import sqlalchemy as sa

from rmq_store.reliable.database.tables import Tables
from rmq_store.reliable.inbox import delivery_log
from rmq_store.reliable.inbox.redis_filter import RedisFilter

TICKS_PER_LEASE: Final = 3
SQLITE_WAIT_MS: Final = 50
CLOSE_S_MAX: Final = 2.0

_log = logging.getLogger(__name__)


class LeaseKeeper:
    """Keeps leases alive from `hold` to the end of its block, until `close`. Safe for threads."""

    def __init__(
        self,
        engine: sa.Engine,
        tables: Tables,
        group: str,
        *,
        lease_ms: int,
        clock: Callable[[], int],
        redis: RedisFilter | None = None,
    ) -> None:
        self._engine = engine
        self._tables = tables
        self._group = group
        self._lease_ms = lease_ms
        self._clock = clock
        self._redis = redis
        # {token: ids}; each step on it is one operation, so a signal handler leaves no lock taken.
        self._held: dict[str, Collection[str]] = {}
        self._ending = threading.Event()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()

    @contextlib.contextmanager
    def hold(self, message_ids: Collection[str], token: str) -> Iterator[None]:
        """Renew the leases of `token` on these messages while the block runs."""
        self._run()
        self._held[token] = message_ids
        try:
            yield
        finally:
            self._held.pop(token, None)

    def renew(self) -> None:
        """Renew all leases that are held now, as the thread does."""
        for token, ids in list(self._held.items()):
            try:
                self._renew_rows(ids, token)
            except sa.exc.SQLAlchemyError as error:
                # Its text may have parameters in it; the class says enough.
                _log.warning("group %s: a lease is not renewed yet (%s)", self._group, type(error).__name__)
            if self._redis is not None:
                self._redis.renew(ids, token)

    def close(self) -> None:
        """End the thread, after a renewal that it has begun; a server that does not answer is not waited for."""
        self._ending.set()
        thread = self._thread
        if thread is not None and self._pid == os.getpid() and thread is not threading.current_thread():
            thread.join(CLOSE_S_MAX)

    def _run(self) -> None:
        if self._thread is not None or self._ending.is_set():
            return
        with self._starting:
            if self._thread is None:
                thread = threading.Thread(target=self._loop, name=f"LeaseKeeper_{self._group}", daemon=True)
                thread.start()
                self._thread = thread

    def _loop(self) -> None:
        while not self._ending.wait(self._lease_ms / TICKS_PER_LEASE / 1000):
            self.renew()

    def _renew_rows(self, ids: Collection[str], token: str) -> None:
        until_ms = self._clock() + self._lease_ms
        with self._engine.connect() as connection, _not_waiting(connection), connection.begin():
            delivery_log.renew(connection, self._tables, self._group, ids, token, until_ms)


@contextlib.contextmanager
def _not_waiting(connection: sa.Connection) -> Iterator[None]:
    """Let a connection to SQLite give up soon if another one writes; its BEGIN IMMEDIATE would wait."""
    if connection.dialect.name != "sqlite":
        yield
        return
    cursor = connection.connection.cursor()
    try:
        cursor.execute("PRAGMA busy_timeout")
        (before_ms,) = cursor.fetchone() or (0,)
        cursor.execute(f"PRAGMA busy_timeout = {SQLITE_WAIT_MS}")
        try:
            yield
        finally:
            cursor.execute(f"PRAGMA busy_timeout = {int(before_ms)}")
    finally:
        cursor.close()
