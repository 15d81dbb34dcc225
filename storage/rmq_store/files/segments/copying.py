"""Copying files without reading them into memory: the kernel moves the bytes, or shares the blocks where the file
system can (copy_file_range(2): reflinks on XFS and Btrfs).

Holes stay holes. A copy never reads beyond the given end, because a process may be writing there.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from rmq_store.files import durable
from rmq_store.files.segments.open_files import data_ranges

# One call moves at most so much, so that Ctrl-C is heard.
_STEP_BYTES = 64 << 20

# Errors of a kernel or a pair of file systems without copy_file_range.
_CANNOT = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM)


def copy_start(source_fd: int, target: Path, end: int, size_bytes: int) -> None:
    """Make `target`, a new file of `size_bytes`: bytes [0, end) of an open file, then zeros. The content is durable on
    return, the name is not.

    Raises:
        StoreFullError, StoreFailedError, UsageError: as `durable.translate`.
    """
    try:
        target_fd = durable.open_nofollow(target, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            os.ftruncate(target_fd, size_bytes)
            for low, high in data_ranges(source_fd, 0, end):
                position = low
                while position < high:
                    durable.before("write", target)
                    count = _move(source_fd, target_fd, position, min(high - position, _STEP_BYTES))
                    if not count:
                        raise OSError(errno.EIO, f"the source ends at byte {position}, not {end}")
                    position += count
            durable.fsync_file(target_fd, target)
        finally:
            os.close(target_fd)
    except OSError as error:
        raise durable.translate(error, target) from error


def _move(source_fd: int, target_fd: int, position: int, count: int) -> int:
    try:
        return os.copy_file_range(source_fd, target_fd, count, position, position)
    except OSError as error:
        if error.errno not in _CANNOT:
            raise
    os.lseek(target_fd, position, os.SEEK_SET)
    return os.sendfile(target_fd, source_fd, position, count)
