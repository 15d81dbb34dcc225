"""Queues `%LMQ%...` of a broker: their entries point at messages of other topics."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from rmq_store import Message, Store, StoreConfig, UnknownTopicError
from rmq_store.cli import commands
from rmq_store.errors import CorruptQueueError
from rmq_store.format.properties.light_queues import is_dispatched
from rmq_store.format.views.consume_queue import ENTRY

from ..plain_log import SEGMENT_BYTES, PlainLog, in_rocksdb

CONFIG = StoreConfig(SEGMENT_BYTES, 2000, 50, 200)
QUEUE = "%LMQ%a"
DISPATCHED = [  # of each message of Events: the queues, and the offsets in them
    ("%LMQ%a", "0"), (None, None), ("%LMQ%a,%LMQ%b", "1,0"), ("%LMQ%b", "1"), ("%LMQ%b,%LMQ%a", "2,2"),
]  # fmt: skip


def put(root: Path, topic: str, rows: list[tuple[int, int]]) -> None:
    entries = np.zeros(100, ENTRY)
    for number, row in enumerate(rows):
        entries[number] = (*row, 7)
    path = root / "consumequeue" / topic / "0" / f"{0:020d}"
    path.parent.mkdir(parents=True)
    path.write_bytes(entries.tobytes())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Five messages of Events, three of which are in %LMQ%a, too."""
    log, places = PlainLog(), []
    for number, (queues, offsets) in enumerate(DISPATCHED):
        properties = {"TAGS": "t"}
        if queues and offsets:
            properties |= {"INNER_MULTI_DISPATCH": queues, "INNER_MULTI_QUEUE_OFFSET": offsets}
        start = log.add("Events", number, b"%d" % number, properties=properties)
        places.append((start, len(log.data) - start))
    root = log.save(tmp_path / "store")
    put(root, "Events", places)
    put(root, QUEUE, [places[0], places[2], places[4]])
    return root


def rows_of(store: Store, **options: object) -> list[dict[str, object]]:
    first, last = store.queue_range(QUEUE, 0)
    return [row for batch in store.read(QUEUE, 0, first, last, **options) for row in batch.to_pylist()]  # type: ignore[arg-type]


@pytest.mark.parametrize("read_only", [True, False])
def test_a_light_queue_has_the_messages_of_other_topics_as_they_are_stored(root: Path, read_only: bool) -> None:
    with Store.open(root, read_only=read_only, config=CONFIG) as store:
        assert store.queue_ranges(QUEUE) == {0: (0, 3)}
        assert [(row["topic"], row["queueOffset"], row["body"]) for row in rows_of(store)] == [
            ("Events", 0, b"0"), ("Events", 2, b"2"), ("Events", 4, b"4")
        ]  # fmt: skip
        assert len(rows_of(store, tags="other")) == 0
        times = [store.store_timestamp(QUEUE, 0, offset) for offset in range(3)]
        assert [store.offset_by_time(QUEUE, 0, time_ms) for time_ms in times] == [0, 1, 2]
    with Store.open(root, read_only=True, config=CONFIG) as store:  # and a writer leaves them alone
        assert store.queue_ranges(QUEUE) == {0: (0, 3)}


def test_an_entry_that_points_at_another_message_is_damage(root: Path) -> None:
    path = root / "consumequeue" / QUEUE / "0" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[20:40] = data[0:20]
    path.write_bytes(data)
    with Store.open(root, read_only=True, config=CONFIG) as store, pytest.raises(CorruptQueueError, match="entry 1 of"):
        rows_of(store)


def test_a_message_that_was_sent_to_the_queue_itself_is_its_message_too(root: Path) -> None:
    with Store.open(root, config=CONFIG) as store:
        assert store.send(Message(QUEUE, b"direct", queue_id=0)).queue_offset == 3
        assert [row["body"] for row in rows_of(store)] == [b"0", b"2", b"4", b"direct"]


@pytest.mark.parametrize(
    ("queues", "offsets", "expected"),
    [("%LMQ%a", "1", True), ("%LMQ%b,%LMQ%a", "7,1", True), ("%LMQ%ab", "1", False), ("%LMQ%a", "11", False),
     ("%LMQ%a,%LMQ%b", "2,1", False), ("%LMQ%b,%LMQ%a", "1", False), ("", "", False)],
)  # fmt: skip
def test_a_message_is_in_the_queues_that_it_names_at_the_offsets_that_it_names(
    queues: str, offsets: str, expected: bool
) -> None:
    properties = {"INNER_MULTI_DISPATCH": queues, "INNER_MULTI_QUEUE_OFFSET": offsets}
    assert is_dispatched(properties, QUEUE, 1) is expected
    assert is_dispatched({}, QUEUE, 1) is False


def test_the_commands_show_them_if_they_are_asked(root: Path) -> None:
    runner = CliRunner()
    assert QUEUE not in runner.invoke(commands, ["topics", "--store", str(root)]).stdout
    assert f"{QUEUE} *" in runner.invoke(commands, ["topics", "--all", "--store", str(root)]).stdout
    assert len(runner.invoke(commands, ["read", QUEUE, "--store", str(root)]).stdout.splitlines()) == 4


def test_those_that_a_broker_keeps_in_rocksdb_are_refused_by_name(root: Path, tmp_path: Path) -> None:
    (tmp_path / "bare").mkdir()
    (root / "commitlog").rename(tmp_path / "bare" / "commitlog")
    with Store.open(in_rocksdb(tmp_path / "bare"), read_only=True, config=CONFIG) as store:
        with pytest.raises(UnknownTopicError, match="light message queues that its broker keeps in RocksDB"):
            store.queue_ranges(QUEUE)
        assert store.queue_range("Events", 0) == (0, 5)
