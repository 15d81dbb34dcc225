"""Typed headers about the members of groups, also the requests that brokers send to clients.

Source: HeartbeatRequestHeader.java, ResetOffsetRequestHeader.java and others.
"""

from __future__ import annotations

from typing import ClassVar

from rmq_store.lazy.dataclasses import dataclass
from rmq_store.protocol.wire.header_fields import Int32, RequestHeader, ResponseHeader
from rmq_store.protocol.wire.request_codes import RequestCode


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatRequestHeader(RequestHeader):
    """A client's groups; they are in the body."""

    code = RequestCode.HEART_BEAT


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatResponseHeader(ResponseHeader):
    """Fields that a 5.x broker adds to its answer."""

    wire_names: ClassVar = {"is_support_heart_beat_v2": "IS_SUPPORT_HEART_BEAT_V2", "is_sub_change": "IS_SUB_CHANGE"}

    is_support_heart_beat_v2: bool | None = None
    is_sub_change: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnregisterClientRequestHeader(RequestHeader):
    """A client leaves one group."""

    code = RequestCode.UNREGISTER_CLIENT
    wire_names: ClassVar = {"client_id": "clientID"}

    client_id: str
    producer_group: str | None = None
    consumer_group: str | None = None
    bname: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetConsumerListByGroupRequestHeader(RequestHeader):
    """The client ids of a group."""

    code = RequestCode.GET_CONSUMER_LIST_BY_GROUP

    consumer_group: str
    bname: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LockBatchMqRequestHeader(RequestHeader):
    """Locks of queues; they are in the body."""

    code = RequestCode.LOCK_BATCH_MQ


@dataclass(frozen=True, slots=True, kw_only=True)
class UnlockBatchMqRequestHeader(RequestHeader):
    """Locks that are given back; they are in the body."""

    code = RequestCode.UNLOCK_BATCH_MQ


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckClientRequestHeader(RequestHeader):
    """A question: can the broker evaluate an expression? It is in the body."""

    code = RequestCode.CHECK_CLIENT_CONFIG


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifyConsumerIdsChangedRequestHeader(RequestHeader):
    """A broker's notice: the members of a group changed."""

    code = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED

    consumer_group: str
    bname: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetOffsetRequestHeader(RequestHeader):
    """A broker's order to a consumer: the offsets are in the body."""

    code = RequestCode.RESET_CONSUMER_CLIENT_OFFSET

    topic: str
    group: str
    timestamp: int
    is_force: bool
    queue_id: Int32 | None = None
    offset: int | None = None
    bname: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InvokeBrokerToResetOffsetRequestHeader(RequestHeader):
    """A reset of a group by time in ms; -1 is the end of the queues, `queue_id` -1 all queues."""

    code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET

    topic: str
    group: str
    timestamp: int
    is_force: bool
    queue_id: Int32 | None = None
    offset: int | None = None
    bname: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetConsumerStatusRequestHeader(RequestHeader):
    """The offsets in a consumer's memory. `client_addr`: a client id; None or "" asks all members."""

    code = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT

    topic: str
    group: str
    client_addr: str | None = None
    bname: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InvokeBrokerToGetConsumerStatusRequestHeader(GetConsumerStatusRequestHeader):
    """The same of a broker, which asks its members."""

    code = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS


@dataclass(frozen=True, slots=True, kw_only=True)
class GetConsumerRunningInfoRequestHeader(RequestHeader):
    """The state of a consumer; a broker passes the question on to the client."""

    code = RequestCode.GET_CONSUMER_RUNNING_INFO

    consumer_group: str
    client_id: str
    jstack_enable: bool | None = None
    bname: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeMessageDirectlyRequestHeader(RequestHeader):
    """One message for one consumer; a broker passes it on with the record as the body."""

    code = RequestCode.CONSUME_MESSAGE_DIRECTLY

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None
    topic: str | None = None
    topic_sys_flag: Int32 | None = None
    group_sys_flag: Int32 | None = None
