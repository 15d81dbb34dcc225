"""Asks producers for the outcome of transactions that nobody has ended (TransactionalMessageCheckService.java).

    6 s after the half message, or its own CHECK_IMMUNITY_TIME_IN_SECONDS      the first question
    every 30 s                                                                  the next one
    30 s after the 15th                                                         to TRANS_CHECK_MAX_TIME_TOPIC

A question counts when a producer was sent it, and not before: while no producer of the group is there, a half message
waits. A Java broker counts without. One half message that fails holds up no other.
"""

from __future__ import annotations

import logging
from typing import Final, Protocol

from rmq_store.broker.rules import transaction as rules
from rmq_store.broker.transactions.half_queue import PendingHalf
from rmq_store.broker.transactions.transactions import Transactions
from rmq_store.errors import StoreFailedError, StoreFullError, StoreLockedError
from rmq_store.format.frames.stored_message import StoredMessage
from rmq_store.log.core.commit_log import Clock

_log: Final = logging.getLogger(__name__)

SAVE_INTERVAL_MS: Final = 10_000
ROUND_MAX: Final = 256
"""Questions of a round: each one is an append."""
_HOUR_MS: Final = 3_600_000
_STORE_WIDE: Final = (StoreFailedError, StoreFullError, StoreLockedError, OSError)


class Producers(Protocol):
    """The producers that can be asked now."""

    def is_there(self, group: str) -> bool:
        """True if a producer of the group can be asked."""

    def ask(self, half: PendingHalf, message: StoredMessage) -> bool:
        """Send a producer of the half message's group the question; False: none is there. Must not wait for the
        answer, which is a call of `Transactions.end`.
        """


class TransactionChecks:
    """The questions of one process for one store. `round` is for one thread."""

    def __init__(
        self, transactions: Transactions, producers: Producers, clock: Clock, *, file_reserved_hours: int
    ) -> None:
        self._transactions = transactions
        self._producers = producers
        self._clock = clock
        self._renew_after_ms = max(file_reserved_hours * _HOUR_MS // 2, rules.CHECK_INTERVAL_MS)
        self._failed: dict[int, int] = {}  # queue offset -> when it is tried again
        self._next = 0  # queue offset of the half message that the last round did not reach
        self._saved_ms = clock()

    def round(self) -> int:
        """Ask for the half messages that are due, at most ROUND_MAX, give up those that were asked for often enough,
        and save the progress every 10 s. A round begins where the last one stopped. Returns the number of questions
        that were counted: one that was answered at once is none. Raises as `Transactions.pending`;
        StoreFullError, StoreLockedError, StoreFailedError: a later round goes on.
        """
        now_ms = self._clock()
        pending = self._transactions.pending()
        there = {group: self._producers.is_there(group) for group in {half.group for half in pending}}
        # Behind a clock that was set back all are tried again.
        self._failed = {
            offset: until for offset, until in self._failed.items() if 0 < until - now_ms <= rules.CHECK_INTERVAL_MS
        }
        asked = 0
        begin, self._next = self._next, 0
        for half in sorted(pending, key=lambda one: one.queue_offset < begin):
            if asked >= ROUND_MAX:
                self._next = half.queue_offset
                break
            if not half.is_ours or half.queue_offset in self._failed:
                continue
            try:
                asked += self._look(half, now_ms, there[half.group])
            except _STORE_WIDE:
                raise
            except Exception as error:  # of this half message alone: it fits no frame, say
                self._failed[half.queue_offset] = now_ms + rules.CHECK_INTERVAL_MS
                _log.warning("half message %d of group %s: %s", half.queue_offset, half.group, error)
        if abs(now_ms - self._saved_ms) >= SAVE_INTERVAL_MS:
            self._saved_ms = now_ms
            self._transactions.save_progress()
        return asked

    def _look(self, half: PendingHalf, now_ms: int, is_there: bool) -> bool:
        if half.is_due(now_ms):
            if half.check_times >= rules.CHECK_MAX:
                if self._transactions.give_up(half) is not None:
                    text = "transaction %s of group %s: no outcome after %d questions"
                    _log.error(text, half.transaction_id, half.group, half.check_times)
                return False
            if is_there and self._producers.ask(half, self._transactions.half_message(half)):
                return self._transactions.asked(half) is not None
        if now_ms - half.stored_ms >= self._renew_after_ms:
            self._transactions.renew(half)
        return False
