"""Limits of a small HTTP server: the number of clients, the time and size of a request, and the host names that it
answers.

A browser on this machine can be led to any address by somebody else's name (DNS rebinding); it sends that name as Host.
So a name counts only if it was named. An address cannot be led elsewhere.
"""

from __future__ import annotations

import io
import ipaddress
import re
import socket
import time
from collections.abc import Collection

from rmq_store.errors import UsageError

CONNECTIONS_MOST = 32
"""At once; the next client is told to come again."""

REQUEST_S = 10.0
"""For a whole request, and again for taking the answer."""

REQUEST_BYTES_MOST = 16 << 10

_NAME = re.compile(r"[0-9A-Za-z_](?:[0-9A-Za-z_.-]{0,251}[0-9A-Za-z_])?", re.ASCII)
_HOST = re.compile(r"(?:\[(?P<six>[^\[\]]*)\]|(?P<name>[^\[\]:]*))(?::[0-9]{0,5})?", re.ASCII)


class RequestTooLargeError(Exception):
    """The client sends more than REQUEST_BYTES_MOST."""


class LimitedReader(io.RawIOBase):
    """Reads a request from a socket. However slowly it drips: it has REQUEST_S from now on.

    Raises:
        TimeoutError: the time is over.
        RequestTooLargeError: it is longer than any that makes sense.
    """

    def __init__(self, connection: socket.socket, patience_s: float = REQUEST_S) -> None:
        self._connection = connection
        self._end_s = time.monotonic() + patience_s
        self._left = REQUEST_BYTES_MOST

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """As RawIOBase."""
        left_s = self._end_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the request takes too long")
        self._connection.settimeout(left_s)
        count = self._connection.recv_into(buffer, min(len(buffer), self._left + 1))
        self._left -= count
        if self._left < 0:
            raise RequestTooLargeError
        return count


def check_name(name: str) -> str:
    """A host name as `is_ours` compares them. UsageError: that is none."""
    if not _NAME.fullmatch(name):
        raise UsageError(f"--host {name!r}: a name without a port is needed, such as metrics.example.com")
    return name.lower()


def is_ours(host: str, names: Collection[str]) -> bool:
    """Whether a request with this Host may be answered: an address, localhost, or one of `names`; with any port."""
    parts = _HOST.fullmatch(host.strip())
    if parts is None:
        return False
    name = (parts["name"] or "").lower().removesuffix(".")
    if name == "localhost" or name in names:
        return True
    try:
        ipaddress.ip_address(parts["six"] if parts["six"] is not None else name)
    except ValueError:
        return False
    return True
