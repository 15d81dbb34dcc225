"""Asynchronous sends: what is tried again, how the outcome comes back, and how much may be under way.

Sources: A02 and A15 of docs/conformance.md; MQClientAPIImpl#onExceptionImpl,
DefaultMQProducerImpl#executeAsyncMessageSend.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator

import pytest

from rmq_store import Message, SendResult, SendStatus
from rmq_store.client.producer import async_sending
from rmq_store.client.producer.producer import Producer
from rmq_store.protocol.errors import (
    MessageIllegalError,
    MQBrokerError,
    MQClientError,
    RemotingConnectError,
    RemotingError,
    RemotingTimeoutError,
    RemotingTooMuchRequestError,
)
from rmq_store.reliable.outbox.sending import may_have_been_sent

from ..conftest import FakeBackend, Made, fail_all

HANG_S = 30
MESSAGE = Message("T", b"hello")
NOT_OK = [SendStatus.FLUSH_DISK_TIMEOUT, SendStatus.FLUSH_SLAVE_TIMEOUT, SendStatus.SLAVE_NOT_AVAILABLE]


@pytest.mark.statement("A02")
def test_an_asynchronous_send_does_not_block_and_answers_by_callback_and_future(
    cluster: FakeBackend, made: Made
) -> None:
    answers: list[object] = []

    class Blocks(RemotingConnectError):
        pass

    producer = made(cluster)
    with blocked_sends(cluster) as go_on:
        future = producer.send_async(MESSAGE, answers.append, answers.append)
        assert not future.done()  # the caller is here although the send is not over
        go_on()
        result = future.result(HANG_S)
    assert answers == [result]
    fail_all(cluster, Blocks("down"))
    future = producer.send_async(MESSAGE, answers.append, answers.append)
    error = future.exception(HANG_S)
    assert isinstance(error, Blocks)
    assert answers == [result, error]


@pytest.mark.statement("A15")
def test_an_asynchronous_retry_stays_at_its_broker(cluster: FakeBackend, made: Made) -> None:
    fail_all(cluster, RemotingTimeoutError("x"))
    with pytest.raises(RemotingTimeoutError):
        made(cluster).send_async(MESSAGE).result(HANG_S)
    assert len(cluster.sent) == 3
    assert len({(sent.broker_name, sent.queue_id) for sent in cluster.sent}) == 1


@pytest.mark.parametrize(
    "last",
    [RemotingConnectError("refused"), MQClientError("not exist"), MQBrokerError(14, "stops", "a"),
     RemotingTooMuchRequestError("full")],
    ids=str,
)  # fmt: skip
def test_what_may_be_stored_by_an_earlier_asynchronous_try_stays_in_doubt(
    cluster: FakeBackend, made: Made, last: Exception
) -> None:
    cluster.topics["T"] = {"a": 1}
    cluster["a"].fail(RemotingTimeoutError("no answer"), last, last)
    producer = made(cluster)
    error = producer.send_async(MESSAGE).exception(HANG_S)
    assert type(error) is type(last) and str(error) == str(last)
    assert may_have_been_sent(error)  # type: ignore[arg-type]
    cluster["a"].recover()
    cluster["a"].fail(last, last, last)
    error = producer.send_async(MESSAGE).exception(HANG_S)
    assert error is last and not may_have_been_sent(last)  # type: ignore[arg-type]


@pytest.mark.statement("A15")
def test_an_asynchronous_retry_may_leave_its_broker_by_option(cluster: FakeBackend, made: Made) -> None:
    """As the source does since 4.2, which keeps the queue's number (MQClientAPIImpl#onExceptionImpl)."""
    fail_all(cluster, RemotingTimeoutError("x"))
    producer = made(cluster, async_retry_other_broker=True)
    for _ in range(4):
        cluster.sent.clear()
        with pytest.raises(RemotingTimeoutError):
            producer.send_async(MESSAGE).result(HANG_S)
        first, second, third = cluster.sent
        assert first.broker_name != second.broker_name != third.broker_name
        assert first.queue_id == second.queue_id == third.queue_id


