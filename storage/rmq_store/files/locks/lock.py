"""Record locks that exclude other processes, Java brokers included.

The kernel knows two kinds of record locks on byte ranges of a file, and they exclude each other:

    POSIX locks (F_SETLK)    what Java's FileChannel.tryLock takes; owned by a process; gone as soon as that process
                             closes *any* descriptor of the file
    OFD locks (F_OFD_SETLK)  what we take; owned by an open file description; gone when its last descriptor is closed,
                             so a killed holder frees them at once

RocketMQ holds byte 0 of `<root>/lock` exclusively while a broker runs (DefaultMessageStore#start: tryLock(0, 1)). Our
processes hold it shared, so a broker and our processes exclude each other. Layout of a lock file:

    0-3    "lock", written by Java; never read
    16-23  pid of the newest holder of byte 0, decimal, padded with spaces; meaningful only while byte 0 is locked,
           because the kernel names no process for OFD locks
    24-31  time of the last poll by a process that waits for byte 0 without a futex; see `pace`

Locks are never broken: a dead holder has none, and a live one may still write.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from time import sleep
from types import FrameType, TracebackType
from typing import Literal, NamedTuple

from rmq_store.errors import StoreLockedError, UsageError
from rmq_store.files.durable import open_nofollow, translate
from rmq_store.files.locks.futex import Futex
from rmq_store.files.locks.pace import FIRST_S, Deadline, Pace
from rmq_store.files.rooted import as_path
from rmq_store.threads import Claim

LockKind = Literal["free", "shared", "exclusive"]

_Holder = tuple[int, FrameType | None]
"""Who has the claim: the thread, and the function whose `with` block it is; None: no block's."""

# struct flock of 64-bit Linux: l_type, l_whence, 4 bytes of padding, l_start, l_len, l_pid, 4 bytes of padding.
_FLOCK = struct.Struct("@hhqqi4x")
assert _FLOCK.size == 32

_PID_START = 16
_PID_LENGTH = 8

_LAST_POLL_START = 24
_LAST_POLL = struct.Struct("<q")

# Between two looks for another thread's block of this process that is to end.
_THREAD_WAIT_S = 5e-3


class LockState(NamedTuple):
    """The lock that another process holds on the byte, and the pid of one holder (None: free, or unknown)."""

    kind: LockKind
    pid: int | None


