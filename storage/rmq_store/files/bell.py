"""How a waiter learns that a lock is free again: two words in shared memory, and futex(2).

The lock itself stays the kernel's record lock, which a killed holder frees. The bell only spares the waiter a guess:
a holder that dies does not ring, so every sleep is short. Where the kernel's number for futex is not known, a waiter
just sleeps.

    word 0    1: somebody waits, so whoever lets the lock go must ring
    word 1    pid of the holder; 0: nobody, or a holder without a bell

Order of a waiter: announce, try the lock once more, only then sleep. A holder looks at word 0 after it has let go.
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
_SLEEP_S = 1e-3


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


_syscall = ctypes.CDLL(None).syscall
_syscall.restype = ctypes.c_long
_syscall.argtypes = [ctypes.c_long, ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.POINTER(_Timespec)]


class Bell:
    """`words`: two int64 words of a shared map, which they keep alive. `wake_all`: all waiters may go on at once."""

    def __init__(self, words: np.ndarray, *, wake_all: bool) -> None:
        self._words = words
        self._address = words.ctypes.data
        self._wake = _ALL if wake_all else 1

    @property
    def holder(self) -> int:
        """Pid of the holder, 0 if not known."""
        return int(self._words[1])

    def taken(self, pid: int) -> None:
        """Write down who holds the lock; 0 before it lets go."""
        self._words[1] = pid

    def announce(self) -> None:
        """Say that somebody waits; the lock must be tried after this and before `wait`."""
        self._words[0] = 1

    def wait(self, timeout_s: float) -> None:
        """Sleep until it rings, not longer than `timeout_s`."""
        if _FUTEX is None:
            time.sleep(min(timeout_s, _SLEEP_S))
            return
        limit = _Timespec(int(timeout_s), int(timeout_s % 1 * 1e9))
        _syscall(_FUTEX, self._address, _WAIT, 1, limit)

    def ring(self) -> None:
        """After the lock was let go: wake who announced itself."""
        if self._words[0]:
            self._words[0] = 0
            if _FUTEX is not None:
                _syscall(_FUTEX, self._address, _WAKE, self._wake, None)
