"""Writes of the network sink that end anywhere and come again in another order: each row is stored once.

A served store stands for a broker. Rows have equal contents, deliver times, delay levels, tags, keys and queues by
chance; attempts end before a request, before its answer is seen, or between two batches.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pytest

from rmq_store import Store
from rmq_store.broker.rules.timer import PYRMQ_TIMER_TOPIC, TIMER_QUEUES
from rmq_store.client.cluster_sink.pipeline import Pipeline
from rmq_store.client.cluster_sink.records import WritePart
from rmq_store.client.cluster_sink.row_encoder import EncoderSettings
from rmq_store.client.cluster_sink.task import SinkReport, SinkSettings, SinkTask
from rmq_store.format.text.names import SCHEDULE_TOPIC
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.server.broker_server import BrokerServer

WRITES = 8
HOUR_MS = 3_600_000
LEVELS = (17, 18)  # one hour and two
COLUMNS: Mapping[str, pa.DataType] = {
    "topic": pa.string(), "body": pa.binary(), "tags": pa.string(), "keys": pa.string(),
    "TIMER_DELIVER_MS": pa.string(), "delayLevel": pa.int32(), "queueId": pa.int32(),
}  # fmt: skip
ALWAYS = ("topic", "body", "tags", "keys")

Row = dict[str, Any]


class Ended(Exception):
    """An attempt ends here."""


class Write:
    """Rows for a few topics, which stay the same in each attempt, and the columns that they come with."""

    def __init__(self, chance: random.Random, name: str, topics: list[str]) -> None:
        self.chance = chance
        self.name = name
        self.topics = topics
        delays = chance.choice([[], ["TIMER_DELIVER_MS"], ["delayLevel"], ["TIMER_DELIVER_MS", "delayLevel"]])
        self.columns = [*ALWAYS, *delays, *chance.choice([[], ["queueId"]])]
        self.rows = [self._row() for _ in range(chance.randint(1, 60))]

    def _row(self) -> Row:
        chance = self.chance
        row: Row = {
            "topic": chance.choice(self.topics),
            "body": b"%d" % chance.randint(0, 8) * chance.choice([1, 1, 1, 2000]),
            "tags": chance.choice([None, "A", "B"]),
            "keys": chance.choice([None, "k1", "k1 k2"]),
        }
        delay = chance.choice([None, *self.columns[len(ALWAYS) :]])
        if delay == "TIMER_DELIVER_MS":
            now_ms = int(time.time() * 1000)
            row[delay] = str(now_ms + chance.choice([-HOUR_MS, HOUR_MS // 20, HOUR_MS, 2 * HOUR_MS]))
        elif delay == "delayLevel":
            row[delay] = chance.choice(LEVELS)
        elif delay == "queueId":
            row[delay] = 0
        return row

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows in another order each time, some in each batch."""
        rows = self.chance.sample(self.rows, len(self.rows))
        size = self.chance.choice([3, 10, 100])
        for start in range(0, len(rows), size):
            part = rows[start : start + size]
            yield pa.RecordBatch.from_pydict(
                {name: pa.array([row.get(name) for row in part], COLUMNS[name]) for name in self.columns}
            )

    def settings(self) -> SinkSettings:
        encoder = EncoderSettings(
            None, use_queue_id="queueId" in self.columns, drop_properties=frozenset({"DELAY"})
        )
        return SinkSettings(encoder, settle_ms=0)


def attempt(cluster: Cluster, write: Write, *, batches_max: int | None = None) -> SinkReport:
    with SinkTask(Cluster(cluster.settings), write.settings(), WritePart(write.name, 0, 0)) as task:
        for number, batch in enumerate(write.batches()):
            if number == batches_max:
                raise Ended
            task.write(batch)
        return task.finish()


def ended_attempt(cluster: Cluster, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that ends by chance, or not at all."""
    left = write.chance.choice([0, 1, 2, 5, 10])
    where = write.chance.choice(["_submit", "_take", "write", ""])

    def counted(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise Ended
            return original(*arguments)

        return call

    with monkeypatch.context() as patch:
        if where.startswith("_"):
            patch.setattr(Pipeline, where, counted(getattr(Pipeline, where)))
        try:
            attempt(cluster, write, batches_max=left if where == "write" else None)
        except Ended:
            pass


def contents(store: Store, topics: list[str]) -> Counter[tuple[Any, ...]]:
    """What the topics have, or will have when it is due."""
    places = [(topic, store.topic(topic).write_queue_nums) for topic in topics]
    places += [(SCHEDULE_TOPIC, max(LEVELS)), (PYRMQ_TIMER_TOPIC, TIMER_QUEUES)]
    found = Counter[tuple[Any, ...]]()
    for place, queues in places:
        for queue_id in range(queues):
            limits = store.queue_range(place, queue_id)
            for batch in store.read(place, queue_id, limits.min_offset, limits.max_offset):
                for row in batch.to_pylist(maps_as_pydicts="strict"):
                    topic = row["properties"].get("REAL_TOPIC", place)
                    if topic in topics:
                        found[topic, row["body"], row["tags"], row["keys"]] += 1
    return found


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_each_row_is_stored_once_wherever_attempts_end(
    cluster: Cluster, server: BrokerServer, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chance = random.Random(seed)
    for number in range(WRITES):
        write = Write(chance, f"write-{number}", [f"T{number}-{topic}" for topic in range(chance.randint(1, 3))])
        for topic in write.topics:
            server.store.create_topic(topic, queue_count=chance.randint(1, 3))
        for _ in range(chance.randint(1, 4)):
            ended_attempt(cluster, write, monkeypatch)
        report = attempt(cluster, write)
        expected = Counter((row["topic"], row["body"], row["tags"], row["keys"]) for row in write.rows)
        assert contents(server.store, write.topics) == expected, (number, write.columns, report)
        assert report.late == 0, (number, write.columns, report)
