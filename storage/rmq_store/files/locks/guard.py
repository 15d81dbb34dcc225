"""Locks between threads of one process that a signal handler can come across at any instruction of the main thread.

    Guard        for short steps: a handler that wants to enter it in the middle of a step of its own thread is refused
    Condition    as threading.Condition
    Event        as threading.Event

The standard ones do not survive that. Their `__enter__` and `__exit__` are Python functions, and Python runs handlers
at the first instruction of a function and behind each call: what Ctrl-C raises there leaves an inner lock taken for
ever, and a handler that calls `set` in the middle of `wait` waits for its own thread. Here a lock is only taken and
given back by a C function that is itself the `__enter__` or `__exit__` of the block.
"""

from __future__ import annotations

import _thread
import contextlib
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue

from rmq_store.errors import UsageError


class _Lock(_thread.RLock):  # type: ignore[misc]  # final for the type checker only
    """Its `with` block is C code alone."""

    def _is_own(self) -> bool:
        return bool(self._is_owned())  # type: ignore[attr-defined]


class Guard(_Lock):  # type: ignore[misc]
    """A lock for steps that do not call back; `with guard.entered():`."""

    def entered(self) -> Guard:
        """For a `with` statement: hold the lock for its block.

        Raises:
            UsageError: a signal handler has come in the middle of a block of its own thread; nothing was done.
        """
        if self._is_own():
            raise UsageError(
                "called by a signal handler, while the same thread is inside the same operation: nothing was done. "
                "Call it after the handler has returned"
            )
        return self


class Condition(_Lock):  # type: ignore[misc]
    """As threading.Condition, with a lock that its thread may take again; `notify` returns how many it woke."""

    def __init__(self) -> None:
        super().__init__()
        self._waiters: dict[object, SimpleQueue[None]] = {}

    @property
    def waiting(self) -> int:
        """How many wait that nobody has woken."""
        return len(self._waiters)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Let go of the lock until somebody notifies, at most for so long; False if nobody did in time. The lock is
        held again on return, also if a signal handler raises meanwhile.
        """
        woken: SimpleQueue[None] = SimpleQueue()
        interrupt: BaseException | None = None
        was_notified = False
        try:
            self._waiters[woken] = woken
            self.release()
            with contextlib.suppress(Empty):
                woken.get(timeout=timeout_s)
                was_notified = True
        except BaseException as error:
            interrupt = error
        while True:
            try:
                if self._is_own():
                    break
                self.acquire()
            except BaseException as error:
                interrupt = error
        self._waiters.pop(woken, None)
        if interrupt is not None:
            raise interrupt
        return was_notified

    def wait_for(self, predicate: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Wait until `predicate` says so, at most for so long; what it says at last."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while not (found := predicate()):
            left_s = None if deadline_s is None else deadline_s - time.monotonic()
            if left_s is not None and left_s <= 0:
                break
            self.wait(left_s)
        return found

    def notify(self, count: int = 1) -> int:
        """Wake up to `count` of those that wait, who waits longest first; the caller has the lock."""
        waiters = list(self._waiters.values())[:count]
        for waiter in waiters:
            waiter.put(None)  # first: one that is woken and still in the table takes itself out
            self._waiters.pop(waiter, None)
        return len(waiters)

    def notify_all(self) -> int:
        """Wake all that wait."""
        return self.notify(len(self._waiters))


class Event:
    """As threading.Event. No lock at all: each step is one operation on a dict or a queue."""

    def __init__(self) -> None:
        self._is_set = False
        self._waiters: dict[SimpleQueue[None], SimpleQueue[None]] = {}

    def is_set(self) -> bool:
        """Whether it is set."""
        return self._is_set

    def set(self) -> None:
        """Set it, and wake all that wait. If that is interrupted, set it again."""
        self._is_set = True
        for waiter in list(self._waiters):
            waiter.put(None)

    def clear(self) -> None:
        """Take it back."""
        self._is_set = False

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it is set, at most for so long; whether it is."""
        if self._is_set:
            return True
        woken: SimpleQueue[None] = SimpleQueue()
        self._waiters[woken] = woken
        try:
            if not self._is_set:  # looked at once more: `set` looks at these two the other way round
                with contextlib.suppress(Empty):
                    woken.get(timeout=timeout_s)
        finally:
            self._waiters.pop(woken, None)
        return self._is_set
