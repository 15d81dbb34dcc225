"""The life of a stream on real stores, call by call, without Spark."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pyspark_rmq.access.spark_api import ReadMaxRows
from pyspark_rmq.access.store_pool import DirectoryIdentity
from pyspark_rmq.options.options import source_options
from pyspark_rmq.read import group as group_module
from pyspark_rmq.read import stream_reader as stream_reader_module
from pyspark_rmq.read.idle_poll import FULL_POLL_INTERVAL_S
from pyspark_rmq.read.stream_reader import RmqStreamReader
from pyspark_rmq.schema.schema import SOURCE_SCHEMA
from rmq_store import ClockFile, Message, Store, StoreConfig
from rmq_store.errors import DataLossError, LeaseHeldError, NotAStoreError, UsageError

Make = Callable[..., Any]
Open = Callable[..., RmqStreamReader]
LIMIT = ReadMaxRows(1)  # only says that it is not Trigger.Once


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    """Make a stream reader as a new planning process would: `opened(path, **options)`."""
    monkeypatch.setattr(group_module, "CLAIM_TIMEOUT_S", 0.0)
    made: list[RmqStreamReader] = []

    def make(path: Path, **options: str) -> RmqStreamReader:
        asked = source_options({"path": str(path)} | options, "stream read", 1_000_000)
        made.append(RmqStreamReader(asked, SOURCE_SCHEMA))
        return made[-1]

    yield make
    for reader in made:
        reader.stop()


class StreamTime:
    """The clock of the stream reader: stands still until a test lets it pass."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s

    def a_moment_later(self) -> None:
        self.now_s += FULL_POLL_INTERVAL_S


@pytest.fixture(autouse=True)
def stream_time(monkeypatch: pytest.MonkeyPatch) -> StreamTime:
    """As if all calls of a test came within a moment: what is noticed then is noticed at once."""
    made = StreamTime()
    monkeypatch.setattr(stream_reader_module, "monotonic", made.monotonic)
    return made


def first_batch(reader: RmqStreamReader) -> tuple[dict[str, Any], dict[str, Any]]:
    start = reader.initialOffset()
    return start, json.loads(json.dumps(reader.latestOffset(start, LIMIT)))


def rows(reader: RmqStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[str, str]]:
    """(topic, body) of what the tasks of a batch read."""
    return sorted(
        (row["topic"], row["body"].decode())
        for partition in reader.partitions(start, end)
        for batch in reader.read(partition)
        for row in batch.to_pylist()
    )


