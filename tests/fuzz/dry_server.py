"""A broker server without sockets, whose requests are carried out in the calling thread: one execution after another.

Everything behind the sockets is the server's own: connections, dispatcher, processors, store. Its pools run what they
are given at once; its housekeeping does not run.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

from rmq_store import StoreConfig
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.frames import FrameDecoder
from rmq_store.server import broker_server, services
from rmq_store.server.broker_server import BrokerServer
from rmq_store.server.housekeeping import Housekeeping
from rmq_store.server.requests.dispatcher import BytesProcessor
from rmq_store.server.requests.request import Request
from rmq_store.server.transport.connection import Connection
from rmq_store.server.transport.incomplete_frames import IncompleteFrames
from rmq_store.server.transport.limits import ListenerLimits
from rmq_store.server.transport.working_bytes import WorkingBytes

SMALL = StoreConfig(mapped_file_size_commit_log=1 << 20, max_hash_slot_num=1000, max_index_num=10_000)
LIMITS = ListenerLimits(frame_bytes_max=1 << 16)
READ_BYTES = 256 << 10


class DryListener:
    """A `ConnectionOwner` at no address."""

    def __init__(self, host: str, port: int, receive: Callable[[Sequence[Request]], None], **other: Any) -> None:
        self.limits = LIMITS
        self.receive = receive
        self.serve: BytesProcessor | None = other.get("serve")
        self.read_buffer = memoryview(bytearray(READ_BYTES))
        self.port = 10911
        self.working = WorkingBytes(LIMITS.working_bytes_max, lambda is_full: None)
        self.incomplete = IncompleteFrames(LIMITS.incomplete_bytes_max)
        self.connections: set[Connection] = set()

    def opened(self, connection: Connection) -> bool:
        self.connections.add(connection)
        return True

    def closed(self, connection: Connection) -> None:
        self.connections.discard(connection)

    def listen_also(self, port: int) -> bool:
        return False

    def start(self) -> None:
        pass

    stop_listening = close = start


class _AtOnce:
    """A `WorkerPool` without threads."""

    waiting = 0
    is_idle = True

    def __init__(self, name: str, *_: object) -> None:
        self.name = name

    def submit(self, work: Any, *, force: bool = False) -> bool:
        work.run()
        return True

    def close(self) -> None:
        pass


class DryLoop:
    """The part of an event loop that a connection uses: calls wait until `run` is called. Timers never come."""

    def __init__(self) -> None:
        self._calls: list[tuple[Callable[..., object], tuple[object, ...]]] = []

    def call_soon_threadsafe(self, call: Callable[..., object], *arguments: object) -> None:
        self._calls.append((call, arguments))

    def call_later(self, delay_s: float, call: Callable[..., object], *arguments: object) -> None:
        pass

    def run(self) -> None:
        while self._calls:
            call, arguments = self._calls.pop(0)
            call(*arguments)


class DryTransport(asyncio.Transport):
    """Takes what the server writes."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 4711)})
        self._closing = False
        self._decoder = FrameDecoder()
        self.answers: list[RemotingCommand] = []
        """Its own requests to the client, too."""

    def is_closing(self) -> bool:
        return self._closing

    def abort(self) -> None:
        self._closing = True

    close = abort

    def writelines(self, pieces: Any) -> None:
        self.answers += self._decoder.feed(b"".join(pieces))

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


class DryServer:
    """A server over an empty store below `base`, until `close`."""

    def __init__(self, base: Path) -> None:
        logging.getLogger("rmq_store.server").setLevel(logging.CRITICAL)
        self._directory = tempfile.TemporaryDirectory(dir=base)
        self.root = Path(self._directory.name) / "store"
        with ExitStack() as patches:
            patches.enter_context(mock.patch.object(broker_server, "Listener", DryListener))
            patches.enter_context(mock.patch.object(services, "WorkerPool", _AtOnce))
            patches.enter_context(mock.patch.object(Housekeeping, "start", lambda _: None))
            self.server = BrokerServer(self.root, config=SMALL, create=True, admin=True)
        self.listener: Any = self.server._listener
        self.loop = DryLoop()

    def connect(self) -> tuple[Connection, DryTransport]:
        """A new client."""
        transport = DryTransport()
        connection = Connection(self.listener, self.loop)  # type: ignore[arg-type]
        connection.connection_made(transport)
        return connection, transport

    def read(self, connection: Connection, data: bytes) -> None:
        """A client has sent this, as asyncio says it."""
        while data:
            room = connection.get_buffer(-1)
            piece, data = data[: len(room)], data[len(room) :]
            room[: len(piece)] = piece
            connection.buffer_updated(len(piece))

    def close(self) -> None:
        """End the server; its directory stays until `remove`."""
        self.server.close()

    def remove(self) -> None:
        self._directory.cleanup()
