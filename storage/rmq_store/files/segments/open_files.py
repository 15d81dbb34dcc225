"""Open files of runs (`segments`): a descriptor and a map each, and the table of those that a store keeps open."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from pathlib import Path

import pyarrow as pa

from rmq_store import real_time
from rmq_store.errors import CorruptionError
from rmq_store.files import durable
from rmq_store.files.locks.lock import lock_shared_quietly, unlock_quietly
from rmq_store.files.mapping import map_file
from rmq_store.files.segments.link_count import LinkCount

# Open files, and maps, that one store keeps. vm.max_map_count is 65,530 and `ulimit -n` often 1,024 for everybody.
OPEN_FILES_MAX = 256

# Between two searches for open files that are gone, when another one is opened.
_SEARCH_INTERVAL_S = 1.0

_libc = ctypes.CDLL(None)
_libc.sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
_SYNC_FILE_RANGE_WRITE = 2


class OpenFile:
    """One file of a run: a descriptor and, from the first read on, a read-only map of the whole file.

    Arrays and buffers over the map keep it alive after this object is gone. The descriptor is closed with the object,
    so that a thread which still uses it never sees it reused.
    """

    def __init__(self, path: str | Path, size_bytes: int, *, writable: bool) -> None:
        self.path = str(path)
        self.size_bytes = size_bytes
        self.fd = durable.open_nofollow(path, os.O_RDWR if writable else os.O_RDONLY)
        actual = os.fstat(self.fd).st_size
        if actual != size_bytes:
            raise CorruptionError(self.path, actual, f"the file has {actual} bytes, not {size_bytes}")
        self._links = LinkCount(self.fd)
        self._map: mmap.mmap | None = None
        self._pinned = False
        self.is_used = False
        """Whether somebody was given it since `OpenFiles` last looked for one to forget."""
        self.view: object = None
        """What its reader has made of the map, for the next look; nothing in it may refer to this object."""

    def __del__(self) -> None:
        fd = getattr(self, "fd", -1)
        if fd >= 0:
            os.close(fd)

    def exists(self) -> bool:
        """True if the file has not been unlinked since it was opened. Another file may have its name now."""
        return self._links.get() > 0

    @property
    def map(self) -> mmap.mmap:
        """The whole file, read-only. StoreFailedError."""
        if self._map is None:
            with durable.typed(self.path):
                self._map = map_file(self.fd, self.size_bytes, writable=False)
        return self._map

    def read(self, position: int, size_bytes: int) -> bytes:
        """Read bytes that may lie in a hole. Through the map, some file systems (tmpfs) would allocate a page for the
        hole, and kill the process if none is left. StoreFailedError.
        """
        try:
            return os.pread(self.fd, size_bytes, position)
        except OSError as error:
            raise durable.translate(error, self.path) from error

    def data_ranges(self, start: int, end: int) -> list[tuple[int, int]]:
        """As the module's function `data_ranges`. StoreFailedError."""
        with durable.typed(self.path):
            return data_ranges(self.fd, start, end)

    @property
    def buffer(self) -> pa.Buffer:
        """The map as an Arrow buffer."""
        return pa.py_buffer(self.map)

    def start_writing_back(self, position: int, size_bytes: int) -> None:
        """Start write-back of these bytes, so that a later fsync is shorter. Nothing is durable on return.

        Blocks if the disk's queue is full. The result of the system call is ignored: a later fsync reports disk errors,
        as it does for the kernel's own write-back.
        """
        _libc.sync_file_range(self.fd, position, size_bytes, _SYNC_FILE_RANGE_WRITE)

    def pin(self) -> None:
        """Keep retention from unlinking this file as long as this object lives, or until `unpin`."""
        if not self._pinned:
            lock_shared_quietly(self.fd)
            self._pinned = True  # behind it: after an interrupt in between it is locked once more

    def unpin(self) -> None:
        """Allow retention to delete the file."""
        if self._pinned:
            self._pinned = False
            unlock_quietly(self.fd)


class OpenFiles:
    """The open files of a store. Above the limit, the least recently used ones are forgotten; thread-safe.

    No lock: a signal handler may read or send while it interrupts a lookup of its own thread. Each step is one
    operation on a dict. Two threads may open one file at the same time; the table then keeps one of the two.
    """

    def __init__(self, limit: int = OPEN_FILES_MAX) -> None:
        self._limit = limit
        self._files: dict[str, OpenFile] = {}
        self._next_search_s = 0.0

    def get(self, path: str, size_bytes: int, *, writable: bool, pin: bool, directory: Path | None = None) -> OpenFile:
        """Return the open file; FileNotFoundError if it does not exist (any more). `directory`: the file's directory,
        if the file is not reached by its path (`rooted`).

        A file that another process unlinked is not returned, even if it is still mapped here: another file may have its
        name.
        """
        file = self._files.get(path)
        if file is not None and file.exists():
            file.is_used = True
        else:
            self._let_go()
            reached = path if directory is None else directory / path.rpartition("/")[2]
            file = OpenFile(reached, size_bytes, writable=writable)
            while len(self._files) >= self._limit:  # before it is one of them: it is not the one to be forgotten
                self._forget_oldest()
            self._files.pop(path, None)  # comes last
            self._files[path] = file
        if pin:
            file.pin()
        return file

    def _forget_oldest(self) -> None:
        """Of those that nobody was given meanwhile; what was used comes last again."""
        for path, file in list(self._files.items()):
            if not file.is_used:
                self._files.pop(path, None)
                return
            file.is_used = False
            if self._files.pop(path, None) is file:
                self._files[path] = file

    def _let_go(self) -> None:
        """Now and then: what retention unlinked keeps its space on the disk as long as somebody has it open."""
        now_s = real_time.monotonic()
        if now_s >= self._next_search_s:
            self._next_search_s = now_s + _SEARCH_INTERVAL_S
            for gone in [name for name, known in list(self._files.items()) if not known.exists()]:
                self._files.pop(gone, None)

    def forget(self, path: str) -> None:
        """Drop a file, for example before it is unlinked."""
        self._files.pop(path, None)

    def unpin(self) -> None:
        """Allow retention to delete all files. A file that is opened again is pinned again."""
        for file in list(self._files.values()):
            file.unpin()

    def clear(self) -> None:
        """Drop all files."""
        self._files = {}


def data_ranges(fd: int, start: int, end: int) -> list[tuple[int, int]]:
    """The parts of [start, end) that are not holes (SEEK_DATA), so that zeroed sparse files cost nothing to scan.

    OSError as lseek(2): the position of the data is unknown then, and no byte may be treated as a hole.
    """
    ranges = []
    position = start
    while position < end:
        try:
            low = os.lseek(fd, position, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:  # which says: nothing but holes up to the end of the file
                raise
            break
        if low >= end:
            break
        high = min(os.lseek(fd, low, os.SEEK_HOLE), end)
        ranges.append((low, high))
        position = high
    return ranges
