"""Which old segments go, and when. Rules: DefaultMessageStore.CleanCommitLogService,
MappedFileQueue#deleteExpiredFileByTime; and what we keep that RocketMQ deletes.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from rmq_store import (
    Message,
    OffsetOutOfRangeError,
    ReadOnlyError,
    RetentionReport,
    Store,
    StoreLockedError,
    UsageError,
)
from rmq_store.broker.store.retention import MANUAL_PASSES
from rmq_store.broker.write import disk_space
from rmq_store.files.locks.lock import Exclusive, OfdLock
from rmq_store.files.segments.pin import Pin
from rmq_store.log import retention as mechanics
from rmq_store.log.core.commit_log import CommitLog

HOUR_MS = 3_600_000
SEGMENT_BYTES = 8192

# The time of a shop is noon, UTC.
FOUR_MS = 1_699_963_200_000 - 8 * HOUR_MS


def going(store: Store, **options: Any) -> list[int]:
    return [fate.start for fate in store.retention.plan(**options).going]


# -- when -------------------------------------------------------------------------------------------------------------


@pytest.mark.statement("G13", "G14", "D03")
def test_expired_files_go_in_the_hours_of_delete_when_whatever_was_consumed(shop: Any) -> None:
    with shop.open() as store:
        shop.fill(store, 4)
        shop.age(72.01, *shop.bases()[:2])
        shop.age(71.99, *shop.bases()[2:3])
        for minute, wanted in ((-1, []), (0, shop.bases()[:2]), (59, shop.bases()[:2]), (60, [])):
            before = shop.now_ms
            shop.now_ms = FOUR_MS + minute * 60_000
            for base in shop.bases()[:2]:
                shop.age(72.01, base)
            assert going(store) == wanted, minute
            shop.now_ms = before
        shop.now_ms = FOUR_MS
        for base in shop.bases()[:2]:
            shop.age(72.01, base)
        report = store.retention.run()
        assert report.plan.trigger == "time"
        assert report.removed == (0, SEGMENT_BYTES)
        assert "younger than 72 h" in report.stopped
        assert store.log_range()[0] == shop.bases()[0] == 2 * SEGMENT_BYTES
        first, last = store.queue_range("T", 0)
        assert shop.numbers(store) == list(range(first, last))
        assert first > 0
    assert shop.is_sound()


def test_the_hours_are_local_and_there_may_be_several(shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.config = replace(shop.config, delete_when="04;14")
    with shop.open() as store:
        shop.fill(store, 3)
        shop.age(100)
        assert going(store) == []  # twelve
        monkeypatch.setenv("TZ", "Etc/GMT-2")  # two hours east
        time.tzset()
        assert going(store) == shop.bases()[:2]


@pytest.mark.statement("G15")
@pytest.mark.parametrize(
    ("usage", "forcibly", "trigger", "count"),
    [
        (75, True, "", 0),
        (76, True, "disk", 2),
        (85, True, "disk", 2),
        (86, True, "disk", 4),
        (86, False, "disk", 2),
        (91, True, "disk", 4),
        (None, True, "disk", 2),
    ],
)
def test_a_full_disk_deletes_at_any_hour_and_above_85_percent_what_is_not_expired(
    shop: Any, usage: int | None, forcibly: bool, trigger: str, count: int
) -> None:
    with shop.open() as store:
        store.retention.configure(clean_file_forcibly_enable=forcibly)
        shop.fill(store, 5)
        shop.age(80, *shop.bases()[:2])
        shop.age(1, *shop.bases()[2:])
        shop.usage = usage
        report = store.retention.run()
        assert report.plan.trigger == trigger
        assert len(report.removed) == count
        assert len(shop.bases()) == 5 - count
    assert shop.is_sound()


@pytest.mark.statement("G14")
def test_by_hand_at_any_hour_and_with_another_time(shop: Any) -> None:
    with shop.open() as store:
        shop.fill(store, 4)
        shop.age(80, 0)
        shop.age(5, *shop.bases()[1:3])
        assert store.retention.run().removed == ()
        assert store.retention.run(manual=True).removed == (0,)
        assert store.retention.run(manual=True).removed == ()
        assert len(store.retention.run(manual=True, file_reserved_time=5).removed) == 2
        assert len(shop.bases()) == 1
        with pytest.raises(UsageError, match="fileReservedTime=-1"):
            store.retention.run(manual=True, file_reserved_time=-1)
    assert MANUAL_PASSES == 20


@pytest.mark.statement("G17")
def test_at_most_ten_files_a_pass_with_a_pause_between_two(shop: Any) -> None:
    with shop.open() as store:
        shop.fill(store, 14)
        shop.age(100)
        assert len(store.retention.run(manual=True).removed) == 10
        assert shop.sleeps == [0.1] * 9
        assert len(store.retention.run(manual=True).removed) == 3
        assert len(shop.bases()) == 1  # never the last file
        assert store.retention.run(manual=True).removed == ()


def test_it_stops_at_the_first_one_that_stays(shop: Any) -> None:
    """MappedFileQueue#deleteExpiredFileByTime: a younger file in the middle keeps all behind it."""
    with shop.open() as store:
        shop.fill(store, 4)
        shop.age(100)
        shop.age(1, SEGMENT_BYTES)
        assert store.retention.run(manual=True).removed == (0,)
        assert len(shop.bases()) == 3


