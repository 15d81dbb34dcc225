"""A group that one process of a cluster reads alone, as a stream does: its leases, its membership, its offsets.

The lease of a topic is a lock at each master, which forgets it after 60 s (`lease_locks`). A holder is also a member of
the group, so that others see its name, and it takes no lease while others are alive. It has all queues: nothing is
rebalanced, and what it commits is said by its caller. Consumers that share a group are members by `membership`.

    lock, ask for members, heartbeat, ask for members again      by whoever takes the lease: `lease_taking`
    lock and heartbeat every 20 s                                 in a thread: a batch may take longer than a lock lasts
    lock and heartbeat at a broker that came (back)               before its queues are planned, and before a commit
    leave out its queues, for 65 s at most                        where a client that is no member has the lock
    watch members where it is held, for 22 s, and owe offsets     if it was taken while other masters were away
    compare the group's offsets with our own                      where a lock had lapsed: another one may have had it,
                                                                  if all had lapsed
    nothing; what is read is owed to the group                    while no master answers
    ask a master no more that has not answered                    until it tells its ends, or a renewal finds it

A plan asks through the view of the cluster that it has of its own (`asks`), which knows who is silent, and it does not
wait for a renewal that is under way: what it has not found out is left to the next plan.

So a lock at each broker protects the queues of that broker. A holder that lives is seen by its heartbeats, because it
sends them every 20 s to each master that answers. Two queries may hold leases only while neither reaches a master that
the other one reaches, or for up to 20 s after the last master with the lock went and another one came back; with slaves
the name servers still show a broker whose master is away.

Sources: RebalanceLockManager.java, ConsumerManager.java.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from rmq_store.client.group.lease_locks import BrokerLease, LeaseLocks
from rmq_store.client.group.lease_member import LeaseMember
from rmq_store.client.group.lease_offsets import LeaseOffsets
from rmq_store.client.group.lease_taking import RENEW_EVERY_S, LeaseTaking, LeaseWatch
from rmq_store.errors import LeaseHeldError, StoreError
from rmq_store.protocol.answers import is_away
from rmq_store.protocol.errors import MQBrokerError, RemotingError
from rmq_store.protocol.messages import MessageQueue
from rmq_store.real_time import monotonic
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.cluster.locks import LOCK_LASTS_S

_log = logging.getLogger(__name__)

DISPUTE_LASTS_S: Final = LOCK_LASTS_S + 5.0
"""A broker that goes on carries out what has waited for it within the first of these seconds."""
PLAN_WAITS_S: Final = 0.5
"""So long a plan waits for a renewal that is under way."""


class GroupLease:
    """The leases of one process for the topics of one group. `name` is the group's, without a namespace.

    `instead`: what a user does to read without a lease, as "set commitOffsets=false", for the texts of errors. `asks`:
    the cluster that answers the plans of the thread that calls `lease`; it may leave out brokers that are away.
    """

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        *,
        instead: str,
        asks: Cluster | None = None,
        sleep: Callable[[float], None] = time.sleep,
        timer_s: Callable[[], float] = monotonic,
    ) -> None:
        self.name = name
        self._cluster = cluster
        self._asks = asks or cluster
        self._locks = LeaseLocks(cluster, name, timer_s)
        self._member = LeaseMember(cluster, name, timer_s)
        self._taking = LeaseTaking(
            cluster, name, self._locks, self._member, asks=self._asks, instead=instead, sleep=sleep, timer_s=timer_s
        )
        self._watch = LeaseWatch(name, self._taking, timer_s)
        self._topics: set[str] = set()
        # Other members that were logged.
        self._seen: set[str] = set()
        # The brokers that did not grant the locks when they were asked last.
        self._refusals: Mapping[str, MQBrokerError | RemotingError] = {}
        # Why the lease is lost, if it is, and to whom.
        self._loss = ""
        self._lost_to = "unknown"
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        # Held while topics, locks and membership change: two threads do that. The end of the process may come in the
        # midst of it, in the same thread.
        self._lock = threading.RLock()
        self._offsets = LeaseOffsets(cluster, name, self, asks=self._asks, sleep=sleep, timer_s=timer_s)

    # -- offsets ------------------------------------------------------------------------------------------------------

    def committed(self, queues: Sequence[MessageQueue]) -> dict[MessageQueue, int]:
        """See `LeaseOffsets.committed`."""
        return self._offsets.committed(queues)

    def starts_at_first_message(self, queue: MessageQueue) -> bool:
        """See `LeaseOffsets.starts_at_first_message`."""
        return self._offsets.starts_at_first_message(queue)

    def commit(self, offsets: Mapping[MessageQueue, int]) -> None:
        """See `LeaseOffsets.commit`: at brokers whose locks are held, if there is a lease at all. While another holder
        is looked for they are owed.
        """
        if self._watch.is_on:
            self.hold_at(())
        if self._watch.is_on:
            self._offsets.owe(offsets)
        else:
            self._offsets.commit(offsets)

    # -- the lease ----------------------------------------------------------------------------------------------------

    def at(self, broker_name: str) -> BrokerLease:
        """The lease at a broker, as far as it is known."""
        return self._locks.at(broker_name)

    def lease(self, topic: str, owner: str, query: str = "") -> TopicLease:
        """Take the lease of a topic for `owner`, which is shown to others, and be a member of the group from now on.

        A lock whose holder is no living member is waited for, 61 s at most; as long for any master. Masters that are
        away beside others are not: `hold_before_planning` takes the lease there when they are back. An earlier run of
        `query`, the id of a query over all of its runs, is waited for until brokers have forgotten it: 130 s at most.

        Raises:
            LeaseHeldError: another query holds it, or the group has other live members; it names them.
            RemotingError: no master answers, and slaves grant no locks. MQBrokerError: a broker refuses.
        """
        if not self._topics:
            self._member.be_named(owner, query)
            self._locks.client_id = self._member.client_id
        try:
            self._take(topic)
        except BaseException:
            with self._lock:
                self._give_back(topic)
                if not self._topics:
                    self._end()
            raise
        if self._thread is None:
            self._stopped = threading.Event()
            self._thread = threading.Thread(target=self._keep, args=(self._stopped,), name="rmq-group", daemon=True)
            self._thread.start()
        return TopicLease(topic, self.holds, self.release)

    def _take(self, topic: str) -> None:
        asked, through = self._taking.locked(topic, is_first=not self._topics)
        with self._lock:
            is_first = not self._topics
            self._topics.add(topic)
            granted = self._locks.those_not_away(asked.granted) or asked.granted
            there = self._member.beat(self._topics, granted, through=through)
            # Where it could not join, a lock counts as not held: with the lock it joins there later.
            self._locks.added(there, asked.at_s, is_first=is_first)
            self._locks.away(set(asked.granted).difference(there))
        self._taking.refuse_others(topic, there, through)
        if is_first:
            self._watch.begin(topic, there, set(self._cluster.broker_names()).difference(there))

    def holds(self, topic: str) -> bool:
        """Whether nobody else was found to have the lease. Brokers may have forgotten it: `hold_at` takes it again."""
        return topic in self._topics and not self._loss

    def hold_at(self, broker_names: Collection[str]) -> set[str]:
        """Take the locks at those of these brokers at which they are not held, and join the group there: a broker that
        came, or whose master came back. Returns the brokers at which they are held now; all without any lease.

        Raises:
            LeaseHeldError: another client that lives has a lock at one of them, or had it while ours were forgotten,
                and has moved the group on. Or one that lives was seen after the lease was taken without some masters.
        """
        return self._hold_at(broker_names, self._asks, PLAN_WAITS_S)

    def hold_to_commit(self, broker_names: Collection[str], *, is_last: bool) -> set[str]:
        """See `Holder.hold_to_commit`. A master that hangs would keep each batch waiting: the next renewal asks it."""
        if is_last or not self._topics:
            return self._hold_at(broker_names, self._cluster, threading.TIMEOUT_MAX)
        return self.hold_at(self._locks.those_not_away(broker_names))

    def are_away(self, broker_names: Collection[str]) -> None:
        """See `Holder.are_away`."""
        self._locks.away(broker_names)

    def have_answered(self, broker_names: Collection[str]) -> None:
        """See `Holder.have_answered`."""
        self._locks.answered(broker_names)

    def hold_before_planning(self, broker_names: Collection[str]) -> dict[str, LeaseHeldError | RemotingError]:
        """As `hold_at`, at brokers whose masters have just told their ends. Returns those at which the locks are not
        held, each with the reason: their queues are left out of this plan. None without any lease.

        Raises as `hold_at`.
        """
        self._locks.answered(broker_names)
        was_on = self._watch.is_on
        missing = sorted(set(broker_names) - self.hold_at(broker_names))
        if was_on and not self._watch.is_on:
            self._offsets.commit({})
        found: dict[str, LeaseHeldError | RemotingError] = {}
        for name in missing:
            what = f"the lease of {', '.join(sorted(self._topics))} at broker {name}"
            if self._locks.are_disputed_at([name]):
                found[name] = LeaseHeldError(
                    f"another client has {what}. It may be one that has ended, and is waited for, "
                    f"{DISPUTE_LASTS_S:.0f} s at most", "unknown",
                )  # fmt: skip
            else:
                why = self._refusals.get(name)
                found[name] = RemotingError(f"{what} is not taken yet" + ("" if why is None else f": {why}"))
        return found

    def _hold_at(self, broker_names: Collection[str], through: Cluster, waits_s: float) -> set[str]:
        if not self._topics:
            return set(broker_names)
        missing, watches = self._locks.missing_at(broker_names), self._watch.is_due()
        if (missing or watches) and not self._loss and self._lock.acquire(timeout=waits_s):
            try:
                if watches:
                    self._look_for_holder(through)
                if missing and not self._loss:
                    self._refusals = self._lock_at(missing, through)
                    self._beat_at(missing.intersection(self._locks.held_at()), through)
            finally:
                self._lock.release()
        if self._loss:
            raise LeaseHeldError(self._loss, self._lost_to)
        return set(broker_names).intersection(self._locks.held_at())

    def _lock_at(
        self, broker_names: Collection[str], through: Cluster
    ) -> Mapping[str, MQBrokerError | RemotingError]:
        """Lock all topics at brokers, or renew the locks. Returns the brokers that do not answer, or refuse."""
        asked = self._locks.ask(self._topics, broker_names, through=through)
        is_news = not self._locks.are_disputed_at(asked.others)
        self._locks.disputed(asked)
        if asked.others:
            taken = self._is_taken(asked.others, through)
            held_at = {*asked.there, *self._locks.held_at()} if taken else asked.others
            self._locks.unlock(self._topics, held_at, through=through)
            if taken:
                self._lose(
                    f"another client has taken the lease of {', '.join(sorted(self._topics))}: it has the lock at "
                    + ", ".join(sorted(asked.others))
                )
                return asked.away | asked.refused
            if is_news:
                _log.warning(
                    "group %r: another client has the lock of %s at %s, and is no member where this query has it. It "
                    "may be one of a query that has ended, and is waited for, %.0f s at most",
                    self.name, ", ".join(sorted(self._topics)), ", ".join(sorted(asked.others)), DISPUTE_LASTS_S,
                )  # fmt: skip
        held = self._locks.held_at()
        lapsed = sorted(set(asked.granted).difference(held))
        overtaken, failed = self._offsets.overtaken_at(lapsed, through)
        if held:
            # No other query has had the lease meanwhile.
            self._offsets.stay(overtaken)
        if overtaken and not held:
            self._locks.unlock(self._topics, {*asked.there, *self._locks.held_at()}, through=through)
            queue, (ours, theirs) = min(overtaken.items())
            self._lose(
                f"the lease had lapsed, and another client has moved the group on, in {queue} from {ours} to {theirs}: "
                "this query commits nothing more. Start it again only if the group shall go back to where it stands"
            )
        else:
            self._locks.renewed([name for name in asked.granted if name not in failed], asked.at_s)
        return asked.away | asked.refused | failed

    def _is_taken(self, broker_names: Collection[str], through: Cluster) -> bool:
        """Whether the client that has the lock at these brokers lives, for all that can be told.

        A broker that was suspended carries out old lock requests of a query that has ended. A query that lives sends
        heartbeats to each master: so it is a member where we have the lock, or it keeps its lock for more than 60 s.
        An earlier run of this query may be shown as a member, and have ended.
        """
        ours = self._locks.held_at()
        if not ours or not set(ours).isdisjoint(broker_names):
            return True
        if self._locks.are_disputed_at(broker_names, for_s=DISPUTE_LASTS_S):
            return True
        try:
            return bool(self._member.others(ours, through=through).living)
        except MQBrokerError as error:
            _log.warning("group %r: its members cannot be told now: %s", self.name, error)
            return False

    def _look_for_holder(self, through: Cluster) -> None:
        try:
            held = self._watch.look(through)
        except MQBrokerError as error:
            _log.warning("group %r: its members cannot be told now: %s", self.name, error)
            return
        if held is not None:
            self._locks.unlock(self._topics, self._locks.held_at(), through=through)
            self._lose(f"masters were away when this query took the lease, and it is not alone: {held}", held.holder)

    def _lose(self, why: str, to: str = "unknown") -> None:
        self._loss, self._lost_to = f"group {self.name!r}: {why}", to
        _log.error("%s", self._loss)

    def _beat_at(self, broker_names: Collection[str], through: Cluster) -> None:
        """Join the group at brokers. The next renewal tries again where a broker has not taken the member."""
        if broker_names:
            try:
                self._member.beat(self._topics, broker_names, through=through)
            except (MQBrokerError, RemotingError) as error:
                _log.warning("group %r: it is not joined now: %s", self.name, error)

    def release(self, topic: str) -> None:
        """Give the lease back, and with the last one leave the group. Brokers that do not answer forget by themselves.
        Offsets that are owed are committed before, see `LeaseOffsets.settle`; whatever comes of that.
        """
        try:
            self._offsets.settle()
        finally:
            with self._lock:
                if topic in self._topics:
                    self._give_back(topic)
            if not self._topics:
                self._leave()

    def leave(self) -> None:
        """Give all leases back, and leave the group; may be called again, and a lease may be taken again."""
        try:
            self._offsets.settle()
        finally:
            self._leave()

    def _leave(self) -> None:
        self._stopped.set()
        # A renewal on its way would join again what is left here. Its calls have time limits.
        with self._lock:
            self._thread = None
            topics, self._topics = self._topics, set()
            self._unlock(topics)
            self._end()

    def _end(self) -> None:
        """Be no member any more, and hold nothing."""
        with contextlib.suppress(StoreError):
            self._member.leave(self._locks.all_not_away())
        self._locks.forget()
        self._offsets.forget()
        self._watch.end()
        self._loss = ""

    def _give_back(self, topic: str) -> None:
        self._topics.discard(topic)
        self._unlock([topic])

    def _unlock(self, topics: Collection[str]) -> None:
        """Release the locks of topics where masters may answer: one that hangs keeps nobody from ending."""
        with contextlib.suppress(StoreError):
            self._locks.unlock(topics, self._locks.all_not_away())

    def _keep(self, stopped: threading.Event) -> None:
        while not stopped.wait(RENEW_EVERY_S):
            self.renew()

    def renew(self) -> None:
        """Renew locks and membership, and log members that came since. Errors are logged: the next time comes."""
        with self._lock:
            if self._topics and not self._loss:
                self._renew()

    def _renew(self) -> None:
        try:
            away = self._lock_at(self._cluster.broker_names(), self._cluster)
            if away:
                _log.warning(
                    "group %r: the lease cannot be renewed now at %s: %s",
                    self.name, ", ".join(sorted(away)), next(iter(away.values())),
                )  # fmt: skip
            # A master that hangs is waited for once in a renewal.
            there = [name for name in self._cluster.broker_names() if name not in away or not is_away(away[name])]
            if not there or self._loss:
                return
            there = self._member.beat(self._topics, there)
            if self._watch.is_due():
                self._look_for_holder(self._cluster)
            if self._loss:
                return
            came = [other for other in self._member.others(there).living if other not in self._seen]
            self._seen.update(came)
            if came:
                _log.warning(
                    "group %r: %s joined while this query reads all queues; messages are consumed twice",
                    self.name, ", ".join(came),
                )  # fmt: skip
        except StoreError as error:
            _log.warning("group %r: lease and membership cannot be renewed now: %s", self.name, error)


class TopicLease:
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
        """True until another client is found to have the lease. See `GroupLease.commit` for masters that are away."""
        return self._holds(self._topic)

    def release(self) -> None:
        """Give it back."""
        self._release(self._topic)
