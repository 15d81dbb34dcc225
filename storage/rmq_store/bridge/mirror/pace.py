"""The time windows in which a mirror may copy, and its rate limit."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from rmq_store.errors import UsageError

_WINDOW = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])-([01][0-9]|2[0-3]):([0-5][0-9])", re.ASCII)
_DAY_MINUTES: Final = 24 * 60
_MINUTE_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class Window:
    """A part of each day, UTC: [start, end) in minutes since midnight, which may lie in between."""

    start: int
    end: int

    @classmethod
    def parse(cls, text: str) -> Window:
        """`22:00-06:00`. UsageError."""
        found = _WINDOW.fullmatch(text)
        if found is None:
            raise UsageError(f"--window {text!r}: times of a day, such as 22:00-06:00 (UTC), are expected")
        hours = [int(part) for part in found.groups()]
        window = cls(hours[0] * 60 + hours[1], hours[2] * 60 + hours[3])
        if window.start == window.end:
            raise UsageError(f"--window {text!r} is empty")
        return window

    def wait_ms(self, now_ms: int) -> int:
        """Milliseconds until the window opens; 0: it is open."""
        into_day_ms = now_ms % (_DAY_MINUTES * _MINUTE_MS)
        minute = into_day_ms // _MINUTE_MS
        if self.start <= minute < self.end or (self.end < self.start and not self.end <= minute < self.start):
            return 0
        return (self.start * _MINUTE_MS - into_day_ms) % (_DAY_MINUTES * _MINUTE_MS)


class Pace:
    """Limits the average records per second; None: no limit."""

    def __init__(self, records_per_s: float | None, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._rate = records_per_s
        self._clock_s = clock_s
        self._free_s = 0.0

    @property
    def unit_rows(self) -> int | None:
        """The number of records that may be copied at once: those of one second."""
        return None if self._rate is None else max(1, int(self._rate))

    def wait_s(self) -> float:
        """Seconds until more records may be copied."""
        return 0.0 if self._rate is None else max(0.0, self._free_s - self._clock_s())

    def took(self, count: int) -> None:
        """So many were copied."""
        if self._rate is not None:
            self._free_s = max(self._free_s, self._clock_s()) + count / self._rate
