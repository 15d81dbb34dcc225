"""A pass of retention that is killed, fails or loses power at any operation: the store just begins later.

What must be true then: it opens, an independent check finds nothing, only whole oldest segments are gone, every message
of the others is there, and the newest marker of every key (docs/broker-design.md section 3).
"""

from __future__ import annotations

import errno
import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rmq_store import OffsetOutOfRangeError, Store, StoreError
from rmq_store.broker.write import disk_space
from rmq_store.files import durable
from rmq_store.files.segments import pin
from rmq_store.files.segments.pin import Pin, alone, is_pinned
from rmq_store.log import retention as mechanics

SEGMENTS = 7
KEPT = 2


@pytest.fixture(autouse=True)
def room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_space, "usage_percent", lambda root: 10)


@pytest.fixture
def aged(lab: Any) -> Any:
    """A store of which all segments but the last two are expired; three markers lie in the first one."""
    with lab.open() as store:
        lab.append_unit(store, 1)
        for key in ("p", "q"):
            store.commit_staged([], key=key, value=5)
        while len(bases(lab)) < SEGMENTS:
            store.append(lab.batch(10, body_bytes=200))
    then = lab.now_ms / 1000 - 100 * 3600
    for base in bases(lab)[:-KEPT]:
        os.utime(lab.root / "commitlog" / f"{base:020d}", (then, then))
    for base in bases(lab)[-KEPT:]:
        os.utime(lab.root / "commitlog" / f"{base:020d}", (lab.now_ms / 1000, lab.now_ms / 1000))
    return lab


def bases(lab: Any) -> list[int]:
    return sorted(int(path.name) for path in (lab.root / "commitlog").iterdir())


def clean(lab: Any) -> None:
    store = lab.open()
    store._retention._sleep = lambda seconds: None
    hook, durable.hook = durable.hook, None
    store.log_range()
    durable.hook = hook
    store.retention.run(manual=True)
    durable.hook = None
    store.close()


def check(lab: Any, full: list[int], numbers: list[int]) -> int:
    """After whatever happened; returns how many segments are gone."""
    left = [base for base in bases(lab) if base < full[-1]]
    assert left == [base for base in full[:-1] if base >= left[0]]  # only the oldest, and no hole
    with lab.open() as store:
        assert [store.last_unit("sink", key) for key in ("query", "p", "q")] == [1, 5, 5]
        start = store.log_range()[0]
        found = lab.numbers(store)
        assert found == numbers[len(numbers) - len(found) :]
        for topic in ("Alpha", "Beta"):
            for queue_id, (first, last) in store.queue_ranges(topic).items():
                assert last > first
                if start == 0:
                    assert first == 0, (topic, queue_id)
        if start == 0:
            assert found == numbers
    report = lab.verify()
    assert not report.problems, report.problems[:3]
    (lab.root / "pyrmq" / "units.json").unlink(missing_ok=True)
    with lab.open(read_only=True) as store:
        assert store.log_range()[0] == start
    with lab.open() as store:
        assert [store.last_unit("sink", key) for key in ("query", "p", "q")] == [1, 5, 5]
    return full.index(start)


@pytest.fixture
def before(aged: Any) -> tuple[list[int], list[int]]:
    with aged.open() as store:
        return bases(aged), aged.numbers(store)


def restore(lab: Any, saved: dict[Path, tuple[bytes, int]]) -> None:
    lab.restore({path: data for path, (data, _) in saved.items()})
    for path, (_, modified_ns) in saved.items():
        os.utime(path, ns=(modified_ns, modified_ns))


def save(lab: Any) -> dict[Path, tuple[bytes, int]]:
    return {path: (data, path.stat().st_mtime_ns) for path, data in lab.save().items()}


@pytest.mark.usefixtures("memory_too")
@pytest.mark.timeout(400)
@pytest.mark.slow
def test_a_pass_killed_at_any_operation_leaves_a_store_that_begins_later(
    aged: Any, before: tuple[list[int], list[int]], fail_at: Callable[..., Any]
) -> None:
    saved, gone = save(aged), set()

    def run(k: int) -> None:
        fail_at(k, lambda: os.kill(os.getpid(), signal.SIGKILL))
        clean(aged)

    for k in itertools.count(1, 3):
        status = aged.in_child(lambda: run(k))  # noqa: B023
        gone.add(check(aged, *before))
        restore(aged, saved)
        if status == 0:
            break
        assert status == -signal.SIGKILL
    assert k > 60
    assert gone == set(range(SEGMENTS - KEPT + 1))


