"""Entries of a batch body, field by field, with and without the extension."""

from __future__ import annotations

import struct
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

from rmq_store.errors import UsageError
from rmq_store.format.batches.batch_bodies import batch_entries
from rmq_store.format.batches.encode_input import EncodeOptions
from rmq_store.format.batches.frame_encoder import encode_batch
from rmq_store.format.text.host import Host

ANY = Host.parse("0.0.0.0:0")
TAIL = b"WAIT\x01true\x02"


def frames_of(rows: list[dict[str, object]]) -> pa.LargeBinaryArray:
    schema = pa.schema(
        [
            ("topic", pa.string()),
            ("body", pa.binary()),
            ("tags", pa.string()),
            ("keys", pa.string()),
            ("flag", pa.int32()),
        ]
    )
    batch = pa.RecordBatch.from_pylist(rows, schema)
    options = EncodeOptions(ANY, ANY, 1, crc_property=False)
    return encode_batch(batch, queue_ids=np.zeros(len(rows), np.int32), options=options).column("frame")


def fields(entry: bytes) -> tuple[int, int, int, int, bytes, bytes]:
    """Total size, magic, CRC, flag, body and properties, as MessageDecoder.decodeMessage reads them."""
    size, magic, crc, flag, body_bytes = struct.unpack_from(">5i", entry)
    body = entry[20 : 20 + body_bytes]
    (properties_bytes,) = struct.unpack_from(">h", entry, 20 + body_bytes)
    properties = entry[22 + body_bytes :]
    assert len(properties) == properties_bytes
    return size, magic, crc, flag, body, properties


def test_each_field_of_an_entry(way: str) -> None:
    frames = frames_of(
        [
            {"topic": "Orders", "body": b"tea", "tags": "A", "keys": "k1 k2", "flag": 7},
            {"topic": "T" * 127, "body": b"", "flag": None},
        ]
    )
    keys = np.arange(32, dtype=np.uint8)
    offsets, entries = batch_entries(frames, keys, TAIL)
    first, second = (entries[start:end].tobytes() for start, end in pairwise(offsets))
    key = b"UNIQ_KEY\x01000102030405060708090A0B0C0D0E0F\x02"
    assert fields(first) == (len(first), 0, 0, 7, b"tea", key + b"KEYS\x01k1 k2\x02TAGS\x01A\x02" + TAIL)
    assert fields(second) == (len(second), 0, 0, 0, b"", b"UNIQ_KEY\x01101112131415161718191A1B1C1D1E1F\x02" + TAIL)


def test_rows_that_bring_their_unique_keys_get_no_other(way: str) -> None:
    offsets, entries = batch_entries(frames_of([{"topic": "Orders", "body": b"tea"}]), None, b"")
    assert fields(entries.tobytes()) == (25, 0, 0, 0, b"tea", b"")
    assert offsets.tolist() == [0, 25]


def test_properties_that_the_unique_key_makes_too_long_are_refused_by_row(way: str) -> None:
    fits = "k" * (32767 - len("KEYS\x01\x02") - 42 - len(TAIL))
    rows = [{"topic": "Orders", "body": b"", "keys": fits}, {"topic": "Orders", "body": b"", "keys": fits + "k"}]
    frames = frames_of(rows)
    assert len(batch_entries(frames[:1], np.zeros(16, np.uint8), TAIL)[0]) == 2
    with pytest.raises(UsageError, match=r"row 1, column 'properties': 32768 bytes of properties, more than 32767"):
        batch_entries(frames, np.zeros(32, np.uint8), TAIL)


def test_no_rows(way: str) -> None:
    offsets, entries = batch_entries(frames_of([]), np.zeros(0, np.uint8), TAIL)
    assert (offsets.tolist(), len(entries)) == ([0], 0)
