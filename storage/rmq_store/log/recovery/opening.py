"""Opening a store for writing, and closing it: which process recovers, which one is the last closer, and which ones
must wait (docs/design.md section 4).
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from rmq_store.errors import StoreFailedError, StoreFullError, StoreLockedError, StoreReplacedError
from rmq_store.files import durable
from rmq_store.files.locks.lock import process_text
from rmq_store.files.locks.pace import Deadline, Pace
from rmq_store.files.locks.state_page import StatePage
from rmq_store.log.append.append import append_lock
from rmq_store.log.append.flush import flush, indexed_until_ms, sync_filesystem, write_checkpoint
from rmq_store.log.core.accepted_damage import AcceptedDamage
from rmq_store.log.core.commit_log import CommitLog
from rmq_store.log.integrity.queue_ends import make_spare
from rmq_store.log.integrity.queue_ends_writer import save_queue_ends
from rmq_store.log.recovery.delivery_times import drop_copies
from rmq_store.log.recovery.rebuild import is_begun
from rmq_store.log.recovery.recovery import REFUSE, RecoveryOptions, RecoveryReport, recover
from rmq_store.log.recovery.starting_point import log_is_ours

_LOG = logging.getLogger(__name__)

OPEN_TIMEOUT_MS = 30_000

# Replaced as a whole, and only by processes that hold byte 0: a first opener finds temporary files of dead ones.
_WRITTEN_BY_WRITERS = ("store.json", "units.json", "kept.json", "queue_ends.json", "rebuild.json", "retention.json")


def open_for_writing(
    log: CommitLog, timeout_ms: int = OPEN_TIMEOUT_MS, options: RecoveryOptions = REFUSE
) -> RecoveryReport | None:
    """Become a writer of the store; the report if this process was the first opener. After an error the caller closes
    the log, which frees its locks.

    Raises:
        StoreLockedError: a broker runs on the store (its pid is named), or a recovery takes longer than `timeout_ms`.
        CorruptRecordError and others: as `recover`.
        StoreFullError, StoreFailedError, UsageError: as `durable.translate`.
    """
    with durable.typed(log.root):
        return _open(log, timeout_ms, options)


def _open(log: CommitLog, timeout_ms: int, options: RecoveryOptions) -> RecoveryReport | None:
    durable.make_directory(log.own)
    deadline, sleep_s = Deadline(timeout_ms), 0.0
    futex, pace, is_due = None, Pace(), True
    while True:
        left_s = deadline.left_s(sleep_s)
        sleep_s = 0.0
        if is_due or left_s <= 0:
            if log.store_lock.try_exclusive():
                return _open_first(log, options)
            if log.store_lock.try_shared():
                if _joined(log):
                    return None
                log.store_lock.release()
            _refuse_broker(log)
        if left_s <= 0:
            pid = log.store_lock.who().pid
            raise StoreLockedError(f"{log.root}: not free within {timeout_ms} ms, held by {process_text(pid)}", pid)
        if futex is None:  # announced, and then tried once more: it may have rung just before
            futex = StatePage(log.own / "state", writable=True).open_futex()
        else:
            sleep_s = min(pace.sleep_s(), left_s)
            is_due = futex.wait(sleep_s) or pace.is_due(futex)
        futex.announce()


def _joined(log: CommitLog) -> bool:
    """Whether the store is open, now that byte 0 is held beside others. The page may be the one of a last closer that
    has just left, or a broker may have come in between.
    """
    _map_page(log)
    if not log.writing_page.counts() or not log_is_ours(log):
        return False
    log.held_root.watch()
    log.accepted_damage = AcceptedDamage.load(log.own)
    _make_spare(log)
    return True


def _refuse_broker(log: CommitLog) -> None:
    if (pid := log.store_lock.posix_holder()) is not None:
        raise StoreLockedError(
            f"{log.root}: process {pid} holds the store alone; is a RocketMQ broker running on it? "
            "Stop it, or open the store with read_only=True",
            pid,
        )


def _open_first(log: CommitLog, options: RecoveryOptions) -> RecoveryReport:
    root = log.root
    for name in ("commitlog", "config"):
        durable.make_directory(root / name)
    log.held_root.watch()
    log.segments.drop_empty_newest()
    _map_page(log)
    had_abort = (root / "abort").exists()
    for written in (root / "checkpoint", *(log.own / name for name in _WRITTEN_BY_WRITERS)):
        durable.remove_leftovers(written)

    def begin() -> None:
        for leftover in log.own.glob("new-*"):
            durable.before("unlink", leftover)
            leftover.unlink()  # of a process that was killed while it created a segment, or had some made ahead
        if not is_begun(root):
            drop_copies(log)
        if not had_abort:
            _create_abort(root)

    report = recover(log, begin, options)
    _make_spare(log)
    log.store_lock.downgrade()
    log.writing_page.open_futex().wake(everybody=True)
    return report


def _make_spare(log: CommitLog) -> None:
    """Let the close make no file, if it has something to replace: a program may delete the store while another process,
    which has written to it, closes it. The first closer of a new store makes the files.
    """
    replaced = log.root / "checkpoint", log.progress.path
    log.has_spare = all(path.exists() for path in replaced) and make_spare(log.own)
    for lock in (log.append_lock, log.flush_lock) if log.has_spare else ():
        os.close(durable.open_nofollow(lock.path, os.O_RDWR | os.O_CREAT))


def _map_page(log: CommitLog) -> None:
    log.page = StatePage(log.own / "state", writable=True)
    log.append_lock.futex, log.flush_lock.futex = log.page.append_futex(), log.page.flush_futex()


def _create_abort(root: Path) -> None:
    """Say durably that the store is in use, before anything is changed (DefaultMessageStore#createTempFile)."""
    fd = durable.open_nofollow(root / "abort", os.O_RDWR | os.O_CREAT)
    try:
        durable.write_fully(fd, str(os.getpid()).encode(), 0, root / "abort")
        durable.fsync_file(fd, root / "abort")
    finally:
        os.close(fd)
    durable.fsync_directory(root)


def close(log: CommitLog) -> None:
    """Flush, write the clean state if this was the last writer, and release the locks. After an error the store is
    closed but unclean. After an interrupt (Ctrl-C) during a wait it is open as before. It can be repeated.

    Raises:
        StoreFullError, StoreFailedError: the next opener finds an unclean store and recovers it.
        StoreReplacedError: another store lies at the path now; the moved store was closed as usual. Or the store is
            deleted, and nothing was written.
        StoreLockedError: another process held a lock too long: the next opener recovers the store. Otherwise as
            `CommitLog.close`.
        UsageError: as `CommitLog.refuse_reentry`.
    """
    log.refuse_reentry()
    try:
        log.segments.stop_making_ahead()
        if log.store_lock.held == "shared":
            _refuse_deleted(log)
            for lock in (log.store_lock, log.append_lock, log.flush_lock):
                lock.makes_file = not log.has_spare
            try:
                with durable.typed(log.root):
                    _flush_and_leave(log)
            except FileNotFoundError as error:
                raise _deleted(log) from error
            except StoreFailedError:
                _refuse_deleted(log)  # that is the reason
                raise
    except BaseException as error:
        # Otherwise others may be at work, and nothing was changed that they rely on.
        if isinstance(error, Exception) or log.store_lock.held != "shared":
            log.close()
        raise
    root = log.held_root
    replaced = root.replaced() if root.fd >= 0 and not root.is_in_place() else None
    log.close()
    if replaced is not None:
        raise replaced


def _flush_and_leave(log: CommitLog) -> None:
    flush(log)
    with append_lock(log, closes=True):
        # One closer at a time: two that hold byte 0 shared would refuse each other the upgrade.
        try:
            if log.store_lock.try_upgrade():
                _close_last(log)
                log.writing_page.retract()
            else:
                flush(log)
                _save_queue_ends(log)
        except FileNotFoundError as error:
            raise _deleted(log) from error
        log.store_lock.release()
        log.writing_page.open_futex().wake()


def _refuse_deleted(log: CommitLog) -> None:
    """Raise StoreReplacedError if somebody has begun to delete the store: a deletion that has listed names fails if one
    of them is gone, and cannot remove a directory in which one was made. Does nothing when the store is left.
    """
    if log.store_lock.held == "free":
        return
    if log.held_root.is_deleted():
        raise log.held_root.replaced()
    needed = [log.root / "abort", log.own / "state", *([log.append_lock.path] if log.has_spare else [])]
    if not log.store_lock.is_current() or not all(map(os.path.lexists, needed)):
        raise _deleted(log)
    try:
        with os.scandir(log.segments.directory) as names:
            if next(names, None) is None and log.writing_page.appended_end > 0:
                raise _deleted(log)
    except FileNotFoundError as error:
        raise _deleted(log) from error


def _deleted(log: CommitLog) -> StoreReplacedError:
    text = "its files are being deleted: nothing more is written"
    return StoreReplacedError(str(log.root), text)


def _save_queue_ends(log: CommitLog) -> None:
    """All that was appended is on disk: should there be no room for the table, an error would say that it is not. The
    last closer finds out what is not in it.
    """
    try:
        save_queue_ends(log, last=False)
    except (StoreFullError, StoreFailedError) as error:
        _LOG.warning("%s: how far the queues went is not written down: %s", log.root, error)


def _close_last(log: CommitLog) -> None:
    flush(log)
    end, start = log.writing_page.appended_end, log.start()
    for base in log.segments.bases():
        if base >= end and base > start:  # the first one says where the log begins
            log.segments.remove(base)
    sync_filesystem(log)
    save_queue_ends(log, last=True)
    record = log.progress_record(clean=True)
    write_checkpoint(log, record, indexed_until_ms(log), in_place=log.has_spare)
    log.progress.write(record, in_place=log.has_spare)
    _refuse_deleted(log)
    durable.before("unlink", log.root / "abort")
    (log.root / "abort").unlink(missing_ok=True)
    durable.fsync_directory(log.root)
