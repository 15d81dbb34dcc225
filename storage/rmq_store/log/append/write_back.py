"""Starts write-back of a large append early (sync_file_range), so that the final fsync is shorter.

These calls are hints. A thread of its own makes them, because the append holds the append lock, and a slow disk must
not block it. The flush writes what the thread has not reached when the append ends. That flush also reports errors of
the disk, as it does for the kernel's own write-back; so results of hints are ignored.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from types import TracebackType

from rmq_store.errors import StoreError
from rmq_store.files.locks.background import Background
from rmq_store.files.segments.segments import SegmentRun

# A hint costs a change of threads: not for a little.
STEP_BYTES = 4 << 20


class WriteBack:
    """Write-back of one append to `segments` from offset `start` on, for a `with` block. Without `wanted` it does
    nothing. Any thread may use it.
    """

    def __init__(self, segments: SegmentRun, start: int, *, wanted: bool) -> None:
        self._segments = segments
        self._wanted = wanted
        self._hinted_end = start
        self._hints: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._is_begun = self._is_over = False
        # A plain one: who is here has the append lock, whose blocks no signal handler of this thread enters.
        self._lock = threading.Lock()

    def written(self, end: int) -> None:
        """Report that the log was written up to this offset."""
        with self._lock:
            while self._wanted:
                file_end = self._segments.base_of(self._hinted_end) + self._segments.size_bytes
                if end < file_end and end - self._hinted_end < STEP_BYTES:
                    return
                self._begin(min(end, file_end))

    def _begin(self, end: int) -> None:
        start, self._hinted_end = self._hinted_end, end
        base = self._segments.base_of(start)
        with contextlib.suppress(StoreError, OSError, RuntimeError):  # no descriptor or thread left, say
            file = self._segments.open(base)
            self._hints.put(partial(file.start_writing_back, start - base, end - start))
            if not self._is_begun:
                self._is_begun = True
                Background(self._give_hints, "rmq-write-back").start()

    def _give_hints(self) -> None:
        while (hint := self._hints.get()) is not None:
            if not self._is_over:
                hint()

    def __enter__(self) -> WriteBack:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over = True
        self._hints.put(None)
