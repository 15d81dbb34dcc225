"""The clients of a scene that live in the test's own process: who sends, and members of groups of each kind."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

from helpers.cluster import requests
from helpers.cluster.brokers import RocketmqCluster
from helpers.kafka_mirrors import RMQ_CLUSTER
from helpers.kafka_server import KafkaServer
from rmq_store import Message
from rmq_store.bridge.kafka.client import Partition, Position
from rmq_store.bridge.kafka.connection import KafkaConnection
from rmq_store.bridge.kafka.reader import KafkaPythonReader
from rmq_store.client import (
    ConsumeConcurrentlyStatus,
    ConsumeFromWhere,
    LitePullConsumer,
    LitePullConsumerConfig,
    MessageListenerConcurrently,
    Producer,
    PushConsumer,
    PushConsumerConfig,
    SimpleConsumer,
)
from rmq_store.reliable import Outbox, Relay, ResendBackoff, Tables, open_engine

QUEUES: Final = 2
SEND_EVERY_S: Final = 0.1
PRODUCE_EVERY_S: Final = 0.5
RELAY_EVERY_MS: Final = 500
RETRY_MS_MAX: Final = 10_000
"""The longest pause of the relay, so that a scene need not wait five minutes for it."""
DAY_MS: Final = 24 * 3_600_000
POLL_MS: Final = 200
END_S: Final = 120.0
INVISIBLE: Final = timedelta(seconds=20)
PAUSE_S: Final = 0.2
"""Behind an error, as a program waits that goes on."""
FROM_FIRST: Final = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


class Client(ABC):
    """A client with a thread that works until `end`. `errors`: what its calls have raised, with the time of each.
    `is_paused`: it does nothing for a while.
    """

    name: str

    def __init__(self) -> None:
        self.errors: list[tuple[float, str]] = []
        self.is_paused = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def end(self) -> None:
        """Return when it has ended."""
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                if self.is_paused:
                    self._over.wait(PAUSE_S)
                else:
                    self._once()
            except Exception as error:
                self._has_raised(error)

    def _has_raised(self, error: Exception) -> None:
        self.errors.append((time.time(), f"{type(error).__name__}: {error}"))
        self._over.wait(PAUSE_S)

    @abstractmethod
    def _once(self) -> None:
        """One round."""


class Sender(Client):
    """Sends to one broker, each body once. `acknowledged`: those that the broker has taken for certain."""

    def __init__(self, cluster: RocketmqCluster, topic: str, broker: str) -> None:
        super().__init__()
        self.name = f"sender to {broker}"
        self.acknowledged: list[str] = []
        self._cluster = cluster
        self._topic = topic
        self._broker = broker
        self._number = 0
        self._connection: Any = None

    def _once(self) -> None:
        self._over.wait(SEND_EVERY_S)
        number, self._number = self._number, self._number + 1
        body = f"{self._broker} {number}"
        try:
            if self._connection is None:
                self._connection = self._cluster.connect(self._broker, timeout_s=2)
            if requests.send(self._connection, self._topic, number % QUEUES, body.encode()).code == 0:
                self.acknowledged.append(body)
        except OSError:
            # Whether it is stored is not known, and nobody sends it again.
            if self._connection is not None:
                self._connection.close()
            self._connection = None
            raise

    def end(self) -> None:
        super().end()
        if self._connection is not None:
            self._connection.close()


class Producing(Client):
    """A producer with its own retries: a body may be stored twice, and comes twice then."""

    def __init__(self, cluster: RocketmqCluster, topic: str) -> None:
        super().__init__()
        self.name = "producer"
        self.acknowledged: list[str] = []
        self._topic = topic
        self._number = 0
        self._producer = Producer("pg_weather", f"rmq://{cluster.name_server}")

    def start(self) -> None:
        self._producer.start()
        super().start()

    def _once(self) -> None:
        self._over.wait(PRODUCE_EVERY_S)
        number, self._number = self._number, self._number + 1
        body = f"producer {number}"
        self._producer.send(Message(self._topic, body.encode()))
        self.acknowledged.append(body)

    def end(self) -> None:
        super().end()
        self._producer.shutdown()


class Relaying(Client):
    """A program that promises messages in a database, and a relay that sends them: `acknowledged` are those that are
    committed. One may be stored twice.
    """

    name = "relay"

    def __init__(self, cluster: RocketmqCluster, topic: str, directory: Path) -> None:
        super().__init__()
        self.acknowledged: list[str] = []
        self._topic = topic
        self._number = 0
        self._producer = Producer("pg_weather_relay", f"rmq://{cluster.name_server}")
        self._engine = open_engine(f"sqlite:///{directory}/outbox.db")
        self._tables = Tables()
        self._tables.metadata.create_all(self._engine)
        self._outbox = Outbox(self._producer, self._engine, self._tables, groups=["cg_weather_nobody"])
        # Nobody confirms, so a second send is one behind a failure.
        backoff = ResendBackoff(first_wait_ms=DAY_MS, max_wait_ms=DAY_MS, max_retry_ms=RETRY_MS_MAX)
        self._relay = Relay(self._producer, self._engine, self._tables, backoff=backoff)
        self._relaying = threading.Thread(target=self._relay_on)

    def start(self) -> None:
        self._producer.start()
        self._relaying.start()
        super().start()

    def _once(self) -> None:
        self._over.wait(PRODUCE_EVERY_S)
        number, self._number = self._number, self._number + 1
        body = f"relay {number}"
        with self._outbox.begin() as connection:
            self._outbox.add(connection, Message(self._topic, body.encode()), send_now=False)
        self.acknowledged.append(body)

    def _relay_on(self) -> None:
        while not self._over.is_set():
            try:
                self._relay.run(self._over, RELAY_EVERY_MS)
            except Exception as error:
                self._has_raised(error)

    def has_sent_all(self) -> bool:
        """Whether the brokers have taken all that is promised."""
        with self._engine.connect() as connection:
            stub = self._tables.stub
            return not connection.scalar(sa.select(sa.func.count()).where(stub.c.sent_ms.is_(None)))

    def end(self) -> None:
        super().end()
        self._relaying.join()
        self._outbox.close()
        self._producer.shutdown()
        self._engine.dispose()


class Member(Client):
    """A member of a group of its own. `got`: how often each body came."""

    def __init__(self, group: str, topic: str) -> None:
        super().__init__()
        self.group = group
        self.topic = topic
        self.got = Counter[str]()

    def _take(self, bodies: Sequence[bytes]) -> None:
        self.got.update(body.decode() for body in bodies)


class Pushed(Member):
    """A push consumer."""

    name = "push"

    def __init__(self, cluster: RocketmqCluster, group: str, topic: str) -> None:
        super().__init__(group, topic)
        config = PushConsumerConfig(consume_from_where=FROM_FIRST)
        self._consumer = PushConsumer(group, f"rmq://{cluster.name_server}", config)
        self._consumer.subscribe(topic)
        self._consumer.register_message_listener(MessageListenerConcurrently(self._handle))
        self._lock = threading.Lock()

    def start(self) -> None:
        self._consumer.start()

    def _once(self) -> None:
        raise AssertionError("the consumer has its own threads")

    def _handle(self, messages: Any, context: object) -> ConsumeConcurrentlyStatus:
        with self._lock:
            self._take([message.body for message in messages])
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    def end(self) -> None:
        self._consumer.shutdown()


class Polling(Member):
    """A lite pull consumer."""

    name = "lite pull"

    def __init__(self, cluster: RocketmqCluster, group: str, topic: str) -> None:
        super().__init__(group, topic)
        config = LitePullConsumerConfig(consume_from_where=FROM_FIRST)
        self._consumer = LitePullConsumer(group, f"rmq://{cluster.name_server}", config)
        self._consumer.subscribe(topic)

    def start(self) -> None:
        self._consumer.start()
        super().start()

    def _once(self) -> None:
        self._take([message.body for message in self._consumer.poll(500)])

    def end(self) -> None:
        super().end()
        self._consumer.shutdown()


class Popping(Member):
    """A simple consumer, which receives by POP: brokers of 5.x."""

    name = "POP"

    def __init__(self, cluster: RocketmqCluster, group: str, topic: str) -> None:
        super().__init__(group, topic)
        self._consumer = SimpleConsumer(
            group, f"rmq://{cluster.name_server}", {topic: "*"}, await_duration=timedelta(seconds=1),
            consume_from_where=FROM_FIRST,
        )  # fmt: skip

    def _once(self) -> None:
        views = self._consumer.receive(32, INVISIBLE)
        self._take([view.body for view in views])
        for view in views:
            try:
                self._consumer.ack(view)
            except Exception as error:
                # It comes again: a repeat, and no end of the member.
                self.unacknowledged += 1
                self.last_unacknowledged = error

    unacknowledged = 0
    last_unacknowledged: Exception | None = None

    def end(self) -> None:
        super().end()
        self._consumer.close()


class Mirroring(Member):
    """A mirror into Kafka of each broker, a process of its own, and a reader of all that they have committed. One that
    has ended is an error, and begins again.
    """

    name = "mirror"

    def __init__(self, cluster: RocketmqCluster, group: str, topic: str, kafka: KafkaServer, directory: Path) -> None:
        super().__init__(group, topic)
        self._name_server = cluster.name_server
        self._kafka = kafka
        self._directory = directory
        self._targets = {
            name: kafka.new_topic(f"{group}-{name}", partition_count=QUEUES) for name in cluster.broker_names
        }
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        for name in self._targets:
            self._mirror(name)
        self._reader = KafkaPythonReader(KafkaConnection((self._kafka.address,)))
        places = [Partition(target, number) for target in self._targets.values() for number in range(QUEUES)]
        self._reader.assign({place: Position(0) for place in places})
        super().start()

    def _mirror(self, broker: str) -> None:
        arguments = [
            "-n", self._name_server, "mirror", "rmq-to-kafka", "--name", f"{self.group}-{broker}", "--broker", broker,
            "--cluster-id", RMQ_CLUSTER, "--bootstrap-servers", self._kafka.address, "--topics", self.topic,
            "--rename", f"{self.topic}={self._targets[broker]}", "--json",
        ]  # fmt: skip
        command = [sys.executable, "-c", "from rmq_store.cli import main; main()", *arguments]
        with self._log(broker).open("ab") as log:
            self._processes[broker] = subprocess.Popen(command, stdout=log, stderr=log)

    def _log(self, broker: str) -> Path:
        return self._directory / f"mirror-{broker}"

    def _once(self) -> None:
        for broker, process in self._processes.items():
            if process.poll() is not None:
                said = self._log(broker).read_text(errors="replace").splitlines()[-3:]
                self._mirror(broker)
                raise RuntimeError(f"the mirror of {broker} has ended with {process.returncode}: {said}")
        for fetched in self._reader.poll(POLL_MS).values():
            self._take(fetched.rows.column("value").to_pylist())

    def end(self) -> None:
        super().end()
        for process in self._processes.values():
            process.terminate()
        try:
            for process in self._processes.values():
                process.wait(END_S)
        finally:
            for process in self._processes.values():
                process.kill()
                process.wait()
            self._reader.close()
