"""Threads that can be started, waited for and ended while signal handlers come: nothing that they raise leaves anybody
waiting for ever.

`threading.Thread.start` and `join` do not survive that, nor do executors and futures: they wait under locks of Python
code, which Ctrl-C leaves taken. So a thread is started by another thread, where no handler runs.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

from rmq_store.files.guard import Condition

T = TypeVar("T")

# Between two looks of who waits, in case another one took the word that the thread has ended.
_LOOK_S = 0.05


class Background:
    """A thread that runs `work` once. It is a daemon: it keeps no process alive."""

    def __init__(self, work: Callable[[], None], name: str) -> None:
        self._work = work
        self._name = name
        self._pid = os.getpid()
        # {0: who was first}: the thread when it begins, or who waits for one that has not begun and will not any more.
        self._first: dict[int, object] = {}
        self._ident = 0
        self._is_started = self._is_ended = False
        self._ended: SimpleQueue[None] = SimpleQueue()

    def start(self) -> None:
        """Let it begin. RuntimeError: no thread is to be had."""
        self._is_started = True
        try:
            _thread.start_new_thread(self._begin, ())
        except RuntimeError:
            self._is_started = False
            raise

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait until it has ended, at most for so long; False if it has not. If it has not begun it never will."""
        if self._first.setdefault(0, None) is None or os.getpid() != self._pid:
            return True
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._is_ended:
            left_s = _LOOK_S if deadline_s is None else min(_LOOK_S, deadline_s - time.monotonic())
            if left_s <= 0:
                return False
            with contextlib.suppress(Empty):
                self._ended.get(timeout=left_s)
        return True

    def is_alive(self) -> bool:
        """Whether it was started and has not ended."""
        return self._is_started and not self._is_ended and self._first.get(0, self) is self and os.getpid() == self._pid

    def is_current(self) -> bool:
        """Whether the caller is this thread."""
        return self._ident == threading.get_ident() and self.is_alive()

    def _begin(self) -> None:
        if self._first.setdefault(0, self) is not self:
            return
        try:
            threading.Thread(target=self._run, name=self._name, daemon=True).start()
        except RuntimeError:  # this thread will do
            self._run()

    def _run(self) -> None:
        self._ident = threading.get_ident()
        try:
            self._work()
        finally:
            self._is_ended = True
            self._ended.put(None)


class Outcome(Future[T]):
    """A future whose own lock an interrupt does not leave taken."""

    def __init__(self) -> None:
        super().__init__()
        self._condition: Condition = Condition()


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
