"""Records of the commit log, as the verifier knows them. Pure, and independent of `rmq_store.format`.

Source of the rules: CommitLog#checkMessageAndReturnSize, MessageDecoder, MessageExtEncoder.
"""

from __future__ import annotations

import struct
import zlib
from functools import lru_cache
from typing import NamedTuple

from .files import Bytes

# HEAD: total size, magic, body CRC, queue id, flag, queue offset, physical offset, sysFlag, born timestamp
HEAD, I16, I32, I64 = (struct.Struct(f) for f in (">i4siiiqqiq", ">h", ">i", ">q"))
MAGIC_START, BLANK_MAGIC, CRC_NAME = b"\xda\xa3\x20", b"\xcb\xd4\x31\x94", b"__CRC32#\x01"
TOPIC_LENGTH = {MAGIC_START + b"\xa7": struct.Struct(">b"), MAGIC_START + b"\xab": I16}  # V1, V2
POSITIVE = 0x7FFFFFFF
MESSAGE_SIZE_MIN_BYTES = 91
SCHEDULE_TOPIC = b"SCHEDULE_TOPIC_XXXX"
EXT_ADDRESS_END = -(2**31)  # a tags code below it, which no int32 is, is an address in consumequeue_ext


class Frame(NamedTuple):
    """The parts of a message that queues and index are made of."""

    size: int
    queue: tuple[bytes, int]
    queue_offset: int
    flags: int
    store_ms: int
    properties: dict[bytes, bytes]
    unique_keys: list[bytes]
    has_crc: bool


def java_hash(text: bytes, seed: int = 0) -> int:
    """`String.hashCode` of UTF-8 `text`, continued from `seed`; signed 32 bits."""
    value = seed
    for (unit,) in struct.iter_unpack(">H", text.decode("utf-8", "replace").encode("utf-16-be")):
        value = (31 * value + unit) & 0xFFFFFFFF
    return (value & 0xFFFFFFFF) - ((value & 0x80000000) << 1)


@lru_cache(4096)
def _topic_hash(topic: bytes) -> int:
    return java_hash(topic + b"#")


def _index_hash(topic: bytes, key: bytes) -> int:
    value = abs(java_hash(key, _topic_hash(topic)))
    return value if value <= POSITIVE else 0  # abs(-2^31) counts as 0


def key_hashes(frame: Frame) -> list[tuple[int, ...]]:
    """The hashes that an index must hold for the message, in order; each with its alternatives.

    Alternatives: of several UNIQ_KEY properties Java indexes the last one, this engine the first one.
    """
    if frame.flags & 0xC == 0xC:  # ROLLBACK is not indexed
        return []
    groups = [{frame.unique_keys[0], frame.unique_keys[-1]}] if frame.unique_keys else []
    groups += [{key} for key in frame.properties.get(b"KEYS", b"").split(b" ") if key]
    return [tuple(_index_hash(frame.queue[0], key) for key in keys) for keys in groups]


def tag_hash(frame: Frame) -> int:
    """The hash of topic#T#tag. Brokers since 5.4.0 index it after the keys; earlier brokers do not."""
    return _index_hash(frame.queue[0], b"T#" + frame.properties.get(b"TAGS", b""))


def tags_code_is_right(frame: Frame, code: int) -> bool:
    """Whether a queue entry for the message may hold `code`."""
    if _is_delayed(frame):
        # The delivery time. The table of delays is broker configuration; all of them are whole seconds.
        return code < EXT_ADDRESS_END or (code >= frame.store_ms and (code - frame.store_ms) % 1000 == 0)
    due = frame.properties.get(b"TIMER_OUT_MS", b"")
    if frame.queue[0] == b"rmq_sys_pyrmq_timer" and code == (int(due) if due.isdigit() and len(due) < 19 else -1):
        return True  # else a broker rebuilt the queue: to it our timers are messages like any other
    # The address of a unit that is not there: then a broker computes a delivery time anew, and asks no filter.
    return code < EXT_ADDRESS_END or code == java_hash(frame.properties.get(b"TAGS", b""))


