"""Converts record batches of a fetch response to rows and back.

It is no part of a Kafka client. One that reads record by record in Python costs more than the rest of a mirror, and
kafka-python's hangs for ever at a header whose name is not UTF-8.

Source: MemoryRecords.java, DefaultRecordBatch.java, CompletedFetch.java (which records a consumer sees).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa

from rmq_store.bridge.record_batches.batch_header import (
    ATTRIBUTES_START,
    CODEC_MASK,
    CONTROL_FLAG,
    CRC_START,
    HEADER,
    HEADER_BYTES,
    LENGTH_END,
    LOG_APPEND_TIME_FLAG,
    NO_PRODUCER_ID,
    TRANSACTIONAL_FLAG,
    Batch,
    walk,
)
from rmq_store.bridge.record_batches.batches_python import REASONS, BrokenRecords, Region, read_rows
from rmq_store.bridge.record_batches.crc32c import crc32c
from rmq_store.bridge.record_batches.legacy_batches import read_legacy
from rmq_store.bridge.record_batches.packing import CODEC_OF_NAME, NONE, PackingError, pack, unpack
from rmq_store.bridge.record_batches.record_columns import RecordWriter, Written, read_records, rows_of
from rmq_store.bridge.record_batches.schema import RECORDS_SCHEMA, Fetched
from rmq_store.errors import RecordTooLargeError, UsageError
from rmq_store.lazy.dataclasses import dataclass

MAX_PLAIN_BYTES: Final = 128 << 20
"""Of decompressed records that one `decode` gives, about; and of one batch at most."""

_ABORT_MARKER = b"\x00\x00\x00\x00"  # version 0, type ABORT (ControlRecordType.java)
_ABORT_TYPE = 0


def decode(
    data: bytes | memoryview,
    from_offset: int,
    aborted: Sequence[tuple[int, int]] | None,
    *,
    check_crcs: bool = True,
    max_plain_bytes: int = MAX_PLAIN_BYTES,
) -> Fetched:
    """The records of a fetch response of one partition, from `from_offset` on.

    `aborted` are the response's aborted transactions, (producer id, first offset); None reads uncommitted records, too.
    Markers and records of aborted transactions are left out; `next_offset` is after them, and after offsets that
    compaction has emptied. A last batch that is cut off is left for the next fetch. Once `max_plain_bytes` are
    unpacked, the rest is left, too: decode the same data again, from `next_offset` on.

    Raises:
        CorruptBatchError: a batch contradicts the format, its checksum, or is larger than `max_plain_bytes`.
    """
    return decode_some(data, from_offset, aborted, check_crcs=check_crcs, max_plain_bytes=max_plain_bytes)[0]


def decode_some(
    data: bytes | memoryview,
    from_offset: int,
    aborted: Sequence[tuple[int, int]] | None,
    *,
    check_crcs: bool = True,
    max_plain_bytes: int = MAX_PLAIN_BYTES,
) -> tuple[Fetched, bool]:
    """As `decode`, and True if nothing was left because of `max_plain_bytes`."""
    collected = _Collected(memoryview(data), from_offset)
    transactions = _Aborted(aborted) if aborted is not None else None
    is_all = True
    for batch in walk(collected.data):
        is_wanted = batch.magic < 2 or batch.next_offset > from_offset
        if is_wanted and collected.size and collected.size + batch.end - batch.start > max_plain_bytes:
            is_all = False
            break
        if is_wanted and check_crcs and batch.magic == 2:
            _check_crc(collected.data, batch)
        is_left_out = transactions is not None and transactions.leaves_out(collected.data, batch)
        if not is_wanted:
            continue
        if batch.magic < 2:
            collected.add_legacy(batch, max_plain_bytes, check_crcs)
        elif is_left_out or batch.attributes & CONTROL_FLAG:
            collected.pass_by(batch)
        else:
            collected.add(batch, max_plain_bytes)
    return collected.fetched(), is_all


def _check_crc(data: memoryview, batch: Batch) -> None:
    found = crc32c(data[batch.start + ATTRIBUTES_START : batch.end])
    if found != batch.crc:
        raise batch.broken(f"its CRC-32C is {found:#010x}, and it says {batch.crc:#010x}")


class _Aborted:
    """Batches that belong to an aborted transaction: between its first offset and its marker."""

    def __init__(self, transactions: Sequence[tuple[int, int]]) -> None:
        self._waiting = sorted(transactions, key=lambda transaction: transaction[1], reverse=True)
        self._open: set[int] = set()

    def leaves_out(self, data: memoryview, batch: Batch) -> bool:
        if batch.producer_id == NO_PRODUCER_ID or not batch.attributes & TRANSACTIONAL_FLAG:
            return False
        while self._waiting and self._waiting[-1][1] < batch.next_offset:
            self._open.add(self._waiting.pop()[0])
        if batch.attributes & CONTROL_FLAG:
            if _control_type(data, batch) == _ABORT_TYPE:
                self._open.discard(batch.producer_id)
            return False
        return batch.producer_id in self._open


def _control_type(data: memoryview, batch: Batch) -> int | None:
    """The type of a control batch's one record, or None without a record: compaction may have removed it."""
    if batch.record_count == 0:
        return None
    start = batch.start + HEADER_BYTES
    try:
        row = next(read_rows(data, [_region(batch, start, batch.end)], 0))
    except BrokenRecords as broken:
        raise batch.broken(REASONS[broken.reason]) from None
    if row.key is None or len(row.key) < len(_ABORT_MARKER):
        raise batch.broken("the key of its control record has no type")
    return int.from_bytes(row.key[2:4])


