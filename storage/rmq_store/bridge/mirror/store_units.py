"""Units of a mirror into a store: the limits of the store's messages, and where fetched records are cut. Data plane."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow as pa

from rmq_store.bridge.record_batches.schema import CREATE_TIME, NO_TIMESTAMP_MS, RECORDS_SCHEMA
from rmq_store.bridge.records.route import Route
from rmq_store.bridge.records.to_rmq import MappedToRmq, RmqRules
from rmq_store.bridge.records.unmappable_record import letters_to_rmq
from rmq_store.broker.rules.send_back import properties_bytes_max
from rmq_store.broker.store.store import Store
from rmq_store.lazy.arrow_compute import pc
from rmq_store.log.core.layout import BLANK_BYTES

UNIT_BYTES: Final = 16 << 20
"""Size of the records of one append, at most; a larger record is an append of its own."""

_ROW_BYTES: Final = 64
# Of the frame of a dead letter, at most: its fields and properties.
_LETTER_BYTES_BESIDE: Final = 4096
# No record batch is as small: the letter of a batch that cannot be decoded holds only its position.
_NO_RECORD_BYTES: Final = 62


def rmq_rules(store: Store, mirror: str) -> RmqRules:
    """The limits of the store's messages, and its time."""
    config = store.config
    return RmqRules(
        mirror,
        store.clock(),
        max_body_bytes=config.max_message_size,
        max_properties_bytes=properties_bytes_max(config.enabled_append_prop_crc),
        max_frame_bytes=config.mapped_file_size_commit_log - BLANK_BYTES,
    )


def letter_bytes_max(store: Store) -> int:
    """The largest body of a dead letter that the store takes."""
    config = store.config
    return min(config.max_message_size, config.mapped_file_size_commit_log - BLANK_BYTES - _LETTER_BYTES_BESIDE)


def position_rows(offset: int) -> pa.RecordBatch:
    """A row (RECORDS_SCHEMA) that holds only the offset of a record batch that cannot be decoded."""
    row: dict[str, object] = {
        "offset": offset, "timestampMs": NO_TIMESTAMP_MS, "timestampType": CREATE_TIME, "key": None, "value": None,
        "headers": [],
    }  # fmt: skip
    return pa.RecordBatch.from_pylist([row], RECORDS_SCHEMA)


def batch_letter(rows: pa.RecordBatch, route: Route, rules: RmqRules, reason: str) -> MappedToRmq:
    """`position_rows` as a dead letter with the reason."""
    letters = letters_to_rmq(rows, {0: reason}, route, replace(rules, max_letter_bytes=_NO_RECORD_BYTES))
    return MappedToRmq(letters.slice(0, 0), 0, letters)


def unit_ends(rows: pa.RecordBatch, rows_max: int) -> Iterator[int]:
    """The ends of the units of `rows` (RECORDS_SCHEMA), as row numbers. A unit has at most `rows_max` rows, and at most
    UNIT_BYTES bytes unless it is a single row.
    """
    sizes = np.full(rows.num_rows, _ROW_BYTES, np.int64)
    for name in ("key", "value"):
        sizes += pc.binary_length(rows.column(name)).fill_null(0).to_numpy()
    headers = rows.column("headers")
    ends = np.cumsum(sizes)
    per_row = headers.nbytes // max(rows.num_rows, 1)
    ends += np.arange(1, rows.num_rows + 1) * per_row
    start, before = 0, 0
    while start < rows.num_rows:
        end = int(np.searchsorted(ends, before + UNIT_BYTES, side="right"))
        start = min(max(end, start + 1), start + rows_max, rows.num_rows)
        before = int(ends[start - 1])
        yield start
