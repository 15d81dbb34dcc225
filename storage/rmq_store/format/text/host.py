"""A host as frames and message ids hold it: the raw address (4 or 16 bytes), then the port as a big-endian int32.

Source: ByteBuffer form of InetSocketAddress in MessageExt.java (socketAddress2ByteBuffer).
"""

from __future__ import annotations

import socket
from typing import NamedTuple

from rmq_store.errors import UsageError

IPV4_HOST_BYTES = 4 + 4
IPV6_HOST_BYTES = 16 + 4


class Host(NamedTuple):
    """An IP address of 4 or 16 raw bytes, and a port; `str()` gives `1.2.3.4:10911` or `[fe80::1]:10911`."""

    address: bytes
    port: int

    @classmethod
    def parse(cls, text: str) -> Host:
        """Read `ip:port` or `[ipv6]:port`; no name is ever looked up.

        Raises:
            UsageError: not of that form, or the port is not in 0..65535.
        """
        ip, _, port = text.rpartition(":")
        family = socket.AF_INET
        if ip.startswith("[") and ip.endswith("]"):
            ip, family = ip[1:-1], socket.AF_INET6
        if not (port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= 0xFFFF):
            raise UsageError(f"not an ip:port or [ipv6]:port: {text!r}")
        try:
            return cls(socket.inet_pton(family, ip), int(port))
        except (OSError, ValueError) as error:
            raise UsageError(f"not an ip:port or [ipv6]:port: {text!r}") from error

    @classmethod
    def unpack(cls, raw: bytes) -> Host:
        """The inverse of `pack`; `raw` has 8 or 20 bytes."""
        assert len(raw) in (IPV4_HOST_BYTES, IPV6_HOST_BYTES)
        return cls(raw[:-4], int.from_bytes(raw[-4:], "big", signed=True))

    def pack(self) -> bytes:
        """8 bytes (IPv4) or 20 bytes (IPv6), as in a frame."""
        return self.address + self.port.to_bytes(4, "big", signed=True)

    @property
    def is_ipv6(self) -> bool:
        """True for a 16-byte address."""
        return len(self.address) == 16

    @property
    def ip(self) -> str:
        """The IP address as text, without brackets."""
        return socket.inet_ntop(socket.AF_INET6 if self.is_ipv6 else socket.AF_INET, self.address)

    def __str__(self) -> str:
        return f"[{self.ip}]:{self.port}" if self.is_ipv6 else f"{self.ip}:{self.port}"
