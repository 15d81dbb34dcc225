"""How the lease of a topic is taken: its locks at all masters, while nobody else that lives has one.

    another client has a lock           it is waited for, 61 s at most: brokers forget a lock after 60 s
    an earlier run of the same query    is a member still: it is waited for, until 130 s prove that it lives
    another member                      LeaseHeldError at once
    no master answers                   one is waited for, 60 s at most
    some masters do not answer          the others grant the lease, and members are watched for 22 s beside it
                                        (`LeaseWatch`). The queues of these masters are held: they come back

The first round of questions is one of a plan, through its view of the cluster: so no master is waited for longer than
the plan waits.

That is for the first topic. A process that has a lease already takes that of another topic where it gets the locks at
once; the other brokers are those that come back. `group_lease` has the whole of the rule, and `lease_member` knows who
is an earlier run. While the process waits it has no lock, and is no member: so it may end at any time, and leaves
nothing behind.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Final, NamedTuple

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


class Taken(NamedTuple):
    """The answers of the masters, of which some have granted the locks, and the view of the cluster that was asked."""

    asked: Asked
    through: Cluster


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
        asks: Cluster,
        instead: str,
        sleep: Callable[[float], None],
        timer_s: Callable[[], float],
    ) -> None:
        self.name = name
        self._cluster = cluster
        self._asks = asks
        self._locks = locks
        self._member = member
        self._instead = instead
        self._sleep = sleep
        self._timer_s = timer_s

    def locked(self, topic: str, *, is_first: bool) -> Taken:
        """Lock the topic at all masters that answer, and return their answers. A process that is the member already
        waits for no lock while it gets another one.

        Raises:
            LeaseHeldError: another client has a lock, or lives as a member. It names them.
            RemotingError: no master answers. MQBrokerError: a broker refuses.
        """
        silent_until_s = self._timer_s() + LOCK_LASTS_S
        warned: set[str] = set()
        through = self._asks
        while True:
            brokers = self._cluster.broker_names()
            # One that has just not answered would keep each of these questions waiting.
            asked = self._locks.ask([topic], self._locks.those_not_away(brokers) or brokers, through=through)
            for error in asked.refused.values():
                if not is_away(error):
                    raise error
            self._locks.disputed(asked)
            if not is_first and asked.granted:
                self.refuse_others(topic, asked.granted, through)
                return Taken(asked, through)
            earlier = self._refuse_others(topic, asked, through)
            if asked.others or earlier:
                self._locks.unlock([topic], asked.granted)
                self._warn_of(topic, asked.others, earlier, warned)
                self._sleep(LOOK_EVERY_S)
            elif not asked.granted:
                self._wait_for_masters(topic, silent_until_s, {**asked.away, **asked.refused})
            else:
                return Taken(asked, through)
            # A plan asks a master once; a process that waits asks it again.
            through = self._cluster

    def refuse_others(self, topic: str, broker_names: Collection[str], through: Cluster) -> list[str]:
        """The earlier runs of the same query that these brokers show as members. LeaseHeldError: the group has other
        members, which live; it names them.
        """
        others = self._others(broker_names, through)
        if others.living:
            holder = ", ".join(others.living)
            raise LeaseHeldError(
                f"group {self.name!r} has other live members, which read topic {topic!r} or would lose their queues: "
                f"{holder}. Stop them, or {self._instead} to read beside them",
                holder,
            )
        return others.earlier

    def _refuse_others(self, topic: str, asked: Asked, through: Cluster) -> list[str]:
        """As `refuse_others`; LeaseHeldError also if another client keeps a lock for longer than one lasts."""
        if not asked.others:
            return self.refuse_others(topic, asked.there, through)
        others = self._others(asked.there, through)
        if others.living or self._locks.are_disputed_at(asked.others, for_s=LOCK_LASTS_S + LOOK_EVERY_S):
            self._locks.unlock([topic], asked.granted)
            holder = ", ".join(others.living or others.earlier) or "unknown"
            raise LeaseHeldError(f"group {self.name!r}: topic {topic!r} is consumed by {holder}", holder)
        return others.earlier

    def _others(self, broker_names: Collection[str], through: Cluster) -> Others:
        others = self._member.others(broker_names, through=through)
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


class LeaseWatch:
    """Looks for a holder of the lease whose locks are at masters that did not answer when it was taken here. It may
    have known none of the others, or not yet: within one round of heartbeats it shows itself there as a member.
    """

    def __init__(self, name: str, taking: LeaseTaking, timer_s: Callable[[], float]) -> None:
        self.name = name
        self._taking = taking
        self._timer_s = timer_s
        self._topic = ""
        # None: nobody is looked for.
        self._since_s: float | None = None
        self._looked_s = 0.0
        self._at: Collection[str] = ()

    def begin(self, topic: str, granted: Collection[str], away: Collection[str]) -> None:
        """The lease of a topic was granted, for the first time, and masters were away. Nothing, if none was."""
        if not away:
            return
        _log.warning(
            "group %r: no master of %s answers, and a query may hold the lease of %s there: its queues wait, and "
            "members are watched %.0f s at %s",
            self.name, ", ".join(sorted(away)), topic, WATCH_S, ", ".join(sorted(granted)),
        )  # fmt: skip
        self._topic, self._at, self._since_s = topic, tuple(granted), self._timer_s()
        self._looked_s = self._since_s

    def end(self) -> None:
        """Nobody is looked for any more."""
        self._since_s = None

    @property
    def is_on(self) -> bool:
        """Whether somebody is looked for."""
        return self._since_s is not None

    def is_due(self) -> bool:
        """Whether it is time for a look: once a second, the last time when the watch is over."""
        return self._since_s is not None and self._timer_s() - self._looked_s >= LOOK_EVERY_S

    def look(self, through: Cluster) -> LeaseHeldError | None:
        """Ask for members. Returns the error that names those that live, if there are any.

        Raises:
            MQBrokerError: a broker refuses.
        """
        if self._since_s is None:
            return None
        self._looked_s = self._timer_s()
        is_last = self._looked_s - self._since_s >= WATCH_S
        try:
            earlier = self._taking.refuse_others(self._topic, self._at, through)
        except LeaseHeldError as error:
            return error
        # An earlier run of the same query that turned up meanwhile has ended, or is shown for longer than it may be.
        if is_last and not earlier:
            self.end()
        return None
