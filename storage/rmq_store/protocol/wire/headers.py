"""Typed headers of producers and consumers: send, pull, query, offsets (SendMessageRequestHeader.java and others).

Milliseconds and offsets are Java's longs; `bname` names the broker in 5.x.
"""

from __future__ import annotations

from typing import ClassVar

from rmq_store.lazy.dataclasses import dataclass
from rmq_store.protocol.wire.header_fields import Int32, RequestHeader, ResponseHeader
from rmq_store.protocol.wire.request_codes import RequestCode


@dataclass(frozen=True, slots=True, kw_only=True)
class SendMessageRequestHeader(RequestHeader):
    """One message, with the long names of 3.x clients and of C++ 1.x. `born_timestamp` is in ms."""

    code = RequestCode.SEND_MESSAGE

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: int
    flag: Int32
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool | None = None
    batch: bool | None = None
    max_reconsume_times: Int32 | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SendMessageRequestHeaderV2(SendMessageRequestHeader):
    """The same with names of one letter."""

    code = RequestCode.SEND_MESSAGE_V2
    wire_names: ClassVar = dict(
        zip(
            "producer_group topic default_topic default_topic_queue_nums queue_id sys_flag born_timestamp flag "
            "properties reconsume_times unit_mode max_reconsume_times batch broker_name".split(),
            "abcdefghijklmn",
            strict=True,
        )
    )

    broker_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SendBatchMessageRequestHeader(SendMessageRequestHeaderV2):
    """Several messages of one queue in the body; `batch` is true."""

    code = RequestCode.SEND_BATCH_MESSAGE


@dataclass(frozen=True, slots=True, kw_only=True)
class SendMessageResponseHeader(ResponseHeader):
    """The place of a message. For a batch `msg_id` is a list with commas, and `queue_offset` that of the first."""

    wire_names: ClassVar = {"msg_region": "MSG_REGION", "trace_on": "TRACE_ON"}

    msg_id: str
    queue_id: Int32
    queue_offset: int
    transaction_id: str | None = None
    batch_uniq_id: str | None = None
    recall_handle: str | None = None
    msg_region: str | None = None
    trace_on: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSendMsgBackRequestHeader(RequestHeader):
    """A message that a consumer could not handle: `offset` is its commit-log offset."""

    code = RequestCode.CONSUMER_SEND_MSG_BACK

    offset: int
    group: str
    delay_level: Int32
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool | None = None
    max_reconsume_times: Int32 | None = None
    bname: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallMessageRequestHeader(RequestHeader):
    """A timer to cancel (5.3.2 and newer); `recall_handle` is that of the answer to its send."""

    code = RequestCode.RECALL_MESSAGE

    topic: str
    recall_handle: str
    producer_group: str | None = None
    bname: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallMessageResponseHeader(ResponseHeader):
    """The unique key of the timer that was cancelled."""

    msg_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTransactionRequestHeader(RequestHeader):
    """The end of a transaction: `commit_or_rollback` is 0 (unknown), 8 (commit) or 12 (rollback)."""

    code = RequestCode.END_TRANSACTION

    producer_group: str
    tran_state_table_offset: int
    commit_log_offset: int
    commit_or_rollback: Int32
    from_transaction_check: bool | None = None
    msg_id: str
    transaction_id: str | None = None
    topic: str | None = None
    bname: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckTransactionStateRequestHeader(RequestHeader):
    """A broker's question about a half message; the body is its record."""

    code = RequestCode.CHECK_TRANSACTION_STATE

    tran_state_table_offset: int
    commit_log_offset: int
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None
    topic: str | None = None
    bname: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PullMessageRequestHeader(RequestHeader):
    """A pull. `sys_flag`: 1 commits `commit_offset`, 2 may wait, 4 `subscription` is given, 16 lite pull."""

    code = RequestCode.PULL_MESSAGE

    consumer_group: str
    topic: str
    queue_id: Int32
    queue_offset: int
    max_msg_nums: Int32
    sys_flag: Int32
    commit_offset: int
    suspend_timeout_millis: int
    subscription: str | None = None
    sub_version: int
    expression_type: str | None = None
    max_msg_bytes: Int32 | None = None
    bname: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LitePullMessageRequestHeader(PullMessageRequestHeader):
    """The pull of a 5.x lite pull consumer. Brokers of 4.9 do not know this code."""

    code = RequestCode.LITE_PULL_MESSAGE


@dataclass(frozen=True, slots=True, kw_only=True)
class PullMessageResponseHeader(ResponseHeader):
    """The range of the queue and where to pull next."""

    suggest_which_broker_id: int
    next_begin_offset: int
    min_offset: int
    max_offset: int
    offset_delta: int | None = None
    topic_sys_flag: Int32 | None = None
    group_sys_flag: Int32 | None = None
    forbidden_type: Int32 | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryMessageRequestHeader(RequestHeader):
    """A query by key; both timestamps are in ms."""

    code = RequestCode.QUERY_MESSAGE
    wire_names: ClassVar = {"is_unique_key": "_UNIQUE_KEY_QUERY"}

    topic: str
    key: str
    max_num: Int32
    begin_timestamp: int
    end_timestamp: int
    is_unique_key: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryMessageResponseHeader(ResponseHeader):
    """The end of the index when it was searched."""

    index_last_update_timestamp: int
    index_last_update_phyoffset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewMessageRequestHeader(RequestHeader):
    """The record at a commit-log offset."""

    code = RequestCode.VIEW_MESSAGE_BY_ID

    offset: int
    topic: str | None = None
    bname: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryConsumerOffsetRequestHeader(RequestHeader):
    """The committed offset of a group in a queue."""

    code = RequestCode.QUERY_CONSUMER_OFFSET

    consumer_group: str
    topic: str
    queue_id: Int32
    set_zero_if_not_found: bool | None = None
    bname: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryConsumerOffsetResponseHeader(ResponseHeader):
    """The next offset that the group will read."""

    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateConsumerOffsetRequestHeader(RequestHeader):
    """A commit: the next offset that the group will read."""

    code = RequestCode.UPDATE_CONSUMER_OFFSET

    consumer_group: str
    topic: str
    queue_id: Int32
    commit_offset: int
    bname: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOffsetRequestHeader(RequestHeader):
    """The offset of a store time in ms; `boundary_type` is LOWER or UPPER (5.x)."""

    code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP

    topic: str
    queue_id: Int32
    timestamp: int
    boundary_type: str | None = None
    bname: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOffsetResponseHeader(ResponseHeader):
    """The offset that was found."""

    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GetMaxOffsetRequestHeader(RequestHeader):
    """The offset behind the last message of a queue."""

    code = RequestCode.GET_MAX_OFFSET

    topic: str
    queue_id: Int32
    committed: bool | None = None
    bname: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetMaxOffsetResponseHeader(ResponseHeader):
    """The end of the queue."""

    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GetMinOffsetRequestHeader(RequestHeader):
    """The offset of the first message that a queue still has."""

    code = RequestCode.GET_MIN_OFFSET

    topic: str
    queue_id: Int32
    bname: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetMinOffsetResponseHeader(ResponseHeader):
    """The beginning of the queue; -1 for a queue that the broker does not have."""

    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GetEarliestMsgStoretimeRequestHeader(RequestHeader):
    """The store time of a queue's first message."""

    code = RequestCode.GET_EARLIEST_MSG_STORETIME

    topic: str
    queue_id: Int32
    bname: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetEarliestMsgStoretimeResponseHeader(ResponseHeader):
    """The time in ms, -1 if there is no message."""

    timestamp: int
