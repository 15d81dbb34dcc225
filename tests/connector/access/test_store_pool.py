"""The home that the tasks of a worker share: one after the other, up to date, and not for long."""

from __future__ import annotations

import errno
import gc
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pyspark_rmq.access import store_location, store_pool, store_writer
from pyspark_rmq.access.store_location import location_of
from pyspark_rmq.access.store_writer import append_staged
from pyspark_rmq.options.options import SinkOptions, SourceOptions, Subscription
from rmq_store import NotAStoreError, StagedFile, StagingArea, Store, StoreConfig, StoreFailedError, StoreFullError
from rmq_store.files import durable
from rmq_store.files.locks.state_page import StatePage

Make = Callable[..., Any]

HANG_GUARD_S = 60


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    yield
    for key in list(store_pool._pool):
        opened = store_pool._take(key)
        assert opened is not None
        opened.close()


def options(path: Path, **fields: Any) -> SourceOptions:
    return SourceOptions(str(path), Subscription(("Orders",)), **fields)


def count(home: Any) -> int:
    return sum(limit.max_offset - limit.min_offset for limit in home.queue_ranges("Orders").values())


def append(path: Path, rows: int) -> None:
    with Store.open(path) as store:
        store.append(pa.record_batch({"body": pa.array([b"x"] * rows)}), "Orders")


