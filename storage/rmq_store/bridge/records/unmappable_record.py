"""Dead letters of a mirror: records that the other side cannot store, with the reason.

In RocketMQ, `%DLQ%mirror_<mirror>`: the body is the whole record as a record batch, which can be produced again as it
is. In Kafka, the dead-letter topic of the mirror: the record as it was mapped, with two headers more. Where that does
not fit either, the letter has the position and the reason only. The properties, and the headers:

    MIRROR_FROM     position of the record in its source, as in `origin`
    MIRROR_REASON   text
    MIRROR_LETTER   "record": all of it is here; "position": it must be read where it came from
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from rmq_store.bridge.record_batches import batches
from rmq_store.bridge.record_batches.schema import LOG_APPEND_TIME, RECORDS_SCHEMA
from rmq_store.bridge.records.entries import plain_texts
from rmq_store.bridge.records.origin import froms, unique_keys
from rmq_store.bridge.records.route import Route
from rmq_store.errors import RecordTooLargeError, UsageError
from rmq_store.format.properties import property_string as names
from rmq_store.format.properties.mirror_properties import (
    KAFKA_TIMESTAMP_TYPE,
    MIRROR_FROM,
    MIRROR_LETTER,
    MIRROR_PATH,
    MIRROR_REASON,
    MIRROR_TO,
)
from rmq_store.format.text.names import DLQ_PREFIX
from rmq_store.lazy.dataclasses import dataclass

if TYPE_CHECKING:
    from rmq_store.bridge.records.to_rmq import RmqRules

WHOLE_RECORD: Final = "record"
POSITION_ONLY: Final = "position"

KAFKA_RECORD_BYTES_BESIDE: Final = 100
"""Of a record in a batch of its own, at most: all but key, value and headers."""

_HEADER_BYTES_BESIDE = 10
_KEYS_BYTES_MAX = 128
_MARKS = tuple(name.encode() for name in (MIRROR_FROM, MIRROR_PATH, MIRROR_TO))


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter. `source`: MIRROR_FROM. `record`: one row of RECORDS_SCHEMA with the offset in its source, or None.
    """

    source: str
    reason: str
    record: pa.RecordBatch | None


def letter_topic(mirror: str) -> str:
    """The dead-letter topic of a mirror into RocketMQ."""
    return f"{DLQ_PREFIX}mirror_{mirror}"


def letters_to_rmq(rows: pa.RecordBatch, reasons: Mapping[int, str], route: Route, rules: RmqRules) -> pa.RecordBatch:
    """Letters (to_rmq.MESSAGES_SCHEMA) for the records (RECORDS_SCHEMA) that have a reason, in their order."""
    from rmq_store.bridge.records.to_rmq import MESSAGES_SCHEMA

    chosen = sorted(reasons)
    offsets = rows.column("offset").to_numpy()[chosen]
    types = rows.column("timestampType").to_numpy()[chosen].tolist()
    sources, ids = froms(route, offsets).to_pylist(), unique_keys(route, offsets).to_pylist()
    max_bytes = rules.max_body_bytes if rules.max_letter_bytes is None else rules.max_letter_bytes
    bodies = [_batch(rows.slice(row, 1), max_bytes) for row in chosen]
    properties = []
    for row, source, unique_key, body, timestamp_type in zip(chosen, sources, ids, bodies, types, strict=True):
        own = {
            names.UNIQUE_KEY: unique_key,
            MIRROR_FROM: source,
            MIRROR_REASON: reasons[row],
            MIRROR_LETTER: POSITION_ONLY if body is None else WHOLE_RECORD,
        }
        if timestamp_type == LOG_APPEND_TIME:
            own[KAFKA_TIMESTAMP_TYPE] = "1"
        properties.append(list(own.items()))
    count = len(chosen)
    columns = {
        "topic": [letter_topic(rules.mirror)] * count,
        "queueId": [0] * count,
        "body": [body or b"" for body in bodies],
        "tags": [None] * count,
        "keys": [_shown_key(rows.column("key")[row]) for row in chosen],
        "shardingKey": [None] * count,
        "flag": [0] * count,
        "bornTimestamp": [rules.now_ms * 1000] * count,
        "properties": properties,
    }
    return pa.RecordBatch.from_pydict(columns, schema=MESSAGES_SCHEMA)


