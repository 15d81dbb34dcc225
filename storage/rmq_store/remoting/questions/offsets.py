"""Offsets of queues and of groups: ends, look-ups by time, commits, resets (ConsumerManageProcessor.java).

`read_*` raise MQBrokerError if the answer is a refusal, and the error itself if one stands in its place.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from rmq_store.protocol.errors import ResponseCode
from rmq_store.protocol.messages import MessageQueue
from rmq_store.protocol.versions import V5_0_0
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.group_headers import InvokeBrokerToResetOffsetRequestHeader
from rmq_store.protocol.wire.header_fields import request
from rmq_store.protocol.wire.headers import (
    GetMaxOffsetRequestHeader,
    GetMaxOffsetResponseHeader,
    GetMinOffsetRequestHeader,
    GetMinOffsetResponseHeader,
    QueryConsumerOffsetRequestHeader,
    QueryConsumerOffsetResponseHeader,
    SearchOffsetRequestHeader,
    SearchOffsetResponseHeader,
    UpdateConsumerOffsetRequestHeader,
)
from rmq_store.remoting.questions.answer import Given, Names, checked

ALL_QUEUES: Final = -1


class ConsumerOffset(NamedTuple):
    """A group's offset in a queue. `may_be_none`: the broker is older than 5.0, and answers 0 for a queue that still
    has its first message, whether or not the group has an offset.
    """

    offset: int
    may_be_none: bool = False


class FoundOffset(NamedTuple):
    """The offset that belongs to a time. `is_near`: the broker is older than 5.0, and has told the message that is
    nearest in time, of several any one, and the last if all are older (ConsumeQueue#getOffsetInQueueByTime).
    """

    offset: int
    is_near: bool


# -- queues ------------------------------------------------------------------------------------------------------------


def ask_min_offset(names: Names, queue: MessageQueue) -> RemotingCommand:
    """The first offset of a queue (31)."""
    return request(
        GetMinOffsetRequestHeader(
            topic=names.wire_topic(queue.topic), queue_id=queue.queue_id, bname=queue.broker_name
        )
    )


def ask_max_offset(names: Names, topic: str, queue_id: int, broker_name: str | None) -> RemotingCommand:
    """The offset of the next message of a queue (30). The answer has the broker's version, a refusal, too."""
    return request(
        GetMaxOffsetRequestHeader(topic=names.wire_topic(topic), queue_id=queue_id, bname=broker_name)
    )


def read_min_offset(answer: Given, broker_name: str) -> int:
    """0 for a queue that the broker does not have."""
    return max(GetMinOffsetResponseHeader.from_ext(checked(answer, broker_name).ext_fields).offset, 0)


def read_max_offset(answer: Given, broker_name: str) -> int:
    """0 for a queue that the broker does not have."""
    return max(GetMaxOffsetResponseHeader.from_ext(checked(answer, broker_name).ext_fields).offset, 0)


def ask_offset_by_time(names: Names, queue: MessageQueue, timestamp_ms: int) -> RemotingCommand:
    """The first offset stored at or after a time; the end of the queue if all are older (29)."""
    header = SearchOffsetRequestHeader(
        topic=names.wire_topic(queue.topic),
        queue_id=queue.queue_id,
        timestamp=timestamp_ms,
        bname=queue.broker_name,
    )
    return request(header)


def read_offset_by_time(answer: Given, broker_name: str) -> FoundOffset:
    """The offset, and whether it is only near the time."""
    found = checked(answer, broker_name)
    return FoundOffset(max(SearchOffsetResponseHeader.from_ext(found.ext_fields).offset, 0), found.version < V5_0_0)


# -- groups ------------------------------------------------------------------------------------------------------------


def ask_consumer_offset(
    names: Names, group: str, queue: MessageQueue, *, set_zero_if_not_found: bool | None
) -> RemotingCommand:
    """A group's offset in a queue (14). A broker answers 0 for a new group and a queue that still has its first
    messages, unless `set_zero_if_not_found` is False, which only 5.x brokers know.
    """
    header = QueryConsumerOffsetRequestHeader(
        consumer_group=names.wire_group(group),
        topic=names.wire_topic(queue.topic),
        queue_id=queue.queue_id,
        set_zero_if_not_found=set_zero_if_not_found,
        bname=queue.broker_name,
    )
    return request(header)


def read_consumer_offset(answer: Given, broker_name: str) -> ConsumerOffset | None:
    """None: the group has no offset (22)."""
    found = checked(answer, broker_name, (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND))
    if found.code == ResponseCode.QUERY_NOT_FOUND:
        return None
    offset = QueryConsumerOffsetResponseHeader.from_ext(found.ext_fields).offset
    return ConsumerOffset(offset, offset == 0 and found.version < V5_0_0)


def ask_commit(names: Names, group: str, queue: MessageQueue, offset: int) -> RemotingCommand:
    """Commit a group's offset (15), which only masters keep."""
    header = UpdateConsumerOffsetRequestHeader(
        consumer_group=names.wire_group(group),
        topic=names.wire_topic(queue.topic),
        queue_id=queue.queue_id,
        commit_offset=offset,
        bname=queue.broker_name,
    )
    return request(header)


def read_commit(answer: Given, broker_name: str) -> bool:
    """Whether the offset stands; False: a reset of the group is pending, and the broker ignored the commit. Its remark
    says so ("Offset has been previously reset").
    """
    return not checked(answer, broker_name).remark


def ask_reset(
    names: Names,
    group: str,
    topic: str,
    timestamp_ms: int,
    *,
    force: bool,
    queue_id: int = ALL_QUEUES,
    offset: int | None = None,
) -> RemotingCommand:
    """Order a broker to reset a group to a time, or to `offset` in one queue (222). Without `force` offsets only go
    back. A broker of 4.x reads neither the queue nor the offset, and refuses without members (206).
    """
    header = InvokeBrokerToResetOffsetRequestHeader(
        topic=names.wire_topic(topic),
        group=names.wire_group(group),
        timestamp=timestamp_ms,
        is_force=force,
        queue_id=queue_id,
        offset=offset,
    )
    return request(header)
