"""Adds properties to messages that a mirror has mapped (data plane)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_store.bridge.records.to_rmq import MESSAGES_SCHEMA
from rmq_store.format.properties import property_string as names
from rmq_store.lazy.arrow_compute import pc

_COLUMNS = (("tags", names.TAGS), ("keys", names.KEYS), ("shardingKey", names.SHARDING_KEY))
_SEPARATORS_BYTES = 2

Int64 = npt.NDArray[np.int64]


def properties_bytes(rows: pa.RecordBatch) -> Int64:
    """Length of the property string of each of n messages (MESSAGES_SCHEMA), with columns of their own; int64 (n,)."""
    column = rows.column("properties")
    offsets, keys, items = _parts(column)
    lengths = pc.add(pc.binary_length(keys), pc.binary_length(items)).to_numpy(zero_copy_only=False)
    ends = np.append(0, np.cumsum(lengths.astype(np.int64) + _SEPARATORS_BYTES))
    total: Int64 = ends[offsets[1:]] - ends[offsets[:-1]]
    for name, title in _COLUMNS:
        own = pc.fill_null(pc.binary_length(rows.column(name)), 0).to_numpy(zero_copy_only=False).astype(np.int64)
        total = total + np.where(own > 0, own + len(title) + _SEPARATORS_BYTES, 0)
    return total


def with_properties(rows: pa.RecordBatch, added: Sequence[tuple[str, pa.StringArray]]) -> pa.RecordBatch:
    """The messages (MESSAGES_SCHEMA) with additional properties after their own; null adds none. Names must be new."""
    offsets, keys, items = _parts(rows.column("properties"))
    owners = [np.repeat(np.arange(rows.num_rows), np.diff(offsets))]
    all_keys, all_items = [keys], [items]
    for name, values in added:
        chosen = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))
        owners.append(chosen)
        all_keys.append(pa.array([name], pa.string()).take(pa.array(np.zeros(len(chosen), np.int32))))
        all_items.append(values.take(pa.array(chosen)))
    owner = np.concatenate(owners)
    order = pa.array(np.argsort(owner, kind="stable"))
    bounds = np.append(0, np.cumsum(np.bincount(owner, minlength=rows.num_rows))).astype(np.int32)
    column = pa.MapArray.from_arrays(
        pa.array(bounds), pa.concat_arrays(all_keys).take(order), pa.concat_arrays(all_items).take(order)
    )
    return rows.set_column(rows.schema.get_field_index("properties"), MESSAGES_SCHEMA.field("properties"), column)


def _parts(column: pa.MapArray) -> tuple[Int64, pa.StringArray, pa.StringArray]:
    """Offsets (n + 1,) that begin at 0, and the names and values that they point into."""
    assert not column.null_count
    offsets: Int64 = column.offsets.to_numpy().astype(np.int64)
    first, last = int(offsets[0]), int(offsets[-1])
    return offsets - first, column.keys[first:last], column.items[first:last]
