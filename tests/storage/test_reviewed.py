"""Windows that a review of the engine found: each test is one of them."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from rmq_store import (
    CorruptRecordError,
    Message,
    SendStatus,
    Store,
    StoreConfig,
    StoreFailedError,
    StoreLockedError,
    UsageError,
)
from rmq_store.files import durable
from rmq_store.files.locks.lock import OfdLock
from rmq_store.log.append.flush import save_progress

# What a broker does to the lock file: a POSIX lock on byte 0 for as long as it runs.
BROKER = """
import fcntl, sys
with open(sys.argv[1], "r+b") as lock:
    fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
    print("locked", flush=True)
    sys.stdin.read(1)
"""

CONFIG = StoreConfig(
    mapped_file_size_commit_log=1 << 16,
    mapped_file_size_consume_queue=2000,
    max_hash_slot_num=100,
    max_index_num=400,
    flush_interval_commit_log=10**9,
)


def make(root: Path, **settings: object) -> Store:
    store = Store.open(root, create=True, config=replace(CONFIG, **settings))  # type: ignore[arg-type]
    store.create_topic("T", queue_count=1)
    return store


@pytest.fixture(autouse=True)
def no_hook() -> object:
    yield
    durable.hook = None


def test_message_that_is_stored_but_not_flushed_in_time_is_not_reported_as_refused(scratch: Path) -> None:
    """A retryable error would make the caller send it twice."""
    with make(scratch / "s", flush_disk_type="SYNC_FLUSH", sync_flush_timeout=20) as store:
        other = OfdLock(store.path / "pyrmq" / "flush.lock")
        with other.exclusive(1000):
            result = store.send(Message("T", b"once"))
            assert result.status is SendStatus.FLUSH_DISK_TIMEOUT
        assert store.send(Message("T", b"twice")).status is SendStatus.SEND_OK
        assert store.queue_range("T", 0).max_offset == 2


def test_settings_of_a_store_are_its_own(scratch: Path) -> None:
    with make(scratch / "s", flush_disk_type="SYNC_FLUSH") as store:
        identity = store.identity
    with Store.open(scratch / "s", config=StoreConfig(max_hash_slot_num=100)) as store:
        assert (store.config.flush_disk_type, store.identity) == ("SYNC_FLUSH", identity)
    with pytest.raises(UsageError, match="enabled_append_prop_crc"):
        Store.open(scratch / "s", config=StoreConfig(enabled_append_prop_crc=False))


def test_running_out_of_descriptors_does_not_poison_the_store(scratch: Path) -> None:
    with make(scratch / "s") as store:
        store.send(Message("T", b"x"))

        def no_descriptor(operation: str, path: str) -> None:
            if operation == "open" and "commitlog" in path:
                raise OSError(24, "Too many open files")

        store._log.files.clear()
        durable.hook = no_descriptor
        with pytest.raises(StoreFailedError):
            store.flush()
        durable.hook = None
        store.flush()
        assert store.send(Message("T", b"y")).queue_offset == 1


def test_interrupt_during_an_fsync_makes_the_next_flush_write_the_range_again(scratch: Path) -> None:
    with make(scratch / "s") as store:
        store.send(Message("T", b"x"))
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


@pytest.mark.statement("G11")
def test_flush_thread_survives_an_error_that_is_none_of_the_stores(
    scratch: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with make(scratch / "s", flush_interval_commit_log=5, flush_commit_log_least_pages=0) as store:
        failed = threading.Event()

        def fail_once(operation: str, path: str) -> None:
            if operation == "fsync" and threading.current_thread().name == "rmq-flush" and not failed.is_set():
                failed.set()
                raise RuntimeError("a surprise")

        durable.hook = fail_once
        for _ in range(1000):  # where the thread gets no turn for some intervals, the sender flushes in its place
            end = store.send(Message("T", b"x")).commit_log_offset + 1
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


def test_send_that_comes_after_another_thread_closed_the_store_writes_nothing(scratch: Path) -> None:
    root = scratch / "s"
    at_the_clock, go_on = threading.Event(), threading.Event()
    outcome: list[BaseException] = []

    def clock() -> int:
        if threading.current_thread() is sender:
            at_the_clock.set()
            go_on.wait(10)
        return 1_700_000_000_000

    def send() -> None:
        with contextlib.suppress(UsageError):
            try:
                store.send(Message("T", b"late"))
            except UsageError as error:
                outcome.append(error)
                raise

    sender = threading.Thread(target=send)
    store = Store.open(root, create=True, config=CONFIG, clock=clock)
    store.create_topic("T", queue_count=1)
    sender.start()
    assert at_the_clock.wait(10)
    store.close()
    go_on.set()
    sender.join()
    assert "closed" in str(outcome[0])
    with Store.open(root, read_only=True) as reader:
        assert reader.queue_range("T", 0).max_offset == 0


def test_refused_open_for_writing_has_not_touched_a_brokers_index(
    golden_small: Path, scratch: Path, working_copy: Callable[[Path], Path]
) -> None:
    root = working_copy(golden_small / "normal")
    (index,) = (root / "index").iterdir()
    before = index.stat()
    broker = subprocess.Popen([sys.executable, "-c", BROKER, str(root / "lock")], stdin=subprocess.PIPE, stdout=-1)
    assert broker.stdin is not None
    assert broker.stdout is not None
    assert broker.stdout.readline() == b"locked\n"
    with pytest.raises(StoreLockedError, match=str(broker.pid)):
        Store.open(root)
    broker.communicate(b"\n", timeout=10)
    after = index.stat()
    assert (after.st_mtime_ns, after.st_ctime_ns, after.st_size) == (
        before.st_mtime_ns,
        before.st_ctime_ns,
        before.st_size,
    )


def test_close_flushes_while_others_have_the_store_open(scratch: Path) -> None:
    with make(scratch / "s") as store:
        other = Store.open(scratch / "s")
        other.send(Message("T", b"x"))
        other.close()
        page = store._log.writing_page
        assert page.flushed_end == page.appended_end > 0


def test_damaged_record_in_an_unclean_copy_is_refused_and_not_cut(scratch: Path) -> None:
    with make(scratch / "s") as store:
        for number in range(50):
            store.send(Message("T", b"body %d" % number))
        store.flush()
        save_progress(store._log)
        subprocess.run(["cp", "-r", str(scratch / "s"), str(scratch / "copy")], check=True)
    segment = next((scratch / "copy" / "commitlog").iterdir())
    data = bytearray(segment.read_bytes())
    data[data.index(b"body 10")] ^= 1
    segment.write_bytes(data)
    with pytest.raises(CorruptRecordError):
        Store.open(scratch / "copy")
    assert segment.read_bytes() == bytes(data)


def test_reader_of_a_brokers_store_forgets_entries_once_the_files_have_them(
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
