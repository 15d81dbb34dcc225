"""Locks against other processes, against Java's kind of lock, across fork, and between threads."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, SimpleNamespace

import pytest

from rmq_store.errors import NotAStoreError, StoreLockedError, UsageError
from rmq_store.files.locks import lock as lock_module
from rmq_store.files.locks import pace
from rmq_store.files.locks.lock import Exclusive, LockState, OfdLock, process_text

OURS = """
import sys
from rmq_store.files.locks.lock import OfdLock
lock = OfdLock(sys.argv[1])
assert getattr(lock, "try_" + sys.argv[2])()
print("held", flush=True)
sys.stdin.read()
"""

# Exactly what FileChannel.tryLock(0, 1, false) does in a broker.
JAVA = """
import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
os.pwrite(fd, b"lock", 0)
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def holder(program: str, path: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", program, str(path), *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lock"


def test_a_foreign_exclusive_holder_is_waited_for_and_named(path: Path) -> None:
    with holder(OURS, path, "exclusive") as process:
        lock = OfdLock(path)
        assert not lock.try_shared()
        assert not lock.try_exclusive()
        assert lock.who() == LockState("exclusive", process.pid)
        start_s = time.monotonic()
        with pytest.raises(StoreLockedError, match=f"process {process.pid}") as caught:
            lock.acquire_exclusive(timeout_ms=100)
        assert time.monotonic() - start_s > 0.09
        assert caught.value.pid == process.pid
        assert lock.held == "free"


def test_shared_holders_share_and_keep_an_exclusive_one_out(path: Path) -> None:
    with holder(OURS, path, "shared"):
        lock = OfdLock(path)
        assert not lock.try_exclusive()
        assert lock.try_shared()
        assert lock.who().kind == "shared"
        assert not lock.try_upgrade()
        assert lock.held == "shared", "a failed upgrade must not lose the lock"


def test_a_killed_holder_frees_the_lock_at_once(path: Path) -> None:
    with holder(OURS, path, "exclusive") as process:
        lock = OfdLock(path)
        assert not lock.try_exclusive()
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert lock.try_exclusive()


def test_a_stopped_holder_keeps_the_lock(path: Path) -> None:
    with holder(OURS, path, "exclusive") as process:
        process.send_signal(signal.SIGSTOP)
        with pytest.raises(StoreLockedError) as caught:
            OfdLock(path).acquire_exclusive(timeout_ms=50)
        assert caught.value.pid == process.pid
        process.send_signal(signal.SIGCONT)


def test_a_broker_keeps_us_out_and_is_named(path: Path) -> None:
    with holder(JAVA, path) as process:
        lock = OfdLock(path)
        assert not lock.try_shared()
        assert lock.who() == LockState("exclusive", process.pid)
    assert lock.try_shared()


def test_we_keep_a_broker_out(path: Path) -> None:
    lock = OfdLock(path)
    assert lock.try_shared()
    attempt = subprocess.run(
        [sys.executable, "-c", JAVA, str(path)], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert "BlockingIOError" in attempt.stderr
    lock.release()
    attempt = subprocess.run(
        [sys.executable, "-c", JAVA, str(path)], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert attempt.stdout == "held\n"


def test_closing_another_descriptor_of_the_file_keeps_the_lock(path: Path) -> None:
    lock, other = OfdLock(path), OfdLock(path)
    assert lock.try_exclusive()
    path.read_bytes()
    assert not other.try_shared()
    other.close()
    assert OfdLock(path).who() == LockState("exclusive", os.getpid())


def test_upgrade_and_downgrade(path: Path) -> None:
    lock, other = OfdLock(path), OfdLock(path)
    assert lock.try_exclusive()
    lock.downgrade()
    assert other.try_shared()
    assert not lock.try_upgrade()
    other.release()
    assert lock.try_upgrade()
    assert not other.try_shared()


def test_bytes_of_one_file_are_locked_apart(path: Path) -> None:
    one, two = OfdLock(path, byte=1 << 40), OfdLock(path, byte=(1 << 40) + 1)
    assert one.try_exclusive()
    assert two.try_exclusive()
    assert not OfdLock(path, byte=1 << 40).try_shared()
    assert OfdLock(path).try_exclusive()


def test_the_file_is_private_and_looking_does_not_create_it(path: Path) -> None:
    assert OfdLock(path).who() == LockState("free", None)
    assert not path.exists()
    assert OfdLock(path).try_shared()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_what_java_wrote_stays(path: Path) -> None:
    path.write_bytes(b"lock")
    lock = OfdLock(path)
    assert lock.try_exclusive()
    assert path.read_bytes() == b"lock" + bytes(12) + b"%8d" % os.getpid()


def test_a_lock_is_never_created_through_a_symbolic_link(tmp_path: Path, path: Path) -> None:
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NotAStoreError):
        OfdLock(path).try_shared()
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("text", [b"", b"        ", b"xxxxxxxx", b"00000000", b"99999999", "١٢٣٤".encode()])
def test_nonsense_or_a_dead_process_in_the_pid_field_names_nobody(path: Path, text: bytes) -> None:
    lock = OfdLock(path)
    assert lock.try_exclusive()
    with path.open("r+b") as file:
        file.seek(16)
        file.write(text.ljust(8))
    assert lock.who() == LockState("exclusive", None)


def test_a_file_that_was_unlinked_is_opened_anew(path: Path) -> None:
    lock = OfdLock(path)
    assert lock.try_exclusive()
    lock.release()
    path.unlink()
    assert lock.try_exclusive()
    assert not OfdLock(path).try_shared()


def run_in_child(body: object) -> int:
    """Fork, run `body` there, and return the exit status; 0 means that it returned something true."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            status = 0 if body() else 1  # type: ignore[operator]
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_forked_child_holds_nothing_and_cannot_release_for_its_parent(path: Path) -> None:
    lock = OfdLock(path)
    assert lock.try_exclusive()

    def child() -> bool:
        free = lock.held == "free"
        lock.release()
        lock.close()
        return free and not lock.try_exclusive()

    assert run_in_child(child) == 0
    assert not OfdLock(path).try_shared(), "the parent still holds it"


def test_a_forked_child_does_not_keep_the_lock_of_a_dead_parent(path: Path) -> None:
    """The parent forks a child that lives on, and dies by SIGKILL: nothing may keep the lock then."""
    program = """
import os, sys, time
from rmq_store.files.locks.lock import OfdLock
lock = OfdLock(sys.argv[1])
assert lock.try_exclusive()
if os.fork() == 0:
    print("held", flush=True)
    time.sleep(30)
    os._exit(0)
time.sleep(30)
"""
    with holder(program, path) as process:
        lock = OfdLock(path)
        assert not lock.try_exclusive()
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        process.send_signal(signal.SIGKILL)
        process.wait()
        try:
            assert lock.try_exclusive()
        finally:
            os.kill(int(children[0]), signal.SIGKILL)


def test_fork_hooks_make_the_difference(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Teeth of the two tests above: a child that keeps its copy of the descriptor does free the parent's lock."""
    monkeypatch.setattr(OfdLock, "_forget", lambda self: None)
    lock = OfdLock(path)
    assert lock.try_exclusive()
    assert run_in_child(lambda: lock.release() or True) == 0
    assert OfdLock(path).try_exclusive()


def test_threads_that_share_one_object_exclude_each_other(path: Path) -> None:
    lock = OfdLock(path)
    inside = 0
    worst = 0

    def work() -> None:
        nonlocal inside, worst
        for _ in range(50):
            with lock.exclusive(timeout_ms=10_000):
                inside += 1
                worst = max(worst, inside)
                time.sleep(0.0001)
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert worst == 1
    assert lock.held == "free"


def test_one_object_cannot_be_taken_twice_and_times_out_naming_this_process(path: Path) -> None:
    lock = OfdLock(path)
    assert lock.try_shared()
    assert not lock.try_shared()
    assert not lock.try_exclusive()
    with pytest.raises(StoreLockedError) as caught:
        lock.acquire_exclusive(timeout_ms=20)
    assert caught.value.pid == os.getpid()
    assert lock.held == "shared"


def test_a_lock_can_be_taken_by_one_thread_and_released_by_another(path: Path) -> None:
    lock, other = OfdLock(path), OfdLock(path)
    lock.acquire_exclusive(timeout_ms=0)
    assert (lock.held, other.try_shared()) == ("exclusive", False)
    thread = threading.Thread(target=lock.release)
    thread.start()
    thread.join()
    assert (lock.held, other.try_exclusive()) == ("free", True)
    other.release()
    lock.acquire_exclusive(timeout_ms=0)
    assert (lock.held, other.try_shared()) == ("exclusive", False)
    lock.release()


def test_an_error_while_waiting_leaves_the_object_usable(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other, lock = OfdLock(path), OfdLock(path)
    assert other.try_exclusive()

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(lock_module, "sleep", interrupt)
        with pytest.raises(KeyboardInterrupt):
            lock.acquire_exclusive(timeout_ms=1000)
    other.release()
    assert lock.try_exclusive()


def test_two_processes_never_hold_it_together(path: Path, tmp_path: Path) -> None:
    """Read-increment-write of a counter under the lock, 300 times in each of two processes."""
    program = """
import sys
from pathlib import Path
from rmq_store.files.locks.lock import OfdLock
lock, counter = OfdLock(sys.argv[1]), Path(sys.argv[2])
print("held", flush=True)
for _ in range(300):
    with lock.exclusive(timeout_ms=20_000):
        counter.write_text(str(int(counter.read_text()) + 1))
"""
    counter = tmp_path / "counter"
    counter.write_text("0")
    with holder(program, path, str(counter)) as one, holder(program, path, str(counter)) as two:
        assert (one.wait(60), two.wait(60)) == (0, 0)
    assert counter.read_text() == "600"


def test_thread_interrupted_on_its_way_into_a_block_comes_in_again(tmp_path: Path) -> None:
    # Ctrl-C between taking the lock and the `with` block: no `finally` of the block has seen it.
    lock = OfdLock(tmp_path / "lock")
    lock.acquire_exclusive(1000)
    with lock.exclusive(1000):
        assert lock.held == "exclusive"
    assert lock.held == "free"
    assert OfdLock(tmp_path / "lock").try_exclusive()


def test_thread_interrupted_before_it_noted_what_it_took_gives_it_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = OfdLock(tmp_path / "lock")
    take = OfdLock._take

    def interrupted(self: OfdLock, kind: str) -> bool:
        take(self, kind)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(OfdLock, "_take", interrupted)
        with pytest.raises(KeyboardInterrupt):
            lock.acquire_exclusive(1000)
    assert OfdLock(tmp_path / "lock").try_exclusive()


def leave(lock: OfdLock) -> None:
    """A block whose `__exit__` is interrupted (Ctrl-C) at its first instruction."""

    def interrupt(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code is Exclusive.__exit__.__code__:
            sys.setprofile(None)
            raise KeyboardInterrupt

    sys.setprofile(interrupt)
    try:
        with lock.exclusive(1000):
            pass
    except KeyboardInterrupt:
        return
    raise AssertionError


def test_what_an_interrupted_block_has_left_is_given_up_when_its_thread_comes_back(path: Path) -> None:
    lock = OfdLock(path)
    leave(lock)
    assert lock.held == "exclusive"
    assert lock.release_left()
    assert lock.held == "free"
    leave(lock)
    with lock.exclusive(1000) as held:
        assert held
    assert OfdLock(path).try_exclusive()


def test_what_an_interrupted_block_has_left_is_no_other_threads_to_give_up(path: Path) -> None:
    lock = OfdLock(path)
    thread = threading.Thread(target=leave, args=(lock,))
    thread.start()
    thread.join()
    assert lock.release_left()
    assert lock.held == "exclusive"


@pytest.mark.parametrize("act", ["enter", "close", "release_left"])
def test_a_signal_handler_takes_nothing_from_the_block_that_it_interrupts(path: Path, act: str) -> None:
    """It took the lock for a leftover of its own thread: what the block guards was at two places at once."""
    lock = OfdLock(path)
    before = signal.getsignal(signal.SIGUSR1)
    outcome: list[object] = []

    def handler(*_: object) -> None:
        try:
            if act == "enter":
                with lock.exclusive(1000):
                    pass
            else:
                outcome.append(getattr(lock, act)())
        except UsageError as error:
            outcome.append("after the handler has returned" in str(error))

    signal.signal(signal.SIGUSR1, handler)
    try:
        with lock.exclusive(1000):
            signal.raise_signal(signal.SIGUSR1)
            assert lock.held == "exclusive"
            assert not OfdLock(path).try_shared()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert outcome == [act != "release_left"]
    assert lock.held == "free"


def test_close_waits_for_the_block_of_another_thread_and_gives_up_in_time(path: Path) -> None:
    lock = OfdLock(path)
    inside, go_on = threading.Event(), threading.Event()

    def work() -> None:
        with lock.exclusive(1000):
            inside.set()
            go_on.wait(30)

    thread = threading.Thread(target=work)
    thread.start()
    inside.wait(30)
    with pytest.raises(StoreLockedError):
        lock.close(timeout_ms=20)
    assert not OfdLock(path).try_shared()
    timer = threading.Timer(0.05, go_on.set)
    timer.start()
    lock.close(timeout_ms=30_000)
    assert go_on.is_set()
    thread.join(30)
    assert OfdLock(path).try_exclusive()


def test_a_block_that_does_not_wait_is_told_whether_it_has_the_lock(path: Path) -> None:
    lock, other = OfdLock(path), OfdLock(path)
    with lock.exclusive_if_free() as is_alone:
        assert is_alone
        with other.exclusive_if_free() as is_second:
            assert not is_second
    assert other.try_exclusive()


def test_a_holder_that_is_not_known_is_another_process() -> None:
    assert (process_text(None), process_text(7)) == ("another process", "process 7")
    assert process_text(os.getpid()) == "another thread of this process"


@pytest.mark.parametrize("wait", ["acquire_exclusive", "close"])
def test_time_in_which_the_process_was_stopped_does_not_count(
    path: Path, wait: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that was stopped for long reported that it holds its lock itself: the holder is one of its threads."""
    stopped_s = [0.0]
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + stopped_s[0], monotonic_ns=time.monotonic_ns)
    monkeypatch.setattr(pace, "real_time", clock)
    lock = OfdLock(path)
    inside = threading.Event()

    def work() -> None:
        with lock.exclusive(1000):
            inside.set()
            time.sleep(0.1)
            stopped_s[0] += 1000
            time.sleep(0.1)

    thread = threading.Thread(target=work)
    thread.start()
    inside.wait(30)
    getattr(lock, wait)(timeout_ms=30_000)
    thread.join(30)
    lock.close()
    assert lock.held == "free"
