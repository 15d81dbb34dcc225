"""What is promised to be on disk is, and after a failed fsync nothing more is promised to anybody."""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rmq_store import Message, Store
from rmq_store.errors import StoreFailedError
from rmq_store.files import durable
from rmq_store.log.append import flush as flush_module
from rmq_store.log.append.flush import flush, save_progress, sync_filesystem

if TYPE_CHECKING:
    from .conftest import Lab


class Operations(list[tuple[str, str]]):
    """What the file layer did: (operation, directory of the store it concerned)."""

    def __init__(self, lab: Lab) -> None:
        super().__init__()
        self._root = lab.root
        durable.hook = self.note

    def note(self, operation: str, path: str) -> None:
        inside = Path(path).relative_to(self._root)
        self.append((operation, inside.parts[0] if inside.parts else ""))


def fail_fsync_of_the_log(operation: str, path: str) -> None:
    if operation == "fsync" and "commitlog" in path:
        raise OSError(5, "Input/output error")


@pytest.mark.statement("G01", "G11")
def test_under_sync_flush_a_message_is_visible_and_on_disk_on_return(lab: Lab) -> None:
    lab.sync_flush()
    with lab.open() as store:
        store.create_topic("Alpha", 1)
        operations = Operations(lab)
        store.send(Message("Alpha", b"00000000"))
        durable.hook = None
        page = store._log.writing_page
        assert page.flushed_end == page.appended_end == store.log_range()[1]
        assert operations.count(("fsync", "commitlog")) >= 1
        assert ("fsync_directory", "commitlog") in operations  # the segment's name
        assert lab.numbers(store) == [0]


def test_under_sync_flush_what_is_not_flushed_is_not_visible(lab: Lab) -> None:
    lab.sync_flush()
    store = lab.open()
    store.append(lab.batch(3))
    end = store.log_range()[1]
    durable.hook = fail_fsync_of_the_log
    with pytest.raises(StoreFailedError):
        store.append(lab.batch(3))
    durable.hook = None
    assert store._log.writing_page.appended_end > end
    with lab.open(read_only=True) as reader:
        for seeing in (store, reader):
            assert seeing.log_range()[1] == end
            assert lab.numbers(seeing) == [0, 1, 2]
    with pytest.raises(StoreFailedError):
        store.close()


def test_a_flush_moves_the_flushed_end_and_then_costs_nothing(lab: Lab) -> None:
    with lab.open() as store:
        store.append(lab.batch(60, body_bytes=300))
        page = store._log.writing_page
        assert page.flushed_end < page.appended_end
        operations = Operations(lab)
        store.flush()
        assert page.flushed_end == page.appended_end
        assert page.flushing == 0
        assert operations.count(("fsync", "commitlog")) == len(list((lab.root / "commitlog").iterdir()))
        operations.clear()
        store.flush()
        assert operations == []


def test_one_fsync_serves_all_who_wait_for_it(lab: Lab) -> None:
    with lab.open() as store:
        store.append(lab.batch(1))
        fsyncs, entered, go_on = [], threading.Event(), threading.Event()

        def hook(operation: str, path: str) -> None:
            if operation == "fsync":
                fsyncs.append(path)
                entered.set()
                assert go_on.wait(60)

        durable.hook = hook
        threads = [threading.Thread(target=flush, args=(store._log,)) for _ in range(4)]
        threads[0].start()
        assert entered.wait(60)
        for thread in threads[1:]:
            thread.start()
        time.sleep(0.05)
        go_on.set()
        for thread in threads:
            thread.join()
        durable.hook = None
        assert len(fsyncs) == 1


def test_after_a_failed_fsync_every_process_refuses_to_write_and_reading_goes_on(lab: Lab) -> None:
    first, second = lab.open(), lab.open()
    first.append(lab.batch(5))
    durable.hook = fail_fsync_of_the_log
    with pytest.raises(StoreFailedError):
        first.flush()
    durable.hook = None
    for store in (first, second):
        with pytest.raises(StoreFailedError):
            store.append(lab.batch(1))
        with pytest.raises(StoreFailedError):
            store.flush()
        assert lab.numbers(store) == list(range(5))
    # Nobody stops it cleanly; the next one writes again what perhaps never reached the disk.
    for store in (first, second):
        with pytest.raises(StoreFailedError):
            store.close()
    assert (lab.root / "abort").exists()
    written = []
    durable.hook = lambda operation, path: written.append(path) if operation == "write" else None
    with lab.open() as store:
        durable.hook = None
        assert any("commitlog" in path for path in written)
        assert lab.numbers(store) == list(range(5))
        store.append(lab.batch(1))


def test_a_failing_fsync_while_closing_leaves_the_store_unclean(lab: Lab) -> None:
    store = lab.open()
    store.append(lab.batch(5))
    durable.hook = fail_fsync_of_the_log
    with pytest.raises(StoreFailedError):
        store.close()
    durable.hook = None
    assert (lab.root / "abort").exists()
    with lab.open() as store:
        assert store.recovery is not None
        assert store.recovery.trust == "OWN"
        assert lab.numbers(store) == list(range(5))
    assert not (lab.root / "abort").exists()


