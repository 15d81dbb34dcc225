"""One message, or a set of them, done once: the steps C1 to C7, E1 and E2 of docs/reliable-design.md.

    C1   Redis, a filter                                                       6.3.1 of the document
    C2   log transaction: log row with a lease, high water; done, void, busy?  6.2.1.2, 6.3.2, 6.3.3
    C3   effect transaction: the inbox row, which decides
    C4   the handler, inside a savepoint                                       6.3.4
    C5   the stub is confirmed; a void one rolls everything back               6.4.1
    C6   the log row goes; COMMIT
    C7   confirmation in another database; Redis says done
    E1   log: lease given back, dead letters to the manual list                6.4.2
    E2   Redis key given back

"Another worker is at it" is `LATER`, never a success: if that worker dies, its message must come again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial

import sqlalchemy as sa

from rmq_store.errors import HandlerTransactionError
from rmq_store.reliable import inbox, manual_list, receipts, stub
from rmq_store.reliable.consume_counters import Counters
from rmq_store.reliable.handler_connection import run_handler
from rmq_store.reliable.lease_keeper import LeaseKeeper
from rmq_store.reliable.leases import new_token
from rmq_store.reliable.receipts import HighWater, Receipt, Received
from rmq_store.reliable.redis_filter import Known, RedisFilter
from rmq_store.reliable.tables import VOID, Tables
from rmq_store.reliable.transact import transact

_log = logging.getLogger(__name__)


class Outcome(StrEnum):
    """What became of a message. The first three are successes: it need not come again."""

    DONE = "done"
    DUPLICATE = "duplicate"
    VOID = "void"
    LATER = "later"
    FAILED = "failed"

    @property
    def is_success(self) -> bool:
        """Whether the group is through with it."""
        return self in (Outcome.DONE, Outcome.DUPLICATE, Outcome.VOID)


@dataclass(frozen=True, slots=True)
class Places:
    """Where the group's rows are. `stubs`: the engine of the stubs, None if they lie in the same database."""

    group: str
    engine: sa.Engine
    tables: Tables
    stubs: sa.Engine | None = None


@dataclass(slots=True)
class Verdicts:
    """{message id: outcome}. `wait_ms`: of those that are busy, when the last lease ends, from now on."""

    outcomes: dict[str, Outcome]
    wait_ms: int = 0


@dataclass(slots=True)
class _Attempt:
    """The work on the messages of one call."""

    receipts: dict[str, Receipt]
    is_outside: bool
    token: str = field(default_factory=new_token)
    known: dict[str, Known] = field(default_factory=dict)
    received: Received = field(default_factory=Received)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    has_had_effect: bool = False

    def settle(self, message_ids: Collection[str], outcome: Outcome) -> None:
        self.outcomes.update(dict.fromkeys(message_ids, outcome))

    def unsettled(self) -> list[str]:
        return [message_id for message_id in self.receipts if message_id not in self.outcomes]


class _VoidStubsError(Exception):
    """Stubs that were taken back while the effect was under way; rolls it back."""

    def __init__(self, message_ids: set[str]) -> None:
        super().__init__(f"void stubs: {len(message_ids)}")
        self.message_ids = message_ids


