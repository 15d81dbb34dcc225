"""Half messages and their ends, as clients and brokers name them.

Sources: LocalTransactionState.java, TransactionSendResult.java, EndTransactionRequestHeader.java.
"""

from __future__ import annotations

from enum import StrEnum

from rmq_store.lazy.dataclasses import dataclass
from rmq_store.protocol.messages import MessageExt
from rmq_store.protocol.results import SendResult


class LocalTransactionState(StrEnum):
    """The outcome of a local transaction. UNKNOW, RocketMQ's spelling: the broker asks again later."""

    COMMIT_MESSAGE = "COMMIT_MESSAGE"
    ROLLBACK_MESSAGE = "ROLLBACK_MESSAGE"
    UNKNOW = "UNKNOW"


@dataclass(frozen=True, slots=True)
class HalfMessage:
    """The place of a half message at its broker. `transaction_id` is the message's UNIQ_KEY, `queue_offset` counts in
    the queue of half messages. `asked_by`: the address of the process that asks for the end; "" for the sender's own.
    """

    topic: str
    broker_name: str
    transaction_id: str
    queue_offset: int
    commit_log_offset: int
    asked_by: str = ""


@dataclass(frozen=True, slots=True)
class TransactionCheck:
    """A broker's question for the outcome of a transaction; `message` is the half message."""

    half: HalfMessage
    message: MessageExt


@dataclass(frozen=True, slots=True)
class TransactionSendResult(SendResult):
    """The half message's result, and the state of its local transaction.

    `end_was_sent` False: the broker was not told the state, and will ask for it; or a store of this process has refused
    the end, and the log says why.
    """

    transaction_id: str = ""
    local_transaction_state: LocalTransactionState = LocalTransactionState.UNKNOW
    end_was_sent: bool = False
