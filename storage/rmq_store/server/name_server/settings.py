"""319: the settings of a name server, as properties (DefaultRequestProcessor#getConfig)."""

from __future__ import annotations

from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.server.requests.request import Request


class NameServerSettings:
    """The settings of a name server at `port`, under Java's names. Those that are only Java's are left out."""

    def __init__(self, port: int) -> None:
        self._port = port

    def all(self, request: Request) -> RemotingCommand:
        """319: a line `name=value` for each setting."""
        settings = {"listenPort": str(self._port), "orderMessageEnable": "true"}
        return request.answer(body="".join(f"{name}={value}\n" for name, value in settings.items()).encode())
