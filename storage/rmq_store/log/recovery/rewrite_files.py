"""Rewrites files as new files if the kernel may show other content than the disk has.

After a failed write-back the kernel takes the pages for clean. Writing the same bytes again does not help on ext4:
blocks of a preallocated file, or of a hole, stay marked as never written. The second write reaches the disk and fsync
succeeds, but once the page cache is gone, zeros are read. A new file has no such blocks. The old file stays until the
new one is on disk, so a power cut in between loses nothing.

A file is rewritten if it holds, or points at, anything at or above the end in the progress record, and if it was
changed since that record was written; zeros of an undo point nowhere. The time alone is not enough: the clock may have
been set back.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from rmq_store.errors import CorruptionError
from rmq_store.files import durable
from rmq_store.files.segments.open_files import data_ranges
from rmq_store.files.segments.segments import SegmentRun
from rmq_store.format.views.consume_queue import ENTRY, ENTRY_BYTES, PRE_BLANK_SIZE
from rmq_store.log.core.commit_log import CommitLog
from rmq_store.log.views.hash_index import HashIndex

# Files that were last written so long before the progress record are on the disk: it is written after a sync that
# takes seconds.
_SYNC_LASTS_NS = 3_600 * 10**9

# A multiple of ENTRY_BYTES.
_PIECE_BYTES = ENTRY_BYTES << 16


def renew(log: CommitLog) -> None:
    """Replace files of log, queues and index by copies of their readable content, unless the progress record vouches
    for them. The caller holds the store exclusively.

    Raises:
        StoreFullError, StoreFailedError: some are replaced, all are whole; call again.
    """
    known = log.progress.load()
    end = known[0].end if known is not None and known[1] else 0
    try:
        since_ns = log.progress.path.stat().st_mtime_ns - _SYNC_LASTS_NS
    except FileNotFoundError:
        since_ns = 0
    directories = set()
    for path, is_above in _files(log, end):
        if is_above or path.stat().st_mtime_ns >= since_ns:
            _renew(path, log.own / f"new-{os.getpid()}", sparse=path.parent != log.segments.directory)
            directories.add(path.parent)
    log.files.clear()
    for directory in sorted(directories):
        try:
            durable.fsync_directory(directory)
        except OSError as error:
            raise durable.translate(error, directory) from error


def _files(log: CommitLog, end: int) -> Iterator[tuple[Path, bool]]:
    """All files, and whether they hold what lies at or above `end`, or point there."""
    for base in log.segments.bases():
        yield log.segments.path(base), base + log.segments.size_bytes > end
    for topic, queue_id in log.views.keys():
        yield from _queue_files(log.views.queue(topic, queue_id).run, end)
    if log.views.index is not None:
        for name in log.views.index.names():
            yield log.views.index.path(name), _is_index_above(log.views.index, name, end)


def _queue_files(run: SegmentRun, end: int) -> Iterator[tuple[Path, bool]]:
    is_below = False  # entries are ascending: this is known of all files before one whose entries point below the end
    for base in reversed(run.bases()):
        path = run.path(base)
        newest = -1 if is_below else _newest_offset(path)
        is_below = is_below or 0 <= newest < end
        yield path, newest >= end


def _is_index_above(index: HashIndex, name: int, end: int) -> bool:
    try:
        return index.end_offset_of(name) >= end
    except CorruptionError:
        return True  # as far as can be told


def _newest_offset(path: Path) -> int:
    """The largest commit-log offset that an entry of a queue's file points at; -1 without entries."""
    newest = -1
    with durable.typed(path):
        fd = durable.open_nofollow(path, os.O_RDONLY)
        try:
            for low, high in data_ranges(fd, 0, os.fstat(fd).st_size):
                for offset in range(low - low % ENTRY_BYTES, high, _PIECE_BYTES):
                    piece = os.pread(fd, _PIECE_BYTES, offset)
                    entries = np.frombuffer(piece, ENTRY, len(piece) // ENTRY_BYTES)
                    used = (entries["frame_size"] > 0) & (entries["frame_size"] != PRE_BLANK_SIZE)
                    newest = max(newest, int(entries["commit_log_offset"].max(initial=-1, where=used)))
        finally:
            os.close(fd)
    return newest


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
