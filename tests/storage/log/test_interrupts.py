"""Signals in the middle of an append, a flush or a close, and threads that are in the middle of one meanwhile.

A handler may raise (Ctrl-C), use the store, or close it. Whatever it does, nothing that was acknowledged may go, and
nobody may be shut out for longer than the interrupted call takes.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from rmq_store import Message, Store
from rmq_store.broker.write.flusher import Flusher
from rmq_store.errors import StoreError, StoreFailedError, StoreLockedError, UsageError
from rmq_store.files import durable
from rmq_store.files.locks.futex import Futex
from rmq_store.files.locks.lock import Exclusive, OfdLock
from rmq_store.log.append import frame_writer
from rmq_store.log.append.append import append_lock
from rmq_store.log.core import commit_log
from rmq_store.log.core.units import UnitRecord

if TYPE_CHECKING:
    from .conftest import CountDown, Lab

HANG_GUARD_S = 30
OPERATIONS_MAX = 200


class Appender(threading.Thread):
    """Appends a batch; stops before its first write into the log until `go_on` is set."""

    def __init__(self, lab: Lab, store: Store) -> None:
        super().__init__(daemon=True)
        self.store, self.rows = store, lab.batch(5)
        self.inside, self.go_on = threading.Event(), threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.store.append(self.rows)
        except BaseException as error:
            self.error = error

    def stop_inside(self, operation: str, path: str) -> None:
        if threading.current_thread() is self and operation == "write" and "commitlog" in path:
            self.inside.set()
            assert self.go_on.wait(HANG_GUARD_S)

    def begin(self) -> None:
        durable.hook = self.stop_inside
        self.start()
        assert self.inside.wait(HANG_GUARD_S)

    def end(self) -> None:
        self.go_on.set()
        self.join(HANG_GUARD_S)
        durable.hook = None
        assert self.error is None


@pytest.fixture
def on_signal() -> Iterator[Callable[[Callable[[], object]], None]]:
    """Say what a handler of SIGUSR1 does."""
    before = signal.getsignal(signal.SIGUSR1)
    yield lambda act: signal.signal(signal.SIGUSR1, lambda number, frame: act())
    signal.signal(signal.SIGUSR1, before)


def others_are_kept_out(lab: Lab, store: Store) -> bool:
    return (
        OfdLock(lab.root / "lock").who().kind == "shared"
        and OfdLock(store._log.append_lock.path).who().kind == "exclusive"
    )


# -- another thread is in the middle of an append --------------------------------------------------------------------


def test_close_that_is_interrupted_while_it_waits_for_a_thread_lets_go_of_nothing(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Byte 0 and the append lock went, with a thread in the middle of its append: another process took back what that
    thread had written, appended, and the thread wrote over it.
    """
    store = lab.open()
    store.append(lab.batch(3))
    appender = Appender(lab, store)
    appender.begin()

    def interrupt(futex: Futex, timeout_s: float) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Futex, "wait", interrupt)
        with pytest.raises(KeyboardInterrupt):
            store.close()
    assert others_are_kept_out(lab, store)
    appender.end()
    assert lab.numbers(store) == list(range(8))
    store.close()
    assert lab.verify().status == "clean"


def test_close_that_cannot_flush_waits_for_a_thread_that_appends(lab: Lab) -> None:
    """No Ctrl-C is needed: for want of a descriptor close() gives up, and let go of the thread's locks, too."""
    store = lab.open()
    store.append(lab.batch(3))
    appender = Appender(lab, store)
    closing = threading.main_thread()
    kept_out: list[bool] = []

    def no_descriptor(operation: str, path: str) -> None:
        appender.stop_inside(operation, path)
        if threading.current_thread() is closing and operation == "open" and "commitlog" in path:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    def look_and_go_on() -> None:
        kept_out.append(others_are_kept_out(lab, store))
        appender.go_on.set()

    appender.begin()
    store._log.files.clear()
    durable.hook = no_descriptor
    timer = threading.Timer(0.3, look_and_go_on)
    timer.start()
    with pytest.raises(StoreFailedError, match="Too many open files"):
        store.close()
    timer.join()
    appender.end()
    assert kept_out == [True]
    with pytest.raises(UsageError, match="closed"):
        store.append(lab.batch(1))
    lab.written -= 1
    with lab.open() as again:
        assert lab.numbers(again) == list(range(8))


