"""Records of batches to Arrow columns and back (data plane): by the extension where it is, else by `batches_python`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from rmq_store.bridge.record_batches.batches_python import (
    BrokenRecords,
    Region,
    Row,
    read_rows,
    write_rows,
)
from rmq_store.bridge.record_batches.schema import HEADERS, RECORDS_SCHEMA
from rmq_store.format.bytes import native
from rmq_store.format.bytes.native import Bytes, Int32, Int64, Texts

# Offsets of no cells.
_NOTHING = np.zeros(1, np.int32)


class Written(NamedTuple):
    """Rows as records: those before row `behind`, their bytes, their largest timestamp. If the first row has no room,
    `behind` is its number and `needed_bytes` what it takes.
    """

    behind: int
    records: memoryview
    max_timestamp_ms: int
    needed_bytes: int


def read_records(data: memoryview | bytes, regions: list[Region], from_offset: int) -> pa.RecordBatch:
    """The records of the regions with an offset from `from_offset` on (RECORDS_SCHEMA).

    Raises:
        BrokenRecords: some region has another number of records, or something that is none.
    """
    if native.LOADED:
        return _read_natively(data, regions, from_offset)
    return rows_of(read_rows(memoryview(data), regions, from_offset))


def rows_of(records: Iterable[Row]) -> pa.RecordBatch:
    """The same columns of records that are Python objects."""
    columns = list(zip(*records, strict=True)) or [()] * len(RECORDS_SCHEMA)
    plain = zip(columns[:-1], RECORDS_SCHEMA.types[:-1], strict=True)
    arrays = [pa.array(column, arrow_type) for column, arrow_type in plain]
    headers = [[{"name": name, "value": value} for name, value in pairs] for pairs in columns[-1]]
    return pa.RecordBatch.from_arrays([*arrays, pa.array(headers, HEADERS)], schema=RECORDS_SCHEMA)


class _Column:
    """Buffers of a binary column with room for `count` cells of so many bytes in all; null until they are filled."""

    def __init__(self, count: int, size: int) -> None:
        self.count = count
        # Arrow's memory pool keeps large pieces for the next batch; numpy's would come from the kernel, page by page.
        self.offsets, self.data = pa.allocate_buffer(4 * (count + 1)), pa.allocate_buffer(size)
        self.bits = np.zeros((count + 7) // 8, np.uint8)

    def buffers(self) -> tuple[Int32, Bytes, Bytes]:
        return np.frombuffer(self.offsets, np.int32), np.frombuffer(self.data, np.uint8), self.bits

    def array(self, null_count: int) -> pa.Array:
        bits = pa.py_buffer(self.bits) if null_count else None
        return pa.Array.from_buffers(pa.binary(), self.count, [bits, self.offsets, self.data], null_count)


def _read_natively(data: memoryview | bytes, regions: list[Region], from_offset: int) -> pa.RecordBatch:
    places = np.array(regions, np.int64).reshape(-1)
    totals = np.empty(6, np.int64)
    broken = native.functions.measure_records(data, places, from_offset, totals)
    if broken is not None:
        raise BrokenRecords(*broken)
    rows, key_bytes, value_bytes, headers, name_bytes, header_value_bytes = totals.tolist()
    offsets, timestamps, types = np.empty(rows, np.int64), np.empty(rows, np.int64), np.empty(rows, np.int8)
    header_offsets = np.empty(rows + 1, np.int32)
    keys, values = _Column(rows, key_bytes), _Column(rows, value_bytes)
    names, header_values = _Column(headers, name_bytes), _Column(headers, header_value_bytes)
    null_keys, null_values, null_header_values = native.functions.read_records(
        data, places, from_offset, offsets, timestamps, types.view(np.uint8), keys.buffers(), values.buffers(),
        header_offsets, (*names.buffers()[:2], None), header_values.buffers(),
    )  # fmt: skip
    cells = [names.array(0), header_values.array(null_header_values)]
    pairs = pa.StructArray.from_arrays(cells, fields=list(HEADERS.value_type))
    lists = pa.Array.from_buffers(HEADERS, rows, [None, pa.py_buffer(header_offsets)], 0, children=[pairs])
    numbers = [pa.array(offsets), pa.array(timestamps), pa.array(types)]
    arrays = [*numbers, keys.array(null_keys), values.array(null_values), lists]
    return pa.RecordBatch.from_arrays(arrays, schema=RECORDS_SCHEMA)


class RecordWriter:
    """Writes rows (RECORDS_SCHEMA) as records of batches."""

    def __init__(self, rows: pa.RecordBatch) -> None:
        self._rows = rows
        self._columns = _columns_of(rows) if native.LOADED else None
        # As many as all of the rows may need: offsets and numbers of a row take more in Arrow's columns than half of
        # the most that they take in a record.
        self._space: Bytes = np.empty(2 * rows.nbytes + 64, np.uint8)

    def write(self, first: int, room: int) -> Written:
        """The rows from `first` on that have room in so many bytes, as records of a batch that begins with this row.
        The bytes are good until the next call.
        """
        if self._columns is None:
            behind, records, newest, needed = write_rows(self._rows, first, room)
            return Written(behind, memoryview(records), newest, needed if behind == first else 0)
        behind, size, newest = native.functions.write_records(self._columns, first, self._space[:room])
        if behind == first:
            return Written(behind, memoryview(b""), newest, size)
        return Written(behind, self._space[:size].data, newest, 0)


def _columns_of(rows: pa.RecordBatch) -> tuple[Int64, Texts, Texts, Int32, Texts, Texts]:
    headers = rows.column("headers")
    header_offsets = headers.offsets.to_numpy() if len(rows) else np.zeros(1, np.int32)
    pairs = headers.values
    return (
        rows.column("timestampMs").to_numpy(),
        _texts_of(rows.column("key")),
        _texts_of(rows.column("value")),
        header_offsets,
        _texts_of(pairs.field("name")),
        _texts_of(pairs.field("value")),
    )


def _texts_of(values: pa.Array) -> Texts:
    validity, offsets, data = values.buffers()
    places = _NOTHING
    if len(values):
        places = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
    return places, data if data is not None else b"", validity if values.null_count else None, values.offset
