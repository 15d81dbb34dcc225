"""A proxy of the tests between a client and one server of the remoting protocol. It delays, loses and cuts.

    with FaultProxy(cluster.address()) as proxy:
        settings = ClusterSettings(..., address_map={cluster.address(): proxy.address})
        proxy.lose_answers(RequestCode.SEND_BATCH_MESSAGE, count=1)     # stored, and nobody hears of it
        ...
        assert proxy.lost == 1

All that is set here may change at any time. Bytes pass as they are; frames are decoded beside them to know their codes.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections import Counter
from enum import Enum
from types import TracebackType
from typing import Final, Self

from helpers.cluster.stub_server import StubLoop
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.frames import FrameDecoder
from rmq_store.server.transport.accepting import stop_accepting

_READ_BYTES: Final = 1 << 16
_LENGTH_BYTES: Final = 4


class Loss(Enum):
    """What the client sees when an answer is lost."""

    SILENCE = "nothing"
    RESET = "a reset connection"
    TORN = "half of the answer, and the end of the connection"


class FaultProxy:
    """Listens on a port of loopback and passes everything on to `target` (`host:port`), as long as no fault is set.

    `delay_ms`: before each piece of an answer. `bytewise`: answers come byte by byte. `requests` counts what clients
    have sent, by code; `lost` counts answers that were lost on purpose, `held` requests that were held back.
    """

    def __init__(self, target: str, *, loop: StubLoop | None = None) -> None:
        self.target = target
        self.delay_ms = 0
        self.bytewise = False
        self.requests: Counter[int] = Counter()
        self.lost = 0
        self.held = 0
        self.port = 0
        self._owns_loop = loop is None
        self._loop = loop or StubLoop()
        self._losses: dict[int, tuple[Loss, int | None]] = {}
        self._passes: dict[int, int] = {}
        self._links: set[_Link] = set()
        self._flow = asyncio.Event()
        self._flow.set()
        self._server: asyncio.Server | None = None
        self.restore()

    @property
    def address(self) -> str:
        """For clients: `host:port`, the same one after `cut_off` and `restore`."""
        return f"127.0.0.1:{self.port}"

    def lose_answers(self, code: int, *, count: int | None = None, as_: Loss = Loss.SILENCE) -> None:
        """Lose the answers to the next `count` requests of a code (all without it), after the server has done them."""
        self._losses[code] = (as_, count)

    def keep_answers(self) -> None:
        """Lose no more answers."""
        self._losses.clear()

    def hold_requests(self, code: int, *, after: int = 0) -> None:
        """Let `after` more requests of a code through; the next ones, and what follows them on their connections, stay
        here until these connections end.
        """
        self._passes[code] = after

    def hold_no_requests(self) -> None:
        """End of `hold_requests` for requests that are still to come."""
        self._passes.clear()

    def half_open(self) -> None:
        """From now on nothing passes, in no direction; connections stay, and new ones are accepted."""
        self._call(self._flow.clear)

    def flow(self) -> None:
        """End of `half_open`: what was held back passes now."""
        self._call(self._flow.set)

    def reset(self) -> None:
        """End all connections of clients with RST; new ones are served."""
        self._call(self._reset_all)

    def cut_off(self) -> None:
        """End all connections, and refuse new ones."""
        self._loop.run(self._cut_off())

    def restore(self) -> None:
        """End of `cut_off`."""
        if self._server is None:
            self._server = self._loop.run(self._listen())

    def close(self) -> None:
        """Stop listening and end all connections."""
        self.cut_off()
        if self._owns_loop:
            self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- in the thread of the loop -----------------------------------------------------------------------------------

    def loss_of(self, code: int | None) -> Loss | None:
        """Whether, and how, the answer to a request of this code is lost now; it counts as lost then."""
        if code is None or code not in self._losses:
            return None
        loss, left = self._losses[code]
        if left == 1:
            del self._losses[code]
        elif left is not None:
            self._losses[code] = (loss, left - 1)
        self.lost += 1
        return loss

    def is_held(self, code: int) -> bool:
        """Whether a request of this code stays here; it counts as held then."""
        left = self._passes.get(code)
        if left is None:
            return False
        if left:
            self._passes[code] = left - 1
            return False
        self.held += 1
        return True

    async def passable(self) -> None:
        """Wait while the proxy is half-open."""
        await self._flow.wait()

    def _call(self, function) -> None:  # type: ignore[no-untyped-def]
        async def run() -> None:
            function()

        self._loop.run(run())

    async def _listen(self) -> asyncio.Server:
        server = await asyncio.start_server(self._accept, "127.0.0.1", self.port, backlog=200)
        self.port = server.sockets[0].getsockname()[1]
        return server

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = _Link(self, reader, writer)
        self._links.add(link)
        link.start()

    def ended(self, link: _Link) -> None:
        """Forget a client that has gone."""
        self._links.discard(link)

    def _reset_all(self) -> None:
        for link in list(self._links):
            link.reset()

    async def _cut_off(self) -> None:
        if self._server is not None:
            server, self._server = self._server, None
            await stop_accepting([server])
        self._reset_all()


class _Link:
    """One client and its connection with the server."""

    def __init__(self, proxy: FaultProxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self._reader = reader
        self._writer = writer
        self._to_server: asyncio.StreamWriter | None = None
        self._codes: dict[int, int] = {}
        self._running: asyncio.Future[None] | None = None

    def start(self) -> None:
        """Pass bytes on until one side has ended."""
        self._running = asyncio.ensure_future(self._run())
        self._running.add_done_callback(self._end)

    async def _run(self) -> None:
        host, _, port = self._proxy.target.rpartition(":")
        with contextlib.suppress(OSError):
            await self._proxy.passable()
            from_server, self._to_server = await asyncio.open_connection(host, int(port))
            ways = [asyncio.ensure_future(self._requests()), asyncio.ensure_future(self._answers(from_server))]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)

    def _end(self, _: asyncio.Future[None]) -> None:
        self._proxy.ended(self)
        for writer in (self._writer, self._to_server):
            if writer is not None:
                writer.close()

    def reset(self) -> None:
        """End the client's connection with RST, and the server's. One that has just ended stays as it is."""
        client = self._writer.get_extra_info("socket")
        if client.fileno() >= 0:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._writer.transport.abort()
        if self._to_server is not None:
            self._to_server.transport.abort()

    async def _requests(self) -> None:
        assert self._to_server is not None
        frames = _Frames()
        while data := await self._reader.read(_READ_BYTES):
            for frame in frames.feed(data):
                command = frames.command(frame)
                if not command.is_response:
                    self._proxy.requests[command.code] += 1
                    self._codes[command.opaque] = command.code
                    if self._proxy.is_held(command.code):
                        await asyncio.Event().wait()
                await self._proxy.passable()
                self._to_server.write(frame)
                await self._to_server.drain()

    async def _answers(self, from_server: asyncio.StreamReader) -> None:
        frames = _Frames()
        while data := await from_server.read(_READ_BYTES):
            for frame in frames.feed(data):
                command = frames.command(frame)
                code = self._codes.pop(command.opaque, None) if command.is_response else None
                await self._proxy.passable()
                await asyncio.sleep(self._proxy.delay_ms / 1000)
                await self._deliver(frame, self._proxy.loss_of(code))

    async def _deliver(self, frame: bytes, loss: Loss | None) -> None:
        match loss:
            case None:
                await self._write(frame)
            case Loss.RESET:
                self.reset()
            case Loss.TORN:
                await self._write(frame[: len(frame) // 2])
                self._writer.close()

    async def _write(self, frame: bytes) -> None:
        pieces = [frame[at : at + 1] for at in range(len(frame))] if self._proxy.bytewise else [frame]
        for piece in pieces:
            self._writer.write(piece)
            await self._writer.drain()
            if self._proxy.bytewise:
                await asyncio.sleep(0)


class _Frames:
    """Cuts a stream of bytes into frames, and leaves the bytes alone."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        self._buffer += data
        found = []
        while len(self._buffer) >= _LENGTH_BYTES:
            end = _LENGTH_BYTES + int.from_bytes(self._buffer[:_LENGTH_BYTES], "big")
            if len(self._buffer) < end:
                break
            found.append(bytes(self._buffer[:end]))
            del self._buffer[:end]
        return found

    @staticmethod
    def command(frame: bytes) -> RemotingCommand:
        (command,) = FrameDecoder().feed(frame)
        return command
