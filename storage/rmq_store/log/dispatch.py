"""Dispatch: the records that a recovery walks over get their entries in queues and index again.

The same bytes at the same places, if they were there. Source: DefaultMessageStore.ReputMessageService.
"""

from __future__ import annotations

from rmq_store.format.frame_decoder import DispatchColumns
from rmq_store.log import scan
from rmq_store.log.commit_log import CommitLog
from rmq_store.log.holes import close_gap, has_gap_before
from rmq_store.log.views import QueueKey


class RottenQueueError(Exception):
    """A queue lacks the entry before its first record, although the views are believed up to there. Internal."""

    def __init__(self, key: QueueKey) -> None:
        super().__init__(key)
        self.key = key


class Dispatch:
    """Of one scan. From the commit-log offset `index_from` on records are indexed. `believes_views`: entries of the
    records before the scan are on disk.
    """

    def __init__(self, log: CommitLog, index_from: int, *, believes_views: bool) -> None:
        self.firsts: dict[QueueKey, int] = {}
        """Queue offset of the first record of each queue."""
        self._log = log
        self._index_from = index_from
        self._believes_views = believes_views

    def put(self, stretch: scan.Stretch, columns: DispatchColumns) -> int:
        """Put the records of a stretch, of which there are some, into the views; returns the newest storeTimestamp.

        Raises:
            RottenQueueError: there is nothing to put the entries of one queue behind.
            StoreFullError, StoreFailedError
        """
        log = self._log
        for key, first, entries in scan.entries_by_queue(columns, stretch):
            if log.kept:
                close_gap(log, key, first)
            elif self._believes_views and key not in self.firsts and has_gap_before(log, key, first):
                raise RottenQueueError(key)
            self.firsts.setdefault(key, first)
            log.views.queue(*key).put(first, entries)
        offsets = stretch.base + stretch.positions
        wanted = offsets >= self._index_from
        if wanted.any():
            skipped = int(columns.key_counts[~wanted].sum())
            log.views.put_keys(
                columns.key_hashes[skipped:], columns.key_counts[wanted], offsets[wanted],
                columns.store_timestamp[wanted],
            )  # fmt: skip
        return int(columns.store_timestamp[-1])
