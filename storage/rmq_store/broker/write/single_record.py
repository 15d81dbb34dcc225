"""Encode single messages and clients' batches without columns (control plane), by the same rules and to the same bytes
as the encoder of columns.
"""

from __future__ import annotations

import functools
import os
import random
from typing import Final

from rmq_store.broker.metadata.store_config import StoreConfig
from rmq_store.broker.rules.delay import DelayRules, Destination, destination_of
from rmq_store.broker.rules.timer import TIMER_PROPERTY_SET
from rmq_store.errors import UsageError
from rmq_store.format.frames.frame_check import COMPRESSION_FLAGS
from rmq_store.format.frames.message import Message
from rmq_store.format.frames.message_batch import MEMBER_BYTES_MIN, BatchFrames, BatchRules, encode_batch_body
from rmq_store.format.frames.one_frame import Hosts, encode_one
from rmq_store.format.properties.property_string import DELAY_TIME_LEVEL, UNIQUE_KEY
from rmq_store.format.text.host import Host
from rmq_store.format.text.ids import UniqueIdGenerator, month_start_ms
from rmq_store.log.append.append import OneRecord
from rmq_store.log.core.layout import BLANK_BYTES

_DELAYING: Final = TIMER_PROPERTY_SET | {DELAY_TIME_LEVEL}


class OneMessageEncoder:
    """Makes records of single messages for one store; thread-safe."""

    def __init__(self, config: StoreConfig) -> None:
        self._config = config
        self._host = Host.parse(config.broker_host)
        self._hosts = Hosts(Host(self._host.address, 0), self._host)
        self._unique_ids = UniqueIdGenerator(self._host.address, os.getpid() & 0xFFFF, random.getrandbits(32))
        self._month = (0, 0, 0)
        self._rules = DelayRules.of(config)
        self._batch_rules = BatchRules(
            special=tuple(name.encode() for name in _DELAYING),
            body_bytes_max=config.max_message_size,
            frame_bytes_max=config.mapped_file_size_commit_log - BLANK_BYTES,
            crc_property=config.enabled_append_prop_crc,
            index_tags=config.message_index_tags,
        )

    def unique_id(self, message: Message, now_ms: int) -> str:
        """The message's UNIQ_KEY, or a new one."""
        return message.properties.get(UNIQUE_KEY) or self._unique_ids.next_id(now_ms, self._month_start(now_ms))

    def encode(
        self, message: Message, queue_id: int, now_ms: int, sys_flag: int = 0, born_host: Host | None = None
    ) -> tuple[OneRecord, str]:
        """The record, and its unique id, of a message that `check_message` has accepted. `sys_flag` holds the
        compression of the body, which is stored unchanged. `born_host` None: the store's own.

        Raises:
            UsageError: body or properties too large, a separator or empty text in a property, an impossible delay level
            or time, a `sys_flag` with other bits.
        """
        # All else says what the store itself knows, or makes a record that no queue may hold.
        if sys_flag & ~COMPRESSION_FLAGS:
            bits = f"{COMPRESSION_FLAGS:#x}"
            raise UsageError(f"sys_flag={sys_flag:#x}: only the bits {bits} of compression can be given")
        if len(message.body) > self._config.max_message_size:
            limit = self._config.max_message_size
            raise UsageError(f"the body has {len(message.body)} bytes, more than maxMessageSize={limit}")
        unique_id = self.unique_id(message, now_ms)
        stored = message.stored_properties(unique_id)
        topic, properties, delay_ms, tags_code = message.topic, stored, 0, None
        if message.delay_level or not _DELAYING.isdisjoint(stored):  # for most messages one look is enough
            topic, queue_id, properties, delay_ms, tags_code = self._destination(message, stored, queue_id, now_ms)
        frame, key_hashes, tags_hash = encode_one(
            topic,
            message.body,
            properties,
            self._hosts if born_host is None else _packed(born_host, self._host),
            queue_id=queue_id,
            flag=message.flag,
            sys_flag=sys_flag,
            born_timestamp_ms=now_ms if message.born_timestamp_ms is None else message.born_timestamp_ms,
            crc_property=self._config.enabled_append_prop_crc,
            index_tags=self._config.message_index_tags,
        )
        if tags_code is None:
            tags_code = tags_hash
        return OneRecord(topic, queue_id, frame, tags_code, key_hashes, delay_ms), unique_id

    def encode_batch(
        self, topic: str, body: bytes, queue_id: int, now_ms: int, born_timestamp_ms: int, born_host: Host | None
    ) -> BatchFrames | None:
        """The frames of the messages of a client's batch, if each of them is stored in its own queue, as `encode` would
        make them. None: some message is not ordinary, or cannot be stored.
        """
        hosts = self._hosts if born_host is None else _packed(born_host, self._host)
        ids = self._unique_ids.reserve(len(body) // MEMBER_BYTES_MIN, now_ms, self._month_start(now_ms))
        return encode_batch_body(body, topic, queue_id, born_timestamp_ms, hosts, self._batch_rules, ids)

    def _destination(self, message: Message, stored: dict[str, str], queue_id: int, now_ms: int) -> Destination:
        """The destination of the message: its own topic, or the topic in which it waits."""
        if message.delay_level < 0:
            raise UsageError(f"delay_level={message.delay_level} is no delay level; 0 means none")
        return destination_of(stored, message.topic, queue_id, now_ms, self._rules)

    def _month_start(self, now_ms: int) -> int:
        """Start of the local month; computed once an hour, because that takes longer than the rest."""
        start, low, high = self._month
        if not low <= now_ms < high:
            hour = now_ms - now_ms % 3_600_000
            start, low, high = month_start_ms(now_ms), hour, hour + 3_600_000
            self._month = (start, low, high)
        return start


@functools.lru_cache(maxsize=1024)
def _packed(born: Host, store: Host) -> Hosts:
    """The hosts of a client's messages. A client sends many, and to pack them takes as long as to make a frame."""
    return Hosts(born, store)
