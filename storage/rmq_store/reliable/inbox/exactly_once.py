"""One message, or a set of them, done once: the steps C1 to C7, E1 and E2 of docs/reliable-design.md.

    C1   Redis, a filter                                                       H04 of docs/conformance.md
    C2   log transaction: log row with a lease, high water; done, void, busy?  H03, H06
    C3   effect transaction: the inbox row, which decides                      `effect`
    C4   the handler, inside a savepoint
    C5   the stub is confirmed; a void one rolls everything back               H07
    C6   the log row goes; COMMIT
    C7   confirmation in another database; Redis says done
    E1   log: lease given back, dead letters to the manual list                H08
    E2   Redis key given back

"Another worker is at it" is `LATER`, never a success: if that worker dies, its message must come again. As each LATER
costs one of RocketMQ's retries, it is waited for first. While the database is away, messages are held.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import field
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Final

import sqlalchemy as sa

from rmq_store.errors import HandlerTransactionError
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.reliable.database import manual_list
from rmq_store.reliable.database.leases import new_token
from rmq_store.reliable.database.tables import VOID
from rmq_store.reliable.database.transact import is_transient, read, transact
from rmq_store.reliable.inbox import delivery_log, inbox
from rmq_store.reliable.inbox.consume_counters import Counters
from rmq_store.reliable.inbox.deliveries import Delivery, Queue
from rmq_store.reliable.inbox.delivery_log import Received
from rmq_store.reliable.inbox.effect import BusyError, Effect, GroupTables, Handle, VoidStubsError, confirm
from rmq_store.reliable.inbox.handler_connection import HandlerRunner, TransactionEndedError
from rmq_store.reliable.inbox.high_water import HighWater, write_marks
from rmq_store.reliable.inbox.lease_keeper import LeaseKeeper
from rmq_store.reliable.inbox.redis_filter import Known, RedisFilter
from rmq_store.reliable.inbox.worker_wait import HoldEndedError, WorkerWait
from rmq_store.reliable.outbox import stub

if TYPE_CHECKING:
    from rmq_store.reliable.outbox.outbox import Outbox

FAILURES_MAX: Final = 32
"""How often a handler may fail in one call on parts of its set: three poison rows among a thousand are found so."""

_log = logging.getLogger(__name__)


class RowsFailedError(Exception):
    """Raised by a handler of a set to fail some of its messages. The transaction is rolled back, and the handler is
    called again with the others.
    """

    def __init__(self, message_ids: Collection[str]) -> None:
        super().__init__(f"the handler says that {len(message_ids)} messages failed")
        self.message_ids = frozenset(message_ids)


class HandlerOutcome(StrEnum):
    """The outcome of a message. The first four are successes: the message need not come again. LISTED: people decide.
    OTHER: the group has done another message with its id; it is to be done under an id of its own.
    """

    DONE = "done"
    DUPLICATE = "duplicate"
    VOID = "void"
    LISTED = "listed"
    LATER = "later"
    FAILED = "failed"
    OTHER = "other"

    @property
    def is_success(self) -> bool:
        """True if the group need not get the message again."""
        return self in (HandlerOutcome.DONE, HandlerOutcome.DUPLICATE, HandlerOutcome.VOID, HandlerOutcome.LISTED)


@dataclass(slots=True)
class Verdicts:
    """{message id: outcome}. `wait_ms`: time until the last lease of another worker ends, for messages that come later.
    """

    outcomes: dict[str, HandlerOutcome]
    wait_ms: int = 0


@dataclass(slots=True)
class _Attempt:
    """The work on the messages of one call."""

    deliveries: dict[str, Delivery]
    is_outside: bool
    token: str
    known: dict[str, Known] = field(default_factory=dict)
    received: Received = field(default_factory=Received)
    outcomes: dict[str, HandlerOutcome] = field(default_factory=dict)
    has_had_effect: bool = False
    failures: int = 0

    def settle(self, message_ids: Collection[str], outcome: HandlerOutcome) -> None:
        self.outcomes.update(dict.fromkeys(message_ids, outcome))

    def fingerprints(self, message_ids: Collection[str]) -> dict[str, str | None]:
        return {message_id: self.deliveries[message_id].fingerprint for message_id in message_ids}

    def unsettled(self) -> list[str]:
        return [message_id for message_id in self.deliveries if message_id not in self.outcomes]

    def recorded(self) -> set[str]:
        """The messages that have an inbox row."""
        wanted = (HandlerOutcome.DONE, HandlerOutcome.DUPLICATE)
        return {message_id for message_id, outcome in self.outcomes.items() if outcome in wanted}


class ExactlyOnce:
    """Does messages once. Safe for threads. Its `Idempotency` owns all arguments, and sets `ending`."""

    def __init__(
        self,
        group_tables: GroupTables,
        keeper: LeaseKeeper,
        counters: Counters,
        handlers: HandlerRunner,
        ending: threading.Event,
        *,
        redis: RedisFilter | None,
        outbox: Outbox | None,
        lease_ms: int,
        slack_ms: int,
        clock: Callable[[], int],
    ) -> None:
        self._group_tables = group_tables
        self._group, self._tables = group_tables.group, group_tables.tables
        self._keeper = keeper
        self._counters = counters
        self.worker_wait = WorkerWait(group_tables.engine, group_tables.tables, group_tables.group, ending)
        self._effect = Effect(group_tables, handlers, self.worker_wait, clock, outbox)
        self._redis = redis
        self._lease_ms = lease_ms
        self._slack_ms = slack_ms
        self._clock = clock
        self._high_water = HighWater()

    def run(
        self, deliveries: Sequence[Delivery], handle: Handle, *, wait_ms: int | None, lease_token: str | None = None
    ) -> Verdicts:
        """Do messages in one transaction. `handle` gets the connection and the ids that are not done, perhaps several
        times, each time after a rollback. Effects that succeed are durable on return. Errors of `handle` are outcomes,
        and are never raised.

        `deliveries` have different ids. One whose id is another message's is not done: `OTHER`. The number of
        statements is the same for any 1,000 of them. If `handle` fails on several, they are halved until the failing
        ones are alone, each half in its own transaction. By `RowsFailedError` it fails some of them, and gets the
        others again. `wait_ms`: how long to wait for messages that other workers have; None: until their leases end.
        `lease_token`: takes over rows with this token, from an earlier attempt at the same work.
        """
        by_id = {delivery.message_id: delivery for delivery in deliveries}
        attempt = _Attempt(by_id, is_outside=False, token=lease_token or new_token())
        return self._run(attempt, lambda: self._do_inside(attempt, attempt.received.ours, handle), wait_ms)

    def run_outside(self, delivery: Delivery, handle: Callable[[], object], *, wait_ms: int | None) -> Verdicts:
        """Do a message whose effect is outside of the database: at least once. If nobody knows whether the effect
        happened before, or if two workers had the message, it is put on the manual list (in_doubt).
        """
        attempt = _Attempt({delivery.message_id: delivery}, is_outside=True, token=new_token())
        return self._run(attempt, lambda: self._do_outside(attempt, handle), wait_ms)

    def _run(self, attempt: _Attempt, work: Callable[[], None], wait_ms: int | None) -> Verdicts:
        if self._redis is not None:
            attempt.known = self._redis.claim(list(attempt.deliveries), attempt.token)
        is_over = False
        try:
            for _ in self.worker_wait.turns(wait_ms):
                self._try(attempt, work)
                if not attempt.unsettled():
                    break
            attempt.settle(attempt.unsettled(), HandlerOutcome.LATER)
            self._confirm_elsewhere(attempt)
            is_over = True
        finally:
            self._tell_redis(attempt, is_over=is_over)
        self._counters.count(attempt.outcomes, attempt.known)
        later = [each for each, outcome in attempt.outcomes.items() if outcome is HandlerOutcome.LATER]
        until_ms = max((attempt.received.busy.get(each, 0) for each in later), default=0)
        return Verdicts(attempt.outcomes, max(0, until_ms - self._clock()))

    def _try(self, attempt: _Attempt, work: Callable[[], None]) -> None:
        """C2 for the messages that are not settled, then the work on those that are ours. Busy messages stay unsettled.
        """
        try:
            self._receive(attempt)
            if attempt.received.ours:
                with self._keeper.hold(attempt.received.ours, attempt.token):
                    work()
        except BusyError:
            attempt.settle(attempt.received.ours - attempt.outcomes.keys(), HandlerOutcome.LATER)
        except HoldEndedError:
            # Nobody failed, and no turn follows: what is not settled comes later.
            return
        except Exception as error:
            self._fail(attempt, [each for each in attempt.unsettled() if each not in attempt.received.busy], error)

    # -- C2 -----------------------------------------------------------------------------------------------------------

    def _receive(self, attempt: _Attempt) -> None:
        wanted = [attempt.deliveries[message_id] for message_id in attempt.unsettled()]
        # Nothing is known until the transaction has committed.
        attempt.received = Received()
        void = self._void_elsewhere(wanted)
        marks = self._high_water.enter(wanted)
        left: dict[Queue, int] = {}
        is_committed = False

        def work(connection: sa.Connection) -> Received:
            now_ms = self._clock()
            found = delivery_log.receive(
                connection,
                self._tables,
                self._group,
                wanted,
                token=attempt.token,
                now_ms=now_ms,
                lease_ms=self._lease_ms,
                marks=marks,
                void=void,
            )
            self._list_same_id(connection, [attempt.deliveries[each] for each in found.unclear], delivery_log.UNCLEAR)
            if attempt.is_outside and found.took_over:
                self._doubt(
                    connection,
                    found.ours,
                    "a worker had it and never said what became of it; its effect may have happened before",
                )
            return found

        try:
            attempt.received = self.worker_wait.transact(work)
            is_committed = True
        finally:
            left = self._high_water.leave(marks, is_committed=is_committed)
        if left:
            self.worker_wait.transact(partial(write_marks, tables=self._tables, group=self._group, marks=left))
            self._high_water.wrote(left)
        attempt.settle(attempt.received.done, HandlerOutcome.DUPLICATE)
        attempt.settle(attempt.received.void, HandlerOutcome.VOID)
        attempt.settle(attempt.received.unclear, HandlerOutcome.LISTED)
        attempt.settle(attempt.received.others, HandlerOutcome.OTHER)

    def _void_elsewhere(self, wanted: Sequence[Delivery]) -> set[str] | None:
        """The void ones among them, by the database of the stubs. None: it is unavailable, C7 tells later."""
        if self._group_tables.stubs is None:
            return None
        ids = [delivery.message_id for delivery in wanted]
        try:
            status = read(self._group_tables.stubs, lambda connection: stub.status_of(connection, self._tables, ids))
        except sa.exc.SQLAlchemyError as error:
            _log.warning("group %s: nobody knows which stubs are void (%s)", self._group, type(error).__name__)
            return set()
        return {message_id for message_id, text in status.items() if text == VOID}

    # -- the work -----------------------------------------------------------------------------------------------------

    def _do_inside(self, attempt: _Attempt, message_ids: set[str], handle: Handle) -> None:
        """The effect of these messages in one transaction, or of each half in its own."""
        left = message_ids
        while left:
            try:
                fingerprints = attempt.fingerprints(left)
                mine, others = self._effect.run(fingerprints, handle, may_wait=not attempt.received.took_over)
            except VoidStubsError as void:
                self.worker_wait.transact(
                    partial(delivery_log.delete, tables=self._tables, group=self._group, message_ids=void.message_ids)
                )
                attempt.settle(void.message_ids, HandlerOutcome.VOID)
                left = left - void.message_ids
            except (BusyError, HoldEndedError):
                raise
            except RowsFailedError as some:
                failed = left & some.message_ids
                self._fail(attempt, sorted(failed or left), some)
                left = left - failed if failed else set()
            except Exception as error:
                attempt.failures += 1
                if len(left) == 1 or attempt.failures > FAILURES_MAX or _would_repeat(error):
                    self._fail(attempt, sorted(left), error)
                    return
                ordered = [message_id for message_id in attempt.deliveries if message_id in left]
                middle = len(ordered) // 2
                self._do_inside(attempt, set(ordered[:middle]), handle)
                self._do_inside(attempt, set(ordered[middle:]), handle)
                return
            else:
                attempt.settle(mine, HandlerOutcome.DONE)
                attempt.settle(others, HandlerOutcome.OTHER)
                attempt.settle(left - mine - others, HandlerOutcome.DUPLICATE)
                return

    def _do_outside(self, attempt: _Attempt, handle: Callable[[], object]) -> None:
        (message_id,) = ids = attempt.received.ours
        handle()
        attempt.has_had_effect = True

        def record(connection: sa.Connection) -> bool:
            now_ms = self._clock()
            delivery = attempt.deliveries[message_id]
            where = connection, self._tables, self._group
            is_mine = inbox.insert(*where, message_id, now_ms, delivery.fingerprint)
            if not is_mine and inbox.others(*where, {message_id: delivery.fingerprint}):
                # The effect has happened: nothing is left but to record that.
                own = delivery.under_its_own_id()
                is_mine = inbox.insert(*where, own.message_id, now_ms, own.fingerprint)
            if not is_mine:
                self._doubt(connection, ids, "two workers had it at one time; both had its effect")
            if self._effect.confirm(connection, ids, now_ms):
                self._doubt(connection, ids, "its stub was taken back while the handler ran; the effect has happened")
            delivery_log.delete(connection, self._tables, self._group, ids)
            return is_mine

        is_mine = self.worker_wait.transact(record)
        attempt.settle(ids, HandlerOutcome.DONE if is_mine else HandlerOutcome.DUPLICATE)

    # -- C7 -----------------------------------------------------------------------------------------------------------

    def _confirm_elsewhere(self, attempt: _Attempt) -> None:
        done = sorted(attempt.recorded())
        if self._group_tables.stubs is None or not done:
            return
        try:
            void = transact(
                self._group_tables.stubs, lambda other: confirm(other, self._group_tables, done, self._clock())
            )
        except sa.exc.SQLAlchemyError as error:
            _log.warning(
                "group %s: %d stubs are not confirmed (%s); the resend finds that their messages are done",
                self._group, len(done), type(error).__name__,
            )  # fmt: skip
            return
        new = [message_id for message_id in void if attempt.outcomes[message_id] is HandlerOutcome.DONE]
        if new:
            self.worker_wait.transact(
                lambda connection: self._doubt(connection, new, "its effect has happened though its stub is void")
            )

    def _tell_redis(self, attempt: _Attempt, *, is_over: bool) -> None:
        if self._redis is None:
            return
        done = attempt.recorded() if is_over else set()
        self._redis.done(done)
        ours = {message_id for message_id, known in attempt.known.items() if known is Known.OURS}
        self._redis.release(ours - done, attempt.token)

    # -- E1 -----------------------------------------------------------------------------------------------------------

    def _fail(self, attempt: _Attempt, failed: Sequence[str], error: Exception) -> None:
        attempt.settle(failed, HandlerOutcome.FAILED)
        by_answer = isinstance(error, RowsFailedError)
        _log.warning("group %s: %s failed", self._group, _names(failed), exc_info=None if by_answer else error)
        detail = _detail(error)

        def work(connection: sa.Connection) -> set[str]:
            done = delivery_log.fail(
                connection,
                self._tables,
                self._group,
                [attempt.deliveries[message_id] for message_id in failed],
                token=attempt.token,
                now_ms=self._clock(),
                slack_ms=self._slack_ms,
                detail=detail,
            )
            if isinstance(error, TransactionEndedError):
                # It may have committed the inbox row itself, with what it had written so far, or anything else.
                doubtful, done = set(failed), set()
            else:
                doubtful = set(failed) - done if attempt.has_had_effect else set()
            if doubtful:
                self._doubt(connection, doubtful, f"its effect may be there in part or in full: {detail}")
            return done

        try:
            attempt.settle(self.worker_wait.transact(work), HandlerOutcome.DUPLICATE)
        except (sa.exc.SQLAlchemyError, HoldEndedError) as again:
            _log.warning(
                "group %s: the failure is not in the log (%s); its lease blocks a resend until it is over",
                self._group, type(again).__name__,
            )  # fmt: skip

    def list_same_id(self, message: Delivery, detail: str) -> None:
        """Put a message that is not done, because another one with its id is, on the manual list; durable on return."""
        self.worker_wait.transact(lambda connection: self._list_same_id(connection, [message], detail))
        self._counters.list_one()

    def _list_same_id(self, connection: sa.Connection, messages: Sequence[Delivery], detail: str) -> None:
        now_ms = self._clock()
        manual_list.add_all(
            connection,
            self._tables,
            [
                manual_list.ManualEntry(
                    message.message_id, self._group, manual_list.SAME_ID, f"{message.place}: {detail}", now_ms
                )
                for message in messages
            ],
        )

    def _doubt(self, connection: sa.Connection, message_ids: Collection[str], detail: str) -> None:
        now_ms = self._clock()
        self._counters.doubt(len(message_ids))
        manual_list.add_all(
            connection,
            self._tables,
            [
                manual_list.ManualEntry(message_id, self._group, manual_list.IN_DOUBT, detail, now_ms)
                for message_id in message_ids
            ],
        )


def _would_repeat(error: Exception) -> bool:
    """True if a part of the set would fail, too: the handler breaks the rules, or the database does not work."""
    if isinstance(error, HandlerTransactionError):
        return True
    return isinstance(error, sa.exc.DBAPIError | sa.exc.TimeoutError) and is_transient(error)


def _detail(error: Exception) -> str:
    # SQLAlchemy's own text has the statement's parameters in it, which are the business's data.
    text = error.orig if isinstance(error, sa.exc.DBAPIError) else error
    return f"{type(error).__name__}: {text}"


def _names(message_ids: Sequence[str]) -> str:
    if len(message_ids) == 1:
        return f"message {message_ids[0]}"
    return f"{len(message_ids)} messages, {', '.join(message_ids[:3])} among them"
