"""The two functions that a producer of transactions calls (TransactionListener.java)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from rmq_store.errors import UsageError
from rmq_store.format.frames.message import Message
from rmq_store.protocol.messages import MessageExt
from rmq_store.protocol.transactions import LocalTransactionState

_log = logging.getLogger(__name__)

Execute = Callable[[Message, Any], LocalTransactionState | None]
Check = Callable[[MessageExt], LocalTransactionState | None]


class TransactionListener:
    """Runs local transactions, and knows what became of them. Override both methods, or pass two functions.

    Both methods find the transaction's id in `message.properties["__transactionId__"]`. None, an exception and any
    other value count as UNKNOW: the broker asks again.
    """

    def __init__(self, execute: Execute | None = None, check: Check | None = None) -> None:
        for name, given in (("execute", execute), ("check", check)):
            if not (given is None or callable(given)):
                raise UsageError(f"{name}: a function is expected, got {type(given).__name__}")
        self._execute = execute
        self._check = check

    @property
    def has_check(self) -> bool:
        """Whether `check_local_transaction` was given or overridden."""
        return self._check is not None or (
            type(self).check_local_transaction is not TransactionListener.check_local_transaction
        )

    def execute_local_transaction(self, message: Message, arg: Any) -> LocalTransactionState | None:
        """Run the local transaction, in the thread that sends; the half message is stored, and nobody sees it yet.

        The transaction should store its id with its own data, so that `check_local_transaction` of any member of the
        group can find it.
        """
        if self._execute is None:
            raise NotImplementedError("pass a function, or override execute_local_transaction")
        return self._execute(message, arg)

    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState | None:
        """Say what became of a local transaction: of this process, or of another member of the group, dead or alive.

        Without a trace of the transaction the answer is ROLLBACK_MESSAGE only if it cannot be under way elsewhere, else
        UNKNOW. A broker asks about a half message even if its sender never learned that it was stored.
        """
        if self._check is None:
            raise NotImplementedError("pass a function, or override check_local_transaction")
        return self._check(message)


def state_of(call: Callable[[], LocalTransactionState | None], what: str) -> tuple[LocalTransactionState, str]:
    """The state that a listener's method returns, and a remark if it returned none."""
    try:
        given = call()
    except Exception as error:
        _log.exception("%s failed: the broker will ask again", what)
        return LocalTransactionState.UNKNOW, f"{what} failed: {type(error).__name__}"
    if isinstance(given, LocalTransactionState):
        return given, ""
    if given is not None:
        _log.error("%s returned %r, which is no LocalTransactionState: it counts as UNKNOW", what, given)
    return LocalTransactionState.UNKNOW, f"{what} returned no state"
