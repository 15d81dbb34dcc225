"""A store served as a broker, with or without the role of a name server at the same port (BrokerController.java)."""

from __future__ import annotations

import ipaddress
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from rmq_store.broker.metadata.store_config import StoreConfig
from rmq_store.broker.metadata.topics import PERM_INHERIT, PERM_READ, PERM_WRITE
from rmq_store.broker.processor.local_broker import LocalBroker
from rmq_store.broker.store.store import Store
from rmq_store.broker.transactions.checks import TransactionChecks
from rmq_store.clock import system_clock
from rmq_store.errors import UsageError
from rmq_store.format.text.host import Host
from rmq_store.log.broker_role import BrokerRole
from rmq_store.log.replication import Replication
from rmq_store.protocol.bodies.routes import MASTER_ID, BrokerData
from rmq_store.protocol.bodies.topics import TopicConfig
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.server.access.method_check import MethodCheck
from rmq_store.server.access.request_check import RequestCheck
from rmq_store.server.access.users import Users
from rmq_store.server.grpc_ports import GrpcPorts
from rmq_store.server.grpc_v2.tls import Certificate
from rmq_store.server.ha.ha_server import HAServer
from rmq_store.server.ha.held_answers import HeldAnswers
from rmq_store.server.ha.settings import HASettings
from rmq_store.server.ha.slave_tables import SlaveTables
from rmq_store.server.housekeeping import Housekeeping, Step
from rmq_store.server.name_server.route_table import RouteTable
from rmq_store.server.pop.held_pops import HeldNotifications, HeldPops
from rmq_store.server.pop.notifications import NotificationProcessor
from rmq_store.server.pop.pop_processor import PopProcessor
from rmq_store.server.pop.receipts import ReceiptProcessor
from rmq_store.server.processors.administration import topic_config_of
from rmq_store.server.processors.committed_offsets import CommittedOffsets
from rmq_store.server.processors.held_pulls import HeldPulls
from rmq_store.server.processors.members import Members
from rmq_store.server.processors.pulling import PullProcessor
from rmq_store.server.processors.queue_locks import QueueLocks
from rmq_store.server.processors.sending import Hold
from rmq_store.server.processors.served_store import DEFAULT_TOPIC, DEFAULT_TOPIC_QUEUES, ServedStore
from rmq_store.server.processors.transactions import TransactionProcessor
from rmq_store.server.requests.dispatcher import Dispatcher
from rmq_store.server.requests.held_requests import Held
from rmq_store.server.requests.request import Peer, Request
from rmq_store.server.requests.worker_pool import Work, WorkerPool
from rmq_store.server.services import Parts, services, start_pools
from rmq_store.server.single_server_lock import open_alone, server_lock
from rmq_store.server.transport.connection import Connection
from rmq_store.server.transport.limits import ListenerLimits
from rmq_store.server.transport.listener import Listener
from rmq_store.server.transport.tls import TlsFiles, server_context

if TYPE_CHECKING:
    from rmq_store.remoting.transport.settings import ClusterSettings
    from rmq_store.server.registration import Registration

CLUSTER_NAME: Final = "DefaultCluster"

VIP_PORTS_BEFORE: Final = 2
"""MixAll#brokerVIPChannel: clients take so much from a broker's port."""
# Ports that the system chooses, until the one before the last is free as well.
_PORT_TRIES: Final = 8

# Between two deliveries of due messages, writes of offsets that wait, looks at members of other processes, at users.
_DELIVERY_S: Final = 0.1
_OFFSETS_S: Final = 0.5
_MEMBERS_S: Final = 1.0
_USERS_S: Final = 1.0
_CHECKS_S: Final = 1.0


def address_of(host: str, port: int) -> str:
    """The address that clients are told. UsageError: `host` is no address that one can dial."""
    if host in ("", "0.0.0.0", "::"):
        raise UsageError(
            f"cannot serve at {host!r}: clients are told this address; name one of this machine, or advertise one"
        )
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def advertised(address: str) -> str:
    """The address that clients are told, as given. UsageError: it is no `HOST:PORT` that one can dial."""
    host = Host.parse(address)
    if host.port == 0 or ipaddress.ip_address(host.address).is_unspecified:
        raise UsageError(f"cannot advertise {address!r}: clients dial it, so it needs an IP address and a port")
    return str(host)


