"""The processors of a broker, and its pools of threads. The table of requests says which of them answers which."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from rmq_store.format.text.host import Host
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.server.admin.changes import Changes
from rmq_store.server.admin.cleaning import Cleaning
from rmq_store.server.admin.group_progress import GroupProgress
from rmq_store.server.admin.member_offsets import MemberOffsets
from rmq_store.server.admin.member_questions import MemberQuestions
from rmq_store.server.admin.queue_entries import QueueEntries
from rmq_store.server.admin.rates import Rates
from rmq_store.server.admin.resets import Resets
from rmq_store.server.admin.settings import Settings
from rmq_store.server.ha.slave_tables import SlaveTables
from rmq_store.server.name_server.kv_configs import KVConfigs
from rmq_store.server.name_server.route_processor import RouteProcessor
from rmq_store.server.name_server.route_table import RouteTable
from rmq_store.server.name_server.settings import NameServerSettings
from rmq_store.server.pop.assignments import Assignments
from rmq_store.server.pop.notifications import NotificationProcessor
from rmq_store.server.pop.peeks import PeekProcessor
from rmq_store.server.pop.pop_processor import PopProcessor
from rmq_store.server.pop.receipts import ReceiptProcessor
from rmq_store.server.processors.administration import AdministrationProcessor
from rmq_store.server.processors.committed_offsets import CommittedOffsets
from rmq_store.server.processors.members import Members
from rmq_store.server.processors.pulling import PullProcessor
from rmq_store.server.processors.queries import QueryProcessor
from rmq_store.server.processors.queue_ends import QueueEndsProcessor
from rmq_store.server.processors.queue_locks import QueueLocks
from rmq_store.server.processors.replies import ReplyProcessor
from rmq_store.server.processors.sending import Hold, OnStored, SendProcessor
from rmq_store.server.processors.served_store import ServedStore
from rmq_store.server.processors.transactions import TransactionProcessor
from rmq_store.server.requests.bound_services import Grouped, bound_services
from rmq_store.server.requests.dispatcher import Service
from rmq_store.server.requests.request_table import Pool
from rmq_store.server.requests.worker_pool import WorkerPool
from rmq_store.server.virtual_clock import VirtualClockProcessor


@dataclass(frozen=True, slots=True)
class Pools:
    """The threads of a server, by kind of request."""

    send: WorkerPool
    pull: WorkerPool
    pop: WorkerPool
    admin: WorkerPool
    client: WorkerPool
    transaction: WorkerPool

    def each(self) -> tuple[WorkerPool, ...]:
        """All pools."""
        return self.send, self.pull, self.pop, self.admin, self.client, self.transaction

    def by_kind(self) -> dict[Pool, WorkerPool]:
        """The pool of each kind of request. Brokers that register are clients like others here."""
        return {Pool.REGISTRATION: self.client, **{Pool(pool.name): pool for pool in self.each()}}


# BrokerConfig.java: threads (two processors), queue capacities, and how long a request may wait in its queue.
_FIGURES: Final = {
    "send": (1, 10_000, 200),
    "pull": (2, 100_000, 5_000),
    "pop": (2, 100_000, 5_000),
    "admin": (2, 20_000, 5_000),
    "client": (1, 50_000, 31_000),
    "transaction": (1, 100_000, 3_000),
}


def start_pools() -> Pools:
    """Start the threads."""
    return Pools(**{name: WorkerPool(name, *figures) for name, figures in _FIGURES.items()})


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a server that its requests share with its housekeeping."""

    served: ServedStore
    pools: Pools
    offsets: CommittedOffsets
    members: Members
    locks: QueueLocks
    pulls: PullProcessor
    pops: PopProcessor
    notifications: NotificationProcessor
    receipts: ReceiptProcessor
    transactions: TransactionProcessor
    routes: RouteTable
    on_stored: OnStored
    slaves: SlaveTables
    hold: Hold | None
    own_settings: Mapping[str, int | bool | str]


def services(parts: Parts) -> dict[int, Service]:
    """The services of a broker that is a name server, too, by request code."""
    served, members, offsets = parts.served, parts.members, parts.offsets
    sends, pairs = SendProcessor(served, parts.on_stored, parts.hold), KVConfigs()
    routes = RouteProcessor(parts.routes, pairs)
    # With SYNC_FLUSH a send waits for the disk.
    is_sync = served.store.config.flush_disk_type == "SYNC_FLUSH"
    return bound_services(
        {
            "sends": sends,
            "replies": ReplyProcessor(served, members),
            "transactions": parts.transactions,
            "pulls": parts.pulls,
            "queries": QueryProcessor(served),
            "offsets": offsets,
            "ends": QueueEndsProcessor(served),
            "members": members,
            "locks": parts.locks,
            "assignments": Assignments(served),
            "pops": parts.pops,
            "receipts": parts.receipts,
            "notifications": parts.notifications,
            "peeks": PeekProcessor(served),
            "admins": AdministrationProcessor(served, members, offsets),
            "changes": Changes(served, offsets),
            "progress": GroupProgress(served, members, offsets),
            "resets": Resets(served, members, offsets),
            "questions": MemberQuestions(served, members),
            "member_offsets": MemberOffsets(members),
            "settings": Settings(served, parts.own_settings),
            "rates": Rates(served),
            "queue_entries": QueueEntries(served, members),
            "cleaning": Cleaning(served, offsets),
            "slaves": parts.slaves,
            "clock": VirtualClockProcessor(served.store),
            "routes": routes,
            "removals": routes,  # 216: only of a broker
            "pairs": pairs,
            "name_server_settings": NameServerSettings(Host.parse(served.address).port),
        },
        parts.pools.by_kind(),
        {
            "sends.send": Grouped(
                partial(sends.send_together, may_wait=True),
                None if is_sync else partial(sends.send_together, may_wait=False),
                None if is_sync else sends.serve,
            ),
            "pulls.pull": Grouped(at_once=parts.pulls.pull_at_once),
        },
    )
