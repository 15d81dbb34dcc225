"""Copies of failed messages in the queues of brokers: how a copy is known, and where it is looked for (data plane).

    a copy waits for its time      SCHEDULE_TOPIC_XXXX or rmq_sys_wheel_timer; REAL_TOPIC is %RETRY%group
    it is due                      %RETRY%group
    it is a dead letter            %DLQ%group

All of them have the UNIQ_KEY of the message, its ORIGIN_MESSAGE_ID (the offset id of the first record of it, unless a
client has set another one), and reconsumeTimes one higher. Two records that a producer has stored with one UNIQ_KEY
have different ORIGIN_MESSAGE_IDs, so they are told apart.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from rmq_store.client.delivery.queue_reading import QueueReading
from rmq_store.format.batches.batch_bodies import KEY_BYTES
from rmq_store.format.batches.content_keys import FoundKeys
from rmq_store.format.frames.frame_walk import frames_of_answer
from rmq_store.format.frames.stored_message import StoredMessage, decode_frame
from rmq_store.format.properties.property_string import ORIGIN_MESSAGE_ID, REAL_TOPIC, UNIQUE_KEY
from rmq_store.protocol.messages import MessageQueue

_PIECE_BYTES: Final = 1 << 16


class CopyKey(NamedTuple):
    """How a copy is known. `unique_key` is "" for a message without one: a broker may give it one on the way."""

    origin_id: str
    unique_key: str
    reconsume_times: int


def key_of_next_copy(message: StoredMessage) -> CopyKey:
    """The key of the copy that a send-back of the message makes."""
    own = message.properties
    origin_id = own.get(ORIGIN_MESSAGE_ID, "").strip() or message.offset_msg_id
    return CopyKey(origin_id, own.get(UNIQUE_KEY, ""), message.reconsume_times + 1)


def keys_of_copy(message: StoredMessage) -> tuple[CopyKey, CopyKey]:
    """The keys under which a stored copy is looked for."""
    own = message.properties
    full = CopyKey(own.get(ORIGIN_MESSAGE_ID, ""), own.get(UNIQUE_KEY, ""), message.reconsume_times)
    return full, full._replace(unique_key="")


class CopyKeys:
    """The keys of copies that were found, as hashes of 16 bytes: there may be a million of them."""

    def __init__(self) -> None:
        self._found = FoundKeys()
        self._hashes = bytearray()

    def add(self, keys: Iterable[CopyKey]) -> None:
        """Remember keys."""
        for key in keys:
            self._hashes += _hash_of(key)
        if len(self._hashes) >= _PIECE_BYTES:
            self._keep()

    def contain(self, keys: Sequence[CopyKey]) -> list[bool]:
        """Those of `keys` that were found."""
        self._keep()
        hashes = np.frombuffer(b"".join(map(_hash_of, keys)), np.uint8)
        is_found: list[bool] = self._found.find(hashes)[0].tolist()
        return is_found

    def _keep(self) -> None:
        hashes = np.frombuffer(bytes(self._hashes), np.uint8)
        self._found.add(hashes, np.zeros(len(hashes) // KEY_BYTES, np.uint64))
        self._hashes.clear()


def _hash_of(key: CopyKey) -> bytes:
    return hashlib.blake2b(repr(tuple(key)).encode(), digest_size=KEY_BYTES).digest()


class CopyReading:
    """Reads parts of queues for messages that belong to one of `wire_topics`, or wait for it."""

    def __init__(self, reading: QueueReading, wire_topics: frozenset[str]) -> None:
        self._reading = reading
        self._topics = wire_topics
        self._names = [topic.encode() for topic in sorted(wire_topics)]

    def messages(self, parts: Mapping[MessageQueue, tuple[int, int]]) -> Iterator[StoredMessage]:
        """The messages [start, end) of queues, as far as they belong to the topics. Raises as `QueueReading.frames`."""
        for frames in self._reading.frames(parts):
            # Most of what waits at a broker belongs to others.
            if any(name in frames for name in self._names):
                yield from self._ours(frames)

    def _ours(self, frames: bytes) -> Iterator[StoredMessage]:
        view = memoryview(frames)
        positions, sizes = frames_of_answer(frames)
        for position, size in zip(positions.tolist(), sizes.tolist(), strict=True):
            message = decode_frame(view, position, position + size)
            if message.topic in self._topics or message.properties.get(REAL_TOPIC) in self._topics:
                yield message