@pytest.mark.timeout(400)
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_pass_that_fails_at_any_operation_goes_on_later(
    aged: Any, before: tuple[list[int], list[int]], fail_at: Callable[..., Any], code: int
) -> None:
    def fail() -> None:
        raise OSError(code, os.strerror(code))

    saved, failures = save(aged), 0
    for k in itertools.count(1, 4):
        store = aged.open()
        store._retention._sleep = lambda seconds: None
        operation = fail_at(k, fail)
        try:
            store.retention.run(manual=True)
        except (StoreError, OSError):
            failures += 1
        durable.hook = None
        poisoned = bool(store._log.writing_page.poison)
        if not poisoned:
            store.retention.run(manual=True)
            assert store.log_range()[0] == before[0][-KEPT]
        try:
            store.close()
        except StoreError:
            assert poisoned
        check(aged, *before)
        restore(aged, saved)
        if not operation.reached:
            break
    assert failures > k // 8


@pytest.mark.timeout(400)
def test_a_power_cut_at_any_unlink_leaves_no_hole(aged: Any, before: tuple[list[int], list[int]]) -> None:
    """Unlinked names are back up to the last fsync of their directory; which of the others are is the disk's choice."""
    saved = save(aged)
    pending: list[list[Path]] = []
    unlinked: list[Path] = []

    def watch(operation: str, path: str) -> None:
        name = Path(path)
        if operation == "unlink" and name.parent.name == "commitlog":
            unlinked.append(name)
        elif operation == "fsync_directory" and name.name == "commitlog":
            pending.append(list(unlinked))
            unlinked.clear()
        elif operation == "unlink" and "consumequeue" in path:
            assert not unlinked, "a queue file goes while a segment may come back"

    with aged.open() as store:
        store._retention._sleep = lambda seconds: None
        durable.hook = watch
        store.retention.run(manual=True)
        durable.hook = None
    assert [len(names) for names in pending if names] == [1] * (SEGMENTS - KEPT)
    restore(aged, saved)


def test_the_progress_record_and_the_flush_come_first(aged: Any, before: tuple[list[int], list[int]]) -> None:
    """A scan after a power cut begins behind what is deleted, and markers are on disk before their old places go."""
    with aged.open() as store:
        store._retention._sleep = lambda seconds: None
        log = store._log

        def watch(operation: str, path: str) -> None:
            if operation == "unlink" and "commitlog" in path:
                end = int(Path(path).name) + log.segments.size_bytes
                known = log.progress.load()
                assert known is not None
                assert end <= known[0].end
                assert log.writing_page.flushed_end == log.writing_page.appended_end

        durable.hook = watch
        assert store.retention.run(manual=True).units == 3
        durable.hook = None


def test_a_store_that_loses_power_after_a_pass_opens_with_its_markers(aged: Any, before: Any) -> None:
    aged.crash(lambda store: store.retention.run(manual=True))
    aged.reboot()
    assert check(aged, *before) == SEGMENTS - KEPT


@pytest.mark.parametrize("segment", range(3))
def test_an_append_that_died_in_the_middle_is_undone_before_anything_goes(aged: Any, before: Any, segment: int) -> None:
    with aged.open() as store:
        end = store.log_range()[1]
        log = store._log
        state = log.views.index_state()
        log.writing_page.declare(end, end + 100 * (segment + 1), state.file, state.header)
        store.retention.run(manual=True)
        assert log.writing_page.intent is None
        assert store.log_range()[0] == before[0][-KEPT]
    check(aged, *before)


def test_the_segment_of_the_newest_record_never_goes(lab: Any) -> None:
    """A broker allocates the next file before it needs it: the last file is empty then."""
    with lab.open() as store:
        while len(bases(lab)) < 3:
            store.append(lab.batch(3))
        size = lab.config.mapped_file_size_commit_log
        (lab.root / "commitlog" / f"{3 * size:020d}").write_bytes(bytes(size))
        end = store.log_range()[1]
        assert mechanics.removable(store._log, end) == [0, size]
        assert mechanics.removable(store._log, 2 * size) == [0]
        assert mechanics.removable(store._log, 2 * size + 1) == [0, size]
        assert mechanics.removable(store._log, 0) == []


def test_an_index_file_that_the_progress_record_names_stays(aged: Any, before: Any) -> None:
    """Recovery would take the whole index for lost."""
    with aged.open() as store:
        store._retention._sleep = lambda seconds: None
        log = store._log
        index = log.views.index
        assert index is not None
        assert len(index.names()) > 3
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(mechanics, "remove_index_files", lambda log: 0)
            assert store.retention.run(manual=True).removed
        known = log.progress.load()
        assert known is not None
        oldest, next_one, *_ = index.names()
        log.progress.write(replace(known[0], index_file=oldest))
        assert mechanics.remove_index_files(log) == 0
        log.progress.write(replace(known[0], index_file=next_one))
        assert mechanics.remove_index_files(log) == 1
        log.progress.write(known[0])
        assert mechanics.remove_index_files(log) > 0
    check(aged, *before)


