"""Maps messages of a RocketMQ queue to records of a Kafka partition (data plane; only rows that are not plain one by
one).

The table of the mapping is in docs/kafka-design.md, section 4.2.
"""

from __future__ import annotations

import json
from typing import Final, Literal

import numpy as np
import pyarrow as pa

from rmq_store.bridge.record_batches.schema import (
    CREATE_TIME,
    HEADERS,
    LOG_APPEND_TIME,
    NO_TIMESTAMP_MS,
    RECORDS_SCHEMA,
)
from rmq_store.bridge.records.entries import Entries, Int64, Mask
from rmq_store.bridge.records.exact_columns import decode_exact_column
from rmq_store.bridge.records.exact_record import decode_exact
from rmq_store.bridge.records.merge_columns import Part, Pieces, weave
from rmq_store.bridge.records.origin import (
    MARKS,
    PATH_LENGTH_MAX,
    Marks,
    froms,
    message_marks,
    milliseconds,
    path_texts,
    record_goals,
)
from rmq_store.bridge.records.property_names import (
    FLAG_HEADER,
    HEADER_PREFIX,
    PROPERTIES_HEADER,
    RECONSUME_TIMES_HEADER,
    SHOWN_NAMES,
    is_own_name,
    is_rocketmq_name,
)
from rmq_store.bridge.records.route import Route
from rmq_store.bridge.records.unmappable_record import letters_to_kafka
from rmq_store.errors import UsageError
from rmq_store.format.properties import property_string as names
from rmq_store.format.properties.mirror_properties import (
    KAFKA_RECORD,
    KAFKA_TOMBSTONE,
    MIRROR_FROM,
    MIRROR_PATH,
    MIRROR_PROPERTIES,
    MIRROR_TIMESTAMP,
    MIRROR_TO,
)
from rmq_store.lazy.arrow_compute import pc
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.protocol.stored_messages import undecoded_rows

MAX_AHEAD_MS: Final = 3_600_000
"""`message.timestamp.after.max.ms` of Kafka 4, which refuses a whole transaction for one later timestamp."""


MAPPED_COLUMNS: Final = (
    "topic", "queueOffset", "body", "properties", "reconsumeTimes", "flag", "sysFlag", "bornTimestamp",
)  # fmt: skip
"""The columns of MESSAGE_SCHEMA that `to_kafka` looks at."""


@dataclass(frozen=True, slots=True)
class KafkaRules:
    """Values of a mirror and its target that apply to all messages.

    With `born_timestamp="mirror"` all records have `now_ms` as their time; otherwise only those whose born time is more
    than `max_ahead_ms` after it or `max_behind_ms` before it. `retention_ms`: records older than this are counted.
    `log_append_time`: the topic's message.timestamp.type. `compacted`: the topic takes no record without a key.
    `max_letter_bytes`: the largest record batch of the dead-letter topic.
    """

    now_ms: int
    born_timestamp: Literal["keep", "mirror"] = "keep"
    max_ahead_ms: int = MAX_AHEAD_MS
    max_behind_ms: int | None = None
    retention_ms: int | None = None
    log_append_time: bool = False
    compacted: bool = False
    max_letter_bytes: int = 1_000_000


@dataclass(frozen=True, slots=True)
class MappedToKafka:
    """`rows` (RECORDS_SCHEMA) in the order of their messages; `offset` is the message's queue offset. `dropped_loops`:
    number of messages that have been at the target. `letters` (RECORDS_SCHEMA): dead letters for other messages.
    `older_than_retention`: number of `rows` that the target's retention deletes at once.
    """

    rows: pa.RecordBatch
    dropped_loops: int
    letters: pa.RecordBatch
    older_than_retention: int


def to_kafka(rows: pa.RecordBatch, route: Route, rules: KafkaRules) -> MappedToKafka:
    """Map messages (MAPPED_COLUMNS at least, bodies decompressed) of the source queue of `route`. One whose body could
    not be inflated becomes a dead letter: readers of Kafka would take the body for the message.
    """
    properties = Entries.of_properties(rows.column("properties"))
    marks = message_marks(rows, properties)
    loops = marks.loops(route.target)
    if loops.any():
        rows, marks = rows.filter(pa.array(~loops)), marks.filter(~loops)
        properties = Entries.of_properties(rows.column("properties"))
    mapping = _Mapping(rows, properties, marks, route, rules)
    records = mapping.records()
    reasons = mapping.refused(records)
    letters = letters_to_kafka(records, reasons, route, rules.max_letter_bytes)
    if reasons:
        kept = np.ones(records.num_rows, np.bool_)
        kept[list(reasons)] = False
        records = records.filter(pa.array(kept))
    return MappedToKafka(records, int(loops.sum()), letters, _older(records.column("timestampMs").to_numpy(), rules))


def _older(times: Int64, rules: KafkaRules) -> int:
    if rules.retention_ms is None or rules.retention_ms < 0 or rules.log_append_time:
        return 0
    return int(((times < rules.now_ms - rules.retention_ms) & (times != NO_TIMESTAMP_MS)).sum())


