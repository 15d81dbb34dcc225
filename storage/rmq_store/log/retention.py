"""Retention deletes the oldest segments of the log, then the queue and index files that point only at them.

    all files        s0 | s1 | s2 | s3 | s4
    removable        -- | -- | --            below the flushed end and the progress record, never the newest record's
    order            unlink s0, fsync the directory, unlink s1, fsync, ...; then queue files, then index files;
                     the new first file of each queue is saved before older ones are unlinked

A power cut between two steps leaves a log that begins later and views that begin earlier; entries of deleted records do
not count. Another order could leave a hole in the log, or records without queue entries. A segment is unlinked under
the append lock, so a process that appends or searches for units never loses a file in the middle.

Source: MappedFileQueue#deleteExpiredFileByTime, ConsumeQueueStore.CleanConsumeQueueService,
IndexService#deleteExpiredFile.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from rmq_store.files import durable
from rmq_store.files.segments import pin
from rmq_store.log.append.append import append_lock
from rmq_store.log.append.flush import flush, save_progress
from rmq_store.log.core.commit_log import CommitLog
from rmq_store.log.integrity.queue_ends_writer import save_first_files
from rmq_store.log.views.consume_queue import ConsumeQueue


def removable(log: CommitLog, end: int) -> list[int]:
    """The segments below the one that holds the last byte before `end`, oldest first; never the last file.

    They may be deleted once `make_removable` was called for them.
    """
    newest = log.segments.base_of(end - 1) if end > 0 else 0
    return [base for base in log.segments.bases()[:-1] if base + log.segments.size_bytes <= newest]


def make_removable(log: CommitLog, end: int) -> None:
    """Make the log durable, and the progress record reach `end` at least. A scan after a power cut then never begins in
    a deleted segment.

    Raises:
        StoreFailedError, StoreFullError, StoreLockedError: nothing may be deleted.
    """
    flush(log)
    known = log.progress.load()
    if known is None or known[0].end < end:
        save_progress(log)


def remove_segment(log: CommitLog, base: int, *, forced: bool) -> bool:
    """Delete the oldest segment, durably. False, and nothing is changed, if a process pins it and not `forced`.

    `base` is one of `removable`, and `make_removable` was called for its end. StoreFailedError, StoreLockedError.
    """
    directory = log.segments.directory
    with _typed(directory):
        with append_lock(log):
            bases = log.segments.bases()
            assert base == bases[0] != bases[-1]
            assert base + log.segments.size_bytes <= log.writing_page.flushed_end
            with pin.alone(log.segments.path(base)) as is_free:
                if not is_free and not forced:
                    return False
                log.segments.remove(base)
        durable.fsync_directory(directory)
    return True


def remove_queue_files(log: CommitLog) -> int:
    """Delete the queue files whose entries all point below the log's first record, durably; never a queue's last file.
    Returns how many. StoreFailedError, StoreLockedError.
    """
    old = {key: files for key in log.views.keys() if (files := log.old_queue_files(*key))}
    if old:
        with _typed(log.own), append_lock(log):
            save_first_files(log, {key: log.views.queue(*key).first_after(files[-1]) for key, files in old.items()})
    return sum(_remove_old_files(log, log.views.queue(*key), files) for key, files in old.items())


def _remove_old_files(log: CommitLog, queue: ConsumeQueue, files: list[int]) -> int:
    removed = 0
    for first in files:
        with _typed(queue.run.directory):
            with append_lock(log):
                if not queue.remove_oldest(first):
                    break
            durable.fsync_directory(queue.run.directory)
        removed += 1
    return removed


def remove_index_files(log: CommitLog) -> int:
    """Delete the index files whose entries all point below the log's first record, durably. Never the newest file, nor
    one that the progress record names: recovery would take the index for lost. Returns how many. StoreFailedError,
    StoreLockedError, CorruptIndexError.
    """
    start = log.start()
    index, known = log.views.index, log.progress.load()
    if index is None or known is None:
        return 0
    removed = 0
    for name in index.names()[:-1]:
        if name >= known[0].index_file or index.end_offset_of(name) >= start:
            break
        with _typed(index.directory):
            with append_lock(log):
                if not index.remove_oldest(name):
                    break
            durable.fsync_directory(index.directory)
        removed += 1
    return removed


@contextlib.contextmanager
def _typed(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise durable.translate(error, path) from error
