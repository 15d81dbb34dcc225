"""The bytes that connections keep of frames that are not complete yet; there is a limit for all of them together.

Such a frame is no request, so that nothing else counts it. Reading no more would not help: it would never be complete.
"""

from __future__ import annotations

from typing import Protocol


class Keeper(Protocol):
    """A connection, as these counts see it."""

    def give_up(self, reason: str) -> None:
        """End the connection at once, and free what it keeps."""


class IncompleteFrames:
    """Counts what each connection keeps. Beyond `bytes_max` those are given up whose frames have been incomplete for
    the longest time: a client that goes on sending completes its frame. In the thread of the loop only.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._kept: dict[Keeper, int] = {}
        self.count = 0

    def keep(self, connection: Keeper, size: int, *, is_new: bool = False) -> None:
        """A connection keeps `size` bytes now, 0: none. `is_new`: of another frame than before."""
        if is_new or not size:
            self.count -= self._kept.pop(connection, 0)
        if size:
            self.count += size - self._kept.get(connection, 0)
            self._kept[connection] = size
        while self.count > self._bytes_max:
            oldest = next(iter(self._kept))
            self.count -= self._kept.pop(oldest)
            oldest.give_up(f"all incomplete frames have more than {self._bytes_max} bytes, and this one is the oldest")
