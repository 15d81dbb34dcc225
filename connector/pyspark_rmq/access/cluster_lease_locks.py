"""The locks of a lease: queue 0 of each topic at each master, under a group of their own (41, 42). Control plane.

A broker forgets a lock 60 s after the request that asked for it last. Brokers of 5.x send what comes back to a group
with locked queues straight to its dead letters, so the locks are not under the group itself.

Source: RebalanceLockManager.java.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection
from typing import Final, NamedTuple

from rmq_store.cluster import Cluster, MessageQueue, MQBrokerError, RemotingError, locks
from rmq_store.errors import StoreError

LEASE_SUFFIX: Final = "_rmq_lease"
RENEW_EVERY_S: Final = 20.0
LOCK_LASTS_S: Final = 60.0
ASK_AGAIN_S: Final = 1.0


class Asked(NamedTuple):
    """The answers to a request for locks, made at `at_s`: the brokers that granted all of them, those whose masters do
    not answer, those that refuse (no right, busy), and those at which another client has one of them.
    """

    at_s: float
    granted: list[str]
    away: dict[str, RemotingError]
    refused: dict[str, MQBrokerError]
    others: list[str]


class LeaseLocks:
    """The locks of one process for one group, whose name has no namespace. It notes where they are held."""

    def __init__(self, cluster: Cluster, group: str, timer_s: Callable[[], float]) -> None:
        self.client_id = ""
        self._cluster = cluster
        self._group = group + LEASE_SUFFIX
        self._timer_s = timer_s
        # Broker -> when the oldest of its locks was asked for. It has all topics, or is not here.
        self._since_s: dict[str, float] = {}
        # When these brokers refused last, for whatever reason.
        self._refused_s: dict[str, float] = {}
        # Broker -> since when another client has a lock there.
        self._disputed_s: dict[str, float] = {}

    def ask(self, topics: Collection[str], broker_names: Collection[str]) -> Asked:
        """Lock these topics at brokers, or renew the locks. It is not noted where they are held."""
        at_s = self._timer_s()
        queues = _lease_queues(topics, broker_names)
        outcomes = locks.try_lock(self._cluster, self._group, self.client_id, queues)
        away = {name: outcome for name, outcome in outcomes.items() if isinstance(outcome, RemotingError)}
        refused = {name: outcome for name, outcome in outcomes.items() if isinstance(outcome, MQBrokerError)}
        answered = {name: locked for name, locked in outcomes.items() if isinstance(locked, set)}
        others = [name for name, locked in answered.items() if len(locked) < len(topics)]
        self._refused_s |= dict.fromkeys((*refused, *others), at_s)
        return Asked(at_s, [name for name in answered if name not in others], away, refused, others)

    def renewed(self, broker_names: Collection[str], at_s: float) -> None:
        """Note that all topics are locked at these brokers."""
        self._since_s |= dict.fromkeys(broker_names, at_s)

    def disputed(self, asked: Asked) -> None:
        """Note at which of the brokers that were asked another client has a lock."""
        before = self._disputed_s
        elsewhere = before.keys() - asked.granted - asked.away.keys() - asked.refused.keys()
        self._disputed_s = {name: before.get(name, asked.at_s) for name in elsewhere.union(asked.others)}

    def are_disputed_at(self, broker_names: Collection[str], for_s: float = 0.0) -> bool:
        """Whether another client has had a lock for so long at one of these brokers."""
        now_s = self._timer_s()
        return any(name in broker_names and now_s - since_s >= for_s for name, since_s in self._disputed_s.items())

    def added(self, broker_names: Collection[str], at_s: float, *, is_first: bool) -> None:
        """Note that one more topic is locked at these brokers, and nowhere else. Locks of other topics are as old as
        before, and where they are not held the next commit or renewal locks all of them.
        """
        before = self._since_s
        self._since_s = {
            name: min(before.get(name, at_s), at_s) for name in broker_names if is_first or name in before
        }

    def are_held_at(self, broker_name: str) -> bool:
        """Whether the broker cannot have forgotten the locks."""
        since_s = self._since_s.get(broker_name)
        return since_s is not None and self._timer_s() - since_s < LOCK_LASTS_S

    def held_at(self) -> list[str]:
        """The brokers that cannot have forgotten the locks."""
        return [name for name in self._since_s if self.are_held_at(name)]

    def may_be_asked_for_at(self, broker_name: str) -> bool:
        """Whether the broker has not just refused: the ends of queues are looked at many times a second."""
        refused_s = self._refused_s.get(broker_name)
        return refused_s is None or self._timer_s() - refused_s >= ASK_AGAIN_S

    def unlock(self, topics: Collection[str], broker_names: Collection[str] | None = None) -> None:
        """Release the locks of these topics at brokers, or at all. One that does not answer forgets them by itself."""
        with contextlib.suppress(StoreError):
            queues = _lease_queues(topics, self._cluster.broker_names() if broker_names is None else broker_names)
            locks.unlock(self._cluster, self._group, self.client_id, queues)

    def forget(self) -> None:
        """Note that they are held nowhere."""
        self._since_s = {}
        self._disputed_s = {}


def _lease_queues(topics: Collection[str], broker_names: Collection[str]) -> list[MessageQueue]:
    return [MessageQueue(topic, name, 0) for topic in sorted(topics) for name in sorted(broker_names)]
