"""Requests of the server to a client, over the connection that the client has opened (Broker2Client.java)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, TypeAlias

from rmq_store.protocol.wire.command import RemotingCommand

OnAnswer: TypeAlias = Callable[[RemotingCommand | None], None]
"""Gets the client's answer; None: it did not come in time, the connection ended, or too many calls wait. Must not wait.
"""

CALLS_MAX: Final = 1024
"""The most calls that wait for the answers of one client, as many as it may have requests in work."""


class ClientCalls:
    """The calls of one connection that wait for their answers, by opaque. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[int, OnAnswer] = {}
        self._last = 0
        self._closed = False

    def begin(self, on_answer: OnAnswer) -> int | None:
        """Expect an answer, and return the opaque of its request; None: the connection has ended, or
        CALLS_MAX wait.
        """
        with self._lock:
            if self._closed or len(self._waiting) >= CALLS_MAX:
                return None
            self._last += 1
            self._waiting[self._last] = on_answer
            return self._last

    def end(self, opaque: int, answer: RemotingCommand | None) -> None:
        """Give an answer to the one that waits for it. Does nothing the second time, and for an unknown opaque."""
        with self._lock:
            on_answer = self._waiting.pop(opaque, None)
        if on_answer is not None:
            on_answer(answer)

    def close(self) -> None:
        """End all calls without an answer."""
        with self._lock:
            self._closed = True
            waiting, self._waiting = list(self._waiting.values()), {}
        for on_answer in waiting:
            on_answer(None)
