"""Groups of the new protocols at the Kafka of the tests: consumers (KIP-848), Kafka Streams (KIP-1071), share groups.

    with group_member(kafka, "billing", "streams", topic):
        ...

A member is there by its heartbeat alone, which kafka-python does not know: it joins at the beginning of the block and
leaves at its end. The group stays, until it is deleted. Nobody reads.
"""

from __future__ import annotations

import socket
import struct
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from kafka import errors

from helpers.kafka_server import KafkaServer

CONSUMER, SHARE, STREAMS = "consumer", "share", "streams"
# Requests of the heartbeat: key and version. Versions of Kafka that answer it, as they are released.
_HEARTBEATS = {CONSUMER: (68, 1), SHARE: (76, 1), STREAMS: (88, 0)}
_SINCE = {CONSUMER: (4, 0), SHARE: (4, 2), STREAMS: (4, 2)}

_JOIN, _LEAVE = 0, -1
_NULL, _NULL_STRUCT, _EMPTY, _NO_TAGS = b"\0", b"\xff", b"\1", b"\0"
_SESSION_MS = 60_000
_PATIENCE_S = 60.0


def new_protocols(kafka: KafkaServer) -> list[str]:
    """Those that this version has, without settings or features that somebody must switch on."""
    return [protocol for protocol, since in _SINCE.items() if not kafka.is_before(since)]


@contextmanager
def group_member(kafka: KafkaServer, group: str, protocol: str, topic: str) -> Iterator[None]:
    """A member of a group that reads a topic, for a `with` block; the group is made if it is not there."""
    member = str(uuid.uuid4())
    _heartbeat(kafka, protocol, _message(protocol, group, member, _JOIN, topic))
    try:
        yield
    finally:
        _heartbeat(kafka, protocol, _message(protocol, group, member, _LEAVE, topic))


def _message(protocol: str, group: str, member: str, epoch: int, topic: str) -> bytes:
    """The body of the heartbeat: what a member says once when it joins, and does not repeat when it leaves."""
    joins = epoch == _JOIN
    head = _text(group) + _text(member) + struct.pack(">i", epoch)
    timeout = struct.pack(">i", _SESSION_MS if joins else -1)
    topics = _list(_text(topic)) if joins else _NULL
    nothing_owned = _EMPTY if joins else _NULL
    if protocol == SHARE:
        return head + _NULL + topics + _NO_TAGS
    if protocol == CONSUMER:
        # No instance, rack; no pattern, assignor.
        return head + _NULL * 2 + timeout + topics + _NULL * 2 + nothing_owned + _NO_TAGS
    # One part of a topology that has no topics of its own: only a source.
    part = _text("0") + topics + _EMPTY * 5 + _NO_TAGS
    topology = b"\1" + struct.pack(">i", 1) + _list(part) + _NO_TAGS if joins else _NULL_STRUCT
    process = _text(member) if joins else _NULL
    endpoint_tags_and_offsets = _NULL_STRUCT + _NULL * 3
    return (
        head + struct.pack(">i", 0) + _NULL * 2 + timeout + topology + nothing_owned * 3 + process
        + endpoint_tags_and_offsets + b"\0" + _NO_TAGS
    )  # fmt: skip


def _heartbeat(kafka: KafkaServer, protocol: str, message: bytes) -> None:
    """Send it to the only broker; one that makes or loads the topic of groups is asked again."""
    deadline_s = time.monotonic() + _PATIENCE_S
    while True:
        code, reason = _answer(kafka, protocol, message)
        if not code:
            return
        error = errors.for_code(code)
        if not error.retriable or time.monotonic() > deadline_s:
            raise error(reason)
        time.sleep(0.1)


def _answer(kafka: KafkaServer, protocol: str, message: bytes) -> tuple[int, str]:
    """Code and text of the error in the answer; 0 if there is none."""
    host, _, port = kafka.address.rpartition(":")
    request = struct.pack(">hhih", *_HEARTBEATS[protocol], 1, -1) + _NO_TAGS + message
    with socket.create_connection((host, int(port)), _PATIENCE_S) as connection, connection.makefile("rb") as answers:
        connection.sendall(struct.pack(">i", len(request)) + request)
        answer = answers.read(*struct.unpack(">i", answers.read(4)))
    # After the number of the request, tags, and the time of a throttle. Short texts have one byte of length.
    (code,) = struct.unpack(">h", answer[9:11])
    return code, answer[12:].decode(errors="replace")


def _text(value: str) -> bytes:
    encoded = value.encode()
    return _length(len(encoded)) + encoded


def _list(item: bytes) -> bytes:
    return _length(1) + item


def _length(length: int) -> bytes:
    """Of a compact text or list: one more than it is, as an unsigned varint."""
    count = length + 1
    return bytes([count]) if count < 0x80 else bytes([count & 0x7F | 0x80, count >> 7])
