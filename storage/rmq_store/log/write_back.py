"""Lets the disk begin with a large append while it goes on: who waits for the disk afterwards waits less.

These are hints, given by a thread of its own: the append has the append lock, and a disk that is slower must not hold
it up. What the thread has not come to when the append is over is left to the flush. An error of the disk is told by
that flush, as one of the kernel's own writing back is, so nobody looks at what became of a hint.
"""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType

from rmq_store.errors import StoreError
from rmq_store.files.segments import SegmentRun

# A hint costs a change of threads: not for a little.
STEP_BYTES = 4 << 20


class WriteBack:
    """What one append has written to `segments`, for a `with` block. Unless it is `wanted`, nothing happens."""

    def __init__(self, segments: SegmentRun, *, wanted: bool) -> None:
        self._segments = segments
        self._wanted = wanted
        self._start = self._end = 0
        self._thread: ThreadPoolExecutor | None = None

    def wrote(self, offset: int, size_bytes: int) -> None:
        """These bytes of the log were written; they lie within one file."""
        if not self._wanted:
            return
        if offset != self._end or self._segments.base_of(offset) != self._segments.base_of(self._start):
            self._begin()
            self._start = offset
        self._end = offset + size_bytes
        if self._end - self._start >= STEP_BYTES:
            self._begin()

    def _begin(self) -> None:
        start, self._start = self._start, self._end
        if start == self._end:
            return
        base = self._segments.base_of(start)
        with contextlib.suppress(StoreError, OSError):  # no descriptor left, say
            file = self._segments.open(base)
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1)
            self._thread.submit(file.start_writing_back, start - base, self._end - start)

    def __enter__(self) -> WriteBack:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)
