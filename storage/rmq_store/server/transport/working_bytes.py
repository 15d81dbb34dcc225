"""How many bytes of requests are in work: those that are taken, and not yet answered or held."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

# Reading begins again when there is some room, not for each single request.
_RESUME_SHARE: Final = 0.75


class WorkingBytes:
    """Counts bytes, up to `bytes_max`. `on_full(is full)` is called when that is reached, and when there is room again;
    in any thread, and must not wait. Safe for threads.
    """

    def __init__(self, bytes_max: int, on_full: Callable[[bool], None]) -> None:
        self._bytes_max = bytes_max
        self._on_full = on_full
        self._lock = threading.Lock()
        self.count = 0
        self.is_full = False

    def add(self, size: int) -> None:
        """A request came (`size` above 0), or is done with (below 0)."""
        with self._lock:
            self.count += size
            limit = self._bytes_max * _RESUME_SHARE if self.is_full else self._bytes_max
            if (self.count >= limit) is self.is_full:
                return
            self.is_full = not self.is_full
            self._on_full(self.is_full)


class Charge:
    """The bytes of one request, until they are released for the first time. Safe for threads."""

    __slots__ = ("_on_released", "_size")

    def __init__(self, size: int, on_released: Callable[[int], None]) -> None:
        self._size = [size]
        self._on_released = on_released

    def release(self) -> None:
        """Count it no more. Does nothing the second time."""
        try:
            size = self._size.pop()
        except IndexError:
            return
        self._on_released(size)
