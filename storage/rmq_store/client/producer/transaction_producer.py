"""The producer of transactions: a message is seen if and only if a local transaction is committed.

    with TransactionProducer("pg_orders", "rmq://ns1:9876", listener=TransactionListener(execute, check)) as producer:
        producer.send_message_in_transaction(Message("Orders", b"..."), order)

Source: TransactionMQProducer.java, DefaultMQProducerImpl.java (sendMessageInTransaction, checkTransactionState).
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, Final

from rmq_store import real_time
from rmq_store.arguments import checked_methods
from rmq_store.client.backend.backend import Backend
from rmq_store.client.backend.local import StorePlaces
from rmq_store.client.backend.transactions import Transactions
from rmq_store.client.group.client_id import make_client_id
from rmq_store.client.producer.message_rules import check_half
from rmq_store.client.producer.open_transactions import OpenTransactions
from rmq_store.client.producer.producer import Producer
from rmq_store.client.producer.producer_config import ProducerConfig
from rmq_store.client.producer.transaction_checks import CheckExecutor
from rmq_store.client.producer.transaction_listener import TransactionListener, state_of
from rmq_store.errors import ResponseError, StoreError, UsageError
from rmq_store.format.frames.message import Message
from rmq_store.format.properties.property_string import TRANSACTION_ID, TRANSACTION_PREPARED, UNIQUE_KEY
from rmq_store.protocol.errors import ClientError
from rmq_store.protocol.proxy_answers import NO_END
from rmq_store.protocol.results import SendResult, SendStatus
from rmq_store.protocol.transactions import (
    HalfMessage,
    LocalTransactionState,
    TransactionCheck,
    TransactionSendResult,
)

AWAIT_CHECKS_MS: Final = 30_000
GATHER_S: Final = 0.1
"""A question waits so long for a newer one about the same transaction."""

_log = logging.getLogger(__name__)


@checked_methods("send_message_in_transaction", constructor=True)
class TransactionProducer(Producer):
    """A Producer that sends messages in transactions, too. Safe for threads, not across fork.

    `group` must be the same in all processes that can answer for each other's transactions: a broker asks any of them.
    `check_thread_pool_max_size` threads answer brokers. Of more than `check_request_hold_max` questions the newest are
    dropped, and the broker asks again. The other arguments are those of Producer.

    A broker that asks for a transaction stores its half message again. So the end of a transaction that has outlasted a
    question goes to the newest copy. An end that crosses such a question on the way can still meet an older copy, and
    the message is seen twice: keep local transactions shorter than the broker's `transactionTimeOut`.

    RocketMQ 5's proxy passes on no end but the answer to a broker's question. So a committed message is seen there when
    its broker has asked, by default within 36 s (transactionTimeOut, transactionCheckInterval), and the listener's
    check decides it. `end_was_sent` is False there.

    `start` registers the group at the brokers. Stores need no server: this process asks its own members for the open
    transactions of their groups, and an end that was sent is stored.
    """

    def __init__(
        self,
        group: str,
        backend: Backend | StorePlaces,
        config: ProducerConfig | None = None,
        *,
        listener: TransactionListener,
        check_thread_pool_max_size: int = 1,
        check_request_hold_max: int = 2000,
        timer: Callable[[], float] = lambda: real_time.monotonic() * 1000,
        sleep: Callable[[float], None] = lambda duration_ms: time.sleep(duration_ms / 1000),
        rng: random.Random | None = None,
    ) -> None:
        super().__init__(group, backend, config, timer=timer, sleep=sleep, rng=rng)
        for name, given in (
            ("check_thread_pool_max_size", check_thread_pool_max_size),
            ("check_request_hold_max", check_request_hold_max),
        ):
            if given < 1:
                raise UsageError(f"{name}={given}: at least 1")
        self._listener = listener
        self._checks = CheckExecutor(check_thread_pool_max_size, check_request_hold_max)
        self._transactions: Transactions | None = None
        self._open = OpenTransactions()
        self._has_warned = False

    def start(self) -> None:
        """As `Producer.start`. The group is known to all brokers that answer."""
        if self._is_of_block and self._transactions is not None:
            return
        super().start()
        try:
            self._transactions = self._cluster().transactions(self.group, make_client_id(None), self._on_check)
        except BaseException:
            super().shutdown()
            raise

    def shutdown(self) -> None:
        """Leave the group, answer the questions that brokers have asked, for at most 30 s, and release all resources.
        Brokers ask other members about transactions that are still open.
        """
        if self._transactions is not None:
            self._transactions.leave()
            if not self._checks.shutdown(AWAIT_CHECKS_MS):
                _log.warning("group %s: checks still run after %d ms; brokers ask again", self.group, AWAIT_CHECKS_MS)
        super().shutdown()

    def send_message_in_transaction(
        self, message: Message, arg: Any = None, timeout: int | None = None
    ) -> TransactionSendResult:
        """Store a half message, run the listener's local transaction with `arg`, and tell the broker its outcome.
        `timeout` (ms) is that of the half message.

        The local transaction runs only if the half message is stored with SEND_OK. Otherwise it is rolled back. The end
        is told once and has no answer: if it is lost, the broker asks. A store of this process answers: if it refuses
        the end, `end_was_sent` is False, and an error is logged. A half message is sent again only if no broker can
        have received it. On return a committed message is durable as the broker's flushDiskType says, once the
        broker has taken the end.

        Raises:
            MessageIllegalError: the message breaks a rule, or has a delay; nothing was sent.
            UsageError: behind a proxy, and the listener has no check.
            MQClientError, MQBrokerError, RemotingError: as `send`. The local transaction did not run. The half message
                may be stored: then the broker asks the listener, which should answer ROLLBACK_MESSAGE.
        """
        self._check_running()
        message = self._with_unique_key(message)
        check_half(message)
        is_only_asked = self._is_only_asked()
        transaction_id = message.properties[UNIQUE_KEY]
        self._open.begin(transaction_id)
        try:
            half = replace(message, properties={**message.properties, TRANSACTION_PREPARED: "true"})
            result = self._send_half(half, timeout)
            state, remark = LocalTransactionState.ROLLBACK_MESSAGE, f"the half message has {result.status.value}"
            if result.status is SendStatus.SEND_OK:
                shown = replace(message, properties={**message.properties, TRANSACTION_ID: transaction_id})
                state, remark = state_of(
                    lambda: self._listener.execute_local_transaction(shown, arg), "the local transaction"
                )
        except BaseException:
            self._open.given_up(transaction_id)
            raise
        was_sent = self._end(self._open.ended(transaction_id) or _half_of(result), state, remark)
        known = {field.name: getattr(result, field.name) for field in fields(SendResult)}
        return TransactionSendResult(
            **known, transaction_id=transaction_id, local_transaction_state=state,
            end_was_sent=was_sent and not is_only_asked,
        )  # fmt: skip

    def _is_only_asked(self) -> bool:
        assert self._transactions is not None
        if not self._transactions.is_only_asked():
            return False
        if not self._listener.has_check:
            raise UsageError(
                f"group {self.group!r}: {NO_END}, and this TransactionListener has no check: pass one, or give the "
                "address of a name server"
            )
        if not self._has_warned:
            self._has_warned = True
            _log.warning("group %s: %s: a committed message is seen when the check has answered", self.group, NO_END)
        return True

    def _on_check(self, check: TransactionCheck) -> None:
        """Take a question. Of questions for one transaction that come close together only the newest is answered."""
        transaction_id = check.half.transaction_id
        due_s = real_time.monotonic() + GATHER_S
        if not self._open.ask(check, lambda: self._checks.submit(lambda: self._answer_newest(transaction_id, due_s))):
            _log.warning("transaction %s: not checked, too many checks wait", transaction_id)

    def _answer_newest(self, transaction_id: str, due_s: float) -> None:
        time.sleep(max(0.0, due_s - real_time.monotonic()))
        taken = self._open.take(transaction_id)
        if taken is not None:
            self._answer(*taken)

    def _answer(self, check: TransactionCheck, is_running: bool) -> None:
        state, remark = LocalTransactionState.UNKNOW, "the local transaction is under way"
        if not is_running:
            state, remark = state_of(
                lambda: self._listener.check_local_transaction(check.message), "the check of the transaction"
            )
        self._end(check.half, state, remark)

    def _end(self, half: HalfMessage, state: LocalTransactionState, remark: str) -> bool:
        assert self._transactions is not None
        try:
            self._transactions.end(half, state, remark)
        except StoreError as error:
            # A broker does not answer: an error of a client is one of the way to it.
            is_refused = isinstance(error, ResponseError) and not isinstance(error, ClientError)
            happened = "its store has refused that" if is_refused else "its broker was not told, and will ask"
            level = logging.ERROR if is_refused else logging.WARNING
            _log.log(level, "transaction %s is %s, but %s: %s", half.transaction_id, state, happened, error)
            return False
        return True


def _half_of(result: SendResult) -> HalfMessage:
    return HalfMessage(
        result.topic, result.broker_name, result.msg_id, result.queue_offset, result.commit_log_offset
    )
