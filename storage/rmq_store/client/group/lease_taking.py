"""How the lease of a topic is taken: its locks at all masters, while nobody else that lives has one.

    another client has a lock           it is waited for, 61 s at most: brokers forget a lock after 60 s
    an earlier run of the same query    is a member still: it is waited for, until 130 s prove that it lives
    another member                      LeaseHeldError at once
    no master answers                   one is waited for, 60 s at most
    some masters do not answer          members are watched for 22 s, once. Nobody asks these masters meanwhile

That is for the first topic. A process that has a lease already takes that of another topic where it gets the locks at
once; the other brokers are those that come back. `group_lease` has the whole of the rule, and `lease_member` knows who
is an earlier run. While the process waits it has no lock, and is no member: so it may end at any time, and leaves
nothing behind.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Final

from rmq_store.client.group.lease_locks import Asked, LeaseLocks
from rmq_store.client.group.lease_member import GHOST_LASTS_S, LeaseMember, Others
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
        member: LeaseMember,
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

    def locked(self, topic: str, *, is_first: bool) -> Asked:
        """Lock the topic at all masters that answer, and return their answers. A process that is the member already has
        shown itself: it does not watch, and waits for no lock while it gets another one.

        Raises:
            LeaseHeldError: another client has a lock, or lives as a member. It names them.
            RemotingError: no master answers. MQBrokerError: a broker refuses.
        """
        silent_until_s = self._timer_s() + LOCK_LASTS_S
        warned: set[str] = set()
        watches = is_first
        while True:
            brokers = self._cluster.broker_names()
            # One that has just not answered would keep each of these questions waiting.
            asked = self._locks.ask([topic], self._locks.those_not_away(brokers) or brokers)
            for error in asked.refused.values():
                if not is_away(error):
                    raise error
            self._locks.disputed(asked)
            if not is_first and asked.granted:
                self.refuse_others(topic, asked.granted)
                return asked
            earlier = self._refuse_others(topic, asked)
            if asked.others or earlier:
                self._locks.unlock([topic], asked.granted)
                self._warn_of(topic, asked.others, earlier, warned)
                self._sleep(LOOK_EVERY_S)
            elif not asked.granted:
                self._wait_for_masters(topic, silent_until_s, {**asked.away, **asked.refused})
            elif watches and len(asked.granted) < len(brokers):
                self._locks.unlock([topic], asked.granted)
                self._watch(topic, asked, set(brokers).difference(asked.granted))
                watches = False
            else:
                return asked

    def refuse_others(self, topic: str, broker_names: Collection[str]) -> list[str]:
        """The earlier runs of the same query that these brokers show as members. LeaseHeldError: the group has other
        members, which live; it names them.
        """
        others = self._others(broker_names)
        if others.living:
            holder = ", ".join(others.living)
            raise LeaseHeldError(
                f"group {self.name!r} has other live members, which read topic {topic!r} or would lose their queues: "
                f"{holder}. Stop them, or {self._instead} to read beside them",
                holder,
            )
        return others.earlier

    def _refuse_others(self, topic: str, asked: Asked) -> list[str]:
        """As `refuse_others`; LeaseHeldError also if another client keeps a lock for longer than one lasts."""
        if not asked.others:
            return self.refuse_others(topic, asked.there)
        others = self._others(asked.there)
        if others.living or self._locks.are_disputed_at(asked.others, for_s=LOCK_LASTS_S + LOOK_EVERY_S):
            self._locks.unlock([topic], asked.granted)
            holder = ", ".join(others.living or others.earlier) or "unknown"
            raise LeaseHeldError(f"group {self.name!r}: topic {topic!r} is consumed by {holder}", holder)
        return others.earlier

    def _others(self, broker_names: Collection[str]) -> Others:
        others = self._member.others(broker_names)
        self._locks.away(set(broker_names).difference(others.told))
        return others

    def _warn_of(self, topic: str, locked_at: Collection[str], earlier: Collection[str], warned: set[str]) -> None:
        for member in set(earlier) - warned:
            _log.warning(
                "group %r: %s is a run of this query, and brokers show it as a member. It is waited for, %.0f s at "
                "most: then it is one that lives",
                self.name, member, GHOST_LASTS_S,
            )  # fmt: skip
        for broker_name in set(locked_at) - warned:
            _log.warning(
                "group %r: another client has the lock of %s at %s. It may be one that has ended, and is waited for, "
                "%.0f s at most",
                self.name, topic, broker_name, LOCK_LASTS_S,
            )  # fmt: skip
        warned.update(earlier, locked_at)

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

    def _watch(self, topic: str, asked: Asked, away: Collection[str]) -> None:
        """Wait for one round of heartbeats: a holder whose locks are at masters that are away shows itself at others.
        """
        _log.warning(
            "group %r: no master of %s answers, and a query may hold the lease of %s there: members are watched %.0f s",
            self.name, ", ".join(sorted(away)), topic, WATCH_S,
        )  # fmt: skip
        until_s = self._timer_s() + WATCH_S
        while self._timer_s() < until_s:
            self.refuse_others(topic, asked.there)
            self._sleep(LOOK_EVERY_S)
