"""Finds the nearest sound entry of a queue around a damaged one. Entries have no checksum, but each record contains its
own queue and offset.

Look-ups of a message's offset or store time do not read the message. So its entry is checked here; if it is damaged,
the nearest sound entry answers.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rmq_store.format.views.consume_queue import PRE_BLANK_SIZE
from rmq_store.log.core.commit_log import CommitLog
from rmq_store.log.views.views import QueueKey

EntriesOf = Callable[[int, int], np.ndarray]
"""[start, stop) -> these entries of the queue, dtype ENTRY; raises as it likes."""

# Entries looked at per step: a page of 4 KiB has 205.
ENTRIES_PER_STEP = 256


def sound_before(log: CommitLog, key: QueueKey, entries_of: EntriesOf, low: int, queue_offset: int) -> int | None:
    """The newest message of [low, queue_offset) whose entry points at its record; None if there is none."""
    for stop in range(queue_offset, low, -ENTRIES_PER_STEP):
        start = max(stop - ENTRIES_PER_STEP, low)
        for row in map(int, _candidates(log, entries := entries_of(start, stop))[::-1]):
            if _is_record(log, key, entries[row], start + row):
                return start + row
    return None


def sound_after(log: CommitLog, key: QueueKey, entries_of: EntriesOf, queue_offset: int, high: int) -> int | None:
    """The first message of [queue_offset, high) whose entry points at its record; None if there is none."""
    for start in range(queue_offset, high, ENTRIES_PER_STEP):
        for row in map(int, _candidates(log, entries := entries_of(start, min(start + ENTRIES_PER_STEP, high)))):
            if _is_record(log, key, entries[row], start + row):
                return start + row
    return None


def _candidates(log: CommitLog, entries: np.ndarray) -> np.ndarray:
    """The rows (n,) of entries that can be true: their segment is there. So few records are read for many lost ones."""
    offsets, sizes = entries["commit_log_offset"].astype(np.int64), entries["frame_size"]
    possible = (sizes > 0) & (sizes != PRE_BLANK_SIZE) & ~log.accepted_damage.mask(offsets)
    segments = offsets // log.segments.size_bytes * log.segments.size_bytes
    return np.flatnonzero(possible & np.isin(segments, log.segments.bases()))


def _is_record(log: CommitLog, key: QueueKey, entry: np.void, queue_offset: int) -> bool:
    return log.is_record_of(*key, int(entry["commit_log_offset"]), int(entry["frame_size"]), queue_offset)
