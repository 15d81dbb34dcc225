"""Encodes one message to a frame without its offsets, with the values for its queue and the index (control plane).
Python does it, or one call of the C extension if it is loaded. Rules and bytes are the same as in the batch encoder.

Source: MessageExtEncoder.java (encode); IndexService.java (buildIndex).
"""

from __future__ import annotations

from typing import NamedTuple

from rmq_store.format.bytes import native
from rmq_store.format.frames.stored_message import encode_frame
from rmq_store.format.properties.property_string import KEYS, TAGS, UNIQUE_KEY, encode_properties
from rmq_store.format.text.hashing import java_hash, topic_key_hash
from rmq_store.format.text.host import Host


class OneFrame(NamedTuple):
    """`frame` has zeros, and any checksum, where `complete_frame` writes. `key_hashes`: index hashes of the UNIQ_KEY,
    then of each of the KEYS, then of the tag where tags are indexed. `tags_hash`: Java's hash of the tag; 0: none.
    """

    frame: bytearray
    key_hashes: list[int]
    tags_hash: int


class Hosts:
    """The born host and the store host of messages, packed once for all uses."""

    def __init__(self, born: Host, store: Host) -> None:
        self.born = born
        self.store = store
        self.packed = born.pack(), store.pack()


def encode_one(
    topic: str,
    body: bytes,
    properties: dict[str, str],
    hosts: Hosts,
    *,
    queue_id: int,
    flag: int,
    sys_flag: int,
    born_timestamp_ms: int,
    crc_property: bool,
    index_tags: bool,
) -> OneFrame:
    """Make the frame of a message with these properties, which are stored in their order.

    Raises:
        UsageError: as `encode_properties` and `encode_frame`.
    """
    if native.LOADED:
        try:
            made = native.functions.encode_message(
                topic, body, properties, queue_id, flag, sys_flag, born_timestamp_ms, *hosts.packed, crc_property,
                index_tags,
            )  # fmt: skip
        except (OverflowError, TypeError):
            made = None  # below it is said what is wrong
        if made is not None:
            return OneFrame._make(made)
    frame = encode_frame(
        topic=topic,
        body=body,
        properties=encode_properties(properties),
        queue_id=queue_id,
        queue_offset=0,
        commit_log_offset=0,
        born_timestamp_ms=born_timestamp_ms,
        born_host=hosts.born,
        store_timestamp_ms=0,
        store_host=hosts.store,
        flag=flag,
        sys_flag=sys_flag,
        crc_property=crc_property,
    )
    tags = properties.get(TAGS)
    indexed = [properties.get(UNIQUE_KEY), *properties.get(KEYS, "").split(" ")]
    if tags and index_tags:
        indexed.append(f"T#{tags}")
    hashes = [topic_key_hash(topic, key) for key in indexed if key]
    return OneFrame(bytearray(frame), hashes, java_hash(tags or ""))
