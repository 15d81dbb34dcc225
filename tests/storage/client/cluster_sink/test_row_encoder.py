"""Rows to targets: queues by number, by key or none, rows that go alone, rows that are refused by row and column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rmq_store.client.cluster_sink.chunks import ChunkMaker, Rows, RowsToMake, Shared, TargetQueue
from rmq_store.client.cluster_sink.pipeline import request_of
from rmq_store.client.cluster_sink.row_encoder import EncoderSettings, RowEncoder
from rmq_store.errors import UsageError
from rmq_store.format.batches.content_keys import FoundKeys, KeyMaker, seed_of
from rmq_store.format.batches.row_entries import Entries, RowEntries
from rmq_store.format.bytes import native
from rmq_store.format.text.ids import UniqueIdGenerator
from rmq_store.protocol.errors import ReplayConflictError, TimerNotSupportedError
from rmq_store.protocol.messages import MessageQueue

needs_native = pytest.mark.skipif(not native.LOADED, reason="the extension was not built, or RMQ_PURE=1")

QUEUES = [MessageQueue("Orders", broker, number) for broker in ("a", "b") for number in range(3)]


class Topics:
    """Six queues for each topic; `found` is what an earlier attempt has stored."""

    def __init__(self, found: FoundKeys | None = None) -> None:
        self.found = found
        self.prepared: list[tuple[list[str], bool]] = []
        self.timed: list[list[str]] = []

    def prepare(self, topics: Sequence[str], delayed: bool) -> FoundKeys | None:
        self.prepared.append((list(topics), delayed))
        return self.found

    def wire_topic(self, topic: str) -> str:
        return topic

    def refuse_timers(self, topics: Sequence[str]) -> None:
        self.timed.append(list(topics))

    def queues(self, topic: str) -> Sequence[MessageQueue]:
        return [replace(queue, topic=topic) for queue in QUEUES]


def encoded(columns: dict[str, Any], topics: Topics | None = None, **settings: Any) -> list[Rows]:
    fields: dict[str, Any] = {"default_topic": "Orders"} | settings
    encoder = RowEncoder(
        EncoderSettings(**fields), topics or Topics(), KeyMaker(seed_of(["w", "0", "0"])),
        UniqueIdGenerator(b"\0" * 4, 1, 1),
    )  # fmt: skip
    return [made(rows) for rows in encoder.encode(pa.RecordBatch.from_pydict(columns), 100, 1)]


def made(rows: Rows | RowsToMake) -> Rows:
    """Rows whose entries are there."""
    if isinstance(rows, Rows):
        return rows
    all_of_them = rows.made(0, len(rows.sizes))
    assert np.diff(all_of_them.ends, prepend=0).tolist() == rows.sizes.tolist()
    return Rows(
        rows.target, rows.shared, rows.sizes, np.frombuffer(all_of_them.body, np.uint8), all_of_them.keys,
        all_of_them.checks, rows.first_row,
    )  # fmt: skip


BODIES = pa.array([b"0", b"1", b"2", b"3"])


def firsts(rows: list[Rows]) -> list[tuple[str, str | None, bytes]]:
    """Of all rows, target by target: topic, queue, body (of one byte)."""
    found = []
    for one in rows:
        at = 0
        for size in one.sizes.tolist():
            queue = one.target.queue
            place = None if queue is None else f"{queue.broker_name}:{queue.queue_id}"
            found.append((one.target.topic, place, one.entries[at + 20 : at + 21].tobytes()))
            at += size
    return found


def test_rows_without_a_wish_make_one_target() -> None:
    topics = Topics()
    (rows,) = encoded({"body": BODIES}, topics)
    assert (rows.target, rows.shared, rows.first_row) == (TargetQueue("Orders", None), Shared(0, 0, False), 100)
    assert topics.prepared == [(["Orders"], False)]


def test_rows_of_several_topics_keep_their_order_in_each() -> None:
    rows = encoded({"body": BODIES, "topic": ["B", "A", "B", "A"]}, default_topic=None)
    assert firsts(rows) == [("B", None, b"0"), ("B", None, b"2"), ("A", None, b"1"), ("A", None, b"3")]


def test_a_sharding_key_leads_to_one_queue_as_in_java() -> None:
    rows = encoded({"body": BODIES, "shardingKey": ["a", "b", None, "a"]})  # hashes 97 and 98
    assert [(place, body) for _, place, body in firsts(rows)] == [
        (None, b"2"), ("a:1", b"0"), ("a:1", b"3"), ("a:2", b"1"),
    ]  # fmt: skip


def test_a_queue_is_named_by_number_and_broker() -> None:
    columns = {"body": BODIES, "queueId": pa.array([0, 2, None, 0], pa.int32()), "brokerName": ["b", "a", "a", "a"]}
    assert {(place, body) for _, place, body in firsts(encoded(columns, use_queue_id=True))} == {
        ("b:0", b"0"), ("a:2", b"1"), (None, b"2"), ("a:0", b"3"),
    }  # fmt: skip
    with pytest.raises(UsageError, match=r"row 0, column 'queueId': 2 brokers have a queue 0 of topic 'Orders'"):
        encoded({"body": BODIES, "queueId": pa.array([0] * 4, pa.int32())}, use_queue_id=True)
    with pytest.raises(UsageError, match=r"row 1, column 'queueId': topic 'Orders' has no writable queue 7"):
        encoded({"body": BODIES, "queueId": pa.array([None, 7, None, None], pa.int32())}, use_queue_id=True)


def test_a_row_with_a_delay_goes_alone() -> None:
    topics = Topics()
    times = pa.array([None, None, 1_700_000_000_123_456, 5_000], pa.timestamp("us", "UTC"))
    levels = pa.array([0, 3, None, 2], pa.int32())
    rows = encoded({"body": BODIES, "delayLevel": levels, "deliverTimestamp": times}, topics)
    assert topics.prepared == [(["Orders"], True)]
    maker = ChunkMaker()
    chunks = [chunk for one in rows for chunk in maker.add(one)] + list(maker.flush())
    requests = [request_of(topics, chunk, QUEUES[0], "g", 5) for chunk in chunks]
    by_body = {
        bytes(one.body): one.ext_fields["i"].replace("\x01", "=").replace("\x02", " ")
        for one in requests
        if one.code == 310
    }
    assert set(by_body) == {b"1", b"2", b"3"}
    assert "DELAY=3 " in by_body[b"1"]
    assert "TIMER_DELIVER_MS=1700000000123 " in by_body[b"2"]
    assert "DELAY=2 " in by_body[b"3"]
    assert "TIMER_DELIVER_MS" not in by_body[b"3"]
    assert [one.ext_fields["i"] for one in requests if one.code == 320] == ["WAIT\x01true\x02"]


def test_a_row_that_makes_a_batch_too_long_goes_alone_and_is_no_delayed_one() -> None:
    topics = Topics()
    rows = encoded({"body": pa.array([b"a", b"b" * (4 << 20), b"c"])}, topics)
    assert [(one.shared.single, len(one.sizes)) for one in rows] == [(False, 1), (True, 1), (False, 1)]
    assert topics.prepared == [(["Orders"], False)]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"body": pa.array([b"1", b""])}, r"row 1, column 'body': it is empty"),
        ({"body": pa.array([b"1", None])}, r"row 1, column 'body': a message needs a body"),
        ({"body": pa.array([b"1", b"x" * (4 << 20) + b"x"])}, r"row 1, column 'body': 4194305 bytes"),
        ({"body": BODIES, "topic": ["A", "B", "SCHEDULE_TOPIC_XXXX", "C"]}, r"row 2, column 'topic': .* system topic"),
        ({"body": BODIES, "delayLevel": pa.array([0, -1, 0, 0], pa.int32())}, r"row 1, column 'delayLevel': -1"),
        ({"body": BODIES, "keys": ["k", "k" * 32_100, "k", "k"]}, r"row 1, column 'properties': about 321\d\d bytes"),
    ],
)
def test_what_brokers_do_not_take_is_refused_by_row_and_column(columns: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        encoded(columns, default_topic=None if "topic" in columns else "Orders")


def test_rows_that_are_stored_are_left_out_and_others_with_their_key_are_an_error() -> None:
    (all_rows,) = encoded({"body": BODIES})
    found = FoundKeys()
    found.add(all_rows.keys[:32], all_rows.checks[:2])
    left = encoded({"body": BODIES.take(pa.array([3, 1, 0, 2]))}, Topics(found))
    assert [body for _, _, body in firsts(left)] == [b"3", b"2"]
    forged = FoundKeys()
    forged.add(all_rows.keys[16:32], np.array([1], np.uint64))
    with pytest.raises(ReplayConflictError, match="row 101: ") as caught:
        encoded({"body": BODIES}, Topics(forged))
    assert caught.value.row == 101


def test_rows_with_unique_keys_of_their_own_keep_them() -> None:
    properties = pa.array([[("UNIQ_KEY", "mine")], None, None, None], pa.map_(pa.string(), pa.string()))
    (rows,) = encoded({"body": BODIES, "properties": properties}, keep_unique_key=True)
    text = rows.entries.tobytes()
    assert text.count(b"UNIQ_KEY\x01") == 4
    assert b"UNIQ_KEY\x01mine\x02" in text


def test_topics_with_deliver_times_are_named_before_anything_is_recorded() -> None:
    topics = Topics()
    topics.prepare = lambda names, delayed: pytest.fail("too late")  # type: ignore[method-assign]
    topics.refuse_timers = lambda names: (_ for _ in ()).throw(TimerNotSupportedError("a"))  # type: ignore[method-assign]
    due = pa.array([None, None, None, 1_700_000_000_000_000], pa.timestamp("us", "UTC"))
    with pytest.raises(TimerNotSupportedError):
        encoded({"body": BODIES, "deliverTimestamp": due}, topics)


def test_rows_without_a_deliver_time_need_no_timers() -> None:
    topics = Topics()
    due = pa.array([None, None, None, 1_700_000_000_000_000], pa.timestamp("us", "UTC"))
    encoded({"body": BODIES, "deliverTimestamp": due, "delayLevel": [0, 0, 0, 3]}, topics)
    encoded({"body": BODIES, "delayLevel": [1, 0, 0, 3]}, topics)
    assert topics.timed == []
    encoded({"body": BODIES, "deliverTimestamp": due}, topics)
    assert topics.timed == [["Orders"]]


def chunks_of(batches: list[pa.RecordBatch], **settings: Any) -> list[tuple[Any, ...]]:
    encoder = RowEncoder(
        EncoderSettings(**settings), Topics(), KeyMaker(seed_of(["w", "0", "0"])), UniqueIdGenerator(b"\0" * 4, 1, 1)
    )
    maker, made, first_row = ChunkMaker(), [], 0
    for batch in batches:
        for rows in encoder.encode(batch, first_row, 1):
            made += list(maker.add(rows))
        first_row += batch.num_rows
    made += list(maker.flush())
    return [
        (one.target, one.shared, one.body, one.ends.tolist(), one.keys.tobytes(), one.checks.tolist(), one.first_row)
        for one in made
    ]


def random_batch(random: np.random.Generator, topics: int, shards: int, delayed: float, times: int) -> pa.RecordBatch:
    count = int(random.integers(1, 900))
    numbers = random.integers(0, 300, count).tolist()
    is_delayed = random.random(count) < delayed
    return pa.RecordBatch.from_pydict(
        {
            "topic": pa.array([f"T{number % topics}" for number in numbers]),
            "body": pa.array([b"%d" % number * (1 + number % 90) for number in numbers], pa.binary()),
            "shardingKey": pa.array([f"s{number % shards}" if shards > 1 else None for number in numbers], pa.string()),
            "tags": pa.array([None if number % 3 else "Tag" for number in numbers], pa.string()),
            "properties": pa.array(
                [[("a", f"{number}")] if number % 2 else None for number in numbers], pa.map_(pa.string(), pa.string())
            ),
            "delayLevel": pa.array(np.where(is_delayed, 3, 0), pa.int32()),
            "bornTimestamp": pa.array(
                [None if times == 1 else 10**12 * (row * times // count) for row in range(count)],
                pa.timestamp("us", "UTC"),
            ),
        }
    )


@needs_native
@pytest.mark.parametrize(
    ("topics", "shards", "delayed", "times"),
    [(1, 1, 0, 1), (3, 1, 0, 1), (2, 4, 0, 1), (1, 1, 0.1, 1), (1, 1, 0, 3), (40, 9, 0, 1)],
)
def test_both_ways_of_encoding_make_the_same_chunks(
    topics: int, shards: int, delayed: float, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of some batches are usual, those of others are not; equal rows come in both."""
    random = np.random.default_rng(topics * 1000 + shards)
    batches = [random_batch(random, topics, shards, delayed if number % 2 else 0, times) for number in range(6)]
    monkeypatch.setattr("rmq_store.client.cluster_sink.chunks.CHUNK_BYTES", 20_000)
    usual_rows: list[int] = []
    write = RowEntries.write

    def noted(self: RowEntries, picked: np.ndarray, *given: Any) -> Entries:
        usual_rows.append(len(picked))
        return write(self, picked, *given)

    monkeypatch.setattr(RowEntries, "write", noted)
    ours = chunks_of(batches)
    assert bool(usual_rows) == (topics < 40)
    with monkeypatch.context() as patched:
        patched.setattr(native, "LOADED", False)
        assert ours == chunks_of(batches)


