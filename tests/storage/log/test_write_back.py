"""The disk begins with a large append while it goes on."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmq_store.errors import StoreFailedError
from rmq_store.files.segments import OpenFile, OpenFiles, SegmentRun
from rmq_store.log import write_back
from rmq_store.log.write_back import WriteBack

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
        end_s = time.monotonic() + 30
        while len(self.given) < count:
            assert time.monotonic() < end_s
            time.sleep(0.001)


@pytest.fixture
def hints(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hints]:
    hints = Hints()
    monkeypatch.setattr(OpenFile, "start_writing_back", lambda file, *place: hints(file, *place))
    yield hints
    hints.goes_on.set()


def test_pieces_are_told_of_in_steps_that_lie_within_a_file(run: SegmentRun, hints: Hints) -> None:
    with WriteBack(run, wanted=True) as back:
        for offset in range(0, 990, 30):
            back.wrote(offset, 30)
        back.wrote(1000, 250)
        back.wrote(1250, 90)
        back.wrote(1400, 20)  # behind a gap: what came before it is told of, though it is less
        hints.wait(11)
    steps = [("0000", 120 * number, 120) for number in range(8)]
    assert hints.given == [*steps, ("0000", 960, 30), ("1000", 0, 250), ("1000", 250, 90)]


def test_nothing_is_told_of_an_append_that_nobody_waits_for(run: SegmentRun, hints: Hints) -> None:
    threads = threading.active_count()
    with WriteBack(run, wanted=False) as back:
        back.wrote(0, 500)
        assert threading.active_count() == threads
    assert not hints.given


def test_a_slow_disk_does_not_hold_an_append_up(run: SegmentRun, hints: Hints) -> None:
    """What it has not come to when the append is over is left to the flush."""
    hints.goes_on.clear()
    with WriteBack(run, wanted=True) as back:
        for offset in range(0, 900, 100):
            back.wrote(offset, 100)
        hints.wait(1)
    hints.goes_on.set()
    names = {thread.name for thread in threading.enumerate()}
    for thread in threading.enumerate():
        if thread.name.startswith("ThreadPoolExecutor"):
            thread.join(30)
    assert hints.given == [("0000", 0, 100)], names


def test_no_hint_fails_an_append(run: SegmentRun, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(run: SegmentRun, base: int) -> OpenFile:
        raise StoreFailedError("no descriptor is left") from OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(SegmentRun, "open", refuse)
    with WriteBack(run, wanted=True) as back:
        back.wrote(0, 500)


def test_a_hint_changes_no_byte(run: SegmentRun) -> None:
    run.write(0, b"x" * 800)
    with WriteBack(run, wanted=True) as back:
        back.wrote(0, 800)
    run.sync(0, 800)
    assert run.open(0).read(0, FILE_BYTES) == b"x" * 800 + bytes(200)
