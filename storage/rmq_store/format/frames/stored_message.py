"""Stored messages as values, and their frames one at a time (control plane). The layout is drawn in `frame_check`.

Source: MessageExtEncoder.java (encode), MessageDecoder.java (decode).
"""

from __future__ import annotations

import struct
import zlib

from rmq_store.errors import CorruptRecordError, UsageError
from rmq_store.format.bytes import native
from rmq_store.format.bytes.utf8 import decode_utf8
from rmq_store.format.frames.frame_check import (
    BLANK_MAGIC,
    CRC_MASK,
    HOSTS_V6_MASK,
    MESSAGE_MAGIC_V1,
    MESSAGE_MAGIC_V2,
    TRANSACTION_MASK,
    SysFlag,
    check_frame,
    crc_property,
)
from rmq_store.format.properties import property_string as names
from rmq_store.format.properties.property_string import CRC_PROPERTY_BYTES, CRC_PROPERTY_PREFIX
from rmq_store.format.text.host import IPV4_HOST_BYTES, IPV6_HOST_BYTES, Host
from rmq_store.lazy.dataclasses import dataclass

# All fields before the body, by the two V6 bits (born, store) of sys_flag.
_HEADERS = tuple(
    struct.Struct(f">iiiiiqqiq{born}siq{store}siiqi") for born, store in ((4, 4), (16, 4), (4, 16), (16, 16))
)
_OFFSETS = struct.Struct(">qq")
_OFFSETS_POSITION = 20
_TIMESTAMP = struct.Struct(">q")
_SYS_FLAG_LAST_BYTE = 36 + 3
_BORN_HOST_V6 = int(SysFlag.BORN_HOST_V6)
_BORN_HOST_POSITION = 48
_V1_TOPIC_BYTES_MAX = 127


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """Every field of a frame. `body` is as stored (perhaps compressed), `properties_raw` includes a CRC property."""

    total_size: int
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: int
    commit_log_offset: int
    sys_flag: int
    born_timestamp_ms: int
    born_host: Host
    store_timestamp_ms: int
    store_host: Host
    reconsume_times: int
    prepared_transaction_offset: int
    body: bytes
    topic: str
    properties: dict[str, str]
    properties_raw: bytes

    @property
    def offset_msg_id(self) -> str:
        """Store host and commit-log offset in hex: the id under which the broker itself finds the frame."""
        # Signed: nobody compared the offset with the place of a frame that was decoded by itself.
        return (self.store_host.pack() + self.commit_log_offset.to_bytes(8, "big", signed=True)).hex().upper()

    @property
    def msg_id(self) -> str:
        """UNIQ_KEY (the first, if there are several), else the offset id."""
        return self.properties.get(names.UNIQUE_KEY) or self.offset_msg_id

    @property
    def java_unique_key(self) -> str | None:
        """UNIQ_KEY (the last of several). For a member of a 5.x Java client's batch it is that of the batch."""
        return names.last_unique_key(self.properties_raw)

    @property
    def java_msg_id(self) -> str:
        """The id that the Java client shows as getMsgId(): the last UNIQ_KEY if there are several, else as `msg_id`."""
        return self.java_unique_key or self.offset_msg_id

    @property
    def tags(self) -> str | None:
        """The TAGS property."""
        return self.properties.get(names.TAGS)

    @property
    def keys(self) -> str | None:
        """The KEYS property: keys separated by single spaces."""
        return self.properties.get(names.KEYS)

    @property
    def is_dispatchable(self) -> bool:
        """True if the message has a consume-queue entry: all but the transaction types PREPARED and ROLLBACK."""
        return self.sys_flag & TRANSACTION_MASK in (0, SysFlag.TRANSACTION_COMMIT)

    def encode(self, *, crc_property: bool = False) -> bytes:
        """The frame again. With `crc_property` a fresh checksum replaces or joins the stored properties."""
        return encode_frame(
            topic=self.topic,
            body=self.body,
            properties=self.properties_raw,
            queue_id=self.queue_id,
            queue_offset=self.queue_offset,
            commit_log_offset=self.commit_log_offset,
            born_timestamp_ms=self.born_timestamp_ms,
            born_host=self.born_host,
            store_timestamp_ms=self.store_timestamp_ms,
            store_host=self.store_host,
            flag=self.flag,
            sys_flag=self.sys_flag,
            reconsume_times=self.reconsume_times,
            prepared_transaction_offset=self.prepared_transaction_offset,
            crc_property=crc_property,
        )


