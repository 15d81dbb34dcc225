"""Layout of a commit-log frame, and the check of one frame (control plane; recovery and readers).

    bytes  field             meaning
    0-3    total_size        int32, bytes, the whole frame
    4-7    magic             int32, V1, V2 (topic over 127 characters) or blank (the rest of the segment is unused)
    8-11   body_crc          int32, CRC-32 of the stored body AND 0x7FFFFFFF; 0 without a body
    12-15  queue_id          int32
    16-19  flag              int32, the application's
    20-27  queue_offset      int64, message number in the queue; 0 for PREPARED and ROLLBACK
    28-35  physical_offset   int64, where in the commit log this frame starts
    36-39  sys_flag          int32, SysFlag
    40-47  born_timestamp    int64, ms

With B, S = 8 (IPv4) or 20 (IPv6) by the two V6 bits of sys_flag there follow: born host (B), store timestamp (int64,
ms), store host (S), reconsume times (int32), prepared transaction offset (int64), body length (int32) and body, topic
length (int8 in V1, int16 in V2) and topic, properties length (int16) and properties.
Source: MessageDecoder.java, MessageExtEncoder.java; CommitLog.java (checkMessageAndReturnSize).
"""

from __future__ import annotations

import struct
import zlib
from enum import IntFlag
from typing import Literal, NamedTuple

import numpy as np

from rmq_store.format.properties.property_string import CRC_PROPERTY_BYTES, CRC_PROPERTY_PREFIX

MESSAGE_MAGIC_V1 = -626843481  # 0xDAA320A7
MESSAGE_MAGIC_V2 = -626843477  # 0xDAA320AB
BLANK_MAGIC = -875286124  # 0xCBD43194

# 8 bytes: a blank frame (total size + magic) must always fit behind the last message of a segment.
# CommitLog.java END_FILE_MIN_BLANK_LENGTH.
BLANK_BYTES_MIN = 4 + 4

HEADER = np.dtype(
    [
        ("total_size", ">i4"),
        ("magic", ">i4"),
        ("body_crc", ">i4"),
        ("queue_id", ">i4"),
        ("flag", ">i4"),
        ("queue_offset", ">i8"),
        ("physical_offset", ">i8"),
        ("sys_flag", ">i4"),
        ("born_timestamp", ">i8"),
    ]
)
assert HEADER.itemsize == 48

# Position of the body in a frame, by the two V6 bits: 48 + B + 8 + S + 4 + 8 + 4.
BODY_POSITIONS = (88, 100, 100, 112)
FRAME_BYTES_MIN = BODY_POSITIONS[0] + 1 + 2

CRC_MASK = 0x7FFFFFFF
_CRC_PROPERTY_NAME = int.from_bytes(CRC_PROPERTY_PREFIX + b"\x02")


class SysFlag(IntFlag):
    """Bits of sys_flag. Source: MessageSysFlag.java, CompressionType.java."""

    COMPRESSED = 0x001
    MULTI_TAGS = 0x002
    TRANSACTION_PREPARED = 0x004
    TRANSACTION_COMMIT = 0x008
    TRANSACTION_ROLLBACK = 0x00C
    BORN_HOST_V6 = 0x010
    STORE_HOST_V6 = 0x020
    NEED_UNWRAP = 0x040
    INNER_BATCH = 0x080
    COMPRESSION_LZ4 = 0x100
    COMPRESSION_ZSTD = 0x200
    COMPRESSION_ZLIB = 0x300


TRANSACTION_MASK = 0x00C
HOSTS_V6_MASK = 0x030
COMPRESSION_MASK = 0x700
# That a body is compressed, and how: the bits that a sender may give. A plain int: operators of an IntFlag are slow.
COMPRESSION_FLAGS = int(SysFlag.COMPRESSED) | COMPRESSION_MASK


class FrameCheck(NamedTuple):
    """The kind of bytes at a position.

    `size` is the length in bytes of a good message or blank. Of a bad frame it is 0, or its total size if only the
    lengths inside disagree with it: Java's dispatch skips just that frame then. `reason` is empty unless bad.
    """

    kind: Literal["message", "blank", "bad"]
    size: int
    reason: str


_PREFIX = struct.Struct(">ii")
_FIXED = struct.Struct(">iiiiiqqi")
_INT32 = struct.Struct(">i")
_INT16 = struct.Struct(">h")
_INT8 = struct.Struct(">b")