def test_a_store_that_was_just_filled_saves_its_progress_first(lab: Any) -> None:
    """Its record still says that nothing is on disk."""
    with lab.open() as store:
        while len(bases(lab)) < 5:
            store.append(lab.batch(10))
        for base in bases(lab):
            os.utime(lab.root / "commitlog" / f"{base:020d}", (0, 0))
        log = store._log
        known = log.progress.load()
        assert known is not None
        assert known[0].end == 0
        ends = []

        def watch(operation: str, path: str) -> None:
            if operation == "unlink" and "commitlog" in path:
                record = log.progress.load()
                assert record is not None
                ends.append(record[0].end - int(Path(path).name))

        durable.hook = watch
        store._retention._sleep = lambda seconds: None
        assert len(store.retention.run(manual=True).removed) == 4
        durable.hook = None
        assert min(ends) >= log.segments.size_bytes


def test_readers_of_other_processes_cope(aged: Any, before: Any) -> None:
    """Open files, minima and the ends of queues that another process remembers."""
    with aged.open() as store, aged.open() as other:
        ranges = other.queue_ranges("Alpha")
        size = aged.config.mapped_file_size_commit_log
        views = [next(other.read("Alpha", queue_id, *span)) for queue_id, span in ranges.items()]
        assert store.retention.run(manual=True).removed
        assert other.log_range()[0] == (SEGMENTS - KEPT) * size
        for queue_id, (first, last) in other.queue_ranges("Alpha").items():
            assert first > ranges[queue_id].min_offset
            assert last == ranges[queue_id].max_offset
            with pytest.raises(OffsetOutOfRangeError) as caught:
                other.read("Alpha", queue_id, *ranges[queue_id])
            assert caught.value.minimum == first
        assert all(view.column("topic").to_pylist() == ["Alpha"] * view.num_rows for view in views)
        other.append(aged.batch(10))
        assert aged.numbers(store) == aged.numbers(other)


def test_space_is_given_back_when_another_file_is_opened(aged: Any, before: Any) -> None:
    """What was unlinked keeps its blocks as long as any process has it open."""
    with aged.open() as store, aged.open() as other:
        list(other.read("Alpha", 0, *other.queue_range("Alpha", 0)))
        store.retention.run(manual=True)
        files = other._log.files
        assert any(not os.fstat(file.fd).st_nlink for file in files._files.values())
        newest = before[0][-1]
        files.forget(str(other._log.segments.path(newest)))
        files._next_search_s = 0  # a second later
        other._log.segments.open(newest)
        assert all(os.fstat(file.fd).st_nlink for file in files._files.values())


# -- pins --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def run(aged: Any) -> Iterator[Any]:
    with aged.open() as store:
        yield store._log.segments


def pinned(run: Any) -> list[int]:
    return [base for base in run.bases() if is_pinned(run.path(base))]


def test_a_pin_keeps_the_segments_of_its_range(run: Any) -> None:
    size = run.size_bytes
    with Pin(run, size, 3 * size) as held:
        assert pinned(run) == [size, 2 * size]
        with Pin(run, size + 5, size + 6):
            held.release()
            held.release()
            assert pinned(run) == [size]
    assert pinned(run) == []
    assert held.start == size


def test_a_pin_of_very_many_segments_holds_the_oldest(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pin, "_FILES_MAX", 2)
    with Pin(run, 0, 100 * run.size_bytes):
        assert pinned(run) == [0, run.size_bytes]


def test_who_has_a_file_alone_lets_nobody_pin_it(run: Any) -> None:
    size = run.size_bytes
    with alone(run.path(0)) as is_free:
        assert is_free
        with Pin(run, 0, 2 * size) as held:
            assert held.start == size
            assert pinned(run) == [0, size]
        with alone(run.path(0)) as again:
            assert not again
    with alone(run.path(999 * size)) as is_free:
        assert is_free
    assert not is_pinned(run.path(999 * size))


def test_a_pin_on_a_file_that_goes_while_it_is_taken_begins_behind_it(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = durable.open_nofollow

    def late(path: Any, *flags: int) -> int:
        fd = opened(path, *flags)
        if Path(path) == run.path(0):
            run.path(0).unlink(missing_ok=True)
        return fd

    monkeypatch.setattr(durable, "open_nofollow", late)
    with Pin(run, 0, 3 * run.size_bytes) as held:
        assert held.start == run.size_bytes


def test_a_pin_ends_with_its_process_and_with_its_object(aged: Any, run: Any) -> None:
    held = Pin(run, 0, 1)
    pid = os.fork()
    if pid == 0:
        time.sleep(60)  # it has the descriptor, too
        os._exit(0)
    held.release()
    try:
        assert pinned(run) == []
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    Pin(run, 0, 1)
    assert pinned(run) == []
    ready, say = os.pipe()
    pid = os.fork()
    if pid == 0:
        kept = Pin(run, 0, 1)
        os.write(say, b"%d" % kept.start)
        time.sleep(60)
        os._exit(0)
    os.read(ready, 1)
    assert pinned(run) == [0]
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert pinned(run) == []
    for fd in (ready, say):
        os.close(fd)


def test_a_closed_store_answers_nothing(aged: Any) -> None:
    store: Store = aged.open()
    store.close()
    with pytest.raises(StoreError):
        store.pin(0, 1)
    with pytest.raises(StoreError):
        store.retention  # noqa: B018