def _region(batch: Batch, start: int, end: int) -> Region:
    timestamp_type = int(bool(batch.attributes & LOG_APPEND_TIME_FLAG))
    return Region(
        start, end, batch.record_count, batch.base_offset, batch.last_offset_delta, batch.base_timestamp,
        timestamp_type, batch.max_timestamp,
    )  # fmt: skip


class _Collected:
    """Batches whose records are wanted, in the order of their offsets; read together when all are known."""

    def __init__(self, data: memoryview, from_offset: int) -> None:
        self.data = data
        self.size = 0
        self._from_offset = self._next_offset = from_offset
        self._leader_epoch = -1
        self._batches: list[Batch] = []
        self._unpacked: dict[int, memoryview] = {}
        self._read: list[pa.RecordBatch] = []

    def pass_by(self, batch: Batch) -> None:
        self._next_offset, self._leader_epoch = batch.next_offset, batch.leader_epoch

    def add(self, batch: Batch, limit_bytes: int) -> None:
        plain = self.data[batch.start + HEADER_BYTES : batch.end]
        codec = batch.attributes & CODEC_MASK
        if codec != NONE and batch.record_count:
            try:
                plain = memoryview(unpack(codec, plain, limit_bytes))
            except PackingError as error:
                raise batch.broken(str(error)) from error
            self._unpacked[len(self._batches)] = plain
        if batch.record_count:
            self._batches.append(batch)
            self.size += len(plain)
        self.pass_by(batch)

    def add_legacy(self, batch: Batch, limit_bytes: int, check_crcs: bool) -> None:
        self._read_waiting()
        records = read_legacy(self.data[batch.start : batch.end], batch, limit_bytes, check_crcs)
        self._next_offset = max(self._next_offset, records[-1].offset + 1)
        self._read.append(rows_of(record for record in records if record.offset >= self._from_offset))
        self.size += batch.end - batch.start

    def fetched(self) -> Fetched:
        self._read_waiting()
        if len(self._read) == 1:
            rows = self._read[0]
        else:
            (rows,) = pa.Table.from_batches(self._read, RECORDS_SCHEMA).combine_chunks().to_batches() or [rows_of(())]
        return Fetched(rows, self._next_offset, self._leader_epoch)

    def _read_waiting(self) -> None:
        if not self._batches:
            return
        data, regions = self._regions()
        try:
            self._read.append(read_records(data, regions, self._from_offset))
        except BrokenRecords as broken:
            raise self._batches[broken.region].broken(REASONS[broken.reason]) from None
        self._batches, self._unpacked = [], {}

    def _regions(self) -> tuple[memoryview | bytes, list[Region]]:
        if not self._unpacked:
            return self.data, [_region(batch, batch.start + HEADER_BYTES, batch.end) for batch in self._batches]
        parts, regions, at = [], [], 0
        for number, batch in enumerate(self._batches):
            part = self._unpacked.get(number)
            parts.append(self.data[batch.start + HEADER_BYTES : batch.end] if part is None else part)
            regions.append(_region(batch, at, at + len(parts[-1])))
            at += len(parts[-1])
        return parts[0] if len(parts) == 1 else b"".join(parts), regions


