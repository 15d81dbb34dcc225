"""Keeps queues as long as they were after accepted damage: placeholder entries take the offsets of lost messages (see
accepted_damage.py).

A queue offset is never given out twice. The old end of a queue follows from surviving entries, the table of queue ends,
and committed offsets of groups. Lost messages beyond all of these, whose entries are lost too, cannot be known.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

import numpy as np

from rmq_store.files.segments.segments import SegmentRun
from rmq_store.format.frames.frame_check import FRAME_BYTES_MIN
from rmq_store.format.text.names import LMQ_PREFIX
from rmq_store.format.views.consume_queue import ENTRY, ENTRY_BYTES, PRE_BLANK_SIZE, encode_entries
from rmq_store.log.core.accepted_damage import AcceptedDamage, BadRange
from rmq_store.log.core.commit_log import CommitLog
from rmq_store.log.integrity.queue_ends import QueueEnds
from rmq_store.log.views.consume_queue import ConsumeQueue
from rmq_store.log.views.views import QueueKey

_LOG = logging.getLogger(__name__)

# Too small for a record, so that nobody takes it for one; not 0, which would be the queue's end.
_PLACEHOLDER_SIZE = 1


# The most messages that an error names, and files that are read for it.
_NAMED_MAX = 5
_FILES_MAX = 1000
# Of one queue: 6 GB of messages, and 1.3 GB of memory for a reader of a store that no writer has opened since.
_PLACEHOLDERS_MAX = 1 << 26


def placeholder_entries(bad: BadRange, count: int) -> np.ndarray:
    """Entries, dtype ENTRY (count,), for messages that were lost with their entries."""
    starts = np.full(count, bad.start, np.int64)
    return encode_entries(starts, np.full(count, _PLACEHOLDER_SIZE, np.int64), np.zeros(count, np.int64))


def queue_ends(
    log: CommitLog, new: AcceptedDamage, committed: Mapping[QueueKey, Iterable[int]], table: QueueEnds | None
) -> dict[QueueKey, int]:
    """A lower bound of the next queue offset, for every queue with an entry that points into `new`, with a greater end
    in `table`, or with a greater committed offset. A committed offset counts only as far as the lost bytes can have
    held messages.
    """
    ends: dict[QueueKey, int] = {}
    for key in log.views.keys():
        queue = log.views.queue(*key)
        for base in reversed(queue.run.bases()):
            entries = _entries_in(queue.run, base)
            used = (entries["frame_size"] > 0) & (entries["frame_size"] != PRE_BLANK_SIZE)
            rows = np.flatnonzero(used & new.mask(entries["commit_log_offset"].astype(np.int64)))
            if len(rows):
                ends[key] = base // ENTRY_BYTES + int(rows[-1]) + 1
                break
            if used.any() and int(entries["commit_log_offset"][used].max()) < new.ranges[0].start:
                break
    if table is not None:  # should the log have the messages yet, nothing will be missing
        ends.update((key, max(ends.get(key, 0), table.ends[key])) for key in table.lost(log))
    for key, offsets in committed.items():
        known = max(ends.get(key, 0), _known_end(log, key))
        possible = [offset for offset in offsets if known < offset <= known + lost_messages_max(new)]
        if possible:
            ends[key] = max(possible)
    return ends


def messages_in(log: CommitLog, bad: BadRange) -> str:
    """The messages that lay in a damaged range, according to queue entries, as text for an error; "" if none is found.
    In a large store not all queue files are read.
    """
    found, files_read, new = [], 0, AcceptedDamage((bad,))
    for key in log.views.keys():
        queue = log.views.queue(*key)
        for base in queue.run.bases():
            files_read += 1
            entries = _entries_in(queue.run, base)
            sizes = entries["frame_size"]
            lies_in = new.mask(entries["commit_log_offset"].astype(np.int64)) & (sizes > _PLACEHOLDER_SIZE)
            rows = np.flatnonzero(lies_in & (sizes != PRE_BLANK_SIZE))[: _NAMED_MAX + 1]
            found += [f"message {base // ENTRY_BYTES + row} of {key[0]}-{key[1]}" for row in rows.tolist()]
        if len(found) > _NAMED_MAX or files_read > _FILES_MAX:
            break
    return f"{', '.join(found[:_NAMED_MAX])}{' and more' if len(found) > _NAMED_MAX else ''}"


def lost_messages_max(accepted: AcceptedDamage) -> int:
    """The most messages that a queue can have lost in the accepted damage. A range that a damaged kept.json makes
    endless does not count as such.
    """
    return min(sum(bad.end - bad.start for bad in accepted.ranges) // FRAME_BYTES_MIN, _PLACEHOLDERS_MAX)


def _known_end(log: CommitLog, key: QueueKey) -> int:
    queue = log.views.queue(*key)
    bases = queue.run.bases()
    if not bases:
        return 0
    entries = _entries_in(queue.run, bases[-1])
    rows = np.flatnonzero(entries["frame_size"] > 0)
    return bases[-1] // ENTRY_BYTES + (int(rows[-1]) + 1 if len(rows) else 0)


def is_retired(log: CommitLog, queue: ConsumeQueue) -> bool:
    """True if retention removed all messages of a queue, and the newest file can be believed: its entries ascend."""
    bases = queue.run.bases()
    if not bases:
        return False
    entries = _entries_in(queue.run, bases[-1])
    used = (entries["frame_size"] > 0) & (entries["frame_size"] != PRE_BLANK_SIZE)
    ends = entries["commit_log_offset"][used].astype(np.int64) + entries["frame_size"][used]
    return bool(len(ends) and ends[0] > 0 and (np.diff(ends) > 0).all() and ends[-1] <= log.start())


def _entries_in(run: SegmentRun, base: int) -> np.ndarray:
    """All of one file, dtype ENTRY; most of it may be a hole."""
    return np.frombuffer(run.open(base).read(0, run.size_bytes), ENTRY)


def close_gap(log: CommitLog, key: QueueKey, first: int) -> None:
    """Fill the entries between the queue's last whole entry and `first`. Called before the entry `first` is written."""
    queue = log.views.queue(*key)
    bases = queue.run.bases()
    if not bases:
        if log.start() == 0 and first > 0:  # nothing was retired: these were lost
            queue.put(0, placeholder_entries(log.accepted_damage.ranges[0], first))
        return
    if first == 0 or _is_whole_at(log, queue, first - 1):
        return  # the usual case: no look at a whole file
    gap, before = _whole_end(log, queue, first)
    if gap < first:
        queue.put(gap, placeholder_entries(log.accepted_damage.at_or_after(before), first - gap))


