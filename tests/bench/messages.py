"""The messages that everything is measured with."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

BODY_BYTES = (100, 1024)


def batch(row_count: int, body_bytes: int, topic: str | None = None) -> pa.RecordBatch:
    """Random bodies, one tag of five, one key each, a property map of two entries."""
    random = np.random.default_rng(row_count ^ body_bytes)
    bodies = random.integers(0, 256, row_count * body_bytes, dtype=np.uint8)
    offsets = np.arange(0, (row_count + 1) * body_bytes, body_bytes, dtype=np.int32)
    numbers = pa.array(np.arange(row_count)).cast(pa.string())
    names = pa.array(["region", "priority"] * row_count)
    values = pa.array(["eu-west", "7"] * row_count)
    columns = {
        "body": pa.BinaryArray.from_buffers(
            pa.binary(), row_count, [None, pa.py_buffer(offsets), pa.py_buffer(bodies)]
        ),
        "tags": pa.array([f"Tag{letter}" for letter in "ABCDE"]).take(pa.array(np.arange(row_count) % 5)),
        "keys": pa.compute.binary_join_element_wise("ORD-", numbers, ""),
        "properties": pa.MapArray.from_arrays(np.arange(0, 2 * row_count + 1, 2, dtype=np.int32), names, values),
    }
    if topic is not None:
        columns["topic"] = pa.array([topic]).take(pa.array(np.zeros(row_count, np.int32)))
    return pa.RecordBatch.from_pydict(columns)
