"""The clocks of the engine: functions without arguments that return milliseconds since 1970-01-01 UTC.

A clock file lets a test move the time of every process that uses a store, Spark's workers included: 8 bytes, int64
little-endian, milliseconds, mapped by all of them. It never goes backwards. RocketMQ has no such file.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path

from rmq_store.arguments import checked, checked_methods
from rmq_store.errors import CorruptConfigError, UsageError
from rmq_store.files.durable import open_nofollow, write_atomically
from rmq_store.files.locks.lock import OfdLock
from rmq_store.files.locks.locked_call import call_locked
from rmq_store.files.mapping import map_file

_WORD = struct.Struct("<q")
_LOCK_TIMEOUT_MS = 5000
assert _WORD.size == 8
assert sys.byteorder == "little"  # The mapped word is read and written natively, as one aligned store.


def system_clock() -> int:
    """Wall-clock time in ms; may step backwards when the machine's clock is set."""
    return time.time_ns() // 1_000_000


@checked_methods(constructor=True)
class ClockFile:
    """A clock that stands still until a process moves it forward. Call it to read it.

    Raises (when constructed):
        FileNotFoundError: no clock file at `path`; `create` makes one.
        CorruptConfigError: not 8 bytes, or a negative time.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        fd = open_nofollow(self.path, os.O_RDONLY)
        try:
            size_bytes = os.fstat(fd).st_size
            if size_bytes != _WORD.size:
                raise CorruptConfigError(str(self.path), 0, f"a clock file has 8 bytes, not {size_bytes}")
            # Stays mapped as long as this object lives; a read costs no system call.
            self._word = memoryview(map_file(fd, _WORD.size, writable=False)).cast("q")
        finally:
            os.close(fd)
        if self._word[0] < 0:
            raise CorruptConfigError(str(self.path), 0, f"negative time {self._word[0]}")

    @classmethod
    def create(cls, path: str | Path, time_ms: int) -> ClockFile:
        """Create the file, standing at `time_ms`. An existing one is an error: a clock never goes backwards.

        Raises:
            UsageError: the file exists, or the time is negative or beyond 63 bits.
        """
        _check_time(time_ms)
        if Path(path).exists():
            raise UsageError(f"{path}: this clock exists already")
        write_atomically(path, _WORD.pack(time_ms))
        return cls(path)

    def __call__(self) -> int:
        """Return the time in ms."""
        return self._word[0]

    def advance(self, duration_ms: int) -> int:
        """Move the clock forward for every process and return the new time in ms.

        Raises:
            UsageError: a negative duration, or a result beyond 63 bits.
            StoreLockedError: another process has been moving the clock for seconds.
        """
        if duration_ms < 0:
            raise UsageError(f"a clock never goes backwards: {duration_ms} ms")
        return self._move(lambda now_ms: now_ms + duration_ms)

    def set(self, time_ms: int) -> int:
        """Set the clock for every process and return `time_ms`; raises as `advance`, also for an earlier time."""
        return self._move(lambda now_ms: time_ms)

    def _move(self, target: Callable[[int], int]) -> int:
        def move() -> int:
            now_ms = self()
            time_ms = target(now_ms)
            _check_time(time_ms)
            if time_ms < now_ms:
                raise UsageError(f"a clock never goes backwards: {time_ms} ms is before {now_ms} ms")
            fd = open_nofollow(self.path, os.O_RDWR)
            try:
                with mmap.mmap(fd, _WORD.size) as mapped, memoryview(mapped) as view, view.cast("q") as word:
                    word[0] = time_ms
            finally:
                os.close(fd)
            return time_ms

        # Byte 1: for byte 0 the lock would write a pid behind the 8 bytes.
        return call_locked(OfdLock(self.path, byte=1), _LOCK_TIMEOUT_MS, move)


@checked
def store_clock(root: str | Path) -> Callable[[], int]:
    """The clock of the store at `root`: the clock file `pyrmq/clock` of a store made for tests, else the system's."""
    path = Path(root) / "pyrmq" / "clock"
    return ClockFile(path) if path.exists() else system_clock


def _check_time(time_ms: int) -> None:
    if not 0 <= time_ms < 1 << 63:
        raise UsageError(f"{time_ms} is no time in ms since 1970")
