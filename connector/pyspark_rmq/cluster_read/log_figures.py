"""Brokers that may have stored something: one figure of each (28) instead of a question for each topic. Control plane.

    the log's ends are those of the last look      nothing was stored, and nothing was deleted: quiet
    they differ, or another process answers        the broker's topics are asked
    they differed less than SETTLE_MS ago, or      asked: a message is in the log before it is in its queue
    the broker says that queues are behind
    no answer, or busy                             asked each time, for the figure, too
    no such figure, no rights                      asked each time; for the figure again after 60 s

A figure only spares questions. Whatever it does not show is found by the slow round through all topics (`known_ends`).

Source: AdminBrokerProcessor.java (getBrokerRuntimeInfo), DefaultMessageStore.java (getRuntimeInfo). Neither 4.9 nor 5.x
looks at rights for 28: known credentials are enough.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

from rmq_store.cluster import Cluster, LogFigure, log_figures

SETTLE_MS: Final = 1000.0
WITHOUT_FIGURE_MS: Final = 60_000.0


class _Seen(NamedTuple):
    figure: LogFigure
    changed_ms: float


class LogFigures:
    """The figures of brokers, as they were last told. Times are in ms, of a clock that never goes back."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._seen: dict[str, _Seen] = {}
        self._without_until_ms: dict[str, float] = {}

    def quiet(self, broker_names: Collection[str], now_ms: float) -> set[str]:
        """Those of the brokers that have nothing new since the last call. Each is asked once, all at once."""
        asked = [name for name in broker_names if self._without_until_ms.get(name, now_ms) <= now_ms]
        quiet: set[str] = set()
        for name, figure in log_figures(self._cluster, asked).items():
            if not isinstance(figure, LogFigure):
                self._seen.pop(name, None)
                if figure is None:
                    self._without_until_ms[name] = now_ms + WITHOUT_FIGURE_MS
                continue
            before = self._seen.get(name)
            is_same = before is not None and before.figure == figure
            changed_ms = before.changed_ms if before is not None and is_same else now_ms
            self._seen[name] = _Seen(figure, changed_ms)
            if is_same and now_ms - changed_ms >= SETTLE_MS and not figure.dispatch_behind_bytes:
                quiet.add(name)
        return quiet
