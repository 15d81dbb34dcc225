"""Messages that a broker left: timers of its wheel, which only a broker delivers, and half messages of transactions,
which a served store and `rmq transactions resume` go on with. This module changes none of them. They lie in topics as
other messages do:

    rmq_sys_wheel_timer           due at TIMER_OUT_MS. Due before `lastReadTimeMs` of config/timercheck: delivered. A
                                  record with TIMER_DEL_UNIQKEY cancels the timer of that id and time. One that is far
                                  ahead is put in again (TIMER_ROLL_TIMES) from time to time: its last record counts.
    RMQ_SYS_TRANS_HALF_TOPIC      waits for its producer's decision, but for those below the offset of CID_RMQ_SYS_TRANS
                                  and those whose queue offsets stand in a record with tag "d" of
                                  RMQ_SYS_TRANS_OP_HALF_TOPIC ("12,13,")

Sources: TimerMessageStore.java, TimerCheckpoint.java, TransactionalMessageServiceImpl.java, TransactionalMessageUtil.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from rmq_store.broker.metadata.offsets import OffsetTable
from rmq_store.broker.read.queues import Queues
from rmq_store.broker.read.read_request import ReadRequest
from rmq_store.broker.rules.input_rows import map_columns
from rmq_store.errors import CorruptConfigError, StoreFailedError
from rmq_store.files import durable
from rmq_store.format.properties import property_string as names
from rmq_store.format.tables.schema import TIMESTAMP_TYPE
from rmq_store.format.text.names import HALF_TOPIC, OP_HALF_TOPIC, TIMER_TOPIC
from rmq_store.lazy.arrow_compute import pc

TIMER, HALF = "timer", "half message"

BROKER_BACKLOG_SCHEMA: Final[pa.Schema] = pa.schema([
    ("kind", pa.string()),
    ("topic", pa.string()),
    ("queueId", pa.int32()),
    ("msgId", pa.string()),
    ("tags", pa.string()),
    ("keys", pa.string()),
    ("storeTimestamp", TIMESTAMP_TYPE),
    ("dueTimestamp", TIMESTAMP_TYPE),
    ("producerGroup", pa.string()),
    ("checkTimes", pa.int32()),
    ("commitLogOffset", pa.int64()),
])  # fmt: skip
"""`kind`: TIMER or HALF. `topic` and `queueId`: the target. Only timers have a `dueTimestamp`; only half messages have
a `producerGroup` and `checkTimes` (number of times that a broker has asked the producer). Null otherwise.
"""

_TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"
_TIMER_CHECKPOINT = "config/timercheck"
_REMOVED_TAG = "d"
_COLUMNS = ("queueOffset", "msgId", "tags", "keys", "properties", "storeTimestamp", "commitLogOffset")
_TIME_MAX_MS = 253_402_300_799_999  # the year 9999
_NUMBER, _SMALL = "^[0-9]{1,18}$", "^[0-9]{1,9}$"


class _Cancelled(NamedTuple):
    """Cancelled timers as "due time, id" and "due time, topic+id"; and for a timer that was put in again, by "due time,
    id", the commit-log offset of its last record.
    """

    keys: pa.Array
    again: pa.Array
    places: np.ndarray


class BrokerBacklog:
    """Messages of one open store that wait for a broker."""

    def __init__(self, root: Path, queues: Queues, offsets: OffsetTable) -> None:
        self._root = root
        self._queues = queues
        self._offsets = offsets

    def rows(self) -> Iterator[pa.RecordBatch]:
        """The messages in the order of the log, timers first: BROKER_BACKLOG_SCHEMA. Raises as `Store.read`."""
        yield from self._timers()
        yield from self._half_messages()

    def _read(self, topic: str, columns: Sequence[str], first: dict[int, int]) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The messages of each queue of a topic, from an offset on."""
        for queue_id in self._queues.queue_ids(topic):
            low, high = self._queues.range(topic, queue_id)
            start = max(low, first.get(queue_id, 0))
            for batch in self._queues.read(ReadRequest(topic, queue_id, start, high, columns, raw_body=True)):
                yield queue_id, batch

    def _timers(self) -> Iterator[pa.RecordBatch]:
        done_ms = self._timers_done_ms()
        cancelled = self._cancelled()
        for _, batch in self._read(TIMER_TOPIC, _COLUMNS, {}):
            wanted = map_columns(batch.column("properties"))
            due = _numbers(wanted.get(names.TIMER_OUT_MS), batch.num_rows)
            topic = _texts(wanted.get(names.REAL_TOPIC), batch.num_rows)
            keys, named = _timer_keys(due, batch.column("msgId"), topic)
            stays = due.is_valid().to_numpy(zero_copy_only=False) & topic.is_valid().to_numpy(zero_copy_only=False)
            stays &= due.fill_null(0).to_numpy() >= done_ms
            stays &= ~_texts(wanted.get(names.TIMER_DEL_UNIQUE_KEY), batch.num_rows).is_valid().to_numpy(
                zero_copy_only=False
            )
            for column in (keys, named):
                stays &= ~pc.is_in(column, cancelled.keys).to_numpy(zero_copy_only=False)
            # Of a timer that was put in again only the last record waits.
            at = pc.index_in(keys, cancelled.again).fill_null(-1).to_numpy(zero_copy_only=False)
            last = np.append(cancelled.places, -1)[at]
            stays &= (at < 0) | (last == batch.column("commitLogOffset").to_numpy())
            yield from _rows(TIMER, batch, wanted, topic, due, stays)

    def _cancelled(self) -> _Cancelled:
        cancelled: list[pa.Array] = [pa.array([], pa.string())]
        again: dict[str, int] = {}
        for _, batch in self._read(TIMER_TOPIC, ("msgId", "properties", "commitLogOffset"), {}):
            wanted = map_columns(batch.column("properties"))
            due = _numbers(wanted.get(names.TIMER_OUT_MS), batch.num_rows)
            if names.TIMER_DEL_UNIQUE_KEY in wanted:
                cancelled.append(_joined(due, wanted[names.TIMER_DEL_UNIQUE_KEY]).drop_null())
            if names.TIMER_ROLL_TIMES in wanted:
                rolled = wanted[names.TIMER_ROLL_TIMES].is_valid()
                keys = _joined(due, batch.column("msgId")).filter(rolled)
                places = batch.column("commitLogOffset").filter(rolled)
                again.update(zip(keys.to_pylist(), places.to_pylist(), strict=True))
        known = [key for key in again if key is not None]
        last = np.array([again[key] for key in known], np.int64)
        return _Cancelled(pa.concat_arrays(cancelled), pa.array(known, pa.string()), last)

    def _timers_done_ms(self) -> int:
        """The time (ms) before which all due timers were delivered; 0: unknown."""
        try:
            content = durable.read_limited(self._root / _TIMER_CHECKPOINT, 1 << 16)
        except (FileNotFoundError, CorruptConfigError, StoreFailedError):
            return 0
        return int(struct.unpack_from(">q", content)[0]) if len(content) >= struct.calcsize(">q") else 0

    def _half_messages(self) -> Iterator[pa.RecordBatch]:
        done = self._offsets.committed(_TRANSACTION_GROUP)
        first = {queue_id: offset for (topic, queue_id), offset in done.items() if topic == HALF_TOPIC}
        decided = self._decided()
        for queue_id, batch in self._read(HALF_TOPIC, _COLUMNS, first):
            wanted = map_columns(batch.column("properties"))
            topic = _texts(wanted.get(names.REAL_TOPIC), batch.num_rows)
            offsets = batch.column("queueOffset").to_numpy()
            stays = topic.is_valid().to_numpy(zero_copy_only=False)
            stays &= ~np.isin(offsets, decided.get(queue_id, np.empty(0, np.int64)))
            yield from _rows(HALF, batch, wanted, topic, pa.nulls(batch.num_rows, pa.int64()), stays)

    def _decided(self) -> dict[int, np.ndarray]:
        """The queue offsets of half messages that were committed or rolled back, by queue."""
        found: dict[int, list[np.ndarray]] = {}
        for queue_id, batch in self._read(OP_HALF_TOPIC, ("tags", "body"), {}):
            bodies = batch.column("body").filter(pc.equal(batch.column("tags"), _REMOVED_TAG).fill_null(False))
            texts = pc.cast(bodies, pa.string(), safe=False).filter(pc.match_substring_regex(bodies, "^[0-9, ]+$"))
            numbers = pc.split_pattern(texts, ",").flatten()
            numbers = pc.utf8_trim_whitespace(numbers)
            numbers = numbers.filter(pc.match_substring_regex(numbers, _NUMBER)).cast(pa.int64())
            found.setdefault(queue_id, []).append(numbers.to_numpy(zero_copy_only=False))
        return {queue_id: np.concatenate(parts) for queue_id, parts in found.items()}


