"""From a caller's columns to encoded frames: types, defaults, and what belongs to the store alone."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from rmq_store import INPUT_SCHEMA, StoreConfig, TopicConfig, UsageError
from rmq_store.broker.write.encoder import MessageEncoder, normalise
from rmq_store.format.frames.frame_check import SysFlag
from rmq_store.format.frames.stored_message import StoredMessage, decode_frame

TOPICS = {"T": TopicConfig("T", 2, 2)}
NOW_MS = 1_700_000_000_123


def encoder(**options: object) -> MessageEncoder:
    return MessageEncoder(StoreConfig(broker_host="10.0.0.7:20911"), TOPICS, lambda: NOW_MS, **options)


def frames_of(encoded: pa.RecordBatch) -> list[StoredMessage]:
    frames = encoded.column("frame").to_pylist()
    return [decode_frame(memoryview(frame), 0, len(frame)) for frame in frames]


def test_a_body_is_enough_when_the_topic_is_given() -> None:
    batch = pa.record_batch({"body": [b"a", b""]})
    first, second = frames_of(encoder(default_topic="T").encode(batch))
    assert (first.topic, first.body, first.flag, first.born_timestamp_ms) == ("T", b"a", 0, NOW_MS)
    assert (str(first.store_host), str(first.born_host), second.body) == ("10.0.0.7:20911", "10.0.0.7:0", b"")
    assert first.properties["UNIQ_KEY"] != second.properties["UNIQ_KEY"]


def test_the_topic_that_is_given_replaces_the_column() -> None:
    batch = pa.record_batch({"topic": ["Other", None], "body": [b"a", b"b"]})
    assert [frame.topic for frame in frames_of(encoder(default_topic="T").encode(batch))] == ["T", "T"]


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("body", pa.array(["text"])),
        ("body", pa.array(["text"], pa.large_string())),
        ("body", pa.array([b"text"], pa.large_binary())),
        ("body", pa.array([b"text"], pa.binary(4))),
        ("body", pa.array(["text"]).dictionary_encode()),
        ("tags", pa.array(["text"], pa.large_string())),
        ("tags", pa.array(["text"]).dictionary_encode()),
        ("tags", pa.array([None], pa.null())),
        ("keys", pa.array(["text"])),
        ("flag", pa.array([7], pa.int64())),
        ("flag", pa.array([7], pa.uint8())),
        ("queueId", pa.array([1], pa.int16())),
        ("shardingKey", pa.array(["text"])),
        ("bornTimestamp", pa.array([1000], pa.timestamp("ms"))),
        ("bornTimestamp", pa.array([1000], pa.timestamp("ns", "Asia/Shanghai"))),
        ("properties", pa.array([[("a", "b")]], pa.map_(pa.large_string(), pa.string()))),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else value,
)
def test_these_types_are_taken(name: str, column: pa.Array) -> None:
    columns = {"topic": pa.array(["T"]), "body": pa.array([b"body"]), name: column}
    result = normalise(pa.RecordBatch.from_pydict(columns))
    assert result.column(name).type == INPUT_SCHEMA.field(name).type
    assert encoder().encode(pa.RecordBatch.from_pydict(columns)).num_rows == 1


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("body", pa.array([1])),
        ("body", pa.array([[1]])),
        ("tags", pa.array([1])),
        ("tags", pa.array([b"bytes"])),
        ("keys", pa.array([["a", "b"]])),
        ("flag", pa.array([1.0])),
        ("flag", pa.array(["1"])),
        ("flag", pa.array([True])),
        ("queueId", pa.array(["0"])),
        ("bornTimestamp", pa.array([1])),
        ("bornTimestamp", pa.array(["2026-01-01"])),
        ("bornTimestamp", pa.array([1], pa.date32())),
        ("shardingKey", pa.array([5])),
        ("properties", pa.array([{"a": "b"}])),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else value,
)
def test_arrow_would_cast_some_of_these_but_the_caller_has_to(name: str, column: pa.Array) -> None:
    rows = len(column)
    columns = {"topic": pa.array(["T"] * rows, pa.string()), "body": pa.array([b"b"] * rows, pa.binary()), name: column}
    with pytest.raises(UsageError, match=f"column '{name}' is "):
        normalise(pa.RecordBatch.from_pydict(columns))


def test_times_finer_than_a_millisecond_are_cut() -> None:
    times = pa.array([1_700_000_000_123_999_999, None], pa.timestamp("ns", "UTC"))
    batch = pa.record_batch({"body": [b"a", b"b"], "bornTimestamp": times})
    born = [frame.born_timestamp_ms for frame in frames_of(encoder(default_topic="T").encode(batch))]
    assert born == [1_700_000_000_123, NOW_MS]
    assert datetime.fromtimestamp(born[0] / 1000, UTC).year == 2023


def test_queue_ids_are_wishes_only_where_the_writer_allows_it() -> None:
    batch = pa.record_batch({"body": [b"a"] * 8, "queueId": pa.array([1] * 8, pa.int32())})
    assert encoder(default_topic="T").encode(batch).column("queue_id").to_pylist() == [1] * 8
    free = encoder(default_topic="T", use_queue_id=False).encode(batch)
    assert sorted(free.column("queue_id").to_pylist()) == [0] * 4 + [1] * 4


def test_unique_keys_of_other_stores_are_replaced_unless_they_are_to_be_kept() -> None:
    properties = pa.array([[("UNIQ_KEY", "OLD"), ("MSG_REGION", "r"), ("a", "b")]], pa.map_(pa.string(), pa.string()))
    batch = pa.record_batch({"body": [b"a"], "properties": properties})
    (fresh,) = frames_of(encoder(default_topic="T", drop_properties=frozenset({"MSG_REGION"})).encode(batch))
    assert fresh.properties["UNIQ_KEY"] not in ("", "OLD")
    assert set(fresh.properties) == {"UNIQ_KEY", "a"}
    (kept,) = frames_of(encoder(default_topic="T", keep_unique_key=True).encode(batch))
    assert kept.properties["UNIQ_KEY"] == "OLD"


def test_bodies_from_the_limit_on_are_compressed_if_that_makes_them_shorter() -> None:
    batch = pa.record_batch({"body": [b"x" * 99, b"x" * 100, bytes(range(100))]})
    short, long, dense = frames_of(encoder(default_topic="T", compress_over_bytes=100).encode(batch))
    assert not short.sys_flag & SysFlag.COMPRESSED
    assert long.sys_flag & SysFlag.COMPRESSED
    assert len(long.body) < 100
    assert (dense.sys_flag & SysFlag.COMPRESSED, dense.body) == (0, bytes(range(100)))
