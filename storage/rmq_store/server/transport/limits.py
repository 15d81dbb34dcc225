"""The limits of what a listener takes from its clients."""

from __future__ import annotations

import resource
from typing import Final

from rmq_store.lazy.dataclasses import dataclass
from rmq_store.protocol.wire.frames import FRAME_BYTES_MAX, SERVED_HEADER_BYTES_MAX

_FILES_OF_STORE: Final = 1024
"""Descriptors that connections leave to the store: its open files and maps, and the locks of members."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerLimits:
    """Defaults are those of RocketMQ where it has one (NettyServerConfig.java).

    A client whose unread answers have `unsent_bytes_max` is not read until it has taken some. Requests that it has sent
    before are answered all the same; at `unread_bytes_max` the connection is closed. A client is not read while
    `requests_max` of its requests are in work, and no client while the requests of all have `working_bytes_max`. A pull
    that is held is not in work. Of incomplete frames all clients have `incomplete_bytes_max`: then the connection with
    the oldest one is closed. `idle_ms`: a connection that sends no whole request for so long is closed.
    Fewer than `connections_max` connections are taken where the process may not open so many files.
    """

    connections_max: int = 20_000
    frame_bytes_max: int = FRAME_BYTES_MAX
    header_bytes_max: int = SERVED_HEADER_BYTES_MAX
    unsent_bytes_max: int = 4 << 20
    unread_bytes_max: int = 256 << 20
    requests_max: int = 1024
    working_bytes_max: int = 256 << 20
    incomplete_bytes_max: int = 128 << 20
    idle_ms: int = 120_000
    tls_handshake_ms: int = 10_000

    def connections_that_fit(self) -> int:
        """How many connections are taken, so that the store can open its files beside them. At a limit of less than
        twice what the store is left, connections have half of it.
        """
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if files == resource.RLIM_INFINITY:
            return self.connections_max
        return min(self.connections_max, max(files - _FILES_OF_STORE, files // 2))
