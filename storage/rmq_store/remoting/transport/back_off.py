"""Pauses between attempts to connect to one address."""

from __future__ import annotations

import random
from typing import Final

FIRST_S: Final = 0.1
FACTOR: Final = 1.6
MAX_S: Final = 5.0
JITTER: Final = 0.2


class BackOff:
    """Grows with every connection that failed, or ended before its first answer; an answer ends it.

    Not thread-safe: its user holds a lock.
    """

    __slots__ = ("failures", "reason", "until")

    def __init__(self) -> None:
        self.failures = 0
        self.until = 0.0
        self.reason = ""

    def failed(self, now: float, reason: str) -> None:
        """Record a failure: `until` is the time of the next attempt."""
        pause = min(FIRST_S * FACTOR**self.failures, MAX_S)
        # Not for ever: a float has an end.
        self.failures = min(self.failures + 1, 100)
        self.reason = reason
        self.until = now + pause * random.uniform(1 - JITTER, 1 + JITTER)

    def worked(self) -> None:
        """Record an answer."""
        self.failures, self.until, self.reason = 0, 0.0, ""