def process_is_alive(pid: int) -> bool:
    """True if a process with this pid (> 0) exists. It need not be the one that wrote the pid down."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # It exists and belongs to another user.
    return True


def process_text(pid: int | None) -> str:
    """Text that names the holder of a lock, also if the holder is unknown."""
    if pid == os.getpid():
        return "another thread of this process"
    return "another process" if pid is None else f"process {pid}"


class OfdLock:
    """A lock on one byte of a file. One object is one holder, whichever thread uses it.

    An object cannot take a lock that it holds already: `try_*` return False, `acquire_exclusive` waits. So two threads
    that share an object exclude each other, although the kernel would not separate them. Any thread may release a lock
    that was taken without a `with` block.

    The file is created (0600) when a lock is first taken, never by `who`. A forked child holds nothing: its copy of the
    object is free, and opens the file anew when it takes the lock itself.
    """

    makes_file = True
    """Whether a file that is not there, or no more, is made. False: FileNotFoundError."""

    futex: Futex | None = None
    """Wakes who waits for the lock; without one, waiters look again ever more rarely."""

    def __init__(self, path: str | Path, *, byte: int = 0) -> None:
        if sys.platform != "linux" or sys.maxsize < 1 << 32:
            raise UsageError("stores can be shared between processes on 64-bit Linux only")
        self.path = as_path(path)
        self.byte = byte
        self._requests = {
            kind: _FLOCK.pack(kind, os.SEEK_SET, byte, 1, 0) for kind in (fcntl.F_RDLCK, fcntl.F_WRLCK, fcntl.F_UNLCK)
        }
        self._fd = -1
        self._kind: LockKind = "free"
        # Held by the thread of this process that is taking the lock, or has it.
        self._claim: Claim[_Holder] = Claim()
        _locks.add(self)

    @property
    def claim(self) -> Claim[_Holder]:
        """Not empty while a thread of this process takes the lock, or has it. A forked child gets another one.

        Code that keeps the interpreter's lock from a look at it to the end may use the descriptor for itself
        (native/lone_append.c): the object is free before and after.
        """
        return self._claim

    @property
    def held(self) -> LockKind:
        """The state of this object; "free" in a forked child."""
        return self._kind

    def is_current(self) -> bool:
        """True if this object holds a lock that other processes can see: the path still names the locked file."""
        if self._kind == "free":
            return False
        try:
            return os.path.samestat(os.fstat(self._fd), self.path.lstat())
        except FileNotFoundError:
            return False

    def try_shared(self) -> bool:
        """Take the lock together with other shared holders. False if anybody holds it exclusively, or this object holds
        it.
        """
        return self._try("shared")

    def try_exclusive(self) -> bool:
        """Take the lock exclusively; False if anybody holds it."""
        return self._try("exclusive")

    def acquire_exclusive(
        self, timeout_ms: int, unless: Callable[[], bool] | None = None, own: _Holder | None = None
    ) -> bool:
        """Wait for the lock and take it exclusively. False, without the lock, as soon as `unless` says that it is not
        needed.

        `own`: the block that the lock belongs to; None: no block.

        Raises:
            StoreLockedError: another holder still had it after `timeout_ms`; names that holder's pid if it is known.
        """
        if self._try("exclusive", own):
            return True
        deadline, sleep_s = Deadline(timeout_ms), 0.0
        pace = Pace() if self.futex is not None else Pace(FIRST_S)
        is_due = True
        while True:
            futex = self.futex
            if futex is not None:
                futex.announce()
            if unless is not None and unless():
                return False
            left_s = deadline.left_s(sleep_s)
            if (is_due or left_s <= 0) and self._try("exclusive", own):
                return True
            if left_s <= 0:
                raise self._timed_out(timeout_ms)
            sleep_s = min(pace.sleep_s(), left_s)
            if futex is not None:
                is_due = futex.wait(sleep_s) or pace.is_due(futex)
            else:
                sleep(sleep_s)
                is_due = pace.is_due(self)

    @property
    def last_poll_ns(self) -> int:
        """Time of the last poll by a waiter; see `pace.Shared`."""
        found = os.pread(self._fd, _LAST_POLL.size, _LAST_POLL_START) if self._fd >= 0 and self.byte == 0 else b""
        return int(_LAST_POLL.unpack(found)[0]) if len(found) == _LAST_POLL.size else 0

    @last_poll_ns.setter
    def last_poll_ns(self, value: int) -> None:
        # As the pid, a courtesy. Other bytes of the file have locks of other purposes.
        if self._fd >= 0 and self.byte == 0:
            with contextlib.suppress(OSError):
                os.pwrite(self._fd, _LAST_POLL.pack(value), _LAST_POLL_START)

    def exclusive(self, timeout_ms: int, unless: Callable[[], bool] | None = None) -> Exclusive:
        """Hold the lock exclusively for a `with` block. The block gets whether the lock is held; as
        `acquire_exclusive`. Blocks do not nest: UsageError if a signal handler begins one in the middle of another
        block of its thread.

        An exception from a signal handler (Ctrl-C) may come on entry or exit, where no `finally` sees it. A lock that a
        thread still holds after that is released when the thread takes it again, or by `release_left`.
        """
        return Exclusive(self, timeout_ms, unless)

    def exclusive_if_free(self) -> Exclusive:
        """As `exclusive`, without waiting: the block gets False if another holder has the lock."""
        return Exclusive(self, 0, lambda: True)

    def release_left(self) -> bool:
        """Release a lock that an interrupted block of this thread left held. False, and nothing happens, if that block
        has not ended: a signal handler has interrupted it.

        The lock is *abandoned* if the function that took it has left the stack, otherwise *in use*. A flag could not
        tell: the interrupt that leaves the lock held would leave the flag set too.
        """
        holder = self._claim.holder()
        if holder is not None and holder[0] == threading.get_ident():
            if is_running(holder[1]):
                return False
            self.release()
        return True

    def refuse_reentry(self) -> None:
        """As `release_left`, but raises UsageError in the middle of a block of this thread."""
        if self._claim and not self.release_left():
            raise reentered(self.path)

    def try_upgrade(self) -> bool:
        """Turn this shared lock into an exclusive one. False, and still shared, if there are other holders.
        FileNotFoundError: the file was deleted since.
        """
        assert self._kind == "shared"
        return self._take("exclusive")

    def downgrade(self) -> None:
        """Turn this exclusive lock into a shared one, without a moment in which it is free."""
        assert self._kind == "exclusive"
        taken = self._take("shared")
        assert taken

    def release(self) -> None:
        """Release the lock, whichever thread took it. Does nothing if this object holds none."""
        if self._claim:
            # Unlocked by name, not by closing: a child that is being forked right now may have the description too.
            held = self._kind == "exclusive"
            if held and self.futex is not None:
                self.futex.taken(0)
            if self._fd >= 0:
                self._set(fcntl.F_UNLCK)
            self._kind = "free"
            self._claim.give_up()
            if held and self.futex is not None:
                self.futex.wake()

    def close(self, timeout_ms: int = 0) -> None:
        """Release the lock and close the file; the object can be used again. Waits for a block of another thread. The
        function that owns the block may call this after the block: a lock that an interrupt left held is released.

        Raises:
            StoreLockedError: that block did not end within `timeout_ms`; it keeps the lock, and the file is open.
            UsageError: as `exclusive`; nothing was released.
        """
        left = self._claim.holder()
        if left is not None and left[1] is sys._getframe(1):
            self.release()  # a signal handler has a frame of its own
        self.refuse_reentry()
        own: _Holder = threading.get_ident(), sys._getframe()
        deadline, sleep_s = Deadline(timeout_ms), 0.0
        try:
            while (holder := self._claim.take(own)) is not own:
                if holder[1] is None:
                    self.release()
                elif deadline.left_s(sleep_s) <= 0:
                    raise self._timed_out(timeout_ms)
                else:
                    sleep_s = _THREAD_WAIT_S
                    sleep(sleep_s)
            with _opening:
                fd, self._fd = self._fd, -1
            if fd >= 0:
                os.close(fd)
        finally:
            if self._claim.holder() is own:
                self._claim.give_up()

    def who(self) -> LockState:
        """Query the holder of the byte, this object included. Changes nothing, also if the file does not exist."""
        kind, pid, text = self._query()
        if kind == fcntl.F_UNLCK:
            return LockState("free", None)
        if pid <= 0 and self.futex is not None:
            pid = _alive(self.futex.holder)
        if pid <= 0 and self.byte == 0:
            pid = _parse_pid(text)
        return LockState("shared" if kind == fcntl.F_RDLCK else "exclusive", pid if pid > 0 else None)

    def posix_holder(self) -> int | None:
        """Pid of a process that holds the byte with a POSIX lock, so not one of ours; None if there is none."""
        kind, pid, _ = self._query()
        return pid if kind != fcntl.F_UNLCK and pid > 0 else None

    def _query(self) -> tuple[int, int, bytes]:
        """The kind of lock that stands in the way of an exclusive one, the kernel's pid for it (-1 for OFD locks), and
        the pid that is written in the file.
        """
        try:
            fd = open_nofollow(self.path, os.O_RDONLY)
        except FileNotFoundError:
            return fcntl.F_UNLCK, 0, b""
        try:
            # Asked through a description of its own: the kernel does not report a holder to itself.
            request = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, self.byte, 1, 0)
            kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_OFD_GETLK, request))
            return kind, pid, os.pread(fd, _PID_LENGTH, _PID_START)
        finally:
            os.close(fd)

    def _try(self, kind: LockKind, own: _Holder | None = None) -> bool:
        own = own or (threading.get_ident(), None)
        taken = False
        try:
            if self._claim.take(own) is own:
                taken = self._take(kind)
        finally:
            if not taken and self._claim.holder() is own:
                self.release()
        return taken

    def _take(self, kind: LockKind) -> bool:
        """Take or convert the lock; the caller has the claim."""
        while True:
            if self._fd < 0:
                self._open()
            if not self._set(fcntl.F_RDLCK if kind == "shared" else fcntl.F_WRLCK):
                return False
            if os.fstat(self._fd).st_nlink:
                break
            if self._kind != "free" or not self.makes_file:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self.path))
            # The file was unlinked after we had opened it: a lock on it would exclude nobody who opens it now.
            with _opening:
                os.close(self._fd)
                self._fd = -1
        self._kind = kind
        if self.futex is not None:
            self.futex.taken(_own_pid)
        elif self.byte == 0:
            # A courtesy to who waits; a full disk must not make the lock unusable.
            with contextlib.suppress(OSError):
                os.pwrite(self._fd, b"%*d" % (_PID_LENGTH, os.getpid()), _PID_START)
        return True

    def _open(self) -> None:
        with _opening:
            try:
                self._fd = open_nofollow(self.path, os.O_RDWR | (os.O_CREAT if self.makes_file else 0))
            except FileNotFoundError:
                raise
            except OSError as error:
                raise translate(error, self.path) from error

    def _set(self, kind: int) -> bool:
        try:
            fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, self._requests[kind])
        except (BlockingIOError, PermissionError):  # EAGAIN or EACCES: both mean "held by somebody"
            return False
        except OSError as error:
            raise UsageError(f"{self.path}: this file system offers no record locks: {error.strerror}") from error
        return True

    def _timed_out(self, timeout_ms: int) -> StoreLockedError:
        pid = self.who().pid
        return StoreLockedError(f"{self.path}: not free within {timeout_ms} ms, held by {process_text(pid)}", pid)

    def _forget(self) -> None:
        """In a forked child: drop the parent's description, which goes on holding the parent's lock."""
        fd, self._fd = self._fd, -1
        self._kind = "free"
        self._claim = Claim()
        if fd >= 0:
            os.close(fd)


class Exclusive:
    """The `with` block of `OfdLock.exclusive`."""

    __slots__ = ("_holder", "_lock", "_timeout_ms", "_unless")

    def __init__(self, lock: OfdLock, timeout_ms: int, unless: Callable[[], bool] | None) -> None:
        self._lock = lock
        self._timeout_ms = timeout_ms
        self._unless = unless
        self._holder: _Holder | None = None

    def __enter__(self) -> bool:
        return self.enter(sys._getframe(1))

    def enter(self, function: FrameType) -> bool:
        """Begin the block, which `function` ends by `__exit__`."""
        lock = self._lock
        if lock._claim:
            lock.refuse_reentry()
        self._holder = own = threading.get_ident(), function
        try:
            return lock.acquire_exclusive(self._timeout_ms, self._unless, own)
        except BaseException:
            self.__exit__(None, None, None)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        lock = self._lock
        if lock._claim.holder() is self._holder:  # the block may never have had it
            lock.release()


def reentered(what: object) -> UsageError:
    """The error for a signal handler whose call would enter a block that its own thread has not left."""
    return UsageError(
        f"{what}: called by a signal handler, while the same thread is inside an operation under this lock: "
        "nothing was done. Call it after the handler has returned"
    )


def is_running(function: FrameType | None) -> bool:
    """True if this thread is executing that call of a function. Not for generators: a suspended one is not on the
    stack.
    """
    caller = sys._getframe() if function is not None else None
    while caller is not None and caller is not function:
        caller = caller.f_back
    return caller is not None


def _parse_pid(text: bytes) -> int:
    """Return the pid in a lock file; 0 if there is none, or its process is gone."""
    digits = text.strip(b" ")
    return _alive(int(digits)) if digits.isdigit() else 0


def _alive(pid: int) -> int:
    return pid if pid > 0 and process_is_alive(pid) else 0


# Held while a descriptor is opened and noted down, and during fork: a child must know every descriptor it inherits.
# Not for one thread alone: a signal handler may take another lock, or fork, in the middle of that.
_opening = threading.RLock()
_locks: weakref.WeakSet[OfdLock] = weakref.WeakSet()
_own_pid = os.getpid()


def _forget_in_child() -> None:
    global _opening, _own_pid
    _opening = threading.RLock()
    _own_pid = os.getpid()
    for lock in list(_locks):
        lock._forget()


os.register_at_fork(
    before=lambda: _opening.acquire(),
    after_in_parent=lambda: _opening.release(),
    after_in_child=_forget_in_child,
)


def lock_shared_quietly(fd: int) -> None:
    """Share byte 0 of an open file with all other shared holders, until the descriptor is closed.

    Nothing happens if it is held exclusively, or the file system has no record locks: the caller reads anyway.
    """
    with contextlib.suppress(OSError):
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, 0, 1, 0))


def unlock_quietly(fd: int) -> None:
    """Release the lock that `lock_shared_quietly` took."""
    with contextlib.suppress(OSError):
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, 0, 1, 0))
