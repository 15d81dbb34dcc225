"""Whether a request is answered in the thread of the connections, which has just read it.

To give it to a thread of a pool costs more than to store a message: threads take turns, and take the interpreter's lock
from each other at each system call. But nobody else is served meanwhile. So that thread does only what needs not wait,
and gives the rest to the pools.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from rmq_store import real_time
from rmq_store.server.requests.worker_pool import WorkerPool

T = TypeVar("T")

# For the requests that one client has sent together.
_TURN_S: Final = 0.005
# Longer than anything in memory takes: the disk was slow, or messages were large.
_SLOW_S: Final = 0.02
_PAUSE_S: Final = 1.0


class AtOnce:
    """Requests are answered at once while their pool has nothing to do, so that they do not overtake others; for
    _TURN_S in a turn; and not for _PAUSE_S after one that took longer than _SLOW_S.
    """

    def __init__(self, clock: Callable[[], float] = real_time.monotonic) -> None:
        self._clock = clock
        self._not_before_s = 0.0

    def begin(self) -> float:
        """The beginning of a turn, for `answer`."""
        return self._clock()

    def answer(self, pool: WorkerPool, begin_s: float, answered: Callable[[], bool]) -> bool:
        """Call `answered` if it is the time for it, and return what it returns: whether it has done the work."""
        now_s = self._clock()
        if now_s - begin_s >= _TURN_S:
            return False
        return self._answer(pool, now_s, answered) or False

    def first(self, pool: WorkerPool, answered: Callable[[], T]) -> T | None:
        """As `answer`, of what a turn begins with; None: it is not the time for it."""
        return self._answer(pool, self._clock(), answered)

    def _answer(self, pool: WorkerPool, now_s: float, answered: Callable[[], T]) -> T | None:
        if now_s < self._not_before_s or not pool.is_idle:
            return None
        done = answered()
        end_s = self._clock()
        if end_s - now_s >= _SLOW_S:
            self._not_before_s = end_s + _PAUSE_S
        return done
