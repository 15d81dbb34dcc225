"""Requests as tests send them to brokers, with the names of the wire: what a field means is in RocketMQ's headers."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterable, Iterator, Mapping

from helpers.cluster.asking import Connection
from helpers.cluster.waiting import until
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.request_codes import RequestCode

TOOLS_CONSUMER = "TOOLS_CONSUMER"
SUBSCRIPTION_FLAG = 4
SUSPEND_FLAG = 2
QUEUE_ID_AT, BODY_LENGTH_AT, QUEUE_OFFSET_AT = 12, 84, 20
FOREVER_MS = (1 << 63) - 1


def create_topic(
    broker: Connection, topic: str, queue_count: int = 4, *, perm: int = 6, attributes: str = ""
) -> RemotingCommand:
    fields = {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": queue_count, "writeQueueNums": queue_count,
        "perm": perm, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false",
    }  # fmt: skip
    return broker.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields | ({"attributes": attributes} if attributes else {}))


def send(
    broker: Connection, topic: str, queue_id: int = 0, body: bytes = b"body",
    properties: Mapping[str, str] | None = None, *, sys_flag: int = 0, reconsume_times: int = 0,
    max_reconsume_times: int | None = None,
) -> RemotingCommand:  # fmt: skip
    fields = send_fields(topic, queue_id, _text(properties or {}))
    fields |= {"f": sys_flag, "j": reconsume_times}
    if max_reconsume_times is not None:
        fields["l"] = max_reconsume_times
    return broker.ask(RequestCode.SEND_MESSAGE_V2, fields, body)


def send_batch(
    broker: Connection, topic: str, bodies: Iterable[bytes], queue_id: int = 0, *,
    properties: Mapping[str, str] | None = None, outer: Mapping[str, str] | None = None,
) -> RemotingCommand:  # fmt: skip
    """`properties` are those of each message, `outer` those of the request."""
    fields = send_fields(topic, queue_id, _text({"WAIT": "true"} if outer is None else outer)) | {"m": "true"}
    inner = _text(properties or {}).encode()
    return broker.ask(RequestCode.SEND_BATCH_MESSAGE, fields, b"".join(_inner(body, inner) for body in bodies))


def pull(
    broker: Connection, topic: str, queue_id: int = 0, offset: int = 0, *, count: int = 32, group: str = TOOLS_CONSUMER,
    sys_flag: int = SUBSCRIPTION_FLAG, subscription: str = "*", expression_type: str = "TAG",
    code: int = RequestCode.PULL_MESSAGE, suspend_ms: int = 0,
) -> RemotingCommand:  # fmt: skip
    fields = pull_fields(
        topic, queue_id, offset, count=count, group=group, sys_flag=sys_flag, subscription=subscription,
        expression_type=expression_type, suspend_ms=suspend_ms,
    )  # fmt: skip
    return broker.ask(code, fields)


def pull_fields(
    topic: str, queue_id: int = 0, offset: int = 0, *, count: int = 32, group: str = TOOLS_CONSUMER,
    sys_flag: int = SUBSCRIPTION_FLAG, subscription: str = "*", expression_type: str = "TAG", suspend_ms: int = 0,
) -> dict[str, object]:  # fmt: skip
    return {
        "consumerGroup": group, "topic": topic, "queueId": queue_id, "queueOffset": offset, "maxMsgNums": count,
        "sysFlag": sys_flag, "commitOffset": 0, "suspendTimeoutMillis": suspend_ms, "subscription": subscription,
        "subVersion": 0, "expressionType": expression_type,
    }  # fmt: skip


def heartbeat(broker: Connection, client_id: str, group: str, topic: str) -> RemotingCommand:
    subscription = {
        "topic": topic, "subString": "*", "tagsSet": [], "codeSet": [], "subVersion": int(time.time() * 1000),
        "classFilterMode": False, "expressionType": "TAG",
    }  # fmt: skip
    member = {
        "groupName": group, "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "unitMode": False, "subscriptionDataSet": [subscription],
    }  # fmt: skip
    body = {"clientID": client_id, "producerDataSet": [], "consumerDataSet": [member]}
    return broker.ask(RequestCode.HEART_BEAT, None, json.dumps(body).encode())


def lock(
    broker: Connection, group: str, client_id: str, topic: str, queue_id: int = 0, *, broker_name: str = "broker-a",
    code: int = RequestCode.LOCK_BATCH_MQ,
) -> list[dict[str, object]]:  # fmt: skip
    """The queues that this client holds afterwards, of the one that it asks for."""
    queue = {"brokerName": broker_name, "queueId": queue_id, "topic": topic}
    body = {"consumerGroup": group, "clientId": client_id, "mqSet": [queue]}
    answer = broker.ask(code, None, json.dumps(body).encode())
    assert answer.code == 0, answer
    return json.loads(answer.body)["lockOKMQSet"] if answer.body else []


def query(broker: Connection, topic: str, key: str, *, unique: bool = False, count: int = 64) -> RemotingCommand:
    fields = {
        "topic": topic, "key": key, "maxNum": count, "beginTimestamp": 0, "endTimestamp": FOREVER_MS,
        "_UNIQUE_KEY_QUERY": str(unique).lower(),
    }  # fmt: skip
    return broker.ask(RequestCode.QUERY_MESSAGE, fields)


def committed(broker: Connection, group: str, topic: str, queue_id: int = 0) -> RemotingCommand:
    fields = {"consumerGroup": group, "topic": topic, "queueId": queue_id}
    return broker.ask(RequestCode.QUERY_CONSUMER_OFFSET, fields)


def commit(broker: Connection, group: str, topic: str, offset: int, queue_id: int = 0) -> RemotingCommand:
    fields = {"consumerGroup": group, "topic": topic, "queueId": queue_id, "commitOffset": offset}
    return broker.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields)


def max_offset(broker: Connection, topic: str, queue_id: int = 0) -> int:
    answer = broker.ask(RequestCode.GET_MAX_OFFSET, {"topic": topic, "queueId": queue_id})
    assert answer.code == 0, answer
    return int(answer.ext_fields["offset"])


def await_end(broker: Connection, topic: str, end: int, queue_id: int = 0) -> None:
    """Wait until a queue has so many messages: a send is answered before its messages are in the queue."""
    until(lambda: max_offset(broker, topic, queue_id) >= end, f"{topic} {queue_id} has not come to {end}")


def frames(answer: RemotingCommand) -> list[bytes]:
    """The records of a pull's answer."""
    return list(records(answer.body))


