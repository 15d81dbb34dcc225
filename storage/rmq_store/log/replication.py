"""Whether slaves have what was appended: words of the state page that the server of a store writes, and that every
process reads which appends (CommitLog#handleHA, HAService#isSlaveOK, GroupTransferService).

A role without a server stays: whoever set it up wants no message that only one machine has. No slave is in reach then.
"""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Final

from rmq_store import real_time
from rmq_store.errors import UsageError
from rmq_store.files.locks.lock import OfdLock
from rmq_store.log.append.flush import flush_and_vouch
from rmq_store.log.broker_role import BrokerRole
from rmq_store.log.core.commit_log import CommitLog

SLAVE_TIMEOUT_MS: Final = 3000
"""slaveTimeout of 4.9 and 5.x."""

# Between two looks whether the server still lives.
_LOOK_S: Final = 0.2


class Replicated(Enum):
    """YES: as many slaves have it as a send waits for, or the store waits for none. LATE: not in time. NO_SLAVE: none
    was there that could have taken it (4.x).
    """

    YES = "yes"
    LATE = "late"
    NO_SLAVE = "no slave"


def server_lock_of(own: Path) -> OfdLock:
    """The lock that the server of a store holds. `own`: the store's directory `pyrmq`."""
    return OfdLock(own / "server.lock")


class Replication:
    """The words of one log that is open for writing."""

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self._page = page = log.writing_page
        self._waiters, self._growth = page.replica_futex(), page.growth_futex()
        self._server = server_lock_of(log.own)

    # -- whoever appends ----------------------------------------------------------------------------------------------

    @property
    def is_sync(self) -> bool:
        """Whether what is appended waits for slaves. With inSyncReplicas=1 the master alone is enough (5.x)."""
        page = self._page
        return page.broker_role == BrokerRole.SYNC_MASTER and page.in_sync_replicas != 1

    def wait(self, end: int, timeout_ms: int | None = None, *, while_it_grows: bool = False) -> Replicated:
        """Wait until slaves have the log up to `end`; at most `timeout_ms` (None: the server's slaveTimeout; 0: only
        look). `while_it_grows`: the time counts since slaves had less than now, as for gigabytes.

        Without a server, or without a slave that is not far behind, nobody waits: NO_SLAVE by the rules of 4.x. By
        those of inSyncReplicas it is LATE: at once without a server, and otherwise when the time is over.
        """
        page = self._page
        if not self.is_sync or page.replicated_end >= end:
            return Replicated.YES
        self._growth.wake()
        nobody = Replicated.LATE if page.in_sync_replicas else Replicated.NO_SLAVE
        if not self._has_server() or (not page.in_sync_replicas and page.slave_count <= 0):
            return nobody
        wait_s = (page.slave_timeout if timeout_ms is None else timeout_ms) / 1000
        seen, now = page.replicated_end, real_time.monotonic()
        until, look_at = now + wait_s, now + _LOOK_S
        while True:
            self._waiters.announce()
            replicated_end = page.replicated_end
            if replicated_end >= end or not self.is_sync:
                return Replicated.YES
            now = real_time.monotonic()
            if while_it_grows and replicated_end > seen:
                seen, until = replicated_end, now + wait_s
            if now >= until:
                return Replicated.LATE
            if now >= look_at:
                look_at = now + _LOOK_S
                if not self._has_server():
                    return nobody
            self._waiters.wait(min(until - now, _LOOK_S))

    def _has_server(self) -> bool:
        return self._server.who().kind != "free"

    # -- the server ---------------------------------------------------------------------------------------------------

    def begin(self, role: BrokerRole, in_sync_replicas: int = 0, slave_timeout_ms: int = SLAVE_TIMEOUT_MS) -> None:
        """Make this the role of the store, from now on and for processes that open it later. No slave is there yet.
        The role is on disk on return.

        Raises:
            UsageError: a negative number.
            StoreFailedError, StoreLockedError: as `flush`.
        """
        if in_sync_replicas < 0 or slave_timeout_ms < 0:
            raise UsageError("inSyncReplicas and slaveTimeout must not be negative")
        page = self._page
        page.slave_count, page.slowest_end = 0, -1
        page.in_sync_replicas, page.slave_timeout = in_sync_replicas, slave_timeout_ms
        page.broker_role = role
        self._waiters.wake(everybody=True)
        flush_and_vouch(self._log)

    @property
    def replicated_end(self) -> int:
        """The log is below it at as many slaves as a send waits for."""
        return self._page.replicated_end

    def reported(self, replicated_end: int, slave_count: int, slowest_end: int) -> None:
        """Tell all processes what slaves have. `slave_count`: those that are not far behind; `slowest_end`: the least
        that one has, -1 without any. A message that slaves once had counts as there when they have gone.
        """
        page = self._page
        page.slave_count, page.slowest_end = slave_count, slowest_end
        if replicated_end > page.replicated_end:
            page.replicated_end = replicated_end
            self._waiters.wake(everybody=True)

    def await_growth(self, known_end: int, timeout_s: float) -> bool:
        """Whether the visible log has grown beyond `known_end`, waiting at most `timeout_s`. A writer that waits for
        slaves wakes the server; what others append is seen at the end of the time.
        """
        self._growth.announce()
        if self._log.visible_end() > known_end:
            return True
        self._growth.wait(timeout_s)
        return self._log.visible_end() > known_end

    def grown(self) -> None:
        """Wake who waits for growth."""
        self._growth.wake()
