"""What one line of docs/performance.md is: two measurements, what they are called, and what is aimed at."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench.scratch import Scratch

# The sections of the table, in its order.
GROUPS = (
    "read",
    "write",
    "append",
    "queue read",
    "one message",
    "delivery",
    "send back",
    "push consumer",
    "cluster",
    "replica",
    "server",
    "reliable",
    "mirror",
    "lookup",
    "open",
    "trigger",
    "latency",
    "memory",
)

# One figure, or one for each of `Case.figures`.
Measurement = Callable[[], "float | tuple[float, ...]"]


@dataclass(frozen=True, slots=True)
class Target:
    """What the ratio ours / yardstick should be: at least `limit`, or at most. `floor`: what is still acceptable.

    `ours_at_most` is about our figure alone, in the unit of the case.
    """

    limit: float
    at_least: bool = True
    floor: float | None = None
    ours_at_most: float | None = None


@dataclass(frozen=True, slots=True)
class Pair:
    """Two measurements, called alternately; each returns its own figure in `Case.unit`, not the time of the call."""

    ours: Measurement
    yardstick: Measurement


@dataclass(frozen=True, slots=True)
class Case:
    """One row of the table, or one for each of `figures` if a measurement yields several, such as p50 and p99.

    `yardstick` says in words what we are compared with. `settings` are the facts that a reader needs to repeat the
    measurement, each a note of the page that other rows may share. `limit` is the note that says what keeps our figure
    from being better, found with a profiler. Attempts to improve it belong into docs/adr. `prepare` makes what both
    sides need; its context ends after the last pair. A case with `peers` needs the jars of the released RocketMQ or
    Kafka.
    """

    name: str
    title: str
    group: str
    body_bytes: int | None
    yardstick: str
    unit: str
    target: Target | None
    settings: str | tuple[str, ...]
    prepare: Callable[[Scratch], AbstractContextManager[Pair]]
    limit: str = ""
    peers: bool = False
    figures: tuple[str, ...] = ()

    def setup(self) -> tuple[str, ...]:
        """The notes of `settings`."""
        return (self.settings,) if isinstance(self.settings, str) else self.settings

    def lines(self) -> tuple[tuple[str, str], ...]:
        """(name, title) of each line of the table that this case fills."""
        if not self.figures:
            return ((self.name, self.title),)
        return tuple((f"{self.name}-{figure}", f"{self.title}, {figure}") for figure in self.figures)
