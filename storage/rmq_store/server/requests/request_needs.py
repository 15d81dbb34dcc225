"""The rights that a request needs, and how they are read from its fields or its body."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import Enum, Flag
from typing import NamedTuple, TypeAlias

from rmq_store.format.properties.property_string import PRODUCER_GROUP, TRANSACTION_PREPARED, parse_properties
from rmq_store.format.text.ids import parse_offset_message_id
from rmq_store.protocol.bodies.clients import (
    BatchAckMessageRequestBody,
    CheckClientRequestBody,
    HeartbeatData,
    LockBatchRequestBody,
    QueryAssignmentRequestBody,
    SetMessageRequestModeRequestBody,
)
from rmq_store.protocol.bodies.groups import SubscriptionGroupConfig
from rmq_store.protocol.errors import RemotingCommandError
from rmq_store.protocol.wire.command import RemotingCommand


class Right(Flag):
    """PUB sends, SUB consumes, ADMIN changes the topic or the group itself."""

    DENY = 0
    PUB = 1
    SUB = 2
    ADMIN = 4


class Resource(Enum):
    """The kind of thing that a right is about; BROKER stands for all that concerns no single topic or group."""

    TOPIC = "topic"
    GROUP = "group"
    BROKER = "broker"


class Need(NamedTuple):
    """A right that a request needs; `name` is "" for the broker."""

    right: Right
    resource: Resource
    name: str

    def __str__(self) -> str:
        return f"the right {self.right.name} for the {self.resource.value} {self.name}".rstrip()


class Field(NamedTuple):
    """A need for the topic or group that a field of the request names; none if the field is missing. `may_be_empty`:
    clients send "" for no name.
    """

    right: Right
    resource: Resource
    name: str
    may_be_empty: bool = False


class StoredMessage(NamedTuple):
    """A need for the topic of the message at the place in the log that a field names; `place` reads the field."""

    right: Right
    name: str
    place: Callable[[str, str], int]


class HalfMessage(NamedTuple):
    """A need to send for the producer group of a half message: its members are asked how the transaction ends. The
    fields name the properties, whose PGROUP counts, and the group of a message without it.
    """

    properties: str
    group: str


class WholeBroker(NamedTuple):
    """A need for what concerns no single topic or group."""

    right: Right


OfBody: TypeAlias = Callable[[bytes], Iterator[Need]]
"""Needs for what the body names. RemotingCommandError: it cannot be read."""

Needs: TypeAlias = tuple[Field | StoredMessage | HalfMessage | WholeBroker | OfBody, ...]


def topic(right: Right, field: str = "topic") -> Field:
    """The topic that a field names."""
    return Field(right, Resource.TOPIC, field)


def group(right: Right, field: str = "consumerGroup", *, may_be_empty: bool = False) -> Field:
    """The group that a field names."""
    return Field(right, Resource.GROUP, field, may_be_empty)


def _needs(right: Right, resource: Resource, names: Iterable[str]) -> Iterator[Need]:
    return (Need(right, resource, name) for name in names)


def log_offset(field: str, text: str) -> int:
    """A place in the log as a field has it. RemotingCommandError."""
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise RemotingCommandError(f"{field}={text[:64]!r} is no place in the log")
    return int(text)


def message_id(field: str, text: str) -> int:
    """The place in the log of which a message id was made. UsageError."""
    return parse_offset_message_id(text)[1]


def _half(text: str, group: str) -> Iterator[Need]:
    if TRANSACTION_PREPARED in text:  # few are: the properties of all others are read once, by the processor
        properties = parse_properties(text.encode())
        if properties.get(TRANSACTION_PREPARED, "").lower() == "true":
            yield Need(Right.PUB, Resource.GROUP, properties.get(PRODUCER_GROUP, group))


def heartbeat(body: bytes) -> Iterator[Need]:
    """Of 34: the groups of producers and consumers, and the topics of subscriptions."""
    beat = HeartbeatData.decode(body)
    yield from _needs(Right.PUB, Resource.GROUP, (one.group_name for one in beat.producer_data_set))
    for consumer in beat.consumer_data_set:
        yield Need(Right.SUB, Resource.GROUP, consumer.group_name)
        yield from _needs(Right.SUB, Resource.TOPIC, (one.topic for one in consumer.subscription_data_set))


def locks(body: bytes) -> Iterator[Need]:
    """Of 41 and 42."""
    asked = LockBatchRequestBody.decode(body)
    yield Need(Right.SUB, Resource.GROUP, asked.consumer_group)
    yield from _needs(Right.SUB, Resource.TOPIC, {queue.topic for queue in asked.mq_set})


def condition(body: bytes) -> Iterator[Need]:
    """Of 46: a subscription by a condition."""
    asked = CheckClientRequestBody.decode(body)
    yield Need(Right.SUB, Resource.GROUP, asked.group)
    yield Need(Right.SUB, Resource.TOPIC, asked.subscription_data.topic)


def new_group(body: bytes) -> Iterator[Need]:
    """Of 200."""
    yield Need(Right.ADMIN, Resource.GROUP, SubscriptionGroupConfig.decode(body).group_name)


def assignment(body: bytes) -> Iterator[Need]:
    """Of 400."""
    asked = QueryAssignmentRequestBody.decode(body)
    yield Need(Right.SUB, Resource.GROUP, asked.consumer_group)
    yield Need(Right.SUB, Resource.TOPIC, asked.topic)


def request_mode(body: bytes) -> Iterator[Need]:
    """Of 401."""
    asked = SetMessageRequestModeRequestBody.decode(body)
    yield Need(Right.ADMIN, Resource.GROUP, asked.consumer_group)
    yield Need(Right.SUB, Resource.TOPIC, asked.topic)


def acks(body: bytes) -> Iterator[Need]:
    """Of 200151."""
    acks = BatchAckMessageRequestBody.decode(body).acks
    yield from _needs(Right.SUB, Resource.GROUP, {ack.consumer_group for ack in acks})
    yield from _needs(Right.SUB, Resource.TOPIC, {ack.topic for ack in acks})


def needs_of(command: RemotingCommand, needs: Needs, topics_at: Callable[[int], Iterable[str]]) -> Iterator[Need]:
    """All that a request needs. `topics_at` finds those of the message at a place in the log, or raises.

    Raises:
        RemotingCommandError, UsageError: a body or a place in the log cannot be read.
    """
    for one in needs:
        match one:
            case Field(right, resource, field, may_be_empty):
                name = command.ext_fields.get(field)
                if name is not None and (name or not may_be_empty):
                    yield Need(right, resource, name)
            case StoredMessage(right, field, place):
                offset = place(field, command.ext_fields.get(field, ""))
                yield from _needs(right, Resource.TOPIC, topics_at(offset))
            case HalfMessage(properties, group):
                yield from _half(command.ext_fields.get(properties, ""), command.ext_fields.get(group, ""))
            case WholeBroker(right):
                yield Need(right, Resource.BROKER, "")
            case _:
                yield from one(command.body)