def has_gap_before(log: CommitLog, key: QueueKey, first: int) -> bool:
    """True if the entry before `first` is missing or damaged in a queue that has files. If its whole file is missing,
    retention may have removed it.
    """
    queue = log.views.queue(*key)
    if first == 0 or not queue.run.bases():
        return False
    try:
        offset, size, _ = queue.entry(first - 1)
    except FileNotFoundError:
        return first * ENTRY_BYTES % queue.run.size_bytes != 0
    return not _is_whole(log, queue, offset, size, first - 1)


def fill_taken(log: CommitLog, firsts: Mapping[QueueKey, int], log_end: int) -> None:
    """Called after all records of a log that ends at `log_end` were dispatched, of each queue first those at `firsts`.
    Retention removed the messages before these. Corrupt entries there become entries of removed messages; otherwise the
    queue would end at them. StoreFullError, StoreFailedError.
    """
    if log.start() == 0:
        return
    placeholder = encode_entries(*np.array([[0], [_PLACEHOLDER_SIZE], [0]]))
    for key in log.views.keys():
        queue = log.views.queue(*key)
        bases = queue.run.bases()
        if not bases or key[0].startswith(LMQ_PREFIX):
            continue
        if key in firsts:
            stop = firsts[key]
            base = queue.run.base_of(stop * ENTRY_BYTES) // ENTRY_BYTES
        else:
            base = bases[-1] // ENTRY_BYTES
            stop = queue.last_possible(base, log_end) + 1
        if base * ENTRY_BYTES in bases and len(corrupt := queue.impossible(base, stop, log_end)):
            entries = queue.entries(base, stop)
            entries[corrupt - base] = placeholder
            queue.put(base, entries)


