"""The home that the tasks of a worker share: one after the other, up to date, and not for long."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pyspark_rmq import home as home_module
from pyspark_rmq import keeping
from pyspark_rmq.home import task_home
from pyspark_rmq.options import SourceOptions, Subscription
from rmq_store import NotAStoreError, Store

Make = Callable[..., Any]


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    yield
    keeping.close_kept()


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
    with task_home(options(path)) as first:
        assert count(first) == 10
    append(path, 5)
    with task_home(options(path)) as second:
        assert second is first
        assert count(second) == 15
    with task_home(options(path, broker_name="other")) as third:
        assert third is not first


def test_a_moment_after_the_last_task_nothing_is_open(make_store: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_store(Orders=10)
    for kept_s in (600.0, 0.2):
        monkeypatch.setattr(home_module, "_TASK_HOME_KEPT_S", kept_s)
        with task_home(options(path)) as home:
            assert next(iter(home.read("Orders", 0, 0, 1, columns=["body"], tags=None, raw_body=False))).num_rows == 1
        if kept_s == 600.0:
            assert open_files(path)
    deadline_s = time.monotonic() + 20
    while open_files(path) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert not open_files(path)
    assert not keeping._kept


def test_retention_does_not_wait_for_a_home_that_rests(make_store: Make) -> None:
    path = make_store(Orders=10_000)

    def read_on(home: Any, queue_id: int) -> int:
        limit = home.queue_range("Orders", queue_id)
        batches = home.read("Orders", queue_id, *limit, columns=["body"], tags=None, raw_body=False)
        return sum(batch.num_rows for batch in batches)

    def removed() -> int:
        with Store.open(path) as store:
            return len(store.retention.run(manual=True, file_reserved_time=0).removed)

    with task_home(options(path)) as home:
        assert read_on(home, 0)
        assert removed() == 0, "a task is reading"
    with task_home(options(path)) as home:
        assert read_on(home, 1)
        assert removed() == 0, "a task is reading again"
    assert removed() > 0


def test_a_store_that_was_replaced_is_opened_anew(make_store: Make) -> None:
    path = make_store(Orders=10)
    with task_home(options(path)) as old:
        assert count(old) == 10
    shutil.rmtree(path)
    with pytest.raises(NotAStoreError), task_home(options(path)):
        pass
    make_store(Orders=3)
    with task_home(options(path)) as new:
        assert count(new) == 3
    log = path / "commitlog"
    log.rename(path / "commitlog.old")
    shutil.copytree(path / "commitlog.old", log)
    with task_home(options(path)) as newest:
        assert newest is not new


def test_what_is_wrong_with_a_replaced_store_is_no_business_of_the_next_commit(
    make_store: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(home_module, "is_worker", lambda: True)
    path = make_store(Orders=10)
    with home_module._commit_home(str(path)):
        pass
    shutil.rmtree(path)
    make_store(Orders=3)
    with home_module._commit_home(str(path)) as store:
        assert count(store) == 3
    assert f"{path} could not be closed" in caplog.text


def test_who_closes_what_is_kept_waits_for_what_is_being_closed(make_store: Make) -> None:
    path = make_store(Orders=10)
    begun, goes_on = threading.Event(), threading.Event()

    class Slow:
        closed = False

        def refresh(self) -> None: ...
        def rest(self) -> None: ...

        def close(self) -> None:
            begun.set()
            goes_on.wait(30)
            self.closed = True

    slow = Slow()
    with keeping.kept(("slow", str(path)), path, lambda: slow, 0.01):
        pass
    assert begun.wait(30) and not keeping._kept
    threading.Timer(0.2, goes_on.set).start()
    keeping.close_kept()
    assert slow.closed


def test_a_home_in_which_a_task_failed_is_not_given_to_another(make_store: Make) -> None:
    path = make_store(Orders=10)
    with pytest.raises(RuntimeError), task_home(options(path)):
        raise RuntimeError("a task")
    assert not keeping._kept and not open_files(path)


def test_a_task_that_is_not_read_to_its_end_leaves_its_home_to_the_next(make_store: Make) -> None:
    path = make_store(Orders=10)

    def reading() -> Iterator[Any]:
        with task_home(options(path)) as home:
            while True:
                yield home

    task = reading()
    home = next(task)
    task.close()  # type: ignore[attr-defined]
    with task_home(options(path)) as next_home:
        assert next_home is home


def test_tasks_at_the_same_time_have_homes_of_their_own(make_store: Make) -> None:
    path = make_store(Orders=10)
    with task_home(options(path)) as first, task_home(options(path)) as second:
        assert first is not second
    assert len(keeping._kept) == 1
    with task_home(options(path)) as third:
        assert third is first
        assert count(third) == 10


def test_a_forked_child_does_not_use_the_home_of_its_parent(make_store: Make) -> None:
    path = make_store(Orders=10)
    with task_home(options(path)):
        pass
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(tell, f"{len(keeping._kept)}".encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(tell)
    with os.fdopen(told) as answer:
        assert answer.read() == "0"
    assert len(keeping._kept) == 1


WORKER = """
import sys, types
from pathlib import Path
sys.modules["__main__"].__spec__ = types.SimpleNamespace(name="pyspark.daemon")
from pyspark_rmq import home, keeping
from pyspark_rmq.options import SinkOptions
home._COMMIT_HOME_KEPT_S = 60.0
with home._commit_home(sys.argv[1]) as store:
    from rmq_store import Message
    store.send(Message("Orders", b"the last one"))
print("kept", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_a_worker_that_is_ended_closes_what_it_has_written(make_store: Make, number: signal.Signals) -> None:
    path = make_store(Orders=10)
    with subprocess.Popen(
        [sys.executable, "-c", WORKER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    ) as worker:  # fmt: skip
        assert worker.stdout is not None
        assert worker.stdout.readline() == b"kept\n"
        assert (path / "abort").exists(), "it is open"
        with Store.open(path, read_only=True) as store:
            assert sum(limit.max_offset for limit in store.queue_ranges("Orders").values()) == 11
        worker.send_signal(number)
        assert worker.wait(timeout=30) == -number
    assert not (path / "abort").exists()
    with Store.open(path) as store:
        assert store.recovery is not None and store.recovery.trust == "CLEAN"


def test_only_a_worker_keeps_what_it_has_written(make_store: Make) -> None:
    path = make_store(Orders=10)
    with home_module._commit_home(str(path)):
        assert (path / "abort").exists()
    assert not (path / "abort").exists()
