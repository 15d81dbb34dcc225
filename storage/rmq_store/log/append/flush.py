"""Making the log durable: the flushed end, the progress record, and the reaction to an fsync that fails.

The kernel reports a failed fsync once. Then it takes the pages for clean, although they never reached the disk. So the
word `flushing` is set around every fsync. A flusher that finds it set follows a flusher that failed or was killed; it
writes the range again first. Source: CommitLog.GroupCommitService, FlushRealTimeService, StoreCheckpoint.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import replace

from rmq_store.errors import StoreFailedError, StoreFullError, UsageError
from rmq_store.files import durable
from rmq_store.files.progress import ProgressRecord
from rmq_store.files.segments.segments import FsyncError
from rmq_store.format.tables.checkpoint import Checkpoint
from rmq_store.log.append.append import append_lock
from rmq_store.log.core.checkpoint import load_checkpoint
from rmq_store.log.core.commit_log import LOCK_TIMEOUT_MS, CommitLog

# A first opener after a power cut scans at most about this much, besides what a writer wrote since its last flush.
PROGRESS_INTERVAL_BYTES = 64 << 20
PROGRESS_INTERVAL_MS = 60_000

_libc = ctypes.CDLL(None, use_errno=True)


def flush(log: CommitLog, target: int | None = None, timeout_ms: int | None = None) -> None:
    """Make the log durable up to `target` (default: the appended end); returns at once if it already is.

    Group commit: the holder of the flush lock makes durable everything that was appended so far. Then it wakes the
    waiting threads and processes. Waiters below the new flushed end return without taking the lock.

    Raises:
        StoreLockedError: the flush lock was not free within `timeout_ms` (default: LOCK_TIMEOUT_MS).
        StoreFailedError: the fsync failed now or earlier. Records appended but not flushed are *unknown*: visible to
            readers under ASYNC_FLUSH, perhaps gone after a power cut.
    """
    page = log.writing_page
    wanted = page.appended_end if target is None else target

    def covered() -> bool:
        return page.flushed_end >= wanted and not page.poison

    if covered():
        return
    with log.flush_lock.exclusive(LOCK_TIMEOUT_MS if timeout_ms is None else timeout_ms, unless=covered) as leading:
        if leading and not covered():
            _flush_held(log)


def _flush_held(log: CommitLog) -> None:
    page = log.writing_page
    if page.poison:
        raise _poisoned(log)
    start, end = page.flushed_end, page.appended_end
    if start >= end:
        return
    try:
        if page.flushing:
            log.segments.rewrite(start, end)
            page.doubt()
            sync_filesystem(log)  # of an error that nobody has heard of it still tells
        page.flushing = 1
        log.segments.sync(start, end)
    except FsyncError as error:
        page.poison = 1
        raise StoreFailedError(f"{log.root}: {error}") from error
    except (StoreFullError, UsageError) as error:
        # The records are stored: no error may say that nothing was written.
        raise StoreFailedError(f"{log.root}: not flushed: {error}") from error
    # Any other exception (Ctrl-C, no descriptor left) leaves `flushing` set: the next flush writes the range again.
    if page.poison:
        raise _poisoned(log)  # another process failed meanwhile; nothing is acknowledged after that
    page.flushing = 0
    page.flushed_end = end


def _poisoned(log: CommitLog) -> StoreFailedError:
    return StoreFailedError(
        f"{log.root}: a flush failed earlier: what is on disk is unknown until all have closed the store"
    )


def save_progress(log: CommitLog) -> None:
    """Make log and views durable as they are now. Then write the progress record and RocketMQ's checkpoint."""
    with append_lock(log):
        record = log.progress_record()
        indexed_ms = indexed_until_ms(log)
    flush(log, record.end)
    sync_filesystem(log)
    with log.flush_lock.exclusive(LOCK_TIMEOUT_MS):
        known = log.progress.load()
        if known is None or known[0].end <= record.end:
            write_checkpoint(log, record, indexed_ms)
            crc_from = known[0].crc_from if known else None
            log.progress.write(replace(record, flushed_end=log.writing_page.flushed_end, crc_from=crc_from))


def flush_and_vouch(log: CommitLog) -> int:
    """As `flush`, with the state page: whoever opens the store after a power cut knows the flushed end. Returns it.
    Raises as `flush`.
    """
    flush(log)
    end = log.writing_page.flushed_end
    sync_page(log)
    return end


def sync_page(log: CommitLog) -> None:
    """fsync of the state page: its words are what a later boot finds at least. StoreFailedError."""
    path = log.own / "state"
    with durable.typed(log.root):
        fd = durable.open_nofollow(path, os.O_RDWR)
        try:
            durable.fsync_file(fd, path)
        finally:
            os.close(fd)


def sync_filesystem(log: CommitLog) -> None:
    """syncfs(2): one call for every queue and index file that any process wrote, and for their directories.

    The kernel reports an error once to each descriptor that was open when it happened. A descriptor opened later gets
    it only if no program has seen it. So the descriptor that was opened with the store is used.

    Raises:
        StoreFailedError: it failed. It is unknown which pages reached the disk, so the store is poisoned.
    """
    try:
        durable.before("syncfs", log.root)
        if _libc.syncfs(log.held_root.fd) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
    except OSError as error:
        log.writing_page.poison = 1
        raise StoreFailedError(f"{log.root}: syncfs failed: {error.strerror or error}") from error


def indexed_until_ms(log: CommitLog) -> int:
    """The checkpoint's time of the index, ms. The caller holds the append lock; otherwise the newest file could be one
    that an append is just creating, with size 0.
    """
    index = log.views.index
    return load_checkpoint(log).index_msg_timestamp if index is None else index.newest_full_timestamp()


def write_checkpoint(log: CommitLog, record: ProgressRecord, indexed_ms: int, *, in_place: bool = False) -> None:
    """Replace RocketMQ's checkpoint durably. Everything below `record.end` must be on disk, including the views.
    `in_place`: as brokers do it, without a new name in the directory; the fields are in one sector of the disk.

    Raises:
        StoreFullError, StoreFailedError: the old checkpoint stays. FileNotFoundError: `in_place`, and there is none.
    """
    checkpoint = Checkpoint(
        physic_msg_timestamp=record.timestamp,
        logics_msg_timestamp=record.timestamp,
        index_msg_timestamp=indexed_ms,
        confirm_phy_offset=record.end,
    )
    if in_place:
        durable.overwrite(log.root / "checkpoint", checkpoint.pack())
    else:
        durable.write_atomically(log.root / "checkpoint", checkpoint.pack())
