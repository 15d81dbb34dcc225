"""Messages as send requests to a broker, and the answers (MQClientAPIImpl.java, MessageDecoder.java)."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from rmq_store.format.frames.message import Message
from rmq_store.format.properties.property_string import INSTANCE_ID, UNIQUE_KEY, encode_properties
from rmq_store.format.text.ids import parse_offset_message_id
from rmq_store.format.text.names import AUTO_CREATE_TOPIC
from rmq_store.protocol.errors import ResponseCode
from rmq_store.protocol.results import SendResult, SendStatus
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.header_fields import request
from rmq_store.protocol.wire.headers import (
    SendBatchMessageRequestHeader,
    SendMessageRequestHeaderV2,
    SendMessageResponseHeader,
)
from rmq_store.remoting.cluster.cluster import Cluster

STORED: Final = {
    int(ResponseCode.SUCCESS): SendStatus.SEND_OK,
    int(ResponseCode.FLUSH_DISK_TIMEOUT): SendStatus.FLUSH_DISK_TIMEOUT,
    int(ResponseCode.SLAVE_NOT_AVAILABLE): SendStatus.SLAVE_NOT_AVAILABLE,
    int(ResponseCode.FLUSH_SLAVE_TIMEOUT): SendStatus.FLUSH_SLAVE_TIMEOUT,
}
"""The codes of answers to messages that are stored."""

_MEMBER: Final = struct.Struct(">5i")
_LENGTH: Final = struct.Struct(">h")
# The only properties of a batch itself: brokers of 4.x write them behind those of each message.
_BATCH_PROPERTIES: Final = "WAIT\x01true\x02"


def send_request(
    cluster: Cluster,
    broker_name: str,
    message: Message,
    queue_id: int,
    group: str,
    *,
    now_ms: int,
    sys_flag: int = 0,
    topic: str | None = None,
    queue_nums: int = 4,
    reconsume_times: int = 0,
    max_reconsume_times: int | None = None,
) -> RemotingCommand:
    """The request for one message (310). `topic` is another one than the message's, for a retry."""
    header = SendMessageRequestHeaderV2(
        producer_group=cluster.wire_group(group),
        topic=cluster.wire_topic(topic or message.topic),
        default_topic=AUTO_CREATE_TOPIC,
        default_topic_queue_nums=queue_nums,
        queue_id=queue_id,
        sys_flag=sys_flag,
        born_timestamp=now_ms,
        flag=message.flag,
        properties=_properties(cluster, message).decode(),
        reconsume_times=reconsume_times,
        unit_mode=False,
        batch=False,
        max_reconsume_times=max_reconsume_times,
        broker_name=broker_name,
    )
    return request(header, message.body)


def batch_request(
    cluster: Cluster,
    broker_name: str,
    messages: Sequence[Message],
    queue_id: int,
    group: str,
    *,
    now_ms: int,
    queue_nums: int = 4,
) -> RemotingCommand:
    """The request for messages of one topic (320): all of them are stored, or none."""
    header = SendBatchMessageRequestHeader(
        producer_group=cluster.wire_group(group),
        topic=cluster.wire_topic(messages[0].topic),
        default_topic=AUTO_CREATE_TOPIC,
        default_topic_queue_nums=queue_nums,
        queue_id=queue_id,
        sys_flag=0,
        born_timestamp=now_ms,
        flag=0,
        properties=_BATCH_PROPERTIES,
        reconsume_times=0,
        unit_mode=False,
        batch=True,
        broker_name=broker_name,
    )
    return request(header, b"".join(_member(cluster, message) for message in messages))


def send_result(answer: RemotingCommand, broker_name: str, messages: Sequence[Message]) -> SendResult:
    """The outcome of a request whose messages are stored."""
    header = SendMessageResponseHeader.from_ext(answer.ext_fields)
    first_id = header.msg_id.partition(",")[0]
    return SendResult(
        messages[0].topic,
        header.queue_id,
        header.queue_offset,
        parse_offset_message_id(first_id)[1] if first_id else 0,
        ",".join(message.properties.get(UNIQUE_KEY, "") for message in messages),
        header.msg_id,
        STORED[answer.code],
        broker_name,
        header.recall_handle,
    )


def _member(cluster: Cluster, message: Message) -> bytes:
    properties = _properties(cluster, message)
    size = _MEMBER.size + len(message.body) + _LENGTH.size + len(properties)
    head = _MEMBER.pack(size, 0, 0, message.flag, len(message.body))
    return b"".join((head, message.body, _LENGTH.pack(len(properties)), properties))


def _properties(cluster: Cluster, message: Message) -> bytes:
    stored = message.stored_properties()
    if cluster.settings.namespace:
        stored[INSTANCE_ID] = cluster.settings.namespace
    return encode_properties(stored)
