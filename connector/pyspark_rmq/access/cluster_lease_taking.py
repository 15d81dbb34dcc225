"""The lease of a topic, and how it is taken: its locks at all masters, while nobody else that lives has one.

`cluster_group` has the whole of the rule.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Final

from pyspark_rmq.access.cluster_lease_locks import LOCK_LASTS_S, RENEW_EVERY_S, Asked, LeaseLocks
from pyspark_rmq.access.cluster_membership import Membership
from rmq_store.cluster import Cluster, RemotingError
from rmq_store.errors import LeaseHeldError

_log = logging.getLogger(__name__)

WATCH_S: Final = RENEW_EVERY_S + 2.0
LOOK_EVERY_S: Final = 1.0


class LeaseTaking:
    """Takes leases for one group of one process, whose locks and membership these are."""

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        locks: LeaseLocks,
        member: Membership,
        *,
        sleep: Callable[[float], None],
        timer_s: Callable[[], float],
    ) -> None:
        self.name = name
        self._cluster = cluster
        self._locks = locks
        self._member = member
        self._sleep = sleep
        self._timer_s = timer_s

    def locked(self, topic: str, *, watches: bool) -> Asked:
        """Lock the topic at all masters that answer, and return their answers. With `watches` members are watched
        first if a master is away. A lock of nobody who lives is waited for, 60 s at most; as long for any master.

        Raises:
            LeaseHeldError: another client has a lock, or lives as a member. It names them.
            RemotingError: no master answers. MQBrokerError: a broker refuses.
        """
        silent_until_s = self._timer_s() + LOCK_LASTS_S
        held_until_s = silent_until_s + LOOK_EVERY_S
        while True:
            asked = self._locks.ask([topic], self._cluster.broker_names())
            if asked.refused:
                raise next(iter(asked.refused.values()))
            if asked.others:
                self._locks.unlock([topic])
                others = self._member.others()
                if others or self._timer_s() > held_until_s:
                    holder = ", ".join(others) or "unknown"
                    raise LeaseHeldError(f"group {self.name!r}: topic {topic!r} is consumed by {holder}", holder)
                self._sleep(LOOK_EVERY_S)
            elif not asked.granted:
                self._wait_for_masters(topic, silent_until_s, asked.away)
                held_until_s = self._timer_s() + LOCK_LASTS_S + LOOK_EVERY_S
            elif asked.away and watches:
                self._locks.unlock([topic])
                self._watch(topic, asked.away)
                watches, held_until_s = False, self._timer_s() + LOCK_LASTS_S + LOOK_EVERY_S
            else:
                return asked

    def _wait_for_masters(self, topic: str, until_s: float, away: Mapping[str, RemotingError]) -> None:
        """Let a moment pass, or raise RemotingError if the time is over."""
        if self._timer_s() >= until_s:
            last = next(iter(away.values()), None)
            names = ", ".join(sorted(away)) or "the cluster"
            raise RemotingError(
                f"group {self.name!r}: no master of {names} has answered for {LOCK_LASTS_S:.0f} s, so the lease of "
                f"topic {topic!r} cannot be taken: slaves grant no locks. Start a master, or set commitOffsets=false "
                f"to read from slaves, which commits nothing. Last answer: {last or 'no broker has a process'}"
            ) from last
        self._sleep(LOOK_EVERY_S)

    def _watch(self, topic: str, away: Collection[str]) -> None:
        """Wait for one round of heartbeats: a holder whose locks are at masters that are away shows itself at others.
        """
        _log.warning(
            "group %r: no master of %s answers, and a query may hold the lease of %s there: members are watched %.0f s",
            self.name, ", ".join(sorted(away)), topic, WATCH_S,
        )  # fmt: skip
        until_s = self._timer_s() + WATCH_S
        while self._timer_s() < until_s:
            self._member.refuse_others(topic)
            self._sleep(LOOK_EVERY_S)


class ClusterLease:
    """The right of one process to consume a topic for a group. It ends 60 s after the process, or when another client
    is found to have it; masters that are away take it from nobody.
    """

    def __init__(self, topic: str, holds: Callable[[str], bool], release: Callable[[str], None]) -> None:
        self._topic = topic
        self._holds = holds
        self._release = release

    def heartbeat(self) -> bool:
        """As `held`: a thread shows that the holder lives."""
        return self.held()

    def held(self) -> bool:
        """True until another client is found to have the lease. See `GroupOffsets.commit` for masters that are away."""
        return self._holds(self._topic)

    def release(self) -> None:
        """Give it back."""
        self._release(self._topic)
