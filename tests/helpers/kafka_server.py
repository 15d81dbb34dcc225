"""A real Kafka for tests and harnesses: one released broker per process, started when first asked for.

    server = kafka_server.kafka()
    if reason := server.missing():
        ...
    server.start()
    topic = server.new_topic(partition_count=4, settings={"cleanup.policy": "compact"})
    KafkaConsumer(topic, bootstrap_servers=server.address)
    server.restart()    # killed, and started on the same directory and address

`RMQ_TEST_KAFKA` names another version than that of bench/kafka; `make kafka-versions` goes through some. Before 3.3 a
ZooKeeper runs beside the broker, and is killed with it.

The broker is controller, too, with transactions on one node. It is below a watcher as the servers of `servers.py` are,
and is gone with this process, however that ends. Nobody makes topics by accident: `auto.create.topics.enable` is off.
"""

from __future__ import annotations

import functools
import itertools
import os
import random
import shlex
import shutil
import signal
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench import kafka_broker
from bench.peer import PeerError
from helpers.server_process import Server, ServerError

if TYPE_CHECKING:
    from kafka import KafkaAdminClient

# 16 bytes in base 64; Kafka 3.6 changes a last character that has more bits.
CLUSTER_ID = "rmq-tests-kafka-00000A"
# Small, and quick to start; the compiler of a long-lived server would take the processor away from the tests.
JAVA_OPTIONS = ("-Xms64m", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
PORT = 29092
CONTROLLER_PORT = 29093
"""Of ZooKeeper, too."""

VERSION = "RMQ_TEST_KAFKA"
FIRST_WITHOUT_ZOOKEEPER = (3, 3)
FIRST_THAT_KNOWS_WRITERS = (4, 0)
# What a single node needs, small internal topics, and a cleaner and a retention that do not let tests wait.
SETTINGS = (
    "auto.create.topics.enable=false",
    "num.network.threads=2",
    "num.io.threads=2",
    "transaction.state.log.replication.factor=1",
    "transaction.state.log.min.isr=1",
    "transaction.state.log.num.partitions=1",
    # Transactions that take too long are looked for every 10 s otherwise.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms=500",
    "offsets.topic.num.partitions=1",
    "group.initial.rebalance.delay.ms=0",
    "share.coordinator.state.topic.replication.factor=1",
    "share.coordinator.state.topic.min.isr=1",
    "log.cleaner.dedupe.buffer.size=4194304",
    "log.cleaner.backoff.ms=200",
    "log.initial.task.delay.ms=500",
    "log.retention.check.interval.ms=500",
    # A killed broker may come back when its session is over.
    "broker.session.timeout.ms=1500",
    "broker.heartbeat.interval.ms=250",
    "initial.broker.registration.timeout.ms=60000",
    "controlled.shutdown.enable=false",
)


class KafkaServer(Server):
    """The broker of this process."""

    name = "kafka"
    package = "kafka"
    system_user = None
    client = "kafka"
    stop_signal = signal.SIGTERM
    cluster_id = CLUSTER_ID

    def __init__(self) -> None:
        super().__init__()
        self.version = os.environ.get(VERSION, "")
        # All of 127.0.0.0/8 is loopback, so nobody else takes the address while the broker is down.
        self._host = ".".join(["127", *(str(random.SystemRandom().randrange(1, 255)) for _ in range(3))])
        self._numbers = itertools.count(1)

    @property
    def address(self) -> str:
        """For `bootstrap_servers`; the same one after a restart."""
        return f"{self._host}:{PORT}"

    def programs(self) -> list[Path | None]:
        """Java; the jars come from Maven."""
        java = shutil.which("java")
        return [None if java is None else Path(java)]

    def missing(self) -> str | None:
        """As `Server.missing`; Maven fetches the jars once."""
        if self.programs() == [None]:
            return "Kafka needs Java: there is no java on PATH"
        return self._without_jars or super().missing()

    @functools.cached_property
    def _without_jars(self) -> str | None:
        """Asked for once: where there is no network, each answer takes Maven some seconds."""
        try:
            kafka_broker.build(self.version)
        except PeerError as error:
            return str(error)
        return None

    def url(self, database: str = "") -> str:
        """The address; Kafka has no databases."""
        return self.address

    def new_topic(
        self, prefix: str = "topic", *, partition_count: int = 1, settings: Mapping[str, str] | None = None
    ) -> str:
        """Make a topic of a name that no test had before, and wait until it can be used: its name."""
        name = f"{prefix}-{next(self._numbers)}"
        self.create_topic(name, partition_count=partition_count, settings=settings)
        return name

    def create_topic(self, name: str, *, partition_count: int = 1, settings: Mapping[str, str] | None = None) -> None:
        """Make a topic, and wait until it can be used."""
        from kafka.errors import TopicAlreadyExistsError

        with self.admin() as admin:
            wanted = {"num_partitions": partition_count, "replication_factor": 1, "configs": dict(settings or {})}
            for _ in range(100):
                try:
                    admin.create_topics({name: wanted}, wait_for_metadata=True)
                    return
                except TopicAlreadyExistsError:
                    # A ZooKeeper has a deleted topic a moment longer than the broker.
                    if not self.needs_zookeeper:
                        raise
                    time.sleep(0.1)
        raise ServerError(f"the topic {name} of Kafka is there for ten seconds, and should be made")

    def delete_topic(self, name: str) -> None:
        """Delete a topic, and wait until it is gone."""
        with self.admin() as admin:
            admin.delete_topics([name])
            while name in admin.list_topics():
                time.sleep(0.05)

    def delete_records(self, topic: str, partition: int, below: int) -> None:
        """Delete a partition's records below an offset, as retention does."""
        from kafka import TopicPartition

        with self.admin() as admin:
            admin.delete_records({TopicPartition(topic, partition): below})

    @contextmanager
    def admin(self, bootstrap_timeout_ms: int = 30_000) -> Iterator[KafkaAdminClient]:
        """A client of kafka-python for a `with` block."""
        from kafka import KafkaAdminClient

        from rmq_store.bridge.kafka.failures import closed_unless_made

        class Client(KafkaAdminClient):  # type: ignore[misc]
            """Leaves no socket behind if a broker listens and does not answer in time, as one that starts."""

            def __init__(self, **settings: Any) -> None:
                with closed_unless_made(self):
                    super().__init__(**settings)

        client = Client(bootstrap_servers=self.address, bootstrap_timeout_ms=bootstrap_timeout_ms)
        try:
            yield client
        finally:
            client.close()

    def _settings_file(self, directory: Path) -> Path:
        return directory / "server.properties"

    def _zookeeper_file(self, directory: Path) -> Path:
        return directory / "zookeeper.properties"

    @property
    def needs_zookeeper(self) -> bool:
        """Whether a broker of this version has no controller of its own that can be relied on."""
        return self.is_before(FIRST_WITHOUT_ZOOKEEPER)

    @property
    def knows_writers(self) -> bool:
        """Whether a broker that has aborted a transaction still knows its writer, and does not take it for another."""
        return not self.is_before(FIRST_THAT_KNOWS_WRITERS)

    def is_before(self, first: tuple[int, int]) -> bool:
        """Whether this version is older than another one."""
        return bool(self.version) and tuple(map(int, self.version.split(".")[:2])) < first

    def _initialise(self, directory: Path) -> None:
        settings = self._settings_file(directory)
        controller = f"{self._host}:{CONTROLLER_PORT}"
        if self.needs_zookeeper:
            settings.write_text("\n".join((
                "broker.id=1", f"listeners=PLAINTEXT://{self.address}", f"zookeeper.connect={controller}",
                "zookeeper.session.timeout.ms=3000", "zookeeper.connection.timeout.ms=60000",
                f"log.dirs={directory / 'logs'}", "offsets.topic.replication.factor=1", *SETTINGS,
            )))  # fmt: skip
            # A session that a killed broker has left is over before the next one is there.
            self._zookeeper_file(directory).write_text("\n".join((
                f"dataDir={directory / 'zookeeper'}", f"clientPortAddress={self._host}",
                f"clientPort={CONTROLLER_PORT}", "tickTime=500", "admin.enableServer=false",
            )))  # fmt: skip
            return
        settings.write_text(kafka_broker.settings_text(self.address, controller, directory / "logs", *SETTINGS))
        self._run(kafka_broker.format_command(settings, CLUSTER_ID, JAVA_OPTIONS, self.version), directory)

    def _command(self, directory: Path) -> list[str]:
        broker = kafka_broker.broker_command(self._settings_file(directory), JAVA_OPTIONS, self.version)
        if not self.needs_zookeeper:
            return broker
        zookeeper = kafka_broker.zookeeper_command(self._zookeeper_file(directory), JAVA_OPTIONS, self.version)
        return ["sh", "-c", f"{shlex.join(zookeeper)} & sleep 3; exec {shlex.join(broker)}"]

    def _connect_once(self) -> None:
        """A broker listens before its controller lets it take part. kafka-python forgets to close sockets on which
        nobody answers.
        """
        socket.create_connection((self._host, PORT), 1).close()
        with self.admin(bootstrap_timeout_ms=2000) as admin:
            # `describe_cluster` of kafka-python does not know the answers of all versions.
            described = admin._manager.run(admin._get_cluster_metadata, [])
            if not described["brokers"]:
                raise ServerError("no broker has registered")
            if self.needs_zookeeper:
                self.cluster_id = described["cluster_id"]


@functools.cache
def kafka() -> KafkaServer:
    """The broker of this process, started or not."""
    return KafkaServer()
