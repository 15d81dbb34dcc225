"""The flush thread of a store that is open for writing (CommitLog.FlushRealTimeService).

It flushes what any process appended, so the data of a writer that went idle or died do not wait for ever.
"""

from __future__ import annotations

import logging
import threading
import time

from rmq_store.log.commit_log import CommitLog
from rmq_store.log.flush import PROGRESS_INTERVAL_BYTES, PROGRESS_INTERVAL_MS, flush, save_progress

_LOG = logging.getLogger(__name__)


class Flusher:
    """Starts with the store, ends with `stop`; a daemon, so that it never keeps a process alive."""

    def __init__(self, log: CommitLog, interval_ms: int) -> None:
        self._log = log
        self._interval_s = interval_ms / 1000
        self._stop = threading.Event()
        self._failing = False
        self._saved_end = log.writing_page.appended_end
        self._saved_s = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="rmq-flush", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end and wait for it."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            try:
                self._flush()
                self._failing = False
            except Exception:
                # The thread goes on: the cause may pass, and writers get the error from their own next call.
                if not self._failing:
                    _LOG.exception("%s: flush failed; trying again every %s s", self._log.root, self._interval_s)
                self._failing = True

    def _flush(self) -> None:
        flush(self._log)
        end = self._log.writing_page.appended_end
        waited_ms = (time.monotonic() - self._saved_s) * 1000
        if end - self._saved_end >= PROGRESS_INTERVAL_BYTES or (
            end > self._saved_end and waited_ms >= PROGRESS_INTERVAL_MS
        ):
            save_progress(self._log)
            self._saved_end, self._saved_s = end, time.monotonic()