@dataclass(frozen=True, slots=True)
class _Exact:
    """The contents of KAFKA_RECORD: `is_exact` (n,): rows that have one; `keys` (n,), else null; their headers."""

    is_exact: Mask
    keys: pa.BinaryArray
    parts: list[Part]


class _Mapping:
    """The mapping of the rows that are no loops, n."""

    def __init__(
        self, rows: pa.RecordBatch, properties: Entries, marks: Marks, route: Route, rules: KafkaRules
    ) -> None:
        self._rows, self._properties, self._marks, self._route, self._rules = rows, properties, marks, route, rules
        self._count = rows.num_rows
        self._from_kafka = marks.began_elsewhere()
        self._offsets: Int64 = rows.column("queueOffset").to_numpy()
        self._damaged: dict[int, str] = {}

    def records(self) -> pa.RecordBatch:
        """Rows of RECORDS_SCHEMA."""
        properties = self._properties
        decoded = [name.decode() for name in properties.names]
        is_ours = np.array([name in MIRROR_PROPERTIES for name in decoded], np.bool_)
        is_rocketmq = np.array([is_rocketmq_name(name) for name in decoded], np.bool_)
        is_odd = np.array([is_own_name(name) for name in decoded], np.bool_) & ~is_ours
        exact = self._exact()
        keys = self._keys(exact)
        values = self._values()
        times, true_times = self._times()
        types = np.full(self._count, LOG_APPEND_TIME if self._rules.log_append_time else CREATE_TIME, np.int8)
        has_no_time = np.full(self._count, self._rules.log_append_time, np.bool_)
        goals = record_goals(self._route.target_topic, self._route.target_partition, times, has_no_time, keys, values)
        parts = [
            self._entries(properties.judged(~(is_ours | is_rocketmq | is_odd)) & ~exact.is_exact[properties.rows]),
            *exact.parts,
            *self._shown(),
            self._odd_part(properties.judged(is_odd), properties.judged(~(is_ours | is_rocketmq))),
            _text_part(MIRROR_TIMESTAMP, *true_times),
            Part(None, [MIRROR_FROM.encode()], None, Pieces.of(froms(self._route, self._offsets))),
            self._path_part(),
            Part(None, [MIRROR_TO.encode()], None, Pieces.of(goals)),
        ]
        headers = weave(self._count, parts).headers(HEADERS)
        columns = [pa.array(self._offsets), pa.array(times), pa.array(types), keys, values, headers]
        return pa.RecordBatch.from_arrays(columns, schema=RECORDS_SCHEMA)

    def refused(self, records: pa.RecordBatch) -> dict[int, str]:
        """Rows that cannot be stored, and why; behind `records`."""
        reasons = dict(self._damaged)
        for row in undecoded_rows(self._rows).tolist():
            flags = self._rows.column("sysFlag")[row].as_py()
            reasons[row] = f"its body cannot be inflated, but its sysFlag {flags:#x} says that it is compressed"
        if self._rules.compacted:
            keyless = np.flatnonzero(records.column("key").is_null().to_numpy(zero_copy_only=False))
            reasons |= dict.fromkeys(keyless.tolist(), "it has no key, and a compacted topic takes none without one")
        deep = np.flatnonzero(self._marks.are_too_deep()).tolist()
        return reasons | dict.fromkeys(deep, f"MirrorPathError: it went through {PATH_LENGTH_MAX} topics")

    def _exact(self) -> _Exact:
        """Keys and headers of the rows that have them in KAFKA_RECORD."""
        texts, _ = self._properties.column(KAFKA_RECORD)
        rows = np.flatnonzero(texts.is_valid().to_numpy(zero_copy_only=False) & self._from_kafka)
        found = decode_exact_column(texts.take(pa.array(rows)))
        others: list[int] = []
        other_keys: list[bytes | None] = []
        pairs: list[tuple[int, bytes, bytes | None]] = []
        for row in rows[~found.is_read].tolist():
            try:
                key, headers = decode_exact(texts[row].as_py().decode())
            except UsageError as error:
                self._damaged[row] = str(error)
            else:
                others.append(row)
                other_keys.append(key)
                pairs += [(row, *header) for header in headers]
        keys = pa.concat_arrays([found.keys.filter(pa.array(found.is_read)), pa.array(other_keys, pa.binary())])
        place = np.full(self._count, -1, np.int64)
        place[np.append(rows[found.is_read], np.array(others, np.int64))] = np.arange(len(keys))
        names = pa.array([name for _, name, _ in pairs], pa.binary())
        values = pa.array([value for *_, value in pairs], pa.binary())
        is_null = values.is_null().to_numpy(zero_copy_only=False)
        parts = [
            _without_marks(rows[found.rows], found.names.array(), found.values, found.is_null),
            _without_marks(np.array([row for row, *_ in pairs], np.int64), names, Pieces.of(values), is_null),
        ]
        return _Exact(place >= 0, keys.take(pa.array(place, mask=place < 0)), parts)

    def _keys(self, exact: _Exact) -> pa.BinaryArray:
        sharding_keys, _ = self._properties.column(names.SHARDING_KEY)
        keys, _ = self._properties.column(names.KEYS)
        if self._from_kafka.any():
            keys = pc.if_else(pa.array(self._from_kafka), pa.scalar(None, pa.binary()), keys)
        found = pc.coalesce(sharding_keys, keys)
        return pc.if_else(pa.array(exact.is_exact), exact.keys, found) if exact.is_exact.any() else found

    def _values(self) -> pa.BinaryArray:
        bodies = self._rows.column("body")
        texts, _ = self._properties.column(KAFKA_TOMBSTONE)
        tombstones = texts.is_valid().to_numpy(zero_copy_only=False) & self._from_kafka
        tombstones &= Pieces.of(bodies).sizes == 0
        return pc.if_else(pa.array(tombstones), pa.scalar(None, pa.binary()), bodies) if tombstones.any() else bodies

    def _times(self) -> tuple[Int64, tuple[Mask, Int64]]:
        """Timestamps; and where these are not the messages' own, that, and the messages' own."""
        rules = self._rules
        times = milliseconds(self._rows.column("bornTimestamp"))
        times = np.where(self._marks.has_time, self._marks.times, times)
        is_kept = (times >= 0) & (times <= rules.now_ms + rules.max_ahead_ms)
        if rules.max_behind_ms is not None:
            is_kept &= times >= rules.now_ms - rules.max_behind_ms
        is_kept |= (times == NO_TIMESTAMP_MS) & self._marks.has_time
        if rules.born_timestamp == "mirror":
            is_kept = np.zeros(self._count, np.bool_)
        has_other = np.ones(self._count, np.bool_) if rules.log_append_time else ~is_kept
        return np.where(is_kept, times, rules.now_ms), (has_other, times)

    def _entries(self, chosen: Mask) -> Part:
        properties = self._properties
        places = np.flatnonzero(chosen)
        values = Pieces.of(properties.values).take(places)
        return Part(properties.rows[places], properties.names, properties.codes[places], values)

    def _shown(self) -> list[Part]:
        """The fields of RocketMQ's messages beside body and the user's properties, if they are set."""
        if self._from_kafka.all():
            return []
        chosen = self._properties.named(*SHOWN_NAMES) & ~self._from_kafka[self._properties.rows]
        part = self._entries(chosen)
        prefixed = [HEADER_PREFIX.encode() + name for name in part.names]
        flags = self._rows.column("flag").to_numpy().astype(np.int64)
        times = self._rows.column("reconsumeTimes").to_numpy().astype(np.int64)
        return [
            Part(part.rows, prefixed, part.codes, part.values),
            _text_part(FLAG_HEADER, (flags != 0) & ~self._from_kafka, flags),
            _text_part(RECONSUME_TIMES_HEADER, (times != 0) & ~self._from_kafka, times),
        ]

    def _odd_part(self, is_odd: Mask, is_users: Mask) -> Part:
        """Properties of users that cannot be headers under their own names."""
        properties, texts = self._properties, []
        rows = np.unique(properties.rows[is_odd & ~self._from_kafka[properties.rows]])
        for row in rows.tolist():
            first, behind = int(properties.offsets[row]), int(properties.offsets[row + 1])
            users = (first + np.flatnonzero(is_users[first:behind])).tolist()
            odd = [
                [place, properties.names[properties.codes[at]].decode(), properties.values[at].as_py().decode()]
                for place, at in enumerate(users)
                if is_odd[at]
            ]
            texts.append(json.dumps(odd, ensure_ascii=False, separators=(",", ":")))
        return Part(rows, [PROPERTIES_HEADER.encode()], None, Pieces.of(pa.array(texts, pa.string())))

    def _path_part(self) -> Part:
        known = Pieces.of(pa.array(path_texts(self._route, self._marks.paths), pa.binary()))
        return Part(None, [MIRROR_PATH.encode()], None, known.take(self._marks.path_of))


def _without_marks(rows: Int64, name_array: pa.BinaryArray, values: Pieces, is_null: Mask) -> Part:
    """Headers out of KAFKA_RECORD: whoever writes to the store can put any into it."""
    coded = name_array.dictionary_encode()
    known = coded.dictionary.to_pylist()
    codes = coded.indices.to_numpy()
    marks = [name.encode() for name in MARKS]
    own = np.flatnonzero(np.array([name not in marks for name in known], np.bool_)[codes])
    return Part(rows[own], known, codes[own], values.take(own), is_null[own])


def _text_part(name: str, chosen: Mask, numbers: Int64) -> Part:
    rows = np.flatnonzero(chosen)
    return Part(rows, [name.encode()], None, Pieces.of(pa.array(numbers[rows]).cast(pa.string())))
