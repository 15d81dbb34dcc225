"""The life of a stream on real stores, call by call, without Spark."""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from pyspark_rmq import group as group_module
from pyspark_rmq.options import source_options
from pyspark_rmq.schema import SOURCE_SCHEMA
from pyspark_rmq.stream_reader import RmqStreamReader
from rmq_store import Store
from rmq_store.errors import DataLossError, LeaseHeldError

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
    make_store: Make, add_messages: Make, opened: Open, monkeypatch: pytest.MonkeyPatch
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
        assert looks == []
        # a message, a topic without messages, and both are seen at once
        add_messages(path, "Orders", 10, 11)
        later = reader.latestOffset(at, LIMIT)
        assert len(rows(reader, at, later)) == 1
        with Store.open(path) as store:
            store.create_topic(f"Ord{len(options)}", 1)
        last = reader.latestOffset(later, LIMIT)
        assert f"Ord{len(options)}" in last["topics"]
        assert reader.latestOffset(last, LIMIT) == last
        reader.stop()


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
