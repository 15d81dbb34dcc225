"""Notifies waiters of a lock that it is free: three words in shared memory, and futex(2).

The lock itself stays the kernel's record lock, which is freed when its holder is killed. The futex only makes waiters
faster. A killed holder does not wake them, so they also try the lock from time to time (`Pace`). If the futex system
call's number is unknown for the machine, they only do that.

    word 0    1: at least one process waits, so the holder must wake it on release
    word 1    pid of the holder; 0: nobody, or a holder without a futex
    word 2    time of a waiter's last own try (`real_time.monotonic_ns`); 0: never

A waiter announces itself, tries the lock once more, and only then sleeps. A holder checks word 0 after it has released
the lock. (The kernel's own lock around each lock and unlock keeps the order of these steps on every processor.) A
waiter that was woken announces itself before it tries, and so wakes the next one when it releases.
"""

from __future__ import annotations

import ctypes
import os
import time

import numpy as np

_FUTEX_NUMBERS = {"x86_64": 202, "aarch64": 98, "riscv64": 98}
_FUTEX = _FUTEX_NUMBERS.get(os.uname().machine)
_WAIT, _WAKE = 0, 1  # not the private kind: the waiters are in other processes, too
_ALL = (1 << 31) - 1


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


_syscall = ctypes.CDLL(None).syscall
_syscall.restype = ctypes.c_long
_syscall.argtypes = [ctypes.c_long, ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.POINTER(_Timespec)]


class Futex:
    """`words` (two int64) and `last_poll` (the third word) are views of a shared map; they keep the map alive.
    `wake_all`: all waiters may continue at once, so a release wakes all of them.
    """

    def __init__(self, words: np.ndarray, last_poll: np.ndarray, *, wake_all: bool) -> None:
        self._words = words
        self._last_poll = last_poll
        self._address = words.ctypes.data
        self._wake_count = _ALL if wake_all else 1

    @property
    def holder(self) -> int:
        """Pid of the holder, 0 if not known."""
        return int(self._words[1])

    @property
    def last_poll_ns(self) -> int:
        """Time of the last poll by a waiter; see `pace.Shared`."""
        return int(self._last_poll[0])

    @last_poll_ns.setter
    def last_poll_ns(self, value: int) -> None:
        self._last_poll[0] = value

    def taken(self, pid: int) -> None:
        """Save the pid of the holder; 0 before it releases the lock."""
        self._words[1] = pid

    def announce(self) -> None:
        """Announce a waiter. It must try the lock after this, and before `wait`."""
        self._words[0] = 1

    def wait(self, timeout_s: float) -> bool:
        """Sleep until woken, at most `timeout_s`. True if a holder woke this waiter, or released before it slept."""
        if _FUTEX is None:
            time.sleep(timeout_s)
            return False
        limit = _Timespec(int(timeout_s), int(timeout_s % 1 * 1e9))
        return bool(_syscall(_FUTEX, self._address, _WAIT, 1, limit) == 0 or not self._words[0])

    def wake(self, *, everybody: bool = False) -> None:
        """Wake announced waiters after the lock was released. `everybody`: all of them, also without `wake_all`."""
        if self._words[0]:
            self._words[0] = 0
            if _FUTEX is not None:
                _syscall(_FUTEX, self._address, _WAKE, _ALL if everybody else self._wake_count, None)
