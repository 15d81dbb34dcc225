"""Updates the table of queue ends (see queue_ends.py).

    a closer         saves the ends of the queues that it wrote to; the last closer also saves those of queues that are
                     longer, or not in the table
    retention        saves the first file that stays, before it unlinks those before it
    a first opener   after a recovery: marks the table as incomplete, and saves what a scan of the log found of queues
                     that lack files. After a broker the table is emptied: a broker may have deleted a topic, and
                     created it again

The caller holds the append lock, or has the store alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from rmq_store.errors import CorruptionError, NotAStoreError
from rmq_store.format.views.consume_queue import ENTRY_BYTES
from rmq_store.log.core.commit_log import CommitLog
from rmq_store.log.integrity.queue_ends import QueueEnds, is_possible
from rmq_store.log.views.views import QueueKey


def save_queue_ends(log: CommitLog, *, last: bool) -> None:
    """Save the end of the log, and of the queues that this process wrote to. The `last` writer adds queues that are
    longer or not in the table: other writers may have been killed. All of it is on disk. Raises as `QueueEnds.save`.
    """
    known = QueueEnds.load(log.own)
    noted = known or QueueEnds({}, is_complete=False)
    keys = set(log.views.written_keys())
    if last:
        keys.update(key for key in log.views.keys() if not noted.is_complete or key not in noted.ends)
        keys.update(noted.grown(log))
    noted = _with_queues(log, noted, filter(is_possible, keys))
    noted = replace(noted, is_complete=noted.is_complete or last, log_end=log.writing_page.flushed_end)
    if noted != known:
        noted.save(log.own, in_place=log.has_spare)


def save_first_files(log: CommitLog, firsts: Mapping[QueueKey, int]) -> None:
    """Save the first queue offset of the oldest file that stays, for each queue. StoreFullError, StoreFailedError."""
    known = QueueEnds.load(log.own)
    if known is None:
        return
    later = {key: max(first, known.firsts.get(key, 0)) for key, first in firsts.items() if key in known.ends}
    noted = replace(known, firsts={**known.firsts, **later})
    if noted != known:
        noted.save(log.own)


def doubt_queue_ends(log: CommitLog, *, foreign: bool) -> None:
    """Mark the table as incomplete after a recovery: killed writers saved nothing, so the last of the next writers must
    check every queue. After a broker the table is emptied: it may have deleted topics, and truncated the log.
    StoreFullError, StoreFailedError.
    """
    known = QueueEnds.load(log.own)
    if known is None:
        return
    doubted = QueueEnds({}, is_complete=False) if foreign else replace(known, is_complete=False)
    if doubted != known:
        doubted.save(log.own)


def settle_queue_ends(log: CommitLog, end: int) -> None:
    """Called after all records of a log that ends at `end` were dispatched: entries that queues still lack are not in
    the log. The table gets their present state; otherwise every opener would search again. StoreFullError,
    StoreFailedError.
    """
    known = QueueEnds.load(log.own)
    lost = known.lost(log) if known is not None else []
    if known is None or (not lost and known.log_end <= end):
        return
    firsts = {**known.firsts, **_first_offsets(log, lost)}
    found = {key: _end_of(log, key, end) for key in lost}
    replace(known, ends={**known.ends, **found}, firsts=firsts, log_end=min(known.log_end, end)).save(log.own)


def _with_queues(log: CommitLog, known: QueueEnds, keys: Iterable[QueueKey]) -> QueueEnds:
    ends, firsts = dict(known.ends), dict(known.firsts)
    for key in keys:
        # In a log of which nothing was deleted a queue that is new to the table begins at 0, whatever its files say.
        if key not in ends and log.start() > 0:
            firsts.update(_first_offsets(log, [key]))
        ends[key] = max(ends.get(key, 0), _end_of(log, key, log.writing_page.appended_end))
    return replace(known, ends=ends, firsts=firsts)


def _first_offsets(log: CommitLog, keys: Iterable[QueueKey]) -> dict[QueueKey, int]:
    """The first queue offset of the newest files of each queue that follow each other."""
    found = {}
    for key in keys:
        try:
            run = log.views.queue(*key).run
            bases = run.bases()
        except (CorruptionError, NotAStoreError):
            continue  # as in `_end_of`
        first = bases[-1] if bases else 0
        for base in reversed(bases[:-1]):
            if base + run.size_bytes != first:
                break
            first = base
        found[key] = first // ENTRY_BYTES
    return found


def _end_of(log: CommitLog, key: QueueKey, end: int) -> int:
    try:
        return log.queue_max(*key, end)
    except (CorruptionError, NotAStoreError, FileNotFoundError):
        return 0  # whoever uses this queue is told; to open or close the store is no use of it
