"""The use lock of a topic by a group: consumers share the topic's queues, or one stream has all of them.

    pyrmq/groups/<group>/<topic>.use
        0       locked (OFD) shared by each consumer that shares the topic's queues, exclusively by a stream

A stream cannot give up queues while a batch runs, so a stream and consumers together would each get every message. The
kernel decides which comes first, and frees the lock of a killed holder at once. The lock does not name its holder. The
leases do (`leases`): they are taken before the lock and released after it.

RocketMQ has no such lock: all of its consumers share queues.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

from rmq_store import real_time
from rmq_store.broker.metadata.leases import Lease, LeaseInfo, file_stem, group_directory, live_sharers
from rmq_store.clock import system_clock
from rmq_store.errors import LeaseHeldError
from rmq_store.files.locks.lock import OfdLock
from rmq_store.files.rooted import as_path
from rmq_store.format.text.names import RETRY_PREFIX, validate_group, validate_topic

# A holder that cannot be named yet, or any more, is looked for again: it is between its lease and this lock.
_UNNAMED_S = 1.0
_LOOK_S = 1e-3
_NAMED_MAX = 5


def claim_order(topics: Iterable[str]) -> list[str]:
    """The order in which all users claim topics, so that one of several users with the same topics gets them all. Retry
    topics come last: an error should name the topic that the user named.
    """
    return sorted(set(topics), key=lambda topic: (topic.startswith(RETRY_PREFIX), topic))


class TopicUse:
    """One holder's use of a topic by a group.

    Raises (when constructed):
        UsageError: a bad group or topic name.
    """

    def __init__(self, root: str | Path, group: str, topic: str, *, clock: Callable[[], int] = system_clock) -> None:
        validate_group(group)
        validate_topic(topic)
        self._root = as_path(root)
        self._group = group
        self._topic = topic
        self._clock = clock
        self._path = group_directory(self._root, group) / (file_stem(topic) + ".use")
        self._lock = OfdLock(self._path)

    def share(self) -> None:
        """Share the topic's queues with other consumers of the group. The directory of the group must exist.

        Raises:
            LeaseHeldError: a stream has the queues; `.holder` describes it.
        """
        holders = self._wait_for(self._lock.try_shared, self._stream)
        if holders is not None:
            advice = "stop it, or consume as another group"
            if self._topic.startswith(RETRY_PREFIX):
                advice = "set retryTopic=false in the stream, or consume as another group"
            raise self._held(holders, f"a stream shares its queues with no consumer: {advice}")

    def take_alone(self) -> None:
        """Keep all consumers of the group off the topic.

        Raises:
            LeaseHeldError: consumers share the queues; `.holder` describes the first of them.
        """
        holders = self._wait_for(self._lock.try_exclusive, lambda: live_sharers(self._root, self._group, self._topic))
        if holders is not None:
            raise self._held(holders, "a stream shares its queues with no consumer")

    def held(self) -> bool:
        """True if this object still uses the topic; False in a forked child."""
        return self._lock.is_current()

    def release(self) -> None:
        """Give up the use; does nothing if there is none. The last user removes the file."""
        if self.held() and (self._lock.held == "exclusive" or self._lock.try_upgrade()):
            # While it is locked: whoever waits for this file sees that it is unlinked, and opens the next one.
            self._path.unlink(missing_ok=True)
        self._lock.close()

    def _wait_for(self, take: Callable[[], bool], look: Callable[[], list[LeaseInfo]]) -> list[LeaseInfo] | None:
        """Try until the lock is taken (None), or until its holders are known."""
        deadline_s = real_time.monotonic() + _UNNAMED_S
        while not take():
            holders = look()
            if holders or real_time.monotonic() >= deadline_s:
                self._lock.close()
                return holders
            time.sleep(_LOOK_S)
        return None

    def _stream(self) -> list[LeaseInfo]:
        holder = Lease(self._root, self._group, self._topic).holder()
        return [] if holder is None else [holder]

    def _held(self, holders: list[LeaseInfo], advice: str) -> LeaseHeldError:
        now_ms = self._clock()
        names = [info.describe(now_ms) for info in holders[:_NAMED_MAX]] or ["another member"]
        if len(holders) > _NAMED_MAX:
            names.append(f"{len(holders) - _NAMED_MAX} more")
        return LeaseHeldError(
            f"group {self._group!r}: {self._topic!r} is being read by {', '.join(names)}; {advice}",
            holders[0].owner if holders else "",
        )


class TopicLease(Lease):
    """A lease on a topic, `name`, whose queues the holder has alone: no other stream and no consumer of the group reads
    them.

    Raises (when constructed):
        UsageError: a bad group or topic name.
    """

    def __init__(self, root: str | Path, group: str, name: str, *, clock: Callable[[], int] = system_clock) -> None:
        super().__init__(root, group, name, clock=clock)
        self._use = TopicUse(root, group, name, clock=clock)

    def acquire(self, owner: str, *, shares: bool = False) -> None:
        """As `Lease.acquire`; LeaseHeldError, too, if consumers share the topic's queues."""
        super().acquire(owner, shares=shares)
        try:
            self._use.take_alone()
        except BaseException:
            self.release()
            raise

    def held(self) -> bool:
        """As `Lease.held`."""
        return super().held() and self._use.held()

    def release(self) -> None:
        """As `Lease.release`."""
        self._use.release()
        super().release()
