"""A client's batch as it travels: read message by message, or encoded by one call of the C extension (control plane).

    bytes  field            meaning
    0-3    total size       int32, of this message
    4-11   magic, CRC       int32 each; a broker makes its own
    12-15  flag             int32
    16-19  body length      int32; then the body, the int16 length of the properties, and the properties

Source: MessageDecoder.java (decodeMessages), MessageExtEncoder.java (encode of a MessageExtBatch).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from rmq_store.errors import UsageError
from rmq_store.format.bytes import native
from rmq_store.format.frames.message import Message
from rmq_store.format.frames.one_frame import Hosts
from rmq_store.format.properties.property_string import encode_properties, parse_properties

_HEAD: Final = struct.Struct(">iiiii")
_LENGTH: Final = struct.Struct(">H")

MEMBER_BYTES_MIN: Final = _HEAD.size + _LENGTH.size
"""Of a message without body and properties."""

UniqueIds: TypeAlias = tuple[bytes, int]
"""Reserved ids (`UniqueIdGenerator.reserve`): the bytes before their last 48 bits, and the first one's last 48 bits."""


class BatchFrames(NamedTuple):
    """The frames of a batch of n messages, complete but for their places and their store time.

    Frame i is `frames[bounds[i]:bounds[i + 1]]`, with zeros where `patch_frames` writes; `crc0` as it takes it.
    `key_hashes`: as those of `OneFrame`, of all messages; `key_counts` (n,): how many each of them has. `unique_keys`
    is a comma list.
    """

    frames: npt.NDArray[np.uint8]
    bounds: npt.NDArray[np.int64]
    tags_codes: npt.NDArray[np.int64]
    key_counts: npt.NDArray[np.int64]
    key_hashes: npt.NDArray[np.int32]
    crc0: npt.NDArray[np.uint32] | None
    unique_keys: str


class BatchRules(NamedTuple):
    """The rules of a store for the messages of a batch. None has a property of `special`, which mean something to the
    broker. Bodies and frames have so many bytes at most. The last two fields are those of `encode_one`.
    """

    special: tuple[bytes, ...]
    body_bytes_max: int
    frame_bytes_max: int
    crc_property: bool
    index_tags: bool


def read_batch(body: bytes, topic: str, queue_id: int, born_timestamp_ms: int | None) -> Iterator[Message]:
    """The messages of a batch for one queue, in their order.

    Raises:
        UsageError: the body is torn; names the byte at which the message begins.
    """
    at = 0
    while at < len(body):
        if len(body) - at < _HEAD.size:
            raise _torn(at)
        total, _, _, flag, length = _HEAD.unpack_from(body, at)
        text = at + _HEAD.size
        if length < 0 or total < _HEAD.size + length + _LENGTH.size or at + total > len(body):
            raise _torn(at)
        (properties_length,) = _LENGTH.unpack_from(body, text + length)
        properties = text + length + _LENGTH.size
        if properties + properties_length > at + total:
            raise _torn(at)
        yield Message(
            topic, body[text : text + length], flag=flag, queue_id=queue_id, born_timestamp_ms=born_timestamp_ms,
            properties=parse_properties(body[properties : properties + properties_length]),
        )  # fmt: skip
        at += total


def batch_bytes(messages: Iterable[Message]) -> int:
    """The bytes that messages take as a batch. UsageError: the properties of one cannot be written."""
    return sum(
        MEMBER_BYTES_MIN + len(message.body) + len(encode_properties(message.stored_properties()))
        for message in messages
    )


def _torn(at: int) -> UsageError:
    return UsageError(f"the body of the batch is torn at byte {at}")


def encode_batch_body(
    body: bytes, topic: str, queue_id: int, born_timestamp_ms: int, hosts: Hosts, rules: BatchRules, ids: UniqueIds
) -> BatchFrames | None:
    """The frames of the messages that `read_batch` reads, to the byte as `encode_one` makes them. Messages without a
    UNIQ_KEY get those of `ids`, one after another: as many may be needed as `body` has MEMBER_BYTES_MIN.

    None: without the extension, or some message is not ordinary. It is torn or breaks a rule, or has more than 64
    properties; or the first one is not to wait for the disk. Then each message has to be read and encoded by itself,
    which also says what is wrong.
    """
    if not native.LOADED:
        return None
    try:
        made = native.functions.encode_batch(
            topic.encode(), body, queue_id, born_timestamp_ms, *hosts.packed, rules.special, rules.body_bytes_max,
            rules.frame_bytes_max, rules.crc_property, rules.index_tags, *ids,
        )  # fmt: skip
    except (OverflowError, UnicodeEncodeError):
        return None
    if made is None:
        return None
    frames, bounds, tags_codes, key_counts, key_hashes, crc0, unique_keys = made
    return BatchFrames(
        np.frombuffer(frames, np.uint8),
        np.frombuffer(bounds, np.int64),
        np.frombuffer(tags_codes, np.int64),
        np.frombuffer(key_counts, np.int64),
        np.frombuffer(key_hashes, np.int32),
        None if crc0 is None else np.frombuffer(crc0, np.uint32),
        unique_keys,
    )
