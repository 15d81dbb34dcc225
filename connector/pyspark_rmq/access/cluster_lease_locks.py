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
LOCK_LASTS_S: Final = 60.0
ASK_AGAIN_S: Final = 1.0


class Asked(NamedTuple):
    """The answers to a request for locks, made at `at_s`: the brokers that granted all of them, those whose masters do
    not answer, those that refuse (no right, busy), and whether another client has one. Then none of them is kept.
    """

    at_s: float
    granted: list[str]
    away: dict[str, RemotingError]
    refused: dict[str, MQBrokerError]
    is_others: bool


class LeaseLocks:
    """The locks of one process for one group, whose name has no namespace. It notes where they are held."""

    def __init__(self, cluster: Cluster, group: str, timer_s: Callable[[], float]) -> None:
        self.client_id = ""
        self._cluster = cluster
        self._group = group + LEASE_SUFFIX
        self._timer_s = timer_s
        # Broker -> when the oldest of its locks was asked for. It has all topics, or is not here.
        self._since_s: dict[str, float] = {}
        self._refused_s: dict[str, float] = {}

    def ask(self, topics: Collection[str], broker_names: Collection[str]) -> Asked:
        """Lock these topics at brokers, or renew the locks. It is not noted where they are held."""
        at_s = self._timer_s()
        queues = _lease_queues(topics, broker_names)
        outcomes = locks.try_lock(self._cluster, self._group, self.client_id, queues)
        away = {name: outcome for name, outcome in outcomes.items() if isinstance(outcome, RemotingError)}
        refused = {name: outcome for name, outcome in outcomes.items() if isinstance(outcome, MQBrokerError)}
        self._refused_s |= dict.fromkeys(refused, at_s)
        granted = [name for name in outcomes if name not in away and name not in refused]
        is_others = any(len(outcomes[name]) < len(topics) for name in granted)  # type: ignore[arg-type]
        if is_others:
            self.unlock(topics)
        return Asked(at_s, granted, away, refused, is_others)

    def renewed(self, broker_names: Collection[str], at_s: float) -> None:
        """Note that all topics are locked at these brokers."""
        self._since_s |= dict.fromkeys(broker_names, at_s)

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

    def may_be_asked_for_at(self, broker_name: str) -> bool:
        """Whether the broker has not just refused: the ends of queues are looked at many times a second."""
        refused_s = self._refused_s.get(broker_name)
        return refused_s is None or self._timer_s() - refused_s >= ASK_AGAIN_S

    def unlock(self, topics: Collection[str]) -> None:
        """Release the locks of these topics at all brokers. One that does not answer forgets them by itself."""
        with contextlib.suppress(StoreError):
            queues = _lease_queues(topics, self._cluster.broker_names())
            locks.unlock(self._cluster, self._group, self.client_id, queues)

    def forget(self) -> None:
        """Note that they are held nowhere."""
        self._since_s = {}


def _lease_queues(topics: Collection[str], broker_names: Collection[str]) -> list[MessageQueue]:
    return [MessageQueue(topic, name, 0) for topic in sorted(topics) for name in sorted(broker_names)]
