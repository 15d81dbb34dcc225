"""The locks of a lease: queue 0 of each topic at each master, under a group of their own (41, 42).

The lease at one broker is one value, `BrokerLease`. Source: RebalanceLockManager.java.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from typing import Final, NamedTuple

from rmq_store.protocol.answers import is_away
from rmq_store.protocol.errors import MQBrokerError, RemotingError
from rmq_store.protocol.messages import MessageQueue
from rmq_store.remoting.cluster import locks
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.cluster.locks import LEASE_SUFFIX, LOCK_LASTS_S

ASK_AGAIN_S: Final = 1.0
AWAY_AGAIN_S: Final = 20.0
"""As often as locks are renewed, by a thread that keeps no batch waiting."""


class Asked(NamedTuple):
    """The answers to a request for locks, made at `at_s`: the brokers that granted all of them, those whose masters do
    not answer, those that refuse (no right, busy), and those at which another client has one of them.
    """

    at_s: float
    granted: list[str]
    away: dict[str, RemotingError]
    refused: dict[str, MQBrokerError]
    others: list[str]

    @property
    def there(self) -> list[str]:
        """The brokers that have answered, and are not busy."""
        return [*self.granted, *self.others, *(name for name, error in self.refused.items() if not is_away(error))]


class BrokerLease(NamedTuple):
    """The lease of a process at one broker, as far as it knows; times are seconds of its timer.

    `locked_s`: when the oldest of the locks was asked for; None: they are not held, or not all of them. `refused_s`:
    when the broker has not granted one last. `disputed_s`: since when another client has a lock; None: nobody has.
    `away_s`: when its master did not answer, if it has not answered since.
    """

    locked_s: float | None = None
    refused_s: float | None = None
    disputed_s: float | None = None
    away_s: float | None = None

    def is_held(self, now_s: float) -> bool:
        """Whether the broker cannot have forgotten the locks."""
        return self.locked_s is not None and now_s - self.locked_s < LOCK_LASTS_S

    def is_disputed(self, now_s: float, for_s: float = 0.0) -> bool:
        """Whether another client has had a lock there for so long."""
        return self.disputed_s is not None and now_s - self.disputed_s >= for_s

    def is_away(self, now_s: float) -> bool:
        """Whether its master has not answered a moment ago: who asks again waits for a time-out."""
        return self.away_s is not None and now_s - self.away_s < AWAY_AGAIN_S

    def may_be_asked(self, now_s: float) -> bool:
        """Whether the broker has not just refused: the ends of queues are looked at many times a second."""
        return self.refused_s is None or now_s - self.refused_s >= ASK_AGAIN_S


class LeaseLocks:
    """The locks of one process for one group, whose name has no namespace."""

    def __init__(self, cluster: Cluster, group: str, timer_s: Callable[[], float]) -> None:
        self.client_id = ""
        self._cluster = cluster
        self._group = group + LEASE_SUFFIX
        self._timer_s = timer_s
        # It is replaced, never changed: a thread that plans reads and notes while another one renews. Nobody waits for
        # an answer under this lock; the end of the process may come while it is held.
        self._known: Mapping[str, BrokerLease] = {}
        self._noting = threading.RLock()

    def at(self, broker_name: str) -> BrokerLease:
        """The lease at a broker."""
        return self._known.get(broker_name, BrokerLease())

    def held_at(self) -> list[str]:
        """The brokers that cannot have forgotten the locks."""
        now_s = self._timer_s()
        return [name for name, lease in self._known.items() if lease.is_held(now_s)]

    def missing_at(self, broker_names: Collection[str]) -> set[str]:
        """Those of these brokers at which the locks are not held, and may be asked for now."""
        now_s = self._timer_s()
        known = {name: self.at(name) for name in broker_names}
        return {name for name, lease in known.items() if not lease.is_held(now_s) and lease.may_be_asked(now_s)}

    def are_disputed_at(self, broker_names: Collection[str], for_s: float = 0.0) -> bool:
        """Whether another client has had a lock for so long at one of these brokers."""
        now_s = self._timer_s()
        return any(self.at(name).is_disputed(now_s, for_s) for name in broker_names)

    def those_not_away(self, broker_names: Collection[str]) -> list[str]:
        """Those of these brokers whose masters may answer at once."""
        now_s = self._timer_s()
        return [name for name in broker_names if not self.at(name).is_away(now_s)]

    def all_not_away(self) -> list[str]:
        """The brokers of the cluster whose masters may answer at once. RemotingError: no name server answers."""
        return self.those_not_away(self._cluster.broker_names())

    def away(self, broker_names: Collection[str]) -> None:
        """Note that their masters have not answered."""
        self._note(broker_names, away_s=self._timer_s())

    def answered(self, broker_names: Collection[str]) -> None:
        """Note that their masters have answered, whatever they were asked."""
        self._note([name for name in broker_names if self.at(name).away_s is not None], away_s=None)

    def ask(
        self, topics: Collection[str], broker_names: Collection[str], *, through: Cluster | None = None
    ) -> Asked:
        """Lock these topics at brokers, or renew the locks. It is noted who refuses, and not where they are held.
        `through`: another view of the cluster.
        """
        at_s = self._timer_s()
        queues = _lease_queues(topics, broker_names)
        outcomes = locks.try_lock(through or self._cluster, self._group, self.client_id, queues)
        away = {name: outcome for name, outcome in outcomes.items() if isinstance(outcome, RemotingError)}
        refused = {name: outcome for name, outcome in outcomes.items() if isinstance(outcome, MQBrokerError)}
        answered = {name: locked for name, locked in outcomes.items() if isinstance(locked, set)}
        others = [name for name, locked in answered.items() if len(locked) < len(topics)]
        self.away(away)
        self.answered([*refused, *answered])
        self._note([*refused, *others], refused_s=at_s)
        return Asked(at_s, [name for name in answered if name not in others], away, refused, others)

    def renewed(self, broker_names: Collection[str], at_s: float) -> None:
        """Note that all topics are locked at these brokers."""
        self._note(broker_names, locked_s=at_s)

    def disputed(self, asked: Asked) -> None:
        """Note at which of the brokers that were asked another client has a lock, and at which no more."""
        self._note([*asked.granted, *asked.away, *asked.refused], disputed_s=None)
        self._note([name for name in asked.others if self.at(name).disputed_s is None], disputed_s=asked.at_s)

    def added(self, broker_names: Collection[str], at_s: float, *, is_first: bool) -> None:
        """Note that one more topic is locked at these brokers, and nowhere else. Locks of other topics are as old as
        before, and where they are not held the next commit or renewal locks all of them.
        """
        before = {name: at_s if is_first else self.at(name).locked_s for name in broker_names}
        self._note(self._known, locked_s=None)
        for name, locked_s in before.items():
            self._note([name], locked_s=None if locked_s is None else min(locked_s, at_s))

    def unlock(
        self, topics: Collection[str], broker_names: Collection[str], *, through: Cluster | None = None
    ) -> None:
        """Release the locks of these topics at brokers. One that does not answer forgets them by itself."""
        queues = _lease_queues(topics, broker_names)
        errors = locks.try_unlock(through or self._cluster, self._group, self.client_id, queues)
        self.away([name for name, error in errors.items() if isinstance(error, RemotingError)])

    def forget(self) -> None:
        """Note that they are held nowhere."""
        self._known = {}

    def _note(self, broker_names: Collection[str], **changes: float | None) -> None:
        with self._noting:
            self._known = {**self._known, **{name: self.at(name)._replace(**changes) for name in broker_names}}


def _lease_queues(topics: Collection[str], broker_names: Collection[str]) -> list[MessageQueue]:
    return [MessageQueue(topic, name, 0) for topic in sorted(topics) for name in sorted(broker_names)]
