"""Stops a server of asyncio, so that no connection is lost that it has just accepted."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

# asyncio makes the transport in one iteration of its loop, and tells the protocol in the next one.
_ITERATIONS_TO_MAKE: Final = 2


async def stop_accepting(servers: Iterable[asyncio.Server]) -> None:
    """Refuse new connections. One that asyncio has accepted by now has its protocol when this returns; those that are
    there go on.

    `Server.close` alone, between an accept and its transport, leaves the socket open until Python collects it
    (python/cpython#109564).
    """
    loop, open_servers = asyncio.get_running_loop(), list(servers)
    for server in open_servers:
        for socket in server.sockets:
            loop.remove_reader(socket.fileno())
    for _ in range(_ITERATIONS_TO_MAKE):
        await asyncio.sleep(0)
    for server in open_servers:
        server.close()
