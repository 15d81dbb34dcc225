"""26: the settings of the store, as properties (AdminBrokerProcessor#getBrokerConfig)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType

from rmq_store.broker.monitoring.broker_conf import broker_conf
from rmq_store.format.text.host import Host
from rmq_store.protocol.bodies.routes import MASTER_ID
from rmq_store.protocol.bodies.topics import DataVersion
from rmq_store.protocol.wire.admin_headers import GetBrokerConfigResponseHeader
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.server.processors.served_store import ServedStore
from rmq_store.server.requests.request import Request


class Settings:
    """The settings of one served store. None of them is a secret; users and certificates are no settings of a store.
    `more`: settings of the server, in place of others of their names.
    """

    def __init__(self, served: ServedStore, more: Mapping[str, int | bool | str] = MappingProxyType({})) -> None:
        self._served = served
        self._more = more

    def all(self, request: Request) -> RemotingCommand:
        """26: a line `name=value` for each setting."""
        host = Host.parse(self._served.address)
        settings = {
            **broker_conf(self._served.store),
            "brokerClusterName": self._served.cluster_name,
            "brokerId": MASTER_ID,
            "brokerIP1": host.ip,
            "listenPort": host.port,
            **self._more,
        }
        lines = (f"{name}={_text(value)}\n" for name, value in settings.items())
        header = GetBrokerConfigResponseHeader(version=json.dumps(DataVersion().to_json()))
        return request.answer(header=header, body="".join(lines).encode())


def _text(value: int | bool | str) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