def body_of(frame: bytes) -> bytes:
    (length,) = struct.unpack_from(">i", frame, BODY_LENGTH_AT)
    return frame[BODY_LENGTH_AT + 4 : BODY_LENGTH_AT + 4 + length]


def properties_of(frame: bytes) -> dict[str, str]:
    """The last of several values of one name wins, as in Java."""
    at = BODY_LENGTH_AT + 4 + len(body_of(frame))
    at += 1 + frame[at]
    (length,) = struct.unpack_from(">h", frame, at)
    pairs = frame[at + 2 : at + 2 + length].decode().split("\x02")
    return dict(pair.split("\x01", 1) for pair in pairs if pair)


def records(data: bytes) -> Iterator[bytes]:
    """The records in the body of a pull's answer."""
    while data:
        (length,) = struct.unpack_from(">i", data)
        yield data[:length]
        data = data[length:]


def send_fields(topic: str, queue_id: int = 0, properties: str = "") -> dict[str, object]:
    return {
        "a": "tests", "b": topic, "c": "TBW102", "d": 4, "e": queue_id, "f": 0, "g": int(time.time() * 1000), "h": 0,
        "i": properties, "j": 0, "k": "false", "m": "false",
    }  # fmt: skip


def _text(properties: Mapping[str, str]) -> str:
    return "".join(f"{name}\x01{value}\x02" for name, value in properties.items())


def _inner(body: bytes, properties: bytes) -> bytes:
    rest = struct.pack(">iiii", 0, 0, 0, len(body)) + body + struct.pack(">h", len(properties)) + properties
    return struct.pack(">i", 4 + len(rest)) + rest
