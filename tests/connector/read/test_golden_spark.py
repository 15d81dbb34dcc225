"""The store of a real broker through Spark: every field of every message as the Java client saw it."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmq_store import Store, new_message

from ..spark_lacks import commit_at_the_end, run_in_batches

pytestmark = [pytest.mark.long, pytest.mark.spark]

Row = dict[str, Any]


@pytest.fixture(scope="module")
def manifest(golden: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((golden / "manifest.json").read_text(encoding="utf-8"))
    return value


@pytest.fixture(scope="module")
def expected(manifest: dict[str, Any]) -> dict[tuple[str, int, int], Row]:
    """What the source must give, by topic, queue and offset."""
    return {
        (message["topic"], message["queueId"], message["queueOffset"]): {
            "topic": message["topic"],
            "queueId": message["queueId"],
            "queueOffset": message["queueOffset"],
            "msgId": message["uniqKey"] or message["offsetMsgId"],
            "body": (message["bodyLength"], message["bodySha256"]),
            "tags": message["tags"],
            "keys": message["keys"],
            "properties": message["properties"],
            "reconsumeTimes": message["reconsumeTimes"],
            "flag": message["flag"],
            "sysFlag": message["sysFlag"],
            "bornTimestamp": message["bornTimestamp"],
            "bornHost": message["bornHost"],
            "storeTimestamp": message["storeTimestamp"],
            "storeHost": message["storeHost"],
            "commitLogOffset": message["commitLogOffset"],
            "brokerName": manifest["brokerName"],
        }
        for topic in manifest["topics"].values()
        for queue in topic["queues"].values()
        for message in queue["messages"]
    }


def rows(frame: Any) -> list[Row]:
    """The rows of a DataFrame in the form of `expected`."""
    result: list[Row] = frame.toArrow().to_pylist()
    for row in result:
        row["body"] = (len(row["body"]), hashlib.sha256(row["body"]).hexdigest())
        row["properties"] = dict(row["properties"])
        for name in ("bornTimestamp", "storeTimestamp"):
            row[name] = round(row[name].timestamp() * 1000)
    return result


def by_place(found: list[Row]) -> dict[tuple[str, int, int], Row]:
    places = {(row["topic"], row["queueId"], row["queueOffset"]): row for row in found}
    assert len(places) == len(found)
    return places


def all_topics(manifest: dict[str, Any]) -> str:
    return ",".join(sorted(topic for topic, content in manifest["topics"].items() if content["queues"]))


def test_a_batch_gives_every_field_of_every_message(
    spark: Any, golden: Path, manifest: dict[str, Any], expected: dict[tuple[str, int, int], Row]
) -> None:
    reader = spark.read.format("rmq").option("path", str(golden / "store")).option("subscribe", all_topics(manifest))
    found = by_place(rows(reader.load()))
    assert len(found) == manifest["messageCount"] == len(expected)
    assert found == expected


def test_a_stream_gives_every_field_of_every_message(
    spark: Any, golden: Path, manifest: dict[str, Any], expected: dict[tuple[str, int, int], Row], tmp_path: Path
) -> None:
    writer = (
        spark.readStream.format("rmq")
        .option("path", str(golden / "store"))
        .option("subscribe", all_topics(manifest))
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "3000")
        .load()
        .writeStream.format("parquet")
        .option("path", str(tmp_path / "out"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
    )
    progress = run_in_batches(writer).recentProgress
    assert [batch["numInputRows"] for batch in progress if batch["numInputRows"]] == [3000, 3000, 1063]
    # Parquet reads timestamps and maps back as they were
    assert by_place(rows(spark.read.parquet(str(tmp_path / "out")))) == expected


def test_one_queue_can_be_read_alone_and_in_order(
    spark: Any, golden: Path, expected: dict[tuple[str, int, int], Row]
) -> None:
    reader = spark.read.format("rmq").option("path", str(golden / "store")).option("minPartitions", "3")
    found = rows(reader.option("assign", '{"OrderTopic":[2]}').load())
    assert found == [row for place, row in sorted(expected.items()) if place[:2] == ("OrderTopic", 2)]


def test_ranges_and_group_offsets_are_those_of_the_broker(golden: Path, manifest: dict[str, Any]) -> None:
    with Store.open(golden / "store", read_only=True) as store:
        for topic, content in manifest["topics"].items():
            for queue_id, queue in content["queues"].items():
                limits = (queue["minOffset"], queue["maxOffset"])
                assert store.queue_range(topic, int(queue_id)) == limits, (topic, queue_id)
        for group, content in manifest["groups"].items():
            committed = store.committed_offsets(group)
            for queue in content["queues"]:
                place = (queue["topic"], queue["queueId"])
                assert committed.get(place, 0) == queue["committedOffset"], (group, place)
                assert store.queue_range(*place).max_offset - committed.get(place, 0) == queue["lag"], (group, place)


def test_a_batch_from_a_groups_offsets_reads_its_lag(spark: Any, golden: Path, manifest: dict[str, Any]) -> None:
    reader = spark.read.format("rmq").option("path", str(golden / "store")).option("subscribe", "OrderTopic")
    reader = reader.option("group", "cg_partial").option("startingOffsets", "group").schema("queueId int")
    counts = {row["queueId"]: row["count"] for row in reader.load().groupBy("queueId").count().collect()}
    lags = {queue["queueId"]: queue["lag"] for queue in manifest["groups"]["cg_partial"]["queues"]}
    assert counts == lags
    assert sum(lags.values()) == manifest["groups"]["cg_partial"]["totalLag"] > 0


def test_tags_filter_as_the_brokers_consumer_did(
    spark: Any, golden: Path, expected: dict[tuple[str, int, int], Row]
) -> None:
    reader = spark.read.format("rmq").option("path", str(golden / "store")).option("subscribe", "OrderTopic")
    # BBBB has the hash of AaAa: only the text tells them apart
    found = reader.option("tags", "TagA || TagC || AaAa").schema("tags string").load().groupBy("tags").count().collect()
    wanted: dict[str, int] = {}
    for row in expected.values():
        if row["topic"] == "OrderTopic" and row["tags"] in ("TagA", "TagC", "AaAa"):
            wanted[row["tags"]] = wanted.get(row["tags"], 0) + 1
    assert {row["tags"]: row["count"] for row in found} == wanted
    assert set(wanted) == {"TagA", "TagC", "AaAa"}


def test_times_find_the_offsets_that_the_broker_found(spark: Any, golden: Path, manifest: dict[str, Any]) -> None:
    asked = {(entry["topic"], entry["queueId"]): entry["probes"] for entry in manifest["offsetByTime"]}
    with Store.open(golden / "store", read_only=True) as store:
        for (topic, queue_id), probes in asked.items():
            for probe in probes:
                found = store.offset_by_time(topic, queue_id, probe["timestamp"])
                assert found == probe["offset"], (topic, queue_id, probe)
    inside = next(probe for probe in asked["OrderTopic", 1] if 0 < probe["offset"] < 700)
    reader = spark.read.format("rmq").option("path", str(golden / "store")).option("assign", '{"OrderTopic":[1]}')
    before = reader.option("endingTimestamp", str(inside["timestamp"])).load().count()
    reader = spark.read.format("rmq").option("path", str(golden / "store")).option("assign", '{"OrderTopic":[1]}')
    after = reader.option("startingTimestamp", str(inside["timestamp"])).load().count()
    assert before == inside["offset"]
    assert before + after == manifest["topics"]["OrderTopic"]["queues"]["1"]["maxOffset"]


def test_the_whole_source_can_be_written_to_another_store(
    spark: Any, golden: Path, tmp_path: Path, make_store: Callable[..., Path]
) -> None:
    target = make_store("copy")
    source = spark.read.format("rmq").option("path", str(golden / "store")).option("subscribe", "OrderTopic").load()
    source.write.format("rmq").mode("append").option("keepUniqKey", "true").option("useQueueId", "true").save(
        str(target)
    )
    copied = spark.read.format("rmq").option("path", str(target)).option("subscribe", "OrderTopic").load()
    kept = ["topic", "queueId", "msgId", "body", "tags", "keys", "flag", "bornTimestamp"]
    assert copied.select(kept).exceptAll(source.select(kept)).count() == 0
    assert copied.count() == source.count() == 3007
    dropped = new_message.ADDED_ON_THE_WAY | new_message.REQUESTS
    user = [
        {
            row["msgId"]: {name: text for name, text in row["properties"].items() if name not in dropped}
            for row in frame
        }
        for frame in (source.select("msgId", "properties").collect(), copied.select("msgId", "properties").collect())
    ]
    assert user[0] == user[1]


def test_a_group_and_a_sink_can_work_in_a_copy_of_a_brokers_store(
    spark: Any, golden: Path, tmp_path: Path, manifest: dict[str, Any]
) -> None:
    store = Path(shutil.copytree(golden / "store", tmp_path / "scratch"))
    with Store.open(store, read_only=True) as opened:
        before = {group: dict(offsets) for group, offsets in opened.all_committed_offsets().items()}
    frame = spark.readStream.format("rmq").option("path", str(store)).option("subscribe", "OrderTopic")
    frame = frame.option("group", "cg_partial").load().select("body", "tags", "properties")
    sink = frame.writeStream.format("rmq").option("path", str(store)).option("topic", "Enriched")
    sink = sink.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
    for _ in range(2):
        sink.start().awaitTermination()
        commit_at_the_end(tmp_path / "checkpoint")
        with Store.open(store, read_only=True) as opened:
            after = {group: dict(offsets) for group, offsets in opened.all_committed_offsets().items()}
            written = sum(limits.max_offset for limits in opened.queue_ranges("Enriched").values())
        assert written == manifest["groups"]["cg_partial"]["totalLag"]
        ends = {
            ("OrderTopic", n): q["maxOffset"] for n, q in enumerate(manifest["topics"]["OrderTopic"]["queues"].values())
        }
        ends |= {("%RETRY%cg_partial", 0): 0}  # read as well, and empty
        assert after == before | {"cg_partial": before["cg_partial"] | ends}


def test_reading_a_foreign_store_changes_nothing_in_it(spark: Any, golden: Path, tmp_path: Path) -> None:
    store = Path(shutil.copytree(golden / "store", tmp_path / "scratch"))

    def tree() -> dict[str, tuple[int, int, str]]:
        return {
            str(path.relative_to(store)): (
                path.stat().st_size,
                path.stat().st_mtime_ns,
                hashlib.sha256(path.read_bytes()).hexdigest(),
            )
            for path in store.rglob("*")
            if path.is_file()
        }

    before = tree()
    assert (
        spark.read.format("rmq").option("path", str(store)).option("subscribePattern", ".*Topic").load().count() > 3000
    )
    assert tree() == before
