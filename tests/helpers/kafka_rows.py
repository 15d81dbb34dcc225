"""Kafka records for tests of `rmq_store.bridge`: rows by hand and by hypothesis, and logs made of batches."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
from hypothesis import strategies as st

from rmq_store.bridge.record_batches.batch_header import CONTROL_FLAG, HEADER, LOG_APPEND_TIME_FLAG
from rmq_store.bridge.record_batches.batches import EncodedBatch, encode, seal
from rmq_store.bridge.record_batches.batches_python import Row
from rmq_store.bridge.record_batches.record_columns import rows_of

BASE_OFFSET, LEADER_EPOCH, ATTRIBUTES, LAST_OFFSET_DELTA, MAX_TIMESTAMP = 0, 2, 5, 6, 8
LARGE = 1 << 20
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def row(
    offset: int, value: bytes | None = b"value", key: bytes | None = b"key", *headers: tuple[bytes, bytes | None]
) -> Row:
    return Row(offset, 1_700_000_000_000 + offset, 0, key, value, list(headers))


def rows(count: int, first_offset: int = 0) -> list[Row]:
    """Of all kinds."""
    headers: list[tuple[bytes, bytes | None]] = [(b"name", b"text"), (b"\xff", None), (b"name", b"")]
    texts = [b"v%d" % offset * (offset % 7) for offset in range(first_offset, first_offset + count)]
    return [
        row(offset, text if offset % 5 else None, None if offset % 3 else text[:3], *headers[: offset % 4])
        for offset, text in enumerate(texts, first_offset)
    ]


def table(records: Iterable[Row]) -> pa.RecordBatch:
    return rows_of(records)


def one_batch(records: list[Row], compression: str = "none") -> EncodedBatch:
    (batch,) = encode(table(records), compression, 1 << 30)
    return batch


def stored(batch: EncodedBatch, base_offset: int, leader_epoch: int = 7, **changed: int) -> bytes:
    """The batch as a broker gives it; `changed` are fields of its header, by the names below."""
    data = bytearray(batch.data)
    fields = list(HEADER.unpack_from(data))
    fields[BASE_OFFSET], fields[LEADER_EPOCH] = base_offset, leader_epoch
    places = {"attributes": 5, "last_offset_delta": 6, "max_timestamp": 8, "producer_id": 9, "record_count": 12}
    for name, value in changed.items():
        fields[places[name]] = value
    HEADER.pack_into(data, 0, *fields)
    seal(data)
    return bytes(data)


def log(records: list[Row], compression: str = "none", batch_bytes: int = LARGE) -> bytes:
    """Batches with these records, whose offsets have no gaps."""
    data, offset = b"", records[0].offset if records else 0
    for batch in encode(table(records), compression, batch_bytes):
        data += stored(batch, offset)
        offset += batch.record_count
    return data


def marker(base_offset: int, producer_id: int, control_type: int) -> bytes:
    """A transaction marker: 0 aborts, 1 commits."""
    key = b"\x00\x00" + control_type.to_bytes(2)
    batch = one_batch([Row(0, 0, 0, key, b"\x00\x00\x00\x00\x00\x00", [])])
    return stored(batch, base_offset, attributes=CONTROL_FLAG | 0x10, producer_id=producer_id)


def transactional(records: list[Row], producer_id: int) -> bytes:
    return stored(one_batch(records), records[0].offset, attributes=0x10, producer_id=producer_id)


def log_append_time(records: list[Row], timestamp_ms: int) -> bytes:
    return stored(one_batch(records), records[0].offset, attributes=LOG_APPEND_TIME_FLAG, max_timestamp=timestamp_ms)


_TEXTS = st.one_of(st.none(), st.binary(max_size=40), st.sampled_from([b"x" * 63, b"x" * 64, b"y" * 300]))
_NAMES = st.one_of(st.binary(max_size=8), st.just(b"\xff\xfe"))
_TIMESTAMPS = st.one_of(
    st.integers(-1, 1 << 41), st.sampled_from([-(1 << 63), (1 << 63) - 1, 0, -2, 1 << 62]), st.integers(0, 100)
)


@st.composite
def records(draw: st.DrawFn, max_size: int = 12) -> list[Row]:
    """Rows with offsets from 0 on, without gaps."""
    return [
        Row(
            offset,
            draw(_TIMESTAMPS),
            0,
            draw(_TEXTS),
            draw(_TEXTS),
            draw(st.lists(st.tuples(_NAMES, _TEXTS), max_size=4)),
        )
        for offset in range(draw(st.integers(0, max_size)))
    ]
