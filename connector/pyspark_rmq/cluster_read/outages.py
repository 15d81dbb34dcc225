"""Processes of brokers that do not answer, from plan to plan. Control plane.

    a plan has found one silent        no later plan asks it, or waits for it: `Look.begin(silent)`
    beside the plans                   a probe (28), which nobody waits for: after 1 s, 2 s more, 4 s more, and so on,
                                       every 30 s at last
    it has answered                    the next plan asks it again. If it goes at once, it is silent again, and the
                                       pauses go on to grow
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark_rmq.cluster_read.look import Process, Silence
from rmq_store.cluster import Cluster, Probes


@dataclass(slots=True)
class _Outage:
    silence: Silence
    probes: Probes
    is_back: bool = False


class Outages:
    """The processes of a cluster that are silent for one reader. Times are in ms, of a clock that never goes back."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._outages: dict[Process, _Outage] = {}

    def found(self, silent: Mapping[Process, Silence], now_ms: float) -> None:
        """A plan has found these processes silent, and all others there, as far as it has asked them."""
        for process in [one for one, outage in self._outages.items() if outage.is_back and one not in silent]:
            del self._outages[process]
        for process, silence in silent.items():
            outage = self._outages.get(process)
            if outage is None:
                self._outages[process] = _Outage(silence, self._cluster.probes(process[0], now_ms, process[1]))
                continue
            outage.silence = silence
            if outage.is_back:
                outage.is_back = False
                outage.probes.again()

    def not_back(self, now_ms: float) -> dict[Process, Silence]:
        """The processes that have not answered a probe. Probes that are due leave here."""
        for outage in self._outages.values():
            if not outage.is_back:
                outage.is_back = outage.probes.are_answered(now_ms)
        return {process: outage.silence for process, outage in self._outages.items() if not outage.is_back}
