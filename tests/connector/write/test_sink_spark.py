"""The sink in Spark: what it accepts, and that every row arrives exactly once whatever fails."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmq_store import ClockFile, Store
from rmq_store.format.text.host import Host
from rmq_store.format.text.ids import offset_message_id
from rmq_store.remoting.cluster import queries
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.transport.settings import ClusterSettings
from rmq_store.server.broker_server import BrokerServer

from ..spark_lacks import run_in_batches

pytestmark = pytest.mark.spark

Make = Callable[..., Any]


def sink(frame: Any, path: Path, **options: str) -> Any:
    return frame.write.format("rmq").mode("append").option("path", str(path)).options(**options)


def read(spark: Any, path: Path, topic: str) -> Any:
    return spark.read.format("rmq").option("path", str(path)).option("subscribe", topic).load()


def stream_into(spark: Any, source: Path, target: Path, checkpoint: Path, **options: str) -> Any:
    """A query from topic Orders of one store to topic Enriched of another, ten rows a batch."""
    return (
        spark.readStream.format("rmq")
        .option("path", str(source))
        .option("subscribe", "Orders")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "10")
        .load()
        .select("body", "tags", "keys")
        .writeStream.format("rmq")
        .option("path", str(target))
        .option("topic", "Enriched")
        .option("checkpointLocation", str(checkpoint))
        .options(**options)
    )


def staged(path: Path) -> list[Path]:
    return [file for file in (path / "pyrmq" / "staging").rglob("*") if file.is_file()]


def wait_until_swept(path: Path) -> None:
    """Under ASYNC_FLUSH that goes on behind the return of a write."""
    deadline_s = time.monotonic() + 60
    while staged(path):
        assert time.monotonic() < deadline_s, staged(path)
        time.sleep(0.01)


def test_rows_become_messages(spark: Any, make_store: Make) -> None:
    path = make_store()
    frame = spark.sql("""
        select * from values
            ('Paid', 'tea', 'TagA', 'K1 K2', map('region', 'eu'), 7, timestamp '2026-01-02 03:04:05.678', 'user-1'),
            ('Paid', 'caf\u00e9', null, null, null, null, null, null)
        as t(topic, value, tags, keys, properties, flag, bornTimestamp, shardingKey)
    """)
    sink(frame, path).save()
    first, second = read(spark, path, "Paid").orderBy("tags", ascending=False).collect()
    assert (bytes(first["body"]), first["tags"], first["keys"], first["flag"]) == (b"tea", "TagA", "K1 K2", 7)
    assert first["properties"]["region"] == "eu" and first["properties"]["__SHARDINGKEY"] == "user-1"
    assert first["bornTimestamp"].isoformat() == "2026-01-02T03:04:05.678000"
    assert (bytes(second["body"]), second["tags"], second["keys"], second["flag"]) == (
        "caf\u00e9".encode(),
        None,
        None,
        0,
    )
    assert first["msgId"] != second["msgId"]
    with Store.open(path, read_only=True) as store:
        assert store.topic("Paid").write_queue_nums == 4  # defaultTopicQueueNums


def test_a_missing_store_is_created_on_first_use(spark: Any, tmp_path: Path) -> None:
    sink(spark.sql("select 'x' value"), tmp_path / "new", topic="Orders").save()
    assert read(spark, tmp_path / "new", "Orders").count() == 1
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "report.csv").write_text("1,2")
    with pytest.raises(Exception, match="NotAStoreError"):
        sink(spark.sql("select 'x' value"), tmp_path / "other", topic="Orders").save()
    assert [entry.name for entry in (tmp_path / "other").iterdir()] == ["report.csv"]


def test_rows_beside_a_server_have_its_address_for_who_dials_them_by_id(
    spark: Any, make_store: Make
) -> None:
    path = make_store()
    with BrokerServer(path) as server:
        server.store.create_topic("Paid", 1)
        sink(spark.sql("select 'tea' value"), path, topic="Paid").save()
        [row] = read(spark, path, "Paid").collect()
        assert row["storeHost"] == server.address
        with Cluster(ClusterSettings.of_text(server.address)) as cluster:
            message_id = offset_message_id(Host.parse(row["storeHost"]), row["commitLogOffset"])
            found = queries.view_message(cluster, message_id)
            assert found is not None and b"tea" in found.frames


def test_a_path_may_be_relative_or_a_uri(spark: Any, tmp_path: Path) -> None:
    relative = Path(os.path.relpath(tmp_path / "new"))
    sink(spark.sql("select 'x' value"), relative, topic="Orders").save()
    uri = (tmp_path / "new").as_uri()
    assert spark.read.format("rmq").option("subscribe", "Orders").load(uri).count() == 1
    with pytest.raises(Exception, match="option path: 'hdfs://h/new' is not a local directory"):
        spark.read.format("rmq").option("subscribe", "Orders").load("hdfs://h/new").count()


def test_the_option_topic_wins_and_rows_of_a_task_keep_their_order(spark: Any, make_store: Make) -> None:
    path = make_store()
    frame = spark.range(1000).selectExpr(
        "'Ignored' topic", "cast(id as string) value", "cast(id % 7 as string) shardingKey"
    )
    sink(frame.coalesce(1), path, topic="Numbers").save()
    rows = read(spark, path, "Numbers").selectExpr("queueId", "queueOffset", "cast(cast(body as string) as int) n")
    by_queue: dict[int, list[int]] = {}
    for row in rows.orderBy("queueId", "queueOffset").collect():
        by_queue.setdefault(row["queueId"], []).append(row["n"])
    assert sum(map(len, by_queue.values())) == 1000
    assert all(numbers == sorted(numbers) for numbers in by_queue.values())
    queues_of_key = {
        key: {queue for queue, ns in by_queue.items() if any(n % 7 == key for n in ns)} for key in range(7)
    }
    assert all(len(queues) == 1 for queues in queues_of_key.values())  # same key, same queue
    with Store.open(path, read_only=True) as store:
        assert "Ignored" not in store.topics()


def test_queue_ids_are_used_only_if_asked_for_and_must_exist(spark: Any, make_store: Make) -> None:
    path = make_store(Orders=1)
    frame = spark.range(100).selectExpr("'x' value", "cast(id - 50 as int) queueId")  # nonsense unless asked for
    sink(frame, path, topic="Free").save()
    assert read(spark, path, "Free").count() == 100
    good = spark.sql("select 'x' value, 3 queueId")
    sink(good, path, topic="Chosen", useQueueId="true").save()
    assert [row["queueId"] for row in read(spark, path, "Chosen").collect()] == [3]
    with pytest.raises(Exception, match="'Chosen' has no queue 4"):
        sink(spark.sql("select 'x' value, 4 queueId"), path, topic="Chosen", useQueueId="true").save()
    assert read(spark, path, "Chosen").count() == 1


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("select 'x' value, 'y' customer", "the sink has no column 'customer'"),
        ("select 'x' value, -1 delayLevel", "row 0, column 'delayLevel': -1 is no delay level"),
        (
            "select 'x' value, now() + interval '4' day deliverTimestamp",
            "ms ahead, more than 259200 s (timerMaxDelaySec)",
        ),
        ("select cast(null as string) value", "partition 0, row 0, column 'body': a message needs a body"),
        ("select 'x' value, map('a\u0001b', 'c') properties", "row 0"),
    ],
)
def test_rows_that_cannot_be_stored_fail_the_write_and_leave_nothing(
    spark: Any, make_store: Make, query: str, message: str, bodies: Make
) -> None:
    path = make_store(Orders=3)
    with pytest.raises(Exception, match="UsageError") as raised:
        sink(spark.sql(query), path, topic="Orders").save()
    assert message in str(raised.value)
    assert len(bodies(path, "Orders")) == 3
    assert staged(path) == []


def test_an_empty_delay_is_no_delay(spark: Any, make_store: Make, bodies: Make) -> None:
    path = make_store()
    frame = spark.sql("select 'x' value, cast(null as int) delayLevel, null deliverTimestamp, null tags")
    sink(frame, path, topic="Orders").save()
    assert bodies(path, "Orders") == ["x"]


@pytest.mark.statement("C10")
def test_rows_with_a_delay_level_or_a_time_come_when_they_are_due(spark: Any, make_store: Make, bodies: Make) -> None:
    """HookUtils.java: the real topic is made at once, the messages lie elsewhere until they are due; a time that has
    passed is no reason to wait, nor is a property that was only copied from another message.
    """
    path = make_store()
    now_ms = int(time.time() * 1000)
    clock = ClockFile.create(path / "pyrmq" / "clock", now_ms)
    frame = spark.createDataFrame(
        [
            ("level", 3, None, {}),
            ("time", None, now_ms + 30_000, {}),
            ("both", 3, now_ms + 7_200_000, {}),
            ("past", None, now_ms - 1, {}),
            ("copied", 0, None, {"DELAY": "3", "TIMER_DELAY_SEC": "9"}),
        ],
        "value string, delayLevel int, ms bigint, properties map<string,string>",
    ).selectExpr("value", "delayLevel", "timestamp_millis(ms) deliverTimestamp", "properties")
    sink(frame, path, topic="Orders").save()
    assert sorted(bodies(path, "Orders")) == ["copied", "past"]
    for advance_ms, expected in ((10_000, ["both", "level"]), (20_000, ["time"])):
        clock.advance(advance_ms)
        before = sorted(bodies(path, "Orders"))
        with Store.open(path) as store:
            store.schedule.deliver_due()
        assert sorted(bodies(path, "Orders")) == sorted([*before, *expected])


def test_overwrite_and_complete_are_refused_with_a_reason(
    spark: Any, make_store: Make, tmp_path: Path, bodies: Make
) -> None:
    path = make_store(Orders=3)
    frame = spark.sql("select 'x' value")
    with pytest.raises(Exception, match="messages of a topic cannot be replaced"):
        sink(frame, path, topic="Orders").mode("overwrite").save()
    for mode, name in (("ignore", "Ignore"), ("error", "ErrorIfExists")):
        # Spark itself, before it asks us; so it also recommends a mode that we refuse.
        with pytest.raises(Exception, match=rf'UNSUPPORTED_DATA_SOURCE_SAVE_MODE.*cannot be written in the "{name}"'):
            sink(frame, path, topic="Orders").mode(mode).save()
    rates = spark.readStream.format("rate").load().groupBy().count().selectExpr("cast(count as string) value")
    query = rates.writeStream.format("rmq").outputMode("complete").option("checkpointLocation", str(tmp_path / "c"))
    with pytest.raises(Exception, match="output mode complete is not possible"):
        query.option("path", str(path)).option("topic", "Orders").trigger(once=True).start().awaitTermination()
    assert len(bodies(path, "Orders")) == 3


def test_bodies_are_compressed_if_asked_for_and_read_back_plain(spark: Any, make_store: Make) -> None:
    path = make_store()
    frame = spark.sql("select repeat('abcdefgh', 1000) value union all select 'short'")
    sink(frame, path, topic="Big", compressMsgBodyOverHowmuch="4096").save()
    rows = {len(row["body"]): row["sysFlag"] for row in read(spark, path, "Big").collect()}
    assert set(rows) == {8000, 5}
    raw = spark.read.format("rmq").option("path", str(path)).option("subscribe", "Big").option("rawBody", "true").load()
    lengths = sorted((len(row["body"]), row["sysFlag"] & 1) for row in raw.collect())
    assert lengths[0] == (5, 0) and 5 < lengths[1][0] < 500 and lengths[1][1] == 1


def test_unique_ids_are_kept_only_if_asked_for(spark: Any, make_store: Make) -> None:
    source, target = make_store("a", Orders=5), make_store("b")
    frame = read(spark, source, "Orders")
    ids = {row["msgId"] for row in frame.collect()}
    sink(frame, target, topic="New").save()
    sink(frame, target, topic="Kept", keepUniqKey="true").save()
    assert ids.isdisjoint(row["msgId"] for row in read(spark, target, "New").collect())
    assert ids == {row["msgId"] for row in read(spark, target, "Kept").collect()}


def test_a_stream_into_a_store_is_complete_and_a_restart_adds_nothing(
    spark: Any, make_store: Make, add_messages: Make, tmp_path: Path, bodies: Make
) -> None:
    source, target = make_store("source", Orders=25), make_store("target")
    for _ in range(2):
        run_in_batches(stream_into(spark, source, target, tmp_path / "c"))
        assert bodies(target, "Enriched") == sorted(f"Orders-{n}" for n in range(25))
    add_messages(source, "Orders", 25, 28)
    run_in_batches(stream_into(spark, source, target, tmp_path / "c"))
    assert len(bodies(target, "Enriched")) == 28
    wait_until_swept(target)


def test_a_task_that_is_tried_again_adds_its_rows_once(spark: Any, make_store: Make, bodies: Make) -> None:
    from rmq_test_sources import FirstAttemptFailsSource

    spark.dataSource.register(FirstAttemptFailsSource)
    path = make_store()
    frame = spark.range(100).selectExpr("cast(id as string) value").repartition(3)
    frame.write.format("rmq_first_attempt_fails").mode("append").option("path", str(path)).option("topic", "T").save()
    assert bodies(path, "T") == sorted(map(str, range(100)))
    wait_until_swept(path)  # what the first attempts staged is swept


@pytest.mark.long
def test_a_streams_task_that_is_tried_again_adds_its_rows_once(
    spark: Any, make_store: Make, tmp_path: Path, bodies: Make
) -> None:
    from rmq_test_sources import FirstAttemptFailsSource

    spark.dataSource.register(FirstAttemptFailsSource)
    source, target = make_store("source", Orders=8), make_store("target")
    run_in_batches(stream_into(spark, source, target, tmp_path / "c").format("rmq_first_attempt_fails"))
    assert bodies(target, "Enriched") == [f"Orders-{n}" for n in range(8)]
    wait_until_swept(target)


def test_two_writes_in_one_foreach_batch_both_arrive(
    spark: Any, make_store: Make, tmp_path: Path, bodies: Make
) -> None:
    source, target = make_store("source", Orders=20), make_store("target")

    def both(rows: Any, batch_id: int) -> None:
        sink(rows.select("body"), target, topic="Left").save()
        sink(rows.select("body"), target, topic="Right").save()

    query = spark.readStream.format("rmq").option("path", str(source)).option("subscribe", "Orders")
    query = query.option("startingOffsets", "earliest").load().writeStream.foreachBatch(both)
    query.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start().awaitTermination()
    assert bodies(target, "Left") == bodies(target, "Right") == sorted(f"Orders-{n}" for n in range(20))


def test_a_transaction_id_makes_a_batch_write_idempotent(spark: Any, make_store: Make, bodies: Make) -> None:
    path = make_store()
    frame = spark.sql("select 'x' value")
    for version in ("7", "7", "8"):
        sink(frame, path, topic="T", txnAppId="nightly", txnVersion=version).save()
    sink(frame, path, topic="T", txnAppId="other", txnVersion="7").save()
    assert len(bodies(path, "T")) == 3
    with pytest.raises(Exception, match="MarkerError"):
        sink(frame, path, topic="T", txnAppId="nightly", txnVersion="7").save()
    for _ in range(2):
        sink(frame, path, topic="T").save()  # without one, each write is a new one
    assert len(bodies(path, "T")) == 5
    wait_until_swept(path)


def test_a_rewound_or_copied_checkpoint_is_an_error_and_adds_nothing(
    spark: Any, make_store: Make, tmp_path: Path, bodies: Make
) -> None:
    source, target, checkpoint = make_store("source", Orders=30), make_store("target"), tmp_path / "c"
    run_in_batches(stream_into(spark, source, target, checkpoint))
    for log in ("offsets", "commits"):
        for batch in ("1", "2"):
            (checkpoint / log / batch).unlink()
            (checkpoint / log / f".{batch}.crc").unlink(missing_ok=True)
    with pytest.raises(Exception, match=r"MarkerError.*rewound or copied"):
        run_in_batches(stream_into(spark, source, target, checkpoint))
    assert len(bodies(target, "Enriched")) == 30


def test_a_copied_checkpoint_that_runs_on_is_an_error_and_adds_nothing(
    spark: Any, make_store: Make, add_messages: Make, tmp_path: Path, bodies: Make
) -> None:
    source, target = make_store("source", Orders=10), make_store("target")
    run_in_batches(stream_into(spark, source, target, tmp_path / "c"))
    shutil.copytree(tmp_path / "c", tmp_path / "copy")
    add_messages(source, "Orders", 10, 14)
    run_in_batches(stream_into(spark, source, target, tmp_path / "c"))
    add_messages(source, "Orders", 14, 16)
    # the same query id and batch number, and more rows
    with pytest.raises(Exception, match=r"MarkerError.*other rows \(6 now, 4 committed\).*repeatable=false"):
        run_in_batches(stream_into(spark, source, target, tmp_path / "copy"))
    assert len(bodies(target, "Enriched")) == 14
