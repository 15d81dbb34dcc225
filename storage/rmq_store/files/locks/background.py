"""Threads that can be started, waited for and ended while signal handlers come: nothing that they raise leaves anybody
waiting for ever.

`threading.Thread.start` and `join` do not survive that, nor do executors and futures: they wait under locks of Python
code, which Ctrl-C leaves taken. So a thread is started by another thread, where no handler runs.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from rmq_store.files.locks.guard import Condition

T = TypeVar("T")

# Between two looks of who waits, in case another one took the word that the thread has ended.
_LOOK_S = 0.05

# How long a thread that has done its work is waited for to be gone, at most, and between two looks.
_LEAVE_S = 0.2
_LEAVE_LOOK_S = 50e-6


class Background:
    """A thread that runs `work` once. It is a daemon: it keeps no process alive."""

    def __init__(self, work: Callable[[], None], name: str) -> None:
        self._work = work
        self._name = name
        self._pid = os.getpid()
        # {0: who was first}: the thread when it begins, or who waits for one that has not begun and will not any more.
        self._first: dict[int, object] = {}
        self._ident = 0
        self._task = ""
        self._is_started = self._is_ended = False
        self._begun: SimpleQueue[None] = SimpleQueue()
        self._ended: SimpleQueue[None] = SimpleQueue()

    def start(self) -> None:
        """Let it begin; on return it has. RuntimeError: no thread is to be had."""
        _thread.start_new_thread(self._begin, ())
        self._is_started = True
        self._begun.get()

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait until it has ended, at most for so long; False if it has not. One that was not started never begins."""
        if os.getpid() != self._pid or (not self._is_started and self._first.setdefault(0, None) is None):
            return True
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._is_ended:
            left_s = _LOOK_S if deadline_s is None else min(_LOOK_S, deadline_s - time.monotonic())
            if left_s <= 0:
                return False
            with contextlib.suppress(Empty):
                self._ended.get(timeout=left_s)
        # Its last instructions: who counts threads behind this must not find it. The system is asked, because
        # sys._current_frames may collect garbage under a lock of the interpreter, and wait for ever (gh-106883).
        leave_s = time.monotonic() + _LEAVE_S
        while not self.is_current() and os.path.exists(self._task) and time.monotonic() < leave_s:  # noqa: PTH110
            time.sleep(_LEAVE_LOOK_S)
        return True

    def is_alive(self) -> bool:
        """Whether it was started and has not ended."""
        is_started = self._is_started or self._first.get(0) is self
        return is_started and not self._is_ended and os.getpid() == self._pid

    def is_current(self) -> bool:
        """Whether the caller is this thread."""
        return self._ident == threading.get_ident()

    def _begin(self) -> None:
        if self._first.setdefault(0, self) is not self:
            return
        try:
            threading.Thread(target=self._run, name=self._name, daemon=True).start()
            self._begun.put(None)
        except RuntimeError:  # this thread will do
            self._begun.put(None)
            self._run()

    def _run(self) -> None:
        self._ident = threading.get_ident()
        self._task = f"/proc/self/task/{threading.get_native_id()}"
        try:
            self._work()
        finally:
            self._is_ended = True
            self._ended.put(None)


class Outcome(Future[T]):
    """A future whose own lock an interrupt does not leave taken."""

    def __init__(self) -> None:
        super().__init__()
        self._condition = Condition()  # type: ignore[assignment]  # which has what a future uses


class _Task(Generic[T]):
    """A call for a pool, which one of its threads makes, or somebody refuses."""

    def __init__(self, call: Callable[[], T]) -> None:
        self.outcome: Outcome[T] = Outcome()
        self._call = call

    def run(self) -> None:
        if self.outcome.set_running_or_notify_cancel():
            try:
                result = self._call()
            except BaseException as error:
                self.outcome.set_exception(error)
            else:
                self.outcome.set_result(result)

    def refuse(self) -> None:
        if self.outcome.set_running_or_notify_cancel():
            self.outcome.set_exception(_ended())


class Pool:
    """Up to `count` threads for calls whose outcomes are futures. Any thread, and any signal handler, may submit. What
    was submitted is done before the interpreter ends, as with an executor.
    """

    def __init__(self, count: int, name: str) -> None:
        self._count = count
        self._name = name
        self._tasks: SimpleQueue[_Task[Any] | None] = SimpleQueue()
        self._threads: list[Background] = []
        self._is_over = False
        _pools.add(self)

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Have a thread make the call. RuntimeError: the pool was shut down, or no thread is to be had."""
        if self._is_over:
            raise _ended()
        if len(self._threads) < self._count:
            thread = Background(self._work, f"{self._name}_{len(self._threads)}")
            self._threads.append(thread)  # first: `shutdown` has to know of it
            try:
                thread.start()
            except RuntimeError:
                self._threads.remove(thread)
                if not self._threads:
                    raise
        task = _Task(call)
        self._tasks.put(task)
        if self._is_over:  # meanwhile: perhaps nobody looks any more
            self._refuse_left()
        return task.outcome

    def shutdown(self) -> None:
        """Wait until all that was submitted is done; nothing new is taken. After an interrupt it can be repeated."""
        self._is_over = True
        for _ in range(self._count):
            self._tasks.put(None)
        for thread in list(self._threads):
            if not thread.is_current():
                thread.join()
        self._refuse_left()

    def _refuse_left(self) -> None:
        if any(thread.is_alive() for thread in self._threads):
            return
        with contextlib.suppress(Empty):
            while True:
                task = self._tasks.get_nowait()
                if task is not None:
                    task.refuse()

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            task.run()


def _ended() -> RuntimeError:
    return RuntimeError("it was shut down: no call is taken any more")


_pools: weakref.WeakSet[Pool] = weakref.WeakSet()


@atexit.register
def _finish_pools() -> None:
    for pool in list(_pools):
        pool.shutdown()


class Answer(Generic[T]):
    """What another thread finds out for one that waits: a future without callbacks, of one C object."""

    def __init__(self) -> None:
        self._found: list[tuple[T | None, BaseException | None]] = []
        self._ready: SimpleQueue[None] = SimpleQueue()

    def work_out(self, work: Callable[[], T]) -> None:
        """Call `work`, and answer with what it returns or raises."""
        try:
            self._found.append((work(), None))
        except BaseException as error:
            self._found.append((None, error))
        self._ready.put(None)

    def wait(self) -> None:
        """Wait until it is there."""
        while not self._found:
            with contextlib.suppress(Empty):
                self._ready.get(timeout=_LOOK_S)

    def result(self) -> T:
        """Wait for what `work` returned, or raise what it raised."""
        self.wait()
        value, error = self._found[-1]  # an interrupt may have come behind the value
        if error is not None:
            raise error
        return value  # type: ignore[return-value]
