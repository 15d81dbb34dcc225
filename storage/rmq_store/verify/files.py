"""Files as bytes, also those that the disk can read only in part.

An access to an unreadable page of a map kills the process by SIGBUS. So the verifier reads each file once before it
maps it. If a part cannot be read, the verifier copies the file into memory, with zeros for the unknown bytes. It also
copies a file with holes on a tmpfs. There a mapped read of a hole allocates memory, and causes SIGBUS if the tmpfs is
full.

The verifier opens nothing through a symbolic link, and never waits for anything but a regular file.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
from collections.abc import Iterator
from pathlib import Path

Bytes = mmap.mmap | bytes

Unreadable = tuple[int, int, str]
"""Bytes [start, end) of a file, and why."""

_STEP_BYTES = 1 << 20
_BLOCK_BYTES = 4096  # a page: what the kernel reads at once, and gives up at once
_OPEN_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK

_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
}


def other_kind(path: Path) -> str:
    """The kind of entry in the place of a regular file; "" if it is one, or nothing is there (any more)."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return ""
    return "" if stat.S_ISREG(mode) else _KINDS.get(stat.S_IFMT(mode), "a device")


def numbered_files(directory: Path) -> list[Path]:
    """The regular files with decimal names, in the order of their names."""
    paths = [p for p in directory.iterdir() if p.name.isascii() and p.name.isdigit() and not other_kind(p)]
    return sorted(paths, key=lambda path: path.name)


def read_start(path: Path, size_bytes: int) -> bytes:
    """The first bytes of a small file. OSError, also if it is no regular file."""
    if kind := other_kind(path):
        raise OSError(errno.EINVAL, f"{kind}, not a regular file", str(path))
    fd = os.open(path, _OPEN_FLAGS)
    with open(fd, "rb") as file:  # noqa: PTH123 - a descriptor
        return file.read(size_bytes)


def map_file(path: Path) -> tuple[Bytes, list[Unreadable]]:
    """The file mapped for reading, and its unreadable ranges. No bytes if the file is missing (retention), empty, or
    not regular: the check that lists its directory reports that.
    """
    if other_kind(path):
        return b"", []
    try:
        fd = os.open(path, _OPEN_FLAGS)
    except FileNotFoundError:
        return b"", []
    try:
        size = os.fstat(fd).st_size
        if not size:
            return b"", []
        bad = list(unreadable(fd, size))
        without = [(start, end) for start, end, _ in bad] or (list(_holes(fd, size)) if _is_tmpfs(fd) else [])
        return (_copy(fd, size, without) if without else mmap.mmap(fd, size, access=mmap.ACCESS_READ)), bad
    finally:
        os.close(fd)


def _copy(fd: int, size_bytes: int, without: list[tuple[int, int]]) -> mmap.mmap:
    """The file in memory, with zeros in some ranges. Pages of zeros that nobody wrote use no memory."""
    memory, position = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), 0
    for start, end in [*without, (size_bytes, size_bytes)]:
        while position < start and (piece := os.pread(fd, min(_STEP_BYTES, start - position), position)):
            memory[position : position + len(piece)] = piece
            position += len(piece)
        position = end
    return memory


def _is_tmpfs(fd: int) -> bool:
    device = os.fstat(fd).st_dev
    if os.major(device):  # a disk
        return False
    name = f"0:{os.minor(device)}"
    with Path("/proc/self/mountinfo").open(encoding="utf-8", errors="surrogateescape") as mounts:
        return any(mount.split(" ", 3)[2] == name and " - tmpfs " in mount for mount in mounts)


def _holes(fd: int, size_bytes: int) -> Iterator[tuple[int, int]]:
    end = 0
    while (start := os.lseek(fd, end, os.SEEK_HOLE)) < size_bytes:
        try:
            end = os.lseek(fd, start, os.SEEK_DATA)
        except OSError:  # ENXIO: no data behind it
            end = size_bytes
        yield start, end
        if end == size_bytes:
            return


def unreadable(fd: int, size_bytes: int) -> Iterator[Unreadable]:
    """The unreadable ranges of a file, ascending; adjacent ranges are joined."""
    buffer, bad = memoryview(bytearray(_STEP_BYTES)), None
    for position in range(0, size_bytes, _STEP_BYTES):
        end = min(position + _STEP_BYTES, size_bytes)
        if not _why(fd, buffer, position, end):
            continue
        for block in range(position, end, _BLOCK_BYTES):
            block_end = min(block + _BLOCK_BYTES, end)
            if why := _why(fd, buffer, block, block_end):
                if bad is not None and bad[1:] == (block, why):
                    bad = bad[0], block_end, why
                    continue
                if bad is not None:
                    yield bad
                bad = block, block_end, why
    if bad is not None:
        yield bad


def _why(fd: int, buffer: memoryview, start: int, end: int) -> str:
    """Why [start, end) cannot be read; "" if it can."""
    try:
        while start < end and (count := os.preadv(fd, [buffer[: end - start]], start)):
            start += count
    except OSError as error:
        return error.strerror or str(error)
    return ""
