"""Answers to sends that wait until slaves have their messages, so that no thread does (GroupTransferService.java)."""

from __future__ import annotations

import heapq
import threading
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from rmq_store import real_time
from rmq_store.log.replication import Replication
from rmq_store.protocol.results import SendStatus

Answer: TypeAlias = Callable[[SendStatus], None]
"""Gets SEND_OK or FLUSH_SLAVE_TIMEOUT, once, in whatever thread. It must not wait."""


# Answers that are late are found by a look every 0.1 s.
_SPARE_S: Final = 1.0


class _Held(NamedTuple):
    end: int
    number: int
    answer: Answer


class HeldAnswers:
    """Holds answers until `replication` has the log up to their end, or `timeout_ms` have passed. Safe for threads."""

    def __init__(self, replication: Replication, timeout_ms: int) -> None:
        self._replication = replication
        self._timeout_s = timeout_ms / 1000
        self._lock = threading.Condition()
        self._by_end: list[_Held] = []
        self._by_time: deque[tuple[float, int]] = deque()
        self._waiting: set[int] = set()
        self._number = 0

    def hold(self, end: int, answer: Answer) -> None:
        """Answer when slaves have the log up to `end`; perhaps now."""
        now = real_time.monotonic()
        with self._lock:
            self._number += 1
            heapq.heappush(self._by_end, _Held(end, self._number, answer))
            self._by_time.append((now + self._timeout_s, self._number))
            self._waiting.add(self._number)
        self.look(now)  # a report may have come since the message was stored

    def look(self, now: float) -> None:
        """Answer what slaves have by now, and what has waited for too long."""
        for held, status in self._due(now):
            held.answer(status)

    def close(self) -> None:
        """Wait until all are answered; no more come."""
        with self._lock:
            self._lock.wait_for(lambda: not self._waiting, self._timeout_s + _SPARE_S)
        self.look(float("inf"))

    def _due(self, now: float) -> list[tuple[_Held, SendStatus]]:
        replicated_end, due = self._replication.replicated_end, []
        with self._lock:
            while self._by_end and self._by_end[0].end <= replicated_end:
                held = heapq.heappop(self._by_end)
                self._waiting.discard(held.number)
                due.append((held, SendStatus.SEND_OK))
            late = set()
            while self._by_time and (self._by_time[0][0] <= now or self._by_time[0][1] not in self._waiting):
                _, number = self._by_time.popleft()
                if number in self._waiting:
                    late.add(number)
            if late:
                self._waiting -= late
                due += [(held, SendStatus.FLUSH_SLAVE_TIMEOUT) for held in self._by_end if held.number in late]
                self._by_end = [held for held in self._by_end if held.number not in late]
                heapq.heapify(self._by_end)
            if not self._waiting:
                self._lock.notify_all()
        return due
