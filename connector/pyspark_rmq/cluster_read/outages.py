"""Brokers that are away, from plan to plan, until they answer. Control plane.

    a plan has found a broker away     no later plan asks it, or waits for it: `Look.begin(without)`
    beside the plans                   a probe (28) to each of its processes, which nobody waits for: after 1 s, 2 s
                                       more, 4 s more, and so on, every 30 s at last
    a process has answered             the next plan asks the broker again, from its ends on. If it goes at once, it is
                                       away again, since the same moment

A refusal for want of rights is an answer; "busy" and "shutting down" are none.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field

from pyspark_rmq.cluster_read.look import BrokerError
from rmq_store.cluster import (
    Cluster,
    MQBrokerError,
    RemotingCommand,
    RemotingError,
    ask_runtime_info,
    broker_error,
    is_away,
)

PROBE_AFTER_MS = 1000.0
PROBE_EVERY_MS_MAX = 30_000.0


@dataclass(slots=True)
class _Outage:
    """`probes`: those on their way."""

    error: BrokerError
    since_ms: float
    probe_at_ms: float
    pause_ms: float = 2 * PROBE_AFTER_MS
    is_back: bool = False
    probes: list[Future[RemotingCommand]] = field(default_factory=list)


class Outages:
    """The brokers of a cluster that are away for one reader. Times are in ms, of a clock that never goes back."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._outages: dict[str, _Outage] = {}

    def found(self, away: Mapping[str, BrokerError], now_ms: float) -> None:
        """A plan has found these brokers away, and all others there, as far as it has asked them."""
        for name in [name for name, outage in self._outages.items() if outage.is_back and name not in away]:
            del self._outages[name]
        for name, error in away.items():
            before = self._outages.get(name)
            if before is None:
                self._outages[name] = _Outage(error, now_ms, now_ms + PROBE_AFTER_MS)
            elif before.is_back:
                before.is_back = False
                self._next_probe(before, now_ms)

    def not_back(self, now_ms: float) -> dict[str, BrokerError]:
        """The brokers that have not answered a probe, each with its first error. Probes that are due leave here."""
        for name, outage in self._outages.items():
            if not outage.is_back:
                self._look_at(name, outage, now_ms)
        return {name: outage.error for name, outage in self._outages.items() if not outage.is_back}

    def since_ms(self, broker_name: str) -> float | None:
        """When the broker was found away; None: it is there."""
        outage = self._outages.get(broker_name)
        return None if outage is None else outage.since_ms

    def _look_at(self, name: str, outage: _Outage, now_ms: float) -> None:
        if not outage.probes and now_ms >= outage.probe_at_ms:
            outage.probes = self._sent(name)
        done = [probe for probe in outage.probes if probe.done()]
        outage.is_back = any(_has_answered(probe, name) for probe in done)
        if outage.is_back:
            outage.probes = []
        elif len(done) == len(outage.probes) and now_ms >= outage.probe_at_ms:
            self._next_probe(outage, now_ms)

    def _sent(self, name: str) -> list[Future[RemotingCommand]]:
        try:
            broker = self._cluster.routes.not_reached(name)
        except (RemotingError, MQBrokerError):  # no name server answers, and the broker is not known
            broker = None
        timeout_ms = self._cluster.settings.timeout_ms
        addresses = [] if broker is None else list(broker.addresses.values())
        return [self._cluster.client.submit(address, ask_runtime_info(), timeout_ms) for address in addresses]

    def _next_probe(self, outage: _Outage, now_ms: float) -> None:
        outage.probes = []
        outage.probe_at_ms = now_ms + outage.pause_ms
        outage.pause_ms = min(outage.pause_ms * 2, PROBE_EVERY_MS_MAX)


def _has_answered(probe: Future[RemotingCommand], broker_name: str) -> bool:
    error = probe.exception()
    if error is None:
        answer = probe.result()
        return answer.code == 0 or not is_away(broker_error(answer, broker_name))
    return False
