"""`format("rmq")` at RocketMQ 5's released proxy alone: batch and stream reads, writes, and batches that come again."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.test_proxy import Behind, behind, ends
from helpers.cluster.waiting import until
from pyspark_rmq.access import cluster_pool
from rmq_store.cluster import Cluster, ClusterSettings
from rmq_store.remoting.cluster.groups import create_group

from ..connector.conftest import spark

__all__ = ["behind", "spark"]

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]
NewName = Callable[[str], str]
RECORDS = "PYRMQ_SINK_RECORDS"


@pytest.fixture(autouse=True)
def _connections_end() -> Iterator[None]:
    yield
    cluster_pool.close_unused()


def write(frame: Any, behind: Behind, topic: str, **options: object) -> None:
    writer = frame.write.format("rmq").option("nameServer", behind.proxy.address).option("topic", topic)
    for name, value in options.items():
        writer = writer.option(name, value)
    writer.mode("append").save()


def read(spark: Any, behind: Behind, topic: str, **options: object) -> Any:
    reader = spark.read.format("rmq").option("nameServer", behind.proxy.address).option("subscribe", topic)
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.load()


def rows(spark: Any, count: int) -> Any:
    return spark.range(0, count, 1, 2).selectExpr("cast(id as string) body", "'TagA' tags", "concat('k', id) keys")


def test_batches_and_streams_work_where_an_administrator_has_made_the_sinks_topic(
    spark: Any, behind: Behind, new_name: NewName, tmp_path: Path
) -> None:
    topic, copies = behind.create_topic(new_name("Orders")), behind.create_topic(new_name("Copies"))
    group = new_name("cg")
    with pytest.raises(Exception, match=rf"topic '{RECORDS}' cannot be made here: .*with 1 queues"):
        write(rows(spark, 2), behind, topic, txnAppId="bills", txnVersion=0)
    behind.create_topic(RECORDS, 1)

    def awaited(name: str, count: int) -> None:
        with Cluster(ClusterSettings.of_text(behind.place)) as known:
            until(lambda: ends(known, name) >= count, f"{name} has too few")
            assert ends(known, name) == count

    for _ in range(2):  # the job runs again
        write(rows(spark, 300), behind, topic, txnAppId="bills", txnVersion=1, settleTime="1200ms")
        awaited(topic, 300)
    found = read(spark, behind, topic)
    assert sorted(int(row.body) for row in found.selectExpr("cast(body as string) body").collect()) == list(range(300))
    assert found.where("tags = 'TagA' and keys = 'k5'").count() == 1
    assert read(spark, behind, topic, startingTimestamp=1).count() == 300

    def run() -> None:
        source = spark.readStream.format("rmq").option("nameServer", behind.proxy.address).option("subscribe", topic)
        source = source.option("group", group).option("startingOffsets", "earliest").load().select("body", "keys")
        sink = source.writeStream.format("rmq").option("nameServer", behind.proxy.address).option("topic", copies)
        sink = sink.option("settleTime", "1200ms").option("checkpointLocation", str(tmp_path / "checkpoint"))
        assert sink.trigger(availableNow=True).start().awaitTermination(300)

    with pytest.raises(Exception, match=rf"Group {group} not exist.*create it \(rmq updateSubGroup\)"):
        run()
    shutil.rmtree(tmp_path / "checkpoint")
    with Cluster(ClusterSettings.of_text(behind.cluster.name_server)) as administrator:
        create_group(administrator, group)
    run()
    awaited(copies, 300)
    write(rows(spark, 50), behind, topic)
    awaited(topic, 350)
    run()
    awaited(copies, 350)
    for file in (tmp_path / "checkpoint" / "commits").iterdir():  # all sent, and not in Spark's log
        if file.name.strip(".").startswith("1"):
            file.unlink()
    run()
    awaited(copies, 350)
    assert read(spark, behind, topic, group=group, startingOffsets="group").count() == 0


def test_what_a_proxy_does_not_tell_is_refused_by_name(spark: Any, behind: Behind, new_name: NewName) -> None:
    topic = behind.create_topic(new_name("Orders"))
    pattern = spark.read.format("rmq").option("nameServer", behind.proxy.address).option("subscribePattern", "Ord.*")
    with pytest.raises(Exception, match=r"GET_ALL_TOPIC_LIST_FROM_NAMESERVER \(206\).*need the address of a name serv"):
        pattern.load().count()
    behind.create_topic(RECORDS, 1)
    late = spark.range(2).selectExpr("cast(id as string) body", "1 delayLevel")
    with pytest.raises(Exception, match=r"TopicMessageType validate failed.*\+message\.type=DELAY"):
        write(late, behind, topic)
