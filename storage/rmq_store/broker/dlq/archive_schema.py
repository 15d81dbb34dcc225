"""A dead letter as a row, in its topic and in an archive, and the columns of it that come from properties: where the
message was consumed, and why it failed. Their writers are `failure` and `send_back`; docs/operations.md, Dead letters.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from rmq_store.broker.rules import failure
from rmq_store.format.properties import property_string
from rmq_store.format.tables.schema import MESSAGE_SCHEMA, TIMESTAMP_TYPE
from rmq_store.lazy.arrow_compute import pc

DEAD_LETTER_SCHEMA: Final = pa.schema(
    [
        *MESSAGE_SCHEMA,
        ("originTopic", pa.string()),
        ("originQueueId", pa.int32()),
        ("originQueueOffset", pa.int64()),
        ("originMsgId", pa.string()),
        ("errorClass", pa.string()),
        ("errorMessage", pa.string()),
        ("stackHash", pa.string()),
        ("firstFailureTime", TIMESTAMP_TYPE),
        ("lastFailureTime", TIMESTAMP_TYPE),
        ("redriven", pa.bool_()),
    ]
)
"""MESSAGE_SCHEMA, failure reasons and origin as in `pyspark_rmq` (null if the properties are missing), and whether the
message was redriven.
"""

ARCHIVE_SCHEMA: Final = pa.schema([*DEAD_LETTER_SCHEMA, ("damage", pa.string()), ("frame", pa.binary())])
"""A row of an archive. `redriven`: redriven before it was archived; null if that is unknown. `frame`: the bytes of the
record in the log. A `body` that could not be inflated is as it lies there, with the COMPRESSED bit in `sysFlag`.
`damage`: null, or the defect of the record; then most columns are null, and it is not restored.
"""

# Until the year 9999, which is where Python's times end. Longer numbers are none of ours.
_TIME_MS_MAX = 253_402_300_799_999
_DIGITS_MAX = {pa.int32(): 9, pa.int64(): 18}


def columns_of_properties(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    """The columns of DEAD_LETTER_SCHEMA that come from properties, null if the property is missing or unreadable."""
    found = batch.column("properties")
    return {
        "originTopic": pc.coalesce(_text(found, failure.ORIGIN_TOPIC), _text(found, property_string.RETRY_TOPIC)),
        "originQueueId": _number(found, failure.ORIGIN_QUEUE_ID, pa.int32()),
        "originQueueOffset": _number(found, failure.ORIGIN_QUEUE_OFFSET, pa.int64()),
        "originMsgId": _text(found, property_string.ORIGIN_MESSAGE_ID),
        "errorClass": _text(found, failure.ERROR_CLASS),
        "errorMessage": _text(found, failure.ERROR_MESSAGE),
        "stackHash": _text(found, failure.STACK_HASH),
        "firstFailureTime": _time(found, failure.FIRST_FAILURE_MS),
        "lastFailureTime": _time(found, failure.LAST_FAILURE_MS),
    }


def _text(found: pa.Array, name: str) -> pa.Array:
    return pc.map_lookup(found, pa.scalar(name), "first")


def _number(found: pa.Array, name: str, kind: pa.DataType) -> pa.Array:
    text = _text(found, name)
    good = pc.match_substring_regex(text, f"^[0-9]{{1,{_DIGITS_MAX[kind]}}}$")
    return pc.if_else(good, text, pa.scalar(None, pa.string())).cast(kind)


def _time(found: pa.Array, name: str) -> pa.Array:
    number = _number(found, name, pa.int64())
    in_range = pc.less_equal(number, _TIME_MS_MAX)
    return pc.multiply(pc.if_else(in_range, number, pa.scalar(None, pa.int64())), 1000).cast(TIMESTAMP_TYPE)