def encode_frame(
    *,
    topic: str,
    body: bytes,
    properties: bytes,
    queue_id: int,
    queue_offset: int,
    commit_log_offset: int,
    born_timestamp_ms: int,
    born_host: Host,
    store_timestamp_ms: int,
    store_host: Host,
    flag: int = 0,
    sys_flag: int = 0,
    reconsume_times: int = 0,
    prepared_transaction_offset: int = 0,
    crc_property: bool = False,
) -> bytes:
    """Write one frame, bit for bit as Java does; `properties` comes from `encode_properties` and is stored unchanged.

    V2 is chosen when the topic takes more than 127 bytes, and the V6 bits of `sys_flag` from the hosts. With
    `crc_property` a stored one at the end is replaced, otherwise the checksum is appended.

    Raises:
        UsageError: properties over 32767 bytes (checksum included), or a field that does not fit its width.
    """
    topic_bytes = topic.encode()
    if crc_property:
        properties = _without_crc(properties)
        if properties and not properties.endswith(b"\x02"):
            properties += b"\x02"
    properties_length = len(properties) + (CRC_PROPERTY_BYTES if crc_property else 0)
    if properties_length > names.PROPERTIES_BYTES_MAX:
        raise UsageError(f"properties take {properties_length} bytes, more than {names.PROPERTIES_BYTES_MAX}")

    variant = born_host.is_ipv6 | store_host.is_ipv6 << 1
    header = _HEADERS[variant]
    is_v1 = len(topic_bytes) <= _V1_TOPIC_BYTES_MAX
    total_size = header.size + len(body) + (1 if is_v1 else 2) + len(topic_bytes) + 2 + properties_length
    try:
        frame = b"".join(
            (
                header.pack(
                    total_size,
                    MESSAGE_MAGIC_V1 if is_v1 else MESSAGE_MAGIC_V2,
                    zlib.crc32(body) & CRC_MASK,
                    queue_id,
                    flag,
                    queue_offset,
                    commit_log_offset,
                    sys_flag & ~HOSTS_V6_MASK | variant << 4,
                    born_timestamp_ms,
                    *born_host,
                    store_timestamp_ms,
                    *store_host,
                    reconsume_times,
                    prepared_transaction_offset,
                    len(body),
                ),
                body,
                len(topic_bytes).to_bytes(1 if is_v1 else 2, "big"),
                topic_bytes,
                properties_length.to_bytes(2, "big"),
                properties,
            )
        )
    except (struct.error, OverflowError) as error:
        raise UsageError(f"a field of the message does not fit the frame: {error}") from error
    return frame + _crc_property(zlib.crc32(frame)) if crc_property else frame


_crc_property = crc_property  # the parameters above hide the function


def _without_crc(properties: bytes) -> bytes:
    rest, tail = properties[:-CRC_PROPERTY_BYTES], properties[-CRC_PROPERTY_BYTES:]
    is_property = not rest or rest.endswith(b"\x02")  # not the end of one with a longer name
    return rest if is_property and tail.startswith(CRC_PROPERTY_PREFIX) else properties


def complete_frame(
    frame: bytearray, queue_offset: int, commit_log_offset: int, store_timestamp_ms: int, *, crc_property: bool
) -> None:
    """Fill in place the fields that `encode_frame` wrote as 0 because they were unknown; `crc_property` as there."""
    if native.LOADED:
        native.functions.place_message(frame, queue_offset, commit_log_offset, store_timestamp_ms, crc_property)
        return
    _OFFSETS.pack_into(frame, _OFFSETS_POSITION, queue_offset, commit_log_offset)
    born_host_bytes = IPV6_HOST_BYTES if frame[_SYS_FLAG_LAST_BYTE] & _BORN_HOST_V6 else IPV4_HOST_BYTES
    _TIMESTAMP.pack_into(frame, _BORN_HOST_POSITION + born_host_bytes, store_timestamp_ms)
    if crc_property:
        with memoryview(frame) as view:
            crc = zlib.crc32(view[:-CRC_PROPERTY_BYTES])
        frame[-CRC_PROPERTY_BYTES:] = _crc_property(crc)


def encode_blank(size_bytes: int) -> bytes:
    """The 8 bytes that fill the last `size_bytes` of a segment; the rest of them is not written."""
    return struct.pack(">ii", size_bytes, BLANK_MAGIC)


def decode_frame(view: memoryview, position: int, limit: int) -> StoredMessage:
    """Read the message at `view[position:limit]`; its lengths are checked, its CRC is not. All fields are copies.

    Raises:
        CorruptRecordError: no whole message lies there; `.offset` is `position`, `.path` is empty: the caller knows it.
    """
    check = check_frame(view, position, limit, expect_offset=None, check_crc=False)
    if check.kind != "message":
        raise CorruptRecordError("", position, check.reason or "a blank, not a message")
    return decode_checked(view, position)


def decode_checked(view: bytes | memoryview, position: int) -> StoredMessage:
    """As `decode_frame`, for a frame that `check_frame` has accepted as a message."""
    header = _HEADERS[view[position + _SYS_FLAG_LAST_BYTE] >> 4 & 3]
    (
        total_size,
        magic,
        body_crc,
        queue_id,
        flag,
        queue_offset,
        commit_log_offset,
        sys_flag,
        born_timestamp_ms,
        born_address,
        born_port,
        store_timestamp_ms,
        store_address,
        store_port,
        reconsume_times,
        prepared_transaction_offset,
        body_length,
    ) = header.unpack_from(view, position)
    body_start = position + header.size
    body_end = body_start + body_length
    topic_start = body_end + (1 if magic == MESSAGE_MAGIC_V1 else 2)
    topic_end = topic_start + int.from_bytes(view[body_end:topic_start], "big")
    properties_raw = bytes(view[topic_end + 2 : position + total_size])
    return StoredMessage(
        total_size=total_size,
        body_crc=body_crc,
        queue_id=queue_id,
        flag=flag,
        queue_offset=queue_offset,
        commit_log_offset=commit_log_offset,
        sys_flag=sys_flag,
        born_timestamp_ms=born_timestamp_ms,
        born_host=Host(born_address, born_port),
        store_timestamp_ms=store_timestamp_ms,
        store_host=Host(store_address, store_port),
        reconsume_times=reconsume_times,
        prepared_transaction_offset=prepared_transaction_offset,
        body=bytes(view[body_start:body_end]),
        topic=decode_utf8(bytes(view[topic_start:topic_end])),
        properties=names.parse_properties(properties_raw),
        properties_raw=properties_raw,
    )
