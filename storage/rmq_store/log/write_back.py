"""Lets the disk begin with a large append while it goes on: who waits for the disk afterwards waits less.

These are hints, given by a thread of its own: the append has the append lock, and a disk that is slower must not hold
it up. What the thread has not come to when the append is over is left to the flush. An error of the disk is told by
that flush, as one of the kernel's own writing back is, so nobody looks at what became of a hint.
"""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType

from rmq_store.errors import StoreError
from rmq_store.files.segments import SegmentRun

# A hint costs a change of threads: not for a little.
STEP_BYTES = 4 << 20


class WriteBack:
    """What one append writes to `segments` from `start` on, for a `with` block. Unless it is `wanted`, nothing happens.
    For any number of threads.
    """

    def __init__(self, segments: SegmentRun, start: int, *, wanted: bool) -> None:
        self._segments = segments
        self._wanted = wanted
        self._told = start
        self._thread: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()

    def written(self, end: int) -> None:
        """The log was written up to there."""
        with self._lock:
            while self._wanted:
                file_end = self._segments.base_of(self._told) + self._segments.size_bytes
                if end < file_end and end - self._told < STEP_BYTES:
                    return
                self._begin(min(end, file_end))

    def _begin(self, end: int) -> None:
        start, self._told = self._told, end
        base = self._segments.base_of(start)
        with contextlib.suppress(StoreError, OSError):  # no descriptor left, say
            file = self._segments.open(base)
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1)
            self._thread.submit(file.start_writing_back, start - base, end - start)

    def __enter__(self) -> WriteBack:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)