@pytest.mark.parametrize("step", ["closing", "saving progress"])
def test_a_failing_syncfs_poisons_the_store(lab: Lab, step: str) -> None:
    """It covers the views: a later one that succeeds would vouch for pages that never reached the disk."""
    store = lab.open()
    store.append(lab.batch(5))
    known = store._log.progress.load()

    def fail(operation: str, path: str) -> None:
        if operation == "syncfs":
            raise OSError(5, "Input/output error")

    durable.hook = fail
    with pytest.raises(StoreFailedError):
        store.close() if step == "closing" else save_progress(store._log)
    durable.hook = None
    assert store._log.writing_page.poison
    assert store._log.progress.load() == known
    if step != "closing":
        with pytest.raises(StoreFailedError):
            store.close()
    assert (lab.root / "abort").exists()


class Kernel:
    """Who is told by syncfs(2) of a failed write-back (errseq_t): every descriptor that was open when it came, and a
    later one if nobody was told before.
    """

    def __init__(self) -> None:
        self.failures = self.told = 0
        self._known: dict[int, int] = {}
        self._open = os.open

    def open(self, path: Any, flags: int, *rest: Any, **named: Any) -> int:
        fd = self._open(path, flags, *rest, **named)
        self._known[fd] = self.told
        return fd

    def syncfs(self, fd: int) -> int:
        is_news = self._known[fd] < self.failures
        self._known[fd] = self.told = self.failures
        ctypes.set_errno(errno.EIO)
        return -1 if is_news else 0


