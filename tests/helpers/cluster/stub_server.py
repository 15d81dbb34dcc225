"""A server of the remoting protocol for tests: it answers with what a test's handler returns, and fails as told.

All servers of a `StubLoop` share one thread, so that a test can have a hundred of them. Handlers run in that thread.
"""

from __future__ import annotations

import asyncio
import inspect
import socket
import ssl
import struct
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeVar

from rmq_store.client import RemotingCommandError
from rmq_store.protocol.wire.command import RemotingCommand, response_to
from rmq_store.protocol.wire.frames import FrameDecoder, encode_command
from rmq_store.server.transport.accepting import stop_accepting

T = TypeVar("T")
Answer = RemotingCommand | bytes | None
# An `async def` may wait before it answers; the connection goes on with other requests.
Handler = Callable[["StubConnection", RemotingCommand], Answer | Awaitable[Answer]]


class StubLoop:
    """One thread with an event loop for any number of servers."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="stub-servers", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the thread of the servers and wait for its result."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(30)

    def close(self) -> None:
        """End all tasks and the thread."""
        self.run(_cancel_all())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        self.loop.close()


async def _cancel_all() -> None:
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


class StubConnection:
    """One accepted connection. `bytewise`: every byte of an answer is sent on its own."""

    def __init__(self, server: StubServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.server = server
        self.reader = reader
        self.writer = writer
        self.bytewise = server.bytewise
        self.requests: list[RemotingCommand] = []
        self._serving: asyncio.Future[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._lock = asyncio.Lock()

    def start(self) -> None:
        """Serve until the client ends the connection; in the thread of the servers only."""
        self._serving = asyncio.ensure_future(self._serve())
        self._serving.add_done_callback(lambda _: self.writer.close())

    async def _serve(self) -> None:
        decoder = FrameDecoder()
        with suppress(OSError, RemotingCommandError, asyncio.CancelledError):
            while data := await self.reader.read(1 << 16):
                for command in decoder.feed(data):
                    self.requests.append(command)
                    self.server.requests.append(command)
                    self._answer(command)
        await self._end()

    def _answer(self, command: RemotingCommand) -> None:
        answer = self.server.handler(self, command)
        if inspect.isawaitable(answer) or self.bytewise:
            task = asyncio.ensure_future(self._answer_later(answer, command))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            self.write(self._bytes(answer, command))  # type: ignore[arg-type]

    async def _answer_later(self, answer: Answer | Awaitable[Answer], command: RemotingCommand) -> None:
        with suppress(OSError):
            found = await answer if inspect.isawaitable(answer) else answer
            data = self._bytes(found, command)
            async with self._lock:
                for piece in [data[at : at + 1] for at in range(len(data))] if self.bytewise else [data]:
                    self.write(piece)
                    await self.writer.drain()
                    await asyncio.sleep(0)

    def _bytes(self, answer: Answer, command: RemotingCommand) -> bytes:
        if answer is None or isinstance(answer, bytes):
            return answer or b""
        return b"" if command.is_oneway else encode_command(answer)

    def write(self, data: bytes) -> None:
        """Send bytes as they are; in the thread of the servers only."""
        if data and not self.writer.is_closing():
            self.writer.write(data)

    def send(self, command: RemotingCommand) -> None:
        """Send a request to the client, or an answer that belongs to nothing; from any thread."""
        self.server.loop.loop.call_soon_threadsafe(self.write, encode_command(command))

    def send_bytes(self, data: bytes) -> None:
        """Send bytes as they are; from any thread."""
        self.server.loop.loop.call_soon_threadsafe(self.write, data)

    def reset(self) -> None:
        """End the connection with RST; in the thread of the servers only, so from a handler."""
        plain = self.writer.get_extra_info("socket")
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def _end(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        self.writer.close()
        with suppress(OSError):
            await self.writer.wait_closed()
        if self in self.server.connections:
            self.server.connections.remove(self)


class StubServer:
    """Listens on loopback. `requests` are those of all connections; `connections` are the open ones."""

    def __init__(
        self,
        handler: Handler,
        *,
        loop: StubLoop | None = None,
        port: int = 0,
        bytewise: bool = False,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.handler = handler
        self.bytewise = bytewise
        self.requests: list[RemotingCommand] = []
        self.connections: list[StubConnection] = []
        self.accepted = 0
        self._owns_loop = loop is None
        self.loop = loop or StubLoop()
        self._tls = tls
        self.port = port
        self._server: asyncio.Server | None = None
        self.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Listen (again) on the port."""
        self._server = self.loop.run(self._listen())

    async def _listen(self) -> asyncio.Server:
        server = await asyncio.start_server(self._accept, "127.0.0.1", self.port, ssl=self._tls, backlog=200)
        self.port = server.sockets[0].getsockname()[1]
        return server

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = StubConnection(self, reader, writer)
        self.connections.append(connection)
        self.accepted += 1
        connection.start()

    def stop(self) -> None:
        """No longer listen, and end all connections, as a broker that is killed."""
        self.loop.run(self._stop())

    async def _stop(self) -> None:
        if self._server is not None:
            server, self._server = self._server, None
            await stop_accepting([server])
        for connection in list(self.connections):
            connection.writer.transport.abort()

    def close(self) -> None:
        """Stop, and end the thread if it belongs to this server alone."""
        self.stop()
        if self._owns_loop:
            self.loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def echo(_: StubConnection, request: RemotingCommand) -> RemotingCommand:
    """Answer with the fields and the body of the request."""
    return response_to(request, 0, None, dict(request.ext_fields), request.body)
