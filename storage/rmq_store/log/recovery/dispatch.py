"""Dispatch: writes the queue and index entries of the records that a recovery reads.

Entries that existed get the same bytes at the same offsets. Values that the log does not hold are kept from existing
entries: due times of delayed messages, and addresses of tags codes in a broker's extension file (`delivery_times`).
Source: DefaultMessageStore, ReputMessageService.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping
from functools import partial
from types import TracebackType

from rmq_store.files.locks.background import Answer, HelperThread
from rmq_store.format.batches.frame_decoder import DispatchColumns
from rmq_store.log.core import scan
from rmq_store.log.core.commit_log import CommitLog
from rmq_store.log.integrity.placeholder_entries import close_gap, has_gap_before
from rmq_store.log.recovery.delivery_times import preserved_entries
from rmq_store.log.views.hash_index import IndexState
from rmq_store.log.views.queue_ext import has_units
from rmq_store.log.views.views import QueueKey

# Stretches that may wait to be put: their columns take some 10 MB each.
_WAITING_MAX = 2


class CorruptQueueError(Exception):
    """A queue lacks the entry before its first record, although the views should be complete up to there. Internal."""

    def __init__(self, key: QueueKey) -> None:
        super().__init__(key)
        self.key = key


class QueueDispatch:
    """Puts the queue entries of records that are read in the order of the log.

    `believes_views`: entries of the records before the first ones are on disk. `continues`: so they are, and a queue
    that begins anew, as a topic that was made again, loses them.
    """

    def __init__(self, log: CommitLog, *, believes_views: bool, continues: bool = False) -> None:
        self.firsts: dict[QueueKey, int] = {}
        """Queue offset of the first record of each queue."""
        self.assumed: Counter[int] = Counter()
        """How many messages of each delay level got a time of delivery that nothing tells."""
        self._ends: dict[QueueKey, int] = {}
        self._log = log
        self._believes_views = believes_views
        self._continues = continues
        self._has_ext = has_units(log.root)

    def put(self, stretch: scan.Stretch, columns: DispatchColumns) -> None:
        """Put the entries of a stretch's records.

        Raises:
            CorruptQueueError: the queue lacks the entry that the new ones must follow.
            StoreFullError, StoreFailedError
        """
        log = self._log
        for key, first, entries in scan.entries_by_queue(columns, stretch, log.views.elsewhere):
            if log.accepted_damage:
                close_gap(log, key, first)
            elif self._believes_views and key not in self.firsts and has_gap_before(log, key, first):
                raise CorruptQueueError(key)
            self.firsts.setdefault(key, first)
            entries, lacking = preserved_entries(log, key, first, entries, has_ext=self._has_ext)
            if lacking and log.delays.is_assumed(key[1] + 1):
                self.assumed[key[1] + 1] += lacking
            if self._continues and key not in self._ends:
                self._ends[key] = log.queue_max(*key, log.writing_page.appended_end)
            if first < self._ends.get(key, 0):  # a topic that was made again, or fail-over: the last one counts
                log.views.queue(*key).begin_again(first)
            self._ends[key] = first + len(entries)
            log.views.queue(*key).put(first, entries)


class Dispatch:
    """Dispatch of one scan, for a `with` block. A second thread writes, one task after another, while the walk reads
    the next records. The order of the writes is the same as without it.

    From the commit-log offset `index_from` on records are indexed. `believes_views`: entries of the records before the
    scan are on disk.
    """

    def __init__(self, log: CommitLog, index_from: int, *, believes_views: bool) -> None:
        self._queues = QueueDispatch(log, believes_views=believes_views)
        self._log = log
        self._index_from = index_from
        self._second = HelperThread()
        self._begun: deque[Answer[None]] = deque()
        self._has_failed = False

    @property
    def firsts(self) -> Mapping[QueueKey, int]:
        """As `QueueDispatch.firsts`; complete behind `end`."""
        return self._queues.firsts

    @property
    def assumed(self) -> Mapping[int, int]:
        """As `QueueDispatch.assumed`; complete behind `end`."""
        return self._queues.assumed

    def __enter__(self) -> Dispatch:
        self._second.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._has_failed |= kind is not None  # what was begun and waits is not wanted any more
        self._second.__exit__(kind, error, trace)

    def restore_index(self, state: IndexState) -> None:
        """Restore the index to `state` before any entry is put into it. Raises as `put`."""
        self._begin(partial(self._log.views.restore_index, state))

    def put(self, stretch: scan.Stretch, columns: DispatchColumns) -> None:
        """Put the records of a stretch (at least one) into the views, after the tasks that were begun before.

        Raises, for this task or an earlier one:
            CorruptQueueError: the queue lacks the entry that the new ones must follow.
            StoreFullError, StoreFailedError
        """
        self._begin(partial(self._put, stretch, columns))

    def end(self) -> None:
        """Wait for all tasks. Raises as `put`."""
        while self._begun:
            self._begun.popleft().result()

    def _begin(self, work: Callable[[], None]) -> None:
        while len(self._begun) > _WAITING_MAX:
            self._begun.popleft().result()
        try:
            self._begun.append(self._second.begin(partial(self._unless_failed, work)))
        except RuntimeError:  # no thread is to be had
            self.end()
            self._unless_failed(work)

    def _unless_failed(self, work: Callable[[], None]) -> None:
        """Nothing is put behind what could not be put."""
        if self._has_failed:
            return
        try:
            work()
        except BaseException:
            self._has_failed = True
            raise

    def _put(self, stretch: scan.Stretch, columns: DispatchColumns) -> None:
        self._queues.put(stretch, columns)
        offsets = stretch.base + stretch.positions
        wanted = offsets >= self._index_from
        if wanted.any():
            skipped = int(columns.key_counts[~wanted].sum())
            self._log.views.put_keys(
                columns.key_hashes[skipped:], columns.key_counts[wanted], offsets[wanted],
                columns.store_timestamp[wanted],
            )  # fmt: skip
