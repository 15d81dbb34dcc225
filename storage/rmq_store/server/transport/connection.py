"""One connection of a client, in the thread of its listener."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, Literal, Protocol, TypeAlias, cast

from rmq_store import real_time
from rmq_store.protocol.errors import RemotingCommandError
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.frames import FrameDecoder, encode_command
from rmq_store.server.requests.dispatcher import BytesProcessor
from rmq_store.server.requests.request import Request
from rmq_store.server.transport.client_calls import ClientCalls, OnAnswer
from rmq_store.server.transport.incomplete_frames import IncompleteFrames
from rmq_store.server.transport.limits import ListenerLimits
from rmq_store.server.transport.working_bytes import Charge, WorkingBytes

_log: Final = logging.getLogger(__name__)

_NONE: Final = -1

_Pause: TypeAlias = Literal["unread answers", "requests in work", "server is full"]


def address_of(transport: asyncio.BaseTransport) -> str:
    """The client's `ip:port`."""
    host, port, *_ = transport.get_extra_info("peername") or ("", 0)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class ConnectionOwner(Protocol):
    """The listener, as its connections see it."""

    limits: ListenerLimits
    working: WorkingBytes
    incomplete: IncompleteFrames
    read_buffer: memoryview
    serve: BytesProcessor | None

    def opened(self, connection: Connection) -> bool:
        """Count a connection; False if there are too many."""

    def closed(self, connection: Connection) -> None:
        """Forget a connection."""

    def receive(self, requests: Sequence[Request]) -> None:
        """Take the requests that a client has sent together, one at least."""


