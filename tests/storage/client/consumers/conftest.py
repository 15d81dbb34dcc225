"""Consumers on one store in memory, with a clock that only the test moves and nothing that runs by itself."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rmq_store import Store, StoreConfig
from rmq_store.client.backend.local import LocalBackend
from rmq_store.client.consume_service.listener import (
    ConsumeConcurrentlyStatus,
    ConsumeOrderlyStatus,
    MessageListenerArrow,
    MessageListenerConcurrently,
    MessageListenerOrderly,
)
from rmq_store.client.consumer.push_consumer import PushConsumer
from rmq_store.client.group.consumer_config import PushConsumerConfig
from rmq_store.protocol.messages import MessageExt, MessageQueue

TOPIC, GROUP, BROKER = "Orders", "cg_orders", "rmq-embedded"


@dataclass(frozen=True)
class Seen:
    """One call of a listener for one message."""

    at_ms: int
    client_id: str
    topic: str
    queue_id: int
    queue_offset: int
    reconsume_times: int
    body: str
    properties: dict[str, str] = field(compare=False)


class Lab:
    """One store, its backend, and what listeners saw."""

    def __init__(self, root: Path, **settings: Any) -> None:
        self.now_ms = 1_700_000_000_000
        self.seen: list[Seen] = []
        self.consumers: list[PushConsumer] = []
        config = StoreConfig(
            mapped_file_size_commit_log=1 << 20,
            mapped_file_size_consume_queue=20_000,
            max_hash_slot_num=1000,
            max_index_num=10_000,
            flush_interval_commit_log=10**9,
            **settings,
        )
        self.store = Store.open(root, create=True, config=config, clock=self.clock)
        self.backend = LocalBackend(self.store)
        self._numbers = itertools.count()

    def clock(self) -> int:
        return self.now_ms

    def topic(self, queues: int = 1, name: str = TOPIC) -> None:
        self.store.create_topic(name, queue_count=queues)

    def send(self, count: int, *, queue: int = 0, topic: str = TOPIC, tags: str | None = None) -> None:
        """Messages m0, m1, ... to one queue, numbered over the whole test."""
        rows = {
            "body": pa.array([f"m{next(self._numbers)}".encode() for _ in range(count)], pa.binary()),
            "queueId": pa.array([queue] * count, pa.int32()),
            "tags": pa.array([tags] * count, pa.string()),
        }
        self.store.append(pa.RecordBatch.from_pydict(rows), topic=topic)

    def concurrent(
        self,
        answer: Callable[[Sequence[MessageExt], Any], Any] = lambda messages, context: None,
        *,
        group: str = GROUP,
        client_id: str = "c1",
        backend: Any = None,
        start: bool = True,
        **settings: Any,
    ) -> PushConsumer:
        """A started consumer. `answer` None means CONSUME_SUCCESS; "none" means None."""

        def consume(messages: Sequence[MessageExt], context: Any) -> Any:
            self._note(client_id, messages)
            result = answer(messages, context)
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS if result is None else None if result == "none" else result

        return self._made(MessageListenerConcurrently(consume), group, client_id, backend, start, settings)

    def arrow(
        self,
        answer: Callable[[pa.RecordBatch, Any], Any] = lambda batch, context: None,
        *,
        group: str = GROUP,
        client_id: str = "c1",
        backend: Any = None,
        start: bool = True,
        **settings: Any,
    ) -> PushConsumer:
        """A started consumer of rows. `answer` None means CONSUME_SUCCESS; "none" means None."""

        def consume(batch: pa.RecordBatch, context: Any) -> Any:
            self.seen += [
                Seen(
                    self.now_ms, client_id, row["topic"], row["queueId"], row["queueOffset"], row["reconsumeTimes"],
                    row["body"].decode(), dict(row["properties"]),
                )
                for row in batch.to_pylist()
            ]  # fmt: skip
            result = answer(batch, context)
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS if result is None else None if result == "none" else result

        return self._made(MessageListenerArrow(consume), group, client_id, backend, start, settings)

    def ordered(
        self,
        answer: Callable[[Sequence[MessageExt], Any], Any] = lambda messages, context: None,
        *,
        group: str = GROUP,
        client_id: str = "c1",
        backend: Any = None,
        start: bool = True,
        **settings: Any,
    ) -> PushConsumer:
        """A started consumer in order. `answer` None means SUCCESS; "none" means None."""

        def consume(messages: Sequence[MessageExt], context: Any) -> Any:
            self._note(client_id, messages)
            result = answer(messages, context)
            return ConsumeOrderlyStatus.SUCCESS if result is None else None if result == "none" else result

        return self._made(MessageListenerOrderly(consume), group, client_id, backend, start, settings)

    def settle(self, *consumers: PushConsumer) -> None:
        """Rounds of all consumers until nothing moves at this moment."""
        for _ in range(1000):
            moved = [consumer.run_once() for consumer in consumers or self.consumers]
            if not any(moved):
                return
        raise AssertionError("the consumers never come to rest")

    def advance(self, duration_ms: int, *consumers: PushConsumer) -> None:
        """Move the clock, then settle."""
        self.now_ms += duration_ms
        self.settle(*consumers)

    def bodies(self) -> list[str]:
        return [each.body for each in self.seen]

    def committed(self, queue: int = 0, *, topic: str = TOPIC, group: str = GROUP) -> int | None:
        return self.store.committed_offsets(group).get((topic, queue))

    def read(self, topic: str) -> list[dict[str, Any]]:
        """All messages of a topic, properties as a dict; [] if there is no such topic."""
        if topic not in self.store.topics():
            return []
        rows: list[dict[str, Any]] = []
        for queue_id, (first, last) in self.store.queue_ranges(topic).items():
            for batch in self.store.read(topic, queue_id, first, last):
                rows += [{**row, "properties": dict(row["properties"])} for row in batch.to_pylist()]
        return rows

    def close(self) -> None:
        for consumer in self.consumers:
            consumer.shutdown()
        self.backend.close()
        self.store.close()

    def _note(self, client_id: str, messages: Sequence[MessageExt]) -> None:
        self.seen += [
            Seen(
                self.now_ms, client_id, each.topic, each.queue_id, each.queue_offset, each.reconsume_times,
                each.body.decode(), dict(each.properties),
            )
            for each in messages
        ]  # fmt: skip

    def _made(
        self, listener: Any, group: str, client_id: str, backend: Any, start: bool, settings: dict[str, Any]
    ) -> PushConsumer:
        config = PushConsumerConfig(**settings)
        consumer = PushConsumer(group, backend or self.backend, config, client_id=client_id)
        consumer.subscribe(TOPIC)
        consumer.register_message_listener(listener)
        if start:
            consumer.start(threads=False)
            self.consumers.append(consumer)
        return consumer


def queue(number: int, topic: str = TOPIC) -> MessageQueue:
    return MessageQueue(topic, BROKER, number)


@pytest.fixture
def make_lab(tmp_path: Path) -> Iterator[Callable[..., Lab]]:
    memory = Path("/dev/shm")
    labs: list[Lab] = []
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else tmp_path) as directory:

        def make(**settings: Any) -> Lab:
            labs.append(Lab(Path(directory) / f"store{len(labs)}", **settings))
            return labs[-1]

        yield make
        for lab in labs:
            lab.close()


@pytest.fixture
def lab(make_lab: Callable[..., Lab]) -> Lab:
    return make_lab()
