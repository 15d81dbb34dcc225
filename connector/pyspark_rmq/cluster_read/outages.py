"""Brokers that are away, from plan to plan, until they answer. Control plane.

    a plan has found a broker away     no later plan asks it, or waits for it: `Look.begin(without)`
    beside the plans                   a probe (28) to each of its processes, which nobody waits for: after 1 s, 2 s
                                       more, 4 s more, and so on, every 30 s at last
    a process has answered             the next plan asks the broker again, from its ends on. If it goes at once, it is
                                       away again, and the pauses go on to grow

A refusal for want of rights is an answer; "busy" and "shutting down" are none.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

from pyspark_rmq.cluster_read.look import BrokerError
from rmq_store.cluster import (
    Cluster,
    MQBrokerError,
    Probes,
    RemotingCommand,
    RemotingError,
    ask_runtime_info,
    broker_error,
    is_away,
)


@dataclass(slots=True)
class _Outage:
    error: BrokerError
    since_ms: float
    probes: Probes
    is_back: bool = False


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
            outage = self._outages.get(name)
            if outage is None:
                self._outages[name] = _Outage(error, now_ms, Probes(partial(self._send, name), now_ms))
            elif outage.is_back:
                outage.is_back = False
                outage.probes.again()

    def not_back(self, now_ms: float) -> dict[str, BrokerError]:
        """The brokers that have not answered a probe, each with its first error. Probes that are due leave here."""
        for name, outage in self._outages.items():
            if not outage.is_back:
                answers = outage.probes.answers(now_ms)
                outage.is_back = any(answer.code == 0 or not is_away(broker_error(answer, name)) for answer in answers)
        return {name: outage.error for name, outage in self._outages.items() if not outage.is_back}

    def _send(self, name: str) -> list[Future[RemotingCommand]]:
        try:
            broker = self._cluster.routes.not_reached(name)
        except (RemotingError, MQBrokerError):  # no name server answers, and the broker is not known
            broker = None
        timeout_ms = self._cluster.settings.timeout_ms
        addresses = [] if broker is None else list(broker.addresses.values())
        return [self._cluster.client.submit(address, ask_runtime_info(), timeout_ms) for address in addresses]
