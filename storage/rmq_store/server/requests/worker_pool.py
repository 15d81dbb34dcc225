"""A pool of threads whose queue is bounded, and whose requests do not wait for ever (BrokerFastFailure.java)."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

_log: Final = logging.getLogger(__name__)

_STOP_S: Final = 10.0


class Work(NamedTuple):
    """`run` is called in a thread of the pool; `give_up` instead if it waited for too long. An error is logged."""

    arrived_s: float
    run: Callable[[], None]
    give_up: Callable[[], None]


class WorkerPool:
    """`threads` workers; at most `waiting_max` pieces of work wait, each for at most `wait_ms`.

    A piece of work wakes one thread, that which was busy last. A queue on which all of them wait wakes one more in
    vain, which takes the interpreter's lock from the first: that costs as much as a pull.
    """

    def __init__(self, name: str, threads: int, waiting_max: int, wait_ms: int) -> None:
        self.name = name
        self._waiting_max = waiting_max
        self._wait_s = wait_ms / 1000
        self._turn = threading.Lock()
        self._waiting: deque[Work] = deque()
        # Of each thread that has nothing to do, the lock that it waits for.
        self._idle: list[threading.Lock] = []
        self._is_closing = False
        self._threads = [
            threading.Thread(target=self._work, name=f"{name}-{number}", daemon=True) for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, work: Work, *, force: bool = False) -> bool:
        """Take a piece of work; False if too many wait. `force`: take it all the same."""
        with self._turn:
            if not force and len(self._waiting) >= self._waiting_max:
                return False
            self._waiting.append(work)
            idle = self._idle.pop() if self._idle else None
        if idle is not None:
            idle.release()
        return True

    def close(self) -> None:
        """Do what waits, then end the threads."""
        with self._turn:
            self._is_closing = True
            while self._idle:
                self._idle.pop().release()
        deadline_s = time.monotonic() + _STOP_S
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))

    def _next(self, wake: threading.Lock) -> Work | None:
        """The work that has waited for longest; None: there will be no more."""
        while True:
            with self._turn:
                if self._waiting:
                    return self._waiting.popleft()
                if self._is_closing:
                    return None
                self._idle.append(wake)
            wake.acquire()

    def _work(self) -> None:
        wake = threading.Lock()
        wake.acquire()
        while (work := self._next(wake)) is not None:
            late = time.monotonic() - work.arrived_s > self._wait_s
            try:
                (work.give_up if late else work.run)()
            except Exception:  # the thread goes on: a pool may have no other one
                _log.exception("work of the pool %s", self.name)
