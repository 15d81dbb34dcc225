"""A pool of threads whose queue is bounded, and whose requests do not wait for ever (BrokerFastFailure.java)."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from rmq_store import real_time

T = TypeVar("T")

_log: Final = logging.getLogger(__name__)

_STOP_S: Final = 10.0

TOGETHER_MAX: Final = 64
"""Pieces of work that are done by one call."""
_TOGETHER_BYTES_MAX: Final = 1 << 20


class Work(NamedTuple):
    """`run` is called in a thread of the pool; `give_up` instead if it waited for too long. An error is logged.

    Pieces that wait one behind the other and have the same `together` are done by one call of it: it gets the `subject`
    of each, and returns False if it has done nothing: then each is run alone, if it has not become too old. Such a call
    is for 1 MiB at most, by `size_bytes`, or for one piece.
    """

    arrived_s: float
    run: Callable[[], None]
    give_up: Callable[[], None]
    together: Callable[[Sequence[Any]], bool] | None = None
    subject: Any = None
    size_bytes: int = 0


class WorkerPool:
    """`threads` workers; at most `waiting_max` pieces of work wait, each for at most `wait_ms`.

    A piece of work wakes one thread, that which was busy last. A queue on which all of them wait wakes one more in
    vain, which takes the interpreter's lock from the first: that costs as much as a pull.
    """

    def __init__(self, name: str, threads: int, waiting_max: int, wait_ms: int) -> None:
        self.name = name
        self._waiting_max = waiting_max
        self._wait_s = wait_ms / 1000
        self._lock = threading.Lock()
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
        with self._lock:
            if not force and len(self._waiting) >= self._waiting_max:
                return False
            self._waiting.append(work)
            idle = self._idle.pop() if self._idle else None
        if idle is not None:
            idle.release()
        return True

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits, and no thread is busy."""
        with self._lock:
            return not self._waiting and len(self._idle) == len(self._threads)

    def close(self) -> None:
        """Do what waits, then end the threads."""
        with self._lock:
            self._is_closing = True
            while self._idle:
                self._idle.pop().release()
        deadline_s = real_time.monotonic() + _STOP_S
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - real_time.monotonic()))

    def _next(self, wake: threading.Lock) -> list[Work]:
        """The work that has waited for longest, and what is done together with it; none: there will be no more."""
        while True:
            with self._lock:
                if self._waiting:
                    works = [self._waiting.popleft()]
                    together, size_bytes = works[0].together, works[0].size_bytes
                    while together is not None and self._waiting and len(works) < TOGETHER_MAX:
                        size_bytes += self._waiting[0].size_bytes
                        if self._waiting[0].together is not together or size_bytes > _TOGETHER_BYTES_MAX:
                            break
                        works.append(self._waiting.popleft())
                    return works
                if self._is_closing:
                    return []
                self._idle.append(wake)
            wake.acquire()

    def _work(self) -> None:
        wake = threading.Lock()
        wake.acquire()
        while works := self._next(wake):
            timely = [work for work in works if self._is_timely(work)]
            if len(timely) == 1:
                self._call(timely[0].run)
            elif timely and (together := timely[0].together) is not None:
                if self._call(partial(together, [work.subject for work in timely])) is False:
                    for work in timely:
                        if self._is_timely(work):
                            self._call(work.run)

    def _is_timely(self, work: Work) -> bool:
        """Whether it has not waited for too long; otherwise it is given up."""
        if real_time.monotonic() - work.arrived_s <= self._wait_s:
            return True
        self._call(work.give_up)
        return False

    def _call(self, work: Callable[[], T]) -> T | None:
        try:
            return work()
        except Exception:  # the thread goes on: a pool may have no other one
            _log.exception("work of the pool %s", self.name)
            return None
