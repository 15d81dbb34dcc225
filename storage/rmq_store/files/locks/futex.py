"""How a waiter learns that a lock is free again: three words in shared memory, and futex(2).

The lock itself stays the kernel's record lock, which a killed holder frees. The bell only spares the waiters a guess: a
holder that dies does not ring, so they look by themselves, too, at a `Pace`. Where the kernel's number for futex is not
known, that is all.

    word 0    1: somebody waits, so whoever lets the lock go must ring
    word 1    pid of the holder; 0: nobody, or a holder without a futex
    word 2    when a waiter looked last by itself (`time.monotonic_ns`); 0: never

Order of a waiter: announce, try the lock once more, only then sleep. A holder looks at word 0 after it has let go. Who
was woken announces itself before it tries, and so rings for the next one when it lets go.
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
    """`words` and `looked`: two int64 words of a shared map, and the third one, which they keep alive. `wake_all`: all
    waiters may go on at once.
    """

    def __init__(self, words: np.ndarray, looked: np.ndarray, *, wake_all: bool) -> None:
        self._words = words
        self._looked = looked
        self._address = words.ctypes.data
        self._wake_count = _ALL if wake_all else 1

    @property
    def holder(self) -> int:
        """Pid of the holder, 0 if not known."""
        return int(self._words[1])

    @property
    def looked_ns(self) -> int:
        """See `pace.Shared`."""
        return int(self._looked[0])

    @looked_ns.setter
    def looked_ns(self, value: int) -> None:
        self._looked[0] = value

    def taken(self, pid: int) -> None:
        """Write down who holds the lock; 0 before it lets go."""
        self._words[1] = pid

    def announce(self) -> None:
        """Say that somebody waits; the lock must be tried after this and before `wait`."""
        self._words[0] = 1

    def wait(self, timeout_s: float) -> bool:
        """Sleep until it rings, not longer than `timeout_s`; whether it rang, for this waiter or before it slept."""
        if _FUTEX is None:
            time.sleep(timeout_s)
            return False
        limit = _Timespec(int(timeout_s), int(timeout_s % 1 * 1e9))
        return bool(_syscall(_FUTEX, self._address, _WAIT, 1, limit) == 0 or not self._words[0])

    def wake(self, *, everybody: bool = False) -> None:
        """After the lock was let go: wake who announced itself. `everybody`: all of them, this time."""
        if self._words[0]:
            self._words[0] = 0
            if _FUTEX is not None:
                _syscall(_FUTEX, self._address, _WAKE, _ALL if everybody else self._wake_count, None)
