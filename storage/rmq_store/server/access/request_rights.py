"""All requests in one table: the rights that each needs, and whether it is a change for administrators only.

A request that has no row is refused where there are users. Source: DefaultAuthorizationContextBuilder.java, which also
takes a heartbeat and a lock apart by their groups and topics. Beyond it: a message that is named by its place in the
log (33, 36, 309) needs the right for its topic, and a producer group is joined by those only who may send for it,
because brokers show its members half messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

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
from rmq_store.protocol.wire.request_codes import RequestCode
from rmq_store.server.access.rights import Need, Resource, Right

_PUB, _SUB, _ADMIN = Right.PUB, Right.SUB, Right.ADMIN


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


class Change(Enum):
    """Says whether a request is a change for administrators: ALWAYS, or only for an EXISTING topic or group. NEVER: it
    is carried out for nobody.
    """

    NO = "no"
    EXISTING = "existing"
    ALWAYS = "always"
    NEVER = "never"


class Row(NamedTuple):
    """One request; without needs it is for every user."""

    needs: tuple[Field | StoredMessage | HalfMessage | WholeBroker | OfBody, ...] = ()
    change: Change = Change.NO


def _topic(right: Right, field: str = "topic") -> Field:
    return Field(right, Resource.TOPIC, field)


def _group(right: Right, field: str = "consumerGroup") -> Field:
    return Field(right, Resource.GROUP, field)


def _needs(right: Right, resource: Resource, names: Iterable[str]) -> Iterator[Need]:
    return (Need(right, resource, name) for name in names)


def _offset(field: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise RemotingCommandError(f"{field}={text[:64]!r} is no place in the log")
    return int(text)


def _message_id(field: str, text: str) -> int:
    return parse_offset_message_id(text)[1]


def _half(text: str, group: str) -> Iterator[Need]:
    if TRANSACTION_PREPARED in text:  # few are: the properties of all others are read once, by the processor
        properties = parse_properties(text.encode())
        if properties.get(TRANSACTION_PREPARED, "").lower() == "true":
            yield Need(_PUB, Resource.GROUP, properties.get(PRODUCER_GROUP, group))


def _heartbeat(body: bytes) -> Iterator[Need]:
    beat = HeartbeatData.decode(body)
    yield from _needs(_PUB, Resource.GROUP, (one.group_name for one in beat.producer_data_set))
    for consumer in beat.consumer_data_set:
        yield Need(_SUB, Resource.GROUP, consumer.group_name)
        yield from _needs(_SUB, Resource.TOPIC, (one.topic for one in consumer.subscription_data_set))


def _locks(body: bytes) -> Iterator[Need]:
    asked = LockBatchRequestBody.decode(body)
    yield Need(_SUB, Resource.GROUP, asked.consumer_group)
    yield from _needs(_SUB, Resource.TOPIC, {queue.topic for queue in asked.mq_set})


def _condition(body: bytes) -> Iterator[Need]:
    asked = CheckClientRequestBody.decode(body)
    yield Need(_SUB, Resource.GROUP, asked.group)
    yield Need(_SUB, Resource.TOPIC, asked.subscription_data.topic)


def _new_group(body: bytes) -> Iterator[Need]:
    yield Need(_ADMIN, Resource.GROUP, SubscriptionGroupConfig.decode(body).group_name)


def _assignment(body: bytes) -> Iterator[Need]:
    asked = QueryAssignmentRequestBody.decode(body)
    yield Need(_SUB, Resource.GROUP, asked.consumer_group)
    yield Need(_SUB, Resource.TOPIC, asked.topic)


def _request_mode(body: bytes) -> Iterator[Need]:
    asked = SetMessageRequestModeRequestBody.decode(body)
    yield Need(_ADMIN, Resource.GROUP, asked.consumer_group)
    yield Need(_SUB, Resource.TOPIC, asked.topic)


def _acks(body: bytes) -> Iterator[Need]:
    acks = BatchAckMessageRequestBody.decode(body).acks
    yield from _needs(_SUB, Resource.GROUP, {ack.consumer_group for ack in acks})
    yield from _needs(_SUB, Resource.TOPIC, {ack.topic for ack in acks})


_SEND: Final = Row((_topic(_PUB), HalfMessage("properties", "producerGroup")))
_SEND_V2: Final = Row((_topic(_PUB, "b"), HalfMessage("i", "a")))
_READ_TOPIC: Final = Row((_topic(_SUB),))
_CONSUME: Final = Row((_topic(_SUB), _group(_SUB)))
_OF_GROUP: Final = Row((_group(_SUB),))
_RESET: Final = (_topic(_SUB), _group(_ADMIN, "group"))
_STATUS: Final = Row((_topic(_SUB), _group(_SUB, "group")))
_ANYBODY: Final = Row()
_BROKER: Final = WholeBroker(_ADMIN)
_CHANGE_TOPIC: Final = Row((_topic(_ADMIN),), Change.ALWAYS)
_CHANGE_BROKER: Final = Row((_BROKER,), Change.ALWAYS)
_REFUSED: Final = Row((_BROKER,), Change.NEVER)

UPDATE_NAMESRV_CONFIG: Final = 318
UPDATE_CONTROLLER_CONFIG: Final = 1009
_ADVANCE_CLOCK: Final = 0x524D51

RIGHTS: Final[Mapping[int, Row]] = {
    # messages
    RequestCode.SEND_MESSAGE: _SEND,
    RequestCode.SEND_MESSAGE_V2: _SEND_V2,
    RequestCode.SEND_BATCH_MESSAGE: _SEND_V2,
    RequestCode.SEND_REPLY_MESSAGE: _SEND,
    RequestCode.SEND_REPLY_MESSAGE_V2: _SEND_V2,
    RequestCode.RECALL_MESSAGE: _SEND,
    RequestCode.END_TRANSACTION: Row((_group(_PUB, "producerGroup"),)),
    RequestCode.CONSUMER_SEND_MSG_BACK: Row((_group(_SUB, "group"), StoredMessage(_SUB, "offset", _offset))),
    RequestCode.PULL_MESSAGE: _CONSUME,
    RequestCode.LITE_PULL_MESSAGE: _CONSUME,
    RequestCode.QUERY_MESSAGE: _READ_TOPIC,
    RequestCode.VIEW_MESSAGE_BY_ID: Row((StoredMessage(_SUB, "offset", _offset),)),
    # offsets and queues
    RequestCode.QUERY_CONSUMER_OFFSET: _CONSUME,
    RequestCode.UPDATE_CONSUMER_OFFSET: _CONSUME,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: _READ_TOPIC,
    RequestCode.GET_MAX_OFFSET: _READ_TOPIC,
    RequestCode.GET_MIN_OFFSET: _READ_TOPIC,
    RequestCode.GET_EARLIEST_MSG_STORETIME: _READ_TOPIC,
    RequestCode.GET_TOPIC_STATS_INFO: _READ_TOPIC,
    RequestCode.QUERY_CONSUME_QUEUE: Row((_topic(_SUB), _group(_SUB)._replace(may_be_empty=True))),
    # members of groups
    RequestCode.HEART_BEAT: Row((_heartbeat,)),
    RequestCode.UNREGISTER_CLIENT: Row(
        (_group(_PUB, "producerGroup")._replace(may_be_empty=True), _group(_SUB)._replace(may_be_empty=True))
    ),
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: _OF_GROUP,
    RequestCode.LOCK_BATCH_MQ: Row((_locks,)),
    RequestCode.UNLOCK_BATCH_MQ: Row((_locks,)),
    RequestCode.CHECK_CLIENT_CONFIG: Row((_condition,)),
    # POP
    RequestCode.POP_MESSAGE: _CONSUME,
    RequestCode.ACK_MESSAGE: _CONSUME,
    RequestCode.BATCH_ACK_MESSAGE: Row((_acks,)),
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: _CONSUME,
    RequestCode.PEEK_MESSAGE: _CONSUME,
    RequestCode.NOTIFICATION: _CONSUME,
    RequestCode.POLLING_INFO: _CONSUME,
    RequestCode.QUERY_ASSIGNMENT: Row((_assignment,)),
    # figures and settings: names and numbers, never messages or secrets
    RequestCode.GET_ALL_TOPIC_CONFIG: _ANYBODY,
    RequestCode.GET_TOPIC_CONFIG: _ANYBODY,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: _ANYBODY,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: _ANYBODY,
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: _ANYBODY,
    RequestCode.GET_BROKER_RUNTIME_INFO: _ANYBODY,
    RequestCode.VIEW_BROKER_STATS_DATA: _ANYBODY,
    RequestCode.GET_CONSUME_STATS: _CONSUME,
    RequestCode.GET_CONSUMER_CONNECTION_LIST: _OF_GROUP,
    RequestCode.GET_PRODUCER_CONNECTION_LIST: Row((_group(_PUB, "producerGroup"),)),
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: _READ_TOPIC,
    RequestCode.QUERY_TOPICS_BY_CONSUMER: Row((_group(_SUB, "group"),)),
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: _STATUS,
    RequestCode.QUERY_CONSUME_TIME_SPAN: _STATUS,
    RequestCode.GET_BROKER_CONSUME_STATS: Row((_BROKER,)),
    RequestCode.GET_ALL_PRODUCER_INFO: Row((_BROKER,)),
    RequestCode.GET_CONSUMER_RUNNING_INFO: _OF_GROUP,
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: _STATUS,
    RequestCode.GET_BROKER_CONFIG: Row((_BROKER,)),
    RequestCode.GET_ALL_CONSUMER_OFFSET: Row((_BROKER,)),
    RequestCode.GET_ALL_DELAY_OFFSET: Row((_BROKER,)),
    # changes
    RequestCode.UPDATE_AND_CREATE_TOPIC: Row((_topic(_ADMIN),), Change.EXISTING),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: Row((_new_group,), Change.EXISTING),
    RequestCode.DELETE_TOPIC_IN_BROKER: _CHANGE_TOPIC,
    RequestCode.DELETE_TOPIC_IN_NAMESRV: _CHANGE_TOPIC,
    RequestCode.DELETE_SUBSCRIPTIONGROUP: Row((_group(_ADMIN, "groupName"),), Change.ALWAYS),
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: Row(_RESET, Change.ALWAYS),
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET: Row(_RESET, Change.ALWAYS),
    RequestCode.SET_MESSAGE_REQUEST_MODE: Row((_request_mode,), Change.ALWAYS),
    RequestCode.CONSUME_MESSAGE_DIRECTLY: Row(
        (_group(_ADMIN), StoredMessage(_SUB, "msgId", _message_id)), Change.ALWAYS
    ),
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: _CHANGE_BROKER,
    RequestCode.CLEAN_UNUSED_TOPIC: _CHANGE_BROKER,
    RequestCode.DELETE_EXPIRED_COMMITLOG: _CHANGE_BROKER,
    # the name server
    RequestCode.GET_ROUTEINFO_BY_TOPIC: _ANYBODY,
    RequestCode.GET_BROKER_CLUSTER_INFO: _ANYBODY,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: _ANYBODY,
    RequestCode.GET_TOPICS_BY_CLUSTER: _ANYBODY,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: _ANYBODY,
    RequestCode.GET_KV_CONFIG: _ANYBODY,
    RequestCode.GET_KVLIST_BY_NAMESPACE: _ANYBODY,
    RequestCode.GET_NAMESRV_CONFIG: Row((_BROKER,)),
    RequestCode.REGISTER_BROKER: Row((_BROKER,)),
    RequestCode.UNREGISTER_BROKER: Row((_BROKER,)),
    RequestCode.QUERY_DATA_VERSION: Row((_BROKER,)),
    RequestCode.PUT_KV_CONFIG: _CHANGE_BROKER,
    RequestCode.DELETE_KV_CONFIG: _CHANGE_BROKER,
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: _CHANGE_BROKER,
    # to clients only: a broker that is asked answers code 3
    RequestCode.CHECK_TRANSACTION_STATE: Row((_BROKER,)),
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: _STATUS,
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: Row((_BROKER,)),
    RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: Row((_BROKER,)),
    # of this engine
    _ADVANCE_CLOCK: Row((_BROKER,)),
    # CVE-2023-33246 and CVE-2023-37582
    RequestCode.UPDATE_BROKER_CONFIG: _REFUSED,
    UPDATE_NAMESRV_CONFIG: _REFUSED,
    UPDATE_CONTROLLER_CONFIG: _REFUSED,
}


def needs_of(command: RemotingCommand, row: Row, topics_at: Callable[[int], Iterable[str]]) -> Iterator[Need]:
    """All that a request needs. `topics_at` finds those of the message at a place in the log, or raises.

    Raises:
        RemotingCommandError, UsageError: a body or a place in the log cannot be read.
    """
    for one in row.needs:
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
