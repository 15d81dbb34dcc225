"""The bytes of one connection at an HA port, in plain text or over TLS. Nothing here waits.

RocketMQ knows no TLS here, so it lies between two of ours: the same reports and transfers, inside of TLS.
"""

from __future__ import annotations

import socket
import ssl
from typing import Final, Protocol

# A whole record of TLS: of what OpenSSL has read and keeps, no epoll tells.
_RECEIVE_BYTES: Final = 1 << 14
# The same, sent: the slave can read no byte of a record before the kernel has taken all of it.
_RECORD_BYTES: Final = 1 << 14


class SlaveLink(Protocol):
    """`is_secured`: bytes can be exchanged. `is_blocked`: the last step goes on when the kernel takes bytes."""

    is_secured: bool
    is_blocked: bool

    def receive(self) -> bytes | None:
        """The bytes that have come; None: nothing yet; b"": the slave has closed the connection. OSError."""

    def send(self, parts: list[memoryview]) -> int:
        """How many bytes of `parts` the kernel has taken. After 0 the next call begins with the same bytes. OSError."""

    def close(self) -> None:
        """End the connection."""


class PlainLink:
    """A connection as RocketMQ has it. `link` does not block."""

    is_secured = True

    def __init__(self, link: socket.socket) -> None:
        self._socket = link
        self.is_blocked = False

    def receive(self) -> bytes | None:
        """As `SlaveLink`."""
        try:
            return self._socket.recv(_RECEIVE_BYTES)
        except (BlockingIOError, InterruptedError):
            return None

    def send(self, parts: list[memoryview]) -> int:
        """As `SlaveLink`."""
        try:
            written = self._socket.sendmsg(parts)
        except (BlockingIOError, InterruptedError):
            written = 0
        self.is_blocked = written < sum(map(len, parts))
        return written

    def close(self) -> None:
        """As `SlaveLink`."""
        self._socket.close()


class TlsLink:
    """A connection over TLS; `receive` makes the handshake. `link` does not block. OSError: it is gone already."""

    def __init__(self, link: socket.socket, context: ssl.SSLContext) -> None:
        self._socket = context.wrap_socket(link, server_side=True, do_handshake_on_connect=False)
        self.is_secured = False
        self.is_blocked = False

    def receive(self) -> bytes | None:
        """As `SlaveLink`. ssl.SSLError, while it is not secured: there is no handshake."""
        self.is_blocked = False
        try:
            if not self.is_secured:
                self._socket.do_handshake()
                self.is_secured = True
            return self._socket.recv(_RECEIVE_BYTES)
        except ssl.SSLWantWriteError:
            self.is_blocked = True
        except (ssl.SSLWantReadError, InterruptedError):
            pass
        return None

    def send(self, parts: list[memoryview]) -> int:
        """As `SlaveLink`: one record, which is taken as a whole."""
        self.is_blocked = False
        record = bytearray()
        for part in parts:
            record += part[: _RECORD_BYTES - len(record)]
        try:
            return self._socket.send(record)
        except ssl.SSLWantWriteError:
            self.is_blocked = True
        except (ssl.SSLWantReadError, InterruptedError):
            pass
        return 0

    def close(self) -> None:
        """As `SlaveLink`. No farewell is sent: that could wait."""
        self._socket.close()
