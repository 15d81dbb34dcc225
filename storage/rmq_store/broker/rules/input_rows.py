"""Converts a caller's rows to their schema, or refuses them with an error that names row and column (data plane)."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager

import numpy as np
import pyarrow as pa

from rmq_store.errors import ResponseError, UsageError
from rmq_store.format.batches.input_columns import as_type

_ROW = re.compile(r"row (\d+)")


def check_columns(rows: pa.RecordBatch, schema: pa.Schema) -> None:
    """Refuse a value that is no batch, and columns that are not in `schema` or come twice.

    Raises:
        UsageError: names the column.
    """
    if not isinstance(rows, pa.RecordBatch):
        raise UsageError(f"a pyarrow RecordBatch is expected, got {type(rows).__name__}")
    unknown = [name for name in rows.schema.names if name not in schema.names]
    if unknown:
        raise UsageError(f"unknown column {unknown[0]!r}; known are {', '.join(schema.names)}")
    if len(set(rows.schema.names)) < rows.num_columns:
        raise UsageError(f"a column is there twice: {', '.join(rows.schema.names)}")


def as_schema(rows: pa.RecordBatch, schema: pa.Schema, needed: Collection[str], purpose: str) -> pa.RecordBatch:
    """The rows as a batch of `schema`; a column that is not `needed` may be missing, and is then null.

    Raises:
        UsageError: a column is missing (the error names its `purpose`), unknown, twice or of another type; a value that
            does not fit, or a null in a needed column; names row and column.
    """
    check_columns(rows, schema)
    columns = []
    for field in schema:
        if field.name not in rows.schema.names:
            if field.name in needed:
                raise UsageError(f"there is no column {field.name!r}: {purpose}")
            columns.append(pa.nulls(rows.num_rows, field.type))
            continue
        column = as_type(field.name, rows.column(field.name), field.type)
        if field.name in needed and column.null_count:
            raise UsageError(f"row {column.is_null().index(True).as_py()}: column {field.name!r} is null")
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


@contextmanager
def rows_from(first_row: int, partition_id: int | None = None) -> Iterator[None]:
    """For a `with` block that checks a batch which begins at `first_row` of the caller's rows. Errors that begin with a
    row of the batch name the caller's row instead, and the partition.
    """
    where = "" if partition_id is None else f"partition {partition_id}, "

    def renumbered(text: str) -> str:
        row = _ROW.match(text)
        return text if row is None else f"{where}row {int(row[1]) + first_row}{text[row.end() :]}"

    try:
        yield
    except UsageError as error:
        raise type(error)(renumbered(str(error))) from error
    except ResponseError as error:
        raise ResponseError(error.response_code, renumbered(error.remark)) from error


def map_columns(column: pa.MapArray) -> dict[str, pa.Array]:
    """The values of a map column of n rows by name: (n,) each, null in a row without the name. If a row has a name
    twice, the last value counts.
    """
    offsets = column.offsets.to_numpy()
    first, count = int(offsets[0]), int(offsets[-1] - offsets[0])
    keys = column.keys.slice(first, count).dictionary_encode()
    items = column.items.slice(first, count)
    rows = np.repeat(np.arange(len(column)), np.diff(offsets))
    codes = keys.indices.to_numpy()
    is_null = column.is_null().to_numpy(zero_copy_only=False)
    columns = {}
    for code, name in enumerate(keys.dictionary.to_pylist()):
        entries = np.flatnonzero(codes == code)
        places = np.full(len(column), -1, np.int64)
        places[rows[entries]] = entries
        columns[name] = items.take(pa.array(places, mask=is_null | (places < 0)))
    return columns
