"""Many who wait for the disk share an fsync, in one process and in several; and who flushes when nobody waits.

CommitLog.GroupCommitService, FlushRealTimeService.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rmq_store import Message, SendStatus, Store
from rmq_store.broker.write.flusher import Flusher
from rmq_store.errors import StoreFailedError, StoreLockedError
from rmq_store.files import durable
from rmq_store.files.locks import futex as futex_module
from rmq_store.files.locks.lock import OfdLock
from rmq_store.files.locks.state_page import StatePage
from rmq_store.format.tables.checkpoint import Checkpoint
from rmq_store.log.append.flush import flush, save_progress

if TYPE_CHECKING:
    from .conftest import Lab

HANG_GUARD_S = 30


class SlowDisk:
    """The first fsync of the log does not end before `go_on`; `fsyncs` counts all."""

    def __init__(self) -> None:
        self.fsyncs = 0
        self.entered, self.go_on = threading.Event(), threading.Event()
        durable.hook = self

    def __call__(self, operation: str, path: str) -> None:
        if operation == "fsync" and "commitlog" in path:
            self.fsyncs += 1
            if self.fsyncs == 1:
                self.entered.set()
                assert self.go_on.wait(HANG_GUARD_S)


def sync_store(lab: Lab) -> Store:
    lab.sync_flush()
    store = lab.open()
    store.create_topic("Alpha", 1)
    store.send(Message("Alpha", b"%08d" % 0))
    return store


@pytest.mark.statement("G01")
def test_threads_that_append_during_an_fsync_share_the_next_one(lab: Lab) -> None:
    with sync_store(lab) as store:
        disk = SlowDisk()
        results: list[SendStatus] = []

        def send(number: int) -> None:
            results.append(store.send(Message("Alpha", b"%08d" % number)).status)

        threads = [threading.Thread(target=send, args=(number,)) for number in range(1, 10)]
        threads[0].start()
        assert disk.entered.wait(HANG_GUARD_S)
        for thread in threads[1:]:
            thread.start()
        while store._log.writing_page.appended_end < 10 * store._log.writing_page.flushed_end:
            os.sched_yield()  # until all nine have appended; every record has the same size
        disk.go_on.set()
        for thread in threads:
            thread.join(HANG_GUARD_S)
        durable.hook = None
        assert disk.fsyncs == 2
        assert results == [SendStatus.SEND_OK] * 9
        assert lab.numbers(store) == list(range(10))


@pytest.mark.statement("G01")
def test_processes_that_append_during_an_fsync_share_the_next_one(lab: Lab) -> None:
    with sync_store(lab) as store:
        lab.written = 1
        told, tell = os.pipe()

        def send_and_count(number: int) -> None:
            with lab.open() as other:
                fsyncs = 0

                def count(operation: str, path: str) -> None:
                    nonlocal fsyncs
                    fsyncs += operation == "fsync" and "commitlog" in path

                durable.hook = count
                assert other.send(Message("Alpha", b"%08d" % number)).status is SendStatus.SEND_OK
                durable.hook = None
                os.write(tell, b"%d" % fsyncs)
                other._closed = True  # no last closer's fsyncs in this test

        lock = store._log.flush_lock
        end = store._log.writing_page.appended_end
        children = []
        with lock.exclusive(1000):
            for number in range(1, 5):
                pid = os.fork()
                if pid == 0:
                    code = 1
                    try:
                        send_and_count(number)
                        code = 0
                    finally:
                        os._exit(code)
                children.append(pid)
            while store._log.writing_page.appended_end < 5 * end:
                os.sched_yield()
        assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children] == [0] * 4
        assert sorted(os.read(told, 100).decode()) == ["0", "0", "0", "1"]
        assert store._log.writing_page.flushed_end == store._log.writing_page.appended_end
        os.close(told)
        os.close(tell)


def test_who_was_covered_meanwhile_returns_without_the_lock(lab: Lab) -> None:
    """A follower needs no turn of its own: another process may hold the lock for the next fsync already."""
    with sync_store(lab) as store:
        page = store._log.writing_page
        other = OfdLock(store._log.flush_lock.path)
        with other.exclusive(1000):
            page.appended_end += 100
            waiting = threading.Thread(target=flush, args=(store._log, page.appended_end))
            waiting.start()
            while not page._words[21]:  # flush_waiting
                os.sched_yield()
            page.flushed_end = page.appended_end
            waiting.join(HANG_GUARD_S)
            assert not waiting.is_alive()
        page.appended_end -= 100
        page.flushed_end = page.appended_end


@pytest.mark.statement("G01")
def test_a_leader_that_is_killed_keeps_nobody_waiting(lab: Lab) -> None:
    """It wakes nobody: those who wait look for themselves, and write the range again that it has left in doubt."""
    with sync_store(lab) as store:

        def die_in_fsync() -> None:
            other = lab.open()

            def hook(operation: str, path: str) -> None:
                if operation == "fsync" and "commitlog" in path:
                    os.kill(os.getpid(), signal.SIGKILL)

            durable.hook = hook
            other.send(Message("Alpha", b"%08d" % 1))

        assert lab.in_child(die_in_fsync) == -signal.SIGKILL
        assert store._log.writing_page.flushing == 1
        assert store.send(Message("Alpha", b"%08d" % 2)).status is SendStatus.SEND_OK
        assert lab.numbers(store) == [0, 1, 2]


def test_a_lock_that_wakes_nobody_is_found_free(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    with lab.open() as store:
        monkeypatch.setattr(futex_module.Futex, "wake", lambda futex: None)
        held, go_on = threading.Event(), threading.Event()

        def hold() -> None:
            with store._log.append_lock.exclusive(1000):
                held.set()
                assert go_on.wait(HANG_GUARD_S)

        holder = threading.Thread(target=hold)
        holder.start()
        assert held.wait(HANG_GUARD_S)
        waiter = threading.Thread(target=store.append, args=(lab.batch(1),))
        waiter.start()
        while not store._log.writing_page._words[19]:  # append_waiting
            os.sched_yield()
        go_on.set()
        waiter.join(HANG_GUARD_S)
        holder.join()
        assert lab.numbers(store) == [0]


def test_a_waiter_that_gives_up_names_the_holder(lab: Lab) -> None:
    with lab.open() as store:

        def wait_in_vain() -> None:
            other = lab.open()
            with pytest.raises(StoreLockedError) as caught, other._log.flush_lock.exclusive(20):
                pass
            assert caught.value.pid == os.getppid()

        with store._log.flush_lock.exclusive(1000):
            assert store._log.flush_lock.who() == ("exclusive", os.getpid())
            assert lab.in_child(wait_in_vain) == 0
        assert store._log.flush_lock.who() == ("free", None)


@pytest.mark.statement("G01")
def test_a_message_that_says_wait_false_is_acknowledged_before_it_is_on_disk(lab: Lab) -> None:
    """Message#isWaitStoreMsgOK; the flush thread is woken, and it becomes visible."""
    with sync_store(lab) as store:
        end = store.log_range()[1]
        disk = SlowDisk()
        result = store.send(Message("Alpha", b"%08d" % 1, properties={"WAIT": "false"}))
        assert result.status is SendStatus.SEND_OK
        assert store.log_range()[1] == end
        assert disk.entered.wait(HANG_GUARD_S)  # of the thread, long before its interval
        disk.go_on.set()
        store.flush()
        durable.hook = None
        assert lab.numbers(store) == [0, 1]


