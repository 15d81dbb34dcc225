"""Real RocketMQ clusters on loopback, from the released jars of 4.9.7 and 5.5.0.

    with RocketmqCluster("5.5.0", groups=2, slaves=1) as cluster:
        Cluster(ClusterSettings(name_servers=cluster.name_servers))
        cluster.broker("broker-a").kill()               # kill -9
        cluster.broker("broker-a", 1).suspend()         # SIGSTOP
        cluster.broker("broker-a").start()              # on the same port and store

Small heaps, 64 MiB segments, stores in memory where there is room. The name servers and brokers end with this process.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self

from helpers.cluster import requests
from helpers.cluster.asking import TIMEOUT_S, Connection
from helpers.cluster.java_process import JavaProcess
from helpers.cluster.released import Layout
from helpers.cluster.security import Account, Acl, Tls
from helpers.cluster.waiting import connected, free_ports, until
from helpers.server_process import ServerError
from rmq_store.protocol.bodies.routes import ClusterInfo
from rmq_store.protocol.wire.request_codes import RequestCode

# Requests of 5.x for users and their rights.
AUTH_CREATE_USER, AUTH_CREATE_ACL = 3001, 3006


class RocketmqCluster:
    """Name servers and broker groups; a context manager.

    `groups` masters called broker-a, broker-b ..., each with `slaves`; 0: name servers alone. `sync`: masters are
    SYNC_MASTER, and on 5.x answer only when a slave has the message. `properties` are lines of every broker's settings,
    `master_properties` and `slave_properties` of these alone. `acl`: with these credentials and nobody else. `tls`:
    nothing without TLS.
    """

    def __init__(
        self, version: str, *, groups: int = 1, slaves: int = 0, name_servers: int = 1, sync: bool = False,
        acl: Acl | None = None, tls: Tls | None = None, properties: Mapping[str, object] | None = None,
        master_properties: Mapping[str, object] | None = None, slave_properties: Mapping[str, object] | None = None,
    ) -> None:  # fmt: skip
        self.version = version
        self.acl = acl
        self.tls = tls
        self._slaves = slaves
        layout = Layout(
            version, slaves, sync, acl, tls, properties or {}, master_properties or {}, slave_properties or {}
        )
        self.broker_names = tuple(f"broker-{chr(ord('a') + number)}" for number in range(groups))
        ports = free_ports(name_servers + groups * (1 + slaves))
        self.name_server_processes = [layout.name_server(number, next(ports)) for number in range(name_servers)]
        self.brokers = {
            (name, broker_id): layout.broker(name, broker_id, next(ports), self.name_server)
            for broker_id in range(1 + slaves)
            for name in self.broker_names
        }

    # -- addresses and processes -------------------------------------------------------------------------------------

    @property
    def name_servers(self) -> tuple[str, ...]:
        """`host:port` of each."""
        return tuple(process.address for process in self.name_server_processes)

    @property
    def name_server(self) -> str:
        """As users write it: `host:port;host:port`."""
        return ";".join(self.name_servers)

    def broker(self, name: str = "broker-a", broker_id: int = 0) -> JavaProcess:
        """The process of a broker: `address`, `kill`, `suspend`, `resume`, `stop`, `start`, `log`."""
        return self.brokers[name, broker_id]

    def address(self, name: str = "broker-a", broker_id: int = 0) -> str:
        """`host:port` of a broker."""
        return self.broker(name, broker_id).address

    def connect(self, name: str = "broker-a", broker_id: int = 0, *, timeout_s: float = TIMEOUT_S) -> Connection:
        """A connection with a broker for single requests, with the administrator's credentials."""
        return self.connect_to(self.address(name, broker_id), timeout_s=timeout_s)

    def connect_to(self, address: str, *, timeout_s: float = TIMEOUT_S) -> Connection:
        """The same with any address of the cluster."""
        tls = None if self.tls is None else self.tls.client_context()
        sign = None if self.acl is None else self.acl.administrator.sign
        return Connection(address, tls=tls, sign=sign, timeout_s=timeout_s)

    def create_topic(self, topic: str, queue_count: int = 4, *, on_slaves: bool = False, attributes: str = "") -> str:
        """Make a topic on every master, and wait until the name servers know it: its name.

        `on_slaves`: wait until the slaves know it, too. They ask their master every 10 s (4.9.7) or 60 s (5.5.0), so
        those of 5.5.0 are told; 4.9.7 refuses that.
        """
        told = [key for key in self.brokers if key[1] == 0 or (on_slaves and not self.version.startswith("4."))]
        for key in told:
            with self.connect(*key) as broker:
                answer = requests.create_topic(broker, topic, queue_count, attributes=attributes)
                assert answer.code == 0, answer
        for name_server in self.name_servers:
            self._await_route(name_server, topic)
        for key in self.brokers if on_slaves else ():
            with self.connect(*key) as broker:

                def known(broker: Connection = broker) -> bool:
                    return broker.ask(RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic}).code == 0

                until(known, f"{key} does not know {topic}")
        return topic

    def create_account(self, account: Account) -> None:
        """Make a user of 5.x on every broker, with its rights; the users of 4.9 are in a file from the start."""
        user = f"User:{account.access_key}"
        about = {"username": account.access_key, "password": account.secret_key, "userType": "Normal"}
        for key in self.brokers:
            with self.connect(*key) as broker:
                for code, fields, body in (
                    (AUTH_CREATE_USER, {"username": account.access_key}, about),
                    (AUTH_CREATE_ACL, {"subject": user}, {"subject": user, "policies": [account.policy()]}),
                ):
                    answer = broker.ask(code, fields, json.dumps(body).encode())
                    assert answer.code == 0, answer

    def await_replicated(self, topic: str, queue_id: int = 0, name: str = "broker-a") -> None:
        """Until each slave of a group has what its master has in a queue."""
        with self.connect(name) as master:
            end = requests.max_offset(master, topic, queue_id)
        for broker_id in range(1, 1 + self._slaves):
            with self.connect(name, broker_id) as slave:

                def there(slave: Connection = slave) -> bool:
                    return requests.max_offset(slave, topic, queue_id) >= end

                until(there, f"{name}-{broker_id} has not got all of {topic} {queue_id}")

    # -- life --------------------------------------------------------------------------------------------------------

    def missing(self) -> str | None:
        """Why this machine cannot run the cluster."""
        return self.name_server_processes[0].missing()

    def start(self) -> None:
        """Start what does not run, masters before slaves, and wait until all are registered. Raises `ServerError`."""
        if reason := self.missing():
            raise ServerError(reason)
        _start(self.name_server_processes)
        # A slave asks for its master's address when it registers, and asks again after 10 s only.
        for broker_id in range(1 + self._slaves):
            _start(self._row(broker_id))
            self.await_registered(*(key for key in self.brokers if key[1] == broker_id))
        self.await_replicating()

    def heal(self) -> None:
        """Let everything run again that was killed or suspended, and wait for it."""
        for process in self.processes():
            if process.runs():
                process.resume()
        self.start()

    def close(self) -> None:
        """End all processes and remove their directories."""
        for process in self.processes():
            process.close()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            error.add_note(self.logs())
        self.close()

    def logs(self) -> str:
        """The end of every log."""
        parts = []
        for process in self.processes():
            with contextlib.suppress(ServerError, OSError):
                parts.append(f"--- {process.name} of RocketMQ {self.version}\n{process.log()}")
        return "\n".join(parts)

    def await_registered(self, *brokers: tuple[str, int]) -> None:
        """Until every name server that answers names these brokers (all of the cluster without an argument), at the
        right addresses.
        """
        wanted = {key: self.address(*key) for key in (brokers or self.brokers)}
        self._await(lambda found: wanted.items() <= found.items(), f"{sorted(wanted)} are not registered")

    def await_address(self, broker: tuple[str, int], address: str) -> None:
        """Until every name server that answers has this broker at an address."""
        self._await(lambda found: found.get(broker) == address, f"{broker} is not registered at {address}")

    def await_gone(self, *brokers: tuple[str, int]) -> None:
        """Until no name server that answers names these brokers."""
        self._await(lambda found: not found.keys() & set(brokers), f"{sorted(brokers)} are still registered")

    def await_replicating(self) -> None:
        """Until every slave of a master that runs is connected with it."""
        for name in self.broker_names:
            if self.broker(name).runs():
                ha_port, slaves = self.broker(name).port + 1, self._running_slaves(name)
                until(functools.partial(_connected, ha_port, slaves), f"no slave replicates {name}.\n{self.logs()}")

    def registered(self, name_server: str) -> dict[tuple[str, int], str]:
        """Address of each broker that a name server names. Raises OSError while it does not answer."""
        with self.connect_to(name_server) as connection:
            return dict(_addresses(connection.ask(RequestCode.GET_BROKER_CLUSTER_INFO).body))

    def _await(self, fulfilled: Callable[[dict[tuple[str, int], str]], bool], complaint: str) -> None:
        for process in self.name_server_processes:

            def done(process: JavaProcess = process) -> bool:
                with contextlib.suppress(OSError):
                    return fulfilled(self.registered(process.address))
                return not process.runs()

            if process.runs():
                until(done, f"{complaint} at {process.address}.\n{self.logs()}")

    def _await_route(self, name_server: str, topic: str) -> None:
        with self.connect_to(name_server) as connection:

            def known() -> bool:
                answer = connection.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
                return answer.code == 0 and all(f'"{name}"' in answer.body.decode() for name in self.broker_names)

            until(known, f"{name_server}: no route for {topic}")

    def _running_slaves(self, name: str) -> int:
        return sum(self.broker(name, broker_id).runs() for broker_id in range(1, 1 + self._slaves))

    def processes(self) -> list[JavaProcess]:
        """All name servers and brokers."""
        return [*self.brokers.values(), *self.name_server_processes]

    def _row(self, broker_id: int) -> list[JavaProcess]:
        return [process for (_, one), process in self.brokers.items() if one == broker_id]


def _connected(port: int, count: int) -> bool:
    return connected(port) >= count


def _start(processes: list[JavaProcess]) -> None:
    if processes:
        with ThreadPoolExecutor(len(processes)) as pool:
            list(pool.map(JavaProcess.start, processes))


def _addresses(cluster_info: bytes) -> Iterator[tuple[tuple[str, int], str]]:
    for name, broker in ClusterInfo.decode(cluster_info).broker_addr_table.items():
        for broker_id, address in broker.broker_addrs.items():
            yield (name, broker_id), address
