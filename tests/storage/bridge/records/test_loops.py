"""No record goes round, and none is lost because it looks as if it would: mirrors, jobs and brokers put together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from helpers.mirrored import (
    BORN_MS,
    KAFKA_RULES,
    NOW_MS,
    RMQ_RULES,
    changed,
    new_store,
    produced_of,
    record,
    records,
    stored_of,
    through_store,
)
from rmq_store import MESSAGE_SCHEMA, Store, SubscriptionGroup, UsageError
from rmq_store.bridge.records.origin import PATH_LENGTH_MAX, sources_of_messages, sources_of_records
from rmq_store.bridge.records.route import Route
from rmq_store.bridge.records.to_kafka import to_kafka
from rmq_store.bridge.records.to_rmq import to_rmq
from rmq_store.format.properties.mirror_properties import MIRROR_PROPERTIES

TWO = records(record(b"one", key=b"k", headers=[(b"a", b"1")]), record(None, key=b"\xff", headers=[(b"a", b"")]))
THERE, BACK = Route("K1", "T", 0, "R1", "T", 0), Route("R1", "T", 0, "K1", "T", 0)


def paths(rows: pa.RecordBatch) -> list[bytes]:
    """MIRROR_PATH of each record."""
    return [
        next(pair["value"] for pair in headers if pair["name"] == b"MIRROR_PATH")
        for headers in rows.column("headers").to_pylist()
    ]


def test_what_comes_from_kafka_does_not_go_back_to_its_topic_and_is_counted(store: Store) -> None:
    back = to_kafka(stored_of(store, TWO, THERE), BACK, KAFKA_RULES)
    assert (back.rows.num_rows, back.dropped_loops) == (0, 2)


def test_what_comes_from_rocketmq_does_not_go_back_to_its_topic_and_is_counted(store: Store) -> None:
    sent = through_store(store, message_rows({"body": b"x"}, {"body": b""}))
    back = to_rmq(produced_of(sent, BACK), THERE, RMQ_RULES)
    assert (back.rows.num_rows, back.dropped_loops) == (0, 2)


def test_another_topic_of_the_same_cluster_is_no_loop(store: Store) -> None:
    rows = produced_of(stored_of(store, TWO, THERE), replace(BACK, target_topic="T2"))
    assert paths(rows) == [b'[["K1","T"],["R1","T"]]'] * 2


def test_a_ring_with_a_copy_by_kafkas_own_mirror_ends(store: Store) -> None:
    """K1 to R1 to K2, from where MirrorMaker 2 copies records to K1 as they are, under the same topic."""
    rows = produced_of(stored_of(store, TWO, THERE), Route("R1", "T", 0, "K2", "T", 0))
    again = to_rmq(rows, THERE, RMQ_RULES)
    assert (again.rows.num_rows, again.dropped_loops) == (0, 2)


def test_a_ring_of_four_ends_where_it_began(store: Store) -> None:
    rows = produced_of(stored_of(store, TWO, THERE), Route("R1", "T", 0, "K2", "T", 0))
    last = to_kafka(
        stored_of(store, rows, Route("K2", "T", 0, "R2", "T", 1)), Route("R2", "T", 1, "K1", "T", 0), KAFKA_RULES
    )
    assert (last.rows.num_rows, last.dropped_loops) == (0, 2)


def test_a_diamond_delivers_twice_and_neither_copy_goes_on_to_where_it_was(store: Store) -> None:
    ways = [("R1", 0), ("R2", 1)]
    met = [
        produced_of(stored_of(store, TWO, Route("K1", "T", 0, rmq, "T", queue)), Route(rmq, "T", queue, "K2", "T", 0))
        for rmq, queue in ways
    ]
    assert [rows.column("key").to_pylist() for rows in met] == [[b"k", b"\xff"]] * 2
    for rows in met:
        for rmq, _ in ways:
            back = to_rmq(rows, Route("K2", "T", 0, rmq, "T", 0), RMQ_RULES)
            been = f'["{rmq}","T"]'.encode() in paths(rows)[0]
            assert back.dropped_loops == (2 if been else 0)


def message_rows(*rows: dict[str, Any], topic: str = "T", queue_id: int = 0) -> pa.RecordBatch:
    """Rows of INPUT_SCHEMA."""
    schema = pa.schema(
        [
            ("topic", pa.string()), ("queueId", pa.int32()), ("body", pa.binary()),
            ("bornTimestamp", pa.timestamp("us", "UTC")), ("properties", MESSAGE_SCHEMA.field("properties").type),
        ]
    )  # fmt: skip
    usual = {"topic": topic, "queueId": queue_id, "bornTimestamp": BORN_MS * 1000, "properties": []}
    return pa.RecordBatch.from_pylist([{**usual, **row} for row in rows], schema)


@pytest.mark.parametrize(
    ("changes", "topic"),
    [
        ({"body": b"other"}, "T"),
        ({"bornTimestamp": (BORN_MS + 1) * 1000}, "T"),
        ({}, "T-of-a-job"),
        ({"body": b"other"}, "T-of-a-job"),
    ],
    ids=["another body", "a producer's time", "another topic", "another body and topic"],
)
def test_a_job_that_copies_all_properties_makes_a_new_record(store: Store, changes: dict[str, Any], topic: str) -> None:
    """As a Java producer does it: UNIQ_KEY is kept if it is given."""
    source = stored_of(store, TWO, THERE).slice(0, 1)
    (row,) = source.select(["body", "bornTimestamp", "properties"]).to_pylist()
    own = through_store(store, message_rows({**row, **changes}, topic=topic))
    assert own.column("msgId") == source.column("msgId")
    rows = produced_of(own, Route("R1", topic, 0, "K1", "T", 0))
    assert paths(rows) == [f'[["R1","{topic}"]]'.encode()]
    assert not sources_of_messages(own).is_mirrored.any()


def test_copied_properties_of_a_tombstone_do_not_destroy_the_body_of_the_new_message(store: Store) -> None:
    (row,) = stored_of(store, TWO, THERE).slice(1, 1).select(["properties"]).to_pylist()
    assert {"KAFKA_TOMBSTONE", "KAFKA_RECORD"} <= dict(row["properties"]).keys()
    own = through_store(store, message_rows({**row, "body": b"new"}))
    (made,) = produced_of(own, BACK).to_pylist()
    assert (made["key"], made["value"]) == (None, b"new")
    assert [pair["name"] for pair in made["headers"]] == [
        b"rmq.UNIQ_KEY", b"MIRROR_FROM", b"MIRROR_PATH", b"MIRROR_TO"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "partition"),
    [
        ({"value": [b"other"]}, 0),
        ({"value": [None]}, 0),
        ({"key": [b"another"]}, 0),
        ({"timestampMs": [BORN_MS + 1]}, 0),
        ({}, 1),
    ],
    ids=["another value", "a tombstone", "another key", "a producer's time", "another partition"],
)
def test_a_job_that_copies_all_headers_makes_a_new_record(store: Store, changes: Any, partition: int) -> None:
    mirrored = produced_of(through_store(store, message_rows({"body": b"x"})), BACK)
    own = changed(mirrored, **changes)
    there = Route("K1", "T", partition, "R1", "T", partition)
    mapped = to_rmq(own, there, RMQ_RULES)
    assert (mapped.rows.num_rows, mapped.dropped_loops) == (1, 0)
    properties = dict(mapped.rows.column("properties")[0].as_py())
    assert properties["MIRROR_PATH"] == '[["K1","T"]]'
    assert not sources_of_records(own, "T", partition).is_mirrored.any()


def test_a_job_that_copies_all_headers_to_another_topic_makes_a_new_record(store: Store) -> None:
    mirrored = produced_of(through_store(store, message_rows({"body": b"x"})), BACK)
    assert to_rmq(mirrored, replace(THERE, source_topic="T2"), RMQ_RULES).dropped_loops == 0


def test_where_the_topic_has_log_append_time_marks_fit_whatever_time_the_broker_gives(store: Store) -> None:
    sent = through_store(store, message_rows({"body": b"x"}))
    rows = produced_of(sent, BACK, replace(KAFKA_RULES, log_append_time=True))
    stamped = changed(rows, timestampMs=[NOW_MS + 77], timestampType=[1])
    assert to_rmq(stamped, THERE, RMQ_RULES).dropped_loops == 1
    assert to_rmq(stamped, replace(THERE, target_cluster="R2"), RMQ_RULES).rows.column("bornTimestamp").cast(
        pa.int64()
    ).to_pylist() == [BORN_MS * 1000]


@pytest.mark.parametrize("name", [b"MIRROR_TO", b"MIRROR_FROM", b"MIRROR_PATH"])
def test_marks_that_are_there_twice_or_not_all_do_not_count(store: Store, name: bytes) -> None:
    mirrored = produced_of(through_store(store, message_rows({"body": b"x"})), BACK)
    (headers,) = mirrored.column("headers").to_pylist()
    twice = [*headers, *(pair for pair in headers if pair["name"] == name)]
    for given in (twice, [pair for pair in headers if pair["name"] != name]):
        mapped = to_rmq(changed(mirrored, headers=[given]), THERE, RMQ_RULES)
        assert (mapped.rows.num_rows, mapped.dropped_loops) == (1, 0)
        properties = dict(mapped.rows.column("properties")[0].as_py())
        source = f"K1 T 0 {mirrored.column('offset')[0]}"
        assert (properties["MIRROR_FROM"], properties["MIRROR_PATH"]) == (source, '[["K1","T"]]')


@pytest.mark.parametrize(
    "path",
    [b"", b"{}", b"[]", b"no JSON", b'["R1","T"]', b'[["R1"]]', b'[["R1",1]]', b'[["R1","T","x"]]', b'"R1"',
     b'[["R1","\\ud800"]]', b"[" * 20_000, b"\xff", None],
)  # fmt: skip
def test_a_path_that_no_mirror_writes_does_not_count(store: Store, path: bytes | None) -> None:
    mirrored = produced_of(through_store(store, message_rows({"body": b"x"})), BACK)
    (headers,) = mirrored.column("headers").to_pylist()
    other = [{**pair, "value": path} if pair["name"] == b"MIRROR_PATH" else pair for pair in headers]
    given_rows = changed(mirrored, headers=[other])
    mapped = to_rmq(given_rows, THERE, RMQ_RULES)
    assert (mapped.rows.num_rows, mapped.dropped_loops) == (1, 0)
    assert not sources_of_records(given_rows, "T", 0).is_mirrored.any()


def test_a_path_without_an_end_becomes_a_dead_letter_on_both_sides(store: Store) -> None:
    rows, hops = TWO.slice(0, 1), 0
    while True:
        mapped = to_rmq(rows, Route(f"K{hops}", "T", 0, f"R{hops}", "T", 0), RMQ_RULES)
        if mapped.letters.num_rows:
            break
        hops += 1
        rows = produced_of(through_store(store, mapped.rows), Route(f"R{hops - 1}", "T", 0, f"K{hops}", "T", 0))
    assert 2 * hops == PATH_LENGTH_MAX
    assert mapped.rows.num_rows == 0
    assert dict(mapped.letters.column("properties")[0].as_py())["MIRROR_REASON"].startswith("MirrorPathError")
    first = through_store(store, message_rows({"body": b"x"}))
    for hop in range(PATH_LENGTH_MAX // 2):
        rows = produced_of(first, Route(f"R{hop}", "T", 0, f"K{hop}", "T", 0))
        first = stored_of(store, rows, Route(f"K{hop}", "T", 0, f"R{hop + 1}", "T", 0))
    last = to_kafka(first, Route("R8", "T", 0, "K8", "T", 0), KAFKA_RULES)
    assert (last.rows.num_rows, last.letters.num_rows) == (0, 1)


def test_two_sides_with_one_cluster_id_are_refused() -> None:
    with pytest.raises(UsageError, match="the same cluster id, 'K1'"):
        Route("K1", "T", 0, "K1", "T2", 0)


@pytest.mark.parametrize("cluster_id", ["", "with space", "ä", "a\nb", "x" * 256])
def test_a_cluster_id_is_one_word(cluster_id: str) -> None:
    with pytest.raises(UsageError, match="cannot be a cluster id"):
        Route("K1", "T", 0, cluster_id, "T", 0)


def test_the_same_record_has_the_same_message_id_whoever_mirrors_it_and_another_one_never() -> None:
    def ids(route: Route) -> list[str]:
        found = to_rmq(TWO, route, RMQ_RULES).rows.column("properties").to_pylist()
        return [dict(properties)["UNIQ_KEY"] for properties in found]

    assert ids(THERE) == ids(replace(THERE, target_cluster="R2", target_topic="other", target_partition=5))
    others = [replace(THERE, **change) for change in OTHER_SOURCES]
    made = [key for route in (THERE, *others) for key in ids(route)]
    assert len(set(made)) == len(made) == 10
    assert all(len(key) == 32 for key in made)


OTHER_SOURCES: list[dict[str, Any]] = [
    {"source_cluster": "K9"}, {"source_topic": "T9"}, {"source_partition": 1}, {"source_topic_id": "made-again"}
]  # fmt: skip


def test_the_sources_of_rows_can_be_told_among_others(store: Store) -> None:
    own = through_store(store, message_rows({"body": b"own"}))
    there = replace(THERE, source_topic_id="id-1")
    both = pa.Table.from_batches([own, stored_of(store, TWO, there)]).combine_chunks().to_batches()[0]
    found = sources_of_messages(both)
    assert found.is_mirrored.tolist() == [False, True, True]
    assert found.clusters.to_pylist() == [None, "K1", "K1"]
    assert found.topics.to_pylist() == [None, "T", "T"]
    assert found.partitions.tolist() == [-1, 0, 0]
    assert found.offsets.tolist() == [-1, 0, 1]
    assert found.topic_ids.to_pylist() == [None, "id-1", "id-1"]
    back = sources_of_records(produced_of(own, BACK), "T", 0)
    assert (back.clusters.to_pylist(), back.offsets.tolist()) == (["R1"], own.column("queueOffset").to_pylist())


def test_a_source_that_no_mirror_writes_is_none(store: Store) -> None:
    mirrored = produced_of(through_store(store, message_rows({"body": b"x"})), BACK)
    (headers,) = mirrored.column("headers").to_pylist()
    for source in (b"", b"R1 T 0", b"R1 T 0 -1", b"R1 T 0 9999999999999999999", b"R1 T x 1", b"\xff T 0 1", None):
        other = [{**pair, "value": source} if pair["name"] == b"MIRROR_FROM" else pair for pair in headers]
        assert not sources_of_records(changed(mirrored, headers=[other]), "T", 0).is_mirrored.any()


def test_the_marks_of_a_message_that_failed_stay_through_retries_dead_letters_and_redrives(store: Store) -> None:
    mirrored = stored_of(store, TWO, THERE)
    store.create_group(SubscriptionGroup("g"))
    dead = [
        store.retry.send_back("g", offset, delay_level=level)
        for offset, level in zip(mirrored.column("commitLogOffset").to_pylist(), (-1, -1), strict=True)
    ]
    assert [sent.topic for sent in dead] == ["%DLQ%g"] * 2
    rows = pa.RecordBatch.from_pydict({"queueId": [0, 0], "queueOffset": [0, 1]}, store_rows_schema())
    store.dead_letters.redrive("g", rows, to_topic="T")
    again = [row for queue in range(8) for batch in new_rows(store, queue, mirrored) for row in batch]
    again.sort(key=lambda row: row["msgId"])  # which queue they went to is the redrive's choice
    assert [row["msgId"] for row in again] == mirrored.column("msgId").to_pylist()
    for row, before in zip(again, mirrored.to_pylist(), strict=True):
        kept = {name: text for name, text in row["properties"] if name in MIRROR_PROPERTIES}
        assert kept == {name: text for name, text in before["properties"] if name in MIRROR_PROPERTIES}
    redriven = pa.RecordBatch.from_pylist(again, MESSAGE_SCHEMA)
    found = sources_of_messages(redriven)
    assert found.is_mirrored.all()
    assert not found.is_first_copy.any()
    assert sources_of_messages(mirrored).is_first_copy.all()
    assert to_kafka(redriven, BACK, KAFKA_RULES).dropped_loops == 2


def test_the_marks_of_a_message_that_waits_for_its_retry_stay(tmp_path: Path) -> None:
    now = [NOW_MS]
    with new_store(tmp_path / "store", clock=lambda: now[0]) as store:
        store.create_group(SubscriptionGroup("g"))
        mirrored = stored_of(store, TWO, THERE)
        for offset in mirrored.column("commitLogOffset").to_pylist():
            assert store.retry.send_back("g", offset, delay_level=1).topic == "%RETRY%g"
        assert store.find_topic("%RETRY%g") is None or store.queue_range("%RETRY%g", 0).max_offset == 0
        now[0] += 60_000
        assert store.schedule.deliver_due().delivered == 2
        (retried,) = [batch.to_pylist() for batch in store.read("%RETRY%g", 0, 0, 2)]
    for row, before in zip(retried, mirrored.to_pylist(), strict=True):
        assert (row["msgId"], row["bornTimestamp"]) == (before["msgId"], before["bornTimestamp"])
        marks = {name: text for name, text in before["properties"] if name in MIRROR_PROPERTIES}
        assert marks.items() <= dict(row["properties"]).items()


def store_rows_schema() -> pa.Schema:
    return pa.schema([("queueId", pa.int32()), ("queueOffset", pa.int64())])


def new_rows(store: Store, queue_id: int, mirrored: pa.RecordBatch) -> list[list[dict[str, Any]]]:
    """What was stored in a queue of the topic behind all of these rows."""
    last = max(mirrored.column("commitLogOffset").to_pylist())
    bounds = store.queue_range("T", queue_id)
    return [
        [row for row in batch.to_pylist() if row["commitLogOffset"] > last]
        for batch in store.read("T", queue_id, *bounds)
    ]
