"""A rate limiter for consumers: messages above the rate stay in their queue instead of being failed and retried.

    RateLimiter(50)     50 messages a second, and up to one second's worth at once after a pause

The cost of a request is paid by the next one: a request is granted when all before it are paid off.
Source: the behaviour of Guava's RateLimiter.create(double), which RocketMQ's article on retries recommends.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from rmq_store.clock import system_clock
from rmq_store.errors import UsageError
from rmq_store.files.locks.guard import Guard

_BURST_MS = 1000.0


class RateLimiter:
    """Grants `permits_per_second` permits a second. Safe for threads."""

    def __init__(self, permits_per_second: float, *, clock: Callable[[], int] = system_clock) -> None:
        if not (math.isfinite(permits_per_second) and permits_per_second > 0):
            raise UsageError(f"permits_per_second {permits_per_second!r} is not above 0")
        self._interval_ms = 1000.0 / permits_per_second
        self._stored_max = _BURST_MS / self._interval_ms
        self._stored = 0.0
        self._clock = clock
        self._seen_ms = self._free_at_ms = float(clock())
        self._lock = Guard()

    def reserve(self, permits: int = 1) -> int:
        """Take permits now and return the time in ms at which they become valid."""
        if permits < 1:
            raise UsageError(f"permits {permits!r}: at least one")
        with self._lock.entered():
            now_ms = float(self._clock())
            # A clock that was set back must not make anybody wait for that long.
            self._free_at_ms -= max(0.0, self._seen_ms - now_ms)
            self._seen_ms = now_ms
            if now_ms > self._free_at_ms:
                self._stored = min(self._stored_max, self._stored + (now_ms - self._free_at_ms) / self._interval_ms)
                self._free_at_ms = now_ms
            granted_ms = self._free_at_ms
            from_store = min(float(permits), self._stored)
            self._stored -= from_store
            self._free_at_ms += (permits - from_store) * self._interval_ms
        return math.ceil(granted_ms)

    def wait_ms(self, permits: int = 1) -> int:
        """Take permits now and return how long to wait before they may be used."""
        return max(0, self.reserve(permits) - self._clock())

    def acquire(self, permits: int = 1, *, sleep: Callable[[float], None] = time.sleep) -> float:
        """Take permits and sleep until they may be used; returns the seconds slept."""
        wait_s = self.wait_ms(permits) / 1000
        if wait_s:
            sleep(wait_s)
        return wait_s
