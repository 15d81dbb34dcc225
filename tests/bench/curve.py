"""What one plot of docs/performance.md is: points of several series, the yardstick among them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from bench.scratch import Progress, Scratch


class Point(NamedTuple):
    x: float
    series: str
    y: float


@dataclass(frozen=True, slots=True)
class Curve:
    """One plot. `points` measures everything, interleaved, and calls `progress.total(n)` and `progress.step()`."""

    name: str
    title: str
    x_label: str
    y_label: str
    log_x: bool
    points: Callable[[Scratch, Progress], list[Point]]
    settings: str = ""
    limit: str = ""
    peers: bool = False
