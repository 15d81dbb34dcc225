"""Many send-backs at once: the rules of `send_back` over columns (data plane).

The frames are copied as they are stored, compressed bodies too. The rules are applied once for each different pair of
retry count and requested delay level. Only rows whose properties do not fit are handled one by one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_store.broker.metadata.group_topics import SYSTEM_ERROR
from rmq_store.broker.read.records import FrameRun, StoredFrames, stored_text
from rmq_store.broker.rules.failure import FIRST_STAYS, ORIGIN_QUEUE_ID, ORIGIN_QUEUE_OFFSET, ORIGIN_TOPIC, with_reasons
from rmq_store.broker.rules.input_rows import as_schema, map_columns
from rmq_store.broker.rules.send_back import (
    TIMER_WISHES,
    Hop,
    SendBackRules,
    Source,
    check_name,
    copied_properties,
    given_properties,
    origin,
    properties_bytes_max,
)
from rmq_store.broker.write.single_copy import property_string
from rmq_store.errors import ResponseError, UsageError
from rmq_store.format.batches.frame_copy import CopyOptions, copy_frames
from rmq_store.format.properties import property_string as keys
from rmq_store.format.properties.property_changes import set_properties
from rmq_store.format.properties.property_string import parse_properties
from rmq_store.format.tables.schema import PROPERTIES_TYPE
from rmq_store.format.text import names
from rmq_store.format.text.host import Host
from rmq_store.lazy.arrow_compute import pc
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.log.core.commit_log import CommitLog
from rmq_store.log.core.layout import BLANK_BYTES

Int64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

SEND_BACK_SCHEMA = pa.schema(
    [
        ("commitLogOffset", pa.int64()),
        ("msgId", pa.string()),
        ("delayLevel", pa.int32()),
        ("properties", PROPERTIES_TYPE),
    ]
)
"""Rows to send back. The first two columns are required: a message is found by its offset, and must have this id.

`delayLevel`: with null and 0 the broker chooses; below 0 the message goes straight to the dead letters. `properties`
are set on the copy (reasons, see `failure`); if they are not null, the copy also names topic, queue and offset of its
original.
"""

ANSWER_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("delayLevel", pa.int32()),
        ("reconsumeTimes", pa.int32()),
        ("commitLogOffset", pa.int64()),
    ]
)
"""The outcome of each row, as in `SentBack`; `commitLogOffset` is null if no record was added."""

# The columns that every send-back needs.
_NOTED = (
    keys.UNIQUE_KEY, keys.RETRY_TOPIC, keys.ORIGIN_MESSAGE_ID, keys.REAL_TOPIC, keys.REAL_QUEUE_ID, *TIMER_WISHES
)  # fmt: skip


def normalise(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The rows as a batch of SEND_BACK_SCHEMA. Raises as `as_schema`."""
    return as_schema(rows, SEND_BACK_SCHEMA, ("commitLogOffset", "msgId"), "a message is sent back by offset and id")


@dataclass(frozen=True)
class Copies:
    """Encoded copies of rows, and the outcome of each row.

    `batches` (ENCODED_SCHEMA) hold them in the order `rows` (n,), the caller's row numbers; the other arrays (m,) are
    by the caller's rows. A group without retry queues has no copies.
    """

    batches: Sequence[pa.RecordBatch]
    rows: npt.NDArray[np.intp]
    topics: pa.StringArray
    delay_levels: npt.NDArray[np.int32]
    reconsume_times: npt.NDArray[np.int32]

    @property
    def dead(self) -> int:
        """The number of rows that become dead letters."""
        return int(pc.sum(pc.starts_with(self.topics, names.DLQ_PREFIX)).as_py() or 0)


