"""A group is handed over in turns: Java's consumers run and stop, a stream of Spark goes on, and Java goes on."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers.cluster import requests
from helpers.cluster.brokers import RocketmqCluster
from helpers.cluster.waiting import until
from helpers.cluster.witness import Witness
from pyspark_rmq.access import cluster_pool
from rmq_store.cluster import Cluster, ClusterSettings, live_members

from ..connector.conftest import spark
from .test_source_spark import bodies, numbered, sent, stream

__all__ = ["spark"]

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(600)]
NewName = Callable[[str], str]
PATIENCE_MS = 120_000


@pytest.fixture(autouse=True)
def _connections_end() -> Iterator[None]:
    yield
    cluster_pool.close_unused()


class Turns:
    """A group that consumes a topic of two queues, and what each of its turns has got."""

    def __init__(self, cluster: RocketmqCluster, topic: str, group: str, java: Witness) -> None:
        self.cluster = cluster
        self.topic = topic
        self.group = group
        self.java = java
        self.sent = 0

    def send(self, count: int) -> list[str]:
        """Send messages to both queues; their bodies."""
        first, self.sent = self.sent, self.sent + count
        sent(self.cluster, self.topic, 0, first, first + count // 2)
        sent(self.cluster, self.topic, 1, first + count // 2, self.sent)
        return numbered(first, self.sent)

    def start_java(self) -> str:
        """Java's consumer joins; its client id."""
        client_id: str = self.java.ask("push", group=self.group, topic=self.topic)
        return client_id

    def received(self, count: int) -> list[str]:
        """What Java's consumer has got, once it has so many messages."""
        found = self.java.ask("received", count=count, timeoutMs=PATIENCE_MS)
        return sorted((one["body"] for one in found), key=lambda body: int(body.split()[1]))

    def stop_java(self) -> None:
        """Java's consumer commits what it has done, and leaves; on return no broker knows a member."""
        self.java.ask("leave")
        self.nobody_is_left()

    def nobody_is_left(self) -> None:
        """Wait until no broker knows a member. Spark ends the process of a stopped query within some seconds."""
        until(lambda: not self.members(), "there is still a member")

    def members(self) -> set[str]:
        """The ids of the living members."""
        with Cluster(ClusterSettings(name_servers=self.cluster.name_servers)) as known:
            return live_members(known, self.group)

    def committed(self) -> list[int]:
        """The group's offsets in both queues."""
        with self.cluster.connect() as broker:
            answers = [requests.committed(broker, self.group, self.topic, number) for number in (0, 1)]
        return [int(answer.ext_fields["offset"]) for answer in answers]


@pytest.fixture
def turns(cluster: RocketmqCluster, new_name: NewName) -> Iterator[Turns]:
    with Witness(cluster) as java:
        yield Turns(cluster, cluster.create_topic(new_name("Turns"), 2), new_name("cg"), java)


def test_java_and_spark_take_turns_and_nothing_is_read_twice(
    spark: Any, cluster: RocketmqCluster, turns: Turns, tmp_path: Path
) -> None:
    given = {"subscribe": turns.topic, "group": turns.group}
    first = turns.send(20)
    member = turns.start_java()
    assert turns.received(20) == first
    # While Java's consumer lives Spark takes no queue of it.
    with pytest.raises(Exception, match=re.escape(member)):
        stream(spark, cluster, tmp_path / "refused", **given)
    stream(spark, cluster, tmp_path / "beside", **given, commitOffsets="false", startingOffsets="earliest")
    assert turns.members() == {member}, "who reads beside it does not join"
    turns.stop_java()
    assert turns.committed() == [10, 10]
    second = turns.send(30)
    stream(spark, cluster, tmp_path / "spark", **given)
    assert bodies(spark, tmp_path / "spark") == second
    turns.nobody_is_left()
    assert turns.committed() == [25, 25]
    third = turns.send(10)
    turns.start_java()
    assert turns.received(10) == third
    turns.stop_java()
    assert turns.committed() == [30, 30]
