"""One connection of a client, in the thread of its listener."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol, cast

from rmq_store.protocol.errors import RemotingCommandError
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.frames import FrameDecoder, encode_command
from rmq_store.server.requests.request import Request
from rmq_store.server.transport.limits import ListenerLimits

_log: Final = logging.getLogger(__name__)


class ConnectionOwner(Protocol):
    """The listener, as its connections see it."""

    limits: ListenerLimits

    def opened(self, connection: Connection) -> bool:
        """Count a connection; False if there are too many."""

    def closed(self, connection: Connection) -> None:
        """Forget a connection."""

    def receive(self, request: Request) -> None:
        """Take a request."""


class Connection(asyncio.Protocol):
    """Frames in, requests out; answers of any thread are written in the thread of the loop.

    `Peer` of the requests. An answer that waits for its thread costs no task and no lock of asyncio.
    """

    def __init__(self, owner: ConnectionOwner, loop: asyncio.AbstractEventLoop) -> None:
        self._owner = owner
        self._loop = loop
        self._decoder = FrameDecoder(owner.limits.frame_bytes_max)
        self._transport: asyncio.Transport | None = None
        self._outgoing: deque[bytes] = deque()
        self._turn = threading.Lock()
        self._is_flushing = False
        self.address = ""
        self.heard_s = time.monotonic()
        self.on_closed: list[Callable[[Connection], None]] = []
        """Called in the thread of the loop when the connection has ended; must not wait."""

    # -- asyncio ----------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """As asyncio calls it."""
        self._transport = cast(asyncio.Transport, transport)
        host, port, *_ = transport.get_extra_info("peername") or ("", 0)
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._transport.set_write_buffer_limits(high=self._owner.limits.unsent_bytes_max)
        if not self._owner.opened(self):
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """As asyncio calls it."""
        try:
            commands = self._decoder.feed(data)
        except RemotingCommandError as error:
            self._refuse(error)
            return
        for command in commands:
            self.heard_s = time.monotonic()
            if command.is_response:
                continue  # of a request of ours that wants no answer
            self._owner.receive(Request(command, self, self.heard_s))
        if self._decoder.failure is not None:
            self._refuse(self._decoder.failure)

    def pause_writing(self) -> None:
        """As asyncio calls it: the client does not read its answers, so that no more requests are read."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """As asyncio calls it."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """As asyncio calls it."""
        self._transport = None
        self._owner.closed(self)
        for call in self.on_closed:
            call(self)

    # -- Peer -------------------------------------------------------------------------------------------------------

    def send(self, command: RemotingCommand) -> None:
        """As `Peer.send`."""
        data = encode_command(command, self._owner.limits.frame_bytes_max)
        with self._turn:
            self._outgoing.append(data)
            if self._is_flushing:
                return
            self._is_flushing = True
        try:
            self._loop.call_soon_threadsafe(self._flush)
        except RuntimeError:  # the loop was closed
            self._outgoing.clear()

    def abort(self) -> None:
        """End the connection at once; in the thread of the loop."""
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """End the connection behind what is being written; in the thread of the loop."""
        if self._transport is not None:
            self._flush()
            self._transport.close()

    def _flush(self) -> None:
        with self._turn:
            self._is_flushing = False
            pieces = list(self._outgoing)
            self._outgoing.clear()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.writelines(pieces)

    def _refuse(self, error: RemotingCommandError) -> None:
        _log.warning("%s: %s; the connection is closed", self.address, error)
        self.abort()