def check_frame(
    view: bytes | memoryview,
    position: int,
    limit: int,
    *,
    expect_offset: int | None,
    check_crc: bool,
    force_prop_crc: bool = False,
) -> FrameCheck:
    """Check the frame at `view[position:limit]` (bytes, or a view of format "B"); never raises.

    Stricter than Java where that loses no message: the physical offset must be `expect_offset` (None: not compared).
    The queue id and offset must not be negative. With `check_crc` the body's CRC must match, and that of the whole
    frame if it ends with one. `force_prop_crc` is forceVerifyPropCRC: the frame's CRC is checked instead of the body's,
    and is required.
    """
    available = min(limit, len(view)) - position
    if position < 0 or available < BLANK_BYTES_MIN:
        return FrameCheck("bad", 0, "fewer than 8 bytes left")
    total_size, magic = _PREFIX.unpack_from(view, position)
    if magic == MESSAGE_MAGIC_V1:
        topic_length_format = _INT8
    elif magic == MESSAGE_MAGIC_V2:
        topic_length_format = _INT16
    elif magic != BLANK_MAGIC:
        return FrameCheck("bad", 0, f"unknown magic 0x{magic & 0xFFFFFFFF:08X}")
    elif BLANK_BYTES_MIN <= total_size <= available:
        return FrameCheck("blank", total_size, "")
    else:
        return FrameCheck("bad", 0, f"a blank of {total_size} bytes where {available} are left")
    if total_size > available:
        return FrameCheck("bad", 0, f"total size {total_size} is more than the {available} bytes left")
    if total_size < FRAME_BYTES_MIN:
        return FrameCheck("bad", 0, f"total size {total_size} is less than the fixed fields take")

    _, _, body_crc, queue_id, _, queue_offset, physical_offset, sys_flag = _FIXED.unpack_from(view, position)
    if expect_offset is not None and physical_offset != expect_offset:
        return FrameCheck("bad", 0, f"physical offset {physical_offset} where {expect_offset} is expected")
    if queue_id < 0 or queue_offset < 0:
        return FrameCheck("bad", 0, f"negative queue id {queue_id} or queue offset {queue_offset}")

    end = position + total_size
    body_start = position + BODY_POSITIONS[sys_flag >> 4 & 3]
    if body_start > end:
        return FrameCheck("bad", total_size, f"total size {total_size} is less than the fixed fields take")
    (body_length,) = _INT32.unpack_from(view, body_start - 4)
    body_end = body_start + body_length
    topic_start = body_end + topic_length_format.size
    if body_length < 0 or topic_start > end:
        return FrameCheck("bad", total_size, f"body length {body_length} does not fit total size {total_size}")
    (topic_length,) = topic_length_format.unpack_from(view, body_end)
    properties_start = topic_start + topic_length + 2
    if topic_length <= 0 or properties_start > end:
        return FrameCheck("bad", total_size, f"topic length {topic_length} does not fit total size {total_size}")
    (properties_length,) = _INT16.unpack_from(view, properties_start - 2)
    if properties_start + properties_length != end:
        return FrameCheck("bad", total_size, f"the lengths inside do not add up to total size {total_size}")

    if check_crc:
        if body_length and not force_prop_crc and zlib.crc32(view[body_start:body_end]) & CRC_MASK != body_crc:
            return FrameCheck("bad", 0, "the body does not have the CRC that the header gives")
        stored_crc = _stored_crc(view, end) if properties_length >= CRC_PROPERTY_BYTES else None
        if stored_crc is None:
            if force_prop_crc:
                return FrameCheck("bad", 0, "no CRC property")
        elif zlib.crc32(view[position : end - CRC_PROPERTY_BYTES]) & CRC_MASK != stored_crc:
            return FrameCheck("bad", 0, "the frame does not have the CRC of its CRC property")
    return FrameCheck("message", total_size, "")


def _stored_crc(view: bytes | memoryview, end: int) -> int | None:
    """The value of the CRC property that ends at `end`, -1 if it is damaged, None if other properties end there."""
    tail = bytes(view[end - CRC_PROPERTY_BYTES : end])
    if tail[:9] != CRC_PROPERTY_PREFIX or tail[19] != 2:
        # Nothing but a flipped bit makes a name that is this one but for one bit; without this rule it went unseen.
        difference = int.from_bytes(tail[:9] + tail[19:]) ^ _CRC_PROPERTY_NAME
        return -1 if difference.bit_count() == 1 else None
    digits = tail[18:8:-1]
    return int(digits) if digits.isdigit() else -1


def crc_property(crc: int) -> bytes:
    """The 20 bytes of the CRC property for a frame whose other bytes have the CRC `crc` (masked here)."""
    return CRC_PROPERTY_PREFIX + str(crc & CRC_MASK)[::-1].ljust(10, "0").encode() + b"\x02"