def _whole_end(log: CommitLog, queue: ConsumeQueue, stop: int) -> tuple[int, int]:
    """The queue offset behind the last whole entry below `stop`, and where its record lies. Without one: that of the
    first file, or 0 in a log of which nothing was deleted; and -1.
    """
    for base in reversed(queue.run.bases()):
        first = base // ENTRY_BYTES
        if first < stop:
            entries = _entries_in(queue.run, base)[: stop - first]
            for row in np.flatnonzero(entries["frame_size"] > 0)[::-1].tolist():
                offset, size = int(entries["commit_log_offset"][row]), int(entries["frame_size"][row])
                if _is_whole(log, queue, offset, size, first + row):
                    return first + row + 1, offset if size != PRE_BLANK_SIZE else -1
    return min(queue.run.bases()[0] // ENTRY_BYTES, stop) if log.start() else 0, -1


def _is_whole_at(log: CommitLog, queue: ConsumeQueue, queue_offset: int) -> bool:
    try:
        offset, size, _ = queue.entry(queue_offset)
    except FileNotFoundError:
        return False
    return _is_whole(log, queue, offset, size, queue_offset)


def _is_whole(log: CommitLog, queue: ConsumeQueue, offset: int, size: int, queue_offset: int) -> bool:
    if size == PRE_BLANK_SIZE:
        return True
    return size > 0 and log.is_whole_entry(queue.topic, queue.queue_id, offset, size, queue_offset)


def close_ends(log: CommitLog) -> None:
    """Called after all records were dispatched: queues whose last messages are lost keep their end. An end that the
    lost bytes cannot explain does not count.
    """
    for key, end in log.accepted_damage.queues.items():
        queue = log.views.queue(*key)
        bases = queue.run.bases()
        if end > 0 and not bases and log.start() > 0 and end <= _messages_max(log):
            queue.put(end - 1, placeholder_entries(log.accepted_damage.ranges[-1], 1))
        elif end > 0 and end - (_whole_end(log, queue, end)[0] if bases else 0) <= lost_messages_max(
            log.accepted_damage
        ):
            close_gap(log, key, end)
        elif end > 0:
            _LOG.error("%s: the kept damage cannot have held messages of %s-%d up to %d", log.root, *key, end)


def _messages_max(log: CommitLog) -> int:
    """The most messages that the log has ever had, those that retention removed included."""
    newest = max(log.segments.bases(), default=0)
    return max(newest + log.segments.size_bytes, log.accepted_damage.ranges[-1].end) // FRAME_BYTES_MIN


def restore_ends(log: CommitLog) -> None:
    """Called after all records were dispatched: queues that lost files after retention had removed all their messages
    keep their end, with an entry of a removed message before it.
    """
    known = QueueEnds.load(log.own)
    if known is None or log.start() == 0:
        return
    for key in known.lost(log):
        queue, end = log.views.queue(*key), known.ends[key]
        newest = _whole_end(log, queue, end)[1] if queue.run.bases() else -1
        if newest < log.start() and _known_end(log, key) < end:
            for base in queue.run.bases():
                queue.run.remove(base)
            end_without_messages(log, key, end)


def end_without_messages(log: CommitLog, key: QueueKey, end: int) -> None:
    """Let an empty queue go on at `end`, after an entry of a removed message. StoreFullError, StoreFailedError."""
    nowhere = np.zeros(1, np.int64)
    log.views.queue(*key).put(end - 1, encode_entries(nowhere, nowhere + _PLACEHOLDER_SIZE, nowhere))


def placeholders_around(log: CommitLog, topic: str, queue_id: int, queue_offset: int) -> tuple[int, int]:
    """[first, last) of the messages around `queue_offset` that lie in accepted damage, by the queue's files."""
    queue = log.views.queue(topic, queue_id)

    def is_lost(number: int) -> bool:
        try:
            offset, size, _ = queue.entry(number)
        except FileNotFoundError:
            return False
        return 0 < size != PRE_BLANK_SIZE and log.accepted_damage.covering(offset) is not None

    first, last = queue_offset, queue_offset + 1
    while first > 0 and is_lost(first - 1):
        first -= 1
    while is_lost(last):
        last += 1
    return first, last