@needs_native
def test_rows_of_a_chunk_are_made_when_it_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmq_store.client.cluster_sink.chunks.CHUNK_BYTES", 1_000)
    made: list[int] = []
    write = RowEntries.write

    def noted(self: RowEntries, picked: np.ndarray, *given: Any) -> Entries:
        made.append(len(picked))
        return write(self, picked, *given)

    monkeypatch.setattr(RowEntries, "write", noted)
    encoder = RowEncoder(
        EncoderSettings(default_topic="Orders"), Topics(), KeyMaker(seed_of(["w"])), UniqueIdGenerator(b"\0" * 4, 1, 1)
    )
    (rows,) = encoder.encode(pa.RecordBatch.from_pydict({"body": pa.array([b"x" * 100] * 100)}), 0, 1)
    chunks = ChunkMaker().add(rows)
    assert made == []
    first = next(chunks)
    assert (first.row_count, len(made)) == (made[0], 1)


def test_rows_that_go_alone_are_ready_for_the_replay_check() -> None:
    encoder = RowEncoder(
        EncoderSettings(default_topic="Orders"), Topics(), KeyMaker(seed_of(["w"])), UniqueIdGenerator(b"\0" * 4, 1, 1)
    )
    batch = pa.RecordBatch.from_pydict({"body": BODIES, "delayLevel": pa.array([3] * 4, pa.int32())})
    assert all(isinstance(rows, Rows) for rows in encoder.encode(batch, 0, 1))
