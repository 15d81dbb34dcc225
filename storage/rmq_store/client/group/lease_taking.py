"""How the lease of a topic is taken: its locks at all masters, while nobody else that lives has one.

`group_lease` has the whole of the rule.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Final

from rmq_store.client.backend.remote_member import RemoteMember
from rmq_store.client.group.lease_locks import Asked, LeaseLocks
from rmq_store.errors import LeaseHeldError
from rmq_store.protocol.answers import is_away
from rmq_store.protocol.errors import RemotingError
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.cluster.gather import BrokerError
from rmq_store.remoting.cluster.locks import LOCK_LASTS_S

_log = logging.getLogger(__name__)

RENEW_EVERY_S: Final = 20.0
WATCH_S: Final = RENEW_EVERY_S + 2.0
LOOK_EVERY_S: Final = 1.0


class LeaseTaking:
    """Takes leases for one group of one process, whose locks and membership these are.

    `instead`: what a user does to read without a lease, for the texts of errors.
    """

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        locks: LeaseLocks,
        member: RemoteMember,
        *,
        instead: str,
        sleep: Callable[[float], None],
        timer_s: Callable[[], float],
    ) -> None:
        self.name = name
        self._cluster = cluster
        self._locks = locks
        self._member = member
        self._instead = instead
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
            away: dict[str, BrokerError] = {**asked.away, **asked.refused}
            for error in asked.refused.values():
                if not is_away(error):
                    raise error
            if asked.others:
                self._locks.unlock([topic])
                others = self._member.others()
                if others or self._timer_s() > held_until_s:
                    holder = ", ".join(others) or "unknown"
                    raise LeaseHeldError(f"group {self.name!r}: topic {topic!r} is consumed by {holder}", holder)
                self._sleep(LOOK_EVERY_S)
            elif not asked.granted:
                self._wait_for_masters(topic, silent_until_s, away)
                held_until_s = self._timer_s() + LOCK_LASTS_S + LOOK_EVERY_S
            elif away and watches:
                self._locks.unlock([topic])
                self._watch(topic, away)
                watches, held_until_s = False, self._timer_s() + LOCK_LASTS_S + LOOK_EVERY_S
            else:
                return asked

    def refuse_others(self, topic: str) -> None:
        """Raises LeaseHeldError if the group has other living members; it names them."""
        others = self._member.others()
        if others:
            holder = ", ".join(others)
            raise LeaseHeldError(
                f"group {self.name!r} has other live members, which read topic {topic!r} or would lose their queues: "
                f"{holder}. Stop them, or {self._instead} to read beside them",
                holder,
            )

    def _wait_for_masters(self, topic: str, until_s: float, away: Mapping[str, BrokerError]) -> None:
        """Let a moment pass, or raise RemotingError if the time is over."""
        if self._timer_s() >= until_s:
            last = next(iter(away.values()), None)
            names = ", ".join(sorted(away)) or "the cluster"
            raise RemotingError(
                f"group {self.name!r}: no master of {names} has answered for {LOCK_LASTS_S:.0f} s, so the lease of "
                f"topic {topic!r} cannot be taken: slaves grant no locks. Start a master, or {self._instead} to read "
                f"from slaves, which commits nothing. Last answer: {last or 'no broker has a process'}"
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
            self.refuse_others(topic)
            self._sleep(LOOK_EVERY_S)
