"""How often the waiters of one lock poll it: together about a thousand times a second, however many they are.

The kernel does not notify a waiter when a holder is killed, and a wake-up is lost if the woken waiter is killed. So
each waiter also polls. If each polled every few milliseconds, hundreds of them would use all processors, and the holder
would not proceed. The waiters share one word, the time of the last poll, and need not be counted. A waiter that comes
too soon after another one doubles its sleep; one that comes late halves it.
"""

from __future__ import annotations

import random
from typing import Protocol

from rmq_store import real_time

# One look in so many nanoseconds is enough for all; if none came for four times as long, there are too few.
ENOUGH_NS = 1_000_000
_TOO_FEW_NS = 4 * ENOUGH_NS

# For a few waiters this is all: locks are held for microseconds to milliseconds.
SHORT_S = 5e-3
_LONGEST_S = 1.0

# A sleep that ends so much later means that the process did not run.
STOPPED_S = 1.0

# Without a futex a waiter polls for the first time after so long, then ever later.
FIRST_S = 50e-6


class Shared(Protocol):
    """The word that all waiters of a lock share."""

    last_poll_ns: int
    """Time of the last poll by any waiter (`real_time.monotonic_ns`)."""


class Pace:
    """The pace of one waiter, for one wait. `first_s`: its first sleep; later ones double until they reach SHORT_S."""

    def __init__(self, first_s: float = SHORT_S) -> None:
        self._sleep_s = first_s

    def sleep_s(self) -> float:
        """The next sleep in seconds, at random, so that waiters that were woken together do not poll together again."""
        return self._sleep_s * random.uniform(0.5, 1.5) if self._sleep_s >= SHORT_S else self._sleep_s

    def is_due(self, shared: Shared) -> bool:
        """After a sleep that no wake-up ended: True if this waiter polls now, False if another one has just polled."""
        if self._sleep_s < SHORT_S:
            self._sleep_s = min(2 * self._sleep_s, SHORT_S)
            return True
        now_ns = real_time.monotonic_ns()
        # Not less than 0, either: another container may have a clock of its own.
        since_ns = abs(now_ns - shared.last_poll_ns)
        if since_ns < ENOUGH_NS:
            self._sleep_s = min(2 * self._sleep_s, _LONGEST_S)
            return False
        if since_ns > _TOO_FEW_NS:
            self._sleep_s = max(self._sleep_s / 2, SHORT_S)
        shared.last_poll_ns = now_ns
        return True


class Deadline:
    """The end of one wait. Time in which this process did not run does not count: the holder may be another thread of
    the process, or of one beside it, that was stopped as well (SIGSTOP, a container without processor time).
    """

    def __init__(self, timeout_ms: int) -> None:
        self._seen_s = real_time.monotonic()
        self._end_s = self._seen_s + timeout_ms / 1000

    def left_s(self, slept_s: float = 0.0) -> float:
        """The seconds that are left; `slept_s`: the sleep that was asked for since the last call."""
        now_s = real_time.monotonic()
        stopped_s = now_s - self._seen_s - slept_s
        if stopped_s > STOPPED_S:
            self._end_s += stopped_s
        self._seen_s = now_s
        return self._end_s - now_s
