"""Look-ups of messages by key and by place (QueryMessageProcessor.java). Pulls (11) are in `cluster.pull_request`.

`read_*` raise MQBrokerError if the answer is a refusal, and the error itself if one stands in its place.
"""

from __future__ import annotations

from rmq_store.protocol.errors import ResponseCode
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.header_fields import request
from rmq_store.protocol.wire.headers import QueryMessageRequestHeader, ViewMessageRequestHeader
from rmq_store.remoting.questions.answer import Given, Names, checked, is_nothing


def ask_messages_by_key(
    names: Names, topic: str, key: str, *, begin_ms: int, end_ms: int, max_num: int, is_unique_key: bool
) -> RemotingCommand:
    """The messages of a topic with a key or a UNIQ_KEY, stored in [begin_ms, end_ms] (12). A broker compares hashes."""
    header = QueryMessageRequestHeader(
        topic=names.wire_topic(topic),
        key=key,
        max_num=max_num,
        begin_timestamp=begin_ms,
        end_timestamp=end_ms,
        is_unique_key=is_unique_key,
    )
    return request(header)


def read_messages_by_key(answer: Given, broker_name: str) -> bytes:
    """Frames; b"": none is there (22)."""
    found = checked(answer, broker_name, (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND))
    return found.body if found.code == ResponseCode.SUCCESS else b""


def ask_message(commit_log_offset: int, broker_name: str | None = None) -> RemotingCommand:
    """The message that begins at a place of the commit log (33)."""
    return request(ViewMessageRequestHeader(offset=commit_log_offset, bname=broker_name))


def read_message(answer: Given, broker_name: str) -> bytes:
    """Its frame; b"": no message begins there, or it is not there any more (1)."""
    return b"" if is_nothing(answer) else checked(answer, broker_name).body
