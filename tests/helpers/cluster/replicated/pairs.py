"""A SYNC_MASTER and its slave, one of them a released broker, with a proxy between: empty at first."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from helpers.cluster.brokers import RocketmqCluster
from helpers.cluster.followed.ha_proxy import HAProxy
from helpers.cluster.java_process import HOST, JavaProcess
from helpers.cluster.released import Layout
from helpers.cluster.waiting import free_ports
from rmq_store import Store, StoreConfig
from rmq_store.replica.take_over.promote import promote

from .own import Nursery, OwnBroker
from .plan import JAVA_MASTER
from .senders import QUEUES

SEGMENT_BYTES: Final = 1 << 20
QUEUE_BYTES: Final = 20 * 1000
CONFIG: Final = StoreConfig(
    mapped_file_size_commit_log=SEGMENT_BYTES, mapped_file_size_consume_queue=QUEUE_BYTES, max_hash_slot_num=50_000,
    max_index_num=200_000, disk_space_warning_level_ratio=100, broker_name="broker-a",
)  # fmt: skip
_SIZES: Final = {
    "mappedFileSizeCommitLog": SEGMENT_BYTES, "mappedFileSizeConsumeQueue": QUEUE_BYTES,
    "brokerClusterName": "DefaultCluster", "slaveTimeout": 1000,
}  # fmt: skip
_TIMEOUT_MS: Final = "1000"

Broker = JavaProcess | OwnBroker


class Pair:
    """`master` and `slave`, their name server in `cluster`, and `proxy`, through which the slave copies. A context
    manager; all run in it.
    """

    cluster: RocketmqCluster
    master: Broker
    slave: Broker
    proxy: HAProxy

    def __init__(self, version: str, directory: Path, topic: str) -> None:
        self.version = version
        self.topic = topic
        self.directory = directory
        self._ends = ExitStack()

    def __enter__(self) -> Self:
        try:
            self._nursery = Nursery()
            self._ends.callback(self._nursery.close)
            self._begin()
        except BaseException:
            self._ends.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            error.add_note(f"--- master\n{self.master.log()}\n--- slave\n{self.slave.log()}")
        self._ends.close()

    def _begin(self) -> None:
        raise NotImplementedError

    @property
    def slave_store(self) -> Path:
        """The directory of the slave's store."""
        raise NotImplementedError

    @property
    def slave_is_ours(self) -> bool:
        """Whether it is a replica of ours."""
        return isinstance(self.slave, OwnBroker)

    def heal(self) -> None:
        """Let run what was killed."""
        self.master.start()
        self.slave.start()

    def delete_master(self) -> None:
        """kill -9, and its directory is gone."""
        self.master.kill()
        shutil.rmtree(self._master_store)

    def take_over(self, *arguments: str) -> Broker:
        """The slave, whose feed is ended here, becomes a master by hand, under the name of the other one. `arguments`:
        further ones of `rmq broker run`, if it is ours.
        """
        self.slave.stop()
        self.cluster.await_gone(("broker-a", 0))  # a name server that knows another master refuses this one
        if isinstance(self.slave, JavaProcess):
            self.slave.configure(brokerId=0, brokerRole="ASYNC_MASTER")
        else:
            promote(self.slave_store)
            port, log, given = self.slave.port, self.directory / "promoted.log", (*arguments, "--admin")
            given = ("--name-server", self.cluster.name_server, *given)
            self.slave = OwnBroker(self._nursery, self.slave_store, port, log, *given)
            self._ends.callback(self.slave.close)
        self.slave.start()
        self.cluster.await_address(("broker-a", 0), self.slave.address)
        return self.slave

    @property
    def _master_store(self) -> Path:
        raise NotImplementedError


class JavaMaster(Pair):
    """A released SYNC_MASTER, and `rmq broker run --role SLAVE`."""

    def _begin(self) -> None:
        sync: dict[str, object] = {"brokerRole": "SYNC_MASTER"}
        if not self.version.startswith("4."):
            sync |= {"inSyncReplicas": 2, "totalReplicas": 2}
        cluster = RocketmqCluster(self.version, properties=_SIZES, master_properties=sync)
        self.cluster = self._ends.enter_context(cluster)
        self.cluster.create_topic(self.topic, QUEUES)
        self.master = self.cluster.broker()
        self.proxy = self._ends.enter_context(HAProxy(f"{HOST}:{self.master.port + 1}"))
        (port,) = free_ports(1)
        name_server = self.cluster.name_server
        self.slave_store.mkdir()
        self.slave = OwnBroker(
            self._nursery, self.slave_store, port, self.directory / "own.log", "--role", "SLAVE",
            "--master", f"rmq://{name_server}", "--broker", "broker-a", "--master-ha", self.proxy.address,
            "--name-server", name_server,
        )  # fmt: skip
        self._ends.callback(self.slave.close)
        self.slave.start()

    @property
    def slave_store(self) -> Path:
        return self.directory / "slave"

    @property
    def _master_store(self) -> Path:
        return self.cluster.broker().directory / "store"


class OurMaster(Pair):
    """`rmq broker run --role SYNC_MASTER`, and a released slave."""

    def _begin(self) -> None:
        self.cluster = self._ends.enter_context(RocketmqCluster(self.version, groups=0))
        with Store.open(self._master_store, create=True, config=CONFIG) as store:
            store.create_topic(self.topic, QUEUES)
        ports = free_ports(2)
        port = next(ports)
        self.proxy = self._ends.enter_context(HAProxy(f"{HOST}:{port + 1}"))
        rules = () if self.version.startswith("4.") else ("--in-sync-replicas", "2")
        self.master = OwnBroker(
            self._nursery, self._master_store, port, self.directory / "own.log", "--role", "SYNC_MASTER",
            "--ha-listen", f"{HOST}:{port + 1}", "--ha-advertise", self.proxy.address,
            "--slave-timeout", _TIMEOUT_MS, *rules, "--name-server", self.cluster.name_server, "--admin",
        )  # fmt: skip
        self._ends.callback(self.master.close)
        self.master.start()
        layout = Layout(self.version, 1, False, None, None, _SIZES, {}, {})
        self.slave = layout.broker("broker-a", 1, next(ports), self.cluster.name_server)
        self._ends.callback(self.slave.close)
        self.slave.start()

    @property
    def slave_store(self) -> Path:
        assert isinstance(self.slave, JavaProcess)
        return self.slave.directory / "store"

    @property
    def _master_store(self) -> Path:
        return self.directory / "master"


def pair_of(name: str, version: str, directory: Path, topic: str) -> Pair:
    """The pair of this name in `plan`, with new directories below `directory`."""
    directory.mkdir(parents=True)
    return (JavaMaster if name == JAVA_MASTER else OurMaster)(version, directory, topic)
