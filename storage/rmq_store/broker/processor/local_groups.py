"""The members of groups, and the locks of queues, at one store directory.

Members and queue locks are leases (`broker/metadata/leases.py`), so that a killed process leaves its groups at once:

    %MEMBER%<hash of the client id>     owner = client id
    %RECEIVER%<hash of the client id>   owner = client id, of a client that receives and is no member
    %LOCK%<queue id>|<topic>            owner = client id

A member that shares a topic's queues holds the topic, too, so that no stream of the group reads it
(`broker/metadata/topic_use.py`).

The list leaves out a member without a heartbeat for 120 s, as a broker does (ConsumerManager.java). A queue lock ends
only when its holder releases it or dies. A broker takes a lock away after 60 s (RebalanceLockManager.java). This engine
never takes a lock from a slow process, because that process may still commit.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from rmq_store.broker.metadata.leases import MEMBER_PREFIX, OWNER_LENGTH_MAX, RECEIVER_PREFIX, Lease, live_leases
from rmq_store.broker.metadata.topic_use import TopicUse, claim_order
from rmq_store.broker.monitoring.active_consumers import LOCK_PREFIX
from rmq_store.errors import LeaseHeldError, UsageError
from rmq_store.files.locks.guard import Guard
from rmq_store.protocol.messages import MessageQueue

# Characters of a lease name (127) that are left for a topic, whose own name may have 255.
_TOPIC_LENGTH_MAX = 100


class LocalGroups:
    """The members and queue locks that the clients of this process have at the store `root`. Safe for threads."""

    def __init__(self, root: str | Path, clock: Callable[[], int]) -> None:
        self._root = Path(root)
        self._clock = clock
        self._members: dict[tuple[str, str], Lease] = {}
        self._receivers: dict[tuple[str, str], Lease] = {}
        self._uses: dict[tuple[str, str], dict[str, TopicUse]] = {}
        self._locks: dict[tuple[str, MessageQueue], tuple[str, Lease]] = {}
        self._guard = Guard()

    def heartbeat(
        self, group: str, client_id: str, *, joins: bool = False, topics: Collection[str] = (), shares: bool = True
    ) -> None:
        """See `Broker.heartbeat`."""
        _check_client_id(client_id)
        with self._guard.entered():
            lease = self._members.get((group, client_id))
            if lease is not None and not joins and lease.heartbeat():
                self._share(lease, client_id, topics, shares=shares)
                return
            lease = Lease(self._root, group, MEMBER_PREFIX + _hashed(client_id), clock=self._clock)
            try:
                lease.acquire(client_id, shares=shares)
            except LeaseHeldError as error:
                holder = lease.holder()
                process = "a process" if holder is None or holder.pid is None else f"process {holder.pid}"
                raise LeaseHeldError(
                    f"group {group!r} has a live member with the client id {client_id!r} ({process}): give each "
                    "consumer an instance_name or client_id of its own",
                    error.holder,
                ) from error
            self._share_or_release(lease, client_id, topics, shares=shares)
            self._members[group, client_id] = lease

    def share_topics(self, group: str, client_id: str, topics: Collection[str]) -> None:
        """See `Broker.share_topics`."""
        _check_client_id(client_id)
        with self._guard.entered():
            lease = self._receivers.get((group, client_id))
            if lease is not None and lease.heartbeat():
                self._share(lease, client_id, topics, shares=True)
                return
            lease = Lease(self._root, group, RECEIVER_PREFIX + _hashed(client_id), clock=self._clock)
            lease.acquire(client_id)
            self._share_or_release(lease, client_id, topics, shares=True)
            self._receivers[group, client_id] = lease

    def unregister(self, group: str, client_id: str, *, keeps_locks: bool = False) -> None:
        """See `Broker.unregister`. With `keeps_locks` its locks stay until they are unlocked."""
        with self._guard.entered():
            locks = [] if keeps_locks else self._locks.items()
            for key in [key for key, (owner, _) in locks if (key[0], owner) == (group, client_id)]:
                self._locks[key][1].release()
                del self._locks[key]
            uses = self._uses.get((group, client_id), {})
            for topic in list(uses):
                uses[topic].release()
                del uses[topic]
            self._uses.pop((group, client_id), None)
            for held in (self._members, self._receivers):
                lease = held.get((group, client_id))
                if lease is not None:
                    lease.release()
                    del held[group, client_id]

    def consumer_ids(self, group: str) -> list[str]:
        """See `Broker.consumer_ids`."""
        now_ms = self._clock()
        leases = live_leases(self._root, group)
        # One whose text is just being written has no owner yet. It would get queues that nobody consumes.
        members = [lease for lease in leases if lease.name.startswith(MEMBER_PREFIX) and lease.owner]
        return sorted({lease.owner for lease in members if not lease.is_stuck(now_ms)})

    def lock_queues(self, group: str, client_id: str, queues: Sequence[MessageQueue]) -> set[MessageQueue]:
        """See `Broker.lock_queues`."""
        with self._guard.entered():
            return {queue for queue in queues if self._lock(group, client_id, queue)}

    def unlock_queues(self, group: str, client_id: str, queues: Sequence[MessageQueue]) -> None:
        """See `Broker.unlock_queues`."""
        with self._guard.entered():
            for queue in queues:
                if self._owner(group, queue) == client_id:
                    # First, and only then forgotten: after an interrupt it can be given up once more.
                    self._locks[group, queue][1].release()
                    del self._locks[group, queue]

    def holds(self, group: str, client_id: str, queue: MessageQueue) -> bool:
        """Whether the client holds the lock of the queue now."""
        with self._guard.entered():
            return self._owner(group, queue) == client_id and self._locks[group, queue][1].held()

    def close(self) -> None:
        """Leave all groups."""
        with self._guard.entered():
            for use in [use for uses in self._uses.values() for use in uses.values()]:
                use.release()
            locks = (lease for _, lease in self._locks.values())
            for lease in [*self._members.values(), *self._receivers.values(), *locks]:
                lease.release()
            for held in (self._uses, self._members, self._receivers, self._locks):
                held.clear()

    def _share_or_release(self, lease: Lease, client_id: str, topics: Collection[str], *, shares: bool) -> None:
        """As `_share`, for a new lease: an error releases it."""
        try:
            self._share(lease, client_id, topics, shares=shares)
        except BaseException:
            lease.release()
            raise

    def _share(self, lease: Lease, client_id: str, topics: Collection[str], *, shares: bool) -> None:
        """Hold exactly these topics, and publish that. LeaseHeldError: a stream has one of them; nothing has
        changed.
        """
        known = self._uses.get((lease.group, client_id), {})
        fresh: dict[str, TopicUse] = {}
        try:
            for topic in claim_order(topics) if shares else ():
                if topic not in known or not known[topic].held():
                    fresh[topic] = TopicUse(self._root, lease.group, topic, clock=self._clock)
                    fresh[topic].share()
        except BaseException:
            for use in fresh.values():
                use.release()
            raise
        for topic in known.keys() - (set(topics) - fresh.keys()):
            # First, and only then forgotten: after an interrupt it can be given up once more.
            known[topic].release()
            del known[topic]
        if known or fresh:
            self._uses[lease.group, client_id] = known | fresh
        lease.write_topics(topics)

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


def _check_client_id(client_id: str) -> None:
    if not client_id or len(client_id) > OWNER_LENGTH_MAX:
        raise UsageError(f"a client id has 1..{OWNER_LENGTH_MAX} characters: {client_id[:40]!r}")


def _hashed(client_id: str) -> str:
    # A client id holds @ and #, which no lease name may.
    return hashlib.sha256(client_id.encode()).hexdigest()


def _lock_name(queue: MessageQueue) -> str:
    topic = queue.topic if len(queue.topic) <= _TOPIC_LENGTH_MAX else hashlib.sha256(queue.topic.encode()).hexdigest()
    return f"{LOCK_PREFIX}{queue.queue_id}|{topic}"
