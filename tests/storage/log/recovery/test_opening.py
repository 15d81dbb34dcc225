"""Who recovers, who tidies up, and who keeps whom out."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rmq_store import Message, Store
from rmq_store.errors import StoreError, StoreLockedError, StoreReplacedError
from rmq_store.files import durable
from rmq_store.files.locks.lock import OfdLock
from rmq_store.files.segments import segments
from rmq_store.format.tables.checkpoint import Checkpoint
from rmq_store.log.recovery import opening
from rmq_store.log.recovery.opening import open_for_writing

if TYPE_CHECKING:
    from .conftest import Lab

# What a broker does to a store: DefaultMessageStore#start takes byte 0 with tryLock and writes "lock".
BROKER = """
import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
os.pwrite(fd, sys.argv[2].encode(), 0)
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def broker(root: Path, text: str = "lock") -> Iterator[int]:
    with subprocess.Popen(
        [sys.executable, "-c", BROKER, str(root / "lock"), text],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process.pid
        process.kill()


@pytest.mark.parametrize("text", ["lock", ""], ids=["started", "starting"])
def test_a_broker_on_the_store_is_named_at_once(lab: Lab, text: str) -> None:
    with lab.open() as store:
        store.append(lab.batch(3))
    before = lab.files()
    with broker(lab.root, text) as pid:
        started = time.monotonic()
        with pytest.raises(StoreLockedError, match=f"process {pid} holds the store alone; is a Rocket") as caught:
            lab.open()
        assert caught.value.pid == pid
        assert time.monotonic() - started < 20, "the time-out is 30 s"
        with lab.open(read_only=True) as reader:
            assert lab.numbers(reader) == [0, 1, 2]
    assert lab.files() == before


def test_a_broker_finds_the_store_locked_while_one_of_us_has_it_open(lab: Lab) -> None:
    with lab.open():
        code = subprocess.run(
            [sys.executable, "-c", BROKER, str(lab.root / "lock"), "lock"],
            capture_output=True, stdin=subprocess.DEVNULL,
        ).returncode  # fmt: skip
        assert code != 0
    assert (lab.root / "lock").read_bytes()[:4] == b"rmq\n"


def test_processes_that_make_a_store_together_wait_for_the_first_one(lab: Lab) -> None:
    """The first opener is at work, `lock` holds nobody's text yet: that is no broker."""
    lab.root.mkdir()
    (lab.root / "commitlog").mkdir()
    reading, writing = os.pipe()

    def open_slowly() -> None:
        def hook(operation: str, path: str) -> None:
            if operation == "syncfs":
                os.write(writing, b"x")
                time.sleep(0.3)

        durable.hook = hook
        store = lab.open()
        durable.hook = None
        store.append(lab.batch(1))
        store.close()

    pid = os.fork()
    if pid == 0:
        try:
            open_slowly()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.read(reading, 1) == b"x"
    assert (lab.root / "lock").read_bytes()[:4] != b"rmq\n"
    lab.written = 1
    with lab.open() as store:
        store.append(lab.batch(1))
        assert os.waitpid(pid, 0)[1] == 0
        assert lab.numbers(store) == [0, 1]
    os.close(reading)
    os.close(writing)
    assert lab.verify().status == "clean"


def test_a_first_opener_that_takes_too_long_is_named(lab: Lab) -> None:
    with lab.open():
        pass
    with lab.open() as store:
        log = store._log
        assert log.store_lock.try_upgrade()
        other = Store.open(lab.root, read_only=True)._log
        other.writable = True
        with pytest.raises(StoreLockedError, match="not free within 50 ms") as caught:
            open_for_writing(other, timeout_ms=50)
        assert caught.value.pid == os.getpid()
        log.store_lock.downgrade()
        other.close()


def test_the_last_closer_removes_abort_and_retracts_the_page_but_no_other_one_does(lab: Lab) -> None:
    first = lab.open()
    second = lab.open()
    assert (first.recovery is not None, second.recovery is None) == (True, True)
    first.append(lab.batch(5))
    first.close()
    assert (lab.root / "abort").exists()
    assert second._log.writing_page.counts()
    second.append(lab.batch(5))
    page = second._log.writing_page
    second.close()
    assert not (lab.root / "abort").exists()
    assert not page.counts()
    with lab.open() as store:
        assert store.recovery is not None
        assert store.recovery.trust == "CLEAN"
        assert lab.numbers(store) == list(range(10))


def test_two_that_close_at_the_same_time_leave_a_clean_store(lab: Lab) -> None:
    """Both hold byte 0 shared: each would refuse the other's upgrade, and nobody would tidy up."""
    for _ in range(10):
        stores = [lab.open(), lab.open()]
        barrier = threading.Barrier(2)

        def close(store: Store, barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            store.close()

        threads = [threading.Thread(target=close, args=(store,)) for store in stores]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not (lab.root / "abort").exists()


def test_an_opener_that_comes_between_two_looks_of_the_last_closer_recovers_by_itself(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused the lock alone, it is granted a shared one a moment later: the page it finds is a leaver's."""
    last = lab.open()
    last.append(lab.batch(3))
    joiner = Store.open(lab.root, read_only=True)._log
    joiner.writable = True
    real = joiner.store_lock.try_shared

    def leave_first() -> bool:
        last.close()
        return real()

    monkeypatch.setattr(joiner.store_lock, "try_shared", leave_first)
    report = open_for_writing(joiner)
    assert report is not None
    assert (report.trust, report.end) == ("CLEAN", last._log.writing_page.appended_end)
    assert (lab.root / "abort").exists()
    opening.close(joiner)
    assert not (lab.root / "abort").exists()


def test_the_last_closer_takes_back_what_a_dead_writer_began(lab: Lab, memory_too: None) -> None:
    with lab.open() as store:
        store.append(lab.batch(5))
        before = lab.files()
        batch = lab.batch(30)

        def append_and_die() -> None:
            other = lab.open()

            def hook(operation: str, path: str) -> None:
                if (operation, path) == ("word", "5"):
                    os.kill(os.getpid(), signal.SIGKILL)

            durable.hook = hook
            other.append(batch)

        assert lab.in_child(append_and_die) == -signal.SIGKILL
        assert lab.files() != before
    assert lab.files() == before
    assert lab.verify().status == "clean"


def test_a_clean_stop_leaves_javas_checkpoint_and_no_empty_segment(lab: Lab) -> None:
    with lab.open() as store:
        store.append(lab.batch(30, body_bytes=300))
        store._log.segments.create(store.log_range()[1] // 8192 * 8192 + 8192)
        end = store.log_range()[1]
        stored = store._log.writing_page.store_timestamp
        full = store._log.views.index.newest_full_timestamp()  # type: ignore[union-attr]
    checkpoint = Checkpoint.unpack((lab.root / "checkpoint").read_bytes(), "checkpoint")
    assert (checkpoint.physic_msg_timestamp, checkpoint.logics_msg_timestamp) == (stored, stored)
    assert (checkpoint.index_msg_timestamp, checkpoint.confirm_phy_offset) == (full, end)
    assert 0 < full <= stored
    assert max(int(path.name) for path in (lab.root / "commitlog").iterdir()) < end


def test_nothing_of_ours_lies_where_java_loads_files_from(lab: Lab) -> None:
    with lab.open() as store:
        store.append(lab.batch(60, body_bytes=300))
        for directory in ("commitlog", "consumequeue", "index"):
            for path in (lab.root / directory).rglob("*"):
                assert path.is_dir() or (path.name.isdigit() and path.stat().st_size)


@pytest.mark.parametrize("abort_first", [True, False])
def test_abort_exists_before_anything_is_changed(lab: Lab, abort_first: bool) -> None:
    with lab.open() as store:
        store.append(lab.batch(5))
    lab.overwrite(len(lab.files()["commitlog/" + "0" * 20].rstrip(b"\0")), b"\xff")  # something to repair
    if abort_first:
        lab.broker_was_here(abort=True)
    changed_without_abort: list[str] = []

    def hook(operation: str, path: str) -> None:
        inside = any(f"/{name}" in path for name in ("commitlog", "consumequeue", "index", "progress"))
        if operation in ("write", "unlink") and inside and not (lab.root / "abort").exists():
            changed_without_abort.append(path)

    durable.hook = hook
    with lab.open():
        pass
    durable.hook = None
    assert changed_without_abort == []


def test_a_store_that_failed_to_open_is_not_kept_locked(lab: Lab) -> None:
    with lab.open() as store:
        store.append(lab.batch(5))

    def fail(operation: str, path: str) -> None:
        if operation == "write" and path.endswith("progress"):
            raise OSError(5, "no")

    durable.hook = fail
    with pytest.raises(StoreError):
        lab.open()
    durable.hook = None
    with lab.open() as store:
        assert lab.numbers(store) == list(range(5))


def test_a_page_that_a_killed_writer_left_is_not_believed_once_a_broker_was_here(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was refused the lock alone while the writer lived; before it asks again, a broker has come and gone."""
    lab.crash(lambda store: store.append(lab.batch(20)))
    lab.broker_was_here(abort=True)
    take = OfdLock.try_exclusive
    refused: list[bool] = []

    def refused_once(lock: OfdLock) -> bool:
        if lock.path == lab.root / "lock" and not refused:
            refused.append(True)
            return False
        return take(lock)

    monkeypatch.setattr(OfdLock, "try_exclusive", refused_once)
    with lab.open() as store:
        assert refused
        assert store.recovery is not None
        assert store.recovery.trust == "BROKER_UNCLEAN"
        assert len(lab.numbers(store)) == 20


def test_a_first_opener_sweeps_what_dead_processes_were_writing(lab: Lab) -> None:
    """A power cut, or a kill, between the file and its rename."""
    lab.open().close()
    names = ["checkpoint", *(f"pyrmq/{name}.json" for name in ("store", "units", "kept", "retention"))]
    left = [lab.root / f"{name}.4711-0.tmp" for name in names]
    for path in left:
        path.write_bytes(b"{")
    with lab.open(read_only=True):
        assert all(path.exists() for path in left)
    with lab.open():
        assert not any(path.exists() for path in left)
        left[1].write_bytes(b"{")
        with lab.open():  # it may be a live one's
            assert left[1].exists()


def test_a_store_without_messages_is_found_as_clean_as_it_was_left(lab: Lab) -> None:
    """It has no views either, which is no reason to scan, and to wait for all that others have to write."""
    lab.open().close()
    for _ in range(2):
        with lab.open() as store:
            assert store.recovery is not None and store.recovery.trust == "CLEAN"


def test_a_writer_closes_without_a_trace_when_another_store_has_taken_the_place_of_its_own(lab: Lab) -> None:
    old = lab.open()
    old.append(lab.batch(100))
    lab.root.rename(lab.root.with_name("old"))
    with lab.open() as new:
        new.append(lab.batch(1))
    before = {path: path.read_bytes() for path in lab.root.rglob("*") if path.is_file()}
    with pytest.raises(StoreReplacedError, match=r"was moved to .*/old"):
        old.close()
    assert {path: path.read_bytes() for path in lab.root.rglob("*") if path.is_file()} == before


def test_a_closer_leaves_no_files_that_were_made_ahead(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "_AHEAD_BYTES_MIN", 0)
    store = lab.open()
    store.append(lab.batch(60, body_bytes=300))
    makers = [thread for thread in threading.enumerate() if thread.name == "rmq-files"]
    for thread in makers:
        thread.join()
    ahead = list((lab.root / "pyrmq").glob("new-*"))
    assert ahead
    store.append(lab.batch(60, body_bytes=300))
    assert not any(path.exists() for path in ahead)  # they have become segments
    store.close()
    assert not list((lab.root / "pyrmq").glob("new-*"))
    assert lab.verify().status == "clean"
    with lab.open() as store:
        assert lab.numbers(store) == list(range(120))


def test_a_refused_open_for_writing_has_not_touched_a_brokers_index(
    golden_small: Path, working_copy: Callable[[Path], Path]
) -> None:
    root = working_copy(golden_small / "normal")
    (index,) = (root / "index").iterdir()
    before = index.stat()
    with broker(root) as pid, pytest.raises(StoreLockedError, match=str(pid)):
        Store.open(root)
    after = index.stat()
    assert (after.st_mtime_ns, after.st_ctime_ns, after.st_size) == (
        before.st_mtime_ns,
        before.st_ctime_ns,
        before.st_size,
    )


def test_close_flushes_while_others_have_the_store_open(lab: Lab) -> None:
    with lab.open() as store:
        with lab.open() as other:
            other.send(Message("Alpha", b"x"))
        page = store._log.writing_page
        assert page.flushed_end == page.appended_end > 0
