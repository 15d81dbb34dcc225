"""Making a connection: look-up of the name, TCP, TLS. It may block, and runs in a thread of its own. And the pauses
between attempts at one address.
"""

from __future__ import annotations

import os
import socket
import ssl
from typing import Final

from rmq_store import real_time
from rmq_store.backoff import Backoff
from rmq_store.format.text.host import Host
from rmq_store.protocol.errors import RemotingConnectError
from rmq_store.remoting.transport.settings import Address, ClusterSettings, parse_address

RECONNECTS: Final = Backoff(first_ms=100, max_ms=5_000, factor=1.6, jitter=0.2)


class ReconnectPause:
    """Grows with every connection that failed, or ended before its first answer; an answer ends it.

    Not thread-safe: its user holds a lock.
    """

    __slots__ = ("failures", "reason", "until")

    def __init__(self) -> None:
        self.failures = 0
        self.until = 0.0
        self.reason = ""

    def failed(self, now: float, reason: str) -> None:
        """Record a failure: `until` is the time of the next attempt."""
        self.failures += 1
        self.reason = reason
        self.until = now + RECONNECTS.wait_s(self.failures)

    def worked(self) -> None:
        """Record an answer."""
        self.failures, self.until, self.reason = 0, 0.0, ""


class Connector:
    """Makes one connection. `opened` are the sockets that exist meanwhile: a forked child closes its copies."""

    def __init__(self, address: str, settings: ClusterSettings, context: ssl.SSLContext | None) -> None:
        self.address = address
        self.settings = settings
        self.context = context
        self.opened: list[socket.socket] = []

    def connect(self) -> socket.socket:
        """Return a connected socket that does not block.

        Raises:
            RemotingConnectError: no connection within `connect_timeout_ms`; the message has the reason.
        """
        deadline = real_time.monotonic() + self.settings.connect_timeout_ms / 1000
        target = self.settings.target_of(self.address)
        try:
            plain = self._tcp(target, deadline)
        except OSError as error:
            raise RemotingConnectError(
                f"{described(self.address, target)}: no connection: {reason_of(error)}"
            ) from error
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            ready = plain if self.context is None else self._tls(plain, target, self.context, deadline)
            ready.setblocking(False)
        except OSError as error:
            plain.close()
            raise RemotingConnectError(f"{described(self.address, target)}: {reason_of(error)}") from error
        except BaseException:
            plain.close()
            raise
        return ready

    def _tcp(self, target: Address, deadline: float) -> socket.socket:
        failure: OSError = OSError("the name has no address")
        for family, kind, protocol, _, place in socket.getaddrinfo(*target, type=socket.SOCK_STREAM):
            made = socket.socket(family, kind, protocol)
            self.opened.append(made)
            try:
                made.settimeout(max(deadline - real_time.monotonic(), 0.001))
                made.connect(place)
            except OSError as error:
                made.close()
                failure = error
            else:
                return made
        raise failure

    def _tls(self, plain: socket.socket, target: Address, context: ssl.SSLContext, deadline: float) -> ssl.SSLSocket:
        name = self.settings.tls.server_name if self.settings.tls else ""
        name = name or parse_address(self.address).host
        wrapped = context.wrap_socket(plain, server_hostname=name, do_handshake_on_connect=False)
        self.opened.append(wrapped)
        try:
            wrapped.settimeout(max(deadline - real_time.monotonic(), 0.001))
            wrapped.do_handshake()
        except ssl.SSLCertVerificationError as error:
            wrapped.close()
            raise RemotingConnectError(
                f"{described(self.address, target)}: TLS: its certificate is not accepted for the name {name!r}: "
                f"{error.verify_message}"
            ) from error
        except OSError as error:
            wrapped.close()
            raise RemotingConnectError(
                f"{described(self.address, target)}: TLS was not agreed on: {reason_of(error)}"
            ) from error
        return wrapped


def hosts_of(address: Address) -> frozenset[Host]:
    """Return the IP addresses that a host has now, each with the port; none: its name cannot be resolved here. May
    block as long as the resolver of the system does.
    """
    try:
        found = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):  # UnicodeError: no name can look so, as "a..b"
        return frozenset()
    return frozenset(
        Host(socket.inet_pton(family, str(place[0]).partition("%")[0]), address.port)
        for family, _, _, _, place in found
    )


def described(address: str, target: Address) -> str:
    """Return how errors name a server: its registered address, and the one behind it in the address map."""
    return address if str(target) == address else f"{address} (as {target})"


def reason_of(error: OSError) -> str:
    """Return a text for an error of the operating system or of TLS."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, ssl.SSLError):
        return str(error.reason or error)
    if isinstance(error, socket.gaierror):
        return f"the name cannot be resolved: {error.strerror}"
    return os.strerror(error.errno) if error.errno else str(error)
