"""Threads that are safe to start, join and end while signal handlers run.

    Background     one thread that runs one function
    Pool           threads that make calls, with a future for each (`SafeFuture`)
    Answer         the result of one call, for one waiter
    HelperThread   a second thread for a `with` block
    map_in_pairs   a function over items, two at a time

An exception that a signal handler raises (Ctrl-C) leaves no caller waiting for ever. `threading.Thread.start`, `join`,
executors and futures do not guarantee that: they wait under locks of Python code, which Ctrl-C leaves taken. So each
thread is started by another thread, in which no signal handler runs.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from functools import partial
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, Generic, TypeVar

from rmq_store import real_time
from rmq_store.files.locks.guard import Condition
from rmq_store.threads import Claim, processor_count

T = TypeVar("T")
_Item = TypeVar("_Item")

# A waiter polls this often, in case another waiter took the notification that the thread has ended.
_POLL_S = 0.05

# `join` waits at most this long until a thread that has done its work has left the system, and polls this often.
_LEAVE_S = 0.2
_LEAVE_POLL_S = 50e-6


class Background:
    """A thread that runs `work` once. It is a daemon: it keeps no process alive."""

    def __init__(self, work: Callable[[], None], name: str) -> None:
        self._work = work
        self._name = name
        self._pid = os.getpid()
        # Held by the thread when it begins, or by `join` of a thread that has not begun, and then never does.
        self._claim: Claim[object] = Claim()
        self._ident = 0
        self._task = ""
        self._is_started = self._is_ended = False
        self._begun: SimpleQueue[None] = SimpleQueue()
        self._ended: SimpleQueue[None] = SimpleQueue()

    def start(self) -> None:
        """Start the thread; on return it runs. RuntimeError: the system has no thread left."""
        _thread.start_new_thread(self._begin, ())
        self._is_started = True
        self._begun.get()

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait until the thread has ended, at most `timeout_s`; False if it has not. A thread not started yet never
        starts.
        """
        if os.getpid() != self._pid or (not self._is_started and self._claim.take(None) is None):
            return True
        deadline_s = None if timeout_s is None else real_time.monotonic() + timeout_s
        while not self._is_ended:
            left_s = _POLL_S if deadline_s is None else min(_POLL_S, deadline_s - real_time.monotonic())
            if left_s <= 0:
                return False
            with contextlib.suppress(Empty):
                self._ended.get(timeout=left_s)
        # Its last instructions: who counts threads behind this must not find it. The system is asked, because
        # sys._current_frames may collect garbage under a lock of the interpreter, and wait for ever (gh-106883).
        leave_s = real_time.monotonic() + _LEAVE_S
        while not self.is_current() and os.path.exists(self._task) and real_time.monotonic() < leave_s:  # noqa: PTH110
            time.sleep(_LEAVE_POLL_S)
        return True

    def is_alive(self) -> bool:
        """True if the thread was started and has not ended."""
        is_started = self._is_started or self._claim.holder() is self
        return is_started and not self._is_ended and os.getpid() == self._pid

    def is_current(self) -> bool:
        """True if the caller is this thread."""
        return self._ident == threading.get_ident()

    def _begin(self) -> None:
        if self._claim.take(self) is not self:
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


class SafeFuture(Future[T]):
    """A future whose own lock an interrupt does not leave taken."""

    def __init__(self) -> None:
        super().__init__()
        self._condition = Condition()  # type: ignore[assignment]  # which has what a future uses


class _Task(Generic[T]):
    """A call for a pool: one of its threads makes it, or `shutdown` refuses it."""

    def __init__(self, call: Callable[[], T]) -> None:
        self.outcome: SafeFuture[T] = SafeFuture()
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
    """Up to `count` threads; each call has a future. Any thread and any signal handler may submit. As with an executor,
    submitted calls are made before the interpreter ends.
    """

    def __init__(self, count: int, name: str) -> None:
        self._count = count
        self._name = name
        self._tasks: SimpleQueue[_Task[Any] | None] = SimpleQueue()
        self._threads: list[Background] = []
        self._is_over = False
        _pools.add(self)

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Make `call` in a thread of the pool. RuntimeError: the pool was shut down, or no thread is left."""
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
        """Refuse new calls, and wait for those submitted. Call it again if a signal handler interrupted it."""
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
    """The result of a call in another thread, for one waiter: a future without callbacks."""

    def __init__(self) -> None:
        self._found: list[tuple[T | None, BaseException | None]] = []
        self._ready: SimpleQueue[None] = SimpleQueue()

    def work_out(self, work: Callable[[], T]) -> None:
        """Call `work`, and store what it returns or raises."""
        try:
            self._found.append((work(), None))
        except BaseException as error:
            self._found.append((None, error))
        self._ready.put(None)

    def wait(self) -> None:
        """Wait for the result."""
        while not self._found:
            with contextlib.suppress(Empty):
                self._ready.get(timeout=_POLL_S)

    def result(self) -> T:
        """Wait for the result; raise what `work` raised."""
        self.wait()
        value, error = self._found[-1]  # an interrupt may have come behind the value
        if error is not None:
            raise error
        return value  # type: ignore[return-value]


class HelperThread:
    """A second thread for a `with` block, started by the first `begin`. The block ends after all its tasks, even if
    a signal handler interrupts it again and again: a write that is still running could not be undone.
    """

    __slots__ = ("_tasks",)

    def __init__(self) -> None:
        self._tasks: SimpleQueue[Callable[[], None] | None] | None = None

    def __enter__(self) -> HelperThread:
        return self

    def begin(self, work: Callable[[], T]) -> Answer[T]:
        """Run `work` in the second thread, after the tasks before it. RuntimeError: no thread is left."""
        if self._tasks is None:
            tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
            Background(partial(_run, tasks), "rmq-helper").start()
            self._tasks = tasks  # behind it: a thread that nobody knows of gets nothing to do
        answer: Answer[T] = Answer()
        self._tasks.put(partial(answer.work_out, work))
        return answer

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._tasks is None:
            return
        interrupt: BaseException | None = None
        last: Answer[None] = Answer()
        is_asked = False
        while True:
            try:
                if not is_asked:
                    # One thing is done after the other, so this one behind all. Asked twice it is answered twice.
                    self._tasks.put(partial(last.work_out, _nothing))
                    is_asked = True
                last.wait()
                break
            except BaseException as again:
                interrupt = again
        self._tasks.put(None)
        if interrupt is not None:
            raise interrupt


def _run(tasks: SimpleQueue[Callable[[], None] | None]) -> None:
    while (task := tasks.get()) is not None:
        task()


def _nothing() -> None:
    pass


def map_in_pairs(items: Iterable[_Item], work: Callable[[_Item], T]) -> Iterator[tuple[_Item, Callable[[], T]]]:
    """Yield each item with a function that returns the result of `work(item)`, or raises its error. With two
    processors, a second thread works on every other item. No work runs while the caller has an item.
    """
    rest = iter(items)
    for first in rest:
        second = next(rest, None) if processor_count() > 1 else None
        if second is None:
            yield first, partial(work, first)
            continue
        own: Answer[T] = Answer()
        other: Answer[T] = Answer()
        try:
            _thread.start_new_thread(other.work_out, (partial(work, second),))
        except RuntimeError:  # none is to be had
            yield first, partial(work, first)
            yield second, partial(work, second)
            continue
        own.work_out(partial(work, first))
        other.wait()
        yield first, own.result
        yield second, other.result