def delay_of(frame: Frame, code: int) -> int:
    """The delay of the message in ms, by the tags code of its queue entry. 0: it is not delayed, or the code does not
    say.
    """
    return code - frame.store_ms if code > frame.store_ms and _is_delayed(frame) else 0


def _is_delayed(frame: Frame) -> bool:
    delay = frame.properties.get(b"DELAY", b"")
    return frame.queue[0] == SCHEDULE_TOPIC and delay.isdigit() and bool(delay.strip(b"0"))


def _record_crc(raw: bytes) -> str | bool:
    """True: the `__CRC32#` property exists and is right. False: there is none. Text: why it is wrong."""
    tail = raw[-20:]
    if tail[:9] != CRC_NAME or tail[19:] != b"\x02":
        different = sum((a ^ b).bit_count() for a, b in zip(tail[:9] + tail[19:], CRC_NAME + b"\x02", strict=True))
        return "one bit of the name of the record CRC is wrong" if different == 1 else False
    digits = b"%010d" % (zlib.crc32(memoryview(raw)[:-20]) & POSITIVE)  # stored least significant digit first
    return tail[9:19] == digits[::-1] or "record CRC is wrong"


def read_frame(log: Bytes, position: int, base: int, crc_from: int | None = None) -> Frame | int | str:
    """The message at `position` of a segment that starts at `base`; the size of a blank; or why it is neither.

    A message at `crc_from` or later must have the record CRC.
    """
    left = len(log) - position
    if log[position + 4 : position + 8] == BLANK_MAGIC:
        blank_bytes = int(I32.unpack_from(log, position)[0])
        return blank_bytes if blank_bytes == left else f"blank of {blank_bytes} bytes, {left} are left in the file"
    if left < MESSAGE_SIZE_MIN_BYTES:
        return "too few bytes left for a message"
    size, magic, body_crc, queue_id, _, queue_offset, offset, flags, _ = HEAD.unpack_from(log, position)
    if magic not in TOPIC_LENGTH:
        return "no message magic"
    if offset != base + position:
        return f"physicalOffset is {offset}, not {base + position}"
    if not MESSAGE_SIZE_MIN_BYTES <= size <= left:
        return f"totalSize {size} does not fit"
    raw, length = log[position : position + size], TOPIC_LENGTH[magic]
    born_bytes, store_bytes = 20 if flags & 0x10 else 8, 20 if flags & 0x20 else 8
    body_at = 72 + born_bytes + store_bytes
    try:
        topic_at = body_at + (body_bytes := I32.unpack_from(raw, body_at - 4)[0]) + length.size
        properties_at = topic_at + (topic_bytes := length.unpack_from(raw, topic_at - length.size)[0]) + 2
        properties_bytes = I16.unpack_from(raw, properties_at - 2)[0]
    except struct.error:
        return "lengths reach beyond the record"
    if min(body_bytes, topic_bytes, properties_bytes) < 0 or properties_at + properties_bytes != size:
        return "lengths do not add up to totalSize"
    if zlib.crc32(memoryview(raw)[body_at : body_at + body_bytes]) & POSITIVE != body_crc:
        return "body CRC is wrong"
    has_crc = properties_bytes >= 20 and _record_crc(raw)
    if isinstance(has_crc, str):
        return has_crc
    if not has_crc and crc_from is not None and offset >= crc_from:
        return "the record CRC is missing"
    pieces = [piece.partition(b"\x01") for piece in raw[properties_at:].split(b"\x02")]
    properties = {name: value for name, _, value in pieces if name and value}
    unique_keys = [value for name, _, value in pieces if name == b"UNIQ_KEY" and value]
    queue = (raw[topic_at : topic_at + topic_bytes], queue_id)
    (store_ms,) = I64.unpack_from(raw, 48 + born_bytes)
    return Frame(size, queue, queue_offset, flags, store_ms, properties, unique_keys, has_crc)
