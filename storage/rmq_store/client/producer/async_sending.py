"""Sends in the background: a few threads, a future and callbacks for each send, and limits on waiting sends.

Sources: DefaultMQProducerImpl.java (asyncSenderExecutor, executeAsyncMessageSend), SendCallback.java.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future

from rmq_store.files.locks.background import Pool, SafeFuture
from rmq_store.files.locks.guard import Condition
from rmq_store.protocol.errors import MQClientError, RemotingTooMuchRequestError
from rmq_store.protocol.results import SendResult

_LOG = logging.getLogger(__name__)

WAITING_MAX = 50_000  # the queue of asyncSenderExecutor

OnSuccess = Callable[[SendResult], None]
OnException = Callable[[BaseException], None]


class Limit:
    """Limits units in progress; a caller that requests more waits. A larger request counts as the limit."""

    def __init__(self, units: int) -> None:
        self._units = units
        self._free = units
        self._changed = Condition()

    def acquire(self, units: int, timeout_ms: float) -> bool:
        """Take units; False if they did not become free in time."""
        units = min(units, self._units)
        with self._changed:
            if not self._changed.wait_for(lambda: self._free >= units, max(0.0, timeout_ms) / 1000):
                return False
            self._free -= units
            return True

    def release(self, units: int) -> None:
        """Return units."""
        with self._changed:
            self._free += min(units, self._units)
            self._changed.notify_all()


class AsyncSender:
    """The background threads of one producer. `messages` and `body_bytes`: limits on sends in progress, or None."""

    def __init__(self, threads: int, messages: Limit | None, body_bytes: Limit | None) -> None:
        self._pool = Pool(threads, "AsyncSenderExecutor")
        self._waiting = Limit(WAITING_MAX)
        self._messages = messages
        self._body_bytes = body_bytes

    def submit(
        self,
        send: Callable[[], SendResult],
        size: int,
        remaining_ms: Callable[[], float],
        on_success: OnSuccess | None,
        on_exception: OnException | None,
    ) -> Future[SendResult]:
        """Run `send` in a thread, which calls one of the callbacks before the future is done.

        Blocks while the limits are reached, at most for `remaining_ms()`. Then the outcome is a
        RemotingTooMuchRequestError. If too many sends wait already, it is an MQClientError. The callback gets such a
        refusal in the caller's own thread.
        """
        done: Future[SendResult] = SafeFuture()
        done.set_running_or_notify_cancel()
        taken: list[tuple[Limit, int]] = []

        def finish(result: SendResult | None, error: BaseException | None) -> None:
            for limit, units in taken:
                limit.release(units)
            try:
                if error is None and result is not None:
                    if on_success is not None:
                        on_success(result)
                elif error is not None and on_exception is not None:
                    on_exception(error)
            except Exception:
                # There is nobody left to raise it to: the outcome of the send itself is in the future.
                _LOG.exception("the callback of an asynchronous send failed")
            except BaseException:
                _LOG.exception("the callback of an asynchronous send asked for the end")
                raise
            finally:
                if error is not None:
                    done.set_exception(error)
                elif result is not None:
                    done.set_result(result)

        def run() -> None:
            try:
                result = send()
            except BaseException as error:
                finish(None, error)
            else:
                finish(result, None)

        wishes = ((self._messages, 1, "Num"), (self._body_bytes, size, "Size"))
        for limit, units, name in wishes:
            if limit is not None:
                if not limit.acquire(units, remaining_ms()):
                    finish(None, RemotingTooMuchRequestError(f"send message tryAcquire semaphoreAsync{name} timeout"))
                    return done
                taken.append((limit, units))
        if not self._waiting.acquire(1, 0):
            finish(None, MQClientError(f"executor rejected: {WAITING_MAX} sends wait already"))
            return done
        taken.append((self._waiting, 1))
        try:
            self._pool.submit(run)
        except RuntimeError as error:
            finish(None, MQClientError(f"the producer was shut down meanwhile: {error}"))
        return done

    def shutdown(self) -> None:
        """Wait for the sends in progress."""
        self._pool.shutdown()
