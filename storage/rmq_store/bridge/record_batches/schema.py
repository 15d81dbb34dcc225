"""Rows of Kafka records, as the mirrors move them: one Arrow batch per partition and fetch."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from rmq_store.lazy.dataclasses import dataclass

CREATE_TIME: Final = 0
LOG_APPEND_TIME: Final = 1
NO_TIMESTAMP_MS: Final = -1

HEADERS: Final = pa.list_(pa.struct([pa.field("name", pa.binary(), nullable=False), ("value", pa.binary())]))

RECORDS_SCHEMA: Final = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestampMs", pa.int64(), nullable=False),
        pa.field("timestampType", pa.int8(), nullable=False),
        ("key", pa.binary()),
        ("value", pa.binary()),
        pa.field("headers", HEADERS, nullable=False),
    ]
)
"""`offset` ascends, perhaps with gaps. `timestampMs` -1: none. `timestampType`: CREATE_TIME or LOG_APPEND_TIME. A
header's name is bytes: Kafka does not check that it is UTF-8. `offset` and `timestampType` say nothing when rows are
encoded.
"""


@dataclass(frozen=True, slots=True)
class Fetched:
    """The result of one fetch of a partition: `rows` (RECORDS_SCHEMA); the offset at which to continue, which is after
    transaction markers, aborted and compacted records, so it may move without rows; and the leader's epoch of the last
    batch, or -1.
    """

    rows: pa.RecordBatch
    next_offset: int
    leader_epoch: int