def test_an_asynchronous_retry_takes_a_queue_that_the_other_broker_has(cluster: FakeBackend, made: Made) -> None:
    cluster.topics["T"] = {"a": 8, "b": 1}
    cluster["a"].fail_always(RemotingTimeoutError("x"))
    producer = made(cluster, async_retry_other_broker=True)
    for _ in range(9):
        result = producer.send_async(MESSAGE).result(HANG_S)
        assert (result.broker_name, result.queue_id) == ("b", 0)


ASYNC_ROWS = [
    (RemotingTimeoutError("x"), 3),
    (RemotingConnectError("x"), 3),
    (RemotingError("x"), 3),
    (RemotingTooMuchRequestError("x"), 1),
    (MQBrokerError(14, "x"), 1),
    (MQBrokerError(1, "x"), 1),
    (MQBrokerError(13, "x"), 1),
    (MQClientError("x"), 1),
]


@pytest.mark.parametrize(("error", "tries"), ASYNC_ROWS, ids=[str(row[0]) for row in ASYNC_ROWS])
def test_which_asynchronous_failures_are_retried(
    cluster: FakeBackend, made: Made, error: Exception, tries: int
) -> None:
    """MQClientAPIImpl#onExceptionImpl: lost requests are, answers of a broker and the client's own limits are not."""
    fail_all(cluster, error)
    with pytest.raises(type(error)):
        made(cluster).send_async(MESSAGE).result(HANG_S)
    assert len(cluster.sent) == tries


@pytest.mark.statement("A01")
def test_the_number_of_asynchronous_retries_is_a_setting(cluster: FakeBackend, made: Made) -> None:
    fail_all(cluster, RemotingConnectError("x"))
    with pytest.raises(RemotingConnectError):
        made(cluster, retry_times_when_send_async_failed=4).send_async(MESSAGE).result(HANG_S)
    assert len(cluster.sent) == 5


def test_an_asynchronous_try_needs_time_left(cluster: FakeBackend, made: Made) -> None:
    fail_all(cluster, RemotingTimeoutError("slow"), latency_ms=3_000)
    with pytest.raises(RemotingTimeoutError):
        made(cluster).send_async(MESSAGE).result(HANG_S)
    assert len(cluster.sent) == 1
    with pytest.raises(RemotingTooMuchRequestError, match="DEFAULT ASYNC send call timeout"):
        made(cluster).send_async(MESSAGE, timeout=0).result(HANG_S)
    assert len(cluster.sent) == 1


@pytest.mark.parametrize("status", NOT_OK)
@pytest.mark.statement("A16")
def test_an_asynchronous_status_other_than_ok_is_a_result(
    cluster: FakeBackend, made: Made, status: SendStatus
) -> None:
    fail_all(cluster, status)
    producer = made(cluster, retry_another_broker_when_not_store_ok=True)
    assert producer.send_async(MESSAGE).result(HANG_S).status is status
    assert len(cluster.sent) == 1


@pytest.mark.statement("A02")
def test_a_bad_message_comes_back_by_the_callback_too(cluster: FakeBackend, made: Made) -> None:
    errors: list[BaseException] = []
    future = made(cluster).send_async(Message("T", b""), on_exception=errors.append)
    assert isinstance(future.exception(HANG_S), MessageIllegalError)
    assert errors == [future.exception()]


