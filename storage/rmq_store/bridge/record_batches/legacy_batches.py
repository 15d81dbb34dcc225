"""Messages of magic 0 and 1, in Python. Nobody writes them any more, but brokers of Kafka 4 still return those of old
segments.

Source: LegacyRecord.java and AbstractLegacyRecordBatch.java of Kafka's clients.
"""

from __future__ import annotations

import zlib
from itertools import pairwise
from struct import Struct, error

from rmq_store.bridge.record_batches.batch_header import CODEC_MASK, LOG_APPEND_TIME_FLAG, Batch
from rmq_store.bridge.record_batches.batches_python import Row
from rmq_store.bridge.record_batches.packing import LZ4, NONE, PackingError, unpack
from rmq_store.bridge.record_batches.schema import CREATE_TIME, LOG_APPEND_TIME, NO_TIMESTAMP_MS

_PREFIX = Struct(">qiIbb")
_CRC_START, _CRC_END = 12, 16
_LENGTH_END = 12
_TIMESTAMP = Struct(">q")
_SIZE = Struct(">i")


def read_legacy(data: memoryview, batch: Batch, limit_bytes: int, check_crcs: bool) -> list[Row]:
    """The records of one message, or of a compressed message set; at least one.

    Raises:
        CorruptBatchError: the message contradicts its format or its checksum.
    """
    try:
        row, attributes = _read_message(data, check_crcs)
        codec = attributes & CODEC_MASK
        if codec == NONE:
            return [row]
        if codec == LZ4 and batch.magic == 0:
            raise PackingError("LZ4 of magic 0, whose frames have wrong checksums, is not read")
        if row.value is None:
            raise PackingError("it has no compressed value")
        inner = _read_set(memoryview(unpack(codec, row.value, limit_bytes)), batch.magic, check_crcs)
    except (PackingError, error) as wrong:
        raise batch.broken(str(wrong)) from wrong
    # Of magic 1 the offsets inside are relative, and the outer one is that of the last.
    shift = row.offset - inner[-1].offset if batch.magic == 1 else 0
    found = [record._replace(offset=record.offset + shift) for record in inner]
    if row.timestamp_type == LOG_APPEND_TIME:
        found = [record._replace(timestamp_ms=row.timestamp_ms, timestamp_type=LOG_APPEND_TIME) for record in found]
    if found[0].offset < 0 or any(later.offset <= record.offset for record, later in pairwise(found)):
        raise batch.broken("the offsets of its records do not ascend")
    return found


def _read_set(data: memoryview, magic: int, check_crcs: bool) -> list[Row]:
    rows, at = [], 0
    while at < len(data):
        _, length = Struct(">qi").unpack_from(data, at)
        end = at + _LENGTH_END + length
        if length < 0 or end > len(data):
            raise PackingError("a message in it is cut off")
        row, attributes = _read_message(data[at:end], check_crcs)
        if attributes & CODEC_MASK or data[at + _CRC_END] != magic:
            raise PackingError("a message in it is compressed again, or of another format")
        rows.append(row)
        at = end
    if not rows:
        raise PackingError("there is no message in it")
    return rows


def _read_message(data: memoryview, check_crcs: bool) -> tuple[Row, int]:
    offset, _, crc, magic, attributes = _PREFIX.unpack_from(data)
    if check_crcs and zlib.crc32(data[_CRC_END:]) != crc:
        raise PackingError(f"its CRC-32 is {zlib.crc32(data[_CRC_END:]):#010x}, and it says {crc:#010x}")
    at, timestamp, timestamp_type = _PREFIX.size, NO_TIMESTAMP_MS, CREATE_TIME
    if magic == 1:
        (timestamp,) = _TIMESTAMP.unpack_from(data, at)
        at += _TIMESTAMP.size
        timestamp_type = LOG_APPEND_TIME if attributes & LOG_APPEND_TIME_FLAG else CREATE_TIME
    key, at = _read_bytes(data, at)
    value, at = _read_bytes(data, at)
    if at != len(data):
        raise PackingError("it has bytes behind its value")
    return Row(offset, timestamp, timestamp_type, key, value, []), attributes


def _read_bytes(data: memoryview, at: int) -> tuple[bytes | None, int]:
    (size,) = _SIZE.unpack_from(data, at)
    at += _SIZE.size
    if size < 0:
        return None, at
    if size > len(data) - at:
        raise PackingError("its key or value ends behind its space")
    return bytes(data[at : at + size]), at + size