@pytest.mark.parametrize("how", ["send", "send_all"])
@pytest.mark.statement("G01")
def test_sync_flush_timeout_is_how_long_a_send_waits_for_the_disk(lab: Lab, how: str) -> None:
    """The message is stored: FLUSH_DISK_TIMEOUT is a success of its own kind (handlePutMessageResult)."""
    lab.config = replace(lab.config, sync_flush_timeout=15)
    with sync_store(lab) as store:
        with OfdLock(store._log.flush_lock.path).exclusive(1000):
            message = Message("Alpha", b"%08d" % 1)
            status = store.send(message).status if how == "send" else store.send_all([message])[0].status
        assert status is SendStatus.FLUSH_DISK_TIMEOUT
        store.flush()
        assert lab.numbers(store) == [0, 1]


@pytest.mark.statement("G01")
def test_acknowledged_by_a_process_that_is_killed_at_once_is_on_disk(lab: Lab) -> None:
    with sync_store(lab) as store:
        lab.crash(lambda other: other.send(Message("Alpha", b"%08d" % 1)))
        page = store._log.writing_page
        assert page.flushed_end == page.appended_end
        assert lab.numbers(store) == [0, 1]


# -- ASYNC_FLUSH ------------------------------------------------------------------------------------------------


class Ticks:
    """The flusher's clock."""

    now_ms = 0

    def __call__(self) -> int:
        return self.now_ms


