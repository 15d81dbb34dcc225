"""The interface between producers of transactions and the brokers, beside that of `backend.py`.

A broker keeps half messages and asks a member of their producer group for the outcome of the transactions that nobody
has ended. Source: MQClientAPIImpl.java (endTransactionOneway), ClientRemotingProcessor.java (checkTransactionState).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from rmq_store.protocol.transactions import HalfMessage, LocalTransactionState, TransactionCheck

OnCheck = Callable[[TransactionCheck], None]
"""Called for each question of a broker, in a thread that it must not hold up; the answer is a call of `end`."""


class Transactions(Protocol):
    """One producer group that brokers know, and ask. Safe for threads."""

    def end(self, half: HalfMessage, state: LocalTransactionState, remark: str = "") -> None:
        """Tell the broker of a half message its state; there is no answer. `remark` is for the broker's log.

        Raises:
            RemotingError: the broker cannot be reached. It asks later.
            ResponseError: a store of this process has refused the end. A broker tells nobody.
        """

    def is_only_asked(self) -> bool:
        """Whether a sender's own end reaches no broker, as behind RocketMQ 5's proxy: brokers ask for every
        transaction. RemotingError, MQBrokerError: that is not known yet, and no name server tells it.
        """

    def leave(self) -> None:
        """Make brokers ask other members of the group from now on. Questions that came before can still be answered."""
