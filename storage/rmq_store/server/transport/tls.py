"""TLS of a server: the context of its certificate, and the handshake of each connection (TlsHelper.java).

Once there is a certificate TLS is required: a client without it is closed, and the log says why. RocketMQ's default,
"permissive", would also take it in plain text.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol, cast

from rmq_store.errors import UsageError
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.server.transport.connection import address_of

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """A certificate with its chain and its key, in PEM; a key with a password is refused. With `client_ca_file` a
    client must show a certificate that one of these authorities has signed.
    """

    cert_file: Path
    key_file: Path
    client_ca_file: Path | None = None


def server_context(files: TlsFiles) -> ssl.SSLContext:
    """The context of a server: TLS 1.2 and newer.

    Raises:
        UsageError: a file cannot be read, is no PEM, has a password, or key and certificate do not fit.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # Without a function OpenSSL would ask for a password at the terminal.
        context.load_cert_chain(files.cert_file, files.key_file, password=lambda: "")
    except OSError as error:
        raise UsageError(
            f"TLS: cannot use {files.cert_file} with {files.key_file}: {error}. A key with a password cannot be used"
        ) from error
    if files.client_ca_file is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_verify_locations(files.client_ca_file)
        except OSError as error:
            raise UsageError(f"TLS: cannot use {files.client_ca_file} as authorities of clients: {error}") from error
    return context


class HandshakeOwner(Protocol):
    """The listener, as its handshakes see it."""

    def shaking(self, handshake: TlsHandshake) -> bool:
        """Count a handshake; False if there are too many connections."""

    def shaken(self, handshake: TlsHandshake) -> None:
        """Forget a handshake that is over."""


class SecuredProtocol(Protocol):
    """The protocol that takes a connection over."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """As asyncio calls it."""

    def data_received(self, data: bytes) -> None:
        """Take what came together with the end of the handshake."""


class TlsHandshake(asyncio.Protocol):
    """A new connection until TLS is agreed upon; then a protocol of `protocol_factory` takes it over."""

    def __init__(
        self,
        owner: HandshakeOwner,
        context: ssl.SSLContext,
        timeout_ms: int,
        protocol_factory: Callable[[], SecuredProtocol],
    ) -> None:
        self._owner = owner
        self._context = context
        self._timeout_s = timeout_ms / 1000
        self._protocol_factory = protocol_factory
        self._early: list[bytes] = []
        self._is_lost = False
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """As asyncio calls it."""
        plain = cast(asyncio.Transport, transport)
        if self._owner.shaking(self):
            self._task = asyncio.get_running_loop().create_task(self._shake(plain))
        else:
            plain.abort()

    def data_received(self, data: bytes) -> None:
        """As asyncio calls it: a request came together with the end of the handshake."""
        self._early.append(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """As asyncio calls it: the client has gone together with the end of the handshake."""
        self._is_lost = True

    def abort(self) -> None:
        """End the connection at once; in the thread of the loop."""
        if self._task is not None:
            self._task.cancel()

    async def _shake(self, plain: asyncio.Transport) -> None:
        address = address_of(plain)
        try:
            secured = await asyncio.get_running_loop().start_tls(
                plain, self, self._context, server_side=True, ssl_handshake_timeout=self._timeout_s
            )
        except OSError as error:
            reason = getattr(error, "reason", None) or error
            text = "%s: no TLS handshake (%s); this port takes TLS only, the connection is closed"
            _log.warning(text, address, reason)
            return
        finally:
            self._owner.shaken(self)
        # asyncio gives no transport if the client goes while the handshake ends.
        if secured is None or self._is_lost:
            return
        protocol = self._protocol_factory()
        protocol.connection_made(secured)
        secured.set_protocol(cast(asyncio.BaseProtocol, protocol))
        for data in self._early:
            protocol.data_received(data)
