"""The lag of consumer groups, line by line, and the rates between two polls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rmq_store.cli.shared.formatting import Rates


class LagLine(NamedTuple):
    """One line: a queue, or the sum of a topic's queues (then `queue` is their number). Over a cluster `queue` has its
    broker in front, and `waiting` is unknown.
    """

    group: str
    topic: str
    queue: str | int
    committed: int | None
    end: int
    lag: int
    lag_ms: int | None
    rate: float | None = None
    eta_ms: float | None = None
    waiting: int | None = None


class LagGauge:
    """Remembers one poll, for the rates of the next one."""

    def __init__(self) -> None:
        self._consumed, self._lags = Rates(), Rates()

    def with_rates(self, lines: Sequence[LagLine], now_ms: int) -> list[LagLine]:
        """The lines with `rate` and `eta_ms`, as far as they are known."""
        consumed = self._consumed.sample(now_ms, {line[:3]: line.committed or 0 for line in lines})
        shrinking = self._lags.sample(now_ms, {line[:3]: line.lag for line in lines})
        return [
            line._replace(rate=consumed.get(line[:3]), eta_ms=eta_ms(line.lag, shrinking.get(line[:3])))
            for line in lines
        ]


def lines_of(queues: Sequence[LagLine], *, per_queue: bool) -> list[LagLine]:
    """The lines of a group's queues, or one for each topic."""
    if per_queue:
        return list(queues)
    topics = sorted({line.topic for line in queues})
    return [_together([line for line in queues if line.topic == topic]) for topic in topics]


def _together(queues: Sequence[LagLine]) -> LagLine:
    """The sum of the queues of one topic."""
    times = [line.lag_ms for line in queues if line.lag_ms is not None]
    committed = [line.committed for line in queues if line.committed is not None]
    return queues[0]._replace(
        queue=f"all {len(queues)}",
        committed=sum(committed) if committed else None,
        end=sum(line.end for line in queues),
        lag=sum(line.lag for line in queues),
        lag_ms=max(times, default=None),
    )


def eta_ms(lag: int, growth: float | None) -> float | None:
    """The time until a lag has gone that grows by `growth` (negative: shrinks) messages a second; None: never."""
    if not lag:
        return 0
    return None if growth is None or growth >= 0 else lag / -growth * 1000
