"""The messages that everything is measured with."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

TOPIC = "Bench"
BODY_BYTES = (100, 1024)


def plain(row_count: int, body_bytes: int, first: int = 0) -> pa.RecordBatch:
    """Random bodies, one tag of five, one key each, which is its number (`key_of`) counted from `first`."""
    random = np.random.default_rng(row_count ^ body_bytes)
    bodies = random.integers(0, 256, row_count * body_bytes, dtype=np.uint8)
    offsets = np.arange(0, (row_count + 1) * body_bytes, body_bytes, dtype=np.int64)
    body = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), row_count, [None, pa.py_buffer(offsets), pa.py_buffer(bodies)]
    )
    tags = pa.array([f"Tag{letter}" for letter in "ABCDE"]).take(pa.array(np.arange(row_count) % 5))
    columns = {"body": body.cast(pa.binary()), "tags": tags, "keys": _keys(first, row_count)}
    return pa.RecordBatch.from_pydict(columns)


def numbered(batch: pa.RecordBatch, first: int) -> pa.RecordBatch:
    """The same messages with keys counted from `first`."""
    at = batch.schema.get_field_index("keys")
    return batch.set_column(at, "keys", _keys(first, batch.num_rows))


def batch(row_count: int, body_bytes: int, topic: str | None = None) -> pa.RecordBatch:
    """As `plain`, with a property map of two entries, and the topic if it is given."""
    names = pa.array(["region", "priority"] * row_count)
    values = pa.array(["eu-west", "7"] * row_count)
    properties = pa.MapArray.from_arrays(np.arange(0, 2 * row_count + 1, 2, dtype=np.int32), names, values)
    made = plain(row_count, body_bytes).append_column("properties", properties)
    if topic is not None:
        made = made.append_column("topic", pa.array([topic]).take(pa.array(np.zeros(row_count, np.int32))))
    return made


def key_of(number: int) -> str:
    """The key of a message."""
    return f"ORD-{number}"


def _keys(first: int, row_count: int) -> pa.Array:
    return pc.binary_join_element_wise("ORD-", pa.array(np.arange(first, first + row_count)).cast(pa.string()), "")
