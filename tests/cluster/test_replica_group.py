"""A replica of a released broker: a stream with its group at the broker, and the comparison of both logs."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from helpers.cluster import requests
from helpers.cluster.brokers import RocketmqCluster
from helpers.cluster.waiting import until
from pyspark_rmq.access import cluster_pool
from pyspark_rmq.options.options import source_options
from pyspark_rmq.read.stream_reader import RmqStreamReader
from pyspark_rmq.schema.schema import SOURCE_SCHEMA
from rmq_store import Store
from rmq_store.remoting.transport.settings import ClusterSettings
from rmq_store.replica.compare import LogComparison
from rmq_store.replica.follow import Follower
from rmq_store.replica.master import Master

NewName = Callable[[str], str]


@pytest.fixture
def replica(cluster: RocketmqCluster, tmp_path: Path) -> Iterator[Path]:
    """A replica of broker-a, which a thread feeds."""
    stop = threading.Event()
    settings = ClusterSettings(name_servers=cluster.name_servers)
    with Master(settings, broker="broker-a") as master:
        follower = Follower(tmp_path / "replica", master, should_stop=stop.wait)
        thread = threading.Thread(target=follower.run)
        thread.start()
        until(lambda: follower.progress.is_connected, "the replica is not fed")  # the broker may have no message yet
        yield tmp_path / "replica"
        stop.set()
        thread.join()


def stream(cluster: RocketmqCluster, root: Path, topic: str, group: str) -> RmqStreamReader:
    options = {"path": str(root), "nameServer": cluster.name_server, "subscribe": topic, "group": group}
    return RmqStreamReader(source_options(options, "stream read", 0), SOURCE_SCHEMA)


def committed(broker: Any, group: str, topic: str) -> int:
    return int(requests.committed(broker, group, topic).ext_fields.get("offset", "-1"))


def test_a_stream_on_a_replica_commits_at_the_broker(
    cluster: RocketmqCluster, replica: Path, new_name: NewName
) -> None:
    topic, group = cluster.create_topic(new_name("orders"), 1), new_name("billing")
    with cluster.connect() as broker:
        for _ in range(5):
            assert requests.send(broker, topic).code == 0
        requests.heartbeat(broker, "maker", group, topic)  # 5.x keeps offsets of groups that it knows
        requests.commit(broker, group, topic, 2)
        broker.ask(35, {"clientID": "maker", "consumerGroup": group})

        def is_there() -> bool:
            with Store.open(replica, read_only=True) as store:
                return topic in store.topics() and store.queue_range(topic, 0).max_offset == 5

        until(is_there, "the replica has not got the messages")
        reader = stream(cluster, replica, topic, group)
        try:
            start = reader.initialOffset()
            end = json.loads(json.dumps(reader.latestOffset(start, ReadMaxRows(1))))
            parts = reader.partitions(start, end)
            assert [tuple(part.part)[:4] for part in parts] == [(topic, 0, 2, 5)]  # type: ignore[attr-defined]
            assert sum(batch.num_rows for part in parts for batch in reader.read(part)) == 3
            reader.commit(end)
            assert committed(broker, group, topic) == 5
        finally:
            reader.stop()
    cluster_pool.close_unused()


def test_the_logs_of_a_replica_and_its_broker_are_equal(
    cluster: RocketmqCluster, replica: Path, new_name: NewName
) -> None:
    topic = cluster.create_topic(new_name("orders"), 1)
    with cluster.connect() as broker:
        for number in range(20):
            assert requests.send(broker, topic, body=b"%d" % number * 100).code == 0

    def is_there() -> bool:
        with Store.open(replica, read_only=True) as store:
            return store.find_topic(topic) is not None and store.queue_range(topic, 0).max_offset == 20

    until(is_there, "the replica has not got the messages")
    with (
        Master(ClusterSettings(name_servers=cluster.name_servers), broker="broker-a") as master,
        Store.open(replica, read_only=True) as store,
    ):
        found = LogComparison(store, master).run()
    assert found.is_equal, found
    assert found.compared and found.compared[0].start == 0
    assert not found.only_at_replica
