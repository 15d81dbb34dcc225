"""Rates per second, from two samples; and the format of numbers and durations."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, TypeVar

Key = TypeVar("Key", bound=Hashable)


class Rates:
    """Remembers one sample. Times are those of the store's clock, in ms."""

    def __init__(self) -> None:
        self._time_ms: int | None = None
        self._values: Mapping[Any, int] = {}

    def sample(self, now_ms: int, values: Mapping[Key, int]) -> dict[Key, float]:
        """The growth of each value per second since the previous call; a key that is new is left out."""
        before, self._values = self._values, dict(values)
        before_ms, self._time_ms = self._time_ms, now_ms
        if before_ms is None or now_ms <= before_ms:
            return {}
        passed_s = (now_ms - before_ms) / 1000
        return {key: (value - before[key]) / passed_s for key, value in values.items() if key in before}


def rate_text(rate: float | None) -> str:
    """`12.3`, `1234`; `-` if it is unknown."""
    if rate is None:
        return "-"
    return f"{rate:.0f}" if abs(rate) >= 100 or rate == 0 else f"{rate:.1f}"


def duration_text(duration_ms: float | None) -> str:
    """`0.4 s`, `12 s`, `3 m 20 s`, `5 h 2 m`, `3 d 4 h`; `-` for None."""
    if duration_ms is None:
        return "-"
    seconds = int(duration_ms // 1000)
    if seconds < 10:
        return f"{max(duration_ms, 0) / 1000:.1f} s"
    for unit_s, unit, part_s, part in ((86_400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if seconds >= unit_s:
            return f"{seconds // unit_s} {unit} {seconds % unit_s // part_s} {part}"
    return f"{seconds} s"


def bytes_text(size_bytes: float) -> str:
    """`512 B`, `1.5 KiB`, `3.0 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size_bytes) < 1024:
            return f"{size_bytes:.0f} B" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:.1f} TiB"
