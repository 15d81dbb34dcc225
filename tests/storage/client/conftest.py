"""A cluster in memory whose brokers fail on command, and one of real stores; clocks that only tests move."""

from __future__ import annotations

import itertools
import random
from collections import defaultdict, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from rmq_store import Message, SendResult, SendStatus, Store, StoreConfig
from rmq_store.broker.processor.local_broker import LocalBroker
from rmq_store.client.backend.local import LocalBackend
from rmq_store.client.producer.producer import Producer
from rmq_store.client.producer.producer_config import ProducerConfig
from rmq_store.clock import ClockFile
from rmq_store.protocol.messages import MessageExt, MessageQueue, PullResult, PullStatus

START_MS = 1_700_000_000_000


class FakeClock:
    """Stands still; sleeping moves it. `slept` has every sleep in ms."""

    def __init__(self, now_ms: int = START_MS) -> None:
        self.now_ms: float = now_ms
        self.slept: list[float] = []

    def __call__(self) -> int:
        return int(self.now_ms)

    def exact(self) -> float:
        return self.now_ms

    def advance(self, duration_ms: float) -> None:
        self.now_ms += duration_ms

    def sleep(self, duration_ms: float) -> None:
        self.slept.append(duration_ms)
        self.now_ms += duration_ms


@dataclass(frozen=True)
class Sent:
    """One request of a producer, whatever became of it."""

    broker_name: str
    queue_id: int
    messages: tuple[Message, ...]
    timeout_ms: int
    group: str
    sys_flag: int
    at_ms: int

    @property
    def message(self) -> Message:
        return self.messages[0]


