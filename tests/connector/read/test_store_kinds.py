"""Spark and stores of kinds that are not written here: what only reads works, all else is refused before anything is
changed.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyspark_rmq.access import store_writer
from pyspark_rmq.access.store_location import StoreDirectory
from pyspark_rmq.options.options import Subscription, sink_options
from pyspark_rmq.read.starting_offsets import subscribed
from rmq_store import Store, StoreKindError, TopicKindError

Make = Callable[..., Any]


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.fixture
def double_write(make_store: Make) -> Path:
    path = Path(make_store(Orders=10))
    (path / "consumequeue" / "CURRENT").write_bytes(b"MANIFEST-000005\n")
    shutil.rmtree(path / "pyrmq")
    (path / "lock").write_bytes(b"lock")
    return path


def test_what_only_reads_reads_the_queues_in_files(double_write: Path) -> None:
    before = contents(double_write)
    with StoreDirectory(str(double_write)).open_to_read() as opened:
        ranges = subscribed(opened, Subscription(("Orders",)))
        assert sum(found.max_offset for found in ranges.values()) == 10
    assert contents(double_write) == before


def test_a_stream_with_a_group_and_every_sink_is_refused_before_anything_is_changed(double_write: Path) -> None:
    before, path = contents(double_write), str(double_write)
    sink = sink_options({"path": path, "topic": "Orders"}, "batch write")
    for attempt in (
        lambda: StoreDirectory(path).open_to_commit("cg"),
        lambda: store_writer.prepare_to_consume(path, "cg", 3),
        lambda: store_writer.prepare_to_write(sink),
        lambda: store_writer.is_there_to_write(sink),
        lambda: store_writer.prepare_to_send_back(sink_options({"path": path, "sendBack": "cg"}, "batch write")),
    ):
        with pytest.raises(StoreKindError, match="rocksdbCQDoubleWriteEnable"):
            attempt()
    assert contents(double_write) == before


@pytest.mark.parametrize("subscription", [Subscription(("Odd",)), Subscription(pattern="O.*")], ids=["name", "pattern"])
def test_a_topic_that_is_not_read_here_fails_a_query_that_names_or_matches_it(
    make_store: Make, subscription: Subscription
) -> None:
    path = Path(make_store(Odd=2, Orders=3))
    table = json.loads((path / "config" / "topics.json").read_text())
    table["topicConfigTable"]["Odd"]["attributes"] = {"cleanup.policy": "COMPACTION"}
    (path / "config" / "topics.json").write_text(json.dumps(table))
    with Store.open(path, read_only=True) as store:
        with pytest.raises(TopicKindError, match="'Odd'"):
            subscribed(store, subscription)  # type: ignore[arg-type]
        ranges = subscribed(store, Subscription(("Orders",)))  # type: ignore[arg-type]
        assert sum(found.max_offset for found in ranges.values()) == 3
