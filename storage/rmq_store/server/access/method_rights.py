"""All methods of MessagingService in one table: the rights that a call of each one needs.

A method without a row is refused where there are users. Source: DefaultAuthorizationContextBuilder.java. Beyond it: all
topics of a call count, not the first one only, and so do the topics and the group of a client's settings.

The producer group of clients over gRPC is named as the topic. They are asked about half messages of this topic only, so
the right to send to the topic is enough for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from rmq_store.errors import UsageError
from rmq_store.server.requests.request_needs import Need, Resource, Right

MethodNeeds: TypeAlias = Callable[[Any], Iterator[Need]]
"""The needs of a request of one method. UsageError: it names too many topics."""

TOPICS_MAX: Final = 4096
"""Topics that one request may name, each as often as it is named."""


def _topics(right: Right, resources: Iterable[Any], count: int) -> Iterator[Need]:
    if count > TOPICS_MAX:
        raise UsageError(f"a request names {count} topics, at most {TOPICS_MAX} are taken")
    return (Need(right, Resource.TOPIC, resource.name) for resource in resources)


def _any_user(request: Any) -> Iterator[Need]:
    return iter(())


def _send_to_topic(request: Any) -> Iterator[Need]:
    yield Need(Right.PUB, Resource.TOPIC, request.topic.name)


def _send(request: Any) -> Iterator[Need]:
    yield from _topics(Right.PUB, (one.topic for one in request.messages), len(request.messages))


def _of_group(request: Any) -> Iterator[Need]:
    """Producers name no group."""
    if request.group.name:
        yield Need(Right.SUB, Resource.GROUP, request.group.name)


def _consume(request: Any) -> Iterator[Need]:
    """A receipt handle is void for another topic or group than those of the request (`rmq_store/broker/pop`)."""
    yield Need(Right.SUB, Resource.GROUP, request.group.name)
    yield Need(Right.SUB, Resource.TOPIC, request.topic.name)


def _receive(request: Any) -> Iterator[Need]:
    yield Need(Right.SUB, Resource.GROUP, request.group.name)
    yield Need(Right.SUB, Resource.TOPIC, request.message_queue.topic.name)


def _command(request: Any) -> Iterator[Need]:
    """Commands other than settings are answers, which nobody reads here."""
    publishing, subscription = request.settings.publishing, request.settings.subscription
    yield from _topics(Right.PUB, publishing.topics, len(publishing.topics))
    if request.settings.HasField("subscription"):
        yield Need(Right.SUB, Resource.GROUP, subscription.group.name)
        entries = subscription.subscriptions
        yield from _topics(Right.SUB, (one.topic for one in entries), len(entries))


METHOD_RIGHTS: Final[Mapping[str, MethodNeeds]] = {
    "QueryRoute": _any_user,
    "QueryAssignment": _consume,
    "Heartbeat": _of_group,
    "NotifyClientTermination": _of_group,
    "Telemetry": _command,
    "SendMessage": _send,
    "EndTransaction": _send_to_topic,
    "RecallMessage": _send_to_topic,
    "ReceiveMessage": _receive,
    "AckMessage": _consume,
    "ChangeInvisibleDuration": _consume,
    "ForwardMessageToDeadLetterQueue": _consume,
}
