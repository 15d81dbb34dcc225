"""QueryRoute and QueryAssignment: where the queues of a topic are (RouteActivity.java)."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Any, Final

from rmq_store.broker.metadata.topics import TopicConfig
from rmq_store.broker.rules.routing import AUTO_CREATE_QUEUE_MAX
from rmq_store.server.grpc_definitions.definitions import new
from rmq_store.server.grpc_definitions.enums import AddressScheme, Code, MessageType, Permission
from rmq_store.server.grpc_v2.caller import Caller
from rmq_store.server.grpc_v2.statuses import Refusal, group_of, status, topic_of
from rmq_store.server.processors.served_store import ServedStore

_STORED_TYPES: Final = (MessageType.NORMAL, MessageType.FIFO, MessageType.DELAY, MessageType.TRANSACTION)
# TopicAttributes.java, TOPIC_MESSAGE_TYPE_ATTRIBUTE.
_TYPE_ATTRIBUTE: Final = "message.type"


def accepted_types(topic: TopicConfig) -> tuple[MessageType, ...]:
    """Return the types that a topic takes: the one that it was made for, otherwise all that are stored here."""
    kind = topic.attributes.get(_TYPE_ATTRIBUTE, "")
    named = tuple(one for one in MessageType if one.name == kind)
    return named or _STORED_TYPES


class Routes:
    """Answers with the queues of this broker, at `host` and the port through which the client asks: `ports` by whether
    they speak TLS.
    """

    def __init__(self, served: ServedStore, host: str, ports: Mapping[bool, int]) -> None:
        self._served = served
        scheme = AddressScheme.IPv6 if ipaddress.ip_address(host).version == 6 else AddressScheme.IPv4
        self._brokers: dict[bool, dict[str, Any]] = {}
        for is_tls, port in ports.items():
            endpoints = {"scheme": scheme, "addresses": [{"host": host, "port": port}]}
            self._brokers[is_tls] = {"name": served.name, "id": 0, "endpoints": endpoints}

    async def query_route(self, request: Any, caller: Caller) -> Any:
        """QueryRoute: all queues of a topic. A topic that a send would make has a route already."""
        topic = self.topic(topic_of(request.topic))
        queues = [self._queue(topic, queue_id, request.topic, caller) for queue_id in range(_queue_count(topic))]
        return new("QueryRouteResponse", status=status(Code.OK), message_queues=queues)

    async def query_assignment(self, request: Any, caller: Caller) -> Any:
        """QueryAssignment: one queue, -1, which stands for all of them: the broker shares out messages, not queues. A
        group that consumes in order is told all queues, so that its clients receive from several at once. Refusal: the
        topic has no queue to read.
        """
        name = group_of(request.group)
        topic = self.topic(topic_of(request.topic))
        if not topic.readable or topic.read_queue_nums < 1:
            raise Refusal(Code.FORBIDDEN, f"topic {topic.topic_name} has no readable queue")
        group = self._served.store.groups().get(name)
        is_ordered = group is not None and group.consume_message_orderly
        queue_ids = range(topic.read_queue_nums) if is_ordered else (-1,)
        queues = [self._queue(topic, queue_id, request.topic, caller) for queue_id in queue_ids]
        for queue in queues:
            queue.permission = Permission.READ_WRITE if topic.writable else Permission.READ
        assignments = [{"message_queue": queue} for queue in queues]
        return new("QueryAssignmentResponse", status=status(Code.OK), assignments=assignments)

    def topic(self, name: str) -> TopicConfig:
        """The settings of a topic, those of a topic yet to be made included. Refusal: there is none, and none is made.
        """
        store = self._served.store
        found = store.find_topic(name)
        if found is not None:
            return found
        if name in self._served.own_topics:
            raise Refusal(Code.ILLEGAL_TOPIC, f"{name}: a system topic")
        if not store.config.auto_create_topic_enable or name.startswith("%"):
            raise Refusal(Code.TOPIC_NOT_FOUND, f"topic {name} does not exist")
        count = min(store.config.default_topic_queue_nums, AUTO_CREATE_QUEUE_MAX)
        return TopicConfig(name, count, count)

    def _queue(self, topic: TopicConfig, queue_id: int, resource: Any, caller: Caller) -> Any:
        can_read = topic.readable and queue_id < topic.read_queue_nums
        can_write = topic.writable and queue_id < topic.write_queue_nums
        permission = {
            (True, True): Permission.READ_WRITE,
            (True, False): Permission.READ,
            (False, True): Permission.WRITE,
            (False, False): Permission.NONE,
        }[can_read, can_write]
        return new(
            "MessageQueue",
            topic=resource,
            id=queue_id,
            permission=permission,
            broker=self._brokers[caller.is_tls],
            accept_message_types=accepted_types(topic),
        )


def _queue_count(topic: TopicConfig) -> int:
    return max(topic.read_queue_nums, topic.write_queue_nums)
