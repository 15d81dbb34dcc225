"""Key and headers of a Kafka record, exactly, as the text of one property: KAFKA_RECORD.

    base64( key, header count, *(name, value) )     key, name, value: length as a zigzag varint, -1 for None; bytes

That is what these bytes are in a record of Kafka itself. Source: DefaultRecord.java (writeTo), ByteUtils.java.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence

from rmq_store.errors import UsageError

Headers = Sequence[tuple[bytes, bytes | None]]

_VARINT_BYTES_MAX = 5


def encode_exact(key: bytes | None, headers: Headers) -> str:
    """The property's value: ASCII."""
    parts = bytearray()
    _add_bytes(parts, key)
    _add_varint(parts, len(headers))
    for name, value in headers:
        _add_bytes(parts, name)
        _add_bytes(parts, value)
    return base64.b64encode(parts).decode("ascii")


def decode_exact(text: str) -> tuple[bytes | None, list[tuple[bytes, bytes | None]]]:
    """Key and headers. Raises UsageError unless `encode_exact` can have made `text`."""
    try:
        raw = base64.b64decode(text.encode("ascii"), validate=True)
    except (UnicodeEncodeError, binascii.Error) as error:
        raise UsageError(f"KAFKA_RECORD is no base64: {error}") from error
    key, at = _read_bytes(raw, 0)
    count, at = _read_varint(raw, at)
    headers: list[tuple[bytes, bytes | None]] = []
    for _ in range(count):
        name, at = _read_bytes(raw, at)
        value, at = _read_bytes(raw, at)
        if name is None:
            raise UsageError("KAFKA_RECORD holds a header without a name")
        headers.append((name, value))
    if at != len(raw) or count < 0:
        raise UsageError(f"KAFKA_RECORD ends at byte {at} of {len(raw)}")
    return key, headers


def _add_bytes(parts: bytearray, value: bytes | None) -> None:
    _add_varint(parts, -1 if value is None else len(value))
    parts += value or b""


def _add_varint(parts: bytearray, number: int) -> None:
    rest = number * 2 if number >= 0 else -number * 2 - 1
    while rest > 0x7F:
        parts.append(rest & 0x7F | 0x80)
        rest >>= 7
    parts.append(rest)


def _read_bytes(raw: bytes, at: int) -> tuple[bytes | None, int]:
    size, at = _read_varint(raw, at)
    if size < 0:
        return None, at
    if at + size > len(raw):
        raise UsageError(f"KAFKA_RECORD ends within {size} bytes that begin at byte {at}")
    return raw[at : at + size], at + size


def _read_varint(raw: bytes, at: int) -> tuple[int, int]:
    number = 0
    for place in range(_VARINT_BYTES_MAX):
        if at + place >= len(raw):
            break
        number |= (raw[at + place] & 0x7F) << 7 * place
        if raw[at + place] < 0x80:
            return (number >> 1) ^ -(number & 1), at + place + 1
    raise UsageError(f"KAFKA_RECORD has no length at byte {at}")
