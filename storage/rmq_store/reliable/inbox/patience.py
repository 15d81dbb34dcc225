"""Waits inside the worker: for a database that is unavailable, and for another worker that has the same message.

Each answer "later" costs one of RocketMQ's retries, and after the last retry the message is a dead letter. So a worker
that could not even try a message does not answer. It keeps the message and waits, until its consumer ends.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

import sqlalchemy as sa

from rmq_store import real_time
from rmq_store.reliable.database.transact import is_transient, transact

T = TypeVar("T")

BUSY_PAUSE_FIRST_S: Final = 0.05
BUSY_PAUSE_S_MAX: Final = 1.0
AWAY_PAUSE_FIRST_S: Final = 0.1
AWAY_PAUSE_S_MAX: Final = 5.0

_log = logging.getLogger(__name__)


class Patience:
    """Waits until `ending` is set. Safe for threads."""

    def __init__(self, engine: sa.Engine, group: str, ending: threading.Event) -> None:
        self._engine = engine
        self._group = group
        self._ending = ending
        self._is_away = False

    def transact(self, work: Callable[[sa.Connection], T]) -> T:
        """As `transact`, repeated until the database is available.

        Raises:
            sqlalchemy.exc.SQLAlchemyError: an error that a retry cannot help; or the last error, if the consumer ends.
        """
        pause_s = AWAY_PAUSE_FIRST_S
        while True:
            try:
                result = transact(self._engine, work)
            except (sa.exc.DBAPIError, sa.exc.TimeoutError) as error:
                if not is_transient(error):
                    raise
                self._say_away(error)
                if self._ending.wait(pause_s):
                    raise
            else:
                if self._is_away:
                    self._is_away = False
                    _log.warning("group %s: the database is back", self._group)
                return result
            pause_s = min(pause_s * 2, AWAY_PAUSE_S_MAX)

    def turns(self, wait_ms: int | None) -> Iterator[None]:
        """Yield once immediately, and again until `wait_ms` is over (None: no limit), or the consumer ends."""
        deadline_s = None if wait_ms is None else real_time.monotonic() + wait_ms / 1000
        pause_s = BUSY_PAUSE_FIRST_S
        while True:
            yield
            left_s = pause_s if deadline_s is None else deadline_s - real_time.monotonic()
            if left_s <= 0 or self._ending.wait(min(pause_s, left_s)):
                return
            pause_s = min(pause_s * 2, BUSY_PAUSE_S_MAX)

    def _say_away(self, error: Exception) -> None:
        if not self._is_away:
            self._is_away = True
            _log.warning(
                "group %s: the database is away (%s); messages are held until it is back",
                self._group, type(error).__name__,
            )  # fmt: skip
