"""The offsets of a group that one process reads, at the brokers; and those that no master has taken yet.

    a master takes the offset        it is committed
    no master answers, or is busy,   it is owed, and goes with the next commit, or when the query ends
    or another holder is looked for
    a reset waits for the group      the reset is ended, and the offset is committed
    a broker refuses                 an error, behind all other brokers; an owed offset is dropped with a warning
    an owed offset, at last          it goes only forward: one that an operator has moved meanwhile stays
    a lock had lapsed                another client may have committed: the group's offset must not be ahead of ours.
                                     While another lock is ours all the time, an operator has moved it, and it stays

Nothing is committed at a slave: its master never learns of that. Consumers that share a group commit in another way
(`offset_store`): for them a reset wins, and each of them commits all that it has again and again.
Source: ConsumerManageProcessor.java.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, Protocol

from rmq_store.errors import LeaseHeldError
from rmq_store.protocol.answers import is_away
from rmq_store.protocol.errors import MQBrokerError, RemotingError
from rmq_store.protocol.messages import MessageQueue
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.cluster.groups import gather_consume_stats
from rmq_store.remoting.cluster.offsets import (
    gather_consumer_offsets,
    query_consumer_offsets,
    try_update_consumer_offsets,
)
from rmq_store.remoting.cluster.pull_request import PullFilter, pull

_log = logging.getLogger(__name__)

LAST_TRIES_S: Final = 3.0
"""So long a query that ends waits for masters that are away: the next query of the group waits 6 s for its lease."""
_TRY_EVERY_S: Final = 0.5

_Outcome = int | MQBrokerError | RemotingError


class Holder(Protocol):
    """The lease under which offsets are committed."""

    def hold_to_commit(self, broker_names: Collection[str], *, is_last: bool) -> Collection[str]:
        """Those of these brokers at which this process may commit now. Masters that have just not answered are asked
        only if it is the last time. LeaseHeldError: another process may commit.
        """

    def are_away(self, broker_names: Collection[str]) -> None:
        """Hear that the masters of these brokers have not answered a commit."""

    def have_answered(self, broker_names: Collection[str]) -> None:
        """Hear that the masters of these brokers have."""


class LeaseOffsets:
    """The offsets of one group, whose name has no namespace, as `lease` allows to commit them. `asks`: the cluster that
    answers the caller's questions about them, which may leave out brokers that are away.
    """

    def __init__(
        self,
        cluster: Cluster,
        group: str,
        lease: Holder,
        *,
        asks: Cluster,
        sleep: Callable[[float], None],
        timer_s: Callable[[], float],
    ) -> None:
        self._cluster = cluster
        self._asks = asks
        self._group = group
        self._lease = lease
        self._sleep = sleep
        self._timer_s = timer_s
        self._owed: dict[MessageQueue, int] = {}
        # The last ones that masters have taken.
        self._own: dict[MessageQueue, int] = {}
        self._asked: Sequence[MessageQueue] = ()
        self._starts_at_first: dict[MessageQueue, bool] = {}

    def committed(self, queues: Sequence[MessageQueue]) -> dict[MessageQueue, int]:
        """The offsets that the group has committed in these queues (14), without queues that have none."""
        self._asked = queues
        found = query_consumer_offsets(self._asks, self._group, queues, set_zero_if_not_found=False)
        unclear = {queue.topic for queue, given in found.items() if given.may_be_none}
        clear = self._topics_with_offsets() if unclear else set()
        return {
            queue: given.offset
            for queue, given in found.items()
            if not given.may_be_none or queue.topic in clear
        }

    def _topics_with_offsets(self) -> set[str]:
        """The topics for which any broker that answers has an offset of the group (208)."""
        try:
            found = gather_consume_stats(self._asks, self._group).those_that_answer()
        except MQBrokerError as error:
            _log.info("group %r: it cannot be told whether it has committed 0: %s", self._group, error)
            return set()
        stats = [one for one in found.values() if one is not None]
        return {self._cluster.plain_name(queue.topic) for one in stats for queue in one.offset_table}

    def starts_at_first_message(self, queue: MessageQueue) -> bool:
        """Whether a broker answers 0 for a group without an offset in this queue."""
        if queue not in self._starts_at_first:
            asked = [other for other in self._asked if other not in self._starts_at_first] or [queue]
            if queue not in asked:
                asked.append(queue)
            found = query_consumer_offsets(self._asks, self._group, asked, set_zero_if_not_found=None)
            self._starts_at_first |= {other: other in found and found[other].offset == 0 for other in asked}
        return self._starts_at_first[queue]

    def commit(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Commit offsets, and those that are owed (15 with an answer). An offset that is set back from outside, and
        waits for the group's next pull, is taken back: whoever holds the lease says where the group stands.

        Offsets of a broker whose master does not answer are owed. The checkpoint says where the query stands.

        Raises:
            MQBrokerError: a broker refuses some of `offsets`; all others are committed or owed.
            LeaseHeldError: another client may commit now; nothing was committed.
        """
        self._commit(offsets, is_last=False)

    def owe(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Let these go with the next commit, or when the query ends. Nobody is asked."""
        self._owed = self._owed | dict(offsets)

    def _commit(self, offsets: Mapping[MessageQueue, int], *, is_last: bool) -> None:
        owed_before = self._owed
        self._owed = owed_before | dict(offsets)
        failure: MQBrokerError | None = None
        outcomes = self._tried(owed_before.keys(), is_last=is_last)
        away = {queue.broker_name for queue, told in outcomes.items() if isinstance(told, RemotingError)}
        self._lease.are_away(away)
        self._lease.have_answered({queue.broker_name for queue in outcomes} - away)
        for queue, outcome in outcomes.items():
            if isinstance(outcome, int):
                self._own[queue] = self._owed[queue]
                del self._owed[queue]
            elif isinstance(outcome, MQBrokerError) and not is_away(outcome):
                offset = self._owed.pop(queue)
                if queue in offsets:
                    failure = failure or outcome
                else:
                    _log.warning(
                        "group %r: its offset %d in %s is not committed, because its broker refuses that: %s",
                        self._group, offset, queue, outcome,
                    )  # fmt: skip
        if self._owed.keys() - owed_before.keys():
            brokers = ", ".join(sorted({queue.broker_name for queue in self._owed}))
            _log.warning(
                "group %r: no master of %s answers and grants the lease; its offsets are committed when one does",
                self._group, brokers,
            )  # fmt: skip
        if failure is not None:
            raise failure

    def overtaken_at(
        self, broker_names: Collection[str], through: Cluster
    ) -> tuple[dict[MessageQueue, tuple[int, int]], dict[str, MQBrokerError | RemotingError]]:
        """The queues of these brokers in which the group's offset (14) is ahead of all that this process has committed,
        or commits now: another client has moved it. Of each queue our offset and that one; beside them the brokers that
        do not tell. They are asked `through` a view of the cluster. It may be called while another thread commits.
        """
        overtaken: dict[MessageQueue, tuple[int, int]] = {}
        failed: dict[str, MQBrokerError | RemotingError] = {}
        for name in broker_names:
            asked = [queue for queue in list(self._own) if queue.broker_name == name]
            try:
                found = query_consumer_offsets(through, self._group, asked)
            except (MQBrokerError, RemotingError) as error:
                failed[name] = error
                continue
            for queue, (offset, _) in found.items():
                # In this order: an offset goes from the ones that are owed to our own.
                ours = max(self._owed.get(queue, -1), self._own[queue])
                if offset > ours:
                    overtaken[queue] = ours, offset
        return overtaken, failed

    def stay(self, moved: Mapping[MessageQueue, tuple[int, int]]) -> None:
        """Leave the group's offsets of these queues where an operator has moved them: of each our offset, and that one.
        They follow the query again when it advances. It may be called while another thread commits.
        """
        for queue, (ours, theirs) in sorted(moved.items()):
            self._own[queue] = theirs
            self._owed.pop(queue, None)
            _log.warning(
                "group %r: its offset in %s was moved from outside to %d, while the query that reads it stands at %d: "
                "it is set back when the query advances", self._group, queue, theirs, ours,
            )  # fmt: skip

    def forget(self) -> None:
        """Another client may commit from now on."""
        self._own = {}

    def settle(self) -> None:
        """Commit what is owed, for 3 s at most. A warning names what no master has taken by then; it is forgotten."""
        until_s = self._timer_s() + LAST_TRIES_S
        while self._owed:
            try:
                self._commit({}, is_last=True)
            except LeaseHeldError as error:
                _log.warning("%s", error)
                break
            if not self._owed or self._timer_s() >= until_s:
                break
            self._sleep(_TRY_EVERY_S)
        left, self._owed = self._owed, {}
        if left:
            shown = ", ".join(f"{queue} at {offset}" for queue, offset in sorted(left.items()))
            _log.warning(
                "group %r: the query ends, and no master has taken these offsets: %s. The checkpoint has them; a query "
                "with another checkpoint, or another member of the group, reads from its older offsets",
                self._group, shown,
            )  # fmt: skip

    def _tried(self, late: Collection[MessageQueue], *, is_last: bool) -> dict[MessageQueue, _Outcome]:
        """Try to commit what is owed: of each queue the offset that stands now, or the error. Some may be left out.
        `late`: those that were owed before this commit.
        """
        held = self._lease.hold_to_commit({queue.broker_name for queue in self._owed}, is_last=is_last)
        cluster = self._cluster if is_last else self._asks
        late = [queue for queue in late if queue in self._owed and queue.broker_name in held]
        self.stay(self._moved_on(late, cluster))
        offsets = {queue: offset for queue, offset in self._owed.items() if queue.broker_name in held}
        outcomes = try_update_consumer_offsets(cluster, self._group, offsets)
        again: dict[MessageQueue, int] = {}
        for queue, stands in outcomes.items():
            if isinstance(stands, int) and stands != offsets[queue]:
                try:
                    # The first pull of a group ends its reset; nothing of the answer is used.
                    pull(cluster, queue, stands, 1, PullFilter(group=self._group))
                except (MQBrokerError, RemotingError) as error:
                    outcomes[queue] = error
                    continue
                again[queue] = offsets[queue]
                _log.warning(
                    "group %r: its offset in %s was reset to %d; the query that reads it stands at %d, and commits "
                    "that",
                    self._group, queue, stands, offsets[queue],
                )  # fmt: skip
        return outcomes | (try_update_consumer_offsets(cluster, self._group, again) if again else {})

    def _moved_on(self, queues: Sequence[MessageQueue], cluster: Cluster) -> dict[MessageQueue, tuple[int, int]]:
        """Of these queues those whose offset is ahead of what is owed: what is owed, and that offset (14)."""
        found = gather_consumer_offsets(cluster, self._group, queues).told
        return {
            queue: (self._owed[queue], one.value.offset)
            for queue, one in found.items()
            if one.value is not None and one.value.offset > self._owed[queue]
        }