def test_a_callback_that_fails_is_logged_and_spoils_nothing(
    cluster: FakeBackend, made: Made, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(result: SendResult) -> None:
        raise ValueError("in the callback")

    with caplog.at_level(logging.ERROR):
        assert made(cluster).send_async(MESSAGE, fails).result(HANG_S).status is SendStatus.SEND_OK
    assert "in the callback" in caplog.text


@pytest.mark.parametrize("end", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_a_callback_that_asks_for_the_end_resolves_its_future_and_spoils_nothing(
    cluster: FakeBackend, made: Made, caplog: pytest.LogCaptureFixture, end: type[BaseException]
) -> None:
    """The future was never resolved: who waited for it waited for ever."""

    def fails(_: object) -> None:
        raise end("in the callback")

    producer = made(cluster, async_sender_threads=1)
    assert producer.send_async(MESSAGE, fails).result(HANG_S).status is SendStatus.SEND_OK
    fail_all(cluster, RemotingConnectError("down"))
    assert isinstance(producer.send_async(MESSAGE, None, fails).exception(HANG_S), RemotingConnectError)
    assert caplog.text.count("in the callback") >= 2


def test_back_pressure_limits_messages_under_way(cluster: FakeBackend, made: Made) -> None:
    """At least 10 are always allowed (DefaultMQProducerImpl: max(backPressureForAsyncSendNum, 10))."""
    check_back_pressure(
        cluster, made(cluster, enable_backpressure_for_async_mode=True, back_pressure_for_async_send_num=1), 10, b"x"
    )


def test_back_pressure_limits_bytes_under_way(cluster: FakeBackend, made: Made) -> None:
    """At least 1 MiB is always allowed."""
    check_back_pressure(
        cluster,
        made(cluster, enable_backpressure_for_async_mode=True, back_pressure_for_async_send_size=1),
        2,
        b"x" * (512 << 10),
    )


@contextlib.contextmanager
def blocked_sends(cluster: FakeBackend) -> Iterator[Callable[[], None]]:
    """No send comes to its end before the value is called."""
    may_go_on = threading.Event()
    real_send = type(cluster["a"]).send

    def slow_send(broker: object, *arguments: object, **named: object) -> SendResult:
        assert may_go_on.wait(HANG_S)
        return real_send(broker, *arguments, **named)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(cluster["a"]), "send", slow_send)
        try:
            yield may_go_on.set
        finally:
            may_go_on.set()


def check_back_pressure(cluster: FakeBackend, producer: Producer, allowed: int, body: bytes) -> None:
    with blocked_sends(cluster) as go_on:
        under_way = [producer.send_async(Message("T", body)) for _ in range(allowed)]
        refused = producer.send_async(Message("T", body), timeout=1)
        assert isinstance(refused.exception(HANG_S), RemotingTooMuchRequestError)
        go_on()
        assert all(future.result(HANG_S).status is SendStatus.SEND_OK for future in under_way)
    # What was taken is given back.
    assert all(producer.send_async(Message("T", body)).result(HANG_S) for _ in range(2 * allowed))


def test_too_many_waiting_sends_are_refused(
    cluster: FakeBackend, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue of asyncSenderExecutor is bounded."""
    assert async_sending.WAITING_MAX == 50_000
    monkeypatch.setattr(async_sending, "WAITING_MAX", 3)
    producer = made(cluster)
    errors: list[BaseException] = []
    with blocked_sends(cluster) as go_on:
        waiting = [producer.send_async(MESSAGE) for _ in range(3)]
        refused = producer.send_async(MESSAGE, on_exception=errors.append)
        assert errors == [refused.exception(0)]
        assert isinstance(errors[0], MQClientError)
        go_on()
        assert all(future.result(HANG_S) for future in waiting)
    assert producer.send_async(MESSAGE).result(HANG_S)


def test_a_send_that_meets_a_shutdown_is_told_so(cluster: FakeBackend, made: Made) -> None:
    producer = made(cluster)
    assert producer._async is not None
    producer._async.shutdown()  # as another thread may do, at this moment
    with pytest.raises(MQClientError, match="shut down meanwhile"):
        producer.send_async(MESSAGE).result(0)


def test_shutdown_waits_for_what_is_under_way(cluster: FakeBackend, made: Made) -> None:
    producer = made(cluster)
    futures = [producer.send_async(MESSAGE) for _ in range(50)]
    producer.shutdown()
    assert all(future.done() for future in futures)
    assert len(cluster.sent) == 50
