"""Typed headers: names on the wire, what is mandatory, and which texts are values."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any

import pytest

from rmq_store.client import RemotingCommandError
from rmq_store.protocol.wire import admin_headers, group_headers, headers, name_server_headers, pop_headers
from rmq_store.protocol.wire.header_fields import RequestHeader, ResponseHeader, mandatory_names, request
from rmq_store.protocol.wire.headers import (
    ConsumerSendMsgBackRequestHeader,
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    QueryMessageRequestHeader,
    SendMessageRequestHeader,
    SendMessageRequestHeaderV2,
    SendMessageResponseHeader,
    UpdateConsumerOffsetRequestHeader,
)
from rmq_store.protocol.wire.request_codes import RequestCode, request_name

MODULES = (headers, group_headers, pop_headers, admin_headers, name_server_headers)
CLASSES: list[type[RequestHeader] | type[ResponseHeader]] = [
    value
    for module in MODULES
    for value in vars(module).values()
    if isinstance(value, type)
    and issubclass(value, RequestHeader | ResponseHeader)
    and value.__module__ == module.__name__
]
V2 = SendMessageRequestHeaderV2(
    producer_group="pg", topic="Orders", default_topic="TBW102", default_topic_queue_nums=4, queue_id=2, sys_flag=0,
    born_timestamp=1_700_000_000_000, flag=0, properties="WAIT\x01true", reconsume_times=0, unit_mode=False, batch=True,
    max_reconsume_times=16, broker_name="broker-a",
)  # fmt: skip


@pytest.mark.parametrize("header", CLASSES, ids=lambda header: header.__name__)
def test_every_header_is_read_as_it_was_written(header: type[Any]) -> None:
    samples = {"str": "text", "int": 1 << 40, "Int32": 5, "bool": True}
    full = header(**{one.name: samples[str(one.type).removesuffix(" | None")] for one in fields(header)})
    least = header(**{one.name: getattr(full, one.name) for one in fields(header) if one.default is MISSING})
    for value in (full, least):
        ext = value.to_ext()
        assert all(isinstance(text, str) for text in ext.values())
        assert header.from_ext({**ext, "unknown": "x", "ReqT": "1"}) == value
    assert set(full.to_ext()) == set(mandatory_names(header))


def test_a_send_has_names_of_one_letter() -> None:
    assert V2.to_ext() == {
        "a": "pg", "b": "Orders", "c": "TBW102", "d": "4", "e": "2", "f": "0", "g": "1700000000000", "h": "0",
        "i": "WAIT\x01true", "j": "0", "k": "false", "l": "16", "m": "true", "n": "broker-a",
    }  # fmt: skip
    command = request(V2, b"tea")
    assert (command.code, command.ext_fields, command.body) == (310, V2.to_ext(), b"tea")


@pytest.mark.parametrize(
    ("header", "mandatory", "optional"),
    [
        (SendMessageRequestHeader,
         "producerGroup topic defaultTopic defaultTopicQueueNums queueId sysFlag bornTimestamp flag",
         "properties reconsumeTimes unitMode batch maxReconsumeTimes"),
        (SendMessageRequestHeaderV2, "a b c d e f g h", "i j k l m n"),
        (SendMessageResponseHeader, "msgId queueId queueOffset",
         "transactionId batchUniqId recallHandle MSG_REGION TRACE_ON"),
        (PullMessageRequestHeader,
         "consumerGroup topic queueId queueOffset maxMsgNums sysFlag commitOffset suspendTimeoutMillis subVersion",
         "subscription expressionType maxMsgBytes bname"),
        (PullMessageResponseHeader, "suggestWhichBrokerId nextBeginOffset minOffset maxOffset",
         "offsetDelta topicSysFlag groupSysFlag forbiddenType"),
        (ConsumerSendMsgBackRequestHeader, "offset group delayLevel",
         "originMsgId originTopic unitMode maxReconsumeTimes bname"),
        (QueryMessageRequestHeader, "topic key maxNum beginTimestamp endTimestamp", "_UNIQUE_KEY_QUERY"),
        (group_headers.UnregisterClientRequestHeader, "clientID", "producerGroup consumerGroup bname"),
        (name_server_headers.RegisterBrokerRequestHeader,
         "brokerName brokerAddr clusterName haServerAddr brokerId",
         "compressed bodyCrc32 heartbeatTimeoutMillis enableActingMaster"),
        (pop_headers.PopMessageRequestHeader,
         "consumerGroup topic queueId maxMsgNums invisibleTime pollTime bornTime initMode",
         "expType exp order attemptId bname"),
        (admin_headers.CreateTopicRequestHeader, "topic defaultTopic readQueueNums writeQueueNums perm",
         "topicFilterType topicSysFlag order attributes force"),
    ],
)  # fmt: skip
def test_names_and_mandatory_fields_are_those_of_java(
    header: type[RequestHeader] | type[ResponseHeader], mandatory: str, optional: str
) -> None:
    names = mandatory_names(header)
    assert {name for name, needed in names.items() if needed} == set(mandatory.split())
    assert {name for name, needed in names.items() if not needed} == set(optional.split())


def test_a_missing_field_is_named() -> None:
    with pytest.raises(
        RemotingCommandError, match=r"^UpdateConsumerOffsetRequestHeader: the field 'topic' is missing$"
    ):
        UpdateConsumerOffsetRequestHeader.from_ext({"consumerGroup": "g", "queueId": "0", "commitOffset": "1"})


@pytest.mark.parametrize("text", ["", " 1", "1_0", "0x1", "1.0", "١", "9223372036854775808", "9" * 5000, "true"])
def test_a_text_that_is_no_long_is_refused(text: str) -> None:
    ext = {"consumerGroup": "g", "topic": "T", "queueId": "0", "commitOffset": text}
    with pytest.raises(RemotingCommandError, match=r"commitOffset='.{0,64}' is no 64-bit integer$"):
        UpdateConsumerOffsetRequestHeader.from_ext(ext)
    for good, value in (("-1", -1), ("+5", 5), ("007", 7), ("9223372036854775807", (1 << 63) - 1)):
        assert UpdateConsumerOffsetRequestHeader.from_ext({**ext, "commitOffset": good}).commit_offset == value


@pytest.mark.parametrize("text", ["2147483648", "-2147483649"])
def test_an_int_of_java_has_32_bits(text: str) -> None:
    with pytest.raises(RemotingCommandError, match=f"queueId='{text}' is no 32-bit integer"):
        UpdateConsumerOffsetRequestHeader.from_ext(
            {"consumerGroup": "g", "topic": "T", "queueId": text, "commitOffset": "0"}
        )


@pytest.mark.parametrize(("text", "value"), [("true", True), ("TRUE", True), ("false", False), ("1", False)])
def test_a_boolean_is_read_as_java_reads_it(text: str, value: bool) -> None:
    ext = {"topic": "T", "key": "k", "maxNum": "1", "beginTimestamp": "0", "endTimestamp": "1"}
    assert QueryMessageRequestHeader.from_ext({**ext, "_UNIQUE_KEY_QUERY": text}).is_unique_key is value


def test_errors_name_a_request() -> None:
    assert request_name(RequestCode.PULL_MESSAGE) == "PULL_MESSAGE (11)"
    assert request_name(999) == "request 999"
