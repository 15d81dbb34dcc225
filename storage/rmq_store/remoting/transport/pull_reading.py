"""Reads the answers of rounds from a socket, in one call of the extension for many reads, and without the GIL.

The extension reads, places answers, and waits, until something is unusual or a round is whole. Bytes that it has
read and not placed stay here; the decoder of the connection gets them when they are not usual.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from enum import IntEnum
from typing import Final

from rmq_store.format.bytes import native
from rmq_store.protocol.wire.pull_answers import PulledRound

BUFFER_BYTES: Final = 512 << 10
"""More than an answer of 256 KiB; the decoder gets what is larger, as it comes."""


class End(IntEnum):
    """Why the extension stopped (native/pull_answers.c)."""

    ROUND_IS_WHOLE = 0
    NOT_USUAL = 1
    NOTHING_TO_READ = 2
    CLOSED = 3
    BROKEN = 4


class PullReading:
    """Bytes of one connection that came for its rounds. Not safe for threads."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._there = 0
        self._end = End.NOTHING_TO_READ

    @property
    def has_bytes(self) -> bool:
        """Whether bytes came that nobody has taken."""
        return bool(self._there)

    @property
    def may_have_frames(self) -> bool:
        """Whether whole frames may be among them, so that the socket need not announce anything."""
        return bool(self._there) and self._end is End.ROUND_IS_WHOLE

    def receive(
        self, connected: socket.socket, others: int, timeout_ms: int, rounds: Sequence[PulledRound]
    ) -> tuple[End, int, int]:
        """Read what is there, and wait until the descriptor `others` is ready or the time is over; it must become ready
        with the socket. Returns why this ended, how many bytes came, and the errno of BROKEN.
        """
        if not self._buffer:
            self._buffer = bytearray(BUFFER_BYTES)
        buffers = [waiting.buffers for waiting in rounds]
        end, self._there, received, errno = native.functions.receive_pull_answers(
            connected.fileno(), others, self._buffer, self._there, timeout_ms, buffers
        )
        self._end = End(end)
        return self._end, received, errno

    def taken(self) -> memoryview:
        """The bytes that came, which are no longer kept; valid until the next call."""
        there, self._there = self._there, 0
        return memoryview(self._buffer)[:there]
