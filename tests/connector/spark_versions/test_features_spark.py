"""One test for each feature, over the Spark that is installed: `make spark-versions` runs them on the newest 4.0, 4.1,
4.2 and 4.3. `spark_api` tells the tests what a Spark lacks, never the number of its version.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

import pyspark_rmq
from pyspark_rmq.access.spark_api import HAS_PUSHDOWN, TELLS_STARTS
from rmq_store import Store
from rmq_store.reliable import Tables, open_engine
from rmq_store.testing import RmqTestBroker

from ..conftest import ROOT, worker_environment
from ..spark_lacks import needs_spark

Make = Callable[..., Any]
GROUP = "cg"

pytestmark = [pytest.mark.spark, pytest.mark.spark_versions, pytest.mark.timeout(1200)]


def stream(spark: Any, path: Path, **options: str) -> Any:
    given = {"path": str(path), "subscribe": "Orders", "group": GROUP, "startingOffsets": "earliest"} | options
    return spark.readStream.format("rmq").options(**given).load()


def into_bills(rows: Any, path: Path, checkpoint: Path) -> Any:
    sink = rows.select("keys", "body").writeStream.format("rmq").options(path=str(path), topic="Bills")
    return sink.option("checkpointLocation", str(checkpoint))


def run_now(query: Any) -> Any:
    running = query.trigger(availableNow=True).start()
    running.awaitTermination()
    return running


def committed(path: Path, topic: str = "Orders") -> int:
    with Store.open(path, read_only=True) as store:
        return sum(offset for (name, _), offset in store.committed_offsets(GROUP).items() if name == topic)


def orders(count: int) -> list[str]:
    return sorted(f"Orders-{number}" for number in range(count))


def forget_commit(checkpoint: Path, number: int) -> None:
    """As if the driver had died before Spark noted a batch."""
    (checkpoint / "commits" / str(number)).unlink()
    (checkpoint / "commits" / f".{number}.crc").unlink(missing_ok=True)


def wait_for(condition: Callable[[], bool], timeout_s: float = 240) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "nothing happened in time"
        time.sleep(0.05)


def test_batches_are_read_written_and_looked_up(spark: Any, make_store: Make, bodies: Make) -> None:
    path = make_store(Orders=40)
    source = spark.read.format("rmq").options(path=str(path), subscribe="Orders")
    assert source.load().count() == 40
    assert source.option("key", "K7").load().collect()[0].body == b"Orders-7"
    row = source.load().selectExpr("storeTimestamp", "properties", "queueOffset").first()
    assert row.storeTimestamp.year > 2000
    rows = spark.createDataFrame([("a", "x"), ("b", "y")], "keys string, body string")
    for _ in range(2):
        write = rows.write.format("rmq").options(path=str(path), topic="Bills", txnAppId="bills", txnVersion=1)
        write.mode("append").save()
    assert bodies(path, "Bills") == ["x", "y"]


def test_filters_are_pushed_or_refused_by_name(spark: Any, make_store: Make) -> None:
    path = make_store(Orders=40)
    source = spark.read.format("rmq").options(path=str(path), subscribe="Orders", filterPushdown="true")
    if not HAS_PUSHDOWN:
        with pytest.raises(Exception, match="option filterPushdown: this Spark pushes no filters"):
            source.load()
        return
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        assert source.load().where("keys = 'K7'").count() == 1
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_an_option_that_no_stream_has_is_the_querys_error(spark: Any, make_store: Make, tmp_path: Path) -> None:
    rows = stream(spark, make_store(Orders=1), key="K7")
    with pytest.raises(Exception, match="option key is not possible for a stream read"):
        run_now(rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint")))


def test_a_stream_goes_on_repeats_and_commits_for_its_group(
    spark: Any, make_store: Make, add_messages: Make, bodies: Make, tmp_path: Path
) -> None:
    """A run of a Spark that reads one batch a run repeats the batch, and the next one goes on."""
    path, checkpoint = make_store(Orders=100), tmp_path / "checkpoint"
    run_now(into_bills(stream(spark, path), path, checkpoint))
    assert bodies(path, "Bills") == orders(100)
    if not TELLS_STARTS:
        assert pyspark_rmq.commit_groups(str(checkpoint)) == [GROUP]
    assert committed(path) == 100
    forget_commit(checkpoint, 0)
    add_messages(path, "Orders", 100, 140)
    if not TELLS_STARTS:
        assert pyspark_rmq.commit_groups(str(checkpoint)) == []
        run_now(into_bills(stream(spark, path), path, checkpoint))
        assert bodies(path, "Bills") == orders(100)
    run_now(into_bills(stream(spark, path), path, checkpoint))
    assert bodies(path, "Bills") == orders(140)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_driver_that_is_killed_beside_the_sinks_commit_loses_and_doubles_nothing(
    when: str, spark: Any, make_store: Make, add_messages: Make, bodies: Make, tmp_path: Path
) -> None:
    path, checkpoint = make_store(Orders=60), tmp_path / "checkpoint"
    with Store.open(path) as store:
        store.create_topic("Bills", 4)
    program = ROOT / "tests" / "connector" / "workers" / "killed_sink.py"
    done = subprocess.run(
        [sys.executable, str(program), str(path), str(checkpoint), when],
        env=os.environ | worker_environment(), start_new_session=True, capture_output=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == -9, done.stderr[-2000:]
    assert bodies(path, "Bills") == (orders(60) if when == "after" else [])
    assert not list((checkpoint / "commits").glob("[0-9]*"))
    if not TELLS_STARTS:
        assert pyspark_rmq.commit_groups(str(checkpoint)) == []
    assert committed(path) == 0
    add_messages(path, "Orders", 60, 80)
    for _ in range(1 if TELLS_STARTS else 2):
        rows = stream(spark, path, startingOffsets="latest")
        run_now(into_bills(rows, path, checkpoint))
    assert bodies(path, "Bills") == orders(80)


@pytest.mark.slow
def test_a_limit_holds_for_each_batch_of_processing_time(
    spark: Any, make_store: Make, bodies: Make, tmp_path: Path
) -> None:
    path = make_store(Orders=100)
    query = into_bills(stream(spark, path, maxOffsetsPerTrigger="60"), path, tmp_path / "checkpoint").start()
    try:
        query.processAllAvailable()
        assert bodies(path, "Bills") == orders(100)
        wait_for(lambda: committed(path) == 100)
        counts = [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]
    finally:
        query.stop()
    assert counts == [60, 40]


@pytest.mark.slow
@needs_spark("admission control", lacks=True)
def test_with_sparks_wrapper_a_run_reads_everything_and_a_limit_is_refused(
    spark: Any, make_store: Make, add_messages: Make, bodies: Make, tmp_path: Path
) -> None:
    path, checkpoint = make_store(Orders=50), tmp_path / "checkpoint"
    wrapper = "spark.sql.streaming.triggerAvailableNowWrapper.enabled"
    spark.conf.set(wrapper, "true")
    try:
        for count in (50, 80):
            run_now(into_bills(stream(spark, path), path, checkpoint))
            assert bodies(path, "Bills") == orders(count)
            assert committed(path) == count
            add_messages(path, "Orders", count, 80)
        last = max(int(entry.name) for entry in (checkpoint / "offsets").glob("[0-9]*"))
        with pytest.raises(Exception, match="maxOffsetsPerTrigger with availableNow"):
            run_now(into_bills(stream(spark, path, maxOffsetsPerTrigger="5"), path, checkpoint))
        assert last == max(int(entry.name) for entry in (checkpoint / "offsets").glob("[0-9]*"))
        with pytest.raises(Exception, match="maxOffsetsPerTrigger with availableNow"):
            run_now(into_bills(stream(spark, path, maxOffsetsPerTrigger="5", group="new"), path, tmp_path / "other"))
        assert not list((tmp_path / "other" / "offsets").glob("[0-9]*"))
    finally:
        spark.conf.unset(wrapper)


@pytest.mark.slow
def test_the_lag_of_a_stream_is_known_and_its_group_is_committed_at_its_end(
    spark: Any, make_store: Make, tmp_path: Path
) -> None:
    path = make_store(Orders=30)
    lag = pyspark_rmq.LagListener()
    pyspark_rmq.register(spark)  # adds a GroupListener where the source cannot commit at the end
    spark.streams.addListener(lag)
    try:
        run_now(into_bills(stream(spark, path), path, tmp_path / "checkpoint"))
        wait_for(lambda: bool(lag.sources()) and committed(path) == 30)
        (row,) = lag.sources()
        assert (row.path, row.group, row.messages, row.lag) == (str(path), GROUP, 30, 0)
    finally:
        spark.streams.removeListener(lag)
        lag.close()


def fail_at_seven(row: Any) -> str:
    if row.body.endswith(b"7"):
        raise ValueError("seven")
    return pyspark_rmq.SUCCESS


@pytest.mark.slow
def test_a_handler_fails_and_its_message_is_dead_and_is_redriven(spark: Any, make_store: Make, tmp_path: Path) -> None:
    path = make_store(Orders=10)
    query = pyspark_rmq.consume(stream(spark, path), fail_at_seven, group=GROUP, path=str(path), max_reconsume_times=0)
    run_now(query.option("checkpointLocation", str(tmp_path / "checkpoint")))
    dead = spark.read.format("rmq").options(path=str(path), dlq=GROUP).load()
    assert [row.body for row in dead.collect()] == [b"Orders-7"]
    moved = pyspark_rmq.redrive(dead, path=str(path), group=GROUP)
    assert moved.count() == 1
    with Store.open(path, read_only=True) as store:
        assert sum(limits.max_offset for limits in store.queue_ranges(f"%RETRY%{GROUP}").values()) == 1


@pytest.mark.slow
def test_rows_are_written_to_a_database_once(
    spark: Any, make_store: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, url = make_store(Orders=20), f"sqlite:///{tmp_path}/orders.db"
    engine = open_engine(url)
    tables = Tables()
    sa.Table("orders", tables.metadata, sa.Column("body", sa.LargeBinary(50)), sa.Column("keys", sa.String(50)))
    tables.metadata.create_all(engine)
    monkeypatch.setenv("ORDERS_DB", url)
    checkpoint = tmp_path / "checkpoint"
    for again in (True, False):
        writer = pyspark_rmq.write_once(stream(spark, path), "env:ORDERS_DB", group=GROUP, table="orders")
        run_now(writer.option("checkpointLocation", str(checkpoint)))
        if again:
            forget_commit(checkpoint, 0)
    with engine.connect() as connection:
        found = [bytes(row[0]).decode() for row in connection.execute(sa.text("SELECT body FROM orders"))]
    engine.dispose()
    assert sorted(found) == orders(20)


@pytest.mark.slow
def test_the_same_over_a_cluster(spark: Any, rmq_broker: RmqTestBroker, tmp_path: Path) -> None:
    """A served store answers as a name server and a broker do."""
    rmq_broker.send("Orders", [f"Orders-{number}" for number in range(30)])
    cluster = {"nameServer": rmq_broker.address}
    assert spark.read.format("rmq").options(subscribe="Orders", **cluster).load().count() == 30
    checkpoint = tmp_path / "checkpoint"
    given = {"subscribe": "Orders", "group": GROUP, "startingOffsets": "earliest", **cluster}
    for count in (30, 40):
        rows = spark.readStream.format("rmq").options(**given).load().select("keys", "body")
        query = rows.writeStream.format("rmq").options(topic="Bills", checkpointLocation=str(checkpoint), **cluster)
        run_now(query)
        wait_for(lambda expected=count: rmq_broker.count("Bills") == expected)
        if not TELLS_STARTS:
            assert pyspark_rmq.commit_groups(str(checkpoint)) == [GROUP]
        offsets = rmq_broker.store.committed_offsets(GROUP)
        assert sum(offset for (topic, _), offset in offsets.items() if topic == "Orders") == count
        rmq_broker.send("Orders", [f"Orders-{number}" for number in range(count, 40)])
