"""A master whose slaves are sockets of the test, and followers of ours."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rmq_store import Message, Store, StoreConfig
from rmq_store.log.broker_role import BrokerRole
from rmq_store.server.broker_server import BrokerServer
from rmq_store.server.ha.settings import HASettings

SEGMENT_BYTES = 1 << 16
CONFIG = StoreConfig(
    mapped_file_size_commit_log=SEGMENT_BYTES,
    mapped_file_size_consume_queue=20 * 100,
    max_hash_slot_num=100,
    max_index_num=400,
)
HANG_S = 20.0

Serve = Callable[..., BrokerServer]


class Slave:
    """One connection to an HA port. `hello`: the first report; None: none is sent."""

    def __init__(self, address: str, hello: int | None = 0) -> None:
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), HANG_S)
        self.log = b""
        self.start = -1
        self._data = b""
        self.heartbeats: list[int] = []
        if hello is not None:
            self.report(hello)

    def report(self, offset: int) -> None:
        """Say that the slave has everything below `offset`."""
        self.socket.sendall(struct.pack(">q", offset))

    def read_transfer(self) -> tuple[int, bytes]:
        """The next transfer; b"" for a heartbeat."""
        offset, size = struct.unpack(">qi", self._exactly(12))
        return offset, self._exactly(size)

    def read_to(self, end: int) -> None:
        """Take transfers until the slave has the log up to `end`; they follow each other without a gap."""
        while self.start < 0 or self.start + len(self.log) < end:
            offset, data = self.read_transfer()
            if not data:
                self.heartbeats.append(offset)
                continue
            if self.start < 0:
                self.start = offset
            assert offset == self.start + len(self.log)
            assert offset // SEGMENT_BYTES == (offset + len(data) - 1) // SEGMENT_BYTES
            self.log += data

    def is_closed(self) -> bool:
        """Wait for the end of the connection, whatever comes before."""
        with contextlib.suppress(ConnectionResetError):
            while self.socket.recv(1 << 20):
                pass
        return True

    def close(self) -> None:
        self.socket.close()

    def _exactly(self, size: int) -> bytes:
        while len(self._data) < size:
            data = self.socket.recv(1 << 20)
            if not data:
                raise EOFError
            self._data += data
        found, self._data = self._data[:size], self._data[size:]
        return found


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Starts the server of one store; settings of HA by keyword."""
    with contextlib.ExitStack() as ends:

        def start(role: BrokerRole = BrokerRole.ASYNC_MASTER, **settings: object) -> BrokerServer:
            ha = HASettings(role=role, **settings)  # type: ignore[arg-type]
            root = tmp_path / "master"
            server = BrokerServer(root, config=CONFIG, create=True, ha=ha, vip_channel=False)
            ends.callback(server.close)
            if "Orders" not in server.store.topics():
                server.store.create_topic("Orders", queue_count=2)
            return server

        yield start


@pytest.fixture
def connect() -> Iterator[Callable[..., Slave]]:
    """Connects slaves, which end with the test."""
    with contextlib.ExitStack() as ends:

        def connect(server: BrokerServer, hello: int | None = 0) -> Slave:
            slave = Slave(server.ha_address, hello)
            ends.callback(slave.close)
            return slave

        yield connect


def fill(store: Store, count: int, size: int = 300) -> None:
    """Send messages to both queues of Orders, with keys."""
    for number in range(count):
        store.send(Message("Orders", bytes([number % 251]) * size, keys=f"k{number}", queue_id=number % 2))


def log_bytes(store: Store, start: int, end: int) -> bytes:
    """The bytes of the log, across segments."""
    found = b""
    while start < end:
        base = start - start % SEGMENT_BYTES
        stop = min(end, base + SEGMENT_BYTES)
        found += store._log.segments.open(base).map[start - base : stop - base]
        start = stop
    return found


def eventually(condition: Callable[[], object]) -> None:
    """Wait until it is so."""
    deadline = time.monotonic() + HANG_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def acknowledged(server: BrokerServer, *ends: int) -> None:
    """Wait until the slaves have reported these ends."""
    assert server.ha is not None
    ha = server.ha
    eventually(lambda: sorted(end for _, end in ha.slaves()) == sorted(ends))
