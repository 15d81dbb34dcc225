"""A window of a queue as records for Kafka."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

import numpy as np
import pyarrow as pa

from rmq_store.bridge.positions.store_windows import QueueWindow
from rmq_store.bridge.record_batches.schema import RECORDS_SCHEMA
from rmq_store.bridge.records.origin import froms
from rmq_store.bridge.records.route import Route
from rmq_store.bridge.records.to_kafka import KafkaRules, to_kafka
from rmq_store.bridge.records.unmappable_record import letters_to_kafka
from rmq_store.format.properties.mirror_properties import MIRROR_FROM
from rmq_store.lazy.dataclasses import dataclass


@dataclass(slots=True)
class MappedWindow:
    """`parts` (RECORDS_SCHEMA) for the target partition, and dead letters. `older`: number of records that the target's
    retention deletes at once.
    """

    window: QueueWindow
    parts: list[pa.RecordBatch] = field(default_factory=list)
    letters: list[pa.RecordBatch] = field(default_factory=list)
    dropped_loops: int = 0
    older: int = 0


def map_window(
    window: QueueWindow, route: Route, rules: KafkaRules, refused: Mapping[int, str], max_letter_bytes: int
) -> MappedWindow:
    """Map a window. `refused`: by queue offset, the reason why Kafka refuses a message."""
    mapped = MappedWindow(window)
    for batch in window.batches:
        one = to_kafka(batch, route, rules)
        mapped.dropped_loops += one.dropped_loops
        mapped.older += one.older_than_retention
        rows = one.rows
        if refused:
            reasons = {row: refused[at] for row, at in enumerate(rows.column("offset").to_pylist()) if at in refused}
            letters = letters_to_kafka(rows, reasons, route, max_letter_bytes)
            # It may be the time that Kafka does not take.
            now = pa.array([rules.now_ms] * letters.num_rows, pa.int64())
            mapped.letters.append(letters.set_column(1, RECORDS_SCHEMA.field("timestampMs"), now))
            kept = np.ones(rows.num_rows, np.bool_)
            kept[list(reasons)] = False
            rows = rows.filter(pa.array(kept))
        if rows.num_rows:
            mapped.parts.append(rows)
        if one.letters.num_rows:
            mapped.letters.append(one.letters)
    if window.damaged:
        mapped.letters.append(_damaged_letters(window, route, rules.now_ms))
    return mapped


def _damaged_letters(window: QueueWindow, route: Route, now_ms: int) -> pa.RecordBatch:
    offsets = sorted(window.damaged)
    sources = froms(route, np.array(offsets, np.int64)).to_pylist()
    rows = pa.RecordBatch.from_pylist(
        [
            {"offset": offset, "timestampMs": now_ms, "timestampType": 0, "key": None, "value": None,
             "headers": [{"name": MIRROR_FROM.encode(), "value": source.encode()}]}
            for offset, source in zip(offsets, sources, strict=True)
        ],
        schema=RECORDS_SCHEMA,
    )  # fmt: skip
    return letters_to_kafka(rows, {row: window.damaged[at] for row, at in enumerate(offsets)}, route, 0)
