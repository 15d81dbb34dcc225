"""The waits of a mirror: for a time window, for its rate, for Kafka and for the store."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Final, TypeVar

from rmq_store import real_time
from rmq_store.bridge.mirror.report import MirrorReport
from rmq_store.errors import KafkaUnavailableError, UsageError
from rmq_store.lazy.dataclasses import dataclass

REPORT_S: Final = 2.0
"""A waiting mirror reports so often, in seconds."""

RETRY_S: Final = 1.0

_WINDOW = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])-([01][0-9]|2[0-3]):([0-5][0-9])", re.ASCII)
_DAY_MINUTES: Final = 24 * 60
_MINUTE_MS: Final = 60_000

Answer = TypeVar("Answer")


class Stopped(Exception):
    """Somebody asked the mirror to stop while it waited."""


@dataclass(frozen=True, slots=True)
class Window:
    """A part of each day, UTC: [start, end) in minutes since midnight. With `end < start` it includes midnight."""

    start: int
    end: int

    @classmethod
    def parse(cls, text: str) -> Window:
        """Parse `22:00-06:00`. Raises UsageError."""
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
    """Limits the average number of records per second; None: no limit."""

    def __init__(self, records_per_s: float | None, clock_s: Callable[[], float] = real_time.monotonic) -> None:
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
        """Count records that were copied."""
        if self._rate is not None:
            self._free_s = max(self._free_s, self._clock_s()) + count / self._rate


def closed_s(windows: tuple[Window, ...]) -> float:
    """Seconds until one of the windows opens; 0: one is open, or there are none."""
    now_ms = time.time_ns() // 1_000_000
    return min((window.wait_ms(now_ms) for window in windows), default=0) / 1000


@dataclass(frozen=True, slots=True)
class Waits:
    """The waits of one mirror, which show in its report. `wait(seconds)` returns True at once if the mirror is to stop.
    `patience_s`: how long Kafka may be unavailable; None: for ever. All methods may raise `Stopped`.
    """

    _wait: Callable[[float], bool]
    _pace: Pace
    _windows: tuple[Window, ...]
    _report: MirrorReport
    _on_report: Callable[[MirrorReport], None]
    _patience_s: float | None

    def sleep(self, seconds: float) -> None:
        """Wait."""
        if self._wait(seconds):
            raise Stopped

    def retry(self, state: str) -> None:
        """Report `state`, and wait before a second attempt."""
        self._report.state = state
        self._on_report(self._report)
        self.sleep(RETRY_S)

    def until_allowed(self) -> None:
        """Wait for a window, and for the rate; notices in any case that the mirror is to stop."""
        while (wait_s := closed_s(self._windows)) > 0:
            self._report.state = "outside of its window"
            self._on_report(self._report)
            self.sleep(min(wait_s, REPORT_S))
        while (wait_s := self._pace.wait_s()) > 0:
            self._on_report(self._report)
            self.sleep(min(wait_s, REPORT_S))
        self.sleep(0)

    def answered(self, ask: Callable[[], Answer]) -> Answer:
        """Kafka's answer to `ask`, which is called again while Kafka is unavailable.

        Raises:
            KafkaUnavailableError: for longer than `patience_s`.
        """
        since_s = real_time.monotonic()
        while True:
            try:
                return ask()
            except KafkaUnavailableError as error:
                if self._patience_s is not None and real_time.monotonic() - since_s > self._patience_s:
                    raise
                state = f"waiting for Kafka: {error}"
            self.retry(state)