def edit(path: Path, name: str, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a table as an administrator's tool does while nothing else runs."""
    file = path / "config" / name
    # RocketMQ does not quote integer keys.
    table = json.loads(re.sub(r"([{,]\s*)([0-9]+):", r'\1"\2":', file.read_text(encoding="utf-8")))
    change(table)
    file.write_text(json.dumps(table), encoding="utf-8")


def test_idle_polls_do_not_look_at_every_queue_and_miss_nothing(
    make_store: Make, add_messages: Make, opened: Open, stream_time: StreamTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_store(Orders=10)
    looks: list[str] = []
    real = Store.queue_ranges

    def spy(store: Store, topic: str) -> Any:
        looks.append(topic)
        return real(store, topic)

    monkeypatch.setattr(Store, "queue_ranges", spy)
    for options in ({"group": "g"}, {}):
        reader = opened(path, subscribePattern="Ord.*", startingOffsets="earliest", **options)
        _, at = first_batch(reader)
        assert reader.latestOffset(at, LIMIT) == at
        looks.clear()
        for _ in range(5):
            assert reader.latestOffset(dict(at), LIMIT) == at
            stream_time.a_moment_later()
        assert looks == []
        # a message, a topic without messages, and both are seen
        add_messages(path, "Orders", 10, 11)
        later = reader.latestOffset(at, LIMIT)
        assert len(rows(reader, at, later)) == 1
        with Store.open(path) as store:
            store.create_topic(f"Ord{len(options)}", 1)
        stream_time.a_moment_later()
        last = reader.latestOffset(later, LIMIT)
        assert f"Ord{len(options)}" in last["topics"]
        assert reader.latestOffset(last, LIMIT) == last
        reader.stop()


@pytest.mark.parametrize("group", [{}, {"group": "g"}])
@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_between_two_whole_looks_only_the_end_of_the_log_is_looked_at_and_new_messages_are_seen_at_once(
    tmp_path: Path, opened: Open, stream_time: StreamTime, monkeypatch: pytest.MonkeyPatch,
    flush: str, group: dict[str, str],
) -> None:  # fmt: skip
    """Spark asks 95 times a second, and to look at everything each time took most of an idle query's processor time."""
    path, config = tmp_path / "store", StoreConfig(mapped_file_size_commit_log=1 << 20, flush_disk_type=flush)
    with Store.open(path, create=True, config=config) as store:
        store.create_topic("Orders", 1)
        store.send(Message("Orders", b"0"))
    whole_looks: list[str] = []

    def seen(what: str, real: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *given: (whole_looks.append(what), real(*given))[1]

    monkeypatch.setattr(DirectoryIdentity, "is_unchanged", seen("place", DirectoryIdentity.is_unchanged))
    monkeypatch.setattr(Store, "topics", seen("topics", Store.topics))
    reader = opened(path, subscribe="Orders", startingOffsets="earliest", **group)
    _, at = first_batch(reader)
    for with_writer in (False, True):
        writer = Store.open(path) if with_writer else None
        stream_time.a_moment_later()
        assert reader.latestOffset(at, LIMIT) == at
        whole_looks.clear()
        assert all(reader.latestOffset(at, LIMIT) == at for _ in range(20))
        assert not whole_looks
        for number in range(3):  # one after the other, at the same moment
            with contextlib.nullcontext(writer) if writer else Store.open(path) as store:
                store.send(Message("Orders", b"%d" % number))
            at, before = reader.latestOffset(at, LIMIT), at
            assert len(rows(reader, before, at)) == 1
            assert reader.reportLatestOffset()["topics"] == at["topics"]  # type: ignore[index]
            assert reader.latestOffset(at, LIMIT) == at
        assert reader.reportLatestOffset() is reader.reportLatestOffset()
        stream_time.a_moment_later()
        whole_looks.clear()
        assert reader.latestOffset(at, LIMIT) == at
        assert set(whole_looks) == {"place", "topics"}
        if writer:
            writer.close()


def test_that_there_is_nothing_behind_one_position_is_no_answer_to_another(make_store: Make, opened: Open) -> None:
    reader = opened(make_store(Orders=4), subscribe="Orders", startingOffsets="earliest")
    start, at = first_batch(reader)
    assert reader.latestOffset(at, LIMIT) == at
    assert reader.latestOffset(start, LIMIT) == at | {"began": start["topics"]}


def test_a_message_that_is_due_is_delivered_at_the_next_look_of_an_idle_query(make_store: Make, opened: Open) -> None:
    path = make_store(Orders=1)
    clock = ClockFile.create(path / "pyrmq" / "clock", 1_700_000_000_000)
    reader = opened(path, subscribe="Orders", startingOffsets="earliest", group="g")
    with Store.open(path) as store:
        store.send(Message("Orders", b"late", delay_level=1))
    _, at = first_batch(reader)
    for _ in range(3):
        assert reader.latestOffset(at, LIMIT) == at
        clock.advance(300)
    clock.advance(100)
    assert rows(reader, at, reader.latestOffset(at, LIMIT)) == [("Orders", "late")]


def test_messages_that_came_with_a_late_topic_and_a_stale_offset_are_not_skipped(
    make_store: Make, opened: Open, caplog: pytest.LogCaptureFixture
) -> None:
    path = make_store(Orders=4)
    with Store.open(path) as store:
        store.commit_offsets("g", {("Ordinary", 0): 50})  # of a topic of this name that was deleted
    for fail in ("true", "false"):
        reader = opened(path, subscribePattern="Ord.*", group="g", startingOffsets="earliest", failOnDataLoss=fail)
        _, at = first_batch(reader)
        with Store.open(path) as store:
            store.create_topic("Ordinary", 1, exist_ok=True)
            store.append(pa.record_batch({"body": pa.array([b"new"])}), "Ordinary")
        if fail == "true":
            with pytest.raises(DataLossError, match=r"Ordinary-0 \[1, 50\) do not exist"):
                reader.latestOffset(at, LIMIT)
            reader.stop()
            edit(path, "topics.json", lambda table: table["topicConfigTable"].pop("Ordinary"))
        else:
            later = reader.latestOffset(at, LIMIT)
            assert rows(reader, at, later) == [("Ordinary", "new")] * 2


def test_a_query_of_a_group_starts_again_without_one_of_its_topics(make_store: Make, opened: Open) -> None:
    path = make_store(Orders=4, Others=4)
    reader = opened(path, subscribe="Orders,Others", group="g", startingOffsets="earliest")
    _, at = first_batch(reader)
    reader.stop()
    again = opened(path, subscribe="Orders", group="g")
    again.latestOffset(at, LIMIT)
    again.commit(at)
    with Store.open(path, read_only=True) as store:
        committed = store.committed_offsets("g")
    assert sum(offset for (topic, _), offset in committed.items() if topic == "Orders") == 4
    assert all(offset == 0 for (topic, _), offset in committed.items() if topic == "Others")


def test_a_lowered_read_queue_count_loses_nothing_silently(make_store: Make, add_messages: Make, opened: Open) -> None:
    path = make_store(Orders=8)
    start, at = first_batch(opened(path, subscribe="Orders", startingOffsets="earliest"))
    add_messages(path, "Orders", 8, 16)
    edit(path, "topics.json", lambda table: table["topicConfigTable"]["Orders"].update(readQueueNums=3))
    with pytest.raises(DataLossError) as raised:
        opened(path, subscribe="Orders").latestOffset(at, LIMIT)
    assert [part[:2] for part in raised.value.ranges] == [("Orders", 3)]
    # what was planned before is still there
    assert len(rows(opened(path, subscribe="Orders", startingOffsets="earliest"), start, at)) == 8


def test_an_offset_of_minus_one_in_a_brokers_table_is_none(make_store: Make, opened: Open) -> None:
    path = make_store(Orders=8)
    with Store.open(path) as store:
        store.commit_offsets("g", {("Orders", queue): 1 for queue in range(4)})
    edit(path, "consumerOffset.json", lambda table: table["offsetTable"]["Orders@g"].update({"2": -1}))
    reader = opened(path, subscribe="Orders", group="g", startingOffsets="latest")
    start, end = first_batch(reader)
    assert start["topics"]["Orders"] == {"0": 1, "1": 1, "2": 2, "3": 1}
    assert reader.latestOffset(end, LIMIT) == end


def test_who_is_refused_learns_name_host_and_process_of_the_holder(make_store: Make, opened: Open) -> None:
    path = make_store(Orders=1)
    opened(path, subscribe="Orders", group="g", consumerName="nightly report").initialOffset()
    expected = f"nightly report on {socket.gethostname()}, driver process {os.getppid()}"
    with pytest.raises(LeaseHeldError, match=re.escape(expected)):
        opened(path, subscribe="Orders", group="g").initialOffset()


def move_and_copy(path: Path, backup: Path) -> None:
    path.rename(path.with_name("moved"))
    shutil.copytree(backup, path)


def delete_and_copy(path: Path, backup: Path) -> None:
    shutil.rmtree(path)
    shutil.copytree(backup, path)


def delete_and_make(path: Path, backup: Path) -> None:
    shutil.rmtree(path)
    with Store.open(path, create=True) as store:
        store.create_topic("Orders", 4)


def replace_each_file(path: Path, backup: Path) -> None:
    """As rsync does: each file is renamed to where the old one is."""
    for file in backup.rglob("*"):
        if file.is_file():
            copy = path / file.relative_to(backup).with_name(".copy")
            shutil.copyfile(file, copy)
            copy.rename(copy.with_name(file.name))


def overwrite_each_file(path: Path, backup: Path) -> None:
    """As cp does."""
    for file in backup.rglob("*"):
        if file.is_file():
            (path / file.relative_to(backup)).write_bytes(file.read_bytes())


@pytest.mark.parametrize("group", [{}, {"group": "g"}])
@pytest.mark.parametrize(
    ("replace", "error", "text"),
    [
        (move_and_copy, DataLossError, "was rolled back or replaced"),
        (delete_and_copy, DataLossError, "was rolled back or replaced"),
        (delete_and_make, UsageError, "another store needs another checkpoint"),
    ],
)
def test_a_store_that_is_replaced_under_a_running_stream_is_noticed_at_the_next_look(
    make_store: Make, add_messages: Make, opened: Open, stream_time: StreamTime, tmp_path: Path,
    replace: Callable[[Path, Path], None], error: type[Exception], text: str, group: dict[str, str],
) -> None:  # fmt: skip
    """It was looked at for ever where it was moved to; or what others had written at its offsets was skipped."""
    path = make_store(Orders=20)
    shutil.copytree(path, tmp_path / "backup")
    add_messages(path, "Orders", 20, 40)
    reader = opened(path, subscribe="Orders", startingOffsets="earliest", **group)
    start, at = first_batch(reader)
    assert len(rows(reader, start, at)) == 40
    assert reader.latestOffset(at, LIMIT) == at
    replace(path, tmp_path / "backup")
    add_messages(path, "Orders", 100, 200)
    if group:
        with pytest.raises(error, match=text):
            reader.commit(at)
        with Store.open(path, read_only=True) as store:
            # Not the place in the store that was there before.
            assert not any(store.committed_offsets("g").values())
    stream_time.a_moment_later()
    for running in (reader, opened(path, subscribe="Orders", **group)):
        for _ in range(2):
            with pytest.raises(error, match=text):
                running.latestOffset(at, LIMIT)
        running.stop()


@pytest.mark.parametrize("replace", [replace_each_file, overwrite_each_file])
def test_files_that_are_replaced_where_they_lie_under_a_running_stream_are_noticed(
    make_store: Make, add_messages: Make, opened: Open, stream_time: StreamTime, tmp_path: Path,
    replace: Callable[[Path, Path], None],
) -> None:  # fmt: skip
    """Where it had been, it skipped what had come instead, and forgot in its next position that there was anything."""
    path = make_store(Orders=20)
    shutil.copytree(path, tmp_path / "backup")
    add_messages(path, "Orders", 20, 40)
    reader = opened(path, subscribe="Orders", startingOffsets="earliest")
    _, at = first_batch(reader)
    assert reader.latestOffset(at, LIMIT) == at
    replace(path, tmp_path / "backup")
    add_messages(path, "Orders", 100, 200)
    stream_time.a_moment_later()
    for _ in range(2):
        with pytest.raises(DataLossError, match="was rolled back or replaced") as raised:
            reader.latestOffset(at, LIMIT)
    assert sum(end - start for _, _, start, end in raised.value.ranges) == 20


def test_a_batch_that_was_planned_of_a_replaced_store_is_not_read_of_the_new_one(
    make_store: Make, add_messages: Make, opened: Open, tmp_path: Path
) -> None:
    path = make_store(Orders=20)
    shutil.copytree(path, tmp_path / "backup")
    add_messages(path, "Orders", 20, 40)
    reader = opened(path, subscribe="Orders", startingOffsets="earliest")
    start, at = first_batch(reader)
    move_and_copy(path, tmp_path / "backup")
    add_messages(path, "Orders", 100, 200)
    with pytest.raises(DataLossError, match="was rolled back or replaced"):
        reader.partitions(start, at)


@pytest.mark.parametrize("group", [{}, {"group": "g"}])
def test_a_stream_whose_store_is_gone_says_so_and_goes_on_when_it_is_back(
    make_store: Make, add_messages: Make, opened: Open, tmp_path: Path, group: dict[str, str]
) -> None:
    path = make_store(Orders=20)
    reader = opened(path, subscribe="Orders", startingOffsets="earliest", **group)
    _, at = first_batch(reader)
    path.rename(tmp_path / "unmounted")
    for _ in range(2):
        with pytest.raises(NotAStoreError):
            reader.latestOffset(at, LIMIT)
    (tmp_path / "unmounted").rename(path)
    add_messages(path, "Orders", 20, 30)
    assert len(rows(reader, at, reader.latestOffset(at, LIMIT))) == 10
    # a copy of all of it is as good: nothing that was read is missing there
    shutil.copytree(path, tmp_path / "copy")
    path.rename(tmp_path / "old")
    (tmp_path / "copy").rename(path)
    at = reader.latestOffset(at, LIMIT)
    add_messages(path, "Orders", 30, 35)
    assert len(rows(reader, at, reader.latestOffset(at, LIMIT))) == 5
