"""The source in Spark: schemas, options, streams with groups, limits."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from contextlib import closing, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from pyspark_rmq.access.spark_api import TELLS_STARTS, offset_of
from rmq_store import LeaseHeldError, Store
from rmq_store.client import (
    ConsumeConcurrentlyStatus,
    LitePullConsumer,
    MessageListenerConcurrently,
    PushConsumer,
    PushConsumerConfig,
    SimpleConsumer,
)

from ..spark_lacks import run_in_batches

pytestmark = pytest.mark.spark

Make = Callable[..., Any]


def batch(spark: Any, path: Path, **options: str) -> Any:
    chosen = {"path": str(path)} | ({} if {"assign", "subscribePattern"} & options.keys() else {"subscribe": "Orders"})
    return spark.read.format("rmq").options(**(chosen | options))


def stream(spark: Any, path: Path, **options: str) -> Any:
    chosen = {"path": str(path)} | ({} if {"assign", "subscribePattern"} & options.keys() else {"subscribe": "Orders"})
    return spark.readStream.format("rmq").options(**(chosen | options)).load()


def committed(path: Path, group: str) -> dict[int, int]:
    with Store.open(path, read_only=True) as store:
        return {queue_id: offset for (_, queue_id), offset in sorted(store.committed_offsets(group).items())}


def ends(path: Path, topic: str = "Orders") -> dict[int, int]:
    with Store.open(path, read_only=True) as store:
        return {queue_id: limits.max_offset for queue_id, limits in store.queue_ranges(topic).items()}


def collect(frame: Any, checkpoint: Path, into: list[str], **writer: str) -> Any:
    """Start a query that adds all bodies to `into`, batch by batch."""

    def add(rows: Any, batch_id: int) -> None:
        into.extend(bytes(row["body"]).decode() for row in rows.select("body").collect())

    return frame.writeStream.foreachBatch(add).option("checkpointLocation", str(checkpoint)).options(**writer)


def test_a_user_schema_selects_columns_and_their_order(spark: Any, make_store: Make) -> None:
    path = make_store(Orders=10)
    frame = batch(spark, path).schema("body binary, topic string").load()
    assert frame.columns == ["body", "topic"]
    assert sorted(bytes(row["body"]).decode() for row in frame.collect()) == sorted(f"Orders-{n}" for n in range(10))
    narrow = batch(spark, path).schema("properties map<string,string>, tags string, storeTimestamp timestamp").load()
    assert {row["tags"] for row in narrow.collect()} == {"TagA", "TagB"}


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("payload binary", "the source has no column 'payload'; it has topic string, queueId int"),
        ("queueid int", "did you mean 'queueId'"),
        ("queueId bigint", "column 'queueId' of the source is int, not bigint"),
    ],
)
def test_a_wrong_schema_is_refused_with_the_right_columns(
    spark: Any, make_store: Make, schema: str, message: str
) -> None:
    path = make_store(Orders=1)
    with pytest.raises(Exception, match="UsageError") as raised:
        batch(spark, path).schema(schema).load().collect()
    assert message in str(raised.value)
    with pytest.raises(Exception, match="UsageError") as raised:
        query = spark.readStream.format("rmq").option("path", str(path)).option("subscribe", "Orders").schema(schema)
        run_in_batches(query.load().writeStream.format("noop"))
    assert message in str(raised.value)


def test_a_wrong_option_is_refused_when_the_source_is_made(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="did you mean 'startingOffsets'"):
        batch(spark, tmp_path, startingOffset="earliest").load()
    with pytest.raises(Exception, match="unknown option 'subscibe'"):
        spark.readStream.format("rmq").option("path", str(tmp_path)).option("subscibe", "T").load()


@pytest.mark.long
def test_wrong_names_give_typed_errors_that_say_where(spark: Any, make_store: Make, tmp_path: Path) -> None:
    path = make_store(Orders=1)
    with pytest.raises(Exception, match=r"UnknownTopicError: .*Nope"):
        batch(spark, path, subscribe="Nope").load().collect()
    with pytest.raises(Exception, match=r"NotAStoreError: .*nowhere"):
        batch(spark, tmp_path / "nowhere").load().collect()
    with pytest.raises(Exception, match=r"has no queue 9 to read; it has \[0, 1, 2, 3\]"):
        batch(spark, path, assign='{"Orders":[9]}').load().collect()
    with pytest.raises(Exception, match=r"OffsetOutOfRange|lies behind the end of queue Orders-0"):
        batch(spark, path, assign='{"Orders":[0]}', startingOffsets='{"Orders":{"0":77}}').load().collect()


def test_min_partitions_cut_queues_and_lose_nothing(spark: Any, make_store: Make) -> None:
    path = make_store(Orders=101)
    frame = batch(spark, path, minPartitions="9").load()
    assert frame.rdd.getNumPartitions() == 9
    assert frame.select("queueId", "queueOffset").distinct().count() == 101
    assert batch(spark, path).load().rdd.getNumPartitions() == 4


@pytest.mark.long
@pytest.mark.statement("G18")
def test_a_stream_commits_its_group_also_for_the_last_batch_of_available_now(
    spark: Any, make_store: Make, add_messages: Make, tmp_path: Path
) -> None:
    path, seen = make_store(Orders=50), []
    frame = stream(spark, path, group="cg", maxOffsetsPerTrigger="20")
    query = run_in_batches(collect(frame, tmp_path / "c", seen))
    assert committed(path, "cg") == ends(path)  # at once, without another run
    assert sorted(seen) == sorted(f"Orders-{n}" for n in range(50))
    assert [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]] == [20, 20, 10]
    # a second run reads nothing
    run_in_batches(collect(frame, tmp_path / "c", seen))
    assert len(seen) == 50
    # a new query of the group, without the checkpoint, goes on where the group is
    add_messages(path, "Orders", 50, 53)
    fresh: list[str] = []
    run_in_batches(collect(frame, tmp_path / "c2", fresh))
    assert sorted(fresh) == ["Orders-50", "Orders-51", "Orders-52"]
    assert committed(path, "cg") == ends(path)


def test_with_trigger_once_the_next_run_commits_the_batch(spark: Any, make_store: Make, tmp_path: Path) -> None:
    path = make_store(Orders=8)
    query = stream(spark, path, group="cg").writeStream.format("noop")
    query = query.option("checkpointLocation", str(tmp_path / "c")).trigger(once=True)
    query.start().awaitTermination()
    assert sum(committed(path, "cg").values()) == 0  # docs/guarantees.md says so
    query.start().awaitTermination()
    assert committed(path, "cg") == ends(path)


@pytest.mark.long
def test_a_failing_sink_does_not_move_the_group(spark: Any, make_store: Make, tmp_path: Path) -> None:
    path = make_store(Orders=40)
    seen: list[int] = []

    def fail_at_second(rows: Any, batch_id: int) -> None:
        seen.append(rows.count())
        if batch_id == 1 and len(seen) == 2:
            raise RuntimeError("this sink fails")

    frame = stream(spark, path, group="cg", maxOffsetsPerTrigger="16")
    query = frame.writeStream.foreachBatch(fail_at_second).option("checkpointLocation", str(tmp_path / "c"))
    with pytest.raises(Exception, match="this sink fails"):
        run_in_batches(query)
    assert sum(committed(path, "cg").values()) == 16  # what the first batch had, no more
    run_in_batches(query)
    assert seen == [16, 16, 16, 8]
    assert committed(path, "cg") == ends(path)


@pytest.mark.long
@pytest.mark.statement("G08", "G18")
def test_two_groups_read_independently_and_a_second_query_of_one_is_refused(
    spark: Any, make_store: Make, tmp_path: Path
) -> None:
    path, first, second = make_store(Orders=30), [], []
    running = collect(stream(spark, path, group="cg_a", consumerName="reports"), tmp_path / "a", first).start()
    driver = spark._jvm.java.lang.ProcessHandle.current().pid()
    try:
        wait_for(lambda: len(first) == 30)
        run_in_batches(collect(stream(spark, path, group="cg_b"), tmp_path / "b", second))
        assert sorted(second) == sorted(first)
        with pytest.raises(Exception, match=rf"LeaseHeldError.*cg_a.*Orders.*reports on .* driver process {driver}' "):
            run_in_batches(collect(stream(spark, path, group="cg_a"), tmp_path / "again", []))
        # looking on without committing is allowed
        watched: list[str] = []
        run_in_batches(collect(stream(spark, path, group="cg_a", commitOffsets="false"), tmp_path / "w", watched))
        assert watched == []
        # consumers of the group are refused, too; others, and those that broadcast, are not
        with Store.open(path) as store:
            name = r"'Orders' is being read by 'reports on .*' \(process \d+, since "
            for group in ("cg_a", "cg_c"):
                for start in (_push, _lite, _simple):
                    refused = pytest.raises(LeaseHeldError, match=name) if group == "cg_a" else nullcontext()
                    with refused, closing(start(store, group)):
                        pass
            settings = {"message_model": "BROADCASTING", "offset_store_directory": str(tmp_path / "offsets")}
            with closing(_push(store, "cg_a", **settings)):
                pass
        assert running.isActive
    finally:
        running.stop()
    # as soon as it is stopped, the next one may take over
    run_in_batches(collect(stream(spark, path, group="cg_a"), tmp_path / "next", first))
    assert len(first) == 30
    # and a query is refused while consumers of its group share the queues
    with Store.open(path) as store, closing(_push(store, "cg_a")):
        with pytest.raises(Exception, match=rf"LeaseHeldError.*cg_a.*Orders.* \(process {os.getpid()}, since"):
            run_in_batches(collect(stream(spark, path, group="cg_a"), tmp_path / "next", []))
        run_in_batches(collect(stream(spark, path, group="cg_a", commitOffsets="false"), tmp_path / "w", watched))
    assert watched == []


def _push(store: Store, group: str, **settings: Any) -> Any:
    consumer = PushConsumer(group, store, PushConsumerConfig(**settings))
    consumer.subscribe("Orders")
    done = ConsumeConcurrentlyStatus.CONSUME_SUCCESS
    consumer.register_message_listener(MessageListenerConcurrently(lambda messages, context: done))
    consumer.start(threads=False)
    return SimpleNamespace(close=consumer.shutdown)


def _lite(store: Store, group: str) -> Any:
    consumer = LitePullConsumer(group, store)
    consumer.subscribe("Orders")
    consumer.start(threads=False)
    return SimpleNamespace(close=consumer.shutdown)


def _simple(store: Store, group: str) -> Any:
    return SimpleConsumer(group, store, {"Orders": "*"})


def test_a_running_stream_sees_new_messages_and_new_topics(
    spark: Any, make_store: Make, add_messages: Make, tmp_path: Path
) -> None:
    path, seen = make_store(Orders=3), []
    running = collect(stream(spark, path, subscribePattern="Ord.*"), tmp_path / "c", seen).start()
    try:
        wait_for(lambda: running.lastProgress is not None)
        add_messages(path, "Orders", 3, 5)
        wait_for(lambda: len(seen) == 2)
        with Store.open(path) as store:
            store.create_topic("Ordinary", 2)
            store.append(pa.record_batch({"body": pa.array([b"first of a new topic"])}), "Ordinary")
        wait_for(lambda: len(seen) == 3)
        assert sorted(seen) == ["Orders-3", "Orders-4", "first of a new topic"]
        wait_for(lambda: running.lastProgress["numInputRows"] == 0)
        source = running.lastProgress.sources[0]
        latest, end = (offset_of(source, name) for name in ("latestOffset", "endOffset"))
        assert sum(end["topics"]["Orders"].values()) == 5
        assert latest["topics"] == end["topics"] or not TELLS_STARTS  # no lag, where Spark asks the source for it
    finally:
        running.stop()


@pytest.mark.long
def test_limits_hold_in_bytes_too(spark: Any, make_store: Make, tmp_path: Path) -> None:
    path, seen = make_store(Orders=60), []
    with Store.open(path, read_only=True) as store:
        total = sum(
            store.bytes_between("Orders", queue, *limits) for queue, limits in store.queue_ranges("Orders").items()
        )
    limit = total // 5
    frame = stream(spark, path, startingOffsets="earliest", maxBytesPerTrigger=str(limit), maxOffsetsPerTrigger="50")
    query = run_in_batches(collect(frame, tmp_path / "c", seen))
    batches = [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]
    assert len(seen) == 60 and len(batches) >= 5
    assert max(batches) <= -(-60 * limit // total) + 1


def test_tags_advance_over_what_they_filter(spark: Any, make_store: Make, tmp_path: Path) -> None:
    path, seen = make_store(Orders=20), []
    run_in_batches(collect(stream(spark, path, group="cg", tags="TagB"), tmp_path / "c", seen))
    assert sorted(seen) == sorted(f"Orders-{number}" for number in range(1, 20, 2))
    assert committed(path, "cg") == ends(path)


@pytest.mark.long
def test_a_checkpoint_of_another_store_or_of_a_lost_tail_is_refused(
    spark: Any, make_store: Make, add_messages: Make, tmp_path: Path
) -> None:
    path, seen = make_store(Orders=20), []
    backup = tmp_path / "backup"
    shutil.copytree(path, backup)
    add_messages(path, "Orders", 20, 30)
    frame = stream(spark, path, startingOffsets="earliest")
    run_in_batches(collect(frame, tmp_path / "c", seen))
    assert len(seen) == 30
    # the store comes back from a backup that is older than the checkpoint
    shutil.rmtree(path)
    shutil.copytree(backup, path)
    gone = r"DataLossError: the stream has read Orders-0 \[.* do not exist any more; the store"
    with pytest.raises(Exception, match=gone):
        run_in_batches(collect(frame, tmp_path / "c", seen))
    # and is written to again, so that the ends alone look right
    with Store.open(path) as store:
        store.append(pa.record_batch({"body": pa.array([b"another message, of another size"] * 40)}), "Orders")
    changed = r"DataLossError: the stream has .*; message \d+ of queue Orders-\d was at commit-log"
    with pytest.raises(Exception, match=changed):
        run_in_batches(collect(frame, tmp_path / "c", seen))
    assert len(seen) == 30
    shutil.rmtree(path)
    make_store(Orders=40)
    with pytest.raises(Exception, match="UsageError: the checkpoint belongs to store"):
        run_in_batches(collect(frame, tmp_path / "c", seen))


def test_a_first_batch_that_failed_is_repeated_and_what_came_meanwhile_follows(
    spark: Any, make_store: Make, add_messages: Make, tmp_path: Path
) -> None:
    path, seen = make_store(Orders=5), []
    failing = [True]

    def add(rows: Any, batch_id: int) -> None:
        if failing:
            raise RuntimeError("this sink fails")
        seen.extend(bytes(row["body"]).decode() for row in rows.select("body").collect())

    # "latest", without a group: asked again after the restart, it is another place
    query = stream(spark, path).writeStream.foreachBatch(add).option("checkpointLocation", str(tmp_path / "c"))
    with pytest.raises(Exception, match="this sink fails"):
        run_in_batches(query)
    add_messages(path, "Orders", 5, 9)
    failing.clear()
    run_in_batches(query)
    assert sorted(seen) == [f"Orders-{number}" for number in range(5, 9)]


def wait_for(condition: Callable[[], bool], timeout_s: float = 120) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "nothing happened in time"
        time.sleep(0.1)