# -- nothing else deletes ---------------------------------------------------------------------------------------------


def test_nothing_but_a_run_deletes(shop: Any) -> None:
    """docs/broker-design.md section 3: a copy a year old, opened, read, sent to and committed, on a full disk."""
    with shop.open() as store:
        shop.fill(store, 6)
    copy = shop.root.with_name("copy")
    shutil.copytree(shop.root, copy, copy_function=shutil.copyfile)
    shop.root = copy
    shop.usage = 89
    before = shop.bases()
    shop.age(365 * 24, *before)
    shop.now_ms = FOUR_MS
    with shop.open(read_only=True) as store:
        assert store.retention.plan().going
        shop.numbers(store)
        with pytest.raises(ReadOnlyError):
            store.retention.run(manual=True)
    with shop.open() as store:
        shop.numbers(store)
        store.send(Message("T", b"%08d" % 0))
        store.commit_staged([], key="q", value=1)
        store.commit_offsets("cg", {("T", 0): 3})
        store.schedule.deliver_due()
        store.flush()
        assert store.retention.plan(manual=True).going
    with shop.open() as store:
        store.send(Message("T", b"%08d" % 0))
    assert shop.bases() == before


def test_only_one_deletes_at_a_time(shop: Any) -> None:
    with shop.open() as store:
        shop.fill(store, 3)
        shop.age(100)
        other = OfdLock(shop.root / "pyrmq" / "retention.lock")
        assert other.try_exclusive()
        with pytest.raises(StoreLockedError) as caught:
            store.retention.run(manual=True)
        assert caught.value.pid == os.getpid()
        other.close()
        assert store.retention.run(manual=True).removed