class SendBackEncoder:
    """Copies messages of one log by the rules of one group."""

    def __init__(self, log: CommitLog, store_host: Host, rules: SendBackRules, retry_queues: int) -> None:
        self._frames = StoredFrames(log)
        self._rules = rules
        self._retry_queues = retry_queues
        self._retry_topic = names.retry_topic(rules.group)
        self._store_host = store_host
        self._options = CopyOptions(crc_property=log.crc_property, index_tags=log.index_tags)
        self._bytes_max = properties_bytes_max(log.crc_property)
        self._frame_bytes_max = log.segments.size_bytes - BLANK_BYTES

    def encode(self, rows: pa.RecordBatch, end: int, reconsume_times: Sequence[int] | None = None) -> Copies:
        """Copies of `rows` (SEND_BACK_SCHEMA, see `normalise`) of a log that ends at `end`. `reconsume_times` per row
        replaces the counts in the records.

        Raises:
            ResponseError: 1, no message begins at a row's offset, or it is one that consumers do not get, or its
                properties do not fit; names row and offset.
            UsageError: a row's message has another id; names row and offset. Or a property that cannot be set.
            CorruptRecordError: a message is damaged.
        """
        count = rows.num_rows
        offsets = rows.column("commitLogOffset").to_numpy()
        sizes = self._frames.sizes(offsets, end)
        if not sizes.all():
            self._not_found(int((sizes == 0).argmax()), offsets)
        given = _Given(rows.column("properties"))
        wishes = rows.column("delayLevel").fill_null(0).to_numpy()
        levels, times = np.zeros(count, np.int32), np.zeros(count, np.int32)
        dead = np.zeros(count, np.bool_)
        batches, order = [], [np.empty(0, np.intp)]
        try:
            for run in self._frames.runs(offsets, sizes, _NOTED):
                self._check(run, rows.column("msgId"), offsets)
                own = run.headers.reconsume_times
                failed = own if reconsume_times is None else np.asarray(reconsume_times, np.int32)[run.rows]
                pairs = failed.astype(np.int64) << 32 | wishes[run.rows].astype(np.int64) & 0xFFFFFFFF
                _, first, which = np.unique(pairs, return_index=True, return_inverse=True)
                hops = [self._rules.hop(int(failed[row]), int(wishes[run.rows[row]])) for row in first.tolist()]
                batches.append(self._copy(run, hops, which, given, offsets))
                order.append(run.rows)
                for found, column in ((levels, "delay_level"), (times, "reconsume_times"), (dead, "is_dead")):
                    found[run.rows] = _column(hops, column, which)
        except FileNotFoundError:
            self._not_found(int((self._frames.sizes(offsets, end) == 0).argmax()), offsets)
        topics = pa.array([self._retry_topic, names.dlq_topic(self._rules.group)]).take(pa.array(dead.astype(np.int8)))
        return Copies(batches, np.concatenate(order), topics, np.maximum(levels, 0), times)

    def _not_found(self, row: int, offsets: Int64) -> None:
        raise ResponseError(
            SYSTEM_ERROR,
            f"row {row}: look message by offset failed, {offsets[row]}: no message of this store begins there; send "
            "back rows as they were read, to the store that they were read from",
        )

    def _check(self, run: FrameRun, ids: pa.StringArray, offsets: Int64) -> None:
        found, asked = run.message_ids(), ids.take(pa.array(run.rows))
        other = pc.not_equal(found, asked).to_numpy(zero_copy_only=False)
        if other.any():
            place = int(other.argmax())
            row = int(run.rows[place])
            raise UsageError(
                f"row {row}: the message at {offsets[row]} is {found[place].as_py()!r}, not {asked[place].as_py()!r}"
            )
        half = ~run.headers.dispatchable
        if half.any():
            row = int(run.rows[int(half.argmax())])
            raise ResponseError(SYSTEM_ERROR, f"row {row}: {offsets[row]} is a half message: no consumer gets it")

    def _copy(
        self, run: FrameRun, hops: list[Hop], which: npt.NDArray[np.intp], given: _Given, offsets: Int64
    ) -> pa.RecordBatch:
        count = len(run.rows)
        retry_queues = np.random.default_rng().integers(self._retry_queues, size=count, dtype=np.int32)
        queue_ids = np.array([-1 if hop.queue_id is None else hop.queue_id for hop in hops], np.int32)[which]
        topics = pa.DictionaryArray.from_arrays(
            pa.array(which.astype(np.int32)), pa.array([hop.topic for hop in hops], pa.string())
        )
        changes = self._changes(run, hops, which, retry_queues)
        changes.update(given.changes(run, is_first=pc.is_null(run.pieces.column(keys.RETRY_TOPIC))))
        properties = set_properties(run.strings, changes)
        too_long = pc.greater(pc.binary_length(properties), self._bytes_max).to_numpy(zero_copy_only=False)
        if too_long.any():
            fitted = [
                self._fit(run, place, hops[which[place]], int(retry_queues[place]), given, offsets)
                for place in np.flatnonzero(too_long).tolist()
            ]
            properties = pc.replace_with_mask(properties, pa.array(too_long), pa.array(fitted, pa.large_binary()))
        copies = copy_frames(
            run.headers,
            topics=topics.cast(pa.string()).dictionary_encode(),
            queue_ids=np.where(queue_ids < 0, retry_queues, queue_ids),
            properties=properties,
            reconsume_times=_column(hops, "reconsume_times", which).astype(np.int32),
            sys_flags=None,
            store_host=self._store_host,
            delay_ms=_column(hops, "delay_ms", which),
            options=self._options,
        )
        too_large = pc.greater(pc.binary_length(copies.column("frame")), self._frame_bytes_max)
        if pc.any(too_large).as_py():
            row = int(run.rows[too_large.index(True).as_py()])
            raise ResponseError(
                SYSTEM_ERROR, f"row {row}: a copy of the message at {offsets[row]} does not fit a segment of the log"
            )
        return copies

    def _changes(
        self, run: FrameRun, hops: list[Hop], which: npt.NDArray[np.intp], retry_queues: npt.NDArray[np.int32]
    ) -> dict[str, pa.StringArray | str | None]:
        """As `send_back.copied_properties`."""

        def stored(name: str) -> pa.StringArray:
            return stored_text(run.pieces.column(name))

        waits = pa.array(_column(hops, "delay_level", which) > 0)
        origin_id = stored(keys.ORIGIN_MESSAGE_ID)
        is_blank = pc.equal(pc.utf8_trim_whitespace(pc.fill_null(origin_id, "")), "")
        return {
            keys.RETRY_TOPIC: pc.coalesce(stored(keys.RETRY_TOPIC), run.topics),
            keys.WAIT_STORE_MSG_OK: "false",
            keys.DELAY_TIME_LEVEL: pa.array([str(hop.delay_level) for hop in hops]).take(pa.array(which)),
            keys.ORIGIN_MESSAGE_ID: pc.if_else(is_blank, run.offset_message_ids, origin_id),
            keys.REAL_TOPIC: pc.if_else(waits, self._retry_topic, stored(keys.REAL_TOPIC)),
            keys.REAL_QUEUE_ID: pc.if_else(waits, pa.array(retry_queues).cast(pa.string()), stored(keys.REAL_QUEUE_ID)),
            **{name: pc.if_else(waits, pa.scalar(None, pa.string()), stored(name)) for name in TIMER_WISHES},
        }

    def _fit(self, run: FrameRun, place: int, hop: Hop, retry_queue: int, given: _Given, offsets: Int64) -> bytes:
        """The property string of one row, with as many reasons as there is room for."""
        headers, row = run.headers, int(run.rows[place])
        own = parse_properties(run.strings[place].as_py())
        source = Source(
            run.topics[place].as_py(),
            int(headers.queue_id[place]),
            int(headers.queue_offset[place]),
            run.offset_message_ids[place].as_py(),
        )
        reasons = given.of_row(row)
        extra = {**origin(own, source), **given_properties(reasons)} if reasons is not None else {}
        copied = copied_properties(own, source, hop, self._rules.group, retry_queue)
        fitted = with_reasons(copied, extra, self._bytes_max)
        if fitted is None:
            raise ResponseError(
                SYSTEM_ERROR,
                f"row {row}: PROPERTIES_SIZE_EXCEEDED: the message at {offsets[row]} has so many bytes of properties "
                "of its own that those of a retry do not fit",
            )
        return property_string(fitted)


