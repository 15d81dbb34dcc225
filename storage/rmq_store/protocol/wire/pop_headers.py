"""Typed headers of POP, the protocol of simple consumers (PopMessageRequestHeader.java and others)."""

from __future__ import annotations

from rmq_store.lazy.dataclasses import dataclass
from rmq_store.protocol.wire.header_fields import Int32, RequestHeader, ResponseHeader
from rmq_store.protocol.wire.request_codes import RequestCode


@dataclass(frozen=True, slots=True, kw_only=True)
class PopMessageRequestHeader(RequestHeader):
    """Receive messages for `invisible_time` ms.

    `queue_id` -1 is any queue. `init_mode`: 0 from the first message, 1 from the end of the queue.
    """

    code = RequestCode.POP_MESSAGE

    consumer_group: str
    topic: str
    queue_id: Int32
    max_msg_nums: Int32
    invisible_time: int
    poll_time: int
    born_time: int
    init_mode: Int32
    exp_type: str | None = None
    exp: str | None = None
    order: bool | None = None
    attempt_id: str | None = None
    bname: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PopMessageResponseHeader(ResponseHeader):
    """The parts of receipt handles; all times are in ms."""

    pop_time: int
    invisible_time: int
    revive_qid: Int32
    rest_num: int
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AckMessageRequestHeader(RequestHeader):
    """One message was handled; `extra_info` is its receipt handle."""

    code = RequestCode.ACK_MESSAGE

    consumer_group: str
    topic: str
    queue_id: Int32
    extra_info: str
    offset: int
    bname: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchAckMessageRequestHeader(RequestHeader):
    """Several messages were handled; they are in the body."""

    code = RequestCode.BATCH_ACK_MESSAGE


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeInvisibleTimeRequestHeader(RequestHeader):
    """A new invisible time in ms, from now on."""

    code = RequestCode.CHANGE_MESSAGE_INVISIBLETIME

    consumer_group: str
    topic: str
    queue_id: Int32
    extra_info: str
    offset: int
    invisible_time: int
    bname: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeInvisibleTimeResponseHeader(ResponseHeader):
    """The parts of the new receipt handle; times are in ms."""

    pop_time: int
    invisible_time: int
    revive_qid: Int32


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationRequestHeader(RequestHeader):
    """A question: is there something to receive, after at most `poll_time` ms."""

    code = RequestCode.NOTIFICATION

    consumer_group: str
    topic: str
    queue_id: Int32
    poll_time: int
    born_time: int
    order: bool | None = None
    attempt_id: str | None = None
    bname: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationResponseHeader(ResponseHeader):
    """The answer."""

    has_msg: bool
    polling_full: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PeekMessageRequestHeader(RequestHeader):
    """Look at messages without receiving them."""

    code = RequestCode.PEEK_MESSAGE

    consumer_group: str
    topic: str
    queue_id: Int32
    max_msg_nums: Int32
    bname: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PollingInfoRequestHeader(RequestHeader):
    """The number of receive calls that wait."""

    code = RequestCode.POLLING_INFO

    consumer_group: str
    topic: str
    queue_id: Int32
    bname: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PollingInfoResponseHeader(ResponseHeader):
    """The number of waiting calls."""

    polling_num: Int32


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryAssignmentRequestHeader(RequestHeader):
    """The queues that a broker gives to one client; the question is in the body."""

    code = RequestCode.QUERY_ASSIGNMENT


@dataclass(frozen=True, slots=True, kw_only=True)
class SetMessageRequestModeRequestHeader(RequestHeader):
    """The mode of a group, PULL or POP; it is in the body."""

    code = RequestCode.SET_MESSAGE_REQUEST_MODE
