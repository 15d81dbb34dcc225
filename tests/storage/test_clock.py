"""The clock file: seen by every process, and never turned back."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from rmq_store import clock as clock_module
from rmq_store.clock import ClockFile, system_clock
from rmq_store.errors import CorruptConfigError, NotAStoreError, UsageError


def test_the_system_clock_is_the_time_in_milliseconds() -> None:
    before_ms = time.time_ns() // 1_000_000
    assert before_ms <= system_clock() <= time.time_ns() // 1_000_000
    assert isinstance(system_clock(), int)


def test_a_clock_stands_still_until_it_is_moved_and_every_object_sees_it(tmp_path: Path) -> None:
    clock = ClockFile.create(tmp_path / "clock", 1000)
    other = ClockFile(tmp_path / "clock")
    assert (clock(), other()) == (1000, 1000)
    assert clock.advance(500) == 1500
    assert other() == 1500
    assert other.set(2000) == 2000
    assert clock() == 2000
    assert (tmp_path / "clock").read_bytes() == (2000).to_bytes(8, "little")


def test_a_clock_never_goes_backwards(tmp_path: Path) -> None:
    clock = ClockFile.create(tmp_path / "clock", 1000)
    for move in (lambda: clock.advance(-1), lambda: clock.set(999), lambda: clock.set(1 << 63)):
        with pytest.raises(UsageError):
            move()
    with pytest.raises(UsageError):
        ClockFile.create(tmp_path / "clock", 5000)
    assert clock.set(1000) == 1000
    assert clock() == 1000


def test_another_process_moves_the_clock_and_a_forked_child_sees_it(tmp_path: Path) -> None:
    clock = ClockFile.create(tmp_path / "clock", 1000)
    program = "import sys; from rmq_store.clock import ClockFile; ClockFile(sys.argv[1]).advance(7)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", program, str(clock.path)], env=environment, check=True)
    assert clock() == 1007
    pid = os.fork()
    if pid == 0:
        os._exit(0 if clock.advance(3) == 1010 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert clock() == 1010


def test_no_advance_is_lost_between_threads_and_no_reader_sees_time_jump_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Lets the other thread run between reading the clock and setting it: without the lock, advances get lost.
    monkeypatch.setattr(clock_module, "_check_time", lambda time_ms: time.sleep(0.0001))
    clock = ClockFile.create(tmp_path / "clock", 0)
    threads = [threading.Thread(target=lambda: [clock.advance(1 << 31) for _ in range(50)]) for _ in range(2)]
    for thread in threads:
        thread.start()
    newest = 0
    while any(thread.is_alive() for thread in threads):
        now_ms = clock()
        assert now_ms >= newest and now_ms % (1 << 31) == 0
        newest = now_ms
    assert clock() == 100 << 31


@pytest.mark.parametrize("content", [b"", b"1234567", b"123456789", b"\0" * 7 + b"\x80"])
def test_a_file_that_is_no_clock_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "clock").write_bytes(content)
    with pytest.raises(CorruptConfigError, match="clock"):
        ClockFile(tmp_path / "clock")


def test_a_clock_is_not_made_up_and_not_read_through_a_link(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        ClockFile(tmp_path / "absent")
    ClockFile.create(tmp_path / "clock", 1)
    (tmp_path / "link").symlink_to(tmp_path / "clock")
    with pytest.raises(NotAStoreError):
        ClockFile(tmp_path / "link")
