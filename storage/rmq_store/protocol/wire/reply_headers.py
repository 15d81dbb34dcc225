"""Typed headers of replies to requests between clients (ReplyMessageRequestHeader.java)."""

from __future__ import annotations

from rmq_store.lazy.dataclasses import dataclass
from rmq_store.protocol.wire.header_fields import Int32, RequestHeader
from rmq_store.protocol.wire.headers import SendMessageRequestHeader, SendMessageRequestHeaderV2
from rmq_store.protocol.wire.request_codes import RequestCode


@dataclass(frozen=True, slots=True, kw_only=True)
class SendReplyMessageRequestHeader(SendMessageRequestHeader):
    """A reply; the property REPLY_TO_CLIENT names the client that waits for it."""

    code = RequestCode.SEND_REPLY_MESSAGE


@dataclass(frozen=True, slots=True, kw_only=True)
class SendReplyMessageRequestHeaderV2(SendMessageRequestHeaderV2):
    """The same with names of one letter."""

    code = RequestCode.SEND_REPLY_MESSAGE_V2


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyMessageRequestHeader(RequestHeader):
    """A reply that a broker passes on to the client that waits for it; times are in ms."""

    code = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: int
    flag: Int32
    born_host: str
    store_host: str
    store_timestamp: int
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool = False
