"""`format("rmq")` reads brokers of released versions: batch and stream, through Spark."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers.cluster import requests
from helpers.cluster.brokers import RocketmqCluster
from helpers.cluster.waiting import until
from pyspark_rmq.access import cluster_pool
from rmq_store.format.frames.compression import compress

from ..connector.conftest import spark

__all__ = ["spark"]

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
NewName = Callable[[str], str]


@pytest.fixture(autouse=True)
def _connections_end() -> Iterator[None]:
    yield
    cluster_pool.close_unused()


def sent(cluster: RocketmqCluster, topic: str, queue_id: int, first: int, last: int, **properties: str) -> None:
    """Messages `first` to `last`, all of which the broker has when this returns."""
    with cluster.connect() as broker:
        before = requests.max_offset(broker, topic, queue_id)
        for number in range(first, last):
            own = {"UNIQ_KEY": f"{number:032X}", "KEYS": f"K{number} all", "TAGS": f"Tag{number % 2}"} | properties
            answer = requests.send(broker, topic, queue_id, b"body %d" % number, own)
            assert answer.code == 0, answer
        until(lambda: requests.max_offset(broker, topic, queue_id) == before + last - first, "the queue ends early")


def read(spark: Any, cluster: RocketmqCluster, **options: object) -> Any:
    reader = spark.read.format("rmq").option("nameServer", cluster.name_server)
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.load()


def stream(spark: Any, cluster: RocketmqCluster, place: Path, **options: object) -> Any:
    """Run what is there now, and return the rows that came, in the order of batches."""
    reader = spark.readStream.format("rmq").option("nameServer", cluster.name_server)
    for name, value in options.items():
        reader = reader.option(name, value)
    writer = reader.load().writeStream.format("parquet").option("path", str(place / "rows"))
    query = writer.option("checkpointLocation", str(place / "checkpoint")).trigger(availableNow=True).start()
    assert query.awaitTermination(300)
    return query


def bodies(spark: Any, place: Path) -> list[str]:
    rows = spark.read.parquet(str(place / "rows")).select("body").collect()
    return sorted((row.body.decode() for row in rows), key=lambda body: int(body.split()[1]))


def numbered(first: int, last: int) -> list[str]:
    return [f"body {number}" for number in range(first, last)]


def test_a_batch_has_every_field_of_what_was_sent(spark: Any, cluster: RocketmqCluster, new_name: NewName) -> None:
    topic = cluster.create_topic(new_name("Fields"), 2)
    packed, flags = compress(b"x" * 5000, "zlib")
    sent(cluster, topic, 0, 0, 70)
    with cluster.connect() as broker:
        properties = {"UNIQ_KEY": "U", "a": "1", "TAGS": "TagC"}
        answer = requests.send(broker, topic, 1, packed, properties, sys_flag=int(flags))
        assert answer.code == 0
        until(lambda: requests.max_offset(broker, topic, 1) == 1, "the queue ends early")
        frame = requests.frames(requests.pull(broker, topic, 0, 3, count=1))[0]
    rows = read(spark, cluster, subscribe=topic).orderBy("queueId", "queueOffset").collect()
    assert [(row.queueId, row.queueOffset) for row in rows] == [*((0, offset) for offset in range(70)), (1, 0)]
    row = rows[3].asDict()
    properties = row.pop("properties")
    times = [row.pop("bornTimestamp"), row.pop("storeTimestamp")]
    assert all(abs(moment.timestamp() - time.time()) < 300 for moment in times)
    assert row == {
        "topic": topic, "queueId": 0, "queueOffset": 3, "msgId": f"{3:032X}", "body": b"body 3", "tags": "Tag1",
        "keys": "K3 all", "reconsumeTimes": 0, "flag": 0, "sysFlag": 0, "bornHost": row["bornHost"],
        "storeHost": cluster.address(), "commitLogOffset": int.from_bytes(frame[28:36]), "brokerName": "broker-a",
    }  # fmt: skip
    assert row["bornHost"].startswith("127.0.0.1:")
    assert properties == requests.properties_of(frame) and properties["UNIQ_KEY"] == f"{3:032X}"
    assert (rows[70].body, rows[70].properties["a"]) == (b"x" * 5000, "1")
    raw = read(spark, cluster, subscribe=topic, rawBody="true", tags="TagC").collect()
    assert [bytes(row.body) for row in raw] == [packed]


def test_a_batch_starts_and_ends_where_it_is_told(spark: Any, cluster: RocketmqCluster, new_name: NewName) -> None:
    topic = cluster.create_topic(new_name("Ranges"), 2)
    sent(cluster, topic, 0, 0, 20)
    time.sleep(0.05)
    middle_ms = int(time.time() * 1000)
    time.sleep(0.05)
    sent(cluster, topic, 0, 20, 30)

    def found(**options: object) -> list[int]:
        rows = read(spark, cluster, subscribe=topic, **options).select("queueOffset").collect()
        return sorted(row.queueOffset for row in rows)

    starts = f'{{"{topic}":{{"broker-a:0":25,"1":0}}}}'
    assert found(startingOffsets=starts) == list(range(25, 30))
    assert found(startingTimestamp=middle_ms) == list(range(20, 30))
    assert found(endingTimestamp=middle_ms) == list(range(20))
    assert found(tags="Tag1", startingTimestamp=middle_ms) == [21, 23, 25, 27, 29]
    assert found(minPartitions=7) == list(range(30))


def test_look_ups_find_messages_without_a_read_of_all(spark: Any, cluster: RocketmqCluster, new_name: NewName) -> None:
    topic = cluster.create_topic(new_name("Found"), 2)
    sent(cluster, topic, 0, 0, 40)
    sent(cluster, topic, 1, 40, 80)
    with cluster.connect() as broker:
        until(lambda: requests.query(broker, topic, "K79").code == 0, "the index ends early")

    def found(**options: object) -> list[str]:
        rows = read(spark, cluster, subscribe=topic, **options).select("body").collect()
        return sorted(row.body.decode() for row in rows)

    assert found(key="K7 K79 K999") == ["body 7", "body 79"]
    assert found(uniqKey=f"{5:032X}") == ["body 5"]
    assert found(msgId=f"{6:032X}") == ["body 6"]
    assert len(found(key="all")) == 64
    some = read(spark, cluster, subscribe=topic, key="K3").select("storeHost", "commitLogOffset").first()
    host, port = some.storeHost.split(":")
    offset_id = "".join(f"{int(part):02X}" for part in host.split(".")) + f"{int(port):08X}{some.commitLogOffset:016X}"
    assert found(msgId=offset_id) == ["body 3"]


def test_a_stream_of_a_group_goes_on_after_a_restart_and_commits_what_it_has_done(
    spark: Any, cluster: RocketmqCluster, new_name: NewName, tmp_path: Path
) -> None:
    topic, group = cluster.create_topic(new_name("Stream"), 1), new_name("cg")
    sent(cluster, topic, 0, 0, 50)
    given = {"subscribe": topic, "group": group, "startingOffsets": "earliest", "maxOffsetsPerTrigger": 20}
    stream(spark, cluster, tmp_path, **given)
    assert bodies(spark, tmp_path) == numbered(0, 50)
    with cluster.connect() as broker:
        assert requests.committed(broker, group, topic).ext_fields["offset"] == "50"
    sent(cluster, topic, 0, 50, 60)
    cluster.create_topic(topic, 2)
    sent(cluster, topic, 1, 60, 65)
    stream(spark, cluster, tmp_path, **given)
    assert bodies(spark, tmp_path) == numbered(0, 65)
    with cluster.connect() as broker:
        answers = [requests.committed(broker, group, topic, number) for number in (0, 1)]
    assert [answer.ext_fields["offset"] for answer in answers] == ["60", "5"]
    # A new checkpoint: the group's offsets say where to go on.
    sent(cluster, topic, 0, 65, 70)
    stream(spark, cluster, tmp_path / "new", subscribe=topic, group=group)
    assert bodies(spark, tmp_path / "new") == numbered(65, 70)


@pytest.mark.slow
def test_a_stream_without_a_group_follows_its_checkpoint(
    spark: Any, cluster: RocketmqCluster, new_name: NewName, tmp_path: Path
) -> None:
    topic = cluster.create_topic(new_name("Plain"), 1)
    sent(cluster, topic, 0, 0, 10)
    for last in (10, 20):
        stream(spark, cluster, tmp_path, subscribe=topic, startingOffsets="earliest", tags="Tag0")
        assert bodies(spark, tmp_path) == [f"body {number}" for number in range(0, last, 2)]
        sent(cluster, topic, 0, last, last + 10)


def test_what_comes_back_to_the_group_is_a_part_of_its_stream(
    spark: Any, cluster: RocketmqCluster, new_name: NewName, tmp_path: Path
) -> None:
    topic, group = cluster.create_topic(new_name("Back"), 1), new_name("cg")
    sent(cluster, topic, 0, 0, 3)
    given = {"subscribe": topic, "group": group, "startingOffsets": "earliest"}
    stream(spark, cluster, tmp_path, **given)
    retry = cluster.create_topic(f"%RETRY%{group}", 1)
    sent(cluster, retry, 0, 3, 5, RETRY_TOPIC=topic)
    stream(spark, cluster, tmp_path, **given)
    rows = spark.read.parquet(str(tmp_path / "rows")).select("topic", "storeTopic", "body").collect()
    assert {(row.topic, row.storeTopic) for row in rows} == {(topic, topic), (topic, retry)}
    assert bodies(spark, tmp_path) == numbered(0, 5)


def test_a_group_with_a_live_member_is_refused_by_name(
    spark: Any, cluster: RocketmqCluster, new_name: NewName, tmp_path: Path
) -> None:
    topic, group = cluster.create_topic(new_name("Held"), 1), new_name("cg")
    sent(cluster, topic, 0, 0, 3)
    with cluster.connect() as broker:
        assert requests.heartbeat(broker, "10.0.0.9@java", group, topic).code == 0
        with pytest.raises(Exception, match=re.escape("10.0.0.9@java")):
            stream(spark, cluster, tmp_path, subscribe=topic, group=group)
        given = {"subscribe": topic, "group": group, "commitOffsets": "false", "startingOffsets": "earliest"}
        stream(spark, cluster, tmp_path / "beside", **given)
    assert bodies(spark, tmp_path / "beside") == numbered(0, 3)
