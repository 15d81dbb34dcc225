"""A bounded executor for the questions of brokers (TransactionMQProducer.java)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from queue import SimpleQueue

from rmq_store import real_time
from rmq_store.client.producer.async_sending import Limit
from rmq_store.files.locks.background import Background

_log = logging.getLogger(__name__)


class CheckExecutor:
    """Up to `threads` threads; at most `hold_max` calls wait or run. The threads keep no process alive."""

    def __init__(self, threads: int, hold_max: int) -> None:
        self._count = threads
        self._free = Limit(hold_max)
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads: list[Background] = []
        self._is_over = False

    def submit(self, call: Callable[[], None]) -> bool:
        """Make a call in one of the threads; False: too many wait, or `shutdown` was called. Never waits."""
        if self._is_over or not self._free.acquire(1, 0):
            return False
        if len(self._threads) < self._count:
            thread = Background(self._work, f"rmq-transaction-checks_{len(self._threads)}")
            self._threads.append(thread)
            thread.start()
        self._calls.put(call)
        return True

    def shutdown(self, timeout_ms: int) -> bool:
        """Refuse new calls, and wait for those that were taken; False: after `timeout_ms` some had not ended."""
        self._is_over = True
        for _ in self._threads:
            self._calls.put(None)
        until_s = real_time.monotonic() + timeout_ms / 1000
        have_ended = [thread.join(max(0.0, until_s - real_time.monotonic())) for thread in self._threads]
        return all(have_ended)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                call()
            except BaseException:
                _log.exception("a check of a transaction failed")
            finally:
                self._free.release(1)