def _rows(
    kind: str,
    batch: pa.RecordBatch,
    wanted: dict[str, pa.Array],
    topic: pa.Array,
    due_ms: pa.Array,
    stays: np.ndarray,
) -> Iterator[pa.RecordBatch]:
    count = batch.num_rows
    is_half = kind == HALF
    columns = [
        pa.array([kind], pa.string()).take(pa.array(np.zeros(count, np.int64))),
        topic,
        _numbers(wanted.get(names.REAL_QUEUE_ID), count, _SMALL).cast(pa.int32()),
        batch.column("msgId"), batch.column("tags"), batch.column("keys"), batch.column("storeTimestamp"),
        pc.multiply(pc.min_element_wise(due_ms, _TIME_MAX_MS, skip_nulls=False), 1000).view(TIMESTAMP_TYPE),
        _texts(wanted.get(names.PRODUCER_GROUP) if is_half else None, count),
        _numbers(wanted.get(names.TRANSACTION_CHECK_TIMES) if is_half else None, count, _SMALL).cast(pa.int32()),
        batch.column("commitLogOffset"),
    ]  # fmt: skip
    if is_half:
        columns[9] = columns[9].fill_null(0)
    rows = pa.RecordBatch.from_arrays(columns, schema=BROKER_BACKLOG_SCHEMA).filter(pa.array(stays))
    if rows.num_rows:
        yield rows


def _texts(column: pa.Array | None, count: int) -> pa.Array:
    return pa.nulls(count, pa.string()) if column is None else column


def _numbers(column: pa.Array | None, count: int, pattern: str = _NUMBER) -> pa.Int64Array:
    """(n,) int64; null where there is no such number."""
    if column is None:
        return pa.nulls(count, pa.int64())
    return pc.if_else(pc.match_substring_regex(column, pattern), column, None).cast(pa.int64())


def _joined(due_ms: pa.Int64Array, texts: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(due_ms.cast(pa.string()), texts, " ")


def _timer_keys(due_ms: pa.Int64Array, ids: pa.Array, topics: pa.Array) -> tuple[pa.Array, pa.Array]:
    """The names of timers in a record with TIMER_DEL_UNIQKEY: due time and id; due time, topic and id."""
    return _joined(due_ms, ids), _joined(due_ms, pc.binary_join_element_wise(topics, ids, "+"))
