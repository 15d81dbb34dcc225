"""Finds queues of killed writers whose newest files have corrupt entries, so that their end would be read wrongly.

Unless a close saved the end of such a queue, only two sources remain: entries beyond its end, and the entries that the
search for the end reads. Source: ours; RocketMQ's ConsumeQueue#recover takes the first invalid entry for the end.
"""

from __future__ import annotations

import os
from functools import partial

import numpy as np

from rmq_store.errors import CorruptionError, NotAStoreError
from rmq_store.files import durable
from rmq_store.files.segments.open_files import OpenFiles, data_ranges
from rmq_store.format.text.names import LMQ_PREFIX
from rmq_store.format.views.consume_queue import ENTRY, ENTRY_BYTES, PRE_BLANK_SIZE
from rmq_store.log.core.commit_log import CommitLog
from rmq_store.log.integrity.queue_ends import PLACE, QueueEnds, is_possible, open_file, reaches
from rmq_store.log.views.views import QueueKey, Views

_PAGE_ENTRIES = 256  # a page of 4 KiB has 205
_BLANK = bytes(2 * _PAGE_ENTRIES * ENTRY_BYTES)
_READ_ENTRIES = 1 << 12
_UNWRITTEN = bytes(_READ_ENTRIES * ENTRY_BYTES)


def corrupt_queues(log: CommitLog, end: int, known: QueueEnds | None) -> list[QueueKey]:
    """The queues of an unclean store whose newest file would give a wrong end, for messages below `end`. Each queue is
    checked from its end in the table `known`, which has lost no file; a queue that has not grown since costs one read.

    Raises:
        StoreFailedError, UsageError: one cannot be read.
    """
    bases = log.segments.bases()
    log_end = bases[-1] + log.geometry.mapped_file_size_commit_log if bases else 0
    ends = known.ends if known is not None else {}
    # Not those of the log: it would keep many of the files open, for nobody.
    views = Views(log.root, log.geometry.mapped_file_size_consume_queue, OpenFiles(1), None, writable=False)
    with durable.typed(log.views.directory):
        return [key for key in views.keys() if _is_corrupt(log, views, key, ends.get(key, 0), end, log_end)]


def _is_corrupt(log: CommitLog, views: Views, key: QueueKey, known_end: int, end: int, log_end: int) -> bool:
    queue_end = _end_behind(log, key, known_end, end) if known_end else None
    if queue_end is None:
        if not is_possible(key) or key[0].startswith(LMQ_PREFIX):
            return False  # nothing could be taken from the log
        confirm, is_record = partial(log.is_whole_entry, *key), partial(log.is_record_of, *key)
        try:
            queue_end = views.queue(*key).max_offset(end, confirm, is_record)
            if _goes_on(log, key, queue_end, end):
                return True
        except (CorruptionError, NotAStoreError, FileNotFoundError):
            return False  # whoever uses this queue is told
    return queue_end not in (0, known_end) and not reaches(log, key, queue_end, log_end)


def _end_behind(log: CommitLog, key: QueueKey, known_end: int, end: int) -> int | None:
    """Where the queue ends that ended at `known_end` > 0, if that is at most a page behind it, and nobody has written
    behind that; None if more has to be looked at.
    """
    fd = open_file(log, key, known_end - 1)
    if fd is None:
        return None
    file_bytes = log.geometry.mapped_file_size_consume_queue
    position = (known_end - 1) * ENTRY_BYTES % file_bytes
    try:
        raw = os.pread(fd, len(_BLANK), position)
        if len(raw) < len(_BLANK) or data_ranges(fd, position + len(raw), file_bytes):
            return None  # if it ends the file, a next one may be there
    finally:
        os.close(fd)
    place, queue_end = (0, 0), known_end - 1
    for row in range(_PAGE_ENTRIES):
        offset, size = PLACE.unpack_from(raw, row * ENTRY_BYTES)
        if not (0 < size != PRE_BLANK_SIZE and 0 <= offset <= end - size):
            break
        place, queue_end = (offset, size), queue_end + 1
    if queue_end < known_end or not _BLANK.startswith(raw[(queue_end - known_end + 1) * ENTRY_BYTES :]):
        return None
    return queue_end if log.is_whole_entry(*key, *place, queue_end - 1) else None


def _goes_on(log: CommitLog, key: QueueKey, queue_end: int, end: int) -> bool:
    """Whether the file that the queue seems to end in has an entry behind that which can be one of a message below
    `end`. Where a killed writer left entries of messages that do not count, those lie at `end` or behind.
    """
    fd = open_file(log, key, queue_end)
    if fd is None:
        return False
    file_bytes = log.geometry.mapped_file_size_consume_queue
    per_file = file_bytes // ENTRY_BYTES
    try:
        for low, high in data_ranges(fd, queue_end % per_file * ENTRY_BYTES, file_bytes):
            for row in range(low // ENTRY_BYTES, -(-high // ENTRY_BYTES), _READ_ENTRIES):
                raw = os.pread(fd, min(_READ_ENTRIES * ENTRY_BYTES, high - row * ENTRY_BYTES), row * ENTRY_BYTES)
                if _UNWRITTEN.startswith(raw):
                    continue  # most of a file that was copied without its holes
                entries = np.frombuffer(raw[: len(raw) // ENTRY_BYTES * ENTRY_BYTES], ENTRY)
                offsets, sizes = entries["commit_log_offset"], entries["frame_size"].astype(np.int64)
                if ((sizes > 0) & (offsets >= 0) & (offsets <= end - sizes)).any():
                    return True
        return False
    finally:
        os.close(fd)
