"""The consumer group of a stream: its leases, and its committed offsets. Control plane.

Spark reports a completed batch late, or never: it calls `commit(end)` when it plans the next batch. But the `start` of
`latestOffset` passes a batch as soon as its sink has succeeded, and not earlier. So the reader reports both here as
completed. A repeated report costs nothing.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from collections.abc import Callable, Container, Iterable
from pathlib import Path

from pyspark_rmq.access.queue_source import Lease, QueueSource
from pyspark_rmq.options.options import RETRY_PREFIX
from pyspark_rmq.position.position import Queue, QueueOffsets
from rmq_store.real_time import monotonic

_log = logging.getLogger(__name__)

# Spark needs up to two seconds to end the process of a stopped query, which then still holds the lease.
CLAIM_TIMEOUT_S = 6.0
_CLAIM_INTERVAL_S = 0.2

# A lease without one for 120 s counts as stuck.
_HEARTBEAT_INTERVAL_S = 30.0


def describe_owner(name: str) -> str:
    """Return the text that names the owner of a lease to others: a name, the host, and the pid of the driver's JVM.

    This process lives only as long as the query, so its own pid would not help to find the program.
    """
    return f"{name} on {socket.gethostname()}, driver process {_driver_pid()}"


def _driver_pid() -> int:
    """The pid of the JVM above this worker; Spark's daemon is between them. The parent's pid if there is no JVM."""
    pid = os.getppid()
    while pid > 1:
        try:
            name, _, state = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(")")
        except OSError:
            break
        if name == "java":
            return pid
        pid = int(state.split()[1])
    return os.getppid()


def _advice(topic: str) -> str:
    if topic.startswith(RETRY_PREFIX):
        return "only one query of a group can read its retry topic; set retryTopic=false in this one"
    return "two that each read everything need two groups"


class GroupMember:
    """This process as a consumer of a group. It never commits offsets that were not reported as completed."""

    def __init__(self, store: QueueSource, group: str, owner: str, sleep: Callable[[float], None] = time.sleep) -> None:
        self._store = store
        self._group = group
        self._owner = owner
        self._sleep = sleep
        self._heartbeat_s = monotonic()
        self._leases: dict[str, Lease] = {}
        self._completed: dict[Queue, int] = {}

    def claim(self, topics: Iterable[str]) -> None:
        """Take and hold the leases of these topics. Raises `LeaseHeldError`, which names the holder, if a lease does
        not become free in time: another stream has it, or consumers of the group share its queues.
        """
        from rmq_store.errors import LeaseHeldError

        self.heartbeat()
        # The retry topic last: who is refused should hear about the topic that he has named.
        for topic in sorted(set(topics), key=lambda topic: (topic.startswith(RETRY_PREFIX), topic)):
            if topic in self._leases:
                continue
            waited_s, began_s = 0.0, monotonic()
            while True:
                try:
                    self._leases[topic] = self._store.lease(self._group, topic, self._owner)
                    break
                except LeaseHeldError as error:
                    # The store itself may have waited, for locks of a query that has ended.
                    if max(waited_s, monotonic() - began_s) >= CLAIM_TIMEOUT_S:
                        raise LeaseHeldError(f"{error}; {_advice(topic)}", error.holder) from error
                self._sleep(_CLAIM_INTERVAL_S)
                waited_s += _CLAIM_INTERVAL_S

    def completed(self, offsets: QueueOffsets, away: Container[Queue] = ()) -> None:
        """Commit the offsets that moved since the last call. `offsets` are the first ones that are *not* completed.

        A queue that is reported for the first time is committed only if that moves the group forward. If the committed
        offset is already further, an operator has moved it, and this query must not undo that before it advances.

        Brokers of the queues `away` do not tell what is committed there. The store owes what this process has reported
        of them before, until they are back. Other queues of theirs wait.
        """
        from rmq_store.errors import LeaseHeldError

        moved = {queue: offset for queue, offset in offsets.items() if self._completed.get(queue) != offset}
        moved = {queue: offset for queue, offset in moved.items() if queue not in away or queue in self._completed}
        if not moved:
            return
        if any(queue not in self._completed for queue in moved):
            stored = self._store.committed_offsets(self._group)
            ahead = {queue for queue in moved.keys() - self._completed.keys() if stored.get(queue, -1) > moved[queue]}
            for queue in sorted(ahead):
                _log.warning(
                    "group %r has committed %d for %s, this query stands at %d: it is set back when the query advances",
                    self._group,
                    stored[queue],
                    queue,
                    moved[queue],
                )
        else:
            ahead = set()
        commit: dict[tuple[str, int], int] = {queue: offset for queue, offset in moved.items() if queue not in ahead}
        for topic in sorted({topic for topic, _ in commit}):
            lease = self._leases.get(topic)
            if lease is None or not lease.held():
                raise LeaseHeldError(
                    f"group {self._group!r} lost its lease on topic {topic!r}: nothing committed", "unknown"
                )
        if commit:
            self._store.commit_offsets(self._group, commit)
        # Those that are owed are committed by the first call that finds their brokers back.
        self._completed.update({queue: offset for queue, offset in moved.items() if queue not in away})

    def heartbeat(self) -> None:
        """Write in the leases that this consumer still works. Costs nothing most of the time."""
        now_s = monotonic()
        if now_s - self._heartbeat_s < _HEARTBEAT_INTERVAL_S:
            return
        self._heartbeat_s = now_s
        for lease in self._leases.values():
            lease.heartbeat()

    def leave(self) -> None:
        """Release the leases, each of them whatever became of the others."""
        leases, self._leases = self._leases, {}
        with contextlib.ExitStack() as stack:
            for lease in reversed(leases.values()):
                stack.callback(lease.release)
