"""The ways in which a broker of a cluster in memory is away. It goes at once, or at a request.

    absence = Absence(net, "broker-b", "silent", at_code=11)
    ...
    absence.end()
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest

from pyspark_rmq.position.queue_ids import BrokerQueueId
from rmq_store.protocol.errors import RemotingConnectError, RemotingError, RemotingTimeoutError
from rmq_store.protocol.wire.command import RemotingCommand, response_to

from ...storage.remoting.cluster.fake_cluster import FakeNet

A0, A1, B0 = BrokerQueueId("broker-a", 0), BrokerQueueId("broker-a", 1), BrokerQueueId("broker-b", 0)
EARLIEST: Final = {"startingOffsets": "earliest"}

BUSY_CODES: Final = {"busy": 2, "shutting down": 14, "flow control": 215, "going away": 1500}
KINDS: Final = ("refused", "reset", "silent", "forgotten", *BUSY_CODES)
"""`forgotten`: its connections end, and the name servers do not know it any more."""
SOME_KINDS: Final = [
    pytest.param(kind, marks=() if kind in ("silent", "forgotten") else pytest.mark.long) for kind in KINDS
]
"""All of them; the default suite has those two that differ most."""


class Absence:
    """The absence of a broker, of its slaves, too. `calls`: what was asked of it since it went."""

    def __init__(
        self, net: FakeNet, name: str, kind: str, at_code: int | None = None,
        at: Callable[[RemotingCommand], bool] | None = None,
    ) -> None:  # fmt: skip
        self.net = net
        self.name = name
        self.kind = kind
        self._at = at or (lambda command: command.code == at_code)
        self.calls: list[int] = []
        self.has_gone = False
        self.broker = net.brokers[name]
        self._addresses = {process.address for process in self.broker.processes.values()}
        self._call = net.call
        net.call = self._answer  # type: ignore[method-assign]
        if at_code is None and at is None:
            self._go()

    def end(self) -> None:
        """It is back."""
        self.net.call = self._call  # type: ignore[method-assign]
        self.net.brokers[self.name] = self.broker

    def _go(self) -> None:
        self.has_gone = True
        if self.kind == "forgotten":
            self.net.brokers.pop(self.name, None)

    def _answer(self, address: str, command: RemotingCommand, timeout_ms: int) -> Any:
        if address not in self._addresses:
            return self._call(address, command, timeout_ms)
        if not self.has_gone and self._at(command):
            self._go()
        if not self.has_gone:
            return self._call(address, command, timeout_ms)
        self.net.calls.append((address, command))
        self.calls.append(command.code)
        if self.kind in BUSY_CODES:
            return response_to(command, BUSY_CODES[self.kind], "not now")
        error: type[RemotingError] = {
            "refused": RemotingConnectError, "forgotten": RemotingConnectError, "silent": RemotingTimeoutError,
        }.get(self.kind, RemotingError)  # fmt: skip
        raise error(f"{address}: {self.kind}")


NAME_SERVER_KINDS: Final = ("refused", "silent", "empty", "not ready")
"""`empty`: it has just begun, and no broker has registered. `not ready`: code 1 to all, as 5.x when it begins."""


class NameServerAbsence:
    """The absence of all name servers of a cluster in memory."""

    def __init__(self, net: FakeNet, kind: str) -> None:
        self.net = net
        self.kind = kind
        self._call = net.call
        net.call = self._answer  # type: ignore[method-assign]

    def end(self) -> None:
        """They are back, and know everything."""
        self.net.call = self._call  # type: ignore[method-assign]

    def _answer(self, address: str, command: RemotingCommand, timeout_ms: int) -> Any:
        if address not in self.net.name_servers:
            return self._call(address, command, timeout_ms)
        self.net.calls.append((address, command))
        if self.kind == "refused":
            raise RemotingConnectError(f"connect to {address} failed")
        if self.kind == "silent":
            raise RemotingTimeoutError(f"{address} gave no answer in {timeout_ms} ms")
        if self.kind == "not ready":
            return response_to(command, 1, "name server not ready")
        if command.code == 105:
            return response_to(command, 17, "No topic route info in name server for the topic")
        return response_to(command, 0, body=b'{"brokerAddrTable":{},"clusterAddrTable":{},"topicList":[]}')
