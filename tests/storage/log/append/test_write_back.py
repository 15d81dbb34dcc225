"""The disk begins with a large append while it goes on."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rmq_store.errors import StoreFailedError
from rmq_store.files.segments.open_files import OpenFile, OpenFiles
from rmq_store.files.segments.segments import SegmentRun
from rmq_store.log.append import write_back
from rmq_store.log.append.write_back import WriteBack

FILE_BYTES = 1000
STEP_BYTES = 100


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SegmentRun:
    (tmp_path / "pyrmq").mkdir()
    run = SegmentRun(tmp_path / "log", FILE_BYTES, OpenFiles(), writable=True, sparse=False, pin=False)
    for base in (0, FILE_BYTES):
        run.create(base)
    monkeypatch.setattr(write_back, "STEP_BYTES", STEP_BYTES)
    return run


class Hints:
    """What the disk is told; the thread that tells it waits until `goes_on` is set."""

    def __init__(self) -> None:
        self.given: list[tuple[str, int, int]] = []
        self.goes_on = threading.Event()
        self.goes_on.set()

    def __call__(self, file: OpenFile, position: int, size_bytes: int) -> None:
        self.given.append((Path(file.path).name[-4:], position, size_bytes))
        assert self.goes_on.wait(30)

    def wait(self, count: int) -> None:
        self._wait(lambda: len(self.given) >= count)

    def wait_for_bytes(self, size_bytes: int) -> None:
        self._wait(lambda: sum(size for _, _, size in self.given) >= size_bytes)

    def _wait(self, is_over: Callable[[], bool]) -> None:
        end_s = time.monotonic() + 30
        while not is_over():
            assert time.monotonic() < end_s
            time.sleep(0.001)


@pytest.fixture
def hints(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hints]:
    hints = Hints()
    monkeypatch.setattr(OpenFile, "start_writing_back", lambda file, *place: hints(file, *place))
    yield hints
    hints.goes_on.set()


def test_what_was_written_is_told_of_in_steps_that_lie_within_a_file(run: SegmentRun, hints: Hints) -> None:
    with WriteBack(run, 60, wanted=True) as back:
        for end in [*range(90, 991, 30), 1340, 1400, 1420]:
            back.written(end)
        hints.wait(9)
    steps = [("0000", 60 + 120 * number, 120) for number in range(7)]
    assert hints.given == [*steps, ("0000", 900, 100), ("1000", 0, 340)]


def test_one_step_may_end_a_file_and_fill_the_next(run: SegmentRun, hints: Hints) -> None:
    with WriteBack(run, 950, wanted=True) as back:
        back.written(1000)
        back.written(2000)
        hints.wait(2)
    assert hints.given == [("0000", 950, 50), ("1000", 0, 1000)]


def test_of_what_threads_have_written_each_byte_is_told_once(run: SegmentRun, hints: Hints) -> None:
    """Who comes late with less finds it told of."""
    with WriteBack(run, 0, wanted=True) as back, ThreadPoolExecutor(8) as threads:
        list(threads.map(back.written, sorted(range(0, 2001, 10), key=lambda end: end % 70)))
        hints.wait_for_bytes(2000)
    told = [int(name) + position for name, position, _ in hints.given]
    sizes = [size for _, _, size in hints.given]
    assert told == [sum(sizes[:number]) for number in range(len(sizes))]


def test_nothing_is_told_of_an_append_that_nobody_waits_for(run: SegmentRun, hints: Hints) -> None:
    threads = threading.active_count()
    with WriteBack(run, 0, wanted=False) as back:
        back.written(500)
        assert threading.active_count() == threads
    assert not hints.given


def test_a_slow_disk_does_not_hold_an_append_up(run: SegmentRun, hints: Hints) -> None:
    """What it has not come to when the append is over is left to the flush."""
    hints.goes_on.clear()
    with WriteBack(run, 0, wanted=True) as back:
        for end in range(100, 901, 100):
            back.written(end)
        hints.wait(1)
    hints.goes_on.set()
    names = {thread.name for thread in threading.enumerate()}
    for thread in threading.enumerate():
        if thread.name == "rmq-write-back":
            thread.join(30)
    assert hints.given == [("0000", 0, 100)], names


def test_no_hint_fails_an_append(run: SegmentRun, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def refuse(run: SegmentRun, base: int) -> OpenFile:
        asked.append(base)
        raise StoreFailedError("no descriptor is left") from OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(SegmentRun, "open", refuse)
    with WriteBack(run, 0, wanted=True) as back:
        back.written(500)
    assert asked == [0], "the hint was not even tried"


def test_a_hint_changes_no_byte(run: SegmentRun) -> None:
    run.write(0, b"x" * 800)
    with WriteBack(run, 0, wanted=True) as back:
        back.written(800)
    run.sync(0, 800)
    assert run.open(0).read(0, FILE_BYTES) == b"x" * 800 + bytes(200)
