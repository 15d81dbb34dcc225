"""Requests that store messages, and their answers (SendMessageProcessor.java, MQClientAPIImpl.java).

A request never asks a broker to make a topic: `defaultTopic` names none that has the right to be inherited. The
properties of a batch request are WAIT only: brokers up to 5.1 write them behind those of each message.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rmq_store.protocol.messages import MessageQueue
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.header_fields import request
from rmq_store.protocol.wire.headers import (
    SendBatchMessageRequestHeader,
    SendMessageRequestHeaderV2,
    SendMessageResponseHeader,
)

NO_DEFAULT_TOPIC: Final = "rmq_sys_none"
"""With TBW102 here a broker would make the topic with its own settings, and only at itself."""

_BATCH_PROPERTIES: Final = "WAIT\x01true\x02"


def batch_request(
    queue: MessageQueue, body: bytes, *, group: str, sys_flag: int, born_ms: int
) -> RemotingCommand:
    """A request (320) for the entries in `body`, all of them for one queue, with one sysFlag and born time."""
    header = SendBatchMessageRequestHeader(
        producer_group=group,
        topic=queue.topic,
        default_topic=NO_DEFAULT_TOPIC,
        default_topic_queue_nums=0,
        queue_id=queue.queue_id,
        sys_flag=sys_flag,
        born_timestamp=born_ms,
        flag=0,
        properties=_BATCH_PROPERTIES,
        reconsume_times=0,
        unit_mode=False,
        batch=True,
        broker_name=queue.broker_name,
    )
    return request(header, body)


def single_request(
    queue: MessageQueue,
    body: bytes,
    properties: str,
    *,
    group: str,
    flag: int = 0,
    sys_flag: int = 0,
    born_ms: int,
    reconsume_times: int = 0,
    max_reconsume_times: int | None = None,
) -> RemotingCommand:
    """A request (310) for one message. `properties` is its property string."""
    header = SendMessageRequestHeaderV2(
        producer_group=group,
        topic=queue.topic,
        default_topic=NO_DEFAULT_TOPIC,
        default_topic_queue_nums=0,
        queue_id=queue.queue_id,
        sys_flag=sys_flag,
        born_timestamp=born_ms,
        flag=flag,
        properties=properties,
        reconsume_times=reconsume_times,
        unit_mode=False,
        max_reconsume_times=max_reconsume_times,
        batch=False,
        broker_name=queue.broker_name,
    )
    return request(header, body)


def stored_offset(ext_fields: Mapping[str, str]) -> int:
    """The queue offset of the first message that a request has stored. RemotingCommandError: the answer has none."""
    return SendMessageResponseHeader.from_ext(ext_fields).queue_offset
