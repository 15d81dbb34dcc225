"""Files that are made before they have a name, and ahead of need."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmq_store.errors import StoreFullError
from rmq_store.files import durable
from rmq_store.files.segments import segments
from rmq_store.files.segments.new_files import AHEAD, NewFiles
from rmq_store.files.segments.open_files import OpenFiles
from rmq_store.files.segments.segments import SegmentRun

SIZE = 8192


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "pyrmq").mkdir()
    (tmp_path / "commitlog").mkdir()
    yield tmp_path / "commitlog"
    durable.hook = None


def made(directory: Path) -> list[Path]:
    return sorted((directory.parent / "pyrmq").iterdir())


def through() -> None:
    """Wait for the threads that make files."""
    for thread in threading.enumerate():
        if thread.name == "rmq-files":
            thread.join()


def test_files_are_made_ahead_and_taken_before_others_are_made(directory: Path) -> None:
    files = NewFiles(directory, SIZE, sparse=False)
    files.make_ahead()
    through()
    ready = made(directory)
    assert [path.stat().st_size for path in ready] == [SIZE] * AHEAD
    assert {files.take(directory / "0") for _ in range(AHEAD)} == set(ready)
    assert files.take(directory / "0") not in ready


def test_no_more_are_made_than_are_missing(directory: Path) -> None:
    files = NewFiles(directory, SIZE, sparse=False)
    for _ in range(3):
        files.make_ahead()
        through()
    assert len(made(directory)) == AHEAD
    taken = files.take(directory / "0")
    files.make_ahead()
    through()
    assert len(made(directory)) == AHEAD + 1
    assert taken in made(directory)


def test_what_nobody_took_is_removed_and_the_thread_has_ended(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = NewFiles(directory, SIZE, sparse=False)
    is_making, may_go_on = threading.Event(), threading.Event()

    def wait(operation: str, path: str) -> None:
        if operation == "allocate":
            is_making.set()
            assert may_go_on.wait(30)

    durable.hook = wait
    files.make_ahead()
    assert is_making.wait(30)
    threading.Timer(0.05, may_go_on.set).start()
    files.close()
    assert made(directory) == []
    assert not [thread for thread in threading.enumerate() if thread.name == "rmq-files"]
    files.close()


@pytest.mark.parametrize("operation", ["open", "allocate", "fsync"])
@pytest.mark.parametrize("kth", [1, 2])
@pytest.mark.parametrize(
    ("error", "told"), [(OSError(errno.ENOSPC, "full"), StoreFullError), (MemoryError(), MemoryError)]
)
def test_a_file_that_cannot_be_made_leaves_nothing_and_is_told_to_who_needs_it(
    directory: Path, operation: str, kth: int, error: Exception, told: type[Exception]
) -> None:
    files = NewFiles(directory, SIZE, sparse=False)
    seen = []

    def fail(name: str, path: str) -> None:
        if name == operation:
            seen.append(name)
            if len(seen) >= kth:
                raise error

    durable.hook = fail
    files.make_ahead()
    through()
    assert made(directory) == []
    with pytest.raises(told):
        files.take(directory / "0")
    assert made(directory) == []


def test_without_a_thread_files_are_made_when_they_are_needed(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class NoThread(threading.Thread):
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    monkeypatch.setattr("rmq_store.files.locks.background.threading.Thread", NoThread)
    files = NewFiles(directory, SIZE, sparse=False)
    files.make_ahead()
    assert files.take(directory / "0").stat().st_size == SIZE
    files.close()


def test_a_run_that_is_filled_has_its_next_files_made_ahead(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "_AHEAD_BYTES_MIN", SIZE)
    run = SegmentRun(directory, SIZE, OpenFiles(), writable=True, sparse=False, pin=False)
    run.create(0)
    through()
    assert made(directory) == []  # one file says nothing yet: most processes append a little, and end
    run.create(SIZE)
    through()
    assert len(made(directory)) == AHEAD
    main = threading.get_ident()
    durable.hook = lambda operation, path: operations.append(operation) if threading.get_ident() == main else None
    operations: list[str] = []
    run.create(2 * SIZE)
    assert operations == ["rename"]  # nothing that waits for the disk
    run.stop_making_ahead()
    assert made(directory) == []
    assert run.bases() == [0, SIZE, 2 * SIZE]
    assert run.open(2 * SIZE).map[:] == bytes(SIZE)


def test_small_sparse_and_scattered_files_are_not_made_ahead(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = SegmentRun(directory, SIZE, OpenFiles(), writable=True, sparse=False, pin=False)
    run.create(0)
    run.create(SIZE)
    monkeypatch.setattr(segments, "_AHEAD_BYTES_MIN", SIZE)
    run.create(3 * SIZE)
    sparse = SegmentRun(directory.parent / "queue", SIZE, OpenFiles(), writable=True, sparse=True, pin=False)
    sparse.create(0)
    sparse.create(SIZE)
    through()
    assert made(directory) == []
