"""Messages that vanish between planning and reading, on real stores: what a task reports, and what it still reads."""

from __future__ import annotations

import json
import logging
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from pyspark_rmq.access.queue_source import SliceRead
from pyspark_rmq.access.spark_api import ReadAllAvailable, ReadMaxRows
from pyspark_rmq.options.options import source_options
from pyspark_rmq.position.planning import QueueSlice
from pyspark_rmq.position.position import Queue, StreamPosition
from pyspark_rmq.read.loss_detection import check_missing, existing_within
from pyspark_rmq.read.reader import RmqReader
from pyspark_rmq.read.stream_reader import RmqStreamReader
from pyspark_rmq.read.task import SlicePartition
from pyspark_rmq.schema.schema import SOURCE_SCHEMA
from pyspark_rmq.source import DefaultSource
from rmq_store import NotAStoreError, Store, UsageError, recorded_losses
from rmq_store.errors import CorruptQueueError, CorruptRecordError, DataLossError, OffsetOutOfRangeError
from rmq_store.files import durable

from ..conftest import Location

Make = Callable[..., Any]

# Spread over three segments of the log.
COUNT = 1000
BODY = b"x" * 2000


@pytest.fixture
def one_queue(make_store: Make) -> Path:
    """A store whose topic T has one queue with COUNT messages."""
    path: Path = make_store()
    with Store.open(path) as store:
        store.create_topic("T", 1)
        for _ in range(COUNT // 100):
            store.append(pa.record_batch({"body": pa.array([BODY] * 100)}), "T")
    return path


def planned(path: Path, **options: str) -> tuple[RmqReader, SlicePartition]:
    """A reader that has planned to read everything, in one task."""
    asked = source_options({"path": str(path), "subscribe": "T"} | options, "batch read", 0)
    schema = StructType([SOURCE_SCHEMA["queueOffset"]])
    reader = RmqReader(asked, schema)
    (partition,) = reader.partitions()
    assert isinstance(partition, SlicePartition)
    return reader, partition


def read(reader: RmqReader, partition: SlicePartition) -> list[int]:
    return [offset for batch in reader.read(partition) for offset in batch.column(0).to_pylist()]


def drop_first_segment(path: Path) -> int:
    """What retention does; returns the first offset that is left."""
    segments = sorted(path.glob("commitlog/*"))
    assert len(segments) > 2
    segments[0].unlink()
    with Store.open(path, read_only=True) as store:
        first = store.queue_range("T", 0).min_offset
    assert 0 < first < COUNT
    return first


def test_a_lost_beginning_is_named_exactly_and_the_rest_is_read(
    one_queue: Path, caplog: pytest.LogCaptureFixture
) -> None:
    strict, lenient = planned(one_queue), planned(one_queue, failOnDataLoss="false")
    first = drop_first_segment(one_queue)
    with pytest.raises(DataLossError) as raised:
        read(*strict)
    assert raised.value.ranges == [("T", 0, 0, first)]
    with caplog.at_level(logging.WARNING):
        assert read(*lenient) == list(range(first, COUNT))
    assert f"T-0 [0, {first})" in caplog.text


def test_a_lost_tail_is_named_exactly_and_the_rest_is_read(one_queue: Path, tmp_path: Path) -> None:
    shutil.copytree(one_queue, tmp_path / "backup")
    with Store.open(one_queue) as store:
        store.append(pa.record_batch({"body": pa.array([BODY] * 50)}), "T")
    strict, lenient = planned(one_queue), planned(one_queue, failOnDataLoss="false")
    assert strict[1].part == QueueSlice("T", 0, 0, COUNT + 50)
    shutil.rmtree(one_queue)
    shutil.copytree(tmp_path / "backup", one_queue)
    with pytest.raises(DataLossError) as raised:
        read(*strict)
    assert raised.value.ranges == [("T", 0, COUNT, COUNT + 50)]
    assert read(*lenient) == list(range(COUNT))
    drop_first_segment(one_queue)
    with pytest.raises(DataLossError) as raised:
        read(*strict)
    assert [part[2:] for part in raised.value.ranges] == [(0, read(*lenient)[0]), (COUNT, COUNT + 50)]


class ShrinkingStore:
    """A store in which messages vanish while they are read: each call of `read` gives what the next script says.

    A script is (offsets to deliver, minimum, maximum of the queue when it fails), or only offsets.
    """

    def __init__(self, *scripts: tuple[range, int, int] | range) -> None:
        self.scripts = list(scripts)
        self.asked: list[tuple[int, int]] = []

    def __enter__(self) -> ShrinkingStore:
        return self

    def __exit__(self, *exc_info: object) -> None:
        pass

    def read_slice(self, wanted: SliceRead) -> Iterator[pa.RecordBatch]:
        self.asked.append((wanted.part.start, wanted.part.end))
        script = self.scripts.pop(0)
        delivered = script if isinstance(script, range) else script[0]
        yield pa.record_batch({"queueOffset": pa.array(delivered, pa.int64())})
        if not isinstance(script, range):
            raise OffsetOutOfRangeError("gone", delivered.stop, script[1], script[2])


def test_what_was_delivered_before_the_loss_is_not_counted_as_lost_nor_read_again(
    one_queue: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark_rmq.read import task as module

    strict, lenient = planned(one_queue), planned(one_queue, failOnDataLoss="false")
    scripts = (range(0, 300), 400, COUNT), (range(400, 500), 700, 900), range(700, 900)
    monkeypatch.setattr(module, "location_of", lambda options: Location(ShrinkingStore(*scripts)))
    with pytest.raises(DataLossError) as raised:
        read(*strict)
    assert raised.value.ranges == [("T", 0, 300, 400)]
    store = ShrinkingStore(*scripts)
    monkeypatch.setattr(module, "location_of", lambda options: Location(store))
    assert read(*lenient) == [*range(0, 300), *range(400, 500), *range(700, 900)]
    assert store.asked == [(0, COUNT), (400, COUNT), (700, 900)]


def test_an_error_that_takes_nothing_away_is_not_tried_for_ever(
    one_queue: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark_rmq.read import task as module

    lenient = planned(one_queue, failOnDataLoss="false")
    store = ShrinkingStore((range(0, 300), 0, COUNT))
    monkeypatch.setattr(module, "location_of", lambda options: Location(store))
    with pytest.raises(OffsetOutOfRangeError):
        read(*lenient)


def test_a_user_schema_asks_the_store_for_its_columns_only(one_queue: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []
    real = Store.read

    def spy(store: Store, *place: Any, columns: list[str], **options: Any) -> Any:
        asked.append(list(columns))
        return real(store, *place, columns=columns, **options)

    monkeypatch.setattr(Store, "read", spy)
    assert read(*planned(one_queue)) == list(range(COUNT))
    assert asked == [["queueOffset"]]


def test_what_is_gone_is_recorded_once_whoever_reads_it_again(
    one_queue: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reader, partition = planned(one_queue, failOnDataLoss="false", group="cg")
    first = drop_first_segment(one_queue)
    with caplog.at_level(logging.WARNING, "pyspark_rmq.dataloss"):
        for _ in range(2):
            assert read(reader, partition) == list(range(first, COUNT))
        assert planned(one_queue, failOnDataLoss="false", group="cg")[1].part.start == first
    lines = [json.loads(record.message) for record in caplog.records if record.name == "pyspark_rmq.dataloss"]
    expected = {
        "group": "cg", "topic": "T", "queueId": 0, "startOffset": 0, "endOffset": first, "messages": first,
        "reason": "retention", "queryId": None, "batchId": None,
    }  # fmt: skip
    assert [line | {"time": 0} for line in lines] == [expected | {"store": str(one_queue), "time": 0}]
    (batch,) = RmqReport(one_queue).read()
    assert [{**row, "time": 0} for row in batch.to_pylist()] == [{"time": 0} | expected]


def test_a_reader_that_must_not_lose_anything_records_nothing(one_queue: Path) -> None:
    strict = planned(one_queue)
    drop_first_segment(one_queue)
    with pytest.raises(DataLossError):
        read(*strict)
    (batch,) = RmqReport(one_queue).read()
    assert batch.num_rows == 0


def test_what_a_tag_filter_leaves_out_is_no_loss(make_store: Make) -> None:
    path = make_store(T=100)
    options = source_options(
        {"path": str(path), "subscribe": "T", "tags": "TagB", "failOnDataLoss": "false"}, "batch read", 0
    )
    reader = RmqReader(options, StructType([SOURCE_SCHEMA["queueOffset"]]))
    assert sum(len(read(reader, partition)) for partition in reader.partitions()) == 50  # type: ignore[arg-type]
    assert next(RmqReport(path).read()).num_rows == 0


class RmqReport:
    """What `spark.read.format("rmq").option("dataLoss", "true")` reads of a store."""

    def __init__(self, path: Path, *columns: str) -> None:
        source = DefaultSource({"path": str(path), "dataLoss": "true"})
        schema = source.schema()
        assert isinstance(schema, StructType)
        self.reader = source.reader(StructType([schema[name] for name in columns]) if columns else schema)

    def read(self) -> Iterator[pa.RecordBatch]:
        return self.reader.read(None)  # type: ignore[arg-type, return-value]


def test_the_report_is_read_alone_and_by_columns(one_queue: Path, tmp_path: Path) -> None:
    (batch,) = RmqReport(one_queue, "reason", "time").read()
    assert batch.schema.names == ["reason", "time"]
    with pytest.raises(UsageError, match="dataLoss reads a report, not messages: subscribe"):
        DefaultSource({"path": str(one_queue), "dataLoss": "true", "subscribe": "T"}).schema()
    assert DefaultSource({"path": str(one_queue), "dataLoss": "false", "subscribe": "T"}).schema() == SOURCE_SCHEMA
    with pytest.raises(NotAStoreError):
        list(RmqReport(tmp_path / "nowhere").read())


@pytest.mark.parametrize(
    ("start", "end", "reason"), [(0, 5, "retention"), (95, 120, "rolled back"), (200, 300, "rolled back")]
)
def test_the_reason_says_on_which_side_it_was_lost(make_store: Make, start: int, end: int, reason: str) -> None:
    path = make_store()
    options = source_options({"path": str(path), "subscribe": "T", "failOnDataLoss": "false"}, "batch read", 0)
    existing_within([QueueSlice("T", 0, start, end)], {Queue("T", 0): (10, 100)}, options)
    assert [loss.reason for loss in recorded_losses(path)] == [reason]


def test_a_deleted_topic_is_a_loss_whose_end_nobody_knows(make_store: Make, fake_store: Make) -> None:
    path = make_store()
    options = source_options({"path": str(path), "subscribePattern": "T", "failOnDataLoss": "false"}, "stream read", 0)
    position = StreamPosition("", {Queue("T", 0): 7})
    check_missing(fake_store({}), position, [Queue("T", 0)], ["T"], (), options)
    (loss,) = recorded_losses(path)
    assert (loss.topic, loss.start, loss.end, loss.reason) == ("T", 7, None, "deleted topic")


def damage(path: Path, *offsets: int) -> None:
    """Overwrite the lengths of messages of T-0 in the log."""
    with Store.open(path, read_only=True) as store:
        places = [store.commit_log_offset_before("T", 0, offset + 1) for offset in offsets]
    size = sorted(path.glob("commitlog/*"))[0].stat().st_size
    for place in places:
        with sorted(path.glob("commitlog/*"))[place // size].open("r+b") as file:
            file.seek(place % size)
            file.write(b"\xff" * 8)


def test_damaged_messages_fail_a_read_and_are_left_out_and_reported_only_if_asked_for(one_queue: Path) -> None:
    damage(one_queue, 0, 300, 301, 900)
    for options in ({}, {"failOnDataLoss": "false"}):
        with pytest.raises(CorruptRecordError):
            read(*planned(one_queue, **options))
    assert recorded_losses(one_queue) == []
    skipping = planned(one_queue, failOnDataLoss="false", onCorruption="skip")
    for _ in range(2):
        assert read(*skipping) == [offset for offset in range(COUNT) if offset not in (0, 300, 301, 900)]
    assert [(loss.start, loss.end, loss.reason) for loss in recorded_losses(one_queue)] == [
        (0, 1, "corruption"), (300, 302, "corruption"), (900, 901, "corruption")
    ]  # fmt: skip
    with pytest.raises(UsageError, match=r"onCorruption=skip .* needs failOnDataLoss=false"):
        planned(one_queue, onCorruption="skip")


@pytest.mark.parametrize("how", ["removed", "kept"])
@pytest.mark.parametrize("only", ["all", "some rows"])
def test_a_lost_segment_is_one_loss_and_its_messages_are_not_tried_one_by_one(
    one_queue: Path, monkeypatch: pytest.MonkeyPatch, how: str, only: str
) -> None:
    """A try for each message cost a millisecond: hours for a segment of a gigabyte."""
    monkeypatch.setattr("pyspark_rmq.read.slice_reader._PIECE_ROWS", 100)
    size = sorted(one_queue.glob("commitlog/*"))[0].stat().st_size
    with Store.open(one_queue) as store:
        places = store.queue_entries("T", 0, 0, COUNT)["commit_log_offset"]
    lost = np.flatnonzero((places >= size) & (places < 2 * size))
    second = sorted(one_queue.glob("commitlog/*"))[1]
    if how == "removed":
        second.unlink()
    else:
        second.write_bytes(b"\xff" * size)
        Store.open(one_queue, on_corruption="keep", rebuild_views=True).close()
    damage(one_queue, 7)
    reader, part = planned(one_queue, failOnDataLoss="false", onCorruption="skip")
    wanted = np.arange(COUNT)
    if only == "some rows":
        part.rows = wanted = np.concatenate([wanted[:50], wanted[lost[0] - 1 :: 2]])
    tries = 0

    def counted(*arguments: Any, **named: Any) -> Iterator[Any]:
        nonlocal tries
        tries += 1
        return messages(*arguments, **named)

    messages = Store.read
    monkeypatch.setattr(Store, "read", counted)
    assert read(reader, part) == np.setdiff1d(wanted, [7, *lost]).tolist()
    assert tries < 60
    losses = [(loss.start, loss.end) for loss in recorded_losses(one_queue)]
    expected = [(int(lost[0]), int(lost[-1]) + 1)] if only == "all" else [
        (int(row), int(row) + 1) for row in np.intersect1d(lost, wanted)
    ]
    assert losses == [(7, 8), *expected]


def test_what_is_lost_is_asked_for_a_bounded_number_of_messages_at_once(
    one_queue: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyspark_rmq.read.slice_reader._LOST_ROWS", 64)
    asked = Mock(wraps=Store.lost_offsets)
    monkeypatch.setattr(Store, "lost_offsets", lambda *given, **options: asked(*given, **options))
    size = sorted(one_queue.glob("commitlog/*"))[0].stat().st_size
    with Store.open(one_queue) as store:
        places = store.queue_entries("T", 0, 0, COUNT)["commit_log_offset"]
    sorted(one_queue.glob("commitlog/*"))[1].unlink()
    lost = np.flatnonzero((places >= size) & (places < 2 * size))
    reader, part = planned(one_queue, failOnDataLoss="false", onCorruption="skip")
    assert read(reader, part) == np.setdiff1d(np.arange(COUNT), lost).tolist()
    assert max(call.args[4] - call.args[3] for call in asked.call_args_list) == 64
    losses = recorded_losses(one_queue)
    assert np.concatenate([np.arange(loss.start, loss.end) for loss in losses]).tolist() == lost.tolist()
    part.rows = np.array([3, 5, COUNT - 3])
    asked.reset_mock()
    assert read(reader, part) == [3, 5, COUNT - 3]
    assert [call.args[3:5] for call in asked.call_args_list] == [(3, 6), (COUNT - 3, COUNT - 2)]


def test_lost_messages_that_tags_leave_out_are_no_loss(one_queue: Path) -> None:
    sorted(one_queue.glob("commitlog/*"))[1].unlink()
    assert read(*planned(one_queue, failOnDataLoss="false", onCorruption="skip", tags="TagB")) == []
    assert recorded_losses(one_queue) == []


def test_what_is_removed_while_damage_is_read_around_is_told_too(one_queue: Path) -> None:
    skipping = planned(one_queue, failOnDataLoss="false", onCorruption="skip")
    damage(one_queue, COUNT - 10)
    first = drop_first_segment(one_queue)
    assert read(*skipping) == [offset for offset in range(first, COUNT) if offset != COUNT - 10]
    found = {(loss.start, loss.end, loss.reason) for loss in recorded_losses(one_queue)}
    assert found == {(0, first, "retention"), (COUNT - 10, COUNT - 9, "corruption")}


@pytest.mark.parametrize(
    "entry",
    [bytes(20), struct.pack(">qiq", -1, 2100, 0), struct.pack(">qiq", 0, 2100, 0)],
    ids=["zeroed", "negative", "of the first record"],
)
def test_a_damaged_queue_entry_is_left_out_and_nobody_says_that_retention_took_it(
    one_queue: Path, entry: bytes
) -> None:
    first = drop_first_segment(one_queue)
    damaged = first + 100
    (queue_file,) = (one_queue / "consumequeue" / "T" / "0").iterdir()
    with queue_file.open("r+b") as file:
        file.seek(20 * damaged)
        file.write(entry)
    place = rf"byte {20 * damaged}: entry {damaged} of T-0 \(bytes {20 * damaged} to {20 * damaged + 20} of the queue\)"
    for options in ({}, {"failOnDataLoss": "false"}):
        with pytest.raises(CorruptQueueError, match=place):
            read(*planned(one_queue, **options))
    skipping = {"failOnDataLoss": "false", "onCorruption": "skip"}
    sound = [offset for offset in range(first, COUNT) if offset != damaged]
    assert read(*planned(one_queue, **skipping)) == sound
    reader, part = planned(one_queue, **skipping)
    part.rows = np.arange(first, COUNT)
    assert read(reader, part) == sound
    losses = [(loss.start, loss.end, loss.reason) for loss in recorded_losses(one_queue)]
    assert losses == [(damaged, damaged + 1, "corruption")]


def test_what_was_read_around_damage_before_retention_came_is_not_dropped(
    one_queue: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A piece is held back until it is known to be sound; its rows vanished with it when its second segment did."""
    damage(one_queue, 100)
    skipping = planned(one_queue, failOnDataLoss="false", onCorruption="skip")
    first, second = sorted(str(segment) for segment in one_queue.glob("commitlog/*"))[:2]

    def retention(operation: str, path: str) -> None:
        if operation == "open" and path == second:
            monkeypatch.setattr(durable, "hook", None)
            Path(first).unlink()
            Path(second).unlink()

    monkeypatch.setattr(durable, "hook", retention)
    found = read(*skipping)
    losses = [(loss.start, loss.end, loss.reason) for loss in recorded_losses(one_queue)]
    lost = [offset for start, end, _ in losses for offset in range(start, end)]
    assert sorted(found + lost) == list(range(COUNT))
    assert found[0] == 0 and {reason for _, _, reason in losses} == {"corruption", "retention"}


def test_of_what_retention_takes_while_damage_is_read_around_nothing_is_named_twice(
    one_queue: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = sorted(str(segment) for segment in one_queue.glob("commitlog/*"))[:2]
    Path(second).unlink()
    skipping = planned(one_queue, failOnDataLoss="false", onCorruption="skip")

    def retention(operation: str, path: str) -> None:
        if operation == "open" and path == first:
            monkeypatch.setattr(durable, "hook", None)
            Path(first).unlink()

    monkeypatch.setattr(durable, "hook", retention)
    found = read(*skipping)
    losses = [(loss.start, loss.end, loss.reason) for loss in recorded_losses(one_queue)]
    assert losses == [(0, found[0], "retention")]
    assert found == list(range(found[0], COUNT))


@pytest.mark.parametrize("piece_rows", [100, 300, 8192])
def test_a_lost_tail_is_named_once_and_nothing_is_read_twice_around_damage(
    one_queue: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece_rows: int
) -> None:
    monkeypatch.setattr("pyspark_rmq.read.slice_reader._PIECE_ROWS", piece_rows)
    shutil.copytree(one_queue, tmp_path / "backup")
    with Store.open(one_queue) as store:
        store.append(pa.record_batch({"body": pa.array([BODY] * 550)}), "T")
    skipping = planned(one_queue, failOnDataLoss="false", onCorruption="skip")
    shutil.rmtree(one_queue)
    shutil.copytree(tmp_path / "backup", one_queue)
    assert read(*skipping) == list(range(COUNT))
    assert [(loss.start, loss.end) for loss in recorded_losses(one_queue)] == [(COUNT, COUNT + 550)]


def test_a_store_that_was_set_back_and_sent_as_many_messages_of_the_same_size_is_noticed(
    one_queue: Path, tmp_path: Path
) -> None:
    """Each lies where the one lay that the query had read; it went on behind them without a word."""
    shutil.copytree(one_queue, tmp_path / "backup")

    def send(count: int) -> None:
        with Store.open(one_queue) as store:
            store.append(pa.record_batch({"body": pa.array([BODY] * count)}), "T")

    def reader() -> RmqStreamReader:
        given = {"path": str(one_queue), "subscribe": "T", "startingOffsets": "earliest"}
        return RmqStreamReader(source_options(given, "stream read", 0), StructType([SOURCE_SCHEMA["queueOffset"]]))

    send(50)
    first = reader()
    end = first.latestOffset(first.initialOffset(), ReadAllAvailable())
    first.stop()
    assert reader().latestOffset(end, ReadAllAvailable()) == end
    shutil.rmtree(one_queue)
    shutil.copytree(tmp_path / "backup", one_queue)
    send(60)
    with pytest.raises(DataLossError, match=f"message {COUNT + 49} of queue T-0 was at") as raised:
        reader().latestOffset(end, ReadAllAvailable())
    assert raised.value.ranges == [("T", 0, COUNT, COUNT + 50)]


def test_retention_does_not_wait_for_a_planner_that_has_looked_at_the_message_before(one_queue: Path) -> None:
    given = {"path": str(one_queue), "subscribe": "T", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "10"}
    reader = RmqStreamReader(source_options(given, "stream read", 0), StructType([SOURCE_SCHEMA["queueOffset"]]))
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    end = reader.latestOffset(start, ReadMaxRows(10))
    assert end["after"]["T"]["0"] < 1 << 20, "in the first segment"
    with Store.open(one_queue) as store:
        assert store.retention.run(manual=True, file_reserved_time=0).removed
    reader.stop()


def test_retention_does_not_wait_for_a_planner_that_found_nothing_new(make_store: Make) -> None:
    """It looks at the newest message that it had read, which may be an old one."""
    path = make_store(Quiet=1, T=1)
    given = {"path": str(path), "subscribe": "Quiet", "startingOffsets": "earliest"}
    reader = RmqStreamReader(source_options(given, "stream read", 0), StructType([SOURCE_SCHEMA["queueOffset"]]))
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    with Store.open(path) as store:
        for _ in range(COUNT // 100):
            store.append(pa.record_batch({"body": pa.array([BODY] * 100)}), "T")
        assert reader.latestOffset(end, ReadAllAvailable()) == end
        assert store.retention.run(manual=True, file_reserved_time=0).removed
    reader.stop()


def test_retention_waits_for_what_a_batch_has_planned(one_queue: Path) -> None:
    """The planning process holds the batch's segments until the batch is completed."""
    given = {"path": str(one_queue), "subscribe": "T", "startingOffsets": "earliest"}
    reader = RmqStreamReader(source_options(given, "stream read", 0), StructType([SOURCE_SCHEMA["queueOffset"]]))
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    (partition,) = reader.partitions(start, end)
    with Store.open(one_queue) as store:
        assert store.retention.run(manual=True, file_reserved_time=0).removed == ()
        assert read(reader, partition) == list(range(COUNT))  # type: ignore[arg-type]
        assert reader.latestOffset(end, ReadAllAvailable()) == end
        assert store.retention.run(manual=True, file_reserved_time=0).removed
    reader.stop()
