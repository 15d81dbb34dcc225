"""The queues that this member of a group has now, and the steps when they change.

Every member divides the same queues among the same members, and takes its share. When a member loses a queue, it stores
its progress, and leaves the unfinished messages to the next member. It unlocks an ordered queue after the listener has
returned. When a member gains a queue, it must first lock an ordered one. Then it pulls from the group's offset. A queue
that needs no lock may still belong to another member. Then the new member waits two seconds, so that the other one can
detect the change and store its progress. Java's members do not wait, and consume again the messages done since the last
stored offset.

Java re-creates a queue that was not pulled for two minutes, because a pull request can get lost. Here every round
visits every queue, so no request can get lost. A broker notifies Java's members of a change; the members here poll for
it (`changed`). Sources: RebalanceImpl.java, RebalancePushImpl.java.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from typing import Generic, TypeVar

from rmq_store.client.backend.backend import Backend, broker_of
from rmq_store.client.group.consumer_config import ConsumerConfig, MessageModel
from rmq_store.client.group.held_queue import HeldQueue
from rmq_store.client.group.offset_store import OffsetStore
from rmq_store.client.group.start_offset import pull_from_where
from rmq_store.files.locks.guard import Guard
from rmq_store.format.text.names import RETRY_PREFIX
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.protocol.errors import ClientError
from rmq_store.protocol.messages import MessageQueue

_log = logging.getLogger(__name__)

# Others look for changes every second.
HANDOVER_MS = 2000

Held = TypeVar("Held", bound=HeldQueue)

# The members of a group and the queues of its topics, as seen at one moment.
Sight = tuple[tuple[str, ...], tuple[tuple[MessageQueue, ...], ...]]


@dataclass(slots=True)
class Assignment(Generic[Held]):
    """A queue of this member. `next_offset`: the next offset to pull; nothing is pulled before `not_before_ms`."""

    queue: MessageQueue
    process_queue: Held
    next_offset: int
    not_before_ms: int = 0


class Rebalance(Generic[Held]):
    """The queues of one consumer, each with the result of `make_queue`. Safe for threads. It calls `on_removed` for
    each queue that it released.
    """

    def __init__(
        self,
        backend: Backend,
        group: str,
        client_id: str,
        config: ConsumerConfig,
        offsets: OffsetStore,
        make_queue: Callable[[], Held],
        *,
        ordered: bool,
        on_removed: Callable[[Assignment[Held]], None] = lambda assignment: None,
    ) -> None:
        self._backend = backend
        self._group = group
        self._client_id = client_id
        self._config = config
        self._offsets = offsets
        self._make_queue = make_queue
        self._is_clustering = config.message_model is MessageModel.CLUSTERING
        self._locks_queues = ordered and self._is_clustering
        self._on_removed = on_removed
        # Held during a rebalance; the table itself is replaced, never changed.
        self._guard = Guard()
        self._table: dict[MessageQueue, Assignment[Held]] = {}
        self._seen: Sight | None = None
        self._wanted_since_ms: dict[MessageQueue, int] = {}
        # Queues that could not be given back, because their broker is away: told once.
        self._kept: set[MessageQueue] = set()

    def assignments(self) -> list[Assignment[Held]]:
        """The queues of this member now."""
        return list(self._table.values())

    def queues(self) -> list[MessageQueue]:
        """Their names, sorted."""
        return sorted(self._table)

    # -- changes ----------------------------------------------------------------------------------------------------

    def changed(self, topics: Iterable[str]) -> bool:
        """Whether members or queues differ from those at the last rebalance. Raises ClientError."""
        return self._members_and_queues(sorted(topics)) != self._seen

    def rebalance(self, topics: Iterable[str]) -> bool:
        """Acquire the queues of this member's share and release the others; False if a step could not be done yet.

        Raises:
            ClientError: the brokers did not return members or queues; nothing was changed.
            UsageError: as `remove`.
        """
        with self._guard.entered():
            wanted_topics = sorted(topics)
            seen = self._members_and_queues(wanted_topics)
            members, queues_by_topic = seen
            is_balanced = True
            wanted: set[MessageQueue] = set()
            for topic, queues in zip(wanted_topics, queues_by_topic, strict=True):
                if not queues and not topic.startswith(RETRY_PREFIX):
                    _log.warning("group %s: topic %s does not exist (yet)", self._group, topic)
                wanted.update(self._share(members, queues))
            self._kept -= wanted
            for queue, assignment in list(self._table.items()):
                if queue not in wanted or assignment.process_queue.dropped:
                    is_balanced &= self._remove(queue)
            missing = sorted(wanted - self._table.keys())
            self._wanted_since_ms = self._since(missing, members)
            for queue in missing:
                waited_ms = self._backend.clock() - self._wanted_since_ms[queue]
                is_balanced &= waited_ms >= HANDOVER_MS and self._add(queue)
            self._seen = seen
            return is_balanced

    def remove(self, queue: MessageQueue) -> bool:
        """Release a queue; False if its listener still runs in order, or its progress could not be stored. A queue that
        another thread has released meanwhile is released.

        Raises:
            UsageError: a signal handler called this during a change on its own thread; nothing was done.
        """
        with self._guard.entered():
            return queue not in self._table or self._remove(queue)

    def remove_all(self) -> bool:
        """Release every queue; False if some are kept."""
        with self._guard.entered():
            kept = [queue for queue in list(self._table) if not self._remove(queue)]
            return not kept

    # -- locks of ordered queues --------------------------------------------------------------------------------------

    def lock(self, queue: MessageQueue) -> bool:
        """Lock a queue of this member, or renew its lock."""
        assignment = self._table.get(queue)
        return assignment is not None and self._lock(queue, assignment.process_queue)

    def lock_all(self) -> None:
        """Renew the locks of this member's queues. A queue whose lock is not renewed is not consumed until it is."""
        if self._locks_queues:
            for assignment in self.assignments():
                self._lock(assignment.queue, assignment.process_queue)

    def _lock(self, queue: MessageQueue, process_queue: HeldQueue) -> bool:
        now_ms = self._backend.clock()
        try:
            granted = broker_of(self._backend, queue).lock_queues(self._group, self._client_id, [queue])
        except ClientError as error:
            _log.warning("group %s: %s is not locked: %s", self._group, queue, error)
            return False
        if queue not in granted:
            process_queue.lock_lost()
            return False
        process_queue.lock_granted(now_ms)
        return True

    # -- steps ------------------------------------------------------------------------------------------------------

    def _members_and_queues(self, topics: Collection[str]) -> Sight:
        queues = tuple(tuple(self._backend.subscribe_queues(topic)) for topic in topics)
        return tuple(self._members()) if self._is_clustering else (), queues

    def _members(self) -> list[str]:
        """The members by the first broker that answers: the same broker for all members."""
        failure: ClientError | None = None
        for _, broker in sorted(self._backend.brokers().items()):
            try:
                return sorted(broker.consumer_ids(self._group))
            except ClientError as error:
                failure = failure or error
        if failure is not None:
            raise failure
        return []

    def _share(self, members: tuple[str, ...], queues: tuple[MessageQueue, ...]) -> list[MessageQueue]:
        if not self._is_clustering:
            return list(queues)
        if not queues or self._client_id not in members:
            return []
        strategy = self._config.allocate_message_queue_strategy
        return strategy.allocate(self._group, self._client_id, queues, members)

    def _since(self, missing: Collection[MessageQueue], members: Collection[str]) -> dict[MessageQueue, int]:
        """The time from which each queue belongs to this member; long ago for queues that no other member can have."""
        if self._locks_queues or not self._is_clustering or len(members) == 1:
            return dict.fromkeys(missing, -HANDOVER_MS)
        now_ms = self._backend.clock()
        known = None if self._seen is None else {queue for queues in self._seen[1] for queue in queues}
        return {
            queue: self._wanted_since_ms.get(queue, now_ms if known is None or queue in known else -HANDOVER_MS)
            for queue in missing
        }

    def _remove(self, queue: MessageQueue) -> bool:
        assignment = self._table[queue]
        process_queue = assignment.process_queue
        process_queue.dropped = True
        # Nobody else may start in order before the listener has come back.
        if self._locks_queues and not process_queue.consume_lock.acquire(blocking=False):
            return False
        try:
            with process_queue.settle_lock:
                self._offsets.persist([queue])
            if self._locks_queues:
                broker_of(self._backend, queue).unlock_queues(self._group, self._client_id, [queue])
        except ClientError as error:
            _log.log(
                logging.DEBUG if queue in self._kept else logging.WARNING,
                "group %s: %s is kept: %s", self._group, queue, error,
            )  # fmt: skip
            self._kept.add(queue)
            return False
        finally:
            if self._locks_queues:
                process_queue.consume_lock.release()
        self._kept.discard(queue)
        self._offsets.forget(queue)
        self._table = {key: value for key, value in self._table.items() if key != queue}
        self._on_removed(assignment)
        return True

    def _add(self, queue: MessageQueue) -> bool:
        process_queue = self._make_queue()
        if self._locks_queues and not self._lock(queue, process_queue):
            return False
        # A listener that ended after the queue was last taken from us may have left its progress behind.
        self._offsets.forget(queue)
        timestamp_ms = self._config.consume_timestamp_ms(self._backend.clock())
        where = self._config.consume_from_where
        try:
            # The lock comes first: until it is ours, the member before us may still commit.
            offset = pull_from_where(self._backend, self._offsets, queue, where, timestamp_ms)
        except ClientError as error:
            _log.warning("group %s: %s cannot be taken over yet: %s", self._group, queue, error)
            return False
        self._table = {**self._table, queue: Assignment(queue, process_queue, offset)}
        return True
