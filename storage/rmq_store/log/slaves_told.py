"""The last words of a server about its slaves, for a process that only looks: those of the state page (`replication`).

A server that was killed leaves them as they were: its lock tells.
"""

from __future__ import annotations

from pathlib import Path

from rmq_store.errors import StoreError
from rmq_store.files.locks.state_page import StatePage
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.log.broker_role import BrokerRole
from rmq_store.log.replication import server_lock_of


@dataclass(frozen=True, slots=True)
class SlavesTold:
    """`role` and `in_sync_replicas`: of who serves the store, or has served it last. `is_served`: a server runs.
    `count`: slaves that are connected and not far behind. `slowest_end`: of those that are connected, the least that
    one has; -1: none is. `replicated_end`: the log is, below it, at as many slaves as a send waits for.
    """

    role: BrokerRole
    in_sync_replicas: int
    is_served: bool
    count: int
    slowest_end: int
    replicated_end: int

    @property
    def needed(self) -> int:
        """How many slaves a send waits for."""
        if self.role is not BrokerRole.SYNC_MASTER:
            return 0
        return self.in_sync_replicas - 1 if self.in_sync_replicas else 1

    def slowest_behind_bytes(self, end: int) -> int | None:
        """How much of a log that ends at `end` the slowest slave lacks; None: no slave is connected, or it has said
        nothing yet.
        """
        return max(end - self.slowest_end, 0) if self.slowest_end >= 0 else None


def slaves_told(root: Path) -> SlavesTold | None:
    """None: no process of ours has written to the store."""
    own = root / "pyrmq"
    try:
        page = StatePage(own / "state", writable=False)
        if not page.keeps_role():
            return None
        is_served = server_lock_of(own).who().kind != "free"
        return SlavesTold(
            BrokerRole(page.broker_role), page.in_sync_replicas, is_served, page.slave_count if is_served else 0,
            page.slowest_end if is_served else -1, page.replicated_end,
        )  # fmt: skip
    except (OSError, StoreError, ValueError):  # whoever opens the store says why
        return None
