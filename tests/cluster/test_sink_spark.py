"""`format("rmq")` writes to brokers of released versions, also by tasks that fail and in batches that come again."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers.cluster.brokers import RocketmqCluster
from helpers.cluster.waiting import until
from pyspark_rmq.access import cluster_pool
from pyspark_rmq.query.foreach_batch import map_in_arrow
from rmq_store.protocol.messages import MessageQueue
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.cluster.offsets import queue_ranges
from rmq_store.remoting.transport.settings import ClusterSettings

from ..connector.conftest import spark

__all__ = ["spark"]

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
NewName = Callable[[str], str]

ROWS = 300
BODY_BYTES = 20_000  # so that chunks are sent while a task still has rows


@pytest.fixture(autouse=True)
def _connections_end() -> Iterator[None]:
    yield
    cluster_pool.close_unused()


def with_bodies(frame: Any) -> Any:
    return frame.selectExpr(f"lpad(cast(id % {ROWS // 2} as string), {BODY_BYTES}, '0') as body")


def failing_once(flag: Path) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """The first task that has passed on some rows fails; all others, and its repetition, do not."""

    def pass_on(batches: Iterator[Any]) -> Iterator[Any]:
        for number, batch in enumerate(batches):
            if number == 2 and not flag.exists():
                flag.touch()
                time.sleep(3)  # the sink has what came before
                raise RuntimeError("this attempt ends here")
            yield batch

    return pass_on


def numbers_of(cluster: RocketmqCluster, spark: Any, topic: str, least: int) -> Counter[int]:
    """How often each row is in the topic."""
    with Cluster(ClusterSettings(name_servers=cluster.name_servers)) as ours:
        queues = [MessageQueue(topic, "broker-a", number) for number in range(4)]
        until(lambda: sum(one.max_offset for one in queue_ranges(ours, queues).values()) >= least, "too few rows")
    frame = spark.read.format("rmq").option("nameServer", cluster.name_server).option("subscribe", topic).load()
    return Counter(int(row.number) for row in frame.selectExpr("cast(cast(body as string) as int) number").collect())


EXPECTED = Counter(number % (ROWS // 2) for number in range(ROWS))


def write(frame: Any, cluster: RocketmqCluster, topic: str, **options: object) -> None:
    writer = frame.write.format("rmq").option("nameServer", cluster.name_server).option("topic", topic)
    for name, value in ({"settleTime": "1200ms"} | options).items():
        if value is not None:
            writer = writer.option(name, value)
    writer.mode("append").save()


@pytest.fixture
def small_batches(spark: Any) -> Iterator[None]:
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 40)
    yield
    spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


@pytest.mark.slow
@pytest.mark.usefixtures("small_batches")
def test_a_task_that_fails_and_runs_again_stores_each_row_once(
    spark: Any, cluster: RocketmqCluster, new_name: NewName, tmp_path: Path
) -> None:
    frame = with_bodies(spark.range(0, ROWS, 1, 2)).repartition(2)
    topic = new_name("Failing")
    failing = map_in_arrow(frame, failing_once(tmp_path / "first"), "body string")
    write(failing, cluster, topic, txnAppId="bills", txnVersion=1)
    assert numbers_of(cluster, spark, topic, ROWS) == EXPECTED
    write(frame, cluster, topic, txnAppId="bills", txnVersion=1)  # the job runs again
    assert numbers_of(cluster, spark, topic, ROWS) == EXPECTED
    write(frame, cluster, topic, txnAppId="bills", txnVersion=2)
    assert numbers_of(cluster, spark, topic, 2 * ROWS) == EXPECTED + EXPECTED


@pytest.mark.slow
@pytest.mark.usefixtures("small_batches")
def test_without_the_check_such_a_task_stores_rows_twice(
    spark: Any, cluster: RocketmqCluster, new_name: NewName, tmp_path: Path
) -> None:
    topic = new_name("FailingTwice")
    frame = map_in_arrow(with_bodies(spark.range(0, ROWS, 1, 2)), failing_once(tmp_path / "first"), "body string")
    write(frame, cluster, topic, settleTime=None)
    assert sum(numbers_of(cluster, spark, topic, ROWS + 1).values()) > ROWS


@pytest.mark.usefixtures("small_batches")
def test_a_stream_repeats_a_batch_behind_a_shuffle_and_stores_each_row_once(
    spark: Any, cluster: RocketmqCluster, new_name: NewName, tmp_path: Path
) -> None:
    topic = new_name("Stream")
    spark.range(0, ROWS, 1, 4).write.parquet(str(tmp_path / "in"))
    source = spark.readStream.schema("id long").parquet(str(tmp_path / "in"))
    rows = with_bodies(source.repartition(3, "id"))

    def run(frame: Any) -> Any:
        writer = frame.writeStream.format("rmq").option("nameServer", cluster.name_server).option("topic", topic)
        writer = writer.option("settleTime", "1200ms").option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination(300)
        return query

    run(map_in_arrow(rows, failing_once(tmp_path / "first"), "body string"))
    assert numbers_of(cluster, spark, topic, ROWS) == EXPECTED
    for path in (tmp_path / "checkpoint" / "commits").iterdir():  # all sent, and not in Spark's log
        if path.name.strip(".").startswith("0"):
            path.unlink()
    run(rows)
    assert numbers_of(cluster, spark, topic, ROWS) == EXPECTED


@pytest.mark.slow
@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("is_once", [True, False])
def test_a_batch_of_foreach_batch_that_comes_again_is_stored_once_with_txn_version(
    spark: Any, cluster: RocketmqCluster, new_name: NewName, tmp_path: Path, is_once: bool
) -> None:
    topic = new_name("ForeachBatch")
    for part in range(3):
        spark.range(part * ROWS // 3, (part + 1) * ROWS // 3, 1, 2).write.mode("append").parquet(str(tmp_path / "in"))

    def bills(batch: Any, number: int) -> None:
        given = {"txnAppId": str(tmp_path), "txnVersion": number} if is_once else {"settleTime": None}
        # Another order of rows, and other tasks for them, in each attempt: the number of partitions is the same.
        write(with_bodies(batch.repartition(2, "id")).sortWithinPartitions("body"), cluster, topic, **given)
        if number == 1 and not (tmp_path / "failed").exists():
            (tmp_path / "failed").touch()
            raise RuntimeError("all is stored, and Spark does not know")

    def run() -> Any:
        source = spark.readStream.schema("id long").option("maxFilesPerTrigger", 2).parquet(str(tmp_path / "in"))
        writer = source.writeStream.foreachBatch(bills).option("checkpointLocation", str(tmp_path / "checkpoint"))
        return writer.trigger(availableNow=True).start()

    with pytest.raises(Exception, match="all is stored"):
        run().awaitTermination(300)
    run().awaitTermination(300)
    found = numbers_of(cluster, spark, topic, ROWS)
    if is_once:
        assert found == EXPECTED
    else:
        assert found.total() == ROWS + ROWS // 3