def flusher_of(lab: Lab, store: Store, **settings: object) -> tuple[Flusher, Ticks]:
    ticks = Ticks()
    config = replace(lab.config, flush_interval_commit_log=500, **settings)  # type: ignore[arg-type]
    return Flusher(store._log, config, ticks), ticks


@pytest.mark.statement("G11")
def test_less_than_four_pages_wait_for_the_thorough_interval(lab: Lab) -> None:
    """FlushRealTimeService: 4 pages of 4096 bytes, or 10 s."""
    lab.config = replace(lab.config, mapped_file_size_commit_log=1 << 20)
    with lab.open() as store:
        page = store._log.writing_page
        flusher, ticks = flusher_of(lab, store)
        store.append(lab.batch(10, body_bytes=100))
        assert page.appended_end < 4 * 4096
        ticks.now_ms += 9_999
        flusher.flush_if_due()
        assert page.flushed_end == 0
        ticks.now_ms += 1
        flusher.flush_if_due()
        assert page.flushed_end == page.appended_end
        flushed = page.flushed_end
        while page.appended_end // 4096 - flushed // 4096 < 4:
            flusher.flush_if_due()
            assert page.flushed_end == flushed
            store.append(lab.batch(1, body_bytes=100))
        flusher.flush_if_due()
        assert page.flushed_end == page.appended_end


