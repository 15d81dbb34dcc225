"""Records of batches to columns and back, in Python: complete, slow, and the reference for the extension.

Source: DefaultRecord.java of Kafka's clients (readFrom, writeTo) and ByteUtils.java (numbers of variable length).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import pyarrow as pa

REASONS: Final = (
    "it is sound",
    "a record, or a part of one, ends behind its space",
    "a number has too many bytes",
    "a record has bytes behind its last header",
    "a record has a negative number of headers",
    "a header has no name",
    "the offsets of its records do not ascend, or end beyond its own",
    "it has bytes behind its last record",
)
"""What can be wrong with the records of a batch. The extension answers with places in this tuple."""
RECORD_CUT, NUMBER_LONG, RECORD_REST, HEADERS_NEGATIVE, NAME_MISSING, OFFSETS_WRONG, BATCH_REST = range(1, len(REASONS))

_INT_BYTES_MAX, _LONG_BYTES_MAX = 5, 10
_RECORD_BYTES_MAX = (1 << 31) - 1

Headers = list[tuple[bytes, bytes | None]]


class Region(NamedTuple):
    """The records of one batch: their place in the data, and the facts of its header."""

    start: int
    end: int
    record_count: int
    base_offset: int
    last_offset_delta: int
    base_timestamp: int
    timestamp_type: int
    max_timestamp: int


class Row(NamedTuple):
    """One record."""

    offset: int
    timestamp_ms: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class BrokenRecords(Exception):
    """The records of a region contradict the format: `region` is its number, `reason` an index in REASONS."""

    def __init__(self, region: int, reason: int) -> None:
        super().__init__(REASONS[reason])
        self.region = region
        self.reason = reason


class _Wrong(Exception):
    def __init__(self, reason: int) -> None:
        self.reason = reason


class _Reader:
    def __init__(self, data: memoryview, at: int, end: int) -> None:
        self.data, self.at, self.end = data, at, end

    def number(self, bytes_max: int) -> int:
        raw = 0
        for place in range(bytes_max):
            if self.at == self.end:
                raise _Wrong(RECORD_CUT)
            byte = self.data[self.at]
            self.at += 1
            raw |= (byte & 0x7F) << 7 * place
            if byte < 0x80:
                # As in Java, bits above the 32nd or the 64th are lost.
                raw &= 0xFFFFFFFF if bytes_max == _INT_BYTES_MAX else 0xFFFFFFFFFFFFFFFF
                return raw >> 1 ^ -(raw & 1)
        raise _Wrong(NUMBER_LONG)

    def integer(self) -> int:
        return self.number(_INT_BYTES_MAX)

    def text(self) -> bytes | None:
        size = self.integer()
        if size < 0:
            return None
        if size > self.end - self.at:
            raise _Wrong(RECORD_CUT)
        self.at += size
        return bytes(self.data[self.at - size : self.at])


def read_rows(data: memoryview, regions: list[Region], from_offset: int) -> Iterator[Row]:
    """The records with an offset from `from_offset` on, in their order.

    Raises:
        BrokenRecords: a region has another number of records than it says, or bytes that are no record.
    """
    for number, region in enumerate(regions):
        reader, last_delta = _Reader(data, region.start, region.end), -1
        try:
            for _ in range(region.record_count):
                row = _read_row(reader, region, last_delta)
                last_delta = row.offset - region.base_offset
                if row.offset >= from_offset:
                    yield row
            if reader.at != region.end:
                raise _Wrong(BATCH_REST)
        except _Wrong as wrong:
            raise BrokenRecords(number, wrong.reason) from None


def _read_row(batch: _Reader, region: Region, last_delta: int) -> Row:
    size = batch.integer()
    if not 1 <= size <= batch.end - batch.at:
        raise _Wrong(RECORD_CUT)
    body = _Reader(batch.data, batch.at + 1, batch.at + size)  # the attributes of a record are not used
    batch.at += size
    timestamp_delta, offset_delta = body.number(_LONG_BYTES_MAX), body.integer()
    key, value = body.text(), body.text()
    header_count = body.integer()
    if header_count < 0:
        raise _Wrong(HEADERS_NEGATIVE)
    if not last_delta < offset_delta <= region.last_offset_delta:
        raise _Wrong(OFFSETS_WRONG)
    headers: Headers = []
    for _ in range(header_count):
        name = body.text()
        if name is None:
            raise _Wrong(NAME_MISSING)
        headers.append((name, body.text()))
    if body.at != body.end:
        raise _Wrong(RECORD_REST)
    timestamp = region.max_timestamp if region.timestamp_type else _wrapped(region.base_timestamp + timestamp_delta)
    return Row(region.base_offset + offset_delta, timestamp, region.timestamp_type, key, value, headers)


def _wrapped(value: int) -> int:
    """As 64 bits of Java hold it."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def write_rows(rows: pa.RecordBatch, first: int, room: int) -> tuple[int, bytes, int, int]:
    """Write rows (RECORDS_SCHEMA) from `first` on, as many as fit in `room` bytes, as records of a batch that begins
    with this row. Returns the row after them, the bytes, and the largest timestamp; if the first row does not fit, its
    own number, no bytes, and as the last value the size that it needs.
    """
    timestamps, keys, values, headers = (rows.column(name) for name in ("timestampMs", "key", "value", "headers"))
    base, pieces, size, newest, needed = timestamps[first].as_py(), [], 0, -(1 << 63), 0
    row = first
    while row < rows.num_rows:
        timestamp = timestamps[row].as_py()
        pairs = [(header["name"], header["value"]) for header in headers[row].as_py()]
        record = _record(_wrapped(timestamp - base), row - first, keys[row].as_py(), values[row].as_py(), pairs)
        needed = len(record)
        if needed > room - size or needed > _RECORD_BYTES_MAX:
            break
        pieces.append(record)
        size, newest, row = size + needed, max(newest, timestamp), row + 1
    return row, b"".join(pieces), newest, needed


def _record(timestamp_delta: int, offset_delta: int, key: bytes | None, value: bytes | None, headers: Headers) -> bytes:
    body = bytearray(1)
    body += _number(timestamp_delta) + _number(offset_delta) + _cell(key) + _cell(value) + _number(len(headers))
    for name, header_value in headers:
        body += _cell(name) + _cell(header_value)
    return _number(len(body)) + bytes(body)


def _cell(text: bytes | None) -> bytes:
    return _number(-1) if text is None else _number(len(text)) + text


def _number(value: int) -> bytes:
    raw, written = value << 1 ^ value >> 63, bytearray()
    while raw >= 0x80:
        written.append(raw & 0x7F | 0x80)
        raw >>= 7
    written.append(raw)
    return bytes(written)
