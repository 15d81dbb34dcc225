"""The clients of a scene that live in the test's own process: who sends, and members of groups of each kind."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

from helpers.cluster import requests
from helpers.cluster.brokers import RocketmqCluster
from rmq_store import Message
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

QUEUES: Final = 2
SEND_EVERY_S: Final = 0.1
PRODUCE_EVERY_S: Final = 0.5
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
