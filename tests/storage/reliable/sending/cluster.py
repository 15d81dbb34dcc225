"""A cluster of a real store whose brokers fail on command, and a clock that only tests move."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from rmq_store import Message, SendResult, Store
from rmq_store.client import LocalBackend, MessageQueue, Producer
from rmq_store.reliable import Tables
from rmq_store.reliable.outbox.outbox import Outbox
from rmq_store.reliable.relay.relay import Relay

START_MS = 1_700_000_000_000


class MovedClock:
    """Stands still until a test moves it."""

    def __init__(self) -> None:
        self.now_ms = START_MS

    def __call__(self) -> int:
        return self.now_ms

    def advance(self, duration_ms: int) -> None:
        self.now_ms += duration_ms


class FailingBroker:
    """A broker of a store. Each send asks `before`, then `after`, which may raise: then nothing is stored, or the
    answer is lost. `requests` has the bodies of each request that was stored.
    """

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.before: Callable[[Sequence[Message]], None] = lambda messages: None
        self.after: Callable[[Sequence[Message]], None] = lambda messages: None
        self.requests: list[list[bytes]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def send(
        self, message: Message, queue_id: int, timeout_ms: int, producer_group: str, *, sys_flag: int = 0
    ) -> SendResult:
        self.before([message])
        result = self._inner.send(message, queue_id, timeout_ms, producer_group, sys_flag=sys_flag)
        self.requests.append([message.body])
        self.after([message])
        return result

    def send_batch(
        self, messages: Sequence[Message], queue_id: int, timeout_ms: int, producer_group: str
    ) -> SendResult:
        self.before(messages)
        result = self._inner.send_batch(messages, queue_id, timeout_ms, producer_group)
        self.requests.append([message.body for message in messages])
        self.after(messages)
        return result

    def fail(self, *errors: BaseException | None, is_stored: bool = False) -> None:
        """What the next sends raise, behind or instead of storing; None: that one succeeds. Then all succeed."""
        left = deque(errors)

        def step(messages: Sequence[Message]) -> None:
            error = left.popleft() if left else None
            if error is not None:
                raise error

        if is_stored:
            self.after = step
        else:
            self.before = step


class FailingCluster:
    """The cluster of one store."""

    def __init__(self, store: Store) -> None:
        self._inner = LocalBackend(store)
        (name,) = self._inner.brokers()
        self.broker = FailingBroker(self._inner.brokers()[name])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def brokers(self) -> Mapping[str, Any]:
        return {self.broker.name: self.broker}

    def publish_queues(self, topic: str, default_topic_queue_nums: int = 4) -> list[MessageQueue]:
        return self._inner.publish_queues(topic, default_topic_queue_nums)


@dataclass
class World:
    """What a test of the sending half works on."""

    engine: sa.Engine
    tables: Tables
    store: Store
    cluster: FailingCluster
    producer: Producer
    clock: MovedClock
    outboxes: list[Outbox] = field(default_factory=list)

    @property
    def broker(self) -> FailingBroker:
        return self.cluster.broker

    def outbox(self, **options: Any) -> Outbox:
        """An outbox whose marks are written when the test says so, or at its end."""
        options = {"groups": ("stock",), "clock": self.clock, "mark_delay_ms": 30_000, **options}
        made = Outbox(self.producer, self.engine, self.tables, **options)
        self.outboxes.append(made)
        return made

    def relay(self, **options: Any) -> Relay:
        return Relay(self.producer, self.engine, self.tables, **{"clock": self.clock, **options})

    def add(self, *messages: Message, **options: Any) -> list[str]:
        """Committed stubs that nobody sends yet; returns their ids."""
        outbox = self.outbox()
        with self.engine.begin() as connection:
            stubs = [outbox.add(connection, each, send_now=False, **options) for each in messages]
        return [stub.message_id for stub in stubs]

    def stubs(self) -> list[Any]:
        """All rows of stub by seq."""
        with self.engine.connect() as connection:
            return list(connection.execute(sa.select(self.tables.stub).order_by(self.tables.stub.c.seq)))

    def stub(self, message_id: str) -> Any:
        (row,) = [row for row in self.stubs() if row.message_id == message_id]
        return row

    def update(self, message_id: str | None = None, **columns: Any) -> None:
        """Change stubs behind everybody's back."""
        statement = self.tables.stub.update()
        if message_id is not None:
            statement = statement.where(self.tables.stub.c.message_id == message_id)
        with self.engine.begin() as connection:
            connection.execute(statement.values(**columns))

    def execute(self, statement: sa.Executable, rows: Any = None) -> None:
        with self.engine.begin() as connection:
            connection.execute(statement, rows)

    def manual(self) -> list[tuple[str, str]]:
        """(id, reason) of the manual list."""
        manual = self.tables.manual
        with self.engine.connect() as connection:
            found = connection.execute(sa.select(manual.c.message_id, manual.c.reason).order_by(manual.c.message_id))
            return [(row.message_id, row.reason) for row in found]

    def stored(self, topic: str = "Orders") -> list[dict[str, Any]]:
        """What the store has, queue after queue, in the order of the queue."""
        config = self.store.topics().get(topic)
        found: list[dict[str, Any]] = []
        for queue_id in range(config.write_queue_nums if config else 0):
            end = self.store.queue_range(topic, queue_id).max_offset
            for batch in self.store.read(topic, queue_id, 0, end, columns=["body", "properties", "msgId", "queueId"]):
                found += batch.to_pylist()
        return found

    def bodies(self, topic: str = "Orders") -> list[bytes]:
        """The bodies of `stored`."""
        return [row["body"] for row in self.stored(topic)]
