"""Files that are made anew because what the kernel shows of them may not be what is on the disk.

After a failed write-back the kernel takes the pages for clean. Writing the same bytes again is not enough on ext4: the
blocks of a file that was preallocated, or had a hole there, stay marked as never written, the second write goes to the
disk, fsync succeeds, and once the page cache is gone zeros are read. A new file has no such blocks. The old one stays
until the new one is on the disk, so a power cut in between loses nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from rmq_store.files import durable
from rmq_store.files.segments import data_ranges
from rmq_store.log.commit_log import CommitLog

# Files that were last written so long before the progress record are on the disk: it is written after a sync that
# takes seconds.
_SYNC_LASTS_NS = 3_600 * 10**9

_PIECE_BYTES = 1 << 20


def renew(log: CommitLog) -> None:
    """Replace every file of log, queues and index that was written since the progress record by a copy of what can be
    read of it. The caller has the store alone.

    Raises:
        StoreFullError, StoreFailedError: some are replaced, all are whole; call again.
    """
    try:
        since_ns = log.progress.path.stat().st_mtime_ns - _SYNC_LASTS_NS
    except FileNotFoundError:
        since_ns = 0
    directories = set()
    for path in _files(log):
        if path.stat().st_mtime_ns >= since_ns:
            _renew(path, log.own / f"new-{os.getpid()}", sparse=path.parent != log.segments.directory)
            directories.add(path.parent)
    log.files.clear()
    for directory in sorted(directories):
        try:
            durable.fsync_directory(directory)
        except OSError as error:
            raise durable.translate(error, directory) from error


def _files(log: CommitLog) -> Iterator[Path]:
    for base in log.segments.bases():
        yield log.segments.path(base)
    for topic, queue_id in log.views.keys():
        run = log.views.queue(topic, queue_id).run
        for base in run.bases():
            yield run.path(base)
    if log.views.index is not None:
        for name in log.views.index.names():
            yield log.views.index.path(name)


def _renew(path: Path, temporary: Path, *, sparse: bool) -> None:
    try:
        source = durable.open_nofollow(path, os.O_RDONLY)
        try:
            target = durable.open_nofollow(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            try:
                size = os.fstat(source).st_size
                durable.before("allocate", path)
                if sparse:
                    os.ftruncate(target, size)
                else:
                    os.posix_fallocate(target, 0, size)
                for low, high in data_ranges(source, 0, size):
                    for offset in range(low, high, _PIECE_BYTES):
                        piece = os.pread(source, min(_PIECE_BYTES, high - offset), offset)
                        durable.write_fully(target, piece, offset, temporary)
                durable.fsync_file(target, temporary)
            finally:
                os.close(target)
        finally:
            os.close(source)
        durable.before("rename", path)
        temporary.rename(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise durable.translate(error, path) from error
