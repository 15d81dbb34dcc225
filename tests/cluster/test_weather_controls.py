"""What looks like an outage of a real broker and is none: a stream ends with a `DataLossError`, or reports the loss
with failOnDataLoss=false.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from typing import Any

import pytest

from helpers.cluster.brokers import RocketmqCluster
from helpers.cluster.fixtures import require_released
from helpers.cluster.java_process import VERSIONS
from pyspark_rmq.access import cluster_pool
from pyspark_rmq.options.options import source_options
from pyspark_rmq.read.stream_reader import RmqStreamReader
from pyspark_rmq.schema.schema import SOURCE_SCHEMA
from rmq_store.errors import DataLossError
from rmq_store.protocol.wire.request_codes import RequestCode

from ..connector.planned_batches import LIMIT, through_spark
from .test_away_brokers import AWAY, STAYS, send

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
PATIENCE_S = 120.0
LOSSES = "pyspark_rmq.dataloss"


@pytest.fixture(scope="module", params=VERSIONS)
def whole_cluster(request: pytest.FixtureRequest) -> Iterator[RocketmqCluster]:
    require_released(request.param)
    with RocketmqCluster(request.param, groups=2) as cluster:
        yield cluster


@pytest.fixture
def cluster(whole_cluster: RocketmqCluster) -> Iterator[RocketmqCluster]:
    whole_cluster.heal()
    yield whole_cluster
    cluster_pool.close_unused()


class Stream:
    """A stream that has read all there is, in one process."""

    def __init__(self, cluster: RocketmqCluster, topic: str, fails: bool) -> None:
        given = {
            "nameServer": cluster.name_server, "subscribe": topic, "startingOffsets": "earliest",
            "failOnDataLoss": str(fails).lower(),
        }  # fmt: skip
        self.reader = RmqStreamReader(source_options(given, "stream read", 1_000_000), SOURCE_SCHEMA)
        self.position = through_spark(self.reader.initialOffset())
        self.cluster, self.topic = cluster, topic

    def trigger(self) -> None:
        start, self.position = self.position, through_spark(self.reader.latestOffset(self.position, LIMIT))
        if self.position != start:
            self.reader.partitions(start, self.position)

    def until(self, offsets: dict[str, int]) -> None:
        """Plan until the stream stands at these offsets of the queues, by broker."""
        until_s = time.monotonic() + PATIENCE_S
        while self.at() != offsets:
            assert time.monotonic() < until_s, (self.at(), offsets)
            self.trigger()
            time.sleep(0.2)

    def at(self) -> dict[str, int]:
        queues: dict[str, int] = self.position["topics"].get(self.topic, {})
        return {queue.partition(":")[0]: offset for queue, offset in queues.items()}

    def error(self) -> Any:
        """The error with which the stream ends."""
        until_s = time.monotonic() + PATIENCE_S
        with pytest.raises(DataLossError) as caught:
            while time.monotonic() < until_s:
                self.trigger()
                time.sleep(0.2)
        return caught.value


def read_stream(cluster: RocketmqCluster, topic: str, fails: bool) -> Stream:
    """A stream that has read three messages of each broker."""
    for name in (STAYS, AWAY):
        send(cluster, name, topic, 3)
    stream = Stream(cluster, topic, fails)
    stream.until({STAYS: 3, AWAY: 3})
    return stream


def come_back_with_another_disk(stream: Stream) -> None:
    """One broker is killed, the stream goes on beside it, and the broker comes back empty."""
    broker = stream.cluster.broker(AWAY)
    broker.kill()
    send(stream.cluster, STAYS, stream.topic, 1, first=3)
    stream.until({STAYS: 4, AWAY: 3})
    shutil.rmtree(broker.directory / "store")
    stream.cluster.heal()


@pytest.mark.parametrize("fails", [True, False], ids=["fails", "reports"])
@pytest.mark.parametrize("count", [1, 4], ids=["with fewer messages", "with more messages"])
def test_a_broker_that_is_back_with_another_disk_has_lost_what_was_read(
    cluster: RocketmqCluster, new_name: Any, caplog: pytest.LogCaptureFixture, fails: bool, count: int
) -> None:
    topic = cluster.create_topic(new_name("Replaced"), 1)
    stream = read_stream(cluster, topic, fails)
    come_back_with_another_disk(stream)
    cluster.create_topic(topic, 1)
    send(cluster, AWAY, topic, count)
    if fails:
        assert [(queue_id.broker_name, last) for _, queue_id, _, last in stream.error().ranges] == [(AWAY, 3)]
    else:
        stream.until({STAYS: 4, AWAY: count})
        assert any(AWAY in record.getMessage() for record in caplog.records if record.name.startswith(LOSSES))
    stream.reader.stop()


@pytest.mark.parametrize("fails", [True, False], ids=["fails", "reports"])
@pytest.mark.parametrize("brokers", [(AWAY,), (STAYS, AWAY)], ids=["at one broker", "at all brokers"])
def test_a_topic_that_is_deleted_at_a_broker_is_lost_there(
    cluster: RocketmqCluster, new_name: Any, caplog: pytest.LogCaptureFixture, fails: bool, brokers: tuple[str, ...]
) -> None:
    """The broker says so itself. Nobody knows what was unread there, so it does not matter that all was read."""
    topic = cluster.create_topic(new_name("Deleted"), 1)
    stream = read_stream(cluster, topic, fails)
    for name in brokers:
        with cluster.connect(name) as broker:
            assert broker.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic}).code == 0
    if fails:
        error = stream.error()
        assert "topics were deleted that the stream reads" in str(error)
        assert {queue_id.broker_name for _, queue_id, *_ in error.ranges} <= set(brokers)
    elif len(brokers) == 1:
        send(cluster, STAYS, topic, 1, first=3)
        stream.until({STAYS: 4})
        (told,) = [record.getMessage() for record in caplog.records if record.name == LOSSES]
        assert AWAY in told and "deleted topic" in told
    else:
        stream.until({})
        told = " ".join(record.getMessage() for record in caplog.records if record.name == LOSSES)
        assert STAYS in told and AWAY in told
    stream.reader.stop()


def test_a_broker_that_is_back_without_the_topic_has_lost_it(cluster: RocketmqCluster, new_name: Any) -> None:
    """Another disk, on which nobody has made the topic: its queues counted as closed, without a word."""
    topic = cluster.create_topic(new_name("Forgotten"), 1)
    stream = read_stream(cluster, topic, True)
    come_back_with_another_disk(stream)
    assert [(queue_id.broker_name, start) for _, queue_id, start, _ in stream.error().ranges] == [(AWAY, 3)]
    stream.reader.stop()