@dataclass
class FakeBroker:
    """`fail(...)` decides what the next calls of an operation do; without it they succeed at once."""

    name: str
    clock: FakeClock
    cluster: FakeBackend
    retry_another_broker_when_not_store_ok: bool = False
    may_forget_offsets: bool = False
    calls: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)
    offsets: dict[tuple[str, MessageQueue], int] = field(default_factory=dict)
    members: dict[str, dict[str, int]] = field(default_factory=lambda: defaultdict(dict))
    locks: dict[tuple[str, MessageQueue], str] = field(default_factory=dict)
    stored: dict[tuple[str, int], list[MessageExt]] = field(default_factory=lambda: defaultdict(list))
    sent_back: list[tuple[str, MessageExt, int]] = field(default_factory=list)
    sent_to_retry: list[tuple[str, Message, int]] = field(default_factory=list)
    _next: dict[str, deque[tuple[float, Any]]] = field(default_factory=lambda: defaultdict(deque))
    _always: dict[str, tuple[float, Any]] = field(default_factory=dict)

    def fail(self, *outcomes: Any, operation: str = "send", latency_ms: float = 0) -> None:
        """The next calls of `operation` take `latency_ms` and raise (an exception), answer (a SendStatus) or do as
        usual (None), one outcome each.
        """
        self._next[operation].extend((latency_ms, outcome) for outcome in outcomes)

    def fail_always(self, outcome: Any, operation: str = "send", latency_ms: float = 0) -> None:
        self._always[operation] = (latency_ms, outcome)

    def recover(self) -> None:
        self._next.clear()
        self._always.clear()

    def _enter(self, operation: str, *arguments: Any) -> Any:
        self.calls.append((operation, arguments))
        planned = self._next[operation]
        latency_ms, outcome = planned.popleft() if planned else self._always.get(operation, (0, None))
        self.clock.advance(latency_ms)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def send(
        self, message: Message, queue_id: int, timeout_ms: int, producer_group: str, *, sys_flag: int = 0
    ) -> SendResult:
        return self._send((message,), queue_id, timeout_ms, producer_group, sys_flag)

    def send_batch(
        self, messages: Sequence[Message], queue_id: int, timeout_ms: int, producer_group: str
    ) -> SendResult:
        return self._send(tuple(messages), queue_id, timeout_ms, producer_group, 0)

    def _send(
        self, messages: tuple[Message, ...], queue_id: int, timeout_ms: int, group: str, sys_flag: int
    ) -> SendResult:
        self.cluster.sent.append(Sent(self.name, queue_id, messages, timeout_ms, group, sys_flag, self.clock()))
        status = self._enter("send", messages, queue_id) or SendStatus.SEND_OK
        stored = [self.store(message, queue_id, sys_flag=sys_flag) for message in messages]
        return SendResult(
            stored[0].topic,
            queue_id,
            stored[0].queue_offset,
            stored[0].commit_log_offset,
            ",".join(message.msg_id for message in stored),
            ",".join(message.offset_msg_id for message in stored),
            status,
            self.name,
        )

    def store(self, message: Message, queue_id: int, *, reconsume_times: int = 0, sys_flag: int = 0) -> MessageExt:
        """Put a message into a queue, as if it had been sent."""
        queue = self.stored[message.topic, queue_id]
        number = next(self.cluster.numbers)
        properties = message.stored_properties()
        queue.append(
            MessageExt(
                topic=message.topic,
                body=message.body,
                queue_id=queue_id,
                queue_offset=len(queue),
                commit_log_offset=number * 1000,
                msg_id=properties.get("UNIQ_KEY", f"{self.name}-{number}"),
                offset_msg_id=f"{self.name}-{number}",
                broker_name=self.name,
                reconsume_times=reconsume_times,
                flag=message.flag,
                sys_flag=sys_flag,
                born_timestamp_ms=message.born_timestamp_ms or self.clock(),
                born_host="127.0.0.1:0",
                store_timestamp_ms=self.clock(),
                store_host="127.0.0.1:10911",
                properties=properties,
            )
        )
        self.cluster.topics[message.topic].setdefault(self.name, queue_id + 1)
        return queue[-1]

    def pull(
        self,
        group: str,
        queue: MessageQueue,
        offset: int,
        max_count: int,
        tags: str | None = None,
        *,
        room: int = 0,
    ) -> PullResult:
        self._enter("pull", group, queue, offset, max_count, tags)
        stored = self.stored[queue.topic, queue.queue_id]
        if not 0 <= offset <= len(stored):
            return PullResult(PullStatus.OFFSET_ILLEGAL, min(max(offset, 0), len(stored)), 0, len(stored))
        part = stored[offset : offset + max_count]
        wanted = None if tags in (None, "*") else {tag.strip() for tag in (tags or "").split("||")}
        found = [message for message in part if wanted is None or message.tags in wanted]
        status = PullStatus.FOUND if found else PullStatus.NO_MATCHED_MSG if part else PullStatus.NO_NEW_MSG
        return PullResult(status, offset + len(part), 0, len(stored), found)

    def pull_batch(self, *arguments: Any) -> Any:
        raise NotImplementedError("the fake has no rows: use a LocalBackend")

    def min_offset(self, queue: MessageQueue) -> int:
        self._enter("min_offset", queue)
        return 0

    def max_offset(self, queue: MessageQueue) -> int:
        self._enter("max_offset", queue)
        return len(self.stored[queue.topic, queue.queue_id])

    def offset_by_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        self._enter("offset_by_time", queue, timestamp_ms)
        stored = self.stored[queue.topic, queue.queue_id]
        return next((m.queue_offset for m in stored if m.store_timestamp_ms >= timestamp_ms), len(stored))

    def query_consumer_offset(self, group: str, queue: MessageQueue) -> int | None:
        self._enter("query_consumer_offset", group, queue)
        return self.offsets.get((group, queue))

    def update_consumer_offsets(
        self, group: str, offsets: Mapping[MessageQueue, int], *, lock_owner: str | None = None
    ) -> set[MessageQueue]:
        self._enter("update_consumer_offsets", group, offsets)
        mine = {q: n for q, n in offsets.items() if lock_owner is None or self.locks.get((group, q)) == lock_owner}
        self.offsets.update({(group, queue): offset for queue, offset in mine.items()})
        return set(mine)

    def send_message_back(
        self,
        group: str,
        message: MessageExt,
        delay_level: int,
        max_reconsume_times: int | None,
        timeout_ms: int,
        *,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        self._enter("send_message_back", group, message, delay_level, max_reconsume_times)
        self.sent_back.append((group, message, delay_level))

    def send_messages_back(self, *arguments: Any) -> Any:
        raise NotImplementedError("the fake has no rows: use a LocalBackend")

    def send_to_retry(
        self, group: str, message: Message, reconsume_times: int, max_reconsume_times: int | None
    ) -> None:
        self._enter("send_to_retry", group, message, reconsume_times, max_reconsume_times)
        self.sent_to_retry.append((group, message, reconsume_times))

    def set_max_reconsume_times(self, group: str, times: int) -> None:
        self._enter("set_max_reconsume_times", group, times)

    def heartbeat(
        self, group: str, client_id: str, *, joins: bool = False, topics: Collection[str] = (), shares: bool = True
    ) -> None:
        self._enter("heartbeat", group, client_id)
        self.members[group][client_id] = self.clock()

    def share_topics(self, group: str, client_id: str, topics: Collection[str]) -> None:
        self._enter("share_topics", group, client_id)

    def unregister(self, group: str, client_id: str) -> None:
        self._enter("unregister", group, client_id)
        self.members[group].pop(client_id, None)
        for key in [key for key, owner in self.locks.items() if (key[0], owner) == (group, client_id)]:
            del self.locks[key]

    def consumer_ids(self, group: str) -> list[str]:
        self._enter("consumer_ids", group)
        now_ms = self.clock()
        return sorted(name for name, at_ms in self.members[group].items() if now_ms - at_ms <= 120_000)

    def lock_queues(self, group: str, client_id: str, queues: Sequence[MessageQueue]) -> set[MessageQueue]:
        self._enter("lock_queues", group, client_id, queues)
        return {queue for queue in queues if self.locks.setdefault((group, queue), client_id) == client_id}

    def unlock_queues(self, group: str, client_id: str, queues: Sequence[MessageQueue]) -> None:
        self._enter("unlock_queues", group, client_id, queues)
        for queue in queues:
            if self.locks.get((group, queue)) == client_id:
                del self.locks[group, queue]

    def deliver_due(self) -> None:
        self._enter("deliver_due")

    def receive_message(self, *arguments: Any, **named: Any) -> Any:
        raise NotImplementedError("the fake has no invisible messages: use a LocalBackend")

    def ack_message(self, group: str, topic: str, receipt_handle: str) -> None:
        raise NotImplementedError("the fake has no invisible messages: use a LocalBackend")

    def change_invisible_duration(
        self, group: str, topic: str, receipt_handle: str, invisible_duration_ms: int
    ) -> str:
        raise NotImplementedError("the fake has no invisible messages: use a LocalBackend")


class FakeBackend:
    """`topics`: {topic: {broker name: number of queues}}; `sent`: every request of a producer, in order."""

    def __init__(self, broker_names: Sequence[str], clock: FakeClock | None = None) -> None:
        self.clock = clock or FakeClock()
        self.numbers = itertools.count(1)
        self.sent: list[Sent] = []
        self.topics: dict[str, dict[str, int]] = defaultdict(dict)
        self.auto_create = True
        self._brokers = {name: FakeBroker(name, self.clock, self) for name in sorted(broker_names)}

    def __getitem__(self, name: str) -> FakeBroker:
        return self._brokers[name]

    def create_topic(self, topic: str, queue_count: int = 4, brokers: Sequence[str] | None = None) -> None:
        self.topics[topic] = dict.fromkeys(brokers or self._brokers, queue_count)

    def brokers(self) -> Mapping[str, FakeBroker]:
        return self._brokers

    def publish_queues(self, topic: str, default_topic_queue_nums: int = 4) -> list[MessageQueue]:
        if topic not in self.topics and self.auto_create:
            self.create_topic(topic, default_topic_queue_nums)
        return self.subscribe_queues(topic)

    def subscribe_queues(self, topic: str) -> list[MessageQueue]:
        counts = sorted(self.topics[topic].items()) if topic in self.topics else []
        return [MessageQueue(topic, name, queue_id) for name, count in counts for queue_id in range(count)]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def cluster(clock: FakeClock) -> FakeBackend:
    """Three brokers, a, b and c, and topic T with two queues at each."""
    backend = FakeBackend(["a", "b", "c"], clock)
    backend.create_topic("T", 2)
    return backend


@pytest.fixture
def single(clock: FakeClock) -> FakeBackend:
    """One broker, a, and topic T with four queues."""
    backend = FakeBackend(["a"], clock)
    backend.create_topic("T", 4)
    return backend


class Made:
    """Producers of a test, started, and shut down behind it."""

    def __init__(self) -> None:
        self.all: list[Producer] = []

    def __call__(self, cluster: FakeBackend, **settings: object) -> Producer:
        producer = Producer(
            "pg",
            cluster,
            ProducerConfig(**settings),  # type: ignore[arg-type]
            timer=cluster.clock.exact,
            sleep=cluster.clock.sleep,
            rng=random.Random(1),
        )
        producer.start()
        self.all.append(producer)
        return producer


@pytest.fixture
def made() -> Iterator[Made]:
    factory = Made()
    yield factory
    for producer in factory.all:
        producer.shutdown()


def fail_all(cluster: FakeBackend, outcome: object, *, latency_ms: float = 0) -> None:
    for broker in cluster.brokers().values():
        broker.fail_always(outcome, latency_ms=latency_ms)


SMALL = {
    "mapped_file_size_commit_log": 1 << 20,
    "mapped_file_size_consume_queue": 6_000,
    "max_hash_slot_num": 100,
    "max_index_num": 400,
}
QUEUE = MessageQueue("T", "broker-a", 0)


def create_store(path: Path, **settings: object) -> Path:
    """A store with a virtual clock."""
    Store.open(path, create=True, config=StoreConfig(**{**SMALL, **settings})).close()  # type: ignore[arg-type]
    ClockFile.create(path / "pyrmq" / "clock", START_MS)
    return path


@pytest.fixture
def local_home(scratch: Path) -> dict[str, Path]:
    return {name: create_store(scratch / name) for name in ("broker-a", "broker-b")}


@pytest.fixture
def local_cluster(local_home: dict[str, Path]) -> Iterator[LocalBackend]:
    with LocalBackend(local_home) as backend:
        yield backend


@pytest.fixture
def broker(local_cluster: LocalBackend) -> LocalBroker:
    """One of them, with topic T of two queues."""
    found = local_cluster.brokers()["broker-a"]
    found.store.create_topic("T", 2)
    return found


def send_to(broker: LocalBroker, body: bytes = b"x", queue_id: int = 0, **fields: object) -> SendResult:
    return broker.send(Message("T", body, **fields), queue_id, 3_000, "pg")  # type: ignore[arg-type]


def advance(broker: LocalBroker, duration_ms: int) -> None:
    ClockFile(broker.store.path / "pyrmq" / "clock").advance(duration_ms)


@pytest.fixture
def tmp_path(fast_scratch: Path) -> Path:
    """In memory: nothing here depends on a disk. Tests of `files` and `log`, and of whole stores, are on one."""
    return fast_scratch
