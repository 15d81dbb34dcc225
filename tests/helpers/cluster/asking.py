"""Requests to a name server or broker, field by field, on a socket of the caller: nothing here knows what they mean."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.frames import FrameDecoder, encode_command

# A SYNC_MASTER waits 3 s for its slave, and this machine has few processors.
TIMEOUT_S = 20.0
READ_BYTES = 1 << 16

Sign = Callable[[RemotingCommand], None]


class Connection:
    """One connection, one request at a time. `unasked` are the server's own requests, in the order in which they came.

    `sign` adds fields to each request before it is sent.
    """

    def __init__(
        self, address: str, *, tls: ssl.SSLContext | None = None, sign: Sign | None = None, timeout_s: float = TIMEOUT_S
    ) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout_s)
        if tls is not None:
            try:
                self._socket = tls.wrap_socket(self._socket, server_hostname=host)
            except BaseException:
                self._socket.close()
                raise
        self._sign = sign
        self._decoder = FrameDecoder()
        self._answers: dict[int, RemotingCommand] = {}
        self._opaque = 0
        self.unasked: list[RemotingCommand] = []

    def ask(self, code: int, fields: Mapping[str, object] | None = None, body: bytes = b"") -> RemotingCommand:
        """The answer, whatever its code. Raises OSError if the connection ends or nothing comes in time."""
        return self.answer(self.send(code, fields, body))

    def send(self, code: int, fields: Mapping[str, object] | None = None, body: bytes = b"", *, flag: int = 0) -> int:
        """Send a request and return its opaque."""
        self._opaque += 1
        texts = {name: str(value) for name, value in (fields or {}).items()}
        command = RemotingCommand(code, texts, body, self._opaque, flag)
        if self._sign is not None:
            self._sign(command)
        self._socket.sendall(encode_command(command))
        return self._opaque

    def answer(self, opaque: int) -> RemotingCommand:
        """The answer to a request that was sent."""
        while opaque not in self._answers:
            data = self._socket.recv(READ_BYTES)
            if not data:
                raise ConnectionError("the server has closed the connection")
            for command in self._decoder.feed(data):
                if command.is_response:
                    self._answers[command.opaque] = command
                else:
                    self.unasked.append(command)
        return self._answers.pop(opaque)

    def close(self) -> None:
        """Close the socket: a broker forgets the members that it knew by this connection."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
