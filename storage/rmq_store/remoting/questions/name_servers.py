"""Routes, lists and pairs of name servers (DefaultRequestProcessor.java of namesrv)."""

from __future__ import annotations

from typing import Final

from rmq_store.protocol.wire.admin_headers import DeleteTopicFromNamesrvRequestHeader
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.header_fields import request
from rmq_store.protocol.wire.name_server_headers import (
    GetAllTopicListFromNamesrvRequestHeader,
    GetBrokerClusterInfoRequestHeader,
    GetKVConfigRequestHeader,
    GetRouteInfoRequestHeader,
    PutKVConfigRequestHeader,
)

ORDER_TOPIC_CONFIG: Final = "ORDER_TOPIC_CONFIG"
"""NamesrvUtil.NAMESPACE_ORDER_TOPIC_CONFIG: the queues of ordered topics, at the name servers."""


def ask_route(wire_topic: str, *, standard_json: bool | None = None) -> RemotingCommand:
    """The brokers and queues of a topic (105); 17: this name server knows none."""
    return request(GetRouteInfoRequestHeader(topic=wire_topic, accept_standard_json_only=standard_json))


def ask_clusters() -> RemotingCommand:
    """All brokers (106); 3: a proxy, which does not tell them."""
    return request(GetBrokerClusterInfoRequestHeader())


def ask_topics() -> RemotingCommand:
    """The names of all topics (206); 3: a proxy."""
    return request(GetAllTopicListFromNamesrvRequestHeader())


def ask_delete_route(wire_topic: str, cluster_name: str | None = None) -> RemotingCommand:
    """Delete a topic from the routes, for one cluster only if it is named (216)."""
    return request(DeleteTopicFromNamesrvRequestHeader(topic=wire_topic, cluster_name=cluster_name))


def ask_order_conf(wire_topic: str) -> RemotingCommand:
    """The queues of an ordered topic (101); 22: it has none."""
    return request(GetKVConfigRequestHeader(namespace=ORDER_TOPIC_CONFIG, key=wire_topic))


def ask_put_order_conf(wire_topic: str, text: str) -> RemotingCommand:
    """Write the queues of an ordered topic (100), as `broker-a:8;broker-b:8`."""
    return request(PutKVConfigRequestHeader(namespace=ORDER_TOPIC_CONFIG, key=wire_topic, value=text))
