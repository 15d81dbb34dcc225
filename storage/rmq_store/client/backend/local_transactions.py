"""The producer groups of this process that can be asked for transactions of the stores of one LocalBackend.

One thread asks, as a broker does (`rmq_store.broker.transactions.checks`), as long as the backend has a member. Members
of other processes are asked there: a store needs no server for its transactions.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import Final

from rmq_store import real_time
from rmq_store.broker.processor.local_broker import LocalBroker
from rmq_store.broker.transactions.checks import TransactionChecks
from rmq_store.broker.transactions.half_queue import PendingHalf
from rmq_store.broker.transactions.half_records import shown_frame
from rmq_store.client.backend.transactions import OnCheck
from rmq_store.errors import StoreError, UsageError
from rmq_store.files.locks.background import Background
from rmq_store.files.locks.guard import Guard
from rmq_store.format.frames.stored_message import StoredMessage
from rmq_store.format.properties.property_string import TRANSACTION_ID
from rmq_store.protocol.stored_messages import messages_in
from rmq_store.protocol.transactions import HalfMessage, LocalTransactionState, TransactionCheck

ROUND_EVERY_S: Final = 0.5
_AFTER_ERROR_S: Final = 10.0

_log = logging.getLogger(__name__)


class LocalTransactions:
    """The members of producer groups by group. Safe for threads."""

    def __init__(self, brokers: Mapping[str, LocalBroker]) -> None:
        self._brokers = brokers
        self._members: dict[str, OnCheck] = {}
        self._guard = Guard()
        self._stop: SimpleQueue[None] = SimpleQueue()
        self._thread: Background | None = None
        self._checks = {name: self._checks_of(name, broker) for name, broker in brokers.items()}

    def open(self, group: str, on_check: OnCheck) -> LocalGroup:
        """Make this process a member of a producer group.

        Raises:
            UsageError: it is one already by this backend. RuntimeError: the system has no thread left.
        """
        if self._members.setdefault(group, on_check) is not on_check:
            raise UsageError(f"producer group {group!r} has a TransactionProducer in this backend")
        try:
            with self._guard.entered():
                if self._thread is None:
                    stop: SimpleQueue[None] = SimpleQueue()
                    thread = Background(lambda: self._ask(stop), "rmq-transaction-rounds")
                    thread.start()
                    self._stop, self._thread = stop, thread
        except BaseException:
            self.leave(group)
            raise
        return LocalGroup(self, self._brokers, group)

    def leave(self, group: str) -> None:
        """End a membership."""
        self._members.pop(group, None)

    def close(self) -> None:
        """End all memberships, and the thread."""
        self._members.clear()
        with self._guard.entered():
            self._stop.put(None)
            thread = self._thread
        if thread is not None:
            thread.join()
            self._thread = None  # at last: after an interrupt, close() is called again

    def is_there(self, group: str) -> bool:
        """See `Producers.is_there`."""
        return group in self._members

    def ask(self, broker: LocalBroker, half: PendingHalf, message: StoredMessage) -> bool:
        """Give a member the question for a half message of `broker`; False: the group has left."""
        on_check = self._members.get(half.group)
        if on_check is None:
            return False
        (stored,) = messages_in(shown_frame(half, message), broker.name)
        shown = replace(stored, properties={**stored.properties, TRANSACTION_ID: half.transaction_id})
        place = HalfMessage(
            half.topic, broker.name, half.transaction_id, half.queue_offset, half.commit_log_offset,
            str(broker.store.path),
        )  # fmt: skip
        on_check(TransactionCheck(place, shown))
        return True

    def _checks_of(self, name: str, broker: LocalBroker) -> TransactionChecks:
        store = broker.store
        hours = store.config.file_reserved_time
        return TransactionChecks(store.transactions, _Members(self, broker), store.clock, file_reserved_hours=hours)

    def _ask(self, stop: SimpleQueue[None]) -> None:
        due_s = dict.fromkeys(self._checks, 0.0)
        while not _is_stopped(stop):
            for name, checks in self._checks.items():
                now_s = real_time.monotonic()
                if now_s >= due_s[name] and self._members:
                    try:
                        checks.round()
                    except (StoreError, OSError) as error:
                        due_s[name] = now_s + _AFTER_ERROR_S
                        _log.warning("%s: no questions about transactions: %s", self._brokers[name].store.path, error)
                    except Exception:
                        due_s[name] = now_s + _AFTER_ERROR_S
                        _log.exception("%s: no questions about transactions", self._brokers[name].store.path)


def _is_stopped(stop: SimpleQueue[None]) -> bool:
    try:
        stop.get(timeout=ROUND_EVERY_S)
    except Empty:
        return False
    return True


class _Members:
    """The members as Producers of one store (`broker/transactions/checks.py`)."""

    def __init__(self, owner: LocalTransactions, broker: LocalBroker) -> None:
        self._owner = owner
        self._broker = broker

    def is_there(self, group: str) -> bool:
        """See `Producers.is_there`."""
        return self._owner.is_there(group)

    def ask(self, half: PendingHalf, message: StoredMessage) -> bool:
        """See `Producers.ask`."""
        return self._owner.ask(self._broker, half, message)


class LocalGroup:
    """A producer group as Transactions (`client/backend/transactions.py`)."""

    def __init__(self, owner: LocalTransactions, brokers: Mapping[str, LocalBroker], group: str) -> None:
        self._owner = owner
        self._brokers = brokers
        self._group = group

    def end(self, half: HalfMessage, state: LocalTransactionState, remark: str = "") -> None:
        """See `Transactions.end`. On return a commit is stored; UNKNOW changes nothing.

        Raises:
            ResponseError: the store has refused the end, and nothing was stored; the error says why, and what to do.
            CorruptionError, StoreFullError, StoreLockedError, StoreFailedError: the end is not stored. A member of the
                group is asked later.
        """
        if state is not LocalTransactionState.UNKNOW:
            self._brokers[half.broker_name].store.transactions.end(
                self._group,
                half.queue_offset,
                half.commit_log_offset,
                commit=state is LocalTransactionState.COMMIT_MESSAGE,
                from_check=bool(half.asked_by),
            )

    def is_only_asked(self) -> bool:
        """See `Transactions.is_only_asked`: a store takes every end."""
        return False

    def leave(self) -> None:
        """See `Transactions.leave`."""
        self._owner.leave(self._group)
