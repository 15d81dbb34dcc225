"""A pool of threads whose queue is bounded, and whose requests do not wait for ever (BrokerFastFailure.java)."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final, NamedTuple

_log: Final = logging.getLogger(__name__)

_STOP_S: Final = 10.0


class Work(NamedTuple):
    """`run` is called in a thread of the pool; `give_up` instead if it waited for too long. An error is logged."""

    arrived_s: float
    run: Callable[[], None]
    give_up: Callable[[], None]


class WorkerPool:
    """`threads` workers; at most `waiting_max` pieces of work wait, each for at most `wait_ms`."""

    def __init__(self, name: str, threads: int, waiting_max: int, wait_ms: int) -> None:
        self.name = name
        self._waiting_max = waiting_max
        self._wait_s = wait_ms / 1000
        self._queue: SimpleQueue[Work | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._work, name=f"{name}-{number}", daemon=True) for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def waiting(self) -> int:
        """How many pieces of work wait now."""
        return self._queue.qsize()

    def submit(self, work: Work, *, force: bool = False) -> bool:
        """Take a piece of work; False if too many wait. `force`: take it all the same."""
        if not force and self._queue.qsize() >= self._waiting_max:
            return False
        self._queue.put(work)
        return True

    def close(self) -> None:
        """Do what waits, then end the threads."""
        for _ in self._threads:
            self._queue.put(None)
        deadline_s = time.monotonic() + _STOP_S
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))

    def _work(self) -> None:
        while (work := self._queue.get()) is not None:
            late = time.monotonic() - work.arrived_s > self._wait_s
            try:
                (work.give_up if late else work.run)()
            except Exception:  # the thread goes on: a pool may have no other one
                _log.exception("work of the pool %s", self.name)
