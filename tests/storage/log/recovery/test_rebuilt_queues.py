"""Stores whose broker keeps its queues in RocksDB: read from the log alone, and never written."""

from __future__ import annotations

import errno
import io
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from rmq_store import OffsetOutOfRangeError, Store, StoreConfig
from rmq_store.cli import commands
from rmq_store.errors import CorruptRecordError, StoreFailedError, StoreFullError, StoreKindError
from rmq_store.format.views.consume_queue import ENTRY
from rmq_store.log.core.accepted_damage import AcceptedDamage
from rmq_store.log.recovery.rebuilt_queues import GAP_MAX, Spool

from ..plain_log import INNER_BATCH, PREPARED, ROLLBACK, SEGMENT_BYTES, PlainLog, in_rocksdb

CONFIG = StoreConfig(SEGMENT_BYTES, 200, 50, 200)


@pytest.fixture
def log() -> PlainLog:
    """Two topics of two queues, in four segments."""
    log = PlainLog()
    for number in range(200):
        log.add("Orders" if number % 3 else "Bills", number // 6, b"%03d" % number, queue_id=number % 6 // 3)
    return log


def opened(log: PlainLog, root: Path, first_segment: int = 0) -> Store:
    return Store.open(in_rocksdb(log.save(root, first_segment)), read_only=True, config=CONFIG)


def bodies(store: Store, topic: str, queue_id: int) -> list[bytes]:
    first, last = store.queue_range(topic, queue_id)
    return [body for batch in store.read(topic, queue_id, first, last) for body in batch.column("body").to_pylist()]


@pytest.fixture
def plain() -> PlainLog:
    """One queue of ten messages."""
    log = PlainLog()
    for number in range(10):
        log.add("T", number, b"%d" % number)
    return log


def test_every_message_is_read_as_from_queues_in_files(plain: PlainLog, tmp_path: Path) -> None:
    for number in range(300):
        plain.add(f"Topic{number % 7}", number // 14, b"x%d" % number, queue_id=number // 7 % 2)
    files = plain.save(tmp_path / "files")
    Store.open(files, config=CONFIG).close()  # makes the queues
    with opened(plain, tmp_path / "rocksdb") as here, Store.open(files, read_only=True) as there:
        assert here.unlisted_topics().keys() == {"T", *(f"Topic{n}" for n in range(7))}
        for topic in here.unlisted_topics():
            for queue_id, (first, last) in there.queue_ranges(topic).items():
                assert here.queue_range(topic, queue_id) == (first, last)
                expected = there.queue_entries(topic, queue_id, first, last)
                assert here.queue_entries(topic, queue_id, first, last).tobytes() == expected.tobytes()
                assert [*here.read(topic, queue_id, first, last)] == [*there.read(topic, queue_id, first, last)]
                rows = np.arange(first, last, 3)
                assert [*here.read(topic, queue_id, first, last, only=rows)] == [
                    *there.read(topic, queue_id, first, last, only=rows)
                ]
                for time_ms in range(1_700_000_000_000, plain.clock_ms + 2000, 50_000):
                    asked = (topic, queue_id, time_ms)
                    assert here.offset_by_time(*asked) == there.offset_by_time(*asked)


def test_the_entries_are_those_that_a_real_broker_has_in_its_files(golden: Path, tmp_path: Path) -> None:
    shutil.copytree(golden / "store" / "commitlog", tmp_path / "store" / "commitlog")
    root, compared = in_rocksdb(tmp_path / "store"), 0
    with Store.open(root, read_only=True) as here, Store.open(golden / "store", read_only=True) as there:
        for topic in (path.name for path in (golden / "store" / "consumequeue").iterdir()):
            for queue_id in (int(path.name) for path in (golden / "store" / "consumequeue" / topic).iterdir()):
                first, last = there.queue_range(topic, queue_id)
                assert here.queue_range(topic, queue_id) == (first, last)
                expected, found = (store.queue_entries(topic, queue_id, first, last) for store in (there, here))
                if topic == "SCHEDULE_TOPIC_XXXX":  # nothing says that this broker had a messageDelayLevel of its own
                    expected["tags_code"] = found["tags_code"]
                assert found.tobytes() == expected.tobytes()
                compared += last - first
    assert compared > 3000


def test_nothing_is_written_and_no_writer_may_open_it(plain: PlainLog, tmp_path: Path) -> None:
    with opened(plain, tmp_path / "store") as store:
        assert bodies(store, "T", 0) == [b"%d" % number for number in range(10)]
    names = sorted(path.relative_to(tmp_path / "store").as_posix() for path in (tmp_path / "store").rglob("*"))
    assert names == [
        "commitlog", f"commitlog/{0:020d}", "consumequeue", "consumequeue/CURRENT", "consumequeue/MANIFEST-000005"
    ]  # fmt: skip
    with pytest.raises(StoreKindError, match="RocksDB"):
        Store.open(tmp_path / "store")


def test_what_the_tables_in_rocksdb_say_is_told_to_be_unknown(
    plain: PlainLog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "store" / "config" / "consumerOffsets").mkdir(parents=True)
    with opened(plain, tmp_path / "store") as store:
        assert store.all_committed_offsets() == {}
    assert "config/consumerOffsets: the broker keeps topics, groups and offsets in RocksDB" in caplog.text


def test_what_the_broker_adds_is_seen(plain: PlainLog, tmp_path: Path) -> None:
    with opened(plain, tmp_path / "store") as store:
        assert store.queue_range("T", 0) == (0, 10)
        plain.add("T", 10, b"10")
        plain.add("New", 0, b"new")
        plain.save(tmp_path / "store")
        store.refresh()
        assert bodies(store, "T", 0) == [b"%d" % number for number in range(11)]
        assert store.find_topic("New") is not None
        for offset in (4, 5):  # the topic was made again, and so on
            plain.add("T", offset, b"again")
        plain.save(tmp_path / "store")
        store.refresh()
        assert bodies(store, "T", 0) == [b"0", b"1", b"2", b"3", b"again", b"again"]
        plain.add("T", 8, b"8")
        plain.save(tmp_path / "store")
        store.refresh()
        assert store.queue_range("T", 0) == (0, 9)
        assert bodies(store, "T", 0)[4:] == [b"again", b"again", b"8"]


def test_prepared_and_rolled_back_messages_have_no_place_in_a_queue(plain: PlainLog, tmp_path: Path) -> None:
    plain.add("T", 0, b"half", sys_flag=PREPARED)
    plain.add("T", 0, b"back", sys_flag=ROLLBACK)
    plain.add("T", 10, b"10")
    with opened(plain, tmp_path / "store") as store:
        assert bodies(store, "T", 0) == [b"%d" % number for number in range(11)]


def test_an_inner_batch_is_one_record_that_takes_several_offsets(plain: PlainLog, tmp_path: Path) -> None:
    plain.add("T", 10, b"batch", sys_flag=INNER_BATCH, properties={"INNER_NUM": "3"})
    plain.add("T", 13, b"13")
    with opened(plain, tmp_path / "store") as store:
        assert store.queue_range("T", 0) == (0, 14)
        rows = [row for batch in store.read("T", 0, 9, 14) for row in batch.to_pylist()]
        assert [(row["queueOffset"], row["body"], row["sysFlag"]) for row in rows] == [
            (9, b"9", 0), (10, b"batch", INNER_BATCH), (13, b"13", 0)
        ]  # fmt: skip
        assert bodies(store, "T", 0)[-2:] == [b"batch", b"13"]


def test_a_queue_begins_where_retention_left_it(tmp_path: Path) -> None:
    log, first_left = PlainLog(), 0
    for number in range(150):
        if log.add("T", number, b"%d" % number) < SEGMENT_BYTES:
            first_left = number + 1
    with opened(log, tmp_path / "store", first_segment=1) as store:
        assert store.queue_range("T", 0) == (first_left, 150)
        with pytest.raises(OffsetOutOfRangeError):
            list(store.read("T", 0, 0, 150))


def test_also_if_retention_is_at_work_while_it_is_open(tmp_path: Path) -> None:
    log = PlainLog()
    in_first = sum(log.add("T", number, b"%d" % number) < SEGMENT_BYTES for number in range(150))
    with opened(log, tmp_path / "store") as store:
        assert store.queue_range("T", 0) == (0, 150)
        store.unpin()
        (tmp_path / "store" / "commitlog" / f"{0:020d}").unlink()
        assert store.queue_range("T", 0) == (in_first, 150)
        assert bodies(store, "T", 0)[0] == b"%d" % in_first


def test_a_message_that_was_lost_with_damaged_bytes_is_an_error(plain: PlainLog, tmp_path: Path) -> None:
    damaged = plain.add("T", 10, b"x" * 50)
    plain.add("T", 11, b"11")
    plain.data[damaged + 100] ^= 1
    with opened(plain, tmp_path / "store") as store:
        assert store.queue_range("T", 0) == (0, 12)
        with pytest.raises(CorruptRecordError, match=r"messages \[10, 11\) of T-0 are lost"):
            list(store.read("T", 0, 0, 12))
        assert store.lost_offsets("T", 0, 0, 12).tolist() == [10]
        assert [row["body"] for batch in store.read("T", 0, 11, 12) for row in batch.to_pylist()] == [b"11"]


def test_offsets_that_cannot_be_true_take_no_memory(plain: PlainLog, tmp_path: Path) -> None:
    plain.add("T", GAP_MAX * 1000, b"far")
    with opened(plain, tmp_path / "store") as store:
        assert store.queue_range("T", 0) == (GAP_MAX * 1000, GAP_MAX * 1000 + 1)
        assert bodies(store, "T", 0) == [b"far"]


class FullDisk(io.BytesIO):
    def write(self, data: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_no_room_for_temporary_files_is_an_error_that_names_their_place(
    plain: PlainLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    with opened(plain, tmp_path / "store") as store, pytest.raises(StoreFailedError, match="nowhere"):
        store.log_range()
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: FullDisk())
    with Store.open(tmp_path / "store", read_only=True) as store, pytest.raises(StoreFullError, match="TMPDIR"):
        store.log_range()


def test_runs_of_entries_that_lie_together_are_one() -> None:
    entries = np.zeros(5, ENTRY)
    entries["commit_log_offset"] = range(5)
    with Spool() as spool:
        for first in (0, 5, 10):
            spool.add(("T", 0), first, entries)
        spool.add(("T", 0), 12, entries[:1])
        rows, places = spool.put_together(AcceptedDamage())
    assert places == {("T", 0): (0, 0, 13)}
    assert rows["commit_log_offset"].tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1, 0]


def test_the_commands_read_it(plain: PlainLog, tmp_path: Path) -> None:
    root = str(in_rocksdb(plain.save(tmp_path / "store")))
    runner = CliRunner()
    assert "T *" in runner.invoke(commands, ["topics", "--store", root]).stdout
    shown = runner.invoke(commands, ["read", "T", "--store", root, "--max", "3"])
    assert [line.split()[1] for line in shown.stdout.splitlines()[1:]] == ["0", "1", "2"]
    shown = runner.invoke(commands, ["tail", "T", "--store", root, "-n", "2"])
    assert [line.split()[-1] for line in shown.stdout.splitlines()] == ["8", "9"]
    assert runner.invoke(commands, ["send", "T", "x", "--store", root]).exit_code != 0
