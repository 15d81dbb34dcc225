"""For tests of the Kafka bridge: records and messages in few words, and messages as a real store gives them back."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

from rmq_store import StagingArea, Store, StoreConfig
from rmq_store.bridge.record_batches.schema import RECORDS_SCHEMA
from rmq_store.bridge.records.entries import Entries
from rmq_store.bridge.records.origin import MARKS, record_marks
from rmq_store.bridge.records.route import Route
from rmq_store.bridge.records.to_kafka import KafkaRules, to_kafka
from rmq_store.bridge.records.to_rmq import RmqRules, to_rmq
from rmq_store.format.tables.schema import MESSAGE_SCHEMA

NOW_MS = 1_700_000_000_000
BORN_MS = NOW_MS - 60_000
RMQ_RULES = RmqRules("m", NOW_MS)
KAFKA_RULES = KafkaRules(NOW_MS)

_write_ids = itertools.count()

Headers = Iterable[tuple[bytes, bytes | None]]


def record(
    value: bytes | None = b"value",
    *,
    key: bytes | None = None,
    headers: Headers = (),
    offset: int = 0,
    time_ms: int = BORN_MS,
    time_type: int = 0,
) -> dict[str, Any]:
    """One row of RECORDS_SCHEMA."""
    pairs = [{"name": name, "value": value} for name, value in headers]
    return {
        "offset": offset, "timestampMs": time_ms, "timestampType": time_type,
        "key": key, "value": value, "headers": pairs,
    }  # fmt: skip


def records(*rows: dict[str, Any]) -> pa.RecordBatch:
    """Rows of RECORDS_SCHEMA; those without an offset of their own count up."""
    numbered = [{**row, "offset": row["offset"] or number} for number, row in enumerate(rows)]
    return pa.RecordBatch.from_pylist(numbered, schema=RECORDS_SCHEMA)


def into_kafka(route: Route) -> Route:
    """The way back of a route into a store: its target queue into a cluster named K2."""
    return Route(
        route.target_cluster,
        route.target_topic,
        route.target_partition,
        "K2",
        route.target_topic,
        route.target_partition,
    )


def users_headers(rows: pa.RecordBatch) -> list[list[tuple[bytes, bytes | None]]]:
    """The headers of each record without marks."""
    marks = {name.encode() for name in MARKS}
    return [
        [(pair["name"], pair["value"]) for pair in headers if pair["name"] not in marks]
        for headers in rows.column("headers").to_pylist()
    ]


def true_times(rows: pa.RecordBatch, route: Route) -> list[int]:
    """The time of each mirrored record: its own, or that of its mark."""
    headers = Entries.of_headers(rows.column("headers"))
    marks = record_marks(rows, headers, route.target_topic, route.target_partition)
    assert marks.fits.all()
    times = rows.column("timestampMs").to_pylist()
    return [
        mark if has_mark else time
        for time, mark, has_mark in zip(times, marks.times.tolist(), marks.has_time.tolist(), strict=True)
    ]


def new_store(path: Path, *, clock: Callable[[], int] | None = None, **settings: Any) -> Store:
    """A store with small files."""
    small = {"mapped_file_size_commit_log": 64 << 20, "max_hash_slot_num": 1000, "max_index_num": 10_000}
    return Store.open(path, create=True, config=StoreConfig(**{**small, **settings}), clock=clock)


def through_store(store: Store, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Rows of INPUT_SCHEMA, all of one topic and queue, appended and read again: MESSAGE_SCHEMA."""
    if rows.num_rows == 0:
        return pa.RecordBatch.from_pylist([], schema=MESSAGE_SCHEMA)
    topic, queue_id = rows.column("topic")[0].as_py(), rows.column("queueId")[0].as_py()
    if store.find_topic(topic) is None:
        store.create_topic(topic, 8)
    start = store.queue_range(topic, queue_id).max_offset
    name = f"write-{next(_write_ids)}"
    with StagingArea.for_task(store.path, name, 0, 0, keep_unique_key=True, use_queue_id=True) as area:
        area.write(rows)
        store.commit_staged([area.finish()], purpose="mirror")
    (read,) = (
        pa.Table.from_batches(store.read(topic, queue_id, start, start + rows.num_rows)).combine_chunks().to_batches()
    )
    return read


def stored_of(store: Store, rows: pa.RecordBatch, route: Route, rules: RmqRules = RMQ_RULES) -> pa.RecordBatch:
    """What a mirror makes of records, all of which it stores, as a reader of its target gets it."""
    mapped = to_rmq(rows, route, rules)
    assert (mapped.dropped_loops, mapped.letters.num_rows) == (0, 0)
    return through_store(store, mapped.rows)


def produced_of(rows: pa.RecordBatch, route: Route, rules: KafkaRules = KAFKA_RULES) -> pa.RecordBatch:
    """What a mirror makes of messages, all of which it produces."""
    mapped = to_kafka(rows, route, rules)
    assert (mapped.dropped_loops, mapped.letters.num_rows) == (0, 0)
    return mapped.rows


def changed(rows: pa.RecordBatch, **columns: list[Any]) -> pa.RecordBatch:
    """Rows with other values in some columns."""
    for name, values in columns.items():
        place = rows.schema.get_field_index(name)
        rows = rows.set_column(place, rows.schema.field(place), pa.array(values, rows.schema.field(place).type))
    return rows
