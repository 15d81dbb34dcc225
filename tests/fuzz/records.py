"""One record of each kind, laid out between two others, and which field each of its bytes belongs to."""

from __future__ import annotations

import functools
from typing import NamedTuple

from rmq_store.format.frames.compression import compress
from rmq_store.format.frames.frame_check import BODY_POSITIONS, SysFlag
from rmq_store.format.frames.stored_message import encode_frame
from rmq_store.format.properties.property_string import CRC_PROPERTY_BYTES
from rmq_store.format.text.host import Host

IPV4, IPV6 = Host.parse("192.168.7.20:10911"), Host.parse("[fe80::a1]:10911")
MODES = ("crc", "plain")
STORED_MS = 1_700_000_000_000
BASE = 1 << 20  # the segment's place in the log

_PROPERTIES = b"UNIQ_KEY\x017F000001000100000000000000000000\x02KEYS\x01k1 k2\x02TAGS\x01TagA\x02region\x01eu\x02"


class Victim(NamedTuple):
    """`data`: three records; the middle one, at [start, end), is flipped bit by bit. `fields`: (name, end) in order."""

    kind: str
    mode: str
    data: bytes
    start: int
    end: int
    fields: tuple[tuple[str, int], ...]

    def field(self, position: int) -> str:
        """Which field the byte at `position` of `data` belongs to."""
        return next(name for name, end in self.fields if position < end)


def _kinds() -> dict[str, dict[str, object]]:
    kinds: dict[str, dict[str, object]] = {}
    for version, topic in (("V1", "Orders"), ("V2", "%RETRY%" + "g" * 130)):
        for address, host in (("IPv4", IPV4), ("IPv6", IPV6)):
            for size in (0, 100, 4096):
                body = bytes((n * 37 + n // 256) % 256 for n in range(size))
                kinds[f"{version} {address} {size} B"] = {
                    "topic": topic, "body": body, "born_host": host, "store_host": host,
                }  # fmt: skip
    packed, compressed = compress(b"a body that is worth it " * 20, "zlib")
    batch = b"INNER_NUM\x013\x02"
    delayed = b"DELAY\x013\x02REAL_TOPIC\x01Orders\x02REAL_QID\x012\x02"
    half = b"TRAN_MSG\x01true\x02PGROUP\x01producers\x02REAL_TOPIC\x01Orders\x02REAL_QID\x012\x02"
    kinds["batch"] = {"sys_flag": int(SysFlag.INNER_BATCH), "body": b"inner " * 9, "properties": _PROPERTIES + batch}
    kinds["delayed"] = {"topic": "SCHEDULE_TOPIC_XXXX", "queue_id": 2, "properties": _PROPERTIES + delayed}
    kinds["half"] = {
        "topic": "RMQ_SYS_TRANS_HALF_TOPIC", "queue_offset": 0, "sys_flag": int(SysFlag.TRANSACTION_PREPARED),
        "properties": _PROPERTIES + half,
    }  # fmt: skip
    kinds["compressed"] = {"body": packed, "sys_flag": compressed}
    return kinds


def _frame(number: int, offset: int, crc: bool, **fields: object) -> bytes:
    given: dict[str, object] = {
        "topic": "Orders", "body": b"of another message", "properties": _PROPERTIES, "queue_id": 1,
        "queue_offset": 40 + number, "commit_log_offset": offset, "born_timestamp_ms": STORED_MS - 9,
        "born_host": IPV4, "store_timestamp_ms": STORED_MS + number, "store_host": IPV4, "reconsume_times": 1,
        "crc_property": crc,
    }  # fmt: skip
    return encode_frame(**{**given, **fields})  # type: ignore[arg-type]


def _fields(frame: bytes, start: int, crc: bool) -> tuple[tuple[str, int], ...]:
    is_v2, sys_flag = frame[7] == 0xAB, int.from_bytes(frame[36:40], "big")
    host = 20 if sys_flag & SysFlag.BORN_HOST_V6 else 8
    body_at = BODY_POSITIONS[sys_flag >> 4 & 3]
    body_end = body_at + int.from_bytes(frame[body_at - 4 : body_at], "big")
    topic_at = body_end + 1 + is_v2
    topic_end = topic_at + int.from_bytes(frame[body_end:topic_at], "big")
    ends = {
        "totalSize": 4, "magic": 8, "bodyCRC": 12, "queueId": 16, "flag": 20, "queueOffset": 28, "physicalOffset": 36,
        "sysFlag": 40, "bornTimestamp": 48, "bornHost": 48 + host, "storeTimestamp": 56 + host,
        "storeHost": 56 + 2 * host, "reconsumeTimes": 60 + 2 * host, "preparedTransactionOffset": 68 + 2 * host,
        "bodyLength": body_at, "body": body_end, "topicLength": topic_at, "topic": topic_end,
        "propertiesLength": topic_end + 2, "properties": len(frame) - CRC_PROPERTY_BYTES * crc,
        "recordCRC": len(frame),
    }  # fmt: skip
    return tuple((name, start + end) for name, end in ends.items())


@functools.cache
def victims() -> tuple[Victim, ...]:
    """One of each kind in each mode: with a CRC of the whole record, and byte-identical to RocketMQ's default."""
    found = []
    for mode in MODES:
        for kind, fields in _kinds().items():
            crc = mode == "crc"
            before = _frame(0, BASE, crc)
            start = len(before)
            middle = _frame(1, BASE + start, crc, **fields)
            end = start + len(middle)
            data = before + middle + _frame(2, BASE + end, crc) + bytes(64)
            found.append(Victim(kind, mode, data, start, end, _fields(middle, start, crc)))
    return tuple(found)
