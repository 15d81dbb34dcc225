"""Limits of a small HTTP server: the number of clients, the time and size of a request, and the host names that it
answers.

Somebody else's host name can lead a browser on this machine to any address (DNS rebinding). The browser sends that name
as Host, so only host names that the user has listed are answered. Addresses need no list.
"""

from __future__ import annotations

import io
import ipaddress
import re
import socket
from collections.abc import Collection

from rmq_store import real_time
from rmq_store.errors import UsageError

CONNECTIONS_MOST = 32
"""At once; the next client is told to come again."""

REQUEST_S = 10.0
"""For a whole request, and again for taking the answer."""

REQUEST_BYTES_MOST = 16 << 10

_NAME = re.compile(r"[0-9A-Za-z_](?:[0-9A-Za-z_.-]{0,251}[0-9A-Za-z_])?", re.ASCII)
_HOST = re.compile(r"(?:\[(?P<six>[^\[\]]*)\]|(?P<name>[^\[\]:]*))(?::[0-9]{0,5})?", re.ASCII)


class RequestTooLargeError(Exception):
    """The client sends more than REQUEST_BYTES_MOST bytes."""


class LimitedReader(io.RawIOBase):
    """Reads a request from a socket, for REQUEST_S seconds at most, however slowly it comes.

    Raises:
        TimeoutError: the time is over.
        RequestTooLargeError: the request is too large.
    """

    def __init__(self, connection: socket.socket, patience_s: float = REQUEST_S) -> None:
        self._connection = connection
        self._end_s = real_time.monotonic() + patience_s
        self._left = REQUEST_BYTES_MOST

    def readable(self) -> bool:
        """True."""
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """As RawIOBase.readinto."""
        left_s = self._end_s - real_time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the request takes too long")
        self._connection.settimeout(left_s)
        count = self._connection.recv_into(buffer, min(len(buffer), self._left + 1))
        self._left -= count
        if self._left < 0:
            raise RequestTooLargeError
        return count


def check_name(name: str) -> str:
    """A host name in the form that `is_ours` compares. Raises UsageError for an invalid one."""
    if not _NAME.fullmatch(name):
        raise UsageError(f"--host {name!r}: a name without a port is needed, such as metrics.example.com")
    return name.lower()


def is_ours(host: str, names: Collection[str]) -> bool:
    """True if a request with this Host may be answered: an address, localhost, or one of `names`; with any port."""
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
