"""What tests with kafka-python need: its sockets are closed by whoever left them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from kafka.net.inet import KafkaNetSocket


@pytest.fixture(autouse=True, scope="session")
def failed_connections_are_closed() -> Iterator[None]:
    """kafka-python forgets to close a socket whose connection fails, or is given up under way. Python collects it
    later, with a warning that would fail whatever test runs then.
    """
    connect = KafkaNetSocket.sock_connect

    async def closing(self: Any, net: Any, sock: Any, *where: Any, **limits: Any) -> Any:
        try:
            return await connect(self, net, sock, *where, **limits)
        except BaseException:
            sock.close()
            raise

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KafkaNetSocket, "sock_connect", closing)
        yield
