"""Who consumes as which group, and who has locked which queue, at one store directory.

Members and queue locks are leases (`broker/leases.py`), so that a killed process leaves its groups at once:

    %MEMBER%<hash of the client id>     owner = client id
    %LOCK%<queue id>|<topic>            owner = client id

A member without a heartbeat for 120 s is left out of the list, as a broker does (ConsumerManager.java). A queue lock
goes only when its holder gives it back or dies: unlike a broker (60 s, RebalanceLockManager.java) we never take one
from a process that is merely slow, because it may still commit.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from rmq_store.broker.leases import OWNER_LENGTH_MAX, Lease, live_leases
from rmq_store.broker.live import LOCK_PREFIX, MEMBER_PREFIX
from rmq_store.client.backend import MessageQueue
from rmq_store.errors import LeaseHeldError, UsageError
from rmq_store.files.guard import Guard

# What is left of the 127 characters of a lease name for a topic, whose own name may have 255.
_TOPIC_LENGTH_MAX = 100


class LocalGroups:
    """The members and queue locks that the clients of this process have at the store `root`. Safe for threads."""

    def __init__(self, root: str | Path, clock: Callable[[], int]) -> None:
        self._root = Path(root)
        self._clock = clock
        self._members: dict[tuple[str, str], Lease] = {}
        self._locks: dict[tuple[str, MessageQueue], tuple[str, Lease]] = {}
        self._turn = Guard()

    def heartbeat(
        self, group: str, client_id: str, *, joins: bool = False, topics: Collection[str] = ()
    ) -> None:
        """See `Broker.heartbeat`."""
        if not client_id or len(client_id) > OWNER_LENGTH_MAX:
            raise UsageError(f"a client id has 1..{OWNER_LENGTH_MAX} characters: {client_id[:40]!r}")
        with self._turn.entered():
            lease = self._members.get((group, client_id))
            if lease is not None and not joins and lease.heartbeat():
                lease.say_topics(topics)
                return
            lease = Lease(self._root, group, _member_name(client_id), clock=self._clock)
            try:
                lease.acquire(client_id)
            except LeaseHeldError as error:
                holder = lease.holder()
                process = "a process" if holder is None or holder.pid is None else f"process {holder.pid}"
                raise LeaseHeldError(
                    f"group {group!r} has a live member with the client id {client_id!r} ({process}): give each "
                    "consumer an instance_name or client_id of its own",
                    error.holder,
                ) from error
            self._members[group, client_id] = lease
            lease.say_topics(topics)

    def unregister(self, group: str, client_id: str) -> None:
        """See `Broker.unregister`."""
        with self._turn.entered():
            for key in [key for key, (owner, _) in self._locks.items() if (key[0], owner) == (group, client_id)]:
                self._locks[key][1].release()
                del self._locks[key]
            lease = self._members.get((group, client_id))
            if lease is not None:
                lease.release()
                del self._members[group, client_id]

    def consumer_ids(self, group: str) -> list[str]:
        """See `Broker.consumer_ids`."""
        now_ms = self._clock()
        leases = live_leases(self._root, group)
        return sorted(
            {lease.owner for lease in leases if lease.name.startswith(MEMBER_PREFIX) and not lease.is_stuck(now_ms)}
        )

    def lock_queues(self, group: str, client_id: str, queues: Sequence[MessageQueue]) -> set[MessageQueue]:
        """See `Broker.lock_queues`."""
        with self._turn.entered():
            return {queue for queue in queues if self._lock(group, client_id, queue)}

    def unlock_queues(self, group: str, client_id: str, queues: Sequence[MessageQueue]) -> None:
        """See `Broker.unlock_queues`."""
        with self._turn.entered():
            for queue in queues:
                if self._owner(group, queue) == client_id:
                    # First, and only then forgotten: after an interrupt it can be given up once more.
                    self._locks[group, queue][1].release()
                    del self._locks[group, queue]

    def holds(self, group: str, client_id: str, queue: MessageQueue) -> bool:
        """Whether the client has the lock of the queue at this moment."""
        with self._turn.entered():
            return self._owner(group, queue) == client_id and self._locks[group, queue][1].held()

    def close(self) -> None:
        """Leave all groups."""
        with self._turn.entered():
            for lease in [*self._members.values(), *(lease for _, lease in self._locks.values())]:
                lease.release()
            self._members.clear()
            self._locks.clear()

    def _owner(self, group: str, queue: MessageQueue) -> str | None:
        found = self._locks.get((group, queue))
        return found[0] if found else None

    def _lock(self, group: str, client_id: str, queue: MessageQueue) -> bool:
        owner = self._owner(group, queue)
        if owner is not None and self._locks[group, queue][1].heartbeat():
            return owner == client_id
        lease = Lease(self._root, group, _lock_name(queue), clock=self._clock)
        try:
            lease.acquire(client_id)
        except LeaseHeldError:
            return False
        self._locks[group, queue] = (client_id, lease)
        return True


def _member_name(client_id: str) -> str:
    # A client id holds @ and #, which no lease name may.
    return MEMBER_PREFIX + hashlib.sha256(client_id.encode()).hexdigest()


def _lock_name(queue: MessageQueue) -> str:
    topic = queue.topic if len(queue.topic) <= _TOPIC_LENGTH_MAX else hashlib.sha256(queue.topic.encode()).hexdigest()
    return f"{LOCK_PREFIX}{queue.queue_id}|{topic}"
