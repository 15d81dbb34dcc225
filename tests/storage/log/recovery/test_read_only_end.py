"""Reading without writing: the same messages that a writer would find, and not a byte changed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest

from rmq_store import Store
from rmq_store.errors import NotAStoreError
from rmq_store.files import durable
from rmq_store.files.locks.state_page import StatePage
from rmq_store.log.append import append as append_module
from rmq_store.log.append.append import append_lock
from rmq_store.log.core.commit_log import CommitLog
from rmq_store.log.recovery import read_only_end

if TYPE_CHECKING:
    from .conftest import Lab


def make_clean(lab: Lab) -> None:
    pass


def make_crashed(lab: Lab) -> None:
    lab.crash(lambda store: store.append(lab.batch(20)))
    lab.written += 20


def make_power_cut(lab: Lab) -> None:
    make_crashed(lab)
    lab.reboot()


def make_power_cut_without_page(lab: Lab) -> None:
    make_crashed(lab)
    lab.reboot(lose_page=True)


def make_without_views(lab: Lab) -> None:
    shutil.rmtree(lab.root / "consumequeue")


def make_without_the_newest_queue_entries(lab: Lab) -> None:
    """The records reached the disk, their entries did not."""
    saved = {path: data for path, data in lab.save().items() if "consumequeue" in path.parts}
    make_power_cut(lab)
    for path in (lab.root / "consumequeue").rglob("0*"):
        if path.is_file():
            path.write_bytes(saved[path]) if path in saved else path.unlink()


def make_brokers(lab: Lab) -> None:
    make_crashed(lab)
    lab.broker_was_here()


def make_brokers_crashed(lab: Lab) -> None:
    make_crashed(lab)
    lab.broker_was_here(abort=True)


def make_copied(lab: Lab) -> None:
    make_crashed(lab)
    shutil.copytree(lab.root, lab.root.parent / "copy")
    lab.root = lab.root.parent / "copy"


STATES = [
    make_clean, make_crashed, make_power_cut, make_power_cut_without_page, make_without_views,
    make_without_the_newest_queue_entries, make_brokers, make_brokers_crashed, make_copied,
]  # fmt: skip


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
def test_a_reader_sees_what_a_writer_will_find_and_changes_nothing(
    lab: Lab, tree_hash: Callable[[Path], str], state: Callable[[Lab], None]
) -> None:
    with lab.open() as store:
        store.append(lab.batch(20))
    state(lab)
    before = tree_hash(lab.root)
    with lab.open(read_only=True) as reader:
        seen, ranges, log_range = lab.numbers(reader), reader.queue_ranges("Alpha"), reader.log_range()
    assert tree_hash(lab.root) == before
    assert seen == list(range(lab.written))
    with lab.open() as store:
        assert (lab.numbers(store), store.queue_ranges("Alpha"), store.log_range()) == (seen, ranges, log_range)


def test_entries_that_the_files_lack_are_joined_to_those_they_have(lab: Lab) -> None:
    with lab.open() as store:
        store.append(lab.batch(60))
    with lab.open(read_only=True) as reader:
        expected = {
            key: [batch.to_pylist() for batch in reader.read("Alpha", key, *bounds)]
            for key, bounds in reader.queue_ranges("Alpha").items()
        }
    lab.crash()
    (lab.root / "pyrmq" / "progress").unlink()
    lab.reboot(lose_page=True)
    for path in (lab.root / "consumequeue").rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[:60] + bytes(40)) if path.name == "0" * 20 else path.unlink()
    with lab.open(read_only=True) as reader:
        for key, (first, last) in reader.queue_ranges("Alpha").items():
            rows = [row for batch in reader.read("Alpha", key, first, last) for row in batch.to_pylist()]
            assert rows == [row for part in expected[key] for row in part]
            assert len(rows) == last > 10
            middle = [row for batch in reader.read("Alpha", key, 2, 7) for row in batch.to_pylist()]
            assert middle == rows[2:7]


def test_a_reader_sees_a_live_writers_appends_and_not_those_under_way(lab: Lab) -> None:
    with lab.open() as store, lab.open(read_only=True) as reader:
        for count in (1, 30, 1):
            store.append(lab.batch(count))
            assert lab.numbers(reader) == list(range(lab.written))
        seen: list[list[int]] = []
        reading = False

        def look(operation: str, path: str) -> None:
            nonlocal reading
            if not reading:
                reading = True
                seen.append(lab.numbers(reader))
                reading = False

        durable.hook = look
        store.append(lab.batch(30, body_bytes=300))
        durable.hook = None
        assert len(seen) > 10
        assert all(numbers == list(range(32)) for numbers in seen)
        assert lab.numbers(reader) == list(range(62))


def test_a_reader_outlives_writers_that_come_go_and_die(lab: Lab) -> None:
    with lab.open() as store:
        store.append(lab.batch(5))
    with lab.open(read_only=True) as reader:
        assert lab.numbers(reader) == list(range(5))
        with lab.open() as store:
            store.append(lab.batch(5))
            assert lab.numbers(reader) == list(range(5))  # nobody wrote when it looked
            reader.refresh()
            assert lab.numbers(reader) == list(range(10))
            store.append(lab.batch(5))
            assert lab.numbers(reader) == list(range(15))
        assert lab.numbers(reader) == list(range(15))  # the last writer left, and took the page along
        lab.crash(lambda store: store.append(lab.batch(5)))
        lab.written += 5
        reader.refresh()
        assert lab.numbers(reader) == list(range(20))
        with lab.open() as store:
            reader.refresh()
            assert lab.numbers(reader) == list(range(20))
            store.append(lab.batch(5))
            assert lab.numbers(reader) == list(range(25))
        assert lab.numbers(reader) == list(range(25))


def test_that_a_log_stands_still_is_said_only_while_nobody_has_appended(lab: Lab) -> None:
    """Asked by mapped memory alone: of a live writer's page, and else of what stands behind the end."""
    with lab.open(read_only=False) as store:
        store.append(lab.batch(5))
    with lab.open(read_only=True) as reader:
        queues, end = reader._queues, reader.log_range()[1]
        assert queues.has_not_grown(end)
        assert not queues.has_not_grown(end - 1)
        with lab.open() as store:
            assert queues.has_not_grown(end)  # that somebody could write now is no news
            store.append(lab.batch(1))
            assert not queues.has_not_grown(end)
        assert not queues.has_not_grown(end)  # nor does it become one again when the writer leaves
        reader.refresh()
        end = reader.log_range()[1]
        assert queues.has_not_grown(end)
        reader._log.files.clear()  # others were needed
        assert not queues.has_not_grown(end)
        reader.refresh()
        assert queues.has_not_grown(end)
        with lab.open() as store:
            reader.refresh()
            assert reader.log_range()[1] == end
            assert queues.has_not_grown(end)
            store.append(lab.batch(1))
            assert not queues.has_not_grown(end)
            assert store._queues.has_not_grown(reader.log_range()[1])
            assert not store._queues.has_not_grown(end)


