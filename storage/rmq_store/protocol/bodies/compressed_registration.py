"""The body of a registration of a broker with compressedRegister=true (RegisterBrokerBody.java): no JSON as a whole.

Deflated, a sequence of texts, each behind its length in bytes as a big-endian int32:

    DataVersion as JSON | number of topics (int32) | each topic | filter servers as JSON | number of mappings | each one

A topic is `name readQueueNums writeQueueNums perm topicFilterType attributes`; the last one is JSON, or absent. Flags
and order of a topic are not sent. Mappings exist from 5.0 on and only for static topics, which have no routes here.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final

from rmq_store.protocol.bodies.routes import RegisterBrokerBody
from rmq_store.protocol.bodies.topics import DataVersion, TopicConfig, TopicConfigTable
from rmq_store.protocol.errors import RemotingCommandError

BODY_BYTES_MAX: Final = 64 << 20
TOPICS_MAX: Final = 100_000
"""The most topics of one registration."""

_LENGTH: Final = struct.Struct(">i")
_TOPIC_FIELDS: Final = 5


def decode_compressed_registration(body: bytes) -> RegisterBrokerBody:
    """The version and the topics of a broker.

    Raises:
        RemotingCommandError: not of that form, more than BODY_BYTES_MAX when it is inflated, or more than TOPICS_MAX.
    """
    plain = _inflated(body)
    version, at = _text(plain, 0)
    count, at = _number(plain, at)
    if count > TOPICS_MAX:
        raise RemotingCommandError(f"the registration has {count} topics, at most {TOPICS_MAX} are allowed")
    topics = {}
    for _ in range(count):
        text, at = _text(plain, at)
        topic = _topic(text.decode(errors="replace"))
        topics[topic.topic_name] = topic
    table = TopicConfigTable(topic_config_table=topics, data_version=DataVersion.decode(version))
    return RegisterBrokerBody(topic_config_serialize_wrapper=table)


def _inflated(body: bytes) -> bytes:
    inflater = zlib.decompressobj()
    try:
        plain = inflater.decompress(body, BODY_BYTES_MAX)
    except zlib.error as error:
        raise RemotingCommandError(f"the registration is no deflated body: {error}") from error
    if not inflater.eof:
        raise RemotingCommandError(f"the registration is cut off, or has more than {BODY_BYTES_MAX} bytes")
    return plain


def _number(plain: bytes, at: int) -> tuple[int, int]:
    """An int32 that is not negative, and the position behind it."""
    if at + _LENGTH.size > len(plain):
        raise RemotingCommandError(f"the registration ends in a number, at byte {at}")
    (value,) = _LENGTH.unpack_from(plain, at)
    if value < 0:
        raise RemotingCommandError(f"the registration has a negative number at byte {at}")
    return int(value), at + _LENGTH.size


def _text(plain: bytes, at: int) -> tuple[bytes, int]:
    """A text, and the position behind it."""
    length, at = _number(plain, at)
    if at + length > len(plain):
        raise RemotingCommandError(f"the registration ends in a text of {length} bytes, at byte {at}")
    return plain[at : at + length], at + length


def _topic(text: str) -> TopicConfig:
    parts = text.split(" ")
    numbers = parts[1:4]
    if len(parts) < _TOPIC_FIELDS or not all(part.isascii() and part.isdigit() and len(part) <= 10 for part in numbers):
        raise RemotingCommandError(f"no topic of a registration: {text[:200]!r}")
    read, write, perm = map(int, numbers)
    return TopicConfig(
        topic_name=parts[0], read_queue_nums=read, write_queue_nums=write, perm=perm, topic_filter_type=parts[4]
    )