def read_letters(messages: pa.RecordBatch) -> list[Letter]:
    """Letters of rows of a dead-letter topic: columns `body` and `properties` of MESSAGE_SCHEMA.

    Raises:
        UsageError: a message is no letter of a mirror.
    """
    letters = []
    for body, pairs in zip(messages.column("body").to_pylist(), messages.column("properties").to_pylist(), strict=True):
        own = dict(pairs)
        kind, source = own.get(MIRROR_LETTER), own.get(MIRROR_FROM)
        if source is None or kind not in (WHOLE_RECORD, POSITION_ONLY):
            raise UsageError("this message is no dead letter of a mirror: MIRROR_FROM or MIRROR_LETTER is missing")
        record = None
        if kind == WHOLE_RECORD:
            record = _record(body, int(source.split(" ")[3]), int(own.get(KAFKA_TIMESTAMP_TYPE, "0")))
        letters.append(Letter(source, own.get(MIRROR_REASON, ""), record))
    return letters


def too_large_letter(row: pa.RecordBatch, reason: str, route: Route, max_bytes: int) -> pa.RecordBatch:
    """The letter (RECORDS_SCHEMA) for one mapped record that is too large for its topic. `max_bytes`: the largest
    record batch of the dead-letter topic.
    """
    return letters_to_kafka(row, {0: reason}, route, max_bytes)


def letters_to_kafka(rows: pa.RecordBatch, reasons: Mapping[int, str], route: Route, max_bytes: int) -> pa.RecordBatch:
    """Letters (RECORDS_SCHEMA) for the mapped records that have a reason, in their order."""
    letters = []
    for row in sorted(reasons):
        (record,) = rows.slice(row, 1).to_pylist()
        headers = [(pair["name"], pair["value"]) for pair in record["headers"]]
        size = len(record["key"] or b"") + len(record["value"] or b"") + KAFKA_RECORD_BYTES_BESIDE
        size += sum(len(name) + len(value or b"") + _HEADER_BYTES_BESIDE for name, value in headers)
        is_whole = size + len(reasons[row].encode()) <= max_bytes
        if not is_whole:
            headers = [pair for pair in headers if pair[0] in _MARKS]
            record |= {"key": None, "value": None}
        headers += [
            (MIRROR_REASON.encode(), reasons[row].encode()),
            (MIRROR_LETTER.encode(), (WHOLE_RECORD if is_whole else POSITION_ONLY).encode()),
        ]
        record["headers"] = [{"name": name, "value": value} for name, value in headers]
        letters.append(record)
    return pa.RecordBatch.from_pylist(letters, schema=RECORDS_SCHEMA)


def _batch(row: pa.RecordBatch, max_bytes: int) -> bytes | None:
    """A record batch, or None: it is larger than that."""
    try:
        (batch,) = batches.encode(row, "none", max_bytes)
    except RecordTooLargeError:
        return None
    return bytes(batch.data)


def _record(body: bytes, offset: int, timestamp_type: int) -> pa.RecordBatch:
    rows = batches.decode(body, 0, None).rows
    if rows.num_rows != 1:
        raise UsageError(f"a dead letter of a mirror holds one record, not {rows.num_rows}")
    rows = rows.set_column(0, RECORDS_SCHEMA.field("offset"), pa.array([offset]))
    return rows.set_column(2, RECORDS_SCHEMA.field("timestampType"), pa.array(np.array([timestamp_type], np.int8)))


def _shown_key(key: pa.BinaryScalar) -> str | None:
    raw = key.as_py()
    is_plain = raw is not None and bool(plain_texts(pa.array([raw], pa.binary()))[0])
    return raw.decode() if is_plain and len(raw) <= _KEYS_BYTES_MAX and b" " not in raw else None