def test_an_error_that_another_program_was_told_of_is_heard(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """`sync -f`, another store on the same disk, or a process of ours that was killed before it could set `poison`."""
    kernel = Kernel()
    monkeypatch.setattr(os, "open", kernel.open)
    monkeypatch.setattr(flush_module, "_libc", kernel)
    store = lab.open()
    store.append(lab.batch(5))
    known = store._log.progress.load()
    kernel.failures += 1
    other = os.open(lab.root, os.O_RDONLY)
    assert kernel.syncfs(other) == -1
    os.close(other)
    with pytest.raises(StoreFailedError, match="syncfs failed"):
        save_progress(store._log)
    assert store._log.writing_page.poison
    assert store._log.progress.load() == known
    with pytest.raises(StoreFailedError):
        store.close()
    with lab.open() as again:  # of which a new descriptor knows nothing: the state page says it
        assert lab.numbers(again) == list(range(5))


def test_a_process_without_a_free_descriptor_poisons_nothing(lab: Lab) -> None:
    """Every writer of the store would be refused until all have closed it, and nothing is wrong with the disk."""
    with lab.open() as store:
        store.append(lab.batch(5))
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
        try:
            with pytest.raises(OSError, match="Too many open files"):
                os.open(lab.root, os.O_RDONLY)
            sync_filesystem(store._log)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert not store._log.writing_page.poison


def test_tables_can_be_written_when_messages_cannot_any_more(lab: Lab) -> None:
    """docs/guarantees.md: what an fsync of the log failed for says nothing of files of their own."""

    def fail(operation: str, path: str) -> None:
        if operation == "fsync" and "commitlog" in path:
            raise OSError(errno.EIO, "Input/output error")

    store = lab.open()
    store.append(lab.batch(5))
    durable.hook = fail
    with pytest.raises(StoreFailedError):
        store.flush()
    durable.hook = None
    with pytest.raises(StoreFailedError):
        store.append(lab.batch(1))
    store.create_topic("After")
    store.commit_offsets("g", {("After", 0): 1})
    with pytest.raises(StoreFailedError):
        store.close()
    with lab.open() as store:
        assert store.topic("After").read_queue_nums == 4
        assert store.committed_offsets("g") == {("After", 0): 1}


def test_a_flush_acknowledges_nothing_if_another_process_failed_meanwhile(lab: Lab) -> None:
    """Its fsync may have been told of an error of the same pages, and only one of them is told."""
    store = lab.open()
    store.append(lab.batch(5))
    page = store._log.writing_page

    def fail_elsewhere(operation: str, path: str) -> None:
        if operation == "fsync" and "commitlog" in path:
            page.poison = 1

    durable.hook = fail_elsewhere
    flushed = page.flushed_end
    with pytest.raises(StoreFailedError, match="a flush failed earlier"):
        store.flush()
    durable.hook = None
    assert page.flushed_end == flushed < page.appended_end
    with pytest.raises(StoreFailedError):
        store.close()


def test_a_flush_that_was_killed_makes_the_next_one_write_the_range_again(lab: Lab) -> None:
    """The kernel may have reported the failure to the process that is gone."""

    def flush_and_die(store: Store) -> None:
        store.append(lab.batch(5))

        def hook(operation: str, path: str) -> None:
            if operation == "fsync" and "commitlog" in path:
                os.kill(os.getpid(), signal.SIGKILL)

        durable.hook = hook
        store.flush()

    with lab.open() as store:
        lab.crash(flush_and_die)
        lab.written += 5
        page = store._log.writing_page
        assert (page.flushing, page.poison) == (1, 0)
        before = lab.files()
        operations = Operations(lab)
        store.flush()
        durable.hook = None
        order = [operations.index(step) for step in (("write", "commitlog"), ("syncfs", ""), ("fsync", "commitlog"))]
        assert order == sorted(order)
        assert (page.flushing, page.flushed_end) == (0, page.appended_end)
        assert lab.files() == before
        store.append(lab.batch(1))
        operations = Operations(lab)
        store.flush()
        assert ("write", "commitlog") not in operations


def test_flushing_is_said_before_the_fsync_and_the_flushed_end_moves_behind_it(lab: Lab, memory_too: None) -> None:
    order: list[str] = []

    def hook(operation: str, path: str) -> None:
        if operation in ("word", "fsync"):
            order.append(operation if operation == "fsync" else f"word {path}")

    with lab.open() as store:
        store.append(lab.batch(1))
        durable.hook = hook
        store.flush()
        durable.hook = None
    assert order == ["word 7", "fsync", "word 7", "word 6"]


def test_the_progress_record_is_written_when_everything_that_it_names_is_on_disk(lab: Lab) -> None:
    with lab.open() as store:
        store.append(lab.batch(40, body_bytes=300))
        operations = Operations(lab)
        save_progress(store._log)
        durable.hook = None
        kinds = [item for item in operations if item in (("fsync", "commitlog"), ("syncfs", ""), ("write", "pyrmq"))]
        assert kinds[-2:] == [("syncfs", ""), ("write", "pyrmq")]
        assert kinds[0] == ("fsync", "commitlog")
        loaded = store._log.progress.load()
        assert loaded is not None
        record = loaded[0]
        end = store.log_range()[1]
        assert (record.end, record.flushed_end, record.clean) == (end, end, False)
        assert record == store._log.progress_record()


def test_progress_is_saved_while_another_process_makes_a_file_of_the_index(lab: Lab) -> None:
    """Of such a file there is nothing to be read yet."""
    with lab.open() as store, lab.open() as other:
        writer = threading.Thread(target=other.append, args=(lab.batch(40),))
        is_being_made, is_saved = threading.Event(), threading.Event()

        def hook(operation: str, path: str) -> None:
            if operation == "syncfs":
                writer.start()
                assert is_being_made.wait(60)
            elif operation == "allocate" and path.startswith(str(lab.root / "index")) and not Path(path).stat().st_size:
                is_being_made.set()
                assert is_saved.wait(60)

        durable.hook = hook
        try:
            save_progress(store._log)
        finally:
            is_saved.set()
            writer.join()
            durable.hook = None
        assert lab.numbers(store) == list(range(40))


@pytest.mark.statement("G12")
def test_a_scan_after_a_power_cut_starts_at_the_progress_record(lab: Lab) -> None:
    def work(store: Store) -> None:
        store.append(lab.batch(40, body_bytes=300))
        save_progress(store._log)
        store.append(lab.batch(3))

    with lab.open() as store:
        store.append(lab.batch(40, body_bytes=300))
    lab.crash(work)
    lab.written += 43
    files = lab.files()
    lab.reboot()
    with lab.open() as store:
        assert store.recovery is not None
        assert (store.recovery.trust, store.recovery.record_count) == ("OWN", 3)
        assert lab.numbers(store) == list(range(83))
    assert lab.files() == files


def test_an_older_progress_record_never_replaces_a_newer_one(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    with lab.open() as first, lab.open() as second:
        first.append(lab.batch(5))
        taken = first._log.progress_record()
        second.append(lab.batch(5))
        save_progress(second._log)
        newer = second._log.progress.load()
        monkeypatch.setattr(first._log, "progress_record", lambda: taken)
        save_progress(first._log)
        assert first._log.progress.load() == newer
        monkeypatch.undo()


def test_running_out_of_descriptors_does_not_poison_the_store(lab: Lab) -> None:
    with lab.open() as store:
        store.send(Message("Alpha", b"x", queue_id=0))

        def no_descriptor(operation: str, path: str) -> None:
            if operation == "open" and "commitlog" in path:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        store._log.files.clear()
        durable.hook = no_descriptor
        with pytest.raises(StoreFailedError):
            store.flush()
        durable.hook = None
        store.flush()
        assert store.send(Message("Alpha", b"y", queue_id=0)).queue_offset == 1


def test_an_interrupt_during_an_fsync_makes_the_next_flush_write_the_range_again(lab: Lab) -> None:
    with lab.open() as store:
        store.send(Message("Alpha", b"x"))
        operations: list[str] = []

        def interrupt(operation: str, path: str) -> None:
            operations.append(operation)
            if operation == "fsync" and operations.count("fsync") == 1:
                raise KeyboardInterrupt

        durable.hook = interrupt
        with pytest.raises(KeyboardInterrupt):
            store.flush()
        operations.clear()
        operations.append("fsync")
        store.flush()
        assert "write" in operations
        assert store._log.writing_page.poison == 0
