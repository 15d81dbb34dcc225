"""Requests that store messages, and their answers: 310, 320, 36 (SendMessageProcessor.java, MQClientAPIImpl.java).

    who sends                      group on the wire      a missing topic            INSTANCE_ID
    clients                        with the namespace     the broker makes it        of the namespace
    sinks, redrives, records       as it is               the broker refuses it      none

The caller decides them: by arguments, INSTANCE_ID by the properties that it gives. The properties of a batch request
are WAIT only: brokers up to 5.1 write them behind those of each message.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol

from rmq_store.client.delivery.outcome import STORED
from rmq_store.format.batches.batch_bodies import encode_entry
from rmq_store.format.frames.message import Message
from rmq_store.format.properties.property_string import INSTANCE_ID, UNIQUE_KEY, encode_properties
from rmq_store.format.text.ids import parse_offset_message_id
from rmq_store.format.text.names import AUTO_CREATE_TOPIC
from rmq_store.protocol.messages import MessageQueue
from rmq_store.protocol.results import SendResult
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.header_fields import request
from rmq_store.protocol.wire.headers import (
    ConsumerSendMsgBackRequestHeader,
    SendBatchMessageRequestHeader,
    SendMessageRequestHeaderV2,
    SendMessageResponseHeader,
)

NO_DEFAULT_TOPIC: Final = "rmq_sys_none"
"""With TBW102 here a broker would make the topic with its own settings, and only at itself."""

_BATCH_PROPERTIES: Final = "WAIT\x01true\x02"


class TopicNames(Protocol):
    """Names of topics on the wire, which a cluster gives: with its namespace."""

    def wire_topic(self, topic: str) -> str:
        """See `Cluster.wire_topic`."""


def single_request(
    topics: TopicNames,
    queue: MessageQueue,
    body: bytes,
    properties: str,
    *,
    group: str,
    born_ms: int,
    flag: int = 0,
    sys_flag: int = 0,
    reconsume_times: int = 0,
    max_reconsume_times: int | None = None,
    new_topic_queues: int = 0,
) -> RemotingCommand:
    """A request (310) for one message. `properties` is its property string, `group` the producers' name on the wire.

    `new_topic_queues`: with so many queues the broker may make the topic; 0: it must be there.
    """
    return _request(
        SendMessageRequestHeaderV2, topics, queue, body, properties,
        group=group, born_ms=born_ms, flag=flag, sys_flag=sys_flag, reconsume_times=reconsume_times,
        max_reconsume_times=max_reconsume_times, new_topic_queues=new_topic_queues,
    )  # fmt: skip


def batch_request(
    topics: TopicNames,
    queue: MessageQueue,
    body: bytes,
    *,
    group: str,
    born_ms: int,
    sys_flag: int = 0,
    new_topic_queues: int = 0,
) -> RemotingCommand:
    """A request (320) for the entries in `body` (`format.batches.batch_bodies`), all of them for one queue, with one
    sysFlag and born time: all of them are stored, or none. The other arguments are those of `single_request`.
    """
    return _request(
        SendBatchMessageRequestHeader, topics, queue, body, _BATCH_PROPERTIES,
        group=group, born_ms=born_ms, sys_flag=sys_flag, new_topic_queues=new_topic_queues,
    )  # fmt: skip


def _request(
    kind: type[SendMessageRequestHeaderV2],
    topics: TopicNames,
    queue: MessageQueue,
    body: bytes,
    properties: str,
    *,
    group: str,
    born_ms: int,
    sys_flag: int,
    new_topic_queues: int,
    flag: int = 0,
    reconsume_times: int = 0,
    max_reconsume_times: int | None = None,
) -> RemotingCommand:
    header = kind(
        producer_group=group,
        topic=topics.wire_topic(queue.topic),
        default_topic=AUTO_CREATE_TOPIC if new_topic_queues else NO_DEFAULT_TOPIC,
        default_topic_queue_nums=new_topic_queues,
        queue_id=queue.queue_id,
        sys_flag=sys_flag,
        born_timestamp=born_ms,
        flag=flag,
        properties=properties,
        reconsume_times=reconsume_times,
        unit_mode=False,
        max_reconsume_times=max_reconsume_times,
        batch=kind is SendBatchMessageRequestHeader,
        broker_name=queue.broker_name,
    )
    return request(header, body)


def send_back_request(
    broker_name: str,
    wire_group: str,
    *,
    commit_log_offset: int,
    msg_id: str,
    wire_topic: str,
    delay_level: int,
    max_reconsume_times: int | None,
) -> RemotingCommand:
    """A request (36) that a broker sends its own copy of a message back to a group. `msg_id` and `wire_topic` are those
    of the copy. `max_reconsume_times` None: that of the group.
    """
    header = ConsumerSendMsgBackRequestHeader(
        offset=commit_log_offset,
        group=wire_group,
        delay_level=delay_level,
        origin_msg_id=msg_id,
        origin_topic=wire_topic,
        unit_mode=False,
        max_reconsume_times=max_reconsume_times,
        bname=broker_name,
    )
    return request(header)


# -- clients' messages -----------------------------------------------------------------------------------------------


def properties_of(message: Message, namespace: str) -> bytes:
    """The property string of a client's message; INSTANCE_ID is its namespace, where it has one."""
    stored = message.stored_properties()
    if namespace:
        stored[INSTANCE_ID] = namespace
    return encode_properties(stored)


def batch_body(messages: Iterable[Message], namespace: str) -> bytes:
    """The body of a batch request for clients' messages."""
    return b"".join(encode_entry(one.flag, one.body, properties_of(one, namespace)) for one in messages)


# -- answers -----------------------------------------------------------------------------------------------------------


def stored_offset(ext_fields: Mapping[str, str]) -> int:
    """The queue offset of the first message that a request has stored. RemotingCommandError: the answer has none."""
    return SendMessageResponseHeader.from_ext(ext_fields).queue_offset


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
