"""A slave: it follows its master into a replica, and serves reads from there under a broker id above 0.

    feeding     one thread: the log and the tables of the master, with reports of what is on disk here
    serving     the replica, open for reading: pulls, queries, ends, members of groups, figures
    offsets     of groups that commit here while the master is away (`rmq_store.replica.slave_commits`)

Sends get 14. It goes on serving while its master is away. If both logs part, it stops, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from rmq_store.broker.processor.local_broker import LocalBroker
from rmq_store.broker.store.store import Store
from rmq_store.clock import system_clock
from rmq_store.errors import UsageError
from rmq_store.protocol.bodies.routes import MASTER_ID, BrokerData
from rmq_store.protocol.bodies.topics import TopicConfig
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.request_codes import RequestCode
from rmq_store.remoting.transport.settings import ClusterSettings
from rmq_store.replica.follow import Follower
from rmq_store.replica.master import Master
from rmq_store.replica.slave_commits import SlaveCommits
from rmq_store.server.access.request_check import RequestCheck
from rmq_store.server.access.users import Users
from rmq_store.server.admin.group_progress import GroupProgress
from rmq_store.server.admin.member_offsets import MemberOffsets
from rmq_store.server.admin.member_questions import MemberQuestions
from rmq_store.server.admin.queue_entries import QueueEntries
from rmq_store.server.admin.rates import Rates
from rmq_store.server.admin.settings import Settings
from rmq_store.server.broker_server import address_of, advertised
from rmq_store.server.housekeeping import Housekeeping, Step
from rmq_store.server.name_server.kv_configs import KVConfigs
from rmq_store.server.name_server.route_processor import RouteProcessor
from rmq_store.server.name_server.route_table import RouteTable
from rmq_store.server.pop.assignments import Assignments
from rmq_store.server.processors.administration import AdministrationProcessor, topic_config_of
from rmq_store.server.processors.committed_offsets import CommittedOffsets
from rmq_store.server.processors.held_pulls import HeldPulls
from rmq_store.server.processors.members import Members
from rmq_store.server.processors.pulling import PullProcessor
from rmq_store.server.processors.queries import QueryProcessor
from rmq_store.server.processors.queue_ends import QueueEndsProcessor
from rmq_store.server.processors.queue_locks import QueueLocks
from rmq_store.server.registration import Registration
from rmq_store.server.requests.bound_services import bound_services
from rmq_store.server.requests.dispatcher import Dispatcher
from rmq_store.server.requests.held_requests import Held
from rmq_store.server.requests.request import Peer, Request
from rmq_store.server.requests.worker_pool import Work
from rmq_store.server.services import start_pools
from rmq_store.server.single_server_lock import server_lock
from rmq_store.server.slave.feeding import Feeding
from rmq_store.server.slave.refusals import CHANGES, refusals
from rmq_store.server.slave.slave_store import SlaveStore
from rmq_store.server.transport.connection import Connection
from rmq_store.server.transport.limits import ListenerLimits
from rmq_store.server.transport.listener import Listener
from rmq_store.server.transport.tls import TlsFiles, server_context

FIRST_SLAVE_ID: Final = 1

# As of a master.
_OFFSETS_S: Final = 0.5
_MEMBERS_S: Final = 1.0


class SlaveServer:
    """Follows `master` into the replica at `root`, and serves it at `HOST:PORT` (0: a free port) until `close`.

    `broker_id`: above 0, of its own among the slaves of the name. `reads`: slaveReadEnable. `settings`: of the own
    retention of the replica, as `Follower`. The other arguments are those of `BrokerServer`. A new replica waits for
    its master; `should_stop(seconds)` ends that.

    Raises:
        UsageError: as `BrokerServer`, and `broker_id` is a master's, or taken at a name server.
        InterruptedError: `should_stop` was True before there was a replica.
        Others: as `Follower.run`.
    """

    def __init__(
        self,
        root: Path,
        master: Master,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        broker_id: int = FIRST_SLAVE_ID,
        reads: bool = True,
        limits: ListenerLimits | None = None,
        acl_file: str | Path | None = None,
        tls: TlsFiles | None = None,
        advertise: str | None = None,
        name_servers: str | ClusterSettings = "",
        settings: Mapping[str, Any] | None = None,
        should_stop: Callable[[float], bool],
    ) -> None:
        if broker_id <= MASTER_ID:
            raise UsageError(f"broker id {broker_id}: {MASTER_ID} is a master's; a slave has one above it")
        self._broker_id = broker_id
        self._users = Users(Path(acl_file)) if acl_file is not None else None
        self._dispatcher: Dispatcher | None = None
        commits = SlaveCommits(root.absolute())
        with ExitStack() as parts:
            context = server_context(tls) if tls is not None else None
            self._listener = Listener(host, port, self._receive, limits=limits, tls=context)
            parts.callback(self._listener.close)
            self.port = self._listener.port
            self.address = advertised(advertise) if advertise else address_of(host, self._listener.port)
            self._feeding = Feeding(
                lambda stop: Follower(
                    root, master, as_slave=True, settings=settings, commits=commits, should_stop=stop
                )
            )
            parts.callback(self._feeding.close)
            if not self._feeding.start(should_stop):
                raise InterruptedError("stopped before the master had answered")
            lock = server_lock(root.absolute())
            parts.callback(lock.close)
            self.store = Store.open(root, read_only=True)
            parts.callback(self.store.close)
            self._begin(parts, commits, reads=reads)
            if name_servers:
                parts.callback(self._register(name_servers).close)
            self._parts = parts.pop_all()

    def check(self) -> None:
        """Raise the error that has ended the feed, as `Follower.run`; nothing more comes from the master then."""
        self._feeding.check()

    def close(self) -> None:
        """Take no more requests, answer those that were taken, and end the feed."""
        self._parts.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- parts --------------------------------------------------------------------------------------------------------

    def _begin(self, parts: ExitStack, commits: SlaveCommits, *, reads: bool) -> None:
        role = self.store.replica
        assert role is not None
        self.broker_name = role.broker
        broker = LocalBroker(role.broker, self.store, liveness_clock=system_clock)
        parts.callback(broker.close)
        served = SlaveStore(self.store, broker, role.cluster, self.address)
        self._offsets = CommittedOffsets(served, commits.commit)
        parts.callback(self._offsets.write)
        parts.callback(self._listener.close)
        self._pools = start_pools()
        for pool in self._pools.each():
            parts.callback(pool.close)
        self._locks = QueueLocks(served)
        self._members = members = Members(served, self._locks.release)
        self._holds = HeldPulls(self.store)
        self._pulls = PullProcessor(served, members, self._offsets, self._holds, is_slave=True, slave_reads=reads)
        self.routes = RouteTable()
        self.routes.add_own(self._data({MASTER_ID: role.address, self._broker_id: self.address}), self._topics)
        own: dict[str, int | bool | str] = {
            "brokerId": self._broker_id, "brokerRole": "SLAVE", "slaveReadEnable": reads,
        }  # fmt: skip
        processors = {
            "pulls": self._pulls,
            "queries": QueryProcessor(served),
            "offsets": self._offsets,
            "ends": QueueEndsProcessor(served),
            "members": members,
            "locks": self._locks,
            "assignments": Assignments(served),
            "admins": AdministrationProcessor(served, members, self._offsets),
            "progress": GroupProgress(served, members, self._offsets),
            "questions": MemberQuestions(served, members),
            "member_offsets": MemberOffsets(members),
            "settings": Settings(served, own),
            "rates": Rates(served),
            "queue_entries": QueueEntries(served, members),
            "routes": RouteProcessor(self.routes, KVConfigs()),
            **refusals(reads=reads),
        }
        services = bound_services(processors, self._pools.by_kind())
        code = RequestCode.UPDATE_AND_CREATE_TOPIC  # the processor of figures has it, too
        services[code] = services[code]._replace(processor=CHANGES.refuse)
        self._dispatcher = Dispatcher(services, RequestCheck(self.store, self._users, is_admin=False))
        self._holds.start(self._wake)
        parts.callback(self._holds.close)
        housekeeping = Housekeeping(str(self.store.path), self._steps())
        housekeeping.start()
        parts.callback(housekeeping.close)
        self._listener.start()
        parts.callback(self._listener.stop_listening)

    def _steps(self) -> tuple[Step, ...]:
        return (
            Step("offsets that wait", _OFFSETS_S, self._offsets.write),
            Step("expired locks of queues", _MEMBERS_S, self._locks.end_expired),
            Step("changed groups", _MEMBERS_S, self._members.notify_changes),
            *((Step("users", _MEMBERS_S, self._users.reload_if_changed),) if self._users is not None else ()),
        )

    def _register(self, name_servers: str | ClusterSettings) -> Registration:
        settings = ClusterSettings.of_text(name_servers) if isinstance(name_servers, str) else name_servers
        own = self._data({self._broker_id: self.address})
        registration = Registration(settings, own, self._topics, broker_id=self._broker_id)
        try:
            registration.start()
        except BaseException:
            registration.close()
            raise
        return registration

    def _data(self, addresses: Mapping[int, str]) -> BrokerData:
        role = self.store.replica
        assert role is not None
        return BrokerData(cluster=role.cluster, broker_name=role.broker, broker_addrs=addresses)

    def _topics(self) -> Mapping[str, TopicConfig]:
        return {name: topic_config_of(topic) for name, topic in self.store.topics().items() if topic.kind is None}

    # -- requests -----------------------------------------------------------------------------------------------------

    def _receive(self, requests: Sequence[Request]) -> None:
        assert self._dispatcher is not None
        peer = requests[0].peer
        if isinstance(peer, Connection) and not peer.on_closed:
            peer.on_closed.append(self._disconnected)
        self._dispatcher.receive(requests)

    def _disconnected(self, peer: Peer) -> None:
        self._holds.disconnected(peer)
        work = partial(self._members.disconnected, peer)
        self._pools.client.submit(Work(float("inf"), work, work), force=True)

    def _wake(self, held: Held, is_last: bool, at_once: bool) -> None:
        assert self._dispatcher is not None

        def again(_: Request) -> RemotingCommand | None:
            return self._pulls.pull_again(held, is_last=is_last)  # type: ignore[arg-type]

        self._dispatcher.go_on(self._pools.pull, again, held.request, at_once=at_once)
