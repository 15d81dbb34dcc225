"""A sector of a queue that rots behind killed writers, or while the store is open: no queue ends there, and none loses
what lies behind it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rmq_store import Message, Store, StoreConfig
from rmq_store.files import durable
from rmq_store.log.flush import save_progress

QUEUE = ("Alpha", 0)
COUNT = 120
SECTOR = 512
# The last sector holds the queue's end: only records that were dispatched again tell of that.
SECTORS = range(20 * COUNT // SECTOR)


@pytest.fixture
def rotting(lab: Any) -> Any:
    """One queue of COUNT messages in one file, below the progress record; nothing was closed, and no table written."""
    lab.config = StoreConfig(mapped_file_size_consume_queue=20 * 200, flush_interval_commit_log=10**9)

    def work(store: Store) -> None:
        add(store, COUNT)
        save_progress(store._log)

    lab.crash(work)
    return lab


def add(store: Store, count: int) -> None:
    rows = {"topic": ["Alpha"] * count, "queueId": pa.array([0] * count, pa.int32()),
            "body": pa.array([b"%08d" % number for number in range(count)], pa.binary())}  # fmt: skip
    store.append(pa.RecordBatch.from_pydict(rows))


def rot(lab: Any, sector: int, byte: bytes = b"\0") -> None:
    queue: Path = lab.root / "consumequeue" / "Alpha" / "0"
    with max(queue.iterdir()).open("r+b") as file:
        file.seek(SECTOR * sector)
        file.write(SECTOR * byte)


def bodies(store: Store) -> list[int]:
    parts = store.read(*QUEUE, *store.queue_range(*QUEUE), columns=["body"])
    return [int(body[:8]) for part in parts for body in part.column("body").to_pylist()]


@pytest.mark.parametrize("sector", SECTORS)
@pytest.mark.parametrize("byte", [b"\0", b"\xff"])
@pytest.mark.parametrize("state", ["killed", "rebooted"])
def test_behind_killed_writers_no_queue_ends_in_a_rotten_sector(
    rotting: Any, sector: int, byte: bytes, state: str
) -> None:
    if state == "rebooted":
        rotting.reboot()
    rot(rotting, sector, byte)
    with rotting.open(read_only=True) as store:
        assert store.queue_range(*QUEUE) == (0, COUNT)
    with rotting.open() as store:
        assert store.queue_range(*QUEUE) == (0, COUNT)
        assert store.send(Message("Alpha", b"%08d" % COUNT, queue_id=0)).queue_offset == COUNT
    with rotting.open() as store:
        assert store.queue_range(*QUEUE) == (0, COUNT + 1)


@pytest.mark.parametrize("state", ["killed", "rebooted"])
def test_the_entries_that_decide_on_the_end_are_taken_from_the_log(
    rotting: Any, state: str, caplog: pytest.LogCaptureFixture
) -> None:
    if state == "rebooted":
        rotting.reboot()
    rot(rotting, 100 * 20 // SECTOR)  # the first middle of the bisection
    with rotting.open() as store:
        assert store.recovery is not None
        assert store.recovery.trust == "COPY"
        assert bodies(store) == list(range(COUNT))
    assert "entries of 1 queues are damaged, of Alpha-0 first" in caplog.text
    assert rotting.is_sound()


def test_an_append_that_is_taken_back_takes_no_entries_behind_a_rotten_sector(rotting: Any) -> None:
    with rotting.open() as store:
        log = store._log
        rot(rotting, 100 * 20 // SECTOR)
        log.views.cut_queues(store.log_range()[1], [QUEUE], log.is_record_of)
        assert store.queue_range(*QUEUE) == (0, COUNT)


@pytest.mark.parametrize("sector", SECTORS)
def test_in_an_open_store_no_queue_ends_in_a_rotten_sector(rotting: Any, sector: int) -> None:
    with rotting.open() as first, rotting.open() as second, rotting.open(read_only=True) as reader:
        assert reader.queue_range(*QUEUE) == (0, COUNT)
        rot(rotting, sector)
        for store in (first, second, reader):
            assert store.queue_range(*QUEUE) == (0, COUNT)
        assert second.send(Message("Alpha", b"x", queue_id=0)).queue_offset == COUNT
        assert first.send(Message("Alpha", b"x", queue_id=0)).queue_offset == COUNT + 1


@pytest.mark.parametrize("sector", SECTORS)
@pytest.mark.parametrize("state", ["killed", "rebooted"])
@pytest.mark.parametrize("closed", [1, 60, 119])
def test_a_queue_that_has_grown_since_a_close_does_not_end_in_a_rotten_sector(
    lab: Any, sector: int, state: str, closed: int
) -> None:
    lab.config = StoreConfig(mapped_file_size_consume_queue=20 * 2000, flush_interval_commit_log=10**9)
    with lab.open() as store:
        add(store, closed)

    def work(store: Store) -> None:
        add(store, COUNT - closed)
        save_progress(store._log)

    lab.crash(work)
    if state == "rebooted":
        lab.reboot()
    rot(lab, sector)
    with lab.open() as store:
        assert store.queue_range(*QUEUE) == (0, COUNT)
        assert store.send(Message("Alpha", b"x", queue_id=0)).queue_offset == COUNT


@pytest.mark.parametrize("has_table", [True, False])
def test_queues_that_killed_writers_left_are_opened_few_times_and_not_kept_open(
    lab: Any, monkeypatch: pytest.MonkeyPatch, has_table: bool
) -> None:
    lab.config = StoreConfig(mapped_file_size_consume_queue=20 * 2000)
    rows = {"queueId": pa.array(range(30), pa.int32()), "body": pa.array([b"x"] * 30, pa.binary())}
    with lab.open() as store:
        store.create_topic("Beta", queue_count=30)
        store.append(pa.RecordBatch.from_pydict(rows), topic="Beta")
    lab.crash(lambda store: store.append(pa.RecordBatch.from_pydict(rows), topic="Beta"))
    if not has_table:
        (lab.root / "pyrmq" / "queue_ends.json").unlink()
    opened: list[Path] = []
    monkeypatch.setattr(durable, "hook", lambda operation, path: opened.append(Path(path).parent)
                        if operation == "open" and "consumequeue" in path else None)  # fmt: skip
    with lab.open() as store:
        assert not [path for path in store._log.files._files if "consumequeue" in path]
        assert max(map(opened.count, opened)) <= 3


def test_the_entries_that_decide_on_the_end_of_a_queue_that_has_grown_are_taken_from_the_log(lab: Any) -> None:
    lab.config = StoreConfig(mapped_file_size_consume_queue=20 * 2000, flush_interval_commit_log=10**9)
    with lab.open() as store:
        add(store, 10)

    def work(store: Store) -> None:
        add(store, COUNT - 10)
        save_progress(store._log)

    lab.crash(work)
    rot(lab, 62 * 20 // SECTOR)  # where the bisection looks first of all entries
    with lab.open() as store:
        assert store.recovery is not None
        assert store.recovery.trust == "COPY"
        assert store.queue_range(*QUEUE) == (0, COUNT)
        assert len(bodies(store)) == COUNT
