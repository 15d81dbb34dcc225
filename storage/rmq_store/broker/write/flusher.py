"""Flushing under ASYNC_FLUSH, as CommitLog.FlushRealTimeService does it.

Each process that has the store open for writing runs one flush thread. A writer that finds the thread late flushes
itself. The thread flushes what any process appended, so messages of an idle or killed writer do not stay unflushed. If
no other process has the store open, the next opener flushes.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable

from rmq_store import real_time
from rmq_store.broker.metadata.store_config import StoreConfig
from rmq_store.errors import StoreLockedError, StoreReplacedError
from rmq_store.files.locks.background import Background
from rmq_store.files.locks.guard import Event
from rmq_store.log.append.flush import PROGRESS_INTERVAL_BYTES, PROGRESS_INTERVAL_MS, flush, save_progress
from rmq_store.log.core.commit_log import CommitLog

_LOG = logging.getLogger(__name__)

_PAGE_BYTES = 4096

# A writer flushes itself when nothing was flushed for so many intervals: the thread has no time, or is no more.
_LATE_INTERVALS = 2


def monotonic_ms() -> int:
    """Milliseconds of a clock that never goes back."""
    return real_time.monotonic_ns() // 1_000_000


class Flusher:
    """Made with the store, runs from `start` to `stop`; its thread is a daemon, so that it never keeps a process alive.

    `clock`: milliseconds of a clock that never goes back.
    """

    def __init__(self, log: CommitLog, config: StoreConfig, clock: Callable[[], int] = monotonic_ms) -> None:
        self._log = log
        self._interval_ms = config.flush_interval_commit_log
        self._least_pages = config.flush_commit_log_least_pages
        self._thorough_interval_ms = config.flush_commit_log_thorough_interval
        self._timed = config.flush_commit_log_timed
        self._clock = clock
        self._woken = Event()
        self._wanted_end = 0
        self._stopped = False
        self._failing = False
        self._saved_end = log.writing_page.appended_end
        self._saved_ms = self._thorough_ms = self._checked_ms = clock()
        self._thread = Background(self._run, "rmq-flush")

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end and wait for it."""
        self._stopped = True
        self._woken.set()
        self._thread.join()

    @property
    def is_late(self) -> bool:
        """Whether the thread has not looked for so long that an append flushes."""
        return self._clock() - self._checked_ms >= _LATE_INTERVALS * self._interval_ms

    def appended(self, *, may_flush: bool = True) -> None:
        """Call it after an append that does not wait for the disk. It flushes if the thread is late, and `may_flush`.

        Raises:
            StoreFailedError: the flush failed. The messages are stored, but perhaps never reach the disk.
        """
        if not self._timed:
            self._woken.set()
        if may_flush and self.is_late:
            with contextlib.suppress(StoreLockedError):  # somebody else is flushing at this moment
                self.flush_if_due(timeout_ms=0)

    def flush_async(self) -> None:
        """Let the thread flush all appended messages at once, however few, without waiting for it."""
        self._wanted_end = self._log.writing_page.appended_end
        self._woken.set()

    def flush_if_due(self, timeout_ms: int | None = None) -> None:
        """Flush if enough pages are dirty, a segment is full, the last flush was long ago, or `flush_async` was called.
        Raises as `flush`.
        """
        now_ms = self._clock()
        page = self._log.writing_page
        flushed, appended = page.flushed_end, page.appended_end
        segment_bytes = self._log.segments.size_bytes
        if now_ms - self._thorough_ms >= self._thorough_interval_ms:
            flush(self._log, appended, timeout_ms)
            self._thorough_ms = now_ms
        elif (
            self._log.sync_flush
            or flushed < self._wanted_end
            or appended // _PAGE_BYTES - flushed // _PAGE_BYTES >= self._least_pages
            or appended // segment_bytes > flushed // segment_bytes
        ):
            flush(self._log, appended, timeout_ms)
        self._checked_ms = now_ms  # not after a failure: writers hear of that from their own flush

    def _run(self) -> None:
        while not self._stopped:
            self._woken.wait(self._interval_ms / 1000)
            self._woken.clear()
            if self._stopped:
                return
            try:
                self.flush_if_due()
                self._save_progress_if_due()
                self._failing = False
            except StoreReplacedError as error:
                if not self._failing:
                    _LOG.error("%s", error)
                self._failing = True
            except StoreLockedError as error:  # whoever has the lock is flushing
                if not self._failing:
                    _LOG.warning("the flush is late, trying again every %s ms: %s", self._interval_ms, error)
                self._failing = True
            except Exception:
                # The thread goes on: the cause may pass. Writers take it for late, and hear of it by their own flush.
                if not self._failing:
                    again = f"trying again every {self._interval_ms} ms"
                    if self._log.writing_page.poison:
                        again = "nothing is written any more until every process that has the store open has closed it"
                    _LOG.exception("%s: flush failed; %s", self._log.root, again)
                self._failing = True

    def _save_progress_if_due(self) -> None:
        end = self._log.writing_page.appended_end
        waited_ms = self._clock() - self._saved_ms
        if end - self._saved_end >= PROGRESS_INTERVAL_BYTES or (
            end > self._saved_end and waited_ms >= PROGRESS_INTERVAL_MS
        ):
            save_progress(self._log)
            self._saved_end, self._saved_ms = end, self._clock()
