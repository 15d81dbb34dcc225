"""Pairs of texts in name spaces, in memory (KVConfigManager.java), and 100 to 102 and 219, which are about them."""

from __future__ import annotations

import threading
from typing import Final

from rmq_store.protocol.bodies.routes import KVTable
from rmq_store.protocol.errors import ResponseCode
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.name_server_headers import (
    DeleteKVConfigRequestHeader,
    GetKVConfigRequestHeader,
    GetKVConfigResponseHeader,
    GetKVListByNamespaceRequestHeader,
    PutKVConfigRequestHeader,
)
from rmq_store.server.requests.request import Request, refusal

ORDER_TOPIC_CONFIG: Final = "ORDER_TOPIC_CONFIG"
"""The name space that says how many queues an ordered topic has at each broker: topic -> `broker:n;broker:n`."""

CHARACTERS_MAX: Final = 16 << 20


class KVConfigs:
    """Answers about pairs, of which all texts together have at most CHARACTERS_MAX characters. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spaces: dict[str, dict[str, str]] = {}
        self._characters = 0

    def value(self, namespace: str, key: str) -> str | None:
        """The value of a pair; None if there is none."""
        with self._lock:
            return self._spaces.get(namespace, {}).get(key)

    def put(self, request: Request) -> RemotingCommand:
        """100. MQBrokerError 1: all pairs together would be too large."""
        header = request.header(PutKVConfigRequestHeader)
        with self._lock:
            pairs = self._spaces.get(header.namespace, {})
            size = _size(header.namespace, header.key, header.value)
            known = _size(header.namespace, header.key, pairs[header.key]) if header.key in pairs else 0
            if self._characters + size - known > CHARACTERS_MAX:
                raise refusal(ResponseCode.SYSTEM_ERROR, f"the pairs have more than {CHARACTERS_MAX} characters")
            self._characters += size - known
            self._spaces.setdefault(header.namespace, pairs)[header.key] = header.value
        return request.answer()

    def get(self, request: Request) -> RemotingCommand:
        """101. MQBrokerError 22: there is no such pair."""
        header = request.header(GetKVConfigRequestHeader)
        value = self.value(header.namespace, header.key)
        if value is None:
            remark = f"No config item, Namespace: {header.namespace} Key: {header.key}"
            raise refusal(ResponseCode.QUERY_NOT_FOUND, remark)
        return request.answer(header=GetKVConfigResponseHeader(value=value))

    def delete(self, request: Request) -> RemotingCommand:
        """102; also if there is no such pair."""
        header = request.header(DeleteKVConfigRequestHeader)
        with self._lock:
            pairs = self._spaces.get(header.namespace, {})
            value = pairs.pop(header.key, None)
            if value is not None:
                self._characters -= _size(header.namespace, header.key, value)
            if not pairs:
                self._spaces.pop(header.namespace, None)
        return request.answer()

    def pairs(self, request: Request) -> RemotingCommand:
        """219. MQBrokerError 22: the name space has no pair."""
        namespace = request.header(GetKVListByNamespaceRequestHeader).namespace
        with self._lock:
            pairs = dict(self._spaces.get(namespace, {}))
        if not pairs:
            raise refusal(ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {namespace}")
        return request.answer(body=KVTable(table=pairs).encode())


def _size(namespace: str, key: str, value: str) -> int:
    return len(namespace) + len(key) + len(value)
