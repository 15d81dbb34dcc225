"""How often those who wait for one lock look for it: together about a thousand times a second, however many they are.

The kernel says nothing to a waiter when a holder is killed, and a ring may be lost with the waiter that it woke. So
each of them looks by itself now and then. If each did so every few milliseconds, hundreds would take all processors,
and the holder would not get on. They share one word, the time at which one of them looked last, and need not be
counted: who comes too soon behind another one sleeps twice as long from then on, who comes late half as long.
"""

from __future__ import annotations

import random
import time
from typing import Protocol

# One look in so many nanoseconds is enough for all; if none came for four times as long, there are too few.
ENOUGH_NS = 1_000_000
_TOO_FEW_NS = 4 * ENOUGH_NS

# For a few waiters this is all: locks are held for microseconds to milliseconds.
SHORT_S = 5e-3
_LONGEST_S = 1.0

# Without a bell a waiter looks for the first time after so long, then ever later.
FIRST_S = 50e-6


class Shared(Protocol):
    """The counter that all waiters of a lock share."""

    looked_ns: int
    """When one of them looked last (`time.monotonic_ns`)."""


class Pace:
    """Of one waiter, for one wait. `first_s`: its first sleep, from which it comes to SHORT_S by doubling."""

    def __init__(self, first_s: float = SHORT_S) -> None:
        self._sleep_s = first_s

    def sleep_s(self) -> float:
        """How long to sleep now. At random: those who were woken together do not come again together."""
        return self._sleep_s * random.uniform(0.5, 1.5) if self._sleep_s >= SHORT_S else self._sleep_s

    def is_due(self, shared: Shared) -> bool:
        """Behind a sleep that nobody ended: whether to look now. False if another one has just done so."""
        if self._sleep_s < SHORT_S:
            self._sleep_s = min(2 * self._sleep_s, SHORT_S)
            return True
        now_ns = time.monotonic_ns()
        # Not less than 0, either: another container may have a clock of its own.
        since_ns = abs(now_ns - shared.looked_ns)
        if since_ns < ENOUGH_NS:
            self._sleep_s = min(2 * self._sleep_s, _LONGEST_S)
            return False
        if since_ns > _TOO_FEW_NS:
            self._sleep_s = max(self._sleep_s / 2, SHORT_S)
        shared.looked_ns = now_ns
        return True