@pytest.mark.parametrize("moment", ["_try", "__exit__"])
def test_an_interrupt_on_the_way_in_or_out_of_the_lock_keeps_nobody_from_deleting(
    shop: Any, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    owner = OfdLock if moment == "_try" else Exclusive
    real = getattr(owner, moment)

    def interrupted(self: Any, *arguments: Any) -> Any:
        path = self.path if moment == "_try" else self._lock.path
        if path.name == "retention.lock":
            monkeypatch.undo()
            if moment == "_try":
                assert real(self, *arguments)
            raise KeyboardInterrupt
        return real(self, *arguments)

    with shop.open() as store, shop.open() as other:
        shop.fill(store, 3)
        shop.age(100)
        monkeypatch.setattr(owner, moment, interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.retention.run(manual=True)
        assert OfdLock(shop.root / "pyrmq" / "retention.lock").who().kind == "free"
        other.retention.run(manual=True)
        store.retention.run(manual=True)
        assert len(shop.bases()) == 1


# -- kept by a reader -------------------------------------------------------------------------------------------------


@pytest.mark.statement("G16")
def test_a_segment_kept_by_a_reader_goes_when_it_is_free(shop: Any) -> None:
    with shop.open() as store:
        shop.fill(store, 4)
        shop.age(100)
        with store.pin(SEGMENT_BYTES + 1, SEGMENT_BYTES + 2) as pin:
            assert pin.start == SEGMENT_BYTES + 1
            report = store.retention.run(manual=True)
            assert report.removed == (0,)
            assert "a reader keeps it, for 120 s at most" in report.stopped
            shop.now_ms += 119_000
            assert store.retention.run(manual=True).removed == ()
        assert len(store.retention.run(manual=True).removed) == 2


@pytest.mark.statement("G16")
def test_patience_ends_and_is_counted_across_processes_and_for_all_that_are_kept(shop: Any) -> None:
    """ReferenceResource#shutdown(intervalForcibly)."""
    with shop.open() as store:
        shop.fill(store, 4)
        shop.age(100)
        assert store.retention.plan(manual=True).going
    with shop.open() as store, store.pin(0, 3 * SEGMENT_BYTES):
        assert store.retention.run(manual=True).removed == ()
    # Another process, as far as anybody can see.
    with shop.open() as store, store.pin(0, 3 * SEGMENT_BYTES) as pin:
        shop.now_ms += 119_999
        assert store.retention.run(manual=True).removed == ()
        shop.now_ms += 1
        report = store.retention.run(manual=True)
        assert len(report.removed) == 3
        assert all("taken from a reader" in fate.reason for fate in report.plan.going)
        assert pin.start == 0
    assert shop.is_sound()


def test_a_clock_that_was_set_back_does_not_keep_a_segment_for_ever(shop: Any) -> None:
    with shop.open() as store:
        shop.fill(store, 2)
        shop.age(10_000)
        with store.pin(0, 1):
            store.retention.run(manual=True)
            shop.now_ms -= 1000 * HOUR_MS
            shop.age(10_000)
            store.retention.run(manual=True)
            shop.now_ms += 120_000
            assert store.retention.run(manual=True).removed == (0,)


def test_a_hanging_file_is_tried_again_without_any_other_reason(shop: Any) -> None:
    """redeleteHangedFileInterval: CleanCommitLogService#reDeleteHangedFile, the first file only."""
    with shop.open() as store:
        shop.fill(store, 4)
        shop.age(100)
        pin = store.pin(0, 1)
        assert store.retention.run(manual=True).removed == ()
        pin.release()
        shop.now_ms += 119_999
        assert store.retention.run().plan.trigger == ""
        shop.now_ms += 1
        report = store.retention.run()
        assert (report.plan.trigger, report.removed) == ("retry", (0,))
        shop.now_ms += 1_000_000
        assert store.retention.run().plan.trigger == ""


def test_readers_of_other_processes_keep_what_they_have_open(shop: Any) -> None:
    with shop.open() as store:
        shop.fill(store, 4)
        shop.age(100)
        with shop.open(read_only=True) as reader:
            view = next(reader.read("T", 0, 0, 3))
            assert store.retention.run(manual=True).removed == ()
        assert len(store.retention.run(manual=True).removed) == 3
        assert view.column("queueOffset").to_pylist() == [0, 1, 2]


def test_a_pin_that_comes_between_plan_and_deletion_counts(shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with shop.open() as store:
        shop.fill(store, 4)
        shop.age(100)
        pins: list[Pin] = []
        remove = mechanics.remove_segment

        def late(log: CommitLog, base: int, *, forced: bool) -> bool:
            if base and not pins:
                pins.append(store.pin(base, base + 1))
            return remove(log, base, forced=forced)

        monkeypatch.setattr(mechanics, "remove_segment", late)
        report = store.retention.run(manual=True)
        assert (report.removed, report.stopped) == ((0,), "a reader keeps it")
        shop.now_ms += 120_000  # it was noted down
        assert store.retention.run(manual=True).removed == (SEGMENT_BYTES, 2 * SEGMENT_BYTES)
        for pin in pins:
            pin.release()


def test_what_a_pin_keeps_begins_behind_what_is_gone(shop: Any) -> None:
    with shop.open() as store:
        shop.fill(store, 4)
        shop.age(100, 0)
        store.retention.run(manual=True)
        with store.pin(10, 3 * SEGMENT_BYTES) as pin:
            assert pin.start == SEGMENT_BYTES
        with store.pin(0, 10) as pin:
            assert pin.start == 10  # nothing


# -- readers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("two_threads", [False, True])
def test_a_segment_that_goes_in_mid_read_is_out_of_range_with_the_new_minimum(
    shop: Any, monkeypatch: pytest.MonkeyPatch, two_threads: bool
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    with shop.open() as store:
        shop.fill(store, 5)
        shop.age(100, *shop.bases()[:3])
        last = store.queue_range("T", 0).max_offset
        reading = store.read("T", 0, 0, last, columns=["queueOffset"], two_threads=two_threads)
        assert next(reading).column("queueOffset")[0].as_py() == 0  # the whole first segment
        store.retention.run(manual=True)
        if two_threads:
            next(reading)  # the second segment was read with the first one
        with pytest.raises(OffsetOutOfRangeError) as caught:
            next(reading)
        first = store.queue_range("T", 0).min_offset
        assert caught.value.minimum == first > caught.value.requested > 0
        assert caught.value.maximum == last
        with pytest.raises(OffsetOutOfRangeError):
            store.store_timestamp("T", 0, 0)
        assert store.offset_by_time("T", 0, 0) == first


def test_a_time_is_looked_up_while_segments_go(shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with shop.open() as store:
        shop.fill(store, 5)
        shop.age(100)
        look = type(store._queues).store_timestamp

        def later(queues: Any, *place: Any) -> int:
            store.retention.run(manual=True)
            return look(queues, *place)

        monkeypatch.setattr(type(store._queues), "store_timestamp", later)
        found = store.offset_by_time("T", 0, 0)
        monkeypatch.undo()
        monkeypatch.setattr(disk_space, "usage_percent", lambda root: 10)
        first, last = store.queue_range("T", 0)
        assert first <= found <= last


# -- queues and index -------------------------------------------------------------------------------------------------


def test_queue_and_index_files_follow_and_never_the_last_one(shop: Any) -> None:
    with shop.open() as store:
        store.send(Message("Old", b"%08d" % 0 + b"." * 100))
        shop.fill(store, 12)
        queue = shop.root / "consumequeue" / "T" / "0"
        files, index = sorted(queue.iterdir()), sorted((shop.root / "index").iterdir())
        assert len(files) > 4
        assert len(index) > 3
        shop.age(100, *shop.bases()[:8])
        report = store.retention.run(manual=True)
        first, last = store.queue_range("T", 0)
        left = sorted(queue.iterdir())
        assert left[0].name == f"{first // 20 * 400:020d}"
        assert report.queue_files == len(files) - len(left) > 0
        assert report.index_files == len(index) - len(list((shop.root / "index").iterdir())) > 0
        assert shop.numbers(store) == list(range(first, last))
        # The queue that has no message left keeps its file, and so its next offset (ConsumeQueue#correctMinOffset).
        assert store.queue_range("Old", 0) == (1, 1)
        assert store.send(Message("Old", b"x")).queue_offset == 1
    assert shop.is_sound()
    with shop.open() as store:
        assert store.queue_range("T", 0) == (first, last)
        assert store.queue_range("Old", 0) == (1, 2)


def test_queues_that_are_built_anew_go_on_where_retention_left_them(shop: Any) -> None:
    """A group that has consumed all of a queue would pass over what is given its offsets once more."""
    with shop.open() as store:
        store.send(Message("Old", b"%08d" % 0 + b"." * 100))
        shop.fill(store, 12)
        shop.age(100, *shop.bases()[:8])
        store.retention.run(manual=True)
        first, last = store.queue_range("T", 0)
    shop.open(rebuild_views=True).close()
    with shop.open() as store:
        assert store.queue_range("T", 0) == (first, last)
        assert shop.numbers(store) == list(range(first, last))
        assert store.queue_range("Old", 0) == (1, 1)
        assert store.send(Message("Old", b"x")).queue_offset == 1
    assert shop.is_sound()


def test_queue_files_left_by_a_killed_pass_go_with_the_next_one(shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with shop.open() as store:
        shop.fill(store, 8)
        shop.age(100, *shop.bases()[:6])
        with monkeypatch.context() as patch:
            patch.setattr("rmq_store.log.retention.remove_queue_files", lambda log: 0)
            patch.setattr("rmq_store.log.retention.remove_index_files", lambda log: 0)
            assert store.retention.run(manual=True).removed
    with shop.open() as store:
        report = store.retention.run(manual=True)
        assert not report.removed
        assert report.queue_files > 0
        assert report.index_files > 0
        assert store.retention.run(manual=True).queue_files == 0


# -- settings ---------------------------------------------------------------------------------------------------------


def test_settings_are_changed_for_every_process(shop: Any) -> None:
    with shop.open() as store, shop.open() as other:
        assert store.retention.configure(file_reserved_time=5, delete_when="12").delete_when == "12"
        assert other.retention.settings().file_reserved_time == 5
        shop.fill(store, 3)
        shop.age(6)
        assert len(other.retention.run().removed) == 2
        assert store.retention.configure(file_reserved_time=72).file_reserved_time == 72
        with pytest.raises(UsageError, match="max_message_size cannot be changed"):
            store.retention.configure(max_message_size=1)
        with pytest.raises(UsageError, match="deleteWhen"):
            store.retention.configure(delete_when="noon")
    with shop.open(read_only=True) as store, pytest.raises(ReadOnlyError):
        store.retention.configure(delete_when="1")


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[1]", b'{"format": 1, "refused": {"a": 1}, "tried": 0}', b'{"format": 1, "refused": 3}',
                b'{"format": 1, "refused": {"0": "x"}, "tried": 0}', b"\xff" * 10, b"9" * 5000],
)  # fmt: skip
def test_an_unreadable_note_of_refusals_gives_readers_their_time_once_more(shop: Any, content: bytes) -> None:
    with shop.open() as store:
        shop.fill(store, 2)
        shop.age(100)
        (shop.root / "pyrmq" / "retention.json").write_bytes(content)
        with store.pin(0, 1):
            assert store.retention.run(manual=True).removed == ()
            shop.now_ms += 120_000
            assert store.retention.run(manual=True).removed == (0,)


# -- dead letters -----------------------------------------------------------------------------------------------------


class Archive:
    """Stands in for the archive of dead letters."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.failure = failure
        self.directories: list[Path] = []
        self.ends: list[int] = []

    def open(self, directory: Path) -> Archive:
        self.directories.append(directory)
        return self

    def archive_up_to(self, log_offset: int) -> None:
        self.ends.append(log_offset)
        if self.failure:
            raise self.failure


def archiving(shop: Any, store: Store, archive: Archive) -> Callable[[], RetentionReport]:
    store.retention.configure(dlq_archive_path=str(shop.root.with_name("archive")))
    store.retention._open_archive = archive.open  # type: ignore[method-assign]
    return lambda: store.retention.run(manual=True)


def test_dead_letters_are_archived_before_their_segments_go(shop: Any) -> None:
    with shop.open() as store:
        shop.fill(store, 4)
        shop.age(100)
        archive = Archive()
        assert len(archiving(shop, store, archive)().removed) == 3
        assert archive.directories == [shop.root.with_name("archive")]
        assert archive.ends == [3 * SEGMENT_BYTES]


def test_what_cannot_be_archived_stays(shop: Any, caplog: pytest.LogCaptureFixture) -> None:
    with shop.open() as store:
        shop.fill(store, 4)
        shop.age(100)
        run = archiving(shop, store, Archive(OSError(errno.EACCES, "Permission denied")))
        report = run()
        assert report.removed == ()
        assert "could not be archived" in report.stopped
        assert len(shop.bases()) == 4
        assert "Traceback" not in caplog.text
        run()
        assert caplog.text.count("nothing is deleted: its dead letters could not be archived") == 1


def test_what_was_deleted_is_in_the_archive_and_comes_back(shop: Any) -> None:
    directory = shop.root.with_name("archive")
    with shop.open() as store:
        store.retention.configure(dlq_archive_path=str(directory), delete_file_batch_max=2)
        topic = store.create_topic("%DLQ%cg", 2).topic_name
        sent = []
        for number in range(60):
            place = store.send(Message(topic, b"%08d" % number + b"." * 400, queue_id=number % 2))
            sent.append((number % 2, place.queue_offset, b"%08d" % number))
        shop.age(100)
        kept = shop.bases()[-1]
        while (report := store.retention.run(manual=True)).removed:
            assert report.stopped == ""
        assert shop.bases() == [kept]
        rows = [row for path in directory.glob("cg/*.parquet") for row in pq.read_table(path).to_pylist()]
        found = [(row["queueId"], row["queueOffset"], row["body"][:8]) for row in rows]
        gone = {queue_id: store.queue_range(topic, queue_id)[0] for queue_id in range(2)}
        assert sorted(found) == sorted(row for row in sent if row[1] < gone[row[0]])
        assert len(found) == sum(gone.values()) > 40
        restored = store.dead_letters.restore(directory)
        assert (restored.restored_count, restored.present_count) == (len(found), 0)
        there = [*_bodies(store, topic, 0), *_bodies(store, topic, 1)]
        assert sorted(map(int, there)) == [*range(60)]
    assert shop.is_sound()


def _bodies(store: Store, topic: str, queue_id: int) -> list[bytes]:
    first, last = store.queue_range(topic, queue_id)
    parts = store.read(topic, queue_id, first, last, columns=["body"])
    return [body[:8] for part in parts for body in part.column("body").to_pylist()]


def test_without_a_path_nothing_is_archived(shop: Any) -> None:
    with shop.open() as store:
        shop.fill(store, 2)
        shop.age(100)
        store.retention._open_archive = None  # type: ignore[assignment, method-assign]
        assert store.retention.run(manual=True).removed == (0,)
