"""The lag of consumer groups, line by line, and the rates between two polls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rmq_store.cli.shared.formatting import Rates
from rmq_store.cli.target.rows import Total, together


class LagLine(NamedTuple):
    """One line: a queue, or the sum of a topic's queues (then `queue` is their number). Over a cluster `queue` has its
    broker in front, and `waiting` is unknown. `committed`: without a number if there is no offset; `lag_ms`: if nothing
    is to consume, or its age is not known. While a part of a lag is unknown, it has no rate.
    """

    group: str
    topic: str
    queue: str | int
    committed: Total
    end: Total
    lag: Total
    lag_ms: Total
    rate: float | None = None
    eta_ms: float | None = None
    waiting: int | None = None


class LagGauge:
    """Remembers one poll, for the rates of the next one."""

    def __init__(self) -> None:
        self._consumed, self._lags = Rates(), Rates()

    def with_rates(self, lines: Sequence[LagLine], now_ms: int) -> list[LagLine]:
        """The lines with `rate` and `eta_ms`, as far as they are known."""
        lags = {line[:3]: line.lag.exact for line in lines}
        exact = {key: lag for key, lag in lags.items() if lag is not None}
        consumed = self._consumed.sample(
            now_ms, {line[:3]: line.committed.known or 0 for line in lines if line[:3] in exact}
        )
        shrinking = self._lags.sample(now_ms, exact)
        return [
            line._replace(rate=consumed.get(line[:3]), eta_ms=eta_ms(lags[line[:3]], shrinking.get(line[:3])))
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
    lag = together(line.lag for line in queues)
    times = [line.lag_ms.known for line in queues if line.lag_ms.known is not None]
    return queues[0]._replace(
        queue=f"all {len(queues)}",
        committed=together(line.committed for line in queues),
        end=together(line.end for line in queues),
        lag=lag,
        lag_ms=Total(max(times, default=None), lag.away),
    )


def eta_ms(lag: int | None, growth: float | None) -> float | None:
    """The time until a lag has gone that grows by `growth` (negative: shrinks) messages a second; None: never, or not
    known.
    """
    if lag == 0:
        return 0
    return None if lag is None or growth is None or growth >= 0 else lag / -growth * 1000
