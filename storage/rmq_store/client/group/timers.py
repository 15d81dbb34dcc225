"""Periodic work by a consumer's clock."""

from __future__ import annotations

from collections.abc import Callable

from rmq_store.files.locks.guard import Guard


class SteadyClock:
    """A clock for intervals, where Java has System.nanoTime. If the given clock is set back, this one continues from
    its last time. Safe for threads.
    """

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._last_ms = clock()
        self._behind_ms = 0
        self._guard = Guard()

    def __call__(self) -> int:
        """The time in ms, never less than before."""
        with self._guard.entered():
            now_ms = self._clock()
            self._behind_ms += max(0, self._last_ms - now_ms)
            self._last_ms = now_ms
            return now_ms + self._behind_ms


class Timer:
    """Calls `work` at most once per `interval_ms`, first after `first_ms`. The consumer polls it by `fire_if_due`."""

    def __init__(self, work: Callable[[], None], interval_ms: int, now_ms: int, *, first_ms: int | None = None) -> None:
        self._work = work
        self._interval_ms = interval_ms
        self._due_ms = now_ms + (interval_ms if first_ms is None else first_ms)

    def fire_if_due(self, now_ms: int) -> None:
        """Do the work if it is due; the next interval begins now."""
        if now_ms >= self._due_ms:
            self._due_ms = now_ms + self._interval_ms
            self._work()

    def hurry(self, due_ms: int) -> None:
        """Make the work due at `due_ms` if that is earlier than planned."""
        self._due_ms = min(self._due_ms, due_ms)
