"""The Arrow schemas that messages travel in: as read from the log, and encoded for it.

MESSAGE_SCHEMA carries RocketMQ's own names (MessageExt.java, MessageQueue.java). `msgId` is UNIQ_KEY, else the offset
id. Messages of a 5.x Java client's batch have two UNIQ_KEYs, their own and then that of the batch. `msgId` is the first
one, because the second one is the same in the whole batch. `javaMsgId` is the last one, as getMsgId() of the Java
client shows; it is read only on request. `tags` and `keys` are null when absent; hosts are `1.2.3.4:10911` or
`[fe80::1]:10911`. Timestamps are in microseconds because Spark has no others; RocketMQ counts whole milliseconds.
"""

from __future__ import annotations

import functools
from typing import Final

import pyarrow as pa

PROPERTIES_TYPE: Final[pa.DataType] = pa.map_(pa.string(), pa.string())
TIMESTAMP_TYPE: Final[pa.DataType] = pa.timestamp("us", tz="UTC")

MESSAGE_SCHEMA: Final[pa.Schema] = pa.schema(
    [
        ("topic", pa.string()),
        ("queueId", pa.int32()),
        ("queueOffset", pa.int64()),
        ("msgId", pa.string()),
        ("body", pa.binary()),
        ("tags", pa.string()),
        ("keys", pa.string()),
        ("properties", PROPERTIES_TYPE),
        ("reconsumeTimes", pa.int32()),
        ("flag", pa.int32()),
        ("sysFlag", pa.int32()),
        ("bornTimestamp", TIMESTAMP_TYPE),
        ("bornHost", pa.string()),
        ("storeTimestamp", TIMESTAMP_TYPE),
        ("storeHost", pa.string()),
        ("commitLogOffset", pa.int64()),
        ("brokerName", pa.string()),
    ]
)


JAVA_MSG_ID: Final = "javaMsgId"
READABLE_SCHEMA: Final[pa.Schema] = MESSAGE_SCHEMA.append(pa.field(JAVA_MSG_ID, pa.string()))
"""All columns that a read can be asked for."""


@functools.lru_cache(maxsize=256)  # orders of columns, if somebody asks for very many
def message_schema(columns: tuple[str, ...]) -> pa.Schema:
    """READABLE_SCHEMA restricted to `columns`, in their order. KeyError."""
    return pa.schema([READABLE_SCHEMA.field(name) for name in columns])


# Columns that need the property string; a read without any of them does not touch it.
PROPERTY_COLUMNS: Final = frozenset(("msgId", "tags", "keys", "properties"))

# frame: the bytes of one frame, in which queueOffset, physicalOffset and storeTimestamp are still zero.
# crc: CRC-32 of that frame without its last 20 bytes, the reserved CRC property; 0 if there is none.
# tags_code: what the queue entry gets where delay_ms is 0; where delay_ms is above, the entry gets storeTimestamp +
# delay_ms, which only the append knows.
# key_hashes: what the index gets for the message, in the order of its entries.
ENCODED_SCHEMA: Final[pa.Schema] = pa.schema(
    [
        ("frame", pa.large_binary()),
        ("topic", pa.dictionary(pa.int32(), pa.string())),
        ("queue_id", pa.int32()),
        ("dispatchable", pa.bool_()),
        ("crc", pa.uint32()),
        ("tags_code", pa.int64()),
        ("delay_ms", pa.int64()),
        ("key_hashes", pa.list_(pa.int32())),
    ]
)

# copy_of: commit-log offset of the message that the frame is a copy of. given_row: the row of the task that named it.
STAGED_COPY_SCHEMA: Final[pa.Schema] = pa.schema([*ENCODED_SCHEMA, ("copy_of", pa.int64()), ("given_row", pa.int64())])