@dataclass(slots=True)
class EncodedBatch:
    """A complete record batch for a broker: `data` includes the checksum, and at first names no producer."""

    data: bytearray
    record_count: int
    max_timestamp_ms: int

    def set_producer(self, producer_id: int, epoch: int, base_sequence: int, transactional: bool) -> None:
        """Write the producer into the header; the records do not change."""
        fields = list(HEADER.unpack_from(self.data))
        fields[5] = fields[5] & ~TRANSACTIONAL_FLAG | (TRANSACTIONAL_FLAG if transactional else 0)
        fields[9:12] = producer_id, epoch, base_sequence
        HEADER.pack_into(self.data, 0, *fields)
        seal(self.data)


def encode(rows: pa.RecordBatch, compression: str, max_batch_bytes: int) -> list[EncodedBatch]:
    """Encode rows (RECORDS_SCHEMA; offsets and timestamp types are ignored) as batches of at most `max_batch_bytes`,
    after compression. A batch that compression does not make smaller is not compressed. A record larger than this gets
    a batch of its own, if that is small enough when compressed.

    Raises:
        RecordTooLargeError: `row` is too large even then.
        UsageError: rows of another schema, or an unknown compression.
    """
    if not rows.schema.equals(RECORDS_SCHEMA):
        raise UsageError(f"rows to encode have the schema RECORDS_SCHEMA, not {rows.schema}")
    if compression not in CODEC_OF_NAME:
        raise UsageError(f"the compression is one of {', '.join(CODEC_OF_NAME)}, not {compression!r}")
    if max_batch_bytes <= HEADER_BYTES:
        raise UsageError(f"a batch needs more than the {HEADER_BYTES} bytes of its header, not {max_batch_bytes}")
    return list(_encoded(rows, CODEC_OF_NAME[compression], max_batch_bytes))


def _encoded(rows: pa.RecordBatch, codec: int, max_batch_bytes: int) -> Iterator[EncodedBatch]:
    writer, timestamps, first = RecordWriter(rows), rows.column("timestampMs"), 0
    while first < rows.num_rows:
        written = writer.write(first, max_batch_bytes - HEADER_BYTES)
        is_alone = written.behind == first
        if is_alone and codec != NONE:
            written = writer.write(first, written.needed_bytes)
        batch = _batch(written, first, timestamps[first].as_py(), codec)
        if written.behind == first or len(batch.data) > max_batch_bytes:
            raise RecordTooLargeError(
                f"record {first} is larger than {max_batch_bytes} bytes, which is what its topic takes", first
            )
        yield batch
        first = written.behind


def _batch(written: Written, first: int, base_timestamp: int, codec: int) -> EncodedBatch:
    body = written.records if codec == NONE else pack(codec, written.records)
    if len(body) >= len(written.records):
        body, codec = written.records, NONE
    count, length = written.behind - first, HEADER_BYTES - LENGTH_END + len(body)
    header = HEADER.pack(
        0, length, -1, 2, 0, codec, count - 1, base_timestamp, written.max_timestamp_ms, NO_PRODUCER_ID, -1, -1, count
    )
    data = bytearray().join((header, body))
    seal(data)
    return EncodedBatch(data, count, written.max_timestamp_ms)


def seal(data: bytearray) -> None:
    """Write the checksum into the header of a batch that was changed."""
    data[CRC_START:ATTRIBUTES_START] = crc32c(memoryview(data)[ATTRIBUTES_START:]).to_bytes(4)
