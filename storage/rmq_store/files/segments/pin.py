"""Pins of segments. A pin is a shared lock on byte 0 of a segment's file; retention must get that lock exclusively
before it unlinks the file.

A reader takes the lock on every segment that it has open (`OpenFile.pin`). A `Pin` takes it for a range of the log
that will be read later, perhaps in another process. The locks are open-file-description locks: they end with the
descriptor, so a killed reader pins nothing. A process that has mapped a file can still read it after it was unlinked.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from rmq_store.arguments import checked_methods
from rmq_store.files import durable
from rmq_store.files.segments.segments import SegmentRun

# struct flock of 64-bit Linux, see `files.lock`.
_FLOCK = struct.Struct("@hhqqi4x")

# A cleaner goes from the oldest segment on and stops at the first that is held, so these keep all behind them, too. Not
# one alone: when it is taken away by force, the next ones are held for some time yet.
_FILES_MAX = 16


@checked_methods(constructor=True)
class Pin:
    """Keeps the segments of a range of the log from being deleted, until `release` or the end of the `with` block.

    `start` is the first pinned byte: later than the requested one if retention was faster. When the patience of
    retention ends (destroyMapedFileIntervalForcibly), it deletes the segments nevertheless. A segment that is mapped by
    then can be read to its end.
    """

    def __init__(self, segments: SegmentRun, start: int, end: int) -> None:
        self._fds: list[int] = []
        self.start = end
        for base in segments.bases():
            if base + segments.size_bytes <= start or base >= end or len(self._fds) == _FILES_MAX:
                continue
            fd = _pinned(segments.path(base))
            if fd is None:  # deleted while we looked; what we took before lies below it
                self.release()
                continue
            if not self._fds:
                self.start = max(start, base)
            self._fds.append(fd)

    def release(self) -> None:
        """Unpin the segments; can be repeated."""
        while self._fds:
            fd = self._fds.pop()
            # Unlocked by name: a process that was forked meanwhile has the description, too.
            _lock(fd, fcntl.F_UNLCK)
            os.close(fd)

    def __enter__(self) -> Pin:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def __del__(self) -> None:
        self.release()


@contextlib.contextmanager
def alone(path: Path) -> Iterator[bool]:
    """Yield True if no process has pinned the file. If so, none can pin it for the length of the `with` block.

    A missing file counts as not pinned. OSError as open(2).
    """
    try:
        fd = durable.open_nofollow(path, os.O_RDWR)
    except FileNotFoundError:
        yield True
        return
    try:
        yield _lock(fd, fcntl.F_WRLCK)
    finally:
        os.close(fd)


def is_pinned(path: Path) -> bool:
    """True if a process pins the file at this moment."""
    try:
        fd = durable.open_nofollow(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        request = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        return bool(_FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_OFD_GETLK, request))[0] != fcntl.F_UNLCK)
    finally:
        os.close(fd)


def _pinned(path: Path) -> int | None:
    """A descriptor that keeps the file; None if a cleaner has deleted it, or is about to."""
    try:
        fd = durable.open_nofollow(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    if _lock(fd, fcntl.F_RDLCK) and os.fstat(fd).st_nlink:
        return fd
    os.close(fd)
    return None


def _lock(fd: int, kind: int) -> bool:
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, 0, 1, 0))
    except (BlockingIOError, PermissionError):  # EAGAIN or EACCES: both mean "held by somebody"
        return False
    return True
