"""Requests of the server to a client, over the connection that the client has opened (Broker2Client.java)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeAlias

from rmq_store.protocol.wire.command import RemotingCommand

OnAnswer: TypeAlias = Callable[[RemotingCommand | None], None]
"""Gets the client's answer; None: it did not come in time, or the connection ended. Must not wait."""


class ClientCalls:
    """The calls of one connection that wait for their answers, by opaque. Safe for threads."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._waiting: dict[int, OnAnswer] = {}
        self._last = 0
        self._closed = False

    def begin(self, on_answer: OnAnswer) -> int | None:
        """Expect an answer, and return the opaque of its request; None: the connection has ended."""
        with self._turn:
            if self._closed:
                return None
            self._last += 1
            self._waiting[self._last] = on_answer
            return self._last

    def end(self, opaque: int, answer: RemotingCommand | None) -> None:
        """Give an answer to the one that waits for it. Does nothing the second time, and for an unknown opaque."""
        with self._turn:
            on_answer = self._waiting.pop(opaque, None)
        if on_answer is not None:
            on_answer(answer)

    def close(self) -> None:
        """End all calls without an answer."""
        with self._turn:
            self._closed = True
            waiting, self._waiting = list(self._waiting.values()), {}
        for on_answer in waiting:
            on_answer(None)