class Connection(asyncio.BufferedProtocol):
    """Frames in, requests out. The thread that has an answer writes it, as far as the socket takes it; the thread of
    the loop writes what is left, and all answers under TLS.

    `Peer` of the requests. To wake up the loop for each answer would cost as much as to make the answer.
    """

    def __init__(self, owner: ConnectionOwner, loop: asyncio.AbstractEventLoop) -> None:
        self._owner = owner
        self._loop = loop
        self._decoder = self._new_decoder()
        self._transport: asyncio.Transport | None = None
        self._outgoing: deque[bytes] = deque()
        # Held while answers are written: they follow each other whole. The descriptor is not closed meanwhile.
        self._writing = threading.Lock()
        self._is_flushing = False
        self._outgoing_bytes = 0
        self._transport_has_bytes = False
        self._descriptor = _NONE
        self._lock = threading.Lock()
        self._incoming_bytes = 0
        self._in_work = 0
        self._pauses: set[_Pause] = set()
        self._calls = ClientCalls()
        self.address = ""
        self.heard_s = real_time.monotonic()
        self.on_closed: list[Callable[[Connection], None]] = []
        """Called in the thread of the loop when the connection has ended; must not wait."""

    # -- asyncio ----------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """As asyncio calls it."""
        self._transport = cast(asyncio.Transport, transport)
        self.address = address_of(transport)
        self._transport.set_write_buffer_limits(high=self._owner.limits.unsent_bytes_max)
        socket = transport.get_extra_info("socket")
        if socket is not None and transport.get_extra_info("sslcontext") is None:
            self._descriptor = socket.fileno()
        if not self._owner.opened(self):
            self._transport.abort()
        elif self._owner.working.is_full:
            self.pause(is_full=True)

    def get_buffer(self, sizehint: int) -> memoryview:
        """As asyncio calls it. All connections read into one buffer: asyncio would make one of 256 KiB for each read,
        which takes longer than to read a send.
        """
        return self._owner.read_buffer

    def buffer_updated(self, nbytes: int) -> None:
        """As asyncio calls it."""
        data = self._owner.read_buffer[:nbytes]
        served = 0
        if self._owner.serve is not None and self._decoder.is_between_frames:
            served, answers = self._owner.serve(data, self.address)
            if served:
                self.heard_s = real_time.monotonic()
                self._send(answers)
        if served < nbytes:
            self.data_received(bytes(data[served:]))

    def data_received(self, data: bytes) -> None:
        """Take what has come; the requests in it go to the owner."""
        try:
            commands = self._decoder.feed(data)
        except RemotingCommandError as error:
            self._refuse(error)
            return
        self._owner.incomplete.keep(self, self._decoder.kept_bytes, is_new=bool(commands))
        self._incoming_bytes += len(data)
        if commands:
            size, self._incoming_bytes = self._incoming_bytes // len(commands), 0
            self.heard_s = real_time.monotonic()
            requests = []
            for command in commands:
                if command.is_response:
                    self._calls.end(command.opaque, command)
                else:
                    requests.append(self._counted(command, size))
            if requests:
                self._owner.receive(requests)
        if self._decoder.failure is not None:
            self._refuse(self._decoder.failure)

    def pause_writing(self) -> None:
        """As asyncio calls it: the client does not read its answers, so that no more requests are read."""
        self._pause("unread answers", True)

    def resume_writing(self) -> None:
        """As asyncio calls it."""
        self._pause("unread answers", False)

    def connection_lost(self, exc: Exception | None) -> None:
        """As asyncio calls it."""
        self._transport = None
        with self._writing:
            self._descriptor = _NONE  # asyncio closes it next
            self._outgoing.clear()
        self._owner.incomplete.keep(self, 0)
        self._owner.closed(self)
        self._calls.close()
        for call in self.on_closed:
            call(self)

    # -- Peer -------------------------------------------------------------------------------------------------------

    def send(self, *commands: RemotingCommand) -> None:
        """As `Peer.send`."""
        self._send(b"".join([encode_command(command, self._owner.limits.frame_bytes_max) for command in commands]))

    def _send(self, data: bytes) -> None:
        with self._writing:
            if not self._is_flushing and not self._transport_has_bytes:
                data = data[self._write(data) :]
                if not data:
                    return
            self._outgoing.append(data)
            self._outgoing_bytes += len(data)
            if self._is_flushing:
                return
            self._is_flushing = True
        try:
            self._loop.call_soon_threadsafe(self._flush)
        except RuntimeError:  # the loop was closed
            self._outgoing.clear()

    def call(self, command: RemotingCommand, on_answer: OnAnswer, timeout_ms: int) -> None:
        """Send a request to the client. `on_answer` is called once, in the thread of the loop as a rule; at
        once with None if the connection has ended, or too many calls wait.

        Raises:
            RemotingCommandError: the request fits no frame; `on_answer` is not called.
        """
        encode_command(command, self._owner.limits.frame_bytes_max)
        opaque = self._calls.begin(on_answer)
        if opaque is None:
            on_answer(None)
            return
        command.opaque = opaque
        self.send(command)
        with suppress(RuntimeError):  # the loop was closed: the connection has ended its calls
            self._loop.call_soon_threadsafe(self._loop.call_later, timeout_ms / 1000, self._calls.end, opaque, None)

    def pause(self, *, is_full: bool) -> None:
        """Read no requests while the server is full of them; in the thread of the loop."""
        self._pause("server is full", is_full)

    def abort(self) -> None:
        """End the connection at once; in the thread of the loop."""
        if self._transport is not None:
            self._transport.abort()

    def give_up(self, reason: str) -> None:
        """As `Keeper.give_up`."""
        _log.warning("%s: %s; the connection is closed", self.address, reason)
        self._decoder = self._new_decoder()
        self.abort()

    def close(self) -> None:
        """End the connection behind what is being written; in the thread of the loop."""
        if self._transport is not None:
            self._flush()
            self._transport.close()

    def _new_decoder(self) -> FrameDecoder:
        limits = self._owner.limits
        return FrameDecoder(limits.frame_bytes_max, max_header_bytes=limits.header_bytes_max, keeps_room=False)

    def _write(self, data: bytes) -> int:
        """Write to the socket at once, in any thread; returns how many bytes it has taken. 0 also if it is broken or
        closed: the loop finds that out.
        """
        if self._descriptor == _NONE:
            return 0
        try:
            return os.write(self._descriptor, data)
        except OSError:
            return 0

    def _flush(self) -> None:
        with self._writing:
            self._is_flushing = False
            pieces = list(self._outgoing)
            self._outgoing.clear()
            size, self._outgoing_bytes = self._outgoing_bytes, 0
            if self._transport is None or self._transport.is_closing():
                return
            if self._transport.get_write_buffer_size() + size > self._owner.limits.unread_bytes_max:
                _log.warning("%s: does not read its answers; the connection is closed", self.address)
                self._transport.abort()
                return
            self._transport.writelines(pieces)
            self._transport_has_bytes = self._transport.get_write_buffer_size() > 0

    def _counted(self, command: RemotingCommand, size: int) -> Request:
        """A request for the server, which counts until it is done."""
        self._owner.working.add(size)
        with self._lock:
            self._in_work += 1
            is_much = self._in_work >= self._owner.limits.requests_max
        if is_much:
            self._pause("requests in work", True)
        charge = Charge(size, self._done)
        return Request(command, self, self.heard_s, charge.release)

    def _done(self, size: int) -> None:
        """In any thread: a request is answered or held."""
        self._owner.working.add(-size)
        with self._lock:
            self._in_work -= 1
            has_room = self._in_work == self._owner.limits.requests_max // 2
        if has_room:
            with suppress(RuntimeError):  # the loop was closed
                self._loop.call_soon_threadsafe(self._look_at_work)

    def _look_at_work(self) -> None:
        with self._lock:
            is_much = self._in_work >= self._owner.limits.requests_max
        self._pause("requests in work", is_much)

    def _pause(self, reason: _Pause, is_on: bool) -> None:
        """Read the client's requests only while there is no reason against it; in the thread of the loop."""
        (self._pauses.add if is_on else self._pauses.discard)(reason)
        if self._transport is None or self._transport.is_closing():
            return
        if self._pauses:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _refuse(self, error: RemotingCommandError) -> None:
        _log.warning("%s: %s; the connection is closed", self.address, error)
        self.abort()