def test_a_thread_that_appends_for_too_long_keeps_the_store_open(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    store = lab.open()
    appender = Appender(lab, store)
    appender.begin()
    monkeypatch.setattr(commit_log, "LOCK_TIMEOUT_MS", 50)
    with pytest.raises(StoreLockedError) as caught:
        store._log.close()
    assert caught.value.pid == os.getpid()
    assert others_are_kept_out(lab, store)
    appender.end()
    store.append(lab.batch(1))
    assert lab.numbers(store) == list(range(6))
    store.close()
    assert lab.verify().status == "clean"


def test_a_thread_that_comes_while_the_others_are_waited_for_is_refused(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the append lock and byte 0: another process may have the store alone a moment later."""
    store = lab.open()
    outcome: list[StoreError] = []

    def come() -> None:
        with pytest.raises(UsageError) as caught:
            store.append(lab.batch(1))
        outcome.append(caught.value)

    def close(timeout_ms: int) -> None:
        thread = threading.Thread(target=come)
        thread.start()
        thread.join(HANG_GUARD_S)

    monkeypatch.setattr(store._log.flush_lock, "close", close)
    store._log.close()
    assert "closed meanwhile" in str(outcome[0])


def test_a_thread_that_flushes_is_waited_for(lab: Lab) -> None:
    store = lab.open()
    store.append(lab.batch(1))
    inside, go_on = threading.Event(), threading.Event()

    def hang(operation: str, path: str) -> None:
        if operation == "fsync" and "commitlog" in path:
            inside.set()
            assert go_on.wait(HANG_GUARD_S)

    durable.hook = hang
    thread = threading.Thread(target=store.flush)
    thread.start()
    assert inside.wait(HANG_GUARD_S)
    timer = threading.Timer(0.2, go_on.set)
    timer.start()
    store._log.close()
    assert go_on.is_set()
    thread.join(HANG_GUARD_S)
    assert store._log.writing_page.flushed_end == store._log.writing_page.appended_end


# -- a handler uses the store ----------------------------------------------------------------------------------------

USES: dict[str, Callable[[Store], object]] = {
    "send": lambda store: store.send(Message("Alpha", b"%08d" % 99)),
    "send_all": lambda store: store.send_all([Message("Alpha", b"%08d" % 99)]),
    "append": lambda store: store.append(pa.record_batch({"body": [b"%08d" % 99]}), "Alpha"),
    "last_unit": lambda store: store.last_unit("sink", "q"),
    "close": lambda store: store.close(),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("moment", ["write commitlog", "write consumequeue", "fsync commitlog"])
@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
def test_a_handler_that_uses_the_store_in_the_middle_of_an_append_or_a_flush_is_refused(
    lab: Lab, on_signal: Callable[[Callable[[], object]], None], use: str, moment: str, sync: bool
) -> None:
    """It took the append under way for one that had been given up, undid it, and was acknowledged at its place."""
    if sync:
        lab.sync_flush()
    refused: list[str] = []

    def handler() -> None:
        with pytest.raises(UsageError) as caught:
            USES[use](store)
        refused.append(str(caught.value))

    def signal_once(operation: str, path: str) -> None:
        if moment.split()[0] == operation and moment.split()[1] in path and not refused:
            signal.raise_signal(signal.SIGUSR1)

    on_signal(handler)
    with lab.open() as store:
        store.append(lab.batch(3))
        durable.hook = signal_once
        store.append(lab.batch(3))
        if not refused:
            store.flush()
        durable.hook = None
        assert len(refused) == 1 and "after the handler has returned" in refused[0]
        store.send(Message("Alpha", b"%08d" % 6))
        assert lab.numbers(store) == list(range(7))
    assert lab.verify().status == "clean"


def test_a_handler_that_sends_beside_the_leader_of_the_line_is_refused(
    lab: Lab, on_signal: Callable[[Callable[[], object]], None]
) -> None:
    lab.sync_flush()
    refused: list[BaseException] = []

    def handler() -> None:
        with pytest.raises(UsageError) as caught:
            store.send(Message("Alpha", b"%08d" % 99))
        refused.append(caught.value)

    def signal_once(operation: str, path: str) -> None:
        if (operation, "commitlog" in path) == ("write", True) and not refused:
            signal.raise_signal(signal.SIGUSR1)

    on_signal(handler)
    with lab.open() as store:
        store.send(Message("Alpha", b"%08d" % 0))
        durable.hook = signal_once
        store.send(Message("Alpha", b"%08d" % 1))
        durable.hook = None
        assert refused
        assert lab.numbers(store) == [0, 1]


def test_a_handler_that_sends_while_messages_are_encoded_is_served(
    lab: Lab, on_signal: Callable[[Callable[[], object]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would wait for its own thread for ever."""
    with lab.open() as store:
        store.send(Message("Alpha", b"%08d" % 0))
        assert store._writer is not None
        on_signal(lambda: store.send(Message("Alpha", b"%08d" % 1)))
        routed = store._writer._routed

        def interrupted(topics: Any) -> Any:
            monkeypatch.undo()
            signal.raise_signal(signal.SIGUSR1)
            return routed(topics)

        monkeypatch.setattr(store._writer, "_routed", interrupted)
        store.send(Message("Alpha", b"%08d" % 2))
        assert lab.numbers(store) == [0, 1, 2]


# -- Ctrl-C ----------------------------------------------------------------------------------------------------------


def test_an_append_that_is_interrupted_twice_is_undone_when_its_second_thread_has_ended(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second Ctrl-C ended the wait for the thread that writes records: it wrote on, into what others appended."""
    monkeypatch.setattr(frame_writer, "PIECE_BYTES", 400)
    main = threading.main_thread()
    assert main.ident is not None
    inside, go_on, written = threading.Event(), threading.Event(), []

    def hang(operation: str, path: str) -> None:
        if operation != "write" or "commitlog" not in path:
            return
        if threading.current_thread() is main:
            if any(thread.name == "rmq-helper" for thread in threading.enumerate()):
                inside.wait(0.5)  # it leaves something to the other one, which may need what is held here
            return
        inside.set()
        assert go_on.wait(HANG_GUARD_S)
        written.append(path)

    def press_twice() -> None:
        assert inside.wait(HANG_GUARD_S)
        for _ in range(2):
            time.sleep(0.1)
            signal.pthread_kill(main.ident or 0, signal.SIGINT)
        time.sleep(0.1)
        go_on.set()

    with lab.open() as store:
        store.append(lab.batch(5))
        before = lab.files()
        durable.hook = hang
        presser = threading.Thread(target=press_twice)
        presser.start()
        with pytest.raises(KeyboardInterrupt):
            store.append(lab.batch(35))
        behind = len(written)
        presser.join()
        durable.hook = None
        assert behind, "the append was taken back under the hands of the second thread"
        assert lab.files() == before
        lab.written = 5
        store.append(lab.batch(35))
        assert lab.numbers(store) == list(range(40))
    assert lab.verify().status == "clean"


CALLS: dict[str, Callable[[Lab, Store], object]] = {
    "send": lambda lab, store: store.send(Message("Alpha", b"%08d" % 99)),
    "send_all": lambda lab, store: store.send_all([Message("Alpha", b"%08d" % 99)]),
    "append": lambda lab, store: store.append(lab.batch(2)),
    "commit": lambda lab, store: store.commit_staged([], key="q", value=1),
    "append_unit": lambda lab, store: store._writing().append_unit([], UnitRecord("sink", "k", 1), expect=None),
    "append_once": lambda lab, store: store._writing().append_once([], UnitRecord("sink", "k", 1)),
    "last_unit": lambda lab, store: store.last_unit("sink", "q"),
    "flush": lambda lab, store: store.flush(),
    "close": lambda lab, store: store.close(),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("block", [append_lock, Exclusive])
@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
def test_an_interrupt_on_the_way_out_of_a_lock_leaves_it_with_nobody(
    lab: Lab, call: str, block: type[Any], sync: bool
) -> None:
    """Python looks for signals at the first instruction of `__exit__`. The lock stayed with a thread that was idle, and
    every other thread and process waited until it came back.
    """
    if sync:
        lab.sync_flush()
    interrupted: list[str] = []

    def interrupt(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code is block.__exit__.__code__:
            sys.setprofile(None)
            interrupted.append(call)
            raise KeyboardInterrupt

    store = lab.open()
    store.append(lab.batch(3))
    locks = store._log.append_lock, store._log.flush_lock
    sys.setprofile(interrupt)
    try:
        CALLS[call](lab, store)
    except KeyboardInterrupt:
        pass
    finally:
        sys.setprofile(None)
    assert interrupted or (call, block) == ("flush", append_lock) or (call, sync) == ("flush", True)
    assert [OfdLock(lock.path).who().kind for lock in locks] == ["free", "free"]
    store.close()
    assert lab.verify().status == "clean"


@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
def test_close_that_is_interrupted_at_its_kth_operation_can_be_repeated(
    lab: Lab, fail_at: Callable[..., CountDown], sync: bool
) -> None:
    """What is sent in between is stored, or refused."""
    if sync:
        lab.sync_flush()

    def interrupt() -> None:
        raise KeyboardInterrupt

    stored, refusals = 0, 0
    for k in range(1, OPERATIONS_MAX):
        store = lab.open()
        store.append(lab.batch(3))
        stored += 3
        hook = fail_at(k, interrupt)
        try:
            store.close()
        except KeyboardInterrupt:
            pass
        durable.hook = None
        try:
            store.send(Message("Alpha", b"%08d" % lab.written))
            lab.written, stored = lab.written + 1, stored + 1
        except UsageError:
            refusals += 1
        store.close()
        assert OfdLock(lab.root / "lock").who().kind == "free"
        if not hook.reached:
            break
        with lab.open() as again:
            assert lab.numbers(again) == list(range(stored))
            assert not again.recovery or not again.recovery.bad_ranges
        assert lab.verify().status == "clean"
    assert 5 < k < OPERATIONS_MAX - 1
    assert 0 < refusals <= k
    assert sync or refusals < k, "nothing was to be flushed before the point of no return"


def test_close_that_is_interrupted_while_the_flush_thread_ends_can_be_repeated(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store took itself for closed: byte 0 stayed locked, and nobody flushed."""
    store = lab.open()
    store.append(lab.batch(3))

    def interrupt(flusher: Flusher) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Flusher, "stop", interrupt)
        with pytest.raises(KeyboardInterrupt):
            store.close()
    store.append(lab.batch(1))
    assert lab.numbers(store) == list(range(4))
    store.close()
    assert OfdLock(lab.root / "lock").who().kind == "free"
    assert lab.verify().status == "clean"


def test_close_that_is_interrupted_when_all_is_done_but_to_let_go_lets_go(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store says on disk that nothing comes after its end: nobody may append meanwhile."""
    store = lab.open()
    store.append(lab.batch(3))
    lock = store._log.store_lock

    def interrupt() -> None:
        monkeypatch.undo()
        assert lock.held == "exclusive"
        raise KeyboardInterrupt

    monkeypatch.setattr(lock, "release", interrupt)
    with pytest.raises(KeyboardInterrupt):
        store.close()
    assert OfdLock(lab.root / "lock").who().kind == "free"
    store.close()
    assert lab.verify().status == "clean"


def test_nobody_appends_to_a_store_that_a_last_closer_has_alone(lab: Lab) -> None:
    with lab.open() as store:
        store.append(lab.batch(3))
        assert store._log.store_lock.try_upgrade()
        with pytest.raises(UsageError, match="closed meanwhile"):
            store.append(lab.batch(1))
        store._log.store_lock.downgrade()


def test_an_open_that_is_interrupted_twice_keeps_nothing_locked(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Flusher, "start", interrupt)
        patch.setattr("rmq_store.log.recovery.opening._flush_and_leave", interrupt)
        with pytest.raises(KeyboardInterrupt):
            lab.open()
    assert OfdLock(lab.root / "lock").who().kind == "free"


def test_threads_that_close_one_store_together_close_it_once(lab: Lab) -> None:
    store = lab.open()
    store.append(lab.batch(3))
    errors: list[StoreError] = []

    def close() -> None:
        try:
            store.close()
        except StoreError as error:
            errors.append(error)

    threads = [threading.Thread(target=close) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_GUARD_S)
    assert errors == []
    assert lab.verify().status == "clean"
