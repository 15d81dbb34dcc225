"""How many bytes may be on their way to a broker at once. Pure: `now_ms` is given.

A window halves when its broker is busy, down to a request of the smallest size, and then the broker is left alone for a
while that doubles with each such answer. It grows by what was stored, so it is back after about as much as it holds.
"""

from __future__ import annotations

from typing import Final

from rmq_store.backoff import Backoff

WINDOW_BYTES_MIN: Final = 256 << 10
WINDOW_BYTES_MAX: Final = 8 << 20
_PAUSES: Final = Backoff(first_ms=10, max_ms=1_000)


class ByteWindow:
    """The window of one broker, for one task."""

    def __init__(self) -> None:
        self.limit_bytes = WINDOW_BYTES_MAX // 2
        self.used_bytes = 0
        self._busy_answers = 0
        self._closed_until_ms = 0.0

    def opens_at_ms(self, size_bytes: int, now_ms: float) -> float | None:
        """When a request of so many bytes may go: now or later; None: when an answer has made room. A request larger
        than the window goes alone.
        """
        if self.used_bytes and self.used_bytes + size_bytes > self.limit_bytes:
            return None
        return max(now_ms, self._closed_until_ms)

    def take(self, size_bytes: int) -> None:
        """A request goes."""
        self.used_bytes += size_bytes

    def release(self, size_bytes: int) -> None:
        """Its answer is there, or will never be."""
        self.used_bytes -= size_bytes

    def grow(self, size_bytes: int) -> None:
        """So many bytes were stored."""
        self.limit_bytes = min(WINDOW_BYTES_MAX, self.limit_bytes + size_bytes)
        self._busy_answers = 0

    def shrink(self, now_ms: float) -> None:
        """The broker is busy."""
        self.limit_bytes = max(WINDOW_BYTES_MIN, self.limit_bytes // 2)
        self._busy_answers += 1
        self._closed_until_ms = now_ms + _PAUSES.wait_ms(self._busy_answers)
