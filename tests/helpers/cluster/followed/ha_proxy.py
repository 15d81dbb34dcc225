"""A proxy of the tests between a feeder and the HA port of its master, for bytes: it cuts them anywhere, and ends
connections between any two of them.

    with HAProxy(f"{host}:{ha_port}") as proxy:
        proxy.pieces = lambda: 1        # from now on one byte at a time
        proxy.cut(after_bytes=4711)     # each connection ends after so many bytes from now on
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

READ_BYTES: Final = 1 << 16
_RESET: Final = struct.pack("ii", 1, 0)


class HAProxy:
    """Listens on a port of loopback. `pieces` tells how many bytes the feeder gets next; `passed` counts them,
    `connections` those that were made, and `cuts` those that `cut` has ended.
    """

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = host, int(port)
        self.pieces: Callable[[], int] = lambda: READ_BYTES
        self.passed = 0
        self.connections = 0
        self.cuts = 0
        self._left: int | None = None
        self._resets = False
        self._links: set[socket.socket] = set()
        self._is_closed = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def cut(self, after_bytes: int, *, resets: bool = False) -> None:
        """End the connection after so many more bytes, once. `resets`: with RST, so that the feeder may lose what it
        has not read.
        """
        self._resets, self._left = resets, after_bytes

    def close(self) -> None:
        """End all connections."""
        self._is_closed.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for link in list(self._links):
            with contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _accept(self) -> None:
        while not self._is_closed.is_set():
            try:
                feeder, _ = self._listener.accept()
            except OSError:
                return
            try:
                master = socket.create_connection(self._target, 10)
            except OSError:  # the master is away
                feeder.close()
                continue
            master.settimeout(None)
            feeder.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._links |= {feeder, master}
            self.connections += 1
            for work in (self._reports, self._transfers):
                thread = threading.Thread(target=self._pass, args=(work, feeder, master), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _pass(
        self, work: Callable[[socket.socket, socket.socket], None], feeder: socket.socket, master: socket.socket
    ) -> None:
        try:
            with contextlib.suppress(OSError, ValueError):  # the other thread has closed it
                work(feeder, master)
        finally:
            for end in (feeder, master):
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                self._links.discard(end)
                end.close()

    @staticmethod
    def _reports(feeder: socket.socket, master: socket.socket) -> None:
        while True:  # a `recv` that waits would hold a socket open that the other thread closes
            if select.select([feeder], [], [], 0.1)[0]:
                data = feeder.recv(READ_BYTES)
                if not data:
                    return
                master.sendall(data)

    def _transfers(self, feeder: socket.socket, master: socket.socket) -> None:
        while data := memoryview(master.recv(READ_BYTES)):
            while len(data):
                count = min(self.pieces(), len(data))
                if self._left is not None:
                    count = min(count, self._left)
                    self._left -= count
                feeder.sendall(data[:count])
                self.passed += count
                data = data[count:]
                if self._left == 0:
                    self._left = None
                    self.cuts += 1
                    if self._resets:
                        feeder.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                        feeder.close()
                    return
