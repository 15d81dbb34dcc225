"""Listens at an address, in a thread of its own with an event loop (NettyRemotingServer.java)."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

from rmq_store import real_time
from rmq_store.errors import UsageError
from rmq_store.log.append.lone_append import FRAME_BYTES_MAX
from rmq_store.server.requests.dispatcher import BytesProcessor
from rmq_store.server.requests.request import Request
from rmq_store.server.transport.accepting import stop_accepting
from rmq_store.server.transport.connection import Connection
from rmq_store.server.transport.incomplete_frames import IncompleteFrames
from rmq_store.server.transport.limits import ListenerLimits
from rmq_store.server.transport.tls import TlsHandshake
from rmq_store.server.transport.working_bytes import WorkingBytes

T = TypeVar("T")

_CALL_S: Final = 30.0
_IDLE_LOOK_S: Final = 5.0
_BACKLOG: Final = 1024
_READ_BYTES: Final = 256 << 10
# asyncio accepts so many connections at once, before it asks us whether there is room for one.
_ACCEPTED_AT_ONCE: Final = 64


class Listener:
    """Has its port from the beginning, and takes connections from `start` on. `receive` is called in the listener's
    thread with the requests that a client has sent together, and must not wait. `serve` may answer some from their
    bytes before.

    Raises:
        UsageError: the address cannot be listened at.
    """

    def __init__(
        self,
        host: str,
        port: int,
        receive: Callable[[Sequence[Request]], None],
        *,
        serve: BytesProcessor | None = None,
        limits: ListenerLimits | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.host, self.port = host, port
        self.limits = limits or ListenerLimits()
        self.receive = receive
        # It answers requests of this size at most.
        has_room = min(self.limits.frame_bytes_max, self.limits.header_bytes_max) >= FRAME_BYTES_MAX
        self.serve = serve if has_room else None
        self._connections_max = self.limits.connections_that_fit()
        self.working = WorkingBytes(self.limits.working_bytes_max, self._full)
        self.incomplete = IncompleteFrames(self.limits.incomplete_bytes_max)
        self.read_buffer = memoryview(bytearray(_READ_BYTES))
        self.connections: set[Connection] = set()
        self._handshakes: set[TlsHandshake] = set()
        self._tls = tls
        self._loop = real_time.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="rmq-listener", daemon=True)
        self._thread.start()
        try:
            self._server = self._run(self._listen(host, port))
        except OSError as error:
            self._stop_loop()
            raise self._refused(error) from error
        self.port = self._server.sockets[0].getsockname()[1]
        self._servers = [self._server]
        self._idle_look = self._run(self._start_idle_look())

    def opened(self, connection: Connection) -> bool:
        """As `ConnectionOwner.opened`."""
        if self._has_room():
            self.connections.add(connection)
            return True
        return False

    def closed(self, connection: Connection) -> None:
        """As `ConnectionOwner.closed`."""
        self.connections.discard(connection)

    def shaking(self, handshake: TlsHandshake) -> bool:
        """As `HandshakeOwner.shaking`."""
        if self._has_room():
            self._handshakes.add(handshake)
            return True
        return False

    def shaken(self, handshake: TlsHandshake) -> None:
        """As `HandshakeOwner.shaken`."""
        self._handshakes.discard(handshake)

    def _has_room(self) -> bool:
        return len(self.connections) + len(self._handshakes) < self._connections_max

    def _full(self, is_full: bool) -> None:
        with suppress(RuntimeError):  # the loop was closed
            self._loop.call_soon_threadsafe(self._pause_all)

    def _pause_all(self) -> None:
        for connection in self.connections:
            connection.pause(is_full=self.working.is_full)

    def listen_also(self, port: int) -> bool:
        """Have a second port of the same host, which takes the same connections; before `start`. False: it is taken,
        or no port that this process may have.
        """
        try:
            self._servers.append(self._run(self._listen(self.host, port)))
        except OSError:
            return False
        return True

    def start(self) -> None:
        """Take connections. UsageError: another one listens at the address since then."""
        try:
            self._run(self._start_serving())
        except OSError as error:
            raise self._refused(error) from error

    def stop_listening(self) -> None:
        """Refuse new connections; those that are there go on."""
        self._run(self._stop_listening())

    def close(self) -> None:
        """End all connections behind what is being written, and the thread. Does nothing the second time."""
        if self._loop.is_closed():
            return
        self._run(self._close())
        self._stop_loop()

    async def _listen(self, host: str, port: int) -> asyncio.Server:
        # Linux gives one free port to two that ask with SO_REUSEADDR while neither listens; the second listen() fails.
        return await self._loop.create_server(
            self._accepted, host, port, backlog=_ACCEPTED_AT_ONCE, start_serving=False, reuse_address=port != 0
        )

    async def _start_serving(self) -> None:
        for server in self._servers:
            await server.start_serving()
            for each in server.sockets:
                with each.dup() as same:  # the kernel keeps more of them waiting than asyncio accepts at once
                    same.listen(_BACKLOG)
                    # Connections inherit it, so that the next server has the port while the kernel remembers them.
                    same.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)

    def _accepted(self) -> asyncio.BaseProtocol:
        """The protocol of a new connection. asyncio's own TLS servers do not tell why a handshake has failed."""
        if self._tls is None:
            return self._connection()
        return TlsHandshake(self, self._tls, self.limits.tls_handshake_ms, self._connection)

    def _connection(self) -> Connection:
        return Connection(self, self._loop)

    async def _start_idle_look(self) -> asyncio.Task[None]:
        return asyncio.ensure_future(self._close_idle())

    async def _close_idle(self) -> None:
        while True:
            await asyncio.sleep(_IDLE_LOOK_S)
            oldest_s = real_time.monotonic() - self.limits.idle_ms / 1000
            for connection in [one for one in self.connections if one.heard_s < oldest_s]:
                connection.abort()

    async def _stop_listening(self) -> None:
        await stop_accepting(self._servers)

    async def _close(self) -> None:
        self._idle_look.cancel()
        await self._stop_listening()
        for handshake in list(self._handshakes):
            handshake.abort()
        for connection in list(self.connections):
            connection.close()
        # Closed connections flush in the next loop iterations.
        for _ in range(100):
            if not self.connections:
                break
            await asyncio.sleep(0.01)
        for connection in list(self.connections):
            connection.abort()
        await asyncio.sleep(0)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_CALL_S)

    def _refused(self, error: OSError) -> UsageError:
        return UsageError(f"cannot listen at {self.host}:{self.port}: {error.strerror or error}")

    def _stop_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CALL_S)
        self._loop.close()