class Once:
    """Does messages once. Safe for threads; all that it holds belongs to its `Idempotency`."""

    def __init__(
        self,
        places: Places,
        keeper: LeaseKeeper,
        counters: Counters,
        *,
        redis: RedisFilter | None,
        lease_ms: int,
        slack_ms: int,
        clock: Callable[[], int],
    ) -> None:
        self._places = places
        self._group, self._engine, self._tables = places.group, places.engine, places.tables
        self._keeper = keeper
        self._counters = counters
        self._redis = redis
        self._lease_ms = lease_ms
        self._slack_ms = slack_ms
        self._clock = clock
        self._high_water = HighWater()

    def run(
        self, deliveries: Sequence[Receipt], handle: Callable[[sa.Connection, Collection[str]], object]
    ) -> Verdicts:
        """Do messages in one transaction: `handle` gets the connection and the ids that are to be done, perhaps several
        times, each time after a rollback. What succeeds is durable on return. Never raises what `handle` raises.

        `deliveries` have different ids. The number of statements is the same for any 1,000 of them.
        """
        attempt = _Attempt({receipt.message_id: receipt for receipt in deliveries}, is_outside=False)
        return self._run(attempt, lambda: self._do_inside(attempt, handle))

    def run_outside(self, delivery: Receipt, handle: Callable[[], object]) -> Verdicts:
        """Do a message whose effect is elsewhere: at least once. Where nobody knows whether it happened before, or
        whether two workers had it, the manual list says so (in_doubt).
        """
        attempt = _Attempt({delivery.message_id: delivery}, is_outside=True)
        return self._run(attempt, lambda: self._do_outside(attempt, handle))

    def _run(self, attempt: _Attempt, work: Callable[[], None]) -> Verdicts:
        if self._redis is not None:
            attempt.known = self._redis.claim(list(attempt.receipts), attempt.token)
        is_over = False
        try:
            try:
                self._receive(attempt)
                if attempt.received.ours:
                    with self._keeper.hold(attempt.received.ours, attempt.token):
                        work()
            except Exception as error:
                self._fail(attempt, error)
            self._confirm_elsewhere(attempt)
            is_over = True
        finally:
            self._tell_redis(attempt, is_over=is_over)
        self._counters.count(attempt.outcomes, attempt.known)
        busy_ms = max(attempt.received.busy.values(), default=0)
        return Verdicts(attempt.outcomes, max(0, busy_ms - self._clock()))

    # -- C2 -----------------------------------------------------------------------------------------------------------

    def _receive(self, attempt: _Attempt) -> None:
        void = self._void_elsewhere(attempt)
        marks = self._high_water.higher(attempt.receipts.values())
        elsewhere = {message_id for message_id, known in attempt.known.items() if known is Known.PROCESSING}

        def work(connection: sa.Connection) -> Received:
            now_ms = self._clock()
            found = receipts.receive(
                connection,
                self._tables,
                self._group,
                list(attempt.receipts.values()),
                token=attempt.token,
                now_ms=now_ms,
                lease_ms=self._lease_ms,
                marks=marks,
                elsewhere=elsewhere,
                void=void,
            )
            if attempt.is_outside:
                for message_id in found.doubtful:
                    detail = "a worker had it and never said what became of it; its effect may have happened before"
                    self._doubt(connection, message_id, detail, now_ms)
            return found

        attempt.received = transact(self._engine, work)
        self._high_water.wrote(marks)
        attempt.settle(attempt.received.done, Outcome.DUPLICATE)
        attempt.settle(attempt.received.void, Outcome.VOID)
        attempt.settle(attempt.received.busy, Outcome.LATER)

    def _void_elsewhere(self, attempt: _Attempt) -> set[str] | None:
        if self._places.stubs is None:
            return None
        status = transact(
            self._places.stubs, lambda connection: stub.status_of(connection, self._tables, attempt.receipts)
        )
        return {message_id for message_id, text in status.items() if text == VOID}

    # -- C3 to C6 -----------------------------------------------------------------------------------------------------

    def _do_inside(self, attempt: _Attempt, handle: Callable[[sa.Connection, Collection[str]], object]) -> None:
        left = set(attempt.received.ours)
        while left:
            try:
                mine = transact(self._engine, partial(self._effect, message_ids=left, handle=handle))
            except _VoidStubsError as error:
                forget = partial(receipts.delete, tables=self._tables, group=self._group, message_ids=error.message_ids)
                transact(self._engine, forget)
                attempt.settle(error.message_ids, Outcome.VOID)
                left = left - error.message_ids
            else:
                attempt.settle(mine, Outcome.DONE)
                attempt.settle(left - mine, Outcome.DUPLICATE)
                return

    def _effect(
        self,
        connection: sa.Connection,
        message_ids: set[str],
        handle: Callable[[sa.Connection, Collection[str]], object],
    ) -> set[str]:
        now_ms = self._clock()
        mine = inbox.insert_set(connection, self._tables, self._group, message_ids, now_ms)
        if mine:
            run_handler(connection, lambda: handle(connection, frozenset(mine)))
        void = self._confirm(connection, message_ids, now_ms) & mine
        if void:
            raise _VoidStubsError(void)
        receipts.delete(connection, self._tables, self._group, message_ids)
        return mine

    def _do_outside(self, attempt: _Attempt, handle: Callable[[], object]) -> None:
        (message_id,) = attempt.received.ours
        handle()
        attempt.has_had_effect = True

        def record(connection: sa.Connection) -> bool:
            now_ms = self._clock()
            is_mine = inbox.insert(connection, self._tables, self._group, message_id, now_ms)
            if not is_mine:
                self._doubt(connection, message_id, "two workers had it at one time; both had its effect", now_ms)
            if self._confirm(connection, {message_id}, now_ms):
                detail = "its stub was taken back while the handler ran; the effect has happened all the same"
                self._doubt(connection, message_id, detail, now_ms)
            receipts.delete(connection, self._tables, self._group, [message_id])
            return is_mine

        attempt.settle([message_id], Outcome.DONE if transact(self._engine, record) else Outcome.DUPLICATE)

    def _confirm(self, connection: sa.Connection, message_ids: Collection[str], now_ms: int) -> set[str]:
        """C5, if the stubs lie in this database; returns the ids of void ones."""
        if self._places.stubs is not None:
            return set()
        return _confirm(connection, self._places, message_ids, now_ms)

    # -- C7 -----------------------------------------------------------------------------------------------------------

    def _confirm_elsewhere(self, attempt: _Attempt) -> None:
        done = [each for each, outcome in attempt.outcomes.items() if outcome in (Outcome.DONE, Outcome.DUPLICATE)]
        if self._places.stubs is None or not done:
            return
        try:
            transact(self._places.stubs, lambda connection: _confirm(connection, self._places, done, self._clock()))
        except sa.exc.SQLAlchemyError as error:
            _log.warning(
                "group %s: %d stubs are not confirmed (%s); the resend finds that their messages are done",
                self._group, len(done), type(error).__name__,
            )  # fmt: skip

    def _tell_redis(self, attempt: _Attempt, *, is_over: bool) -> None:
        if self._redis is None:
            return
        done = {each for each, outcome in attempt.outcomes.items() if outcome in (Outcome.DONE, Outcome.DUPLICATE)}
        if is_over and done:
            self._redis.done(done)
        ours = {message_id for message_id, known in attempt.known.items() if known is Known.OURS}
        self._redis.release(ours - done, attempt.token)

    # -- E1 -----------------------------------------------------------------------------------------------------------

    def _fail(self, attempt: _Attempt, error: Exception) -> None:
        failed = attempt.unsettled()
        attempt.settle(failed, Outcome.FAILED)
        _log.warning("group %s: %s failed", self._group, _names(failed), exc_info=error)
        detail = _detail(error)

        def work(connection: sa.Connection) -> set[str]:
            now_ms = self._clock()
            done = receipts.fail(
                connection,
                self._tables,
                self._group,
                [attempt.receipts[message_id] for message_id in failed],
                token=attempt.token,
                now_ms=now_ms,
                slack_ms=self._slack_ms,
                detail=detail,
            )
            # The handler has committed the inbox row itself, with what it had written so far; or its effect is
            # elsewhere, and there is no record of it.
            doubtful = done if isinstance(error, HandlerTransactionError) else set()
            for message_id in [*doubtful, *(set(failed) - done if attempt.has_had_effect else ())]:
                self._doubt(connection, message_id, f"its effect may be there in part or in full: {detail}", now_ms)
            return done - doubtful

        try:
            attempt.settle(transact(self._engine, work), Outcome.DUPLICATE)
        except sa.exc.SQLAlchemyError as again:
            _log.warning(
                "group %s: the failure is not in the log (%s); its lease blocks a resend until it is over",
                self._group, type(again).__name__,
            )  # fmt: skip

    def _doubt(self, connection: sa.Connection, message_id: str, detail: str, now_ms: int) -> None:
        self._counters.doubt()
        manual_list.add(connection, self._tables, message_id, self._group, manual_list.IN_DOUBT, detail, now_ms)


def _confirm(connection: sa.Connection, places: Places, message_ids: Collection[str], now_ms: int) -> set[str]:
    if len(message_ids) == 1:
        (message_id,) = message_ids
        answer = stub.confirm(connection, places.tables, places.group, message_id, now_ms)
        return {message_id} if answer is stub.Confirmation.VOID else set()
    answers = stub.confirm_all(connection, places.tables, places.group, message_ids, now_ms)
    return {message_id for message_id, answer in answers.items() if answer is stub.Confirmation.VOID}


def _detail(error: Exception) -> str:
    # SQLAlchemy's own text has the statement's parameters in it, which are the business's data.
    text = error.orig if isinstance(error, sa.exc.DBAPIError) else error
    return f"{type(error).__name__}: {text}"


def _names(message_ids: Sequence[str]) -> str:
    if len(message_ids) == 1:
        return f"message {message_ids[0]}"
    return f"{len(message_ids)} messages, {', '.join(message_ids[:3])} among them"
