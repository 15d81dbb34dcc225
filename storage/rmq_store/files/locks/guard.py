"""Locks between threads of one process that stay usable when a signal handler interrupts the main thread anywhere.

    Guard        for short steps; refuses a signal handler that interrupts a step of its own thread and wants to enter
    Condition    as threading.Condition
    Event        as threading.Event

The standard classes do not survive that. Their `__enter__` and `__exit__` are Python functions, and Python runs signal
handlers at the first instruction of a function and after each call. An exception raised there (Ctrl-C) leaves an inner
lock taken for ever. A handler that calls `set` in the middle of `wait` waits for its own thread. Here only C functions
take and release a lock: they are themselves the `__enter__` and `__exit__` of the block.
"""

from __future__ import annotations

import _thread
import contextlib
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Self

from rmq_store import real_time
from rmq_store.errors import UsageError


class _Lock(_thread.RLock):  # type: ignore[misc]  # final for the type checker only
    """Its `with` block is C code alone."""

    def _is_own(self) -> bool:
        return bool(self._is_owned())  # type: ignore[attr-defined]

    def entered(self) -> Self:
        """Hold the lock for the block of a `with` statement.

        Raises:
            UsageError: a signal handler has interrupted a block of its own thread; nothing was done.
        """
        if self._is_own():
            raise UsageError(
                "called by a signal handler, while the same thread is inside the same operation: nothing was done. "
                "Call it after the handler has returned"
            )
        return self


class Guard(_Lock):  # type: ignore[misc]
    """A lock for steps that do not call back; `with guard.entered():`."""


class Condition(_Lock):  # type: ignore[misc]
    """As threading.Condition, with a lock that its thread may take again. `notify` returns how many waiters it woke."""

    def __init__(self) -> None:
        super().__init__()
        self._waiters: dict[object, SimpleQueue[None]] = {}

    @property
    def waiting(self) -> int:
        """Number of waiters that were not notified yet."""
        return len(self._waiters)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Release the lock and wait for a notification, at most for so long; False if none came in time. The lock is
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
        """Wait until `predicate` is true, at most for so long. Returns the predicate's last value."""
        deadline_s = None if timeout_s is None else real_time.monotonic() + timeout_s
        while not (found := predicate()):
            left_s = None if deadline_s is None else deadline_s - real_time.monotonic()
            if left_s is not None and left_s <= 0:
                break
            self.wait(left_s)
        return found

    def notify(self, count: int = 1) -> int:
        """Wake up to `count` waiters, the longest waiting first. The caller holds the lock."""
        waiters = list(self._waiters.values())[:count]
        for waiter in waiters:
            waiter.put(None)  # first: one that is woken and still in the table takes itself out
            self._waiters.pop(waiter, None)
        return len(waiters)

    def notify_all(self) -> int:
        """Wake all waiters."""
        return self.notify(len(self._waiters))


class Event:
    """As threading.Event, without a lock: each step is one operation on a dict or a queue."""

    def __init__(self) -> None:
        self._is_set = False
        self._waiters: dict[SimpleQueue[None], SimpleQueue[None]] = {}

    def is_set(self) -> bool:
        """True if the event is set."""
        return self._is_set

    def set(self) -> None:
        """Set the event and wake all waiters. After an interrupt, call it again."""
        self._is_set = True
        for waiter in list(self._waiters):
            waiter.put(None)

    def clear(self) -> None:
        """Reset the event to unset."""
        self._is_set = False

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the event is set, at most for so long. True if it is set."""
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
