"""Transactions of stores without a server: the producers of this process are asked by a thread of their backend."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from rmq_store import Store, StoreConfig
from rmq_store.broker.transactions.transactions import Transactions
from rmq_store.client import (
    LocalBackend,
    LocalTransactionState,
    Message,
    MessageExt,
    MQBrokerError,
    MQClientError,
    Producer,
    TransactionListener,
    TransactionProducer,
)
from rmq_store.client.backend import local_transactions
from rmq_store.errors import ResponseError, StoreLockedError, UsageError
from rmq_store.protocol.transactions import HalfMessage

COMMIT, ROLLBACK, UNKNOWN = (
    LocalTransactionState.COMMIT_MESSAGE,
    LocalTransactionState.ROLLBACK_MESSAGE,
    LocalTransactionState.UNKNOW,
)
PATIENCE_S = 60.0


def eventually(condition: Callable[[], object]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s, "it did not happen"
        time.sleep(0.005)


@pytest.fixture
def root(scratch: Path, small: StoreConfig) -> Path:
    with Store.open(scratch / "store", create=True, config=small) as store:
        store.create_topic("Orders", 1)
    return scratch / "store"


def bodies(store: Store) -> list[bytes]:
    low, high = store.queue_range("Orders", 0)
    batches = store.read("Orders", 0, low, high, columns=["body"])
    return [body for batch in batches for body in batch.column(0).to_pylist()]


def listener(
    state: LocalTransactionState, check: Callable[[MessageExt], LocalTransactionState] = lambda _: UNKNOWN
) -> TransactionListener:
    return TransactionListener(lambda *_: state, check)


@pytest.mark.parametrize(("state", "expected"), [(COMMIT, [b"tea"]), (ROLLBACK, [])])
def test_a_transaction_of_a_store_ends_as_its_producer_says(
    root: Path, state: LocalTransactionState, expected: list[bytes]
) -> None:
    with TransactionProducer("pg", root, listener=listener(state)) as producer:
        result = producer.send_message_in_transaction(Message("Orders", b"tea"))
        assert (result.local_transaction_state, result.end_was_sent) == (state, True)
    with Store.open(root, read_only=True) as store:
        assert bodies(store) == expected
        assert store.transactions.pending() == []


def test_a_member_answers_for_a_process_that_is_gone(root: Path) -> None:
    now_ms = 1_700_000_000_000
    asked: list[MessageExt] = []
    with Store.open(root, clock=lambda: now_ms) as store, LocalBackend(store) as backend:
        with TransactionProducer("pg", backend, listener=listener(UNKNOWN)) as producer:
            result = producer.send_message_in_transaction(Message("Orders", b"tea", tags="TagA"))
        assert bodies(store) == []
    now_ms += 60_000

    def check(message: MessageExt) -> LocalTransactionState:
        asked.append(message)
        return COMMIT

    with Store.open(root, clock=lambda: now_ms) as store, LocalBackend(store) as backend:
        with TransactionProducer("other", backend, listener=listener(UNKNOWN, lambda _: ROLLBACK)):
            with TransactionProducer("pg", backend, listener=listener(UNKNOWN, check)):
                eventually(lambda: not store.transactions.pending())
        assert bodies(store) == [b"tea"]
    (message,) = asked
    assert (message.topic, message.tags) == ("Orders", "TagA")
    assert message.properties["__transactionId__"] == result.transaction_id


@pytest.mark.statement("A07")
@pytest.mark.parametrize("is_stored", [True, False])
def test_a_half_message_that_a_store_fails_to_take_is_not_stored_again(
    root: Path, monkeypatch: pytest.MonkeyPatch, is_stored: bool
) -> None:
    prepare, calls = Transactions.prepare, 0

    def failing(self: Transactions, *arguments: object, **options: object) -> object:
        nonlocal calls
        calls += 1
        if is_stored:
            prepare(self, *arguments, **options)  # type: ignore[arg-type]
        raise StoreLockedError("another process has been busy for seconds")

    monkeypatch.setattr(Transactions, "prepare", failing)
    must_not_run = TransactionListener(lambda *_: pytest.fail("it must not run"), lambda _: UNKNOWN)
    with TransactionProducer("pg", root, listener=must_not_run) as producer:
        with pytest.raises((MQBrokerError, MQClientError)):
            producer.send_message_in_transaction(Message("Orders", b"tea"))
    assert calls == 1
    with Store.open(root, read_only=True) as store:
        assert len(store.transactions.pending()) == is_stored


def test_a_half_message_needs_a_producer_that_can_be_asked(root: Path) -> None:
    message = Message("Orders", b"tea", properties={"TRAN_MSG": "true", "PGROUP": "pg"})
    with Producer("pg", root) as producer, pytest.raises((MQBrokerError, MQClientError), match="TransactionProducer"):
        producer.send(message)


def test_a_group_has_one_producer_of_transactions_in_a_backend(root: Path) -> None:
    with LocalBackend(root) as backend, TransactionProducer("pg", backend, listener=listener(COMMIT)):
        with pytest.raises(UsageError, match="has a TransactionProducer"):
            TransactionProducer("pg", backend, listener=listener(COMMIT)).start()


@pytest.mark.parametrize("error", [OSError(24, "Too many open files"), RuntimeError("can't start new thread")])
def test_an_unexpected_error_ends_no_questions(root: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    now_ms = 1_700_000_000_000
    failures = [error] * 3
    ask_once = local_transactions.TransactionChecks.round

    def ask(checks: local_transactions.TransactionChecks) -> int:
        if failures:
            raise failures.pop()
        return ask_once(checks)

    monkeypatch.setattr(local_transactions, "_AFTER_ERROR_S", 0.0)
    monkeypatch.setattr(local_transactions.TransactionChecks, "round", ask)
    with Store.open(root, clock=lambda: now_ms) as store, LocalBackend(store) as backend:
        with TransactionProducer("pg", backend, listener=listener(UNKNOWN, lambda _: COMMIT)) as producer:
            producer.send_message_in_transaction(Message("Orders", b"tea"))
            now_ms += 60_000
            eventually(lambda: not store.transactions.pending())
        assert bodies(store) == [b"tea"]


def test_groups_that_start_at_once_share_one_thread(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both = threading.Barrier(2)

    class Slow(local_transactions.Background):
        """A thread that is made as soon as a second one is made, or a while has passed."""

        def __init__(self, work: Callable[[], None], name: str) -> None:
            with suppress(threading.BrokenBarrierError):
                both.wait(0.3)
            super().__init__(work, name)

    monkeypatch.setattr(local_transactions, "Background", Slow)
    with LocalBackend(root) as backend:
        producers = [TransactionProducer(name, backend, listener=listener(COMMIT)) for name in ("pg1", "pg2")]
        starts = [threading.Thread(target=one.start) for one in producers]
        for one in starts:
            one.start()
        for one in starts:
            one.join()
        rounds = [one for one in threading.enumerate() if one.name == "rmq-transaction-rounds"]
        assert len(rounds) == 1
        for one in producers:
            one.shutdown()
    assert not rounds[0].is_alive()


def test_a_group_without_a_thread_is_no_member(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(self: object) -> None:
        raise RuntimeError("can't start new thread")

    with LocalBackend(root) as backend:
        with monkeypatch.context() as patch:
            patch.setattr(local_transactions.Background, "start", start)
            with pytest.raises(RuntimeError):
                TransactionProducer("pg", backend, listener=listener(COMMIT)).start()
        with TransactionProducer("pg", backend, listener=listener(COMMIT)) as producer:
            assert producer.send_message_in_transaction(Message("Orders", b"tea")).end_was_sent


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ResponseError(1, "it was given up"), "refused that: CODE: 1  DESC: it was given up"),
        (MQBrokerError(17, "no route"), "will ask: CODE: 17  DESC: no route"),
        (StoreLockedError("another process"), "will ask: another process"),
    ],
)
def test_an_end_that_a_store_does_not_take_is_reported(
    root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception, text: str
) -> None:
    def end(self: Transactions, *args: object, **named: object) -> None:
        raise error

    with TransactionProducer("pg", root, listener=listener(COMMIT)) as producer:
        with monkeypatch.context() as patch:
            patch.setattr(Transactions, "end", end)
            result = producer.send_message_in_transaction(Message("Orders", b"tea"))
        assert (result.local_transaction_state, result.end_was_sent) == (COMMIT, False)
    (record,) = [one for one in caplog.records if result.transaction_id in one.getMessage()]
    assert text in record.getMessage()


def test_an_end_that_comes_too_late_is_refused_and_its_producer_is_asked(root: Path) -> None:
    now_ms = 1_700_000_000_000

    def execute(*_: object) -> LocalTransactionState:
        nonlocal now_ms
        now_ms += 60_000
        return COMMIT

    message = Message("Orders", b"tea", properties={"CHECK_IMMUNITY_TIME_IN_SECONDS": "30"})
    with Store.open(root, clock=lambda: now_ms) as store, LocalBackend(store) as backend:
        slow = TransactionListener(execute, lambda _: COMMIT)
        with TransactionProducer("pg", backend, listener=slow) as producer:
            assert not producer.send_message_in_transaction(message).end_was_sent
            eventually(lambda: bodies(store) == [b"tea"])
        group = backend.transactions("pg", "", lambda _: None)
        with pytest.raises(ResponseError, match="Find prepared transaction message failed"):
            group.end(HalfMessage("Orders", store.broker_name, "", 5, 1 << 40), COMMIT)
