"""Removes headers of many Kafka records (RECORDS_SCHEMA) by name, and adds headers (data plane)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_store.bridge.record_batches.schema import HEADERS, RECORDS_SCHEMA
from rmq_store.bridge.records.origin import MARKS
from rmq_store.lazy.arrow_compute import pc

Int64 = npt.NDArray[np.int64]

_MARKS = tuple(name.encode() for name in MARKS)


def without_marks(records: pa.RecordBatch) -> pa.RecordBatch:
    """The records without the marks of a mirror: a record that goes back to Kafka is a new one, not a copy."""
    return without_headers(records, lambda name: name in _MARKS)


def without_headers(records: pa.RecordBatch, is_unwanted: Callable[[bytes], bool]) -> pa.RecordBatch:
    """The records without the headers whose names are unwanted; the others keep their order."""
    column = records.column("headers")
    flat = column.flatten()
    encoded = flat.flatten()[0].dictionary_encode()
    stays = np.array([not is_unwanted(name) for name in encoded.dictionary.to_pylist()], np.bool_)
    codes = encoded.indices.to_numpy(zero_copy_only=False)
    kept = stays[codes] if len(codes) else np.zeros(0, np.bool_)
    if kept.all():
        return records
    return _with_column(records, parents(column)[kept], flat.filter(pa.array(kept)))


def with_header(records: pa.RecordBatch, name: bytes, values: pa.BinaryArray) -> pa.RecordBatch:
    """The records with one more header, after the others; a null adds none. `values` (n,)."""
    column = records.column("headers")
    chosen = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))
    new = pa.StructArray.from_arrays(
        [pa.array([name] * len(chosen), pa.binary()), values.take(pa.array(chosen))], fields=list(HEADERS.value_type)
    )
    owners = np.concatenate([parents(column), chosen])
    order = np.argsort(owners, kind="stable")
    return _with_column(records, owners[order], pa.concat_arrays([column.flatten(), new]).take(pa.array(order)))


def last_values(records: pa.RecordBatch, name: bytes) -> pa.BinaryArray:
    """The value of the last header with this name, (n,); null without one."""
    column = records.column("headers")
    names, values = column.flatten().flatten()
    places = np.flatnonzero(pc.equal(names, name).to_numpy(zero_copy_only=False).astype(np.bool_))
    chosen = np.full(records.num_rows, -1, np.int64)
    chosen[parents(column)[places]] = places  # of equal rows the last one stays
    return values.take(pa.array(chosen, mask=chosen < 0))


def parents(column: pa.ListArray) -> Int64:
    """The row to which each header belongs."""
    rows: Int64 = pc.list_parent_indices(column).to_numpy()
    return rows


def _with_column(records: pa.RecordBatch, owners: Int64, headers: pa.StructArray) -> pa.RecordBatch:
    counts = np.bincount(owners, minlength=records.num_rows)
    offsets = pa.array(np.append(0, np.cumsum(counts)).astype(np.int32))
    column = pa.ListArray.from_arrays(offsets, headers, type=HEADERS)
    return records.set_column(records.schema.get_field_index("headers"), RECORDS_SCHEMA.field("headers"), column)
