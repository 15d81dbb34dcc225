"""Lets the disk begin with a large append while it goes on: who waits for the disk afterwards waits less.

These are hints, given by a thread of its own: the append has the append lock, and a disk that is slower must not hold
it up. What the thread has not come to when the append is over is left to the flush. An error of the disk is told by
that flush, as one of the kernel's own writing back is, so nobody looks at what became of a hint.
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
    """What one append writes to `segments` from `start` on, for a `with` block. Unless it is `wanted`, nothing happens.
    For any number of threads.
    """

    def __init__(self, segments: SegmentRun, start: int, *, wanted: bool) -> None:
        self._segments = segments
        self._wanted = wanted
        self._told = start
        self._hints: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._is_begun = self._is_over = False
        # A plain one: who is here has the append lock, whose blocks no signal handler of this thread enters.
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
