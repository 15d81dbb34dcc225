"""Cut the end of a log off: for a replica whose log parts from its master's, and for no other store.

Otherwise nothing that is visible is ever taken back. The steps, each durable before what follows, of a cut at `end`:

    1  copies of the bytes that go, in pyrmq/removed
    2  the index without their entries; the table of queue ends without their queue offsets; a progress record at `end`
    3  in the state page an intent from `end` to the old end, and then the visible end: one word, which is the cut
    4  the undo of that intent, as of an append that did not end: queue entries, index, zeros

A process that is killed before step 3 leaves the log as it was, but for index entries. Afterwards the next opener ends
the undo.
"""

from __future__ import annotations

from dataclasses import replace

from rmq_store.files import durable
from rmq_store.files.progress import ProgressRecord
from rmq_store.log.append.append import append_lock, undo
from rmq_store.log.append.flush import flush, sync_filesystem, sync_page
from rmq_store.log.core.commit_log import LOCK_TIMEOUT_MS, CommitLog
from rmq_store.log.core.scan import newest_message
from rmq_store.log.integrity.queue_ends import QueueEnds
from rmq_store.log.recovery.index_repair import cut_entries
from rmq_store.log.recovery.recovery import free_name


def cut_tail(log: CommitLog, end: int) -> None:
    """Let the log end at `end`, the start of a record. The caller is its only writer. Durable on return.

    Readers of other processes that know a later end find no messages there.

    Raises:
        StoreFullError, StoreFailedError: call again after the cause is gone.
    """
    flush(log)
    with append_lock(log):
        page = log.writing_page
        old_end = page.appended_end
        if end >= old_end:
            return
        with durable.typed(log.root):
            _keep(log, end, old_end)
        cut_entries(log, end)
        last = newest_message(log, end)
        stored_ms = None if last is None else log.store_timestamp(last)
        _note(log, end, -1 if last is None else last, stored_ms or 0)
        with log.flush_lock.exclusive(LOCK_TIMEOUT_MS):
            state = log.views.index_state()
            page.declare(end, old_end, state.file, state.header)  # it counts when the visible end lies below
            page.flushed_end = end
            page.replicated_end = min(page.replicated_end, end)  # slaves had what goes, and not what comes there
            page.appended_end = end
            page.last_record, page.store_timestamp = -1 if last is None else last, stored_ms or 0
            sync_page(log)
        undo(log)
        sync_filesystem(log)


def _keep(log: CommitLog, start: int, end: int) -> None:
    """Copy the bytes that go. They are for people: no code reads them."""
    directory = log.own / "removed"
    durable.make_directory(directory)
    for base in log.segments.bases():
        low, high = max(start, base), min(end, base + log.segments.size_bytes)
        if low < high:
            log.segments.copy(low, high, free_name(directory / f"{low:020d}"))


def _note(log: CommitLog, end: int, last_record: int, stored_ms: int) -> None:
    """After a power cut nothing above `end` counts as lost."""
    known = QueueEnds.load(log.own)
    if known is not None:
        ends = {key: min(number, log.queue_max(*key, end)) for key, number in known.ends.items()}
        replace(known, ends=ends, log_end=min(known.log_end, end)).save(log.own)
    state, record = log.views.index_state(), log.progress.load()
    log.progress.write(
        ProgressRecord(
            end, last_record, end, state.file, state.header, clean=False, timestamp=stored_ms,
            crc_from=record[0].crc_from if record is not None else None,
        )
    )  # fmt: skip
