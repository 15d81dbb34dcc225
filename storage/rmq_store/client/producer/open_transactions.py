"""The transactions that a producer runs, and the questions of brokers that wait for an answer. Control plane.

    a question for a transaction    under way here    its place is kept: the end goes to it
                                    else              the listener is asked, `gather_s` later
    a newer question before that                      takes the place of the older one

With each question a broker has stored the half message again, at new offsets, and each of the copies can be committed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from rmq_store.protocol.transactions import HalfMessage, TransactionCheck


class OpenTransactions:
    """Transactions by their ids. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Transactions under way -> the place that a broker has asked for last.
        self._running: dict[str, HalfMessage | None] = {}
        # Transaction -> the newest question for it that is not answered yet.
        self._asked: dict[str, TransactionCheck] = {}

    def begin(self, transaction_id: str) -> None:
        """From now on the listener cannot know the outcome."""
        with self._lock:
            self._running[transaction_id] = None

    def ended(self, transaction_id: str) -> HalfMessage | None:
        """The outcome is known. Returns the place that a broker has asked for last, None: none has. The end of this
        place answers a question that waits.
        """
        with self._lock:
            self._asked.pop(transaction_id, None)
            return self._running.pop(transaction_id, None)

    def given_up(self, transaction_id: str) -> None:
        """Nobody here will know the outcome. A question that waits goes to the listener."""
        with self._lock:
            self._running.pop(transaction_id, None)

    def ask(self, check: TransactionCheck, submit: Callable[[], bool]) -> bool:
        """Take a question. If none waits for this transaction, `submit` arranges a call of `take`; False: it cannot."""
        transaction_id = check.half.transaction_id
        with self._lock:
            if transaction_id in self._running:
                self._running[transaction_id] = check.half
            is_waiting = transaction_id in self._asked
            self._asked[transaction_id] = check
            if is_waiting or submit():
                return True
            self._asked.pop(transaction_id, None)
            return False

    def take(self, transaction_id: str) -> tuple[TransactionCheck, bool] | None:
        """The newest question for a transaction, and whether it is under way here; None: it is answered."""
        with self._lock:
            check = self._asked.pop(transaction_id, None)
            return None if check is None else (check, transaction_id in self._running)
