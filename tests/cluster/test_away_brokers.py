"""Two masters of released versions, one of which is away when reads begin, and comes back with its history."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from helpers.cluster import requests
from helpers.cluster.brokers import RocketmqCluster
from helpers.cluster.fixtures import require_released
from helpers.cluster.java_process import VERSIONS
from helpers.cluster.waiting import until
from pyspark_rmq.access import cluster_pool
from pyspark_rmq.options.options import source_options
from pyspark_rmq.read.reader import RmqReader
from pyspark_rmq.read.stream_reader import RmqStreamReader
from pyspark_rmq.schema.schema import SOURCE_SCHEMA
from rmq_store.cli import commands
from rmq_store.cluster import BrokerAwayError

from ..connector.planned_batches import LIMIT, first_batch, planned, through_spark

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
STAYS, AWAY = "broker-a", "broker-b"
OLD = {STAYS: 5, AWAY: 3}


@pytest.fixture(params=VERSIONS)
def two_masters(request: pytest.FixtureRequest) -> Iterator[RocketmqCluster]:
    require_released(request.param)
    with RocketmqCluster(request.param, groups=2) as cluster:
        yield cluster
    cluster_pool.close_unused()


def send(cluster: RocketmqCluster, name: str, topic: str, count: int, first: int = 0) -> None:
    with cluster.connect(name) as broker:
        for number in range(first, first + count):
            assert requests.send(broker, topic, 0, b"%s %d" % (name.encode(), number)).code == 0
        requests.await_end(broker, topic, first + count)


def bodies(reader: Any, partitions: Any) -> list[str]:
    found = [row for part in partitions for batch in reader.read(part) for row in batch.to_pylist()]
    return sorted(row["body"].decode() for row in found)


def numbered(name: str, first: int, last: int) -> list[str]:
    return [f"{name} {number}" for number in range(first, last)]


def test_what_a_broker_that_is_away_means_for_reads(two_masters: RocketmqCluster) -> None:
    cluster = two_masters
    cluster.create_topic("Orders", 1)
    for name, count in OLD.items():
        send(cluster, name, "Orders", count)
    options = {"nameServer": cluster.name_server, "subscribe": "Orders"}

    def batch(**more: str) -> RmqReader:
        return RmqReader(source_options({**options, **more}, "batch read", 0), SOURCE_SCHEMA)

    def stream(**more: str) -> RmqStreamReader:
        return RmqStreamReader(source_options({**options, **more}, "stream read", 0), SOURCE_SCHEMA)

    def command(*words: str) -> Any:
        clean = {"RMQ_STORE": None, "NAMESRV_ADDR": None}
        return CliRunner().invoke(commands, ["-n", cluster.name_server, *words], env=clean, catch_exceptions=False)

    both = {"requiredBrokers": f"{STAYS},{AWAY}"}
    reader = batch(**both)
    assert bodies(reader, reader.partitions()) == numbered(STAYS, 0, 5) + numbered(AWAY, 0, 3)

    cluster.broker(AWAY).kill()
    cluster.await_gone((AWAY, 0))
    cluster_pool.close_unused()  # as a new process, with no route of its own
    reader = batch()
    assert bodies(reader, reader.partitions()) == numbered(STAYS, 0, 5), "never refused by default"
    for refused in (batch(**both).partitions, stream(**both, onBrokerAway="fail").initialOffset):
        with pytest.raises(BrokerAwayError, match=f"{AWAY}: no name server of .* knows it"):
            refused()
    rows = command("read", "Orders", "--json").stdout.splitlines()
    assert {json.loads(row)["brokerName"] for row in rows} == {STAYS}
    result = command("read", "Orders", "--required-brokers", f"{STAYS},{AWAY}")
    assert (result.exit_code, result.stdout) == (1, "") and f"away, so nothing is read: {AWAY}" in result.stderr

    running = stream()
    start, end = first_batch(running)
    assert planned(running, start, end) == []
    time.sleep(0.05)  # the next message is stored in a later millisecond

    cluster.broker(AWAY).start()
    cluster.await_registered((AWAY, 0))
    send(cluster, AWAY, "Orders", 2, first=3)
    send(cluster, STAYS, "Orders", 1, first=5)
    found: list[str] = []
    at = end

    def all_there() -> bool:
        nonlocal at
        running._idle = None
        later = through_spark(running.latestOffset(at, LIMIT))
        found.extend(bodies(running, running.partitions(at, later)))
        at = later
        return len(found) >= 3

    until(all_there, "the queues of the broker that is back are not read")
    assert sorted(found) == numbered(STAYS, 5, 6) + numbered(AWAY, 3, 5), "nothing of its history"
    assert at["since"] == end["since"]
    running.stop()
    again = stream(onLateQueue="read")
    later = through_spark(again.latestOffset(end, LIMIT))
    assert bodies(again, again.partitions(end, later)) == numbered(STAYS, 5, 6) + numbered(AWAY, 0, 5)
    again.stop()
