"""The rules of `delay` for the rows of a batch (data plane). Each row is stored like a single message."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_store.broker.rules import timer
from rmq_store.broker.rules.delay import DelayRules, delay_level_of
from rmq_store.errors import UsageError
from rmq_store.format.bytes.gather import Bytes, value_bytes
from rmq_store.format.properties import property_string as names
from rmq_store.format.properties.property_encoder import MapEntries, refusal
from rmq_store.format.text.names import PYRMQ_TIMER_TOPIC, SCHEDULE_TOPIC
from rmq_store.lazy.arrow_compute import pc
from rmq_store.lazy.dataclasses import dataclass

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

# Properties that say whether a row waits.
_COUNTED = (names.DELAY_TIME_LEVEL, *timer.TIMER_PROPERTIES, names.TIMER_OUT_MS, names.TIMER_DEL_UNIQUE_KEY)
# Each of them has one of these in it.
_PARTS = (b"DELAY", b"TIMER_")
assert all(any(part in name.encode() for part in _PARTS) for name in _COUNTED)
_PART_BYTES_MAX = max(map(len, _PARTS))
_NO_LEVEL = -(1 << 40)
_MICROSECONDS_PER_MS = 1000
# Whatever is farther from now is refused, or has passed; the product with a factor of 1000 fits an int64.
_FAR = 10**15


@dataclass(frozen=True, slots=True)
class DelayedRows:
    """Rows of a batch with delays: the input of `encode_batch`, and the values that complete its result.

    `batch` is the given one with other topics, and further columns that become properties; `queue_ids` (n,) belong to
    its topics. `delay_ms` (n,); `due_ms` (n,), 0 for rows that wait for no absolute time.
    """

    batch: pa.RecordBatch
    queue_ids: Int32
    delay_ms: Int64
    due_ms: Int64

    def complete(self, encoded: pa.RecordBatch) -> pa.RecordBatch:
        """Fill in the columns of ENCODED_SCHEMA that say when a message is due."""
        tags_codes = np.where(self.due_ms > 0, self.due_ms, encoded.column("tags_code").to_numpy())
        columns = {"tags_code": pa.array(tags_codes), "delay_ms": pa.array(self.delay_ms)}
        arrays = [columns.get(name, array) for name, array in zip(encoded.schema.names, encoded.columns, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=encoded.schema)


def delay_rows(
    batch: pa.RecordBatch, queue_ids: Int32, now_ms: int, rules: DelayRules, dropped: frozenset[str]
) -> DelayedRows | None:
    """The destinations of all rows of a batch with INPUT_SCHEMA's columns; None if no row requests a delay.

    `queue_ids` (n,) are those of the rows' own topics. A value in the columns `delayLevel` and `deliverTimestamp` takes
    precedence over DELAY and TIMER_DELIVER_MS in the properties. Properties named in `dropped` are ignored.

    Raises:
        UsageError: as `destination_of`; or a delayLevel below 0. Names row and column.
    """
    wishes = _Wishes(batch, dropped)
    if not wishes.are_there:
        return None
    asked_levels, is_level_new = wishes.levels()
    level_max = len(rules.delay_levels_ms)
    levels = np.clip(asked_levels, 0, level_max)
    is_level_new |= asked_levels > level_max
    has_level = levels > 0
    due_ms = wishes.due_ms(~has_level, now_ms, rules.timer_delay_ms_max)
    waits = has_level | (due_ms > 0)

    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    topics = columns["topic"].dictionary_encode()
    columns["topic"] = _delayed_topics(topics, has_level, due_ms > 0)
    if "properties" in columns and bool(has_level.any()):
        columns["properties"] = _without_timers(columns["properties"], has_level)
    columns |= {
        names.DELAY_TIME_LEVEL: _texts(levels, is_level_new),
        names.REAL_TOPIC: pc.if_else(pa.array(waits), topics.cast(pa.string()), pa.scalar(None, pa.string())),
        names.REAL_QUEUE_ID: _texts(queue_ids, waits),
        names.TIMER_OUT_MS: _texts(due_ms, due_ms > 0),
    }
    if wishes.times_ms is not None:
        is_time_kept = wishes.times_ms.is_valid().to_numpy(zero_copy_only=False) & ~has_level
        columns[names.TIMER_DELIVER_MS] = _texts(wishes.times_ms.fill_null(0).to_numpy(), is_time_kept)
    columns = {name: column for name, column in columns.items() if name not in ("delayLevel", "deliverTimestamp")}

    delays_ms = np.array([0, *rules.delay_levels_ms], np.int64)[levels]
    queues = np.where(has_level, levels - 1, queue_ids)
    queues = np.where(due_ms > 0, timer.timer_queue_ids(due_ms - now_ms), queues)
    parked = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    return DelayedRows(parked, queues.astype(np.int32), delays_ms, due_ms)


class _Wishes:
    """The delays that the rows of a batch request. `times_ms`: the column deliverTimestamp, (n,) int64, or None."""

    def __init__(self, batch: pa.RecordBatch, dropped: frozenset[str]) -> None:
        self._count = batch.num_rows
        self._levels = _given(batch, "delayLevel")
        times = _given(batch, "deliverTimestamp")
        self.times_ms: pa.Int64Array | None = None
        if times is not None:
            self.times_ms = pa.array(
                times.view(pa.int64()).fill_null(0).to_numpy() // _MICROSECONDS_PER_MS,
                mask=times.is_null().to_numpy(zero_copy_only=False),
            )
        self._entries: MapEntries | None = None
        properties = _given(batch, "properties")
        counted = [name for name in _COUNTED if name not in dropped]
        if properties is not None and _has_one_of(properties, counted):
            self._entries = MapEntries(properties, self._count, dropped)
        self.are_there = not self._levels is self.times_ms is self._entries is None

    def levels(self) -> tuple[Int64, Mask]:
        """The requested levels, (n,), 0 for none; and a mask of the rows whose level comes from the column."""
        levels = np.zeros(self._count, np.int64)
        if self._levels is not None:
            levels = self._levels.fill_null(0).to_numpy().astype(np.int64)
            if bool((levels < 0).any()):
                row = int((levels < 0).argmax())
                raise refusal(row, "delayLevel", f"{levels[row]} is no delay level; 0 and null mean none")
        is_by_column = levels > 0
        if self._entries is not None:
            texts = self._entries.column(names.DELAY_TIME_LEVEL).dictionary_encode()
            by_code = np.array([*map(_level_or_none, texts.dictionary.to_pylist()), 0], np.int64)
            by_property = by_code[texts.indices.fill_null(len(by_code) - 1).to_numpy()]
            levels = np.where(is_by_column, levels, by_property)
            if bool((levels == _NO_LEVEL).any()):
                row = int((levels == _NO_LEVEL).argmax())
                raise refusal(row, "properties", f"DELAY={texts[row].as_py()[:40]!r} is no delay level")
        return levels, is_by_column

    def due_ms(self, wanted: Mask, now_ms: int, delay_ms_max: int) -> Int64:
        """(n,): the time that each of the `wanted` rows requests, 0 for none and for a past time."""
        due = np.zeros(self._count, np.int64)
        is_open = wanted.copy()
        if self._entries is not None:
            is_open &= ~self._has(names.TIMER_OUT_MS)
        asked = np.zeros(self._count, np.bool_)
        for name in timer.TIMER_PROPERTIES:
            values, is_valid = self._numbers(name, is_open)
            factor = 1000 if name == names.TIMER_DELAY_SEC else 1
            start = 0 if name == names.TIMER_DELIVER_MS else now_ms
            rows = is_open & is_valid
            due[rows] = start + np.clip(values[rows], -_FAR, _FAR) * factor
            asked |= rows
            is_open &= ~rows
        column = "deliverTimestamp" if self._entries is None else "properties"
        if self._entries is not None and bool((cancels := asked & self._has(names.TIMER_DEL_UNIQUE_KEY)).any()):
            raise refusal(int(cancels.argmax()), column, timer.CANNOT_CANCEL)
        too_far = asked & (due - now_ms > delay_ms_max)
        if bool(too_far.any()):
            row = int(too_far.argmax())
            reason = f"{due[row] - now_ms} ms ahead, more than {delay_ms_max // 1000} s (timerMaxDelaySec)"
            raise refusal(row, column, reason)
        return np.where(asked & (due > now_ms), due, 0)

    def _has(self, name: str) -> Mask:
        assert self._entries is not None
        found: Mask = self._entries.column(name).is_valid().to_numpy(zero_copy_only=False)
        return found

    def _numbers(self, name: str, wanted: Mask) -> tuple[Int64, Mask]:
        """(n,): the values of a timer property, and a mask of the rows with one; UsageError if a `wanted` one is no
        number.
        """
        values, is_valid = np.zeros(self._count, np.int64), np.zeros(self._count, np.bool_)
        if self._entries is not None:
            texts = self._entries.column(name)
            is_valid = texts.is_valid().to_numpy(zero_copy_only=False)
            is_number = pc.match_substring_regex(texts, timer.NUMBER_PATTERN).fill_null(False)
            bad = is_valid & ~is_number.to_numpy(zero_copy_only=False) & wanted
            if name == names.TIMER_DELIVER_MS and self.times_ms is not None:
                bad &= self.times_ms.is_null().to_numpy(zero_copy_only=False)
            if bool(bad.any()):
                row = int(bad.argmax())
                raise refusal(row, "properties", f"{name}={texts[row].as_py()[:40]!r} is no number")
            numbers = pc.if_else(is_number, texts, pa.scalar("0")).cast(pa.int64())
            values = numbers.to_numpy()
        if name == names.TIMER_DELIVER_MS and self.times_ms is not None:
            by_column = self.times_ms.is_valid().to_numpy(zero_copy_only=False)
            values = np.where(by_column, self.times_ms.fill_null(0).to_numpy(), values)
            is_valid = is_valid | by_column
        return values, is_valid


def _has_one_of(properties: pa.MapArray, counted: list[str]) -> bool:
    """True if an entry has one of these names of _COUNTED. A quick search for their bytes mostly finds none."""
    found = properties.keys
    offsets, data = value_bytes(found)
    raw = data[offsets[0] : offsets[-1]]
    first, behind = offsets[properties.offsets[0].as_py()], offsets[properties.offsets[1].as_py()]
    looked_at = _without_repetition(raw, int(behind - first)).tobytes()
    if not any(part in looked_at for part in _PARTS):
        return False
    return bool(pc.any(pc.is_in(found, pa.array(counted, pa.string()))).as_py())


def _without_repetition(raw: Bytes, period: int) -> Bytes:
    """The first bytes, if `raw` only repeats its first `period` bytes, as it does if all rows have the same names. Each
    of _PARTS then begins among them, or nowhere.
    """
    if 0 < period < len(raw) and np.array_equal(raw[period:], raw[:-period]):
        return raw[: period + _PART_BYTES_MAX]
    return raw


def _given(batch: pa.RecordBatch, name: str) -> pa.Array | None:
    """A column, or None if it is missing or all null."""
    if name not in batch.schema.names or batch.column(name).null_count == batch.num_rows:
        return None
    return batch.column(name)


def _level_or_none(text: str) -> int:
    try:
        return delay_level_of(text)
    except UsageError:
        return _NO_LEVEL


def _delayed_topics(topics: pa.DictionaryArray, has_level: Mask, is_timed: Mask) -> pa.StringArray:
    codes = topics.indices.to_numpy().copy()
    codes[has_level] = len(topics.dictionary)
    codes[is_timed] = len(topics.dictionary) + 1
    waiting = pa.array([SCHEDULE_TOPIC, PYRMQ_TIMER_TOPIC])
    return pa.concat_arrays([topics.dictionary, waiting]).take(pa.array(codes))


def _texts(numbers: npt.NDArray[np.integer], wanted: Mask) -> pa.StringArray:
    """The numbers as text, null where not wanted."""
    return pa.array(numbers, mask=~wanted).cast(pa.string())


def _without_timers(properties: pa.MapArray, rows: Mask) -> pa.MapArray:
    """The map column without the timer properties of some rows."""
    offsets = properties.offsets.to_numpy().astype(np.int64)
    first, last = int(offsets[0]), int(offsets[-1])
    keys, items = properties.keys[first:last], properties.items[first:last]
    entry_rows = np.repeat(np.arange(len(properties)), np.diff(offsets))
    timers = pc.is_in(keys, pa.array(timer.TIMER_PROPERTIES)).to_numpy(zero_copy_only=False)
    kept = ~(timers & rows[entry_rows])
    if bool(kept.all()):
        return properties
    counts = np.bincount(entry_rows[kept], minlength=len(properties))
    new_offsets = np.append(0, np.cumsum(counts)).astype(np.int32)
    mask = pa.array(kept)
    return pa.MapArray.from_arrays(
        pa.array(new_offsets), keys.filter(mask), items.filter(mask), mask=properties.is_null()
    )
