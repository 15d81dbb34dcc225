"""Waits inside the worker: for a database that cannot be written, and for another worker that has the same message.

Each answer "later" costs one of RocketMQ's retries, and after the last retry the message is a dead letter. So a worker
that could not even try a message does not answer. It keeps the message and waits, until its consumer ends.

    the database is away, full, or only reads    wait until a probe has written (and rolled back), then try again
    the pool has no free connection              try again, without end
    two transactions met                         try again; `TRIES` times if a handler was called, else without end

A handler is called at most `TRIES` times for one delivery, whatever happens.

Meanwhile the worker asks for more time, so that its messages do not go to another one: the listener's or receiver's
`extend`, which says False when the consumer ends.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

import sqlalchemy as sa

from rmq_store import real_time
from rmq_store.backoff import Backoff
from rmq_store.reliable.database.leases import new_token
from rmq_store.reliable.database.outage import Outage
from rmq_store.reliable.database.tables import Tables
from rmq_store.reliable.database.transact import PAUSES, TRIES, begin, drop_stale
from rmq_store.reliable.database.trouble import Trouble, trouble_of

T = TypeVar("T")

BUSY_PAUSES: Final = Backoff(first_ms=50, max_ms=1_000)
AWAY_PAUSES: Final = Backoff(first_ms=100, max_ms=5_000)
EXTEND_EVERY_S: Final = 0.5
"""How soon a worker that waits sees that its consumer ends."""

_PROBE: Final = "rmq-probe-"


class HoldEndedError(Exception):
    """The consumer ended while its worker waited for the database: nothing was done, and the message comes again."""


class Calls:
    """The calls of the handler for one delivery."""

    def __init__(self) -> None:
        self.count = 0


class WorkerWait:
    """Waits until `ending` is set. Safe for threads."""

    def __init__(self, engine: sa.Engine, tables: Tables, group: str, ending: threading.Event) -> None:
        self._engine = engine
        self._tables = tables
        self._group = group
        self._ending = ending
        self.outage = Outage(f"group {group}", "messages are held")
        self._of_thread = threading.local()

    @contextlib.contextmanager
    def extending(self, extend: Callable[[], bool]) -> Iterator[None]:
        """Call `extend` while this thread waits, twice per second, in a `with` block. False: the consumer ends."""
        before = getattr(self._of_thread, "extend", None)
        self._of_thread.extend = extend
        try:
            yield
        finally:
            self._of_thread.extend = before

    def transact(self, work: Callable[[sa.Connection], T], calls: Calls | None = None) -> T:
        """As `transact`, repeated until the database is available. `calls`: counts the calls of a handler in `work`,
        which bound the repetitions.

        Raises:
            HoldEndedError: the consumer ends.
            sqlalchemy.exc.SQLAlchemyError: an error that a retry cannot help; or the last one, when the handler was
                called `TRIES` times.
        """
        attempt = 0
        while True:
            called = 0 if calls is None else calls.count
            try:
                with begin(self._engine) as connection:
                    result = work(connection)
            except (sa.exc.DBAPIError, sa.exc.TimeoutError) as error:
                trouble = trouble_of(error)
                if trouble is None:
                    raise
                was_called = calls is not None and calls.count > called
                if was_called and calls is not None and calls.count >= TRIES:
                    raise
                attempt += 1
                self._wait_out(error, trouble, attempt, is_of_handler=was_called)
            else:
                self.outage.ended()
                return result

    def turns(self, wait_ms: int | None) -> Iterator[None]:
        """Yield once immediately, and again until `wait_ms` is over (None: no limit), or the consumer ends."""
        deadline_s = None if wait_ms is None else real_time.monotonic() + wait_ms / 1000
        for number in itertools.count(1):
            yield
            pause_s = BUSY_PAUSES.wait_s(number)
            left_s = pause_s if deadline_s is None else deadline_s - real_time.monotonic()
            if left_s <= 0 or not self._pause(min(pause_s, left_s)):
                return

    def _wait_out(self, error: Exception, trouble: Trouble, attempt: int, *, is_of_handler: bool) -> None:
        """Return when the transaction may be tried again after `error`. Raises it if the handler itself has made its
        transaction read-only, and HoldEndedError.
        """
        drop_stale(self._engine, trouble)
        # It may be an error of another database, which the handler uses; ours is as it should be then.
        is_there = is_of_handler and trouble not in (Trouble.CONFLICT, Trouble.POOL_FULL) and self._probe() is None
        if trouble is Trouble.READ_ONLY_TRANSACTION and is_there:
            raise error
        if trouble is Trouble.CONFLICT or is_there:
            self._sleep(PAUSES.wait_s(min(attempt, TRIES)), error)
            return
        self.outage.began(error)
        with self.outage.holding():
            self._sleep(AWAY_PAUSES.wait_s(attempt), error)
            while trouble is not Trouble.POOL_FULL and (found := self._probe()) is not None:
                drop_stale(self._engine, found)
                attempt += 1
                self._sleep(AWAY_PAUSES.wait_s(attempt), error)

    def _probe(self) -> Trouble | None:
        """Write a row, and roll it back. None: the database can be written, or says something that the work itself
        will hear and report; otherwise the reason why it cannot.
        """
        row = {
            "group_name": self._group, "message_id": _PROBE + new_token(), "broker_name": "", "topic": "",
            "queue_id": 0, "queue_offset": 0, "received_ms": 0, "reconsume_times": 0, "lease_until_ms": 0,
            "blocks_until_ms": 0, "is_dead": False,
        }  # fmt: skip
        try:
            with self._engine.connect() as connection:
                transaction = connection.begin()
                connection.execute(sa.insert(self._tables.log), row)
                transaction.rollback()
        except (sa.exc.DBAPIError, sa.exc.TimeoutError) as error:
            trouble = trouble_of(error)
            return None if trouble is Trouble.CONFLICT else trouble
        return None

    def _sleep(self, seconds: float, error: Exception) -> None:
        if not self._pause(seconds):
            raise HoldEndedError("the consumer ended while the database was away") from error

    def _pause(self, seconds: float) -> bool:
        """Wait, and ask for more time meanwhile; False at once when the consumer ends."""
        extend: Callable[[], bool] | None = getattr(self._of_thread, "extend", None)
        deadline_s = real_time.monotonic() + seconds
        while True:
            if extend is not None and not extend():
                return False
            left_s = deadline_s - real_time.monotonic()
            if self._ending.wait(max(0.0, min(left_s, EXTEND_EVERY_S))):
                return False
            if left_s <= EXTEND_EVERY_S:
                return True
