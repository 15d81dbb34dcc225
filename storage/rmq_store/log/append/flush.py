"""Making the log durable: the flushed end, the progress record, and what happens when an fsync fails.

An fsync that failed is reported once; the kernel then takes the pages for clean although they never reached the
disk. So the word `flushing` is set around every fsync: who finds it set comes after one that failed or was killed,
and first writes the range again. Source: CommitLog.GroupCommitService, FlushRealTimeService, StoreCheckpoint.
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

    Group commit: whoever gets the flush lock makes durable what all have appended so far. Those who wait, threads or
    processes, are woken when it lets the lock go, and the ones that its fsync covered return without taking the lock.

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
    """Make log and views durable as they are now, and say so in the progress record and in RocketMQ's checkpoint."""
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


def sync_filesystem(log: CommitLog) -> None:
    """syncfs(2): one call for every queue and index file that any process wrote, and for their directories.

    An error is told once to each descriptor that was open when it came, but to one opened later only if nobody has
    heard of it: another program's syncfs would be enough. So it is the one that was opened with the store.

    Raises:
        StoreFailedError: it failed. Which pages reached the disk is unknown, so the store is poisoned.
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
    """What the checkpoint says of the index. The caller holds the append lock: otherwise the newest file may be one
    that an append is about to make, of no size yet.
    """
    index = log.views.index
    return load_checkpoint(log).index_msg_timestamp if index is None else index.newest_full_timestamp()


def write_checkpoint(log: CommitLog, record: ProgressRecord, indexed_ms: int) -> None:
    """Replace RocketMQ's checkpoint durably; everything below `record.end` is on disk, views included.

    StoreFullError, StoreFailedError: the old one stays.
    """
    checkpoint = Checkpoint(
        physic_msg_timestamp=record.timestamp,
        logics_msg_timestamp=record.timestamp,
        index_msg_timestamp=indexed_ms,
        confirm_phy_offset=record.end,
    )
    durable.write_atomically(log.root / "checkpoint", checkpoint.pack())
