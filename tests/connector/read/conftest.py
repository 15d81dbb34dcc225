"""Streams and batches over a cluster in memory, whose timer the tests move."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pyspark_rmq.access import cluster_location
from pyspark_rmq.cluster_read.awaited_brokers import KnownBrokers
from pyspark_rmq.options.options import source_options
from pyspark_rmq.read.reader import RmqReader
from pyspark_rmq.read.stream_reader import RmqStreamReader
from pyspark_rmq.schema.schema import SOURCE_SCHEMA
from rmq_store.client.group import group_lease

from ...storage.remoting.cluster.fake_cluster import FakeNet
from ..planned_batches import LIMIT, through_spark

Make = Callable[..., Any]


@pytest.fixture
def net() -> FakeNet:
    made = FakeNet()
    for name, queues in (("broker-a", 2), ("broker-b", 1)):
        made.add_broker(name, slaves=1)
        for queue_id in range(queues):
            made.brokers[name].put("T", queue_id, 10)
    return made


class Clock:
    def __init__(self) -> None:
        self.now_ms = 1_000_000.0

    def __call__(self) -> float:
        return self.now_ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def in_memory(net: FakeNet, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark_rmq.access import cluster_reader

    monkeypatch.setattr(cluster_location, "take", lambda options: net.cluster(options.namespace, timer=clock))
    monkeypatch.setattr(cluster_location, "give_back", lambda options: None)
    monkeypatch.setattr(KnownBrokers, "_of_process", {})
    monkeypatch.setattr(group_lease, "RENEW_EVERY_S", 3600.0)
    make = cluster_reader.ClusterReader.__init__

    def with_clock(self: Any, *given: Any, **named: Any) -> None:
        make(self, *given, timer_ms=clock, **named)

    monkeypatch.setattr(cluster_reader.ClusterReader, "__init__", with_clock)


@pytest.fixture
def stream(clock: Clock) -> Iterator[Make]:
    """Make a stream reader, as a new planning process would: `stream(group="g")`."""
    made: list[RmqStreamReader] = []

    def make(**options: str) -> RmqStreamReader:
        made.append(RmqStreamReader(source_options(_all_of(options), "stream read", 1_000_000), SOURCE_SCHEMA))
        return made[-1]

    yield make
    for reader in made:
        reader.stop()


@pytest.fixture
def more(clock: Clock) -> Make:
    """The next position of a stream, some time later."""

    def more(reader: RmqStreamReader, start: dict[str, Any], by_ms: float = 5_000) -> dict[str, Any]:
        clock.now_ms += by_ms
        reader._idle = None
        return through_spark(reader.latestOffset(start, LIMIT))

    return more


def _all_of(options: dict[str, str]) -> dict[str, str]:
    topics = {} if {"subscribePattern", "assign"} & options.keys() else {"subscribe": "T"}
    return {"nameServer": "ns:9876"} | topics | options


def batch(**options: str) -> RmqReader:
    return RmqReader(source_options(_all_of(options), "batch read", 1_000_000), SOURCE_SCHEMA)


def rows(reader: Any, partitions: Any) -> list[dict[str, Any]]:
    return [row for part in partitions for rows in reader.read(part) for row in rows.to_pylist()]