def test_a_flush_that_is_late_is_a_line_and_no_traceback(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A process without processor time: whoever has the lock is flushing, and this thread comes again."""
    with lab.open() as store:
        flusher, _ = flusher_of(lab, store, flush_commit_log_timed=False)
        tried = threading.Semaphore(0)

        def late(timeout_ms: int | None = None) -> None:
            tried.release()
            raise StoreLockedError("flush.lock: not free within 60000 ms, held by another thread of this process", 1)

        monkeypatch.setattr(flusher, "flush_if_due", late)
        flusher.start()
        for _ in range(2):
            flusher.flush_async()
            assert tried.acquire(timeout=30)
        flusher.stop()
    (line,) = [record for record in caplog.records if record.name == "rmq_store.broker.write.flusher"]
    assert line.levelname == "WARNING" and line.exc_info is None and "the flush is late" in line.getMessage()


def test_a_full_segment_is_flushed_however_small(lab: Lab) -> None:
    with lab.open() as store:
        page = store._log.writing_page
        flusher, _ = flusher_of(lab, store, flush_commit_log_least_pages=1000)
        store.append(lab.batch(1))
        flusher.flush_if_due()
        assert page.flushed_end == 0
        while page.appended_end < 8192:
            store.append(lab.batch(5, body_bytes=300))
        flusher.flush_if_due()
        assert page.flushed_end == page.appended_end


def test_a_writer_flushes_itself_when_the_thread_is_late(lab: Lab) -> None:
    """Also in a process whose thread gets no time, or has none any more."""
    with lab.open() as store:
        assert store._writer is not None
        store._writer._flusher, ticks = flusher_of(lab, store, flush_commit_log_least_pages=0)
        page = store._log.writing_page
        store.append(lab.batch(1))
        ticks.now_ms += 999
        store.append(lab.batch(1))
        assert page.flushed_end == 0
        ticks.now_ms += 1
        store.send(Message("Alpha", b"%08d" % lab.written))
        assert page.flushed_end == page.appended_end
        store.append(lab.batch(1))
        assert page.flushed_end < page.appended_end


def test_a_writer_hears_of_a_thread_that_cannot_flush(lab: Lab) -> None:
    """No descriptor left, say: nothing is poisoned, and acknowledged messages would never reach the disk."""

    def fail(operation: str, path: str) -> None:
        if operation == "open" and path.endswith("commitlog"):
            raise OSError(24, "Too many open files")

    with lab.open() as store:
        assert store._writer is not None
        store._writer._flusher, ticks = flusher_of(lab, store, flush_commit_log_least_pages=0)
        store.append(lab.batch(1))
        durable.hook = fail
        for _ in range(3):
            ticks.now_ms += 500
            with pytest.raises(StoreFailedError):
                store._writer._flusher.flush_if_due()
        with pytest.raises(StoreFailedError):
            store.append(lab.batch(1))
        durable.hook = None
        assert not store._log.writing_page.poison
        store.append(lab.batch(1))
        assert store._log.writing_page.flushed_end == store._log.writing_page.appended_end


def test_what_somebody_wants_soon_is_flushed_however_little_it_is(lab: Lab) -> None:
    with lab.open() as store:
        flusher, _ = flusher_of(lab, store)
        page = store._log.writing_page
        store.append(lab.batch(1))
        flusher.flush_if_due()
        assert page.flushed_end < page.appended_end
        flusher.flush_async()
        flusher.flush_if_due()
        assert page.flushed_end == page.appended_end
        store.append(lab.batch(1))
        flusher.flush_if_due()
        assert page.flushed_end < page.appended_end, "what came later is wanted no sooner than ever"


def test_flush_async_does_not_wait_for_the_interval(lab: Lab) -> None:
    lab.config = replace(lab.config, flush_interval_commit_log=600_000)
    with lab.open() as store:
        store.append(lab.batch(1))  # it makes the segment, which is synced
        disk = SlowDisk()
        disk.go_on.set()
        store.append(lab.batch(1))
        store.flush_async()
        assert disk.entered.wait(HANG_GUARD_S)
        durable.hook = None


def test_a_late_writer_does_not_wait_for_somebody_elses_flush(lab: Lab) -> None:
    with lab.open() as store:
        assert store._writer is not None
        store._writer._flusher, ticks = flusher_of(lab, store, flush_commit_log_least_pages=0)
        ticks.now_ms += 5000
        with OfdLock(store._log.flush_lock.path).exclusive(1000):
            store.append(lab.batch(1))
        assert lab.numbers(store) == [0]


def test_a_late_writer_whose_flush_fails_acknowledges_nothing(lab: Lab) -> None:
    def fail(operation: str, path: str) -> None:
        if operation == "fsync" and Path(path).exists() and "commitlog" in path:
            raise OSError(errno.EIO, "Input/output error")

    store = lab.open()
    assert store._writer is not None
    store.append(lab.batch(1))
    store._writer._flusher, ticks = flusher_of(lab, store, flush_commit_log_least_pages=0)
    ticks.now_ms += 5000
    durable.hook = fail
    with pytest.raises(StoreFailedError):
        store.append(lab.batch(1))
    durable.hook = None
    with pytest.raises(StoreFailedError):
        store.append(lab.batch(1))
    with pytest.raises(StoreFailedError):
        store.close()


@pytest.mark.parametrize(
    ("operation", "number", "words"),
    [("open", errno.EMFILE, "trying again every"), ("fsync", errno.EIO, "nothing is written any more until")],
)
def test_the_thread_says_whether_trying_again_can_help(
    lab: Lab, caplog: pytest.LogCaptureFixture, operation: str, number: int, words: str
) -> None:
    def fail(found: str, path: str) -> None:
        if found == operation and Path(path).parts[-1 if operation == "open" else -2] == "commitlog":
            raise OSError(number, os.strerror(number))

    lab.config = replace(lab.config, flush_commit_log_least_pages=0)
    store = lab.open()
    store.append(lab.batch(1))
    durable.hook = fail
    assert store._flusher is not None
    store._flusher.flush_async()
    while not caplog.messages:
        os.sched_yield()
    durable.hook = None
    assert words in caplog.messages[0]
    with contextlib.suppress(StoreFailedError):
        store.close()


def test_without_flush_commit_log_timed_an_append_wakes_the_thread(lab: Lab) -> None:
    lab.config = replace(
        lab.config, flush_commit_log_timed=False, flush_commit_log_least_pages=0, flush_interval_commit_log=600_000
    )
    with lab.open() as store:
        store.append(lab.batch(1))  # it makes the segment, which is synced
        store.flush()
        disk = SlowDisk()
        disk.go_on.set()
        store.append(lab.batch(1))
        assert disk.entered.wait(HANG_GUARD_S)
        durable.hook = None


@pytest.mark.statement("G11")
def test_what_a_dead_process_left_unflushed_is_flushed_by_the_others_or_by_the_next_opener(lab: Lab) -> None:
    with lab.open() as store:
        lab.crash(lambda other: other.append(lab.batch(3)))
        lab.written += 3
        page = store._log.writing_page
        assert page.flushed_end < page.appended_end
        flusher, ticks = flusher_of(lab, store)
        ticks.now_ms += 10_000
        flusher.flush_if_due()
        assert page.flushed_end == page.appended_end
    lab.crash(lambda other: other.append(lab.batch(3)))
    lab.written += 3
    left = StatePage(lab.root / "pyrmq" / "state", writable=False)
    assert left.flushed_end < left.appended_end
    operations: list[str] = []
    durable.hook = lambda operation, path: operations.append(operation)
    with lab.open() as store:
        durable.hook = None
        page = store._log.writing_page
        assert "syncfs" in operations
        assert page.flushed_end == page.appended_end == left.appended_end
        assert lab.numbers(store) == list(range(6))


def test_saved_progress_writes_rocketmqs_checkpoint_atomically(lab: Lab) -> None:
    """StoreCheckpoint: a broker that opens the store after a crash starts there."""
    with lab.open() as store:
        store.append(lab.batch(60, body_bytes=300))
        operations: list[tuple[str, str]] = []
        durable.hook = lambda operation, path: operations.append((operation, Path(path).name))
        save_progress(store._log)
        durable.hook = None
        checkpoint = Checkpoint.unpack((lab.root / "checkpoint").read_bytes(), "checkpoint")
        page = store._log.writing_page
        assert checkpoint.physic_msg_timestamp == checkpoint.logics_msg_timestamp == page.store_timestamp
        assert 0 < checkpoint.index_msg_timestamp <= page.store_timestamp
        assert checkpoint.confirm_phy_offset == page.flushed_end
        synced = operations.index(("syncfs", "store"))
        written = [operation for operation, name in operations[synced:] if name.startswith("checkpoint")]
        assert written[-4:] == ["open", "write", "fsync", "rename"]
        assert operations.index(("rename", "checkpoint")) > synced


def test_a_message_that_is_stored_but_not_flushed_in_time_is_not_reported_as_refused(lab: Lab) -> None:
    """A retryable error would make the caller send it twice."""
    lab.config = replace(lab.config, flush_disk_type="SYNC_FLUSH", sync_flush_timeout=20)
    with lab.open() as store:
        store.create_topic("T", queue_count=1)
        other = OfdLock(store.path / "pyrmq" / "flush.lock")
        with other.exclusive(1000):
            result = store.send(Message("T", b"once"))
            assert result.status is SendStatus.FLUSH_DISK_TIMEOUT
        assert store.send(Message("T", b"twice")).status is SendStatus.SEND_OK
        assert store.queue_range("T", 0).max_offset == 2


@pytest.mark.statement("G11")
def test_the_flush_thread_survives_an_error_that_is_none_of_the_stores(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    lab.config = replace(lab.config, flush_interval_commit_log=5, flush_commit_log_least_pages=0)
    with lab.open() as store:
        failed = threading.Event()

        def fail_once(operation: str, path: str) -> None:
            if operation == "fsync" and threading.current_thread().name == "rmq-flush" and not failed.is_set():
                failed.set()
                raise RuntimeError("a surprise")

        durable.hook = fail_once
        for _ in range(1000):  # where the thread gets no turn for some intervals, the sender flushes in its place
            end = store.send(Message("Alpha", b"x")).commit_log_offset + 1
            if failed.wait(0.01):
                break
        assert failed.is_set()
        waited = threading.Event()
        for _ in range(500):
            if store._log.writing_page.flushed_end >= end:
                break
            waited.wait(0.01)
        assert store._log.writing_page.flushed_end >= end
    assert "a surprise" in caplog.text
