"""A sector of a queue that rots behind killed writers, or while the store is open: no queue ends there, and none loses
what lies behind it.
"""

from __future__ import annotations

import shutil
import struct
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rmq_store import Message, Store, StoreConfig
from rmq_store.errors import CorruptionError
from rmq_store.files import durable
from rmq_store.log.append.flush import save_progress
from rmq_store.log.integrity.corrupt_queues import corrupt_queues

pytestmark = pytest.mark.long

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


def grown(lab: Any, closed: int, count: int) -> None:
    """One queue in one large file that ended at `closed` when it was closed last, and at `count` when it was killed."""
    lab.config = StoreConfig(mapped_file_size_consume_queue=20 * 20_000, flush_interval_commit_log=10**9)
    if closed:
        with lab.open() as store:
            add(store, closed)

    def work(store: Store) -> None:
        add(store, count - closed)
        save_progress(store._log)

    lab.crash(work)


def overwrite(lab: Any, start: int, entries: bytes) -> None:
    """Put `entries` in the place of those of the queue offsets from `start` on."""
    with max((lab.root / "consumequeue" / "Alpha" / "0").iterdir()).open("r+b") as file:
        file.seek(20 * start)
        file.write(entries)


@pytest.mark.parametrize("state", ["killed", "rebooted"])
@pytest.mark.parametrize("byte", [b"\0", b"\xff"])
@pytest.mark.parametrize(
    ("closed", "start", "stop"),
    [(10, 12, 612), (10, 11, 699), (10, 100, 690), (0, 0, 690), (0, 300, 699), (0, 1, 320)],
)
def test_a_queue_does_not_end_where_more_than_a_page_has_rotted(
    lab: Any, state: str, byte: bytes, closed: int, start: int, stop: int
) -> None:
    grown(lab, closed, 700)
    if state == "rebooted":
        lab.reboot()
    overwrite(lab, start, 20 * (stop - start) * byte)
    with lab.open(read_only=True) as store:
        assert store.queue_range(*QUEUE) == (0, 700)
    with lab.open() as store:
        assert store.queue_range(*QUEUE) == (0, 700)
        assert store.send(Message("Alpha", b"%08d" % 700, queue_id=0)).queue_offset == 700
        assert store.recovery is not None
        if store.recovery.trust == "COPY":
            assert bodies(store)[closed:] == [*range(700 - closed), 700]
        else:  # the end was told by what is left
            with pytest.raises(CorruptionError):
                bodies(store)


def test_a_queue_does_not_end_before_a_far_entry(lab: Any) -> None:
    """All that is left lies many reads behind where the queue seems to end."""
    grown(lab, 0, 19_000)
    lab.reboot()
    overwrite(lab, 3, bytes(20 * 18_996))
    with lab.open(read_only=True) as store:
        assert store.queue_range(*QUEUE) == (0, 19_000)


def test_the_first_entry_of_a_newest_file_is_looked_at_too(lab: Any) -> None:
    lab.config = StoreConfig(mapped_file_size_consume_queue=20 * 400, flush_interval_commit_log=10**9)
    lab.crash(lambda store: (add(store, 790), save_progress(store._log)))
    overwrite(lab, 0, bytes(20 * 380))  # of the second file
    with lab.open() as store:
        assert store.queue_range(*QUEUE) == (0, 790)


def test_entries_of_messages_that_do_not_count_are_no_reason_to_distrust_a_queue(lab: Any) -> None:
    """They lie behind the end of the log, or nowhere."""
    grown(lab, 0, 20)
    for queue_offset, offset, size in ((15_000, 1 << 40, 200), (17_000, -1, 200)):
        overwrite(lab, queue_offset, struct.pack(">qiq", offset, size, 0))
    with lab.open() as store:
        assert store.recovery is not None
        assert store.recovery.trust == "SAME_BOOT"
        assert store.queue_range(*QUEUE) == (0, 20)


def test_the_log_may_be_long(lab: Any) -> None:
    grown(lab, 0, 20)
    overwrite(lab, 15_000, struct.pack(">qiq", 20 << 30, 200, 0))
    with lab.open() as store:
        assert corrupt_queues(store._log, (20 << 30) + 199, None) == []
        assert corrupt_queues(store._log, (20 << 30) + 200, None) == [QUEUE]


@pytest.mark.parametrize("name", ["no topic", "Alpha/4294967296"])
def test_a_directory_that_is_no_queue_may_have_what_it_likes(lab: Any, name: str) -> None:
    grown(lab, 0, 700)
    queue: Path = lab.root / "consumequeue" / "Alpha" / "0"
    shutil.copytree(queue, queue.parent.parent / name if "/" in name else queue.parent.parent / name / "0")
    with max(queue.iterdir()).open("rb") as file:
        entries = file.read(20 * 700)
    for copied in (queue.parent.parent / name).rglob("0" * 20):
        copied.write_bytes((entries[:20] + bytes(20 * 600) + entries[20 * 601 :]).ljust(20 * 20_000, b"\0"))
    with lab.open() as store:
        assert store.recovery is not None
        assert store.recovery.trust == "SAME_BOOT"


def test_entries_in_place_of_the_last_ones_that_other_messages_have_do_not_end_a_queue(lab: Any) -> None:
    """What a write to a wrong place leaves: entries that can be some, over the last ones and behind them."""
    grown(lab, 10, 40)
    with max((lab.root / "consumequeue" / "Alpha" / "0").iterdir()).open("rb") as file:
        first = file.read(20)
    overwrite(lab, 30, first * 15)
    with lab.open() as store:
        assert store.queue_range(*QUEUE) == (0, 40)
        assert bodies(store)[10:] == list(range(30))