class BrokerServer:
    """Serves a store at `HOST:PORT` (0: a free port) until `close`. Clients are told this address.

    A store given by path is opened for writing, with `config` and `create` as for `Store.open`. The store host of new
    messages becomes the served address, in all processes that open the store from now on: clients dial it. The server
    delivers delayed messages.

    `grpc_port` (0: a free port) serves RocketMQ's clients of version 5 over gRPC, too, at `grpc_address`; with
    `grpc_certificate` over TLS only. `grpc_tls_port` is another port for TLS, at `grpc_tls_address`: beside it
    `grpc_port` stays in plain text. gRPC needs the extra [grpc], and does not ask clients for certificates: so it is
    refused beside `client_ca_file`, and in plain text beside `tls`.

    `acl_file` has the users of both ports (`rmq_store.server.access.acl_file`); without it everybody may ask. Changes
    of what exists are carried out with `admin` only. With `tls` no client is taken without TLS.

    `vip_channel`: it listens at the port before the last one, too, if that is free (`port` - 2, `vip_port`): clients
    before 4.5.1, and later ones with vipChannelEnabled, send there (BrokerConfig, fastListenPort).

    `advertise`: the `HOST:PORT` that clients are told instead, for example behind `host` 0.0.0.0. `name_servers`: those
    of other processes, `ns1:9876;ns2:9876`, or with keys to sign; the server registers there, too.

    `ha`: slaves copy the log at a port of their own, `ha_address`; of a SYNC_MASTER sends of all processes wait for
    them. Without it the store is that of an ASYNC_MASTER.

    Raises:
        UsageError: the address cannot be listened at, another server serves the store, a file of users or of TLS is
            wrong, or one of the name servers knows the broker's name with another address; and what `Store.open`
            raises.
    """

    def __init__(
        self,
        store: Store | str | Path,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        config: StoreConfig | None = None,
        create: bool = False,
        cluster_name: str = CLUSTER_NAME,
        limits: ListenerLimits | None = None,
        acl_file: str | Path | None = None,
        admin: bool = False,
        tls: TlsFiles | None = None,
        advertise: str | None = None,
        name_servers: str | ClusterSettings = "",
        grpc_port: int | None = None,
        grpc_certificate: Certificate | None = None,
        grpc_tls_port: int | None = None,
        vip_channel: bool = True,
        ha: HASettings | None = None,
    ) -> None:
        grpc_ports = GrpcPorts.of(grpc_port, grpc_tls_port, grpc_certificate)
        if grpc_ports is not None and tls is not None:
            grpc_ports.check_beside(tls)
        self._users = Users(Path(acl_file)) if acl_file is not None else None
        self._is_admin = admin
        self._warm_up = _WarmUp()
        context = server_context(tls) if tls is not None else None
        self._dispatcher: Dispatcher | None = None
        self.ha: HAServer | None = None
        self.ha_address = ""
        self.grpc_address: str | None = None
        self.grpc_tls_address: str | None = None
        with ExitStack() as parts:
            self.vip_port: int | None = None
            # The decoded request says which user has sent it.
            serve = self._serve if self._users is None else None
            listening = partial(Listener, host, port, self._receive, serve=serve, limits=limits, tls=context)
            tries = _PORT_TRIES if port == 0 else 1
            self._listener = self._with_vip(listening, tries, grpc_port, grpc_tls_port) if vip_channel else listening()
            parts.callback(self._listener.close)
            self.port = self._listener.port
            self.address = advertised(advertise) if advertise else address_of(host, self._listener.port)
            if isinstance(store, Store):
                self.store, lock = store, server_lock(store.path)
                parts.callback(lock.close)
            else:
                self.store, lock = open_alone(
                    store, self.address, config, create=create,
                    check_name=partial(self._refuse_taken_name, name_servers, cluster_name) if name_servers else None,
                )  # fmt: skip
                parts.callback(lock.close)
                parts.callback(self.store.close)
            self._begin(parts, cluster_name, ha)
            if grpc_ports is not None:
                self._begin_grpc(parts, host, grpc_ports)
            if name_servers:
                parts.callback(self._register(name_servers, cluster_name).close)
            self._closing, self._close_lock = parts.pop_all(), threading.RLock()
        if grpc_ports is not None:
            self._warm_up.begin()

    def _with_vip(self, listening: Callable[[], Listener], tries: int, *grpc_ports: int | None) -> Listener:
        """A listener at a second port, too, if one of so many has one: it is free, and not wanted for gRPC."""
        for left in reversed(range(tries)):
            listener = listening()
            port = listener.port - VIP_PORTS_BEFORE
            if port > 0 and port not in grpc_ports and listener.listen_also(port):
                self.vip_port = port
            if self.vip_port is not None or not left:
                return listener
            listener.close()
        raise AssertionError

    def _begin(self, parts: ExitStack, cluster_name: str, ha: HASettings | None) -> None:
        """Make all parts. `parts` ends them in the opposite order, each one whatever becomes of the others."""
        # Members and locks live by the machine's clock: one that a test moves by hours would end them all.
        broker = LocalBroker(self.store.broker_name, self.store, liveness_clock=system_clock)
        parts.callback(broker.close)
        served = self._served = ServedStore(self.store, broker, cluster_name, self.address)
        self._offsets = CommittedOffsets(served)
        parts.callback(self._offsets.write)
        parts.callback(self._listener.close)
        self._hold = self._begin_ha(parts, ha)
        self._pools = start_pools()
        for pool in self._pools.each():
            parts.callback(pool.close)
        self._locks = QueueLocks(served)
        self._members = Members(served, self._locks.release)
        self._holds = HeldPulls(self.store)
        slave_reads = ha is not None and ha.slave_read_enable
        self._pulls = PullProcessor(served, self._members, self._offsets, self._holds, slave_reads=slave_reads)
        self._transactions = TransactionProcessor(served, self._members, self._stored)
        self._checks = TransactionChecks(
            self.store.transactions, self._transactions, self.store.clock,
            file_reserved_hours=self.store.config.file_reserved_time,
        )  # fmt: skip
        self._held_pops = HeldPops(self.store)
        self._held_notifications = HeldNotifications(self.store)
        self._pops = PopProcessor(served, self._held_pops)
        notifications = NotificationProcessor(served, self._held_notifications)
        self.routes = RouteTable()
        addresses = {MASTER_ID: self.address}
        own = BrokerData(cluster=cluster_name, broker_name=served.name, broker_addrs=addresses)
        self.routes.add_own(own, self._topics, self.ha_address)
        shared = Parts(
            served, self._pools, self._offsets, self._members, self._locks, self._pulls, self._pops, notifications,
            ReceiptProcessor(served, self._freed), self._transactions, self.routes, self._stored,
            SlaveTables(served, self._offsets, self.ha_address), self._hold, {} if ha is None else ha.told(),
        )  # fmt: skip
        self._dispatcher = Dispatcher(services(shared), RequestCheck(self.store, self._users, is_admin=self._is_admin))
        for holds, pool, again in (
            (self._holds, self._pools.pull, self._pulls.pull_again),
            (self._held_pops, self._pools.pop, self._pops.pop_again),
            (self._held_notifications, self._pools.pop, notifications.ask_again),
        ):
            holds.start(partial(self._wake, pool, again))
            parts.callback(holds.close)
        housekeeping = Housekeeping(str(self.store.path), self._steps())
        housekeeping.start()
        parts.callback(housekeeping.close)
        if self.ha is not None:
            self.ha.start()
        self._listener.start()
        parts.callback(self._listener.stop_listening)

    def _begin_ha(self, parts: ExitStack, settings: HASettings | None) -> Hold | None:
        """Make the HA port, if there is one; what keeps answers of a SYNC_MASTER."""
        log = self.store._log
        if settings is None:
            if log.writing_page.broker_role != BrokerRole.ASYNC_MASTER:
                Replication(log).begin(BrokerRole.ASYNC_MASTER)
            return None
        held = None
        if settings.waits_for_slaves:
            held = HeldAnswers(Replication(log), settings.slave_timeout_ms)
        self.ha = HAServer(log, settings, held.look if held is not None else lambda now: None)
        self.ha_address = self.ha.address
        parts.callback(self.ha.close)
        if held is None:
            return None
        parts.callback(held.close)
        return held.hold

    def _refuse_taken_name(self, name_servers: str | ClusterSettings, cluster_name: str, name: str) -> None:
        registration = self._registration(name_servers, cluster_name, name)
        try:
            registration.refuse_taken_name()
        finally:
            registration.close()

    def _register(self, name_servers: str | ClusterSettings, cluster_name: str) -> Registration:
        registration = self._registration(name_servers, cluster_name, self._served.name)
        try:
            registration.start()
        except BaseException:
            registration.close()
            raise
        return registration

    def _registration(self, name_servers: str | ClusterSettings, cluster_name: str, name: str) -> Registration:
        # A client of the network, which most servers do not need, and a test waits for each import.
        from rmq_store.remoting.transport.settings import ClusterSettings
        from rmq_store.server.registration import Registration

        own = BrokerData(cluster=cluster_name, broker_name=name, broker_addrs={MASTER_ID: self.address})
        settings = ClusterSettings.of_text(name_servers) if isinstance(name_servers, str) else name_servers
        return Registration(settings, own, self._topics, ha_address=self.ha_address)

    def _begin_grpc(self, parts: ExitStack, host: str, ports: GrpcPorts) -> None:
        try:
            from rmq_store.server.grpc_v2.grpc_server import GrpcServer
        except ImportError as error:
            raise UsageError("gRPC needs grpcio and protobuf: pip install '.[grpc]' in a clone") from error
        server = GrpcServer(
            self._served, self._members.connected, self._transactions, MethodCheck(self._users), host, ports,
            advertised_host=Host.parse(self.address).ip, hold=self._hold,
        )  # fmt: skip
        parts.callback(server.close)
        self.grpc_tls_address = server.address(is_tls=True)
        self.grpc_address = server.address(is_tls=False) or self.grpc_tls_address

    def close(self) -> None:
        """Take no more requests, answer those that were taken, and commit offsets. The store is closed if it was given
        by path. An error in one of these steps keeps none of the others. A second call, from whichever thread, waits
        until the first one has ended, and does nothing.
        """
        with self._close_lock:
            self._closing.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _receive(self, requests: Sequence[Request]) -> None:
        assert self._dispatcher is not None
        peer = requests[0].peer
        if isinstance(peer, Connection) and not peer.on_closed:
            peer.on_closed.append(self._disconnected)
            self._warm_up.begin()
        self._dispatcher.receive(requests)

    def _serve(self, data: memoryview, address: str) -> tuple[int, bytes]:
        assert self._dispatcher is not None
        return self._dispatcher.serve(data, address)

    def _disconnected(self, peer: Peer) -> None:
        self.routes.disconnected(peer)
        self._holds.disconnected(peer)
        self._held_pops.disconnected(peer)
        self._held_notifications.disconnected(peer)
        work = partial(self._members.disconnected, peer)
        self._pools.client.submit(Work(float("inf"), work, work), force=True)

    def _topics(self) -> Mapping[str, TopicConfig]:
        topics = {name: topic_config_of(topic) for name, topic in self.store.topics().items() if topic.kind is None}
        if self.store.config.auto_create_topic_enable:
            perm = PERM_READ | PERM_WRITE | PERM_INHERIT
            queues = DEFAULT_TOPIC_QUEUES
            topics[DEFAULT_TOPIC] = TopicConfig(
                topic_name=DEFAULT_TOPIC, read_queue_nums=queues, write_queue_nums=queues, perm=perm
            )
        return topics

    def _wake(
        self, pool: WorkerPool, again: Callable[..., RemotingCommand | None], held: Held, is_last: bool, at_once: bool
    ) -> None:
        assert self._dispatcher is not None
        self._dispatcher.go_on(pool, lambda _: again(held, is_last=is_last), held.request, at_once=at_once)

    def _stored(self, topic: str, queue_id: int) -> None:
        if self.ha is not None:
            self.ha.grown()
        self._holds.stored(topic, queue_id)
        self._held_pops.stored(topic)
        self._held_notifications.stored(topic)

    def _freed(self, group: str, topic: str) -> None:
        self._held_pops.freed(group, topic)
        self._held_notifications.freed(group, topic)

    def _steps(self) -> tuple[Step, ...]:
        return (
            Step("delivery of due messages", _DELIVERY_S, self.store.schedule.deliver_due),
            Step("offsets that wait", _OFFSETS_S, self._offsets.write),
            Step("expired locks of queues", _MEMBERS_S, self._locks.end_expired),
            Step("changed groups", _MEMBERS_S, self._members.notify_changes),
            *((Step("users", _USERS_S, self._users.reload_if_changed),) if self._users is not None else ()),
            Step("questions about transactions", _CHECKS_S, self._checks.round),
        )


class _WarmUp:
    """Lets pyarrow load pandas, as it does when it first makes an array of a list, in a thread of its own: not while
    the first batch of a client waits, and not before a client is there. It takes half a second of a processor, which
    many tests never need.
    """

    def __init__(self) -> None:
        self.is_begun = False

    def begin(self) -> None:
        """Begin, the first time. Does not wait."""
        if not self.is_begun:
            self.is_begun = True
            threading.Thread(target=_make_an_array, name="rmq-broker-warm-up", daemon=True).start()


def _make_an_array() -> None:
    import pyarrow as pa

    pa.array([b""])
