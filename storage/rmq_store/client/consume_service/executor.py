"""Runs the consumer's tasks on threads of its own, or on the caller's thread.

A task may be delayed until a time of the consumer's clock, which may differ from the machine's. The consumer calls
`release_due` in every round; it makes the due tasks ready.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
from collections import deque
from collections.abc import Callable

from rmq_store import real_time
from rmq_store.client.group.timers import SteadyClock
from rmq_store.files.locks.background import Background
from rmq_store.files.locks.guard import Condition

Task = Callable[[], None]

_log = logging.getLogger(__name__)


class Executor:
    """A queue of tasks. The first exception that leaves a task is kept in `failure`; nothing runs after it."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self.failure: BaseException | None = None
        self._clock = SteadyClock(clock)
        self._condition = Condition()
        self._ready: deque[Task] = deque()
        self._later: list[tuple[int, int, Task]] = []
        self._numbers = itertools.count()
        self._threads: list[Background] = []
        self._is_waking = False
        self._stopped = False

    def submit(self, task: Task) -> None:
        """Run the task as soon as a thread is free. After `stop` the task is dropped."""
        with self._condition:
            if not self._stopped:
                self._ready.append(task)
                self._wake_one()

    def submit_later(self, task: Task, delay_ms: int) -> None:
        """Run the task when the clock has advanced by `delay_ms`."""
        with self._condition:
            if not self._stopped:
                heapq.heappush(self._later, (self._clock() + delay_ms, next(self._numbers), task))

    def release_due(self) -> None:
        """Make the delayed tasks ready that are due now, in the order of their times."""
        with self._condition:
            now_ms = self._clock()
            while self._later and self._later[0][0] <= now_ms:
                self._ready.append(heapq.heappop(self._later)[2])
                self._wake_one()

    def run_ready(self) -> int:
        """Run on this thread tasks that are ready or become ready; returns their number. Raises their error."""
        count = 0
        while True:
            with self._condition:
                if not self._ready:
                    return count
                task = self._ready.popleft()
            count += 1
            task()

    def start(self, thread_count: int, name: str) -> None:
        """Start the executor's own threads, which run the tasks from now on."""
        for number in range(thread_count):
            thread = Background(self._work, f"{name}_{number}")
            self._threads.append(thread)
            thread.start()

    @property
    def is_stopped(self) -> bool:
        """True from the call of `stop` on, or when a task has failed."""
        return self._stopped

    def stop(self, wait_ms: int) -> bool:
        """Drop tasks that have not begun, and wait for running ones, `wait_ms` at most; False if some still run."""
        with self._condition:
            self._stopped = True
            self._condition.notify_all()
        deadline = real_time.monotonic() + wait_ms / 1000
        # A listener may end its own consumer.
        others = [thread for thread in self._threads if not thread.is_current()]
        for thread in others:
            thread.join(max(0.0, deadline - real_time.monotonic()))
        return not any(thread.is_alive() for thread in others)

    def _wake_one(self) -> None:
        """Wake one thread. It wakes the next one if tasks remain. Waking all at once would only cause contention for
        the interpreter lock.
        """
        if self._waiting and not self._is_waking:
            self._condition.notify()
            self._is_waking = True

    @property
    def _waiting(self) -> int:
        """The number of waiting threads that were not notified yet."""
        return self._condition.waiting

    def _work(self) -> None:
        while True:
            with self._condition:
                while not self._ready and not self._stopped:
                    self._condition.wait()
                    self._is_waking = False
                if self._stopped:
                    return
                task = self._ready.popleft()
                if self._ready:
                    self._wake_one()
            try:
                task()
            except BaseException as error:
                _log.exception("%s: consumption stops", threading.current_thread().name)
                with self._condition:
                    self.failure = self.failure or error
                    self._stopped = True
                    self._condition.notify_all()
