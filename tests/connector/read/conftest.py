"""Streams and batches over a cluster in memory, whose timer the tests move."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from helpers.cluster.simulated import SimulatedCluster
from pyspark_rmq.access import cluster_location, cluster_pool, cluster_reader
from pyspark_rmq.cluster_read import look
from pyspark_rmq.cluster_read.awaited_brokers import KnownBrokers
from pyspark_rmq.options.options import source_options
from pyspark_rmq.read.reader import RmqReader
from pyspark_rmq.read.stream_reader import RmqStreamReader
from pyspark_rmq.schema.schema import SOURCE_SCHEMA
from rmq_store.backoff import Backoff
from rmq_store.client.group import group_lease
from rmq_store.remoting.cluster import name_servers

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

    def now_s(self) -> float:
        return self.now_ms / 1000

    def sleep(self, duration_s: float) -> None:
        """It moves the clock, and takes no time."""
        self.now_ms += duration_s * 1000


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def in_memory(net: FakeNet, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_location, "take", lambda options: net.cluster(options.namespace, timer=clock))
    monkeypatch.setattr(cluster_location, "give_back", lambda options: None)
    monkeypatch.setattr(KnownBrokers, "_of_process", {})
    monkeypatch.setattr(group_lease, "RENEW_EVERY_S", 3600.0)
    make = cluster_reader.ClusterReader.__init__

    def with_clock(self: Any, *given: Any, **named: Any) -> None:
        make(self, *given, timer_ms=clock, **named)

    monkeypatch.setattr(cluster_reader.ClusterReader, "__init__", with_clock)


@pytest.fixture
def waits_of_leases(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits for a lease move the clock."""
    lease = partial(cluster_reader.GroupLease, sleep=clock.sleep, timer_s=clock.now_s)
    monkeypatch.setattr(cluster_reader, "GroupLease", lease)


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
def over_sockets(monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Make a stream over a simulated cluster: `over_sockets(cluster, group="g")`. Its plans wait half a second for a
    broker that stands still, and probes go out ten times a second.
    """
    monkeypatch.setattr(cluster_reader, "Look", partial(look.Look, bound_ms=look.LEAST_MS))
    monkeypatch.setattr(name_servers, "PROBING", Backoff(first_ms=100, max_ms=100))
    readers: list[RmqStreamReader] = []

    def make(cluster: SimulatedCluster, **options: str) -> RmqStreamReader:
        given = {"nameServer": cluster.name_server, "subscribe": "T", "startingOffsets": "earliest", **options}
        readers.append(RmqStreamReader(source_options(given, "stream read", 1_000_000), SOURCE_SCHEMA))
        return readers[-1]

    yield make
    for reader in readers:
        reader.stop()
    cluster_pool.close_unused()


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