def with_a_record_to_come(lab: Lab) -> tuple[int, bytes]:
    """A store with some messages; where the next one begins, and what a broker would write there."""
    with lab.open() as store:
        store.append(lab.batch(5))
    before = lab.save()
    with lab.open() as store:
        start = store.log_range()[1]
        store.append(lab.batch(1))
        end = store.log_range()[1]
    record = (lab.root / "commitlog" / f"{0:020d}").read_bytes()[start:end]
    lab.restore(before)
    return start, record


def copy_into_log(lab: Lab, start: int, data: bytes) -> None:
    with (lab.root / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(start)
        file.write(data)


def test_a_record_that_a_broker_was_copying_when_a_reader_looked_is_seen_when_it_is_whole(lab: Lab) -> None:
    """Its first bytes were there at both looks: the reader took that for a log where nothing had happened, for ever."""
    start, record = with_a_record_to_come(lab)
    lab.broker_was_here(abort=True)
    copy_into_log(lab, start, record[:100])
    with lab.open(read_only=True) as reader:
        assert reader.log_range()[1] == start
        copy_into_log(lab, start, record)
        reader.refresh()
        assert reader.log_range()[1] == start + len(record)


def test_a_record_of_the_size_of_one_that_was_taken_back_is_seen_by_who_saw_the_other(lab: Lab) -> None:
    """Spark repeats a batch in just this way: a writer is killed, a reader looks, the next writer closes."""
    with lab.open() as store:
        store.append(lab.batch(5))
        end = store.log_range()[1]

    def die_before_the_end_moves(store: Store) -> None:
        with patch.object(append_module.AppendSteps, "__exit__", lambda *_: os._exit(9)):
            store.append(lab.batch(1))

    assert lab.in_child(lambda: die_before_the_end_moves(lab.open())) == 9
    with lab.open(read_only=True) as reader:
        assert reader.log_range()[1] == end
        with lab.open() as store:
            store.append(lab.batch(1))
        reader.refresh()
        assert reader.log_range()[1] > end


def test_a_broker_that_takes_over_from_a_killed_writer_is_noticed(lab: Lab) -> None:
    """The page of the dead one stays as it was, and says nothing of what the broker appends."""
    start, record = with_a_record_to_come(lab)
    writer = lab.open()
    with lab.open(read_only=True) as reader:
        assert reader.log_range()[1] == start
        writer._flusher.stop()  # type: ignore[union-attr]
        writer._closed = True
        writer._log.close()
        lab.broker_was_here(abort=True)
        copy_into_log(lab, start, record)
        reader.refresh()
        assert reader.log_range()[1] == start + len(record)


def test_of_a_log_with_something_behind_its_end_nobody_says_that_it_stands_still(lab: Lab) -> None:
    """What the next writer puts in the place of a dead one's append may begin with the same bytes."""
    with lab.open() as store:
        store.append(lab.batch(5))
        end = store.log_range()[1]
    with (lab.root / "commitlog" / f"{end - end % 8192:020d}").open("r+b") as file:
        file.seek(end % 8192)
        file.write(b"\0\0\0\1")
    with lab.open(read_only=True) as reader:
        assert reader.log_range()[1] == end
        assert not reader._queues.has_not_grown(end)


def test_what_was_appended_and_not_flushed_is_not_visible_and_moves_nothing_under_sync_flush(lab: Lab) -> None:
    lab.sync_flush()
    with lab.open() as store, lab.open(read_only=True) as reader:
        store.append(lab.batch(5))
        end = reader.log_range()[1]
        page = store._log.writing_page
        page.appended_end = end + 100
        assert reader._queues.has_not_grown(end)
        assert store._queues.has_not_grown(end)
        page.flushed_end = end + 100
        assert not reader._queues.has_not_grown(end)
        assert not store._queues.has_not_grown(end)
        page.flushed_end = page.appended_end = end


def test_a_readers_end_never_goes_back_while_a_first_opener_takes_over(lab: Lab) -> None:
    store = lab.open()
    store.append(lab.batch(10))
    with lab.open(read_only=True) as reader:
        assert lab.numbers(reader) == list(range(10))
        store._flusher.stop()  # type: ignore[union-attr]
        store._log.close()  # as if killed
        ends: list[int] = []
        busy = False

        def look(operation: str, path: str) -> None:
            nonlocal busy
            if not busy:
                busy = True
                ends.append(reader.log_range()[1])
                busy = False

        durable.hook = look
        with lab.open():
            durable.hook = None
        assert len(ends) > 5
        assert len(set(ends)) == 1


def test_a_page_whose_writer_was_a_broker_since_is_not_believed(lab: Lab) -> None:
    with lab.open() as store:
        store.append(lab.batch(5))
        assert read_only_end.live_page(store._log) is not None
        lab.broker_was_here(abort=True)
        assert read_only_end.live_page(store._log) is None


def test_a_store_without_a_writer_has_no_live_page(lab: Lab) -> None:
    with lab.open() as store:
        store.append(lab.batch(5))
    reader = Store.open(lab.root, read_only=True)
    assert read_only_end.live_page(reader._log) is None
    lab.crash()
    assert read_only_end.live_page(reader._log) is None  # the page counts, but nobody keeps it true
    reader.close()


def test_a_writer_that_comes_while_a_reader_looks_is_noticed(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be killed in the middle of an append, whose whole records the look would have taken for true."""
    with lab.open() as store:
        store.append(lab.batch(5))
    writers: list[Store] = []
    look = read_only_end._scan

    def look_slowly(log: CommitLog) -> read_only_end.ReadOnlyEnd:
        found = look(log)
        if not writers:
            writers.append(lab.open())
        return found

    monkeypatch.setattr(read_only_end, "_scan", look_slowly)
    with lab.open(read_only=True) as reader:
        assert isinstance(read_only_end.read_only_end(reader._log), StatePage)
    writers[0].close()


def test_a_store_whose_queues_are_nearly_all_missing_is_not_rebuilt_in_memory(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    with lab.open() as store:
        store.append(lab.batch(60))
    shutil.rmtree(lab.root / "consumequeue")
    monkeypatch.setattr(read_only_end, "_MISSING_ENTRIES_MAX", 20)
    with lab.open(read_only=True) as reader, pytest.raises(NotAStoreError, match="open the store for writing once"):
        reader.queue_range("Alpha", 0)


def test_a_reader_does_not_wait_for_a_writers_lock(lab: Lab) -> None:
    with lab.open() as store:
        store.append(lab.batch(5))
        with append_lock(store._log), lab.open(read_only=True) as reader:
            assert lab.numbers(reader) == list(range(5))


def test_a_reader_of_a_brokers_store_forgets_entries_once_the_files_have_them(
    golden_crash: Path, working_copy: Callable[[Path], Path]
) -> None:
    """In the broker's store one record has no queue entry yet; when the broker has written it, we must let ours go."""
    root = working_copy(golden_crash / "store")
    with Store.open(root, read_only=True) as reader:
        end = reader.log_range()[1]
        peeked = reader._queues._peeked
        ((key, (first, entries)),) = peeked.missing.items()  # type: ignore[union-attr]
        queue_file = root / "consumequeue" / key[0] / str(key[1]) / f"{(first * 20) // 12000 * 12000:020d}"
        with queue_file.open("r+b") as file:
            file.seek(first * 20 % 12000)
            file.write(entries.tobytes())
        segment = root / "commitlog" / f"{end // (1 << 20) * (1 << 20):020d}"
        with segment.open("r+b") as file:
            file.seek(end % (1 << 20))
            file.write(b"\0\0\0\1")  # the broker begins its next record
        reader.refresh()
        assert reader._queues._peeked.missing == {}  # type: ignore[union-attr]
        assert reader.queue_range(*key).max_offset == first + 1
