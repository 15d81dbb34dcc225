"""The copy of one message that is sent back, encoded without arrays (control plane)."""

from __future__ import annotations

from collections.abc import Mapping

from rmq_store.broker.metadata.store_config import StoreConfig
from rmq_store.format.frames.stored_message import encode_frame
from rmq_store.format.properties.property_string import KEYS, NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR, TAGS, UNIQUE_KEY
from rmq_store.format.text.hashing import java_hash, topic_key_hash
from rmq_store.format.text.host import Host
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.log.append.append import OneRecord


@dataclass(frozen=True, slots=True)
class CopiedMessage:
    """The values that a copy has in common with its original."""

    body: bytes
    flag: int
    sys_flag: int
    born_timestamp_ms: int
    born_host: Host
    properties: dict[str, str]


def record_of(
    message: CopiedMessage,
    topic: str,
    queue_id: int,
    *,
    reconsume_times: int,
    delay_ms: int,
    config: StoreConfig,
    prepared_transaction_offset: int = 0,
) -> OneRecord:
    """The record that puts `message` into a queue of any topic; the same bytes, apart from the order of properties, as
    `copy_frames` gives.

    Raises:
        UsageError: a field does not fit the frame.
    """
    properties = property_string(message.properties)
    store_host = Host.parse(config.broker_host)

    frame = encode_frame(
        topic=topic,
        body=message.body,
        properties=properties,
        queue_id=queue_id,
        queue_offset=0,
        commit_log_offset=0,
        born_timestamp_ms=message.born_timestamp_ms,
        born_host=message.born_host,
        store_timestamp_ms=0,
        store_host=store_host,
        flag=message.flag,
        sys_flag=message.sys_flag,
        reconsume_times=reconsume_times,
        prepared_transaction_offset=prepared_transaction_offset,
        crc_property=config.enabled_append_prop_crc,
    )
    tags = message.properties.get(TAGS)
    keys = [message.properties.get(UNIQUE_KEY, ""), *message.properties.get(KEYS, "").split(" ")]
    if tags and config.message_index_tags:
        keys.append(f"T#{tags}")
    return OneRecord(
        topic=topic,
        queue_id=queue_id,
        frame=bytearray(frame),
        tags_code=java_hash(tags) if tags else 0,
        key_hashes=[topic_key_hash(topic, key) for key in keys if key],
        delay_ms=delay_ms,
    )


def property_string(properties: Mapping[str, str]) -> bytes:
    """The property string of a stored message's properties. Unlike `encode_properties` it refuses no value: it may hold
    further name separators, as in Java.
    """
    pairs = properties.items()
    return "".join(f"{name}{NAME_VALUE_SEPARATOR}{value}{PROPERTY_SEPARATOR}" for name, value in pairs).encode()
