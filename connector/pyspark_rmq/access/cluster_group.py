"""A consumer group at the brokers: its offsets, and the lease of a stream that commits for it. Control plane.

The lease of a topic is a lock of queue 0 at each master, under a group of its own (LOCK_BATCH_MQ): brokers of 5.x send
what comes back to a group with locked queues straight to its dead letters. A broker forgets a lock after 60 s. A holder
is also a member of the group, so that others see its name, and it takes no lease while others are alive.

    lock, ask for members, heartbeat, ask for members again      by whoever takes the lease
    lock and heartbeat every 20 s                                 in a thread: a batch may take longer than a lock lasts

Sources: RebalanceLockManager.java, ConsumerManager.java, ConsumerManageProcessor.java.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from pyspark_rmq.position.queue_ids import BrokerQueueId
from rmq_store.cluster import (
    Cluster,
    ConsumerConnection,
    ConsumerData,
    GetConsumerConnectionListRequestHeader,
    HeartbeatData,
    MessageQueue,
    MQBrokerError,
    PullFilter,
    RemotingError,
    ResponseCode,
    SubscriptionData,
    checked,
    consume_stats,
    heartbeat,
    locks,
    pull,
    query_consumer_offsets,
    request,
    unregister,
    update_consumer_offsets,
)
from rmq_store.errors import LeaseHeldError, StoreError

_log = logging.getLogger(__name__)

LEASE_SUFFIX: Final = "_rmq_lease"
RENEW_EVERY_S: Final = 20.0
LOCK_LASTS_S: Final = 60.0
_LOOK_EVERY_S: Final = 1.0


class ClusterGroup:
    """One group of one process. `name` is the group's, without a namespace."""

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        *,
        sleep: Callable[[float], None] = time.sleep,
        timer_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self._cluster = cluster
        self._sleep = sleep
        self._timer_s = timer_s
        self._client_id = ""
        self._topics: set[str] = set()
        self._granted_s = 0.0
        self._is_lost = False
        self._others_seen: set[str] = set()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        # Topics and times of a member change in both threads.
        self._lock = threading.Lock()
        # Held while locks and membership are renewed or given back. A handler of SIGTERM may leave in the midst.
        self._renewing = threading.RLock()
        # What could not be committed, because no master of the broker answered.
        self._owed: dict[MessageQueue, int] = {}
        self._asked: Sequence[MessageQueue] = ()
        self._young: dict[MessageQueue, bool] = {}

    # -- offsets ------------------------------------------------------------------------------------------------------

    def committed(self, queues: Sequence[MessageQueue]) -> dict[tuple[str, BrokerQueueId], int]:
        """The offsets that the group has committed in these queues (14), without queues that have none."""
        self._asked = queues
        found = query_consumer_offsets(self._cluster, self.name, queues, set_zero_if_not_found=False)
        unclear = {queue.topic for queue, given in found.items() if given.may_be_none}
        clear = self._topics_with_offsets() if unclear else set()
        return {
            (queue.topic, BrokerQueueId(queue.broker_name, queue.queue_id)): given.offset
            for queue, given in found.items()
            if not given.may_be_none or queue.topic in clear
        }

    def _topics_with_offsets(self) -> set[str]:
        """The topics for which any broker has an offset of the group (208)."""
        try:
            return {queue.topic for queue in consume_stats(self._cluster, self.name)}
        except MQBrokerError as error:
            _log.info("group %r: it cannot be told whether it has committed 0: %s", self.name, error)
            return set()

    def begins_at_first(self, queue: MessageQueue) -> bool:
        """Whether a broker answers 0 for a group without an offset in this queue."""
        if queue not in self._young:
            asked = [other for other in self._asked if other not in self._young] or [queue]
            if queue not in asked:
                asked.append(queue)
            found = query_consumer_offsets(self._cluster, self.name, asked, set_zero_if_not_found=None)
            self._young |= {other: other in found and found[other].offset == 0 for other in asked}
        return self._young[queue]

    def commit(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Commit offsets at the masters. An offset that is set back from outside, and waits for the group's next pull,
        is taken back: whoever holds the lease says where the group stands.

        Offsets of a broker whose master does not answer are committed by the next call to which it answers. The
        checkpoint says where the query stands, and nothing is committed at a slave.
        """
        offsets = self._owed | dict(offsets)
        stands = self._stands_after(offsets)
        pending = {queue: offset for queue, offset in offsets.items() if stands.get(queue, offset) != offset}
        if not pending:
            return
        for queue in pending:
            # The first pull of a group ends its reset; nothing of the answer is used.
            pull(self._cluster, queue, stands[queue], 1, PullFilter(group=self.name))
            _log.warning(
                "group %r: its offset in %s was reset to %d; the query that reads it stands at %d, and commits that",
                self.name, queue, stands[queue], pending[queue],
            )  # fmt: skip
        update_consumer_offsets(self._cluster, self.name, pending)

    def _stands_after(self, offsets: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
        """Commit what masters take, and return what stands there; the rest is owed."""
        try:
            stands = update_consumer_offsets(self._cluster, self.name, offsets)
        except RemotingError:
            stands = self._stands_by_broker(offsets)
        owed = {queue: offset for queue, offset in offsets.items() if queue not in stands}
        if owed.keys() - self._owed.keys():
            brokers = ", ".join(sorted({queue.broker_name for queue in owed}))
            _log.warning(
                "group %r: no master of %s answers; its offsets are committed when it is back", self.name, brokers
            )
        self._owed = owed
        return stands

    def _stands_by_broker(self, offsets: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
        stands: dict[MessageQueue, int] = {}
        for name in sorted({queue.broker_name for queue in offsets}):
            here = {queue: offset for queue, offset in offsets.items() if queue.broker_name == name}
            with contextlib.suppress(RemotingError):
                stands |= update_consumer_offsets(self._cluster, self.name, here)
        return stands

    # -- the lease ----------------------------------------------------------------------------------------------------

    def lease(self, topic: str, owner: str) -> ClusterLease:
        """Take the lease of a topic for `owner`, which is shown to others, and be a member of the group from now on.

        A lock whose holder is no living member is waited for, 60 s at most.

        Raises:
            LeaseHeldError: another query holds it, or the group has other live members; it names them.
            RemotingError: no master answers. MQBrokerError: a broker refuses.
        """
        if not self._client_id:
            self._client_id = f"{owner}#{secrets.token_hex(4)}".replace(" ", "_")
        began_s = asked_s = self._timer_s()
        while not self._locked([topic]):
            others = self._others()
            if others or self._timer_s() - began_s > LOCK_LASTS_S + _LOOK_EVERY_S:
                holder = ", ".join(others) or "unknown"
                raise LeaseHeldError(f"group {self.name!r}: topic {topic!r} is consumed by {holder}", holder)
            self._sleep(_LOOK_EVERY_S)
            asked_s = self._timer_s()
        try:
            self._refuse_others(topic)
            with self._lock:
                # The locks of other topics are as old as before, and brokers count from the request.
                self._granted_s = min(self._granted_s, asked_s) if self._topics else asked_s
                self._topics.add(topic)
            self._beat()
            self._refuse_others(topic)
        except BaseException:
            self._give_back(topic)
            raise
        if self._thread is None:
            self._thread = threading.Thread(target=self._keep, name="rmq-group", daemon=True)
            self._thread.start()
        return ClusterLease(self, topic)

    def holds(self, topic: str) -> bool:
        """Whether the lease is still this process's."""
        return topic in self._topics and not self._is_lost and self._timer_s() - self._granted_s < LOCK_LASTS_S

    def release(self, topic: str) -> None:
        """Give the lease back, and with the last one leave the group. Brokers that do not answer forget by themselves.
        """
        with self._renewing:
            if topic in self._topics:
                self._give_back(topic)
        if not self._topics:
            self.leave()

    def leave(self) -> None:
        """Give all leases back, and leave the group; may be called again."""
        self._stopped.set()
        # A renewal on its way would join again what is left here. Its calls have time limits.
        with self._renewing:
            self._leave()

    def _leave(self) -> None:
        for topic in sorted(self._topics):
            self._give_back(topic)
        if self._client_id:
            with contextlib.suppress(StoreError):
                unregister(self._cluster, self._client_id, consumer_group=self.name)
            self._client_id = ""

    def _give_back(self, topic: str) -> None:
        with self._lock:
            self._topics.discard(topic)
        for queue in self._lease_queues([topic]):
            with contextlib.suppress(StoreError):
                locks.unlock(self._cluster, self.name + LEASE_SUFFIX, self._client_id, [queue])

    def _locked(self, topics: Collection[str]) -> bool:
        """Lock these topics at all masters that answer, or renew the locks; False, and nothing is locked, if another
        client has one.
        """
        granted: list[MessageQueue] = []
        failure: RemotingError | None = None
        queues = self._lease_queues(topics)
        for broker_name in sorted({queue.broker_name for queue in queues}):
            here = [queue for queue in queues if queue.broker_name == broker_name]
            try:
                locked = locks.lock(self._cluster, self.name + LEASE_SUFFIX, self._client_id, here)
            except RemotingError as error:
                failure = error
                continue
            granted += locked
            if len(locked) < len(here):
                for queue in granted:
                    with contextlib.suppress(StoreError):
                        locks.unlock(self._cluster, self.name + LEASE_SUFFIX, self._client_id, [queue])
                return False
        if not granted and failure is not None:
            raise failure
        return True

    def _lease_queues(self, topics: Collection[str]) -> list[MessageQueue]:
        return [MessageQueue(topic, name, 0) for topic in sorted(topics) for name in self._cluster.broker_names()]

    def _refuse_others(self, topic: str) -> None:
        others = self._others()
        if others:
            holder = ", ".join(others)
            raise LeaseHeldError(
                f"group {self.name!r} has other live members, which read topic {topic!r} or would lose their queues: "
                f"{holder}. Stop them, or set commitOffsets=false to read beside them",
                holder,
            )

    def _others(self) -> list[str]:
        """The other live members of the group, as all masters that answer know them (203)."""
        header = GetConsumerConnectionListRequestHeader(consumer_group=self._cluster.wire_group(self.name))
        names = self._cluster.broker_names()
        found: set[str] = set()
        for name, given in zip(names, self._cluster.call_all([(name, request(header)) for name in names]), strict=True):
            if isinstance(given, RemotingError):
                continue
            answer = checked(given, name, (ResponseCode.SUCCESS, ResponseCode.CONSUMER_NOT_ONLINE))
            if answer.code == ResponseCode.SUCCESS:
                found |= {one.client_id for one in ConsumerConnection.decode(answer.body).connection_set}
        return sorted(found - {self._client_id})

    def _beat(self) -> None:
        with self._lock:
            topics = sorted(self._topics)
        data = ConsumerData(
            group_name=self._cluster.wire_group(self.name),
            consume_type="CONSUME_ACTIVELY",
            subscription_data_set=tuple(
                SubscriptionData(topic=self._cluster.wire_topic(topic), sub_string="*") for topic in topics
            ),
        )
        heartbeat(self._cluster, HeartbeatData(client_id=self._client_id, consumer_data_set=(data,)))

    def _keep(self) -> None:
        while not self._stopped.wait(RENEW_EVERY_S):
            self.renew()

    def renew(self) -> None:
        """Renew locks and membership, and log members that came since. Errors are logged: the next time comes."""
        with self._renewing:
            self._renew()

    def _renew(self) -> None:
        with self._lock:
            topics = sorted(self._topics)
        if not topics:
            return
        try:
            began_s = self._timer_s()
            if self._locked(topics):
                self._granted_s = began_s
            else:
                self._is_lost = True
                _log.error("group %r: another client has taken the lease of %s", self.name, ", ".join(topics))
            self._beat()
            came = set(self._others()) - self._others_seen
            if came:
                self._others_seen |= came
                _log.warning(
                    "group %r: %s joined while this query reads all queues; messages are consumed twice",
                    self.name, ", ".join(sorted(came)),
                )  # fmt: skip
        except StoreError as error:
            _log.warning("group %r: lease and membership cannot be renewed now: %s", self.name, error)


class ClusterLease:
    """The right of one process to consume a topic for a group; it ends 60 s after the process."""

    def __init__(self, group: ClusterGroup, topic: str) -> None:
        self._group = group
        self._topic = topic

    def heartbeat(self) -> bool:
        """Whether the lease is still held: a thread shows that the holder lives."""
        return self.held()

    def held(self) -> bool:
        """True if this process still holds the lease."""
        return self._group.holds(self._topic)

    def release(self) -> None:
        """Give it back."""
        self._group.release(self._topic)


def live_members(cluster: Cluster, group: str) -> list[str]:
    """The ids of the live members of a group, sorted."""
    return ClusterGroup(cluster, group)._others()