def open_files(path: Path) -> list[str]:
    """What this process has open or mapped below a path, but for garbage."""
    gc.collect()
    links = [str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    maps = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    return [name for name in [*links, *maps] if str(path) in name]


def test_the_next_task_gets_the_same_home_and_sees_what_was_written_since(make_store: Make) -> None:
    path = make_store(Orders=10)
    with location_of(options(path)).in_task() as first:
        assert count(first) == 10
    append(path, 5)
    with location_of(options(path)).in_task() as second:
        assert second is first
        assert count(second) == 15
    with location_of(options(path, broker_name="other")).in_task() as third:
        assert third is not first


def test_a_moment_after_the_last_task_nothing_is_open(make_store: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_store(Orders=10)
    for kept_s in (600.0, 0.2):
        monkeypatch.setattr(store_location, "_TASK_STORE_POOLED_S", kept_s)
        with location_of(options(path)).in_task() as home:
            assert next(iter(home.read("Orders", 0, 0, 1, columns=["body"], tags=None, raw_body=False))).num_rows == 1
        if kept_s == 600.0:
            assert open_files(path)
    deadline_s = time.monotonic() + 20
    while open_files(path) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert not open_files(path)
    assert not store_pool._pool


def test_retention_does_not_wait_for_a_home_that_rests(make_store: Make) -> None:
    path = make_store(Orders=10_000)

    def read_on(home: Any, queue_id: int) -> int:
        limit = home.queue_range("Orders", queue_id)
        batches = home.read("Orders", queue_id, *limit, columns=["body"], tags=None, raw_body=False)
        return sum(batch.num_rows for batch in batches)

    def removed() -> int:
        with Store.open(path) as store:
            return len(store.retention.run(manual=True, file_reserved_time=0).removed)

    with location_of(options(path)).in_task() as home:
        assert read_on(home, 0)
        assert removed() == 0, "a task is reading"
    with location_of(options(path)).in_task() as home:
        assert read_on(home, 1)
        assert removed() == 0, "a task is reading again"
    assert removed() > 0


def test_a_store_that_was_replaced_is_opened_anew(make_store: Make) -> None:
    path = make_store(Orders=10)
    with location_of(options(path)).in_task() as old:
        assert count(old) == 10
    shutil.rmtree(path)
    with pytest.raises(NotAStoreError), location_of(options(path)).in_task():
        pass
    make_store(Orders=3)
    with location_of(options(path)).in_task() as new:
        assert count(new) == 3
    log = path / "commitlog"
    log.rename(path / "commitlog.old")
    shutil.copytree(path / "commitlog.old", log)
    with location_of(options(path)).in_task() as newer:
        assert newer is not new
    shutil.copyfile(path / "pyrmq" / "state", path / "copy")
    (path / "copy").rename(path / "pyrmq" / "state")
    with location_of(options(path)).in_task() as newest:
        assert newest is not newer


def test_what_is_wrong_with_a_replaced_store_is_no_business_of_the_next_commit(
    make_store: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(store_writer, "is_worker", lambda: True)
    path = make_store(Orders=10)
    with store_writer._commit_store(str(path), stays_open=True):
        pass
    shutil.rmtree(path)
    make_store(Orders=3)
    with store_writer._commit_store(str(path), stays_open=True) as store:
        assert count(store) == 3
    assert f"{path} could not be closed" in caplog.text


def test_to_close_a_store_that_was_deleted_is_one_line_and_makes_no_file(
    make_store: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Spark keeps its workers, and so their stores, for some seconds after a write; tests delete their directories."""
    monkeypatch.setattr(store_writer, "is_worker", lambda: True)
    path = make_store(Orders=10)
    with store_writer._commit_store(str(path), stays_open=True):
        pass
    shutil.rmtree(path)
    store_pool.close_pooled()
    assert not path.exists()
    (line,) = caplog.messages
    assert line.startswith(f"{path} could not be closed, it was deleted or replaced before: ") and "\n" not in line
    assert not any(record.exc_info for record in caplog.records)


@pytest.mark.parametrize("worker", [False, True])
@pytest.mark.parametrize("stays_open", [False, True])
def test_a_store_that_was_replaced_while_it_was_written_does_not_have_what_was_written(
    make_store: Make, monkeypatch: pytest.MonkeyPatch, worker: bool, stays_open: bool
) -> None:
    monkeypatch.setattr(store_writer, "is_worker", lambda: worker)
    path = make_store(Orders=10)
    committing = store_writer._commit_store(str(path), stays_open)
    with pytest.raises(StoreFailedError, match="deleted or replaced"), committing:
        path.rename(path.with_name("old"))
        make_store(Orders=3)
    committing = store_writer._commit_store(str(path), stays_open)
    with pytest.raises(StoreFailedError, match="deleted or replaced"), committing:
        shutil.rmtree(path)
    assert not store_pool._pool


@pytest.mark.parametrize("stays_open", [False, True])
def test_of_two_errors_that_of_the_commit_counts(
    make_store: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, stays_open: bool
) -> None:
    """A commit whose fsync failed must not be told as one that found the disk full when it was closed."""
    monkeypatch.setattr(store_writer, "is_worker", lambda: True)
    path = make_store(Orders=10)
    closing = Store.close

    def close(store: Store) -> None:
        closing(store)
        raise StoreFullError("no room for the checkpoint")

    monkeypatch.setattr(Store, "close", close)
    with pytest.raises(StoreFailedError, match="fsync"), store_writer._commit_store(str(path), stays_open):
        raise StoreFailedError("fsync")
    assert "no room for the checkpoint" in caplog.text
    assert not store_pool._pool


def test_a_home_that_cannot_be_kept_is_closed_and_its_user_hears_nothing(
    make_store: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A commit that is done must not fail because no thread can be started any more."""

    def no_thread(timer: threading.Timer) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Timer, "start", no_thread)
    path = make_store(Orders=10)
    with location_of(options(path)).in_task() as home:
        assert count(home) == 10
    assert not store_pool._pool and not open_files(path)
    assert "cannot be kept open" in caplog.text


def test_a_home_whose_directories_cannot_be_opened_is_closed(make_store: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_store(Orders=10)
    opening = os.open

    def no_descriptor(name: Any, flags: int, *rest: Any, **options: Any) -> int:
        if flags == os.O_RDONLY | os.O_DIRECTORY and str(name).endswith("commitlog"):
            raise OSError(24, "Too many open files")
        return opening(name, flags, *rest, **options)

    def open_home() -> Any:
        home = location_of(options(path)).open_to_read()
        monkeypatch.setattr(os, "open", no_descriptor)
        return home

    with pytest.raises(OSError, match="Too many"), store_pool.pooled(("x", str(path)), path, open_home, lambda _: 60.0):
        pass
    monkeypatch.undo()
    assert not store_pool._pool and not open_files(path)


def test_a_home_in_which_a_task_failed_is_not_given_to_another(make_store: Make) -> None:
    path = make_store(Orders=10)
    with pytest.raises(RuntimeError), location_of(options(path)).in_task():
        raise RuntimeError("a task")
    assert not store_pool._pool and not open_files(path)


def test_a_task_that_is_not_read_to_its_end_leaves_its_home_to_the_next(make_store: Make) -> None:
    path = make_store(Orders=10)

    def reading() -> Iterator[Any]:
        with location_of(options(path)).in_task() as home:
            while True:
                yield home

    task = reading()
    home = next(task)
    task.close()  # type: ignore[attr-defined]
    with location_of(options(path)).in_task() as next_home:
        assert next_home is home


def test_tasks_at_the_same_time_have_homes_of_their_own(make_store: Make) -> None:
    path = make_store(Orders=10)
    with location_of(options(path)).in_task() as first, location_of(options(path)).in_task() as second:
        assert first is not second
    assert len(store_pool._pool) == 1
    with location_of(options(path)).in_task() as third:
        assert third is first
        assert count(third) == 10


def test_a_forked_child_does_not_use_the_home_of_its_parent(make_store: Make) -> None:
    path = make_store(Orders=10)
    with location_of(options(path)).in_task():
        pass
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(tell, f"{len(store_pool._pool)}".encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(tell)
    with os.fdopen(told) as answer:
        assert answer.read() == "0"
    assert len(store_pool._pool) == 1


WORKER = """
import sys, types
from pathlib import Path
sys.modules["__main__"].__spec__ = types.SimpleNamespace(name="pyspark.daemon")
import pyarrow as pa
from pyspark_rmq.access import store_writer
from pyspark_rmq.options.options import SinkOptions
from rmq_store import StagingArea
store_writer._COMMIT_STORE_POOLED_S = 600.0
path = Path(sys.argv[1])
with StagingArea.for_task(path, "write-1", 0, 0, topic="Orders") as area:
    area.write(pa.record_batch({"body": pa.array([b"the last one"])}))
    staged = area.finish()
stays_open = sys.argv[2] == "stream"
options = SinkOptions(str(path), topic="Orders")
assert store_writer.append_staged(options, [staged], None, lambda: (path / "swept").touch(), stays_open=stays_open)
print("committed", flush=True)
sys.stdin.read()
"""

# As pyspark/daemon.py: one call of `worker` for each task, and the end of the process behind one that found no other.
DAEMON = """
import os
def worker(sock, authenticated):
    if authenticated:
        return -1 if not sys.stdin.read() else 0
    exec(commit, globals())
    return 0
worker(None, False)
code = worker(None, True)
os._exit(0 if code else 1)
"""


def seldom_flushed(directory: Path, **settings: Any) -> Path:
    """A store with 10 messages whose flusher looks every ten minutes."""
    small = StoreConfig(max_hash_slot_num=16, max_index_num=64, flush_interval_commit_log=600_000, **settings)
    path = directory / "seldom"
    with Store.open(path, create=True, config=small) as store:
        store.create_topic("Orders", 4)
    append(path, 10)
    return path


@contextmanager
def committed_by_worker(path: Path, what: str, *, reused: bool = True) -> Iterator[subprocess.Popen[bytes]]:
    """A worker of Spark's that has committed one row, and lives on."""
    environment = {name: value for name, value in os.environ.items() if name != "SPARK_REUSE_WORKER"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    with subprocess.Popen(
        [sys.executable, "-c", WORKER, path, what], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env=environment | ({"SPARK_REUSE_WORKER": "1"} if reused else {}),
    ) as worker:  # fmt: skip
        assert worker.stdout is not None
        assert worker.stdout.readline() == b"committed\n"
        yield worker
        worker.kill()
        worker.wait(timeout=30)


def all_flushed(path: Path) -> bool:
    page = StatePage(path / "pyrmq" / "state", writable=False)
    return page.flushed_end == page.appended_end > 0


def wait_until(is_so: Callable[[], bool]) -> None:
    end_s = time.monotonic() + HANG_GUARD_S
    while not is_so():
        assert time.monotonic() < end_s
        time.sleep(0.001)


def test_what_a_stream_has_committed_is_flushed_at_once_however_little_it_is(tmp_path: Path) -> None:
    """Spark ends workers without a word, and their flusher with them: nobody else would flush for a long time."""
    path = seldom_flushed(tmp_path)
    with committed_by_worker(path, "stream"):
        wait_until(lambda: all_flushed(path))
        wait_until((path / "swept").exists)
        assert (path / "abort").exists(), "it is open"
    with Store.open(path) as store:
        assert count(store) == 11
        assert store.recovery is not None and store.recovery.trust == "SAME_BOOT"


def test_a_batch_write_is_flushed_swept_and_closed_behind_its_return(tmp_path: Path) -> None:
    path = seldom_flushed(tmp_path)
    with committed_by_worker(path, "batch"):
        wait_until(lambda: not (path / "abort").exists())
        wait_until((path / "swept").exists)
        assert all_flushed(path)
    with Store.open(path) as store:
        assert count(store) == 11
        assert store.recovery is not None and store.recovery.trust == "CLEAN"


@pytest.mark.long
@pytest.mark.parametrize(
    ("flush_disk_type", "what", "reused"),
    [("ASYNC_FLUSH", "batch", False), ("ASYNC_FLUSH", "stream", False), ("SYNC_FLUSH", "batch", True)],
)
def test_nothing_is_left_to_do_behind_the_last_task_of_a_worker_or_with_sync_flush(
    tmp_path: Path, flush_disk_type: str, what: str, reused: bool
) -> None:
    path = seldom_flushed(tmp_path, flush_disk_type=flush_disk_type)
    with committed_by_worker(path, what, reused=reused):
        assert all_flushed(path)
        assert (path / "swept").exists()
        assert not (path / "abort").exists()


def test_what_a_worker_keeps_open_is_closed_when_its_session_ends(tmp_path: Path) -> None:
    """Spark closes the worker's socket, and has SIGHUP sent to the daemon's group: neither gave it time to close."""
    path = seldom_flushed(tmp_path)
    program = f"import sys\ncommit = {WORKER.replace('sys.stdin.read()', '')!r}\n{DAEMON}"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "SPARK_REUSE_WORKER": "1"}
    with subprocess.Popen(
        [sys.executable, "-c", program, path, "stream"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment,
    ) as worker:  # fmt: skip
        assert worker.stdin is not None and worker.stdout is not None
        assert worker.stdout.readline() == b"committed\n"
        assert (path / "abort").exists(), "it is open"
        assert os.getpgid(worker.pid) == worker.pid, "a signal to the daemon's group is none to it"
        worker.stdin.close()
        assert worker.wait(timeout=HANG_GUARD_S) == 0
    assert (path / "swept").exists()
    assert not (path / "abort").exists()
    with Store.open(path) as store:
        assert count(store) == 11
        assert store.recovery is not None and store.recovery.trust == "CLEAN"


def test_a_small_batch_write_waits_for_its_close_and_a_large_one_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that ends right behind a small write left `abort`."""
    monkeypatch.setattr(store_writer, "is_worker", lambda: True)
    monkeypatch.setattr(store_writer, "_SMALL_WRITE_CLOSE_WAIT_S", HANG_GUARD_S)
    path = seldom_flushed(tmp_path)
    assert append_staged(SinkOptions(str(path)), [stage_one(path)], None, lambda: None, stays_open=False)
    assert not (path / "abort").exists()

    may_close = threading.Event()
    closing = Store.close

    def close_later(store: Store) -> None:
        assert may_close.wait(HANG_GUARD_S)
        closing(store)

    monkeypatch.setattr(Store, "close", close_later)
    monkeypatch.setattr(store_writer, "_SMALL_WRITE_BYTES", 0)
    assert append_staged(SinkOptions(str(path)), [stage_one(path)], None, lambda: None, stays_open=False)
    monkeypatch.setattr(store_writer, "_SMALL_WRITE_BYTES", 1 << 20)
    monkeypatch.setattr(store_writer, "_SMALL_WRITE_CLOSE_WAIT_S", 0.01)
    assert append_staged(SinkOptions(str(path)), [stage_one(path)], None, lambda: None, stays_open=False)
    assert (path / "abort").exists(), "no longer than that"
    may_close.set()
    store_pool.close_all()
    assert not (path / "abort").exists()


def stage_one(path: Path) -> StagedFile:
    with StagingArea.for_task(path, "write-1", 0, 0, topic="Orders") as area:
        area.write(pa.record_batch({"body": pa.array([b"one more"])}))
        staged = area.finish()
    assert staged is not None
    return staged


def test_a_flush_that_fails_behind_a_commit_is_told_to_the_next_one_and_its_rows_are_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(store_writer, "is_worker", lambda: True)
    path = seldom_flushed(tmp_path)
    failed = threading.Event()

    def fail(operation: str, where: str) -> None:
        if operation == "fsync" and Path(where).parent == path / "commitlog":
            failed.set()
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(durable, "hook", fail)
    assert append_staged(SinkOptions(str(path)), [stage_one(path)], None, lambda: None, stays_open=True)
    assert failed.wait(HANG_GUARD_S)
    wait_until(lambda: "flush failed" in caplog.text)
    with pytest.raises(StoreFailedError):
        append_staged(SinkOptions(str(path)), [stage_one(path)], None, lambda: None, stays_open=True)
    monkeypatch.setattr(durable, "hook", None)
    with Store.open(path) as store:
        assert count(store) == 11
    assert all_flushed(path)


def test_a_commit_is_done_and_swept_where_no_thread_can_be_started(
    make_store: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(store_writer, "is_worker", lambda: True)
    path = make_store(Orders=10)
    staged = stage_one(path)
    starting, swept = threading.Thread.start, []

    def no_thread(thread: threading.Thread) -> None:
        if thread.name.startswith("rmq-sweep") or isinstance(thread, threading.Timer):
            raise RuntimeError("can't start new thread")
        starting(thread)

    monkeypatch.setattr(threading.Thread, "start", no_thread)
    assert append_staged(SinkOptions(str(path)), [staged], None, lambda: swept.append(1), stays_open=False)
    assert swept and "cannot be kept open" in caplog.text
    assert not (path / "abort").exists()
    with Store.open(path, read_only=True) as store:
        assert count(store) == 11