class _Given:
    """The `properties` column: properties that consumers give with their send-backs."""

    def __init__(self, column: pa.MapArray) -> None:
        self._column = column
        self._is_given: Mask = column.is_valid().to_numpy(zero_copy_only=False)
        self._columns = map_columns(column)
        for name in self._columns:
            check_name(name)

    def changes(self, run: FrameRun, is_first: pa.BooleanArray) -> dict[str, pa.StringArray]:
        """Values of all rows of the run by name, null where there is none; `is_first` (n,): True if the message fails
        for the first time.
        """
        if not self._is_given.any():
            return {}

        def stored(name: str) -> pa.StringArray:
            return stored_text(run.pieces.column(name))

        found = {name: _storable(values.take(pa.array(run.rows))) for name, values in self._columns.items()}
        says_origin = pc.and_(is_first, pa.array(self._is_given[run.rows]))
        place = (
            (ORIGIN_TOPIC, run.topics),
            (ORIGIN_QUEUE_ID, pa.array(run.headers.queue_id).cast(pa.string())),
            (ORIGIN_QUEUE_OFFSET, pa.array(run.headers.queue_offset).cast(pa.string())),
        )
        nothing = pa.scalar(None, pa.string())
        for name, values in place:
            values = pc.if_else(says_origin, values, nothing)
            found[name] = pc.coalesce(found[name], values) if name in found else values
        return {
            name: pc.coalesce(stored(name), values) if name in FIRST_STAYS else pc.coalesce(values, stored(name))
            for name, values in found.items()
        }

    def of_row(self, row: int) -> dict[str, str] | None:
        """The given value of one row; None if there is none, {} included."""
        pairs = self._column[row].as_py()
        return None if pairs is None else {name: value for name, value in pairs if value is not None}


def _storable(values: pa.StringArray) -> pa.StringArray:
    """As `failure.storable`; null if the result is empty."""
    return pc.if_else(pc.equal(values, ""), pa.scalar(None, pa.string()), stored_text(values))


def _column(hops: list[Hop], field: str, which: npt.NDArray[np.intp]) -> np.ndarray:
    """(n,): a field of each row's hop."""
    return np.array([getattr(hop, field) for hop in hops])[which]
