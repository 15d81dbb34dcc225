"""Maps records of a Kafka partition to messages of a RocketMQ queue (data plane; only rows that are not plain one by
one).

The table of the mapping is in docs/kafka-design.md, section 4.1.
"""

from __future__ import annotations

from typing import Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_store.bridge.record_batches.schema import LOG_APPEND_TIME
from rmq_store.bridge.records import unmappable_record
from rmq_store.bridge.records.entries import Entries, Int64, Mask, plain_texts
from rmq_store.bridge.records.exact_columns import encode_exact_column
from rmq_store.bridge.records.merge_columns import Part, Pieces, text_where, weave
from rmq_store.bridge.records.message_fields import Restored
from rmq_store.bridge.records.origin import (
    MARKS,
    PATH_LENGTH_MAX,
    Marks,
    froms,
    message_goals,
    path_texts,
    record_marks,
    unique_keys,
)
from rmq_store.bridge.records.property_names import is_plain_name
from rmq_store.bridge.records.route import Route
from rmq_store.format.properties import property_string as names
from rmq_store.format.properties.mirror_properties import (
    KAFKA_RECORD,
    KAFKA_TIMESTAMP_TYPE,
    KAFKA_TOMBSTONE,
    MIRROR_FROM,
    MIRROR_PATH,
    MIRROR_TIMESTAMP,
    MIRROR_TO,
)
from rmq_store.lazy.dataclasses import dataclass

KEYS_BYTES_MAX: Final = 128
"""Longer keys, and keys with a space, are no KEYS: those are to look at, and each word takes an entry of the index."""

TIMESTAMP_MS_MAX: Final = 253_402_300_799_999
"""The end of the year 9999: later times are no dates for most who read them."""

_FRAME_BYTES_BESIDE = 160  # of a frame, at most: all of its fields but topic, properties and body
_SEPARATORS = 2

MESSAGES_SCHEMA: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("queueId", pa.int32()),
        ("body", pa.binary()),
        ("tags", pa.string()),
        ("keys", pa.string()),
        ("shardingKey", pa.string()),
        ("flag", pa.int32()),
        ("bornTimestamp", pa.timestamp("us", tz="UTC")),
        ("properties", pa.map_(pa.string(), pa.string())),
    ]
)
"""Columns of INPUT_SCHEMA (`rmq_store.broker.write.encoder`)."""


@dataclass(frozen=True, slots=True)
class RmqRules:
    """Values of a mirror and its target that apply to all records.

    `now_ms` is the born time of records without one, and of all with `born_timestamp="mirror"`. `tags_header`: the
    header that becomes TAGS. `max_frame_bytes`: the largest frame of a segment; None: more than a body may have.
    `max_letter_bytes`: the largest body of a dead letter; None: as for any message.
    """

    mirror: str
    now_ms: int
    max_body_bytes: int = 4 * 1024 * 1024
    max_properties_bytes: int = names.PROPERTIES_BYTES_MAX - 20
    max_frame_bytes: int | None = None
    max_letter_bytes: int | None = None
    tags_header: str | None = None
    born_timestamp: Literal["keep", "mirror"] = "keep"


@dataclass(frozen=True, slots=True)
class MappedToRmq:
    """`rows` (MESSAGES_SCHEMA) in the order of their records. `dropped_loops`: number of records that have been at the
    target. `letters` (MESSAGES_SCHEMA): dead letters for records that cannot be stored. Both have their UNIQ_KEYs.
    """

    rows: pa.RecordBatch
    dropped_loops: int
    letters: pa.RecordBatch


def to_rmq(rows: pa.RecordBatch, route: Route, rules: RmqRules) -> MappedToRmq:
    """Map records (RECORDS_SCHEMA) of the source partition of `route`."""
    headers = Entries.of_headers(rows.column("headers"))
    marks = record_marks(rows, headers, route.source_topic, route.source_partition)
    loops = marks.loops(route.target)
    too_deep = marks.are_too_deep() & ~loops
    reasons = dict.fromkeys(
        np.flatnonzero(too_deep).tolist(), f"MirrorPathError: it went through {PATH_LENGTH_MAX} topics"
    )
    given = rows
    place = np.arange(len(loops))
    if reasons or loops.any():
        place = np.flatnonzero(~(loops | too_deep))
        rows, marks = rows.filter(pa.array(~(loops | too_deep))), marks.filter(~(loops | too_deep))
        headers = Entries.of_headers(rows.column("headers"))
    mapping = _Mapping(rows, headers, marks, route, rules)
    messages = mapping.messages()
    refused = mapping.refused()
    if refused:
        reasons |= {int(place[row]): reason for row, reason in refused.items()}
        kept = np.ones(rows.num_rows, np.bool_)
        kept[list(refused)] = False
        messages = messages.filter(pa.array(kept))
    return MappedToRmq(messages, int(loops.sum()), unmappable_record.letters_to_rmq(given, reasons, route, rules))


class _Mapping:
    """The mapping of the rows that are to be stored, n."""

    def __init__(self, rows: pa.RecordBatch, headers: Entries, marks: Marks, route: Route, rules: RmqRules) -> None:
        self._rows, self._headers, self._marks, self._route, self._rules = rows, headers, marks, route, rules
        self._count = rows.num_rows
        self._offsets: Int64 = rows.column("offset").to_numpy()
        self._keys = rows.column("key")
        bodies = rows.column("value")
        self._is_tombstone: Mask = bodies.is_null().to_numpy(zero_copy_only=False)
        self._bodies = bodies.fill_null(b"") if bodies.null_count else bodies

    def messages(self) -> pa.RecordBatch:
        """Rows of MESSAGES_SCHEMA."""
        kept = ~self._headers.named(*MARKS)
        found = Restored(self._headers, kept, self._marks.began_elsewhere())
        is_restored = found.is_restored
        is_exact, key_is_plain = self._exact(kept, is_restored)
        keys, tags, sharding_keys, flags = self._named_columns(kept, key_is_plain, found)
        born_ms, true_times = self._times()
        unique = unique_keys(self._route, self._offsets)
        parts = [
            Part(None, [names.UNIQUE_KEY.encode()], None, Pieces.of(unique)),
            self._plain_headers(kept, is_exact | is_restored),
            *found.parts,
            self._exact_part(kept, is_exact),
            _flag_part(KAFKA_TOMBSTONE, self._is_tombstone),
            _text_part(MIRROR_TIMESTAMP, *true_times),
            _flag_part(KAFKA_TIMESTAMP_TYPE, self._rows.column("timestampType").to_numpy() == LOG_APPEND_TIME),
            Part(None, [MIRROR_FROM.encode()], None, Pieces.of(froms(self._route, self._offsets))),
            self._path_part(),
            Part(
                None,
                [MIRROR_TO.encode()],
                None,
                Pieces.of(message_goals(self._route.target_topic, unique, born_ms, self._bodies)),
            ),
        ]
        self._measure(parts, (keys, tags, sharding_keys))
        topic = pa.array([self._route.target_topic], pa.string()).take(pa.array(np.zeros(self._count, np.int32)))
        born = pa.array(born_ms * 1000).view(pa.timestamp("us", tz="UTC"))
        queue_ids = pa.array(np.full(self._count, self._route.target_partition, np.int32))
        columns = [topic, queue_ids, self._bodies, tags, keys, sharding_keys, flags, born]
        return pa.RecordBatch.from_arrays([*columns, weave(self._count, parts).properties()], schema=MESSAGES_SCHEMA)

    def refused(self) -> dict[int, str]:
        """Rows that cannot be stored, and why."""
        rules = self._rules
        bodies = Pieces.of(self._bodies).sizes
        frames = bodies + self._property_bytes + len(self._route.target_topic.encode()) + _FRAME_BYTES_BESIDE
        reasons: dict[int, str] = {}
        limits = (
            (frames, rules.max_frame_bytes, "the message has {} bytes, more than a segment takes, {}"),
            (bodies, rules.max_body_bytes, "the value has {} bytes, more than maxMessageSize={}"),
            (
                self._property_bytes,
                rules.max_properties_bytes,
                "key and headers take {} bytes as properties, more than {}",
            ),
        )
        for sizes, maximum, reason in limits:
            if maximum is not None:
                reasons |= {row: reason.format(sizes[row], maximum) for row in np.flatnonzero(sizes > maximum).tolist()}
        return reasons

    def _exact(self, kept: Mask, is_restored: Mask) -> tuple[Mask, Mask]:
        """Flags of the rows that need KAFKA_RECORD, and of those with a plain key."""
        headers = self._headers
        has_key = self._keys.is_valid().to_numpy(zero_copy_only=False)
        key_is_plain = plain_texts(self._keys)
        is_exact = has_key & ~key_is_plain
        plain_names = np.array([is_plain_name(name) for name in headers.names], np.bool_)
        odd = kept & ~(headers.judged(plain_names) & plain_texts(headers.values))
        is_exact[headers.rows[odd]] = True
        is_exact |= headers.rows_with_a_name_twice(kept)
        return is_exact & ~is_restored, key_is_plain

    def _named_columns(self, kept: Mask, key_is_plain: Mask, found: Restored) -> tuple[pa.Array, ...]:
        """KEYS, TAGS, the sharding key and the flag."""
        sharding_keys = text_where(self._keys, key_is_plain & ~found.is_restored)
        is_shown = Pieces.of(sharding_keys).sizes <= KEYS_BYTES_MAX
        is_shown &= sharding_keys.is_valid().to_numpy(zero_copy_only=False) & ~_has_space(sharding_keys)
        keys = text_where(sharding_keys, is_shown)
        tags = pa.nulls(self._count, pa.string())
        if self._rules.tags_header is not None:
            values, _ = self._headers.column(self._rules.tags_header)
            tags = text_where(values, plain_texts(values) & ~found.is_restored)
        if not found.is_restored.any():
            return keys, tags, sharding_keys, pa.array(np.zeros(self._count, np.int32))
        keys, tags = found.named(names.KEYS, keys), found.named(names.TAGS, tags)
        return keys, tags, found.named(names.SHARDING_KEY, sharding_keys), pa.array(found.flags)

    def _times(self) -> tuple[Int64, tuple[Mask, Int64]]:
        """Born times; and where these are not the records' own, that, and the records' own."""
        times: Int64 = self._rows.column("timestampMs").to_numpy()
        times = np.where(self._marks.has_time, self._marks.times, times)
        is_kept = (times >= 0) & (times <= TIMESTAMP_MS_MAX)
        if self._rules.born_timestamp == "mirror":
            is_kept = np.zeros(self._count, np.bool_)
        return np.where(is_kept, times, self._rules.now_ms), (~is_kept, times)

    def _plain_headers(self, kept: Mask, without: Mask) -> Part:
        headers = self._headers
        values = Pieces.of(headers.values)
        if kept.all() and not without.any():
            return Part(headers.rows, headers.names, headers.codes, values)
        chosen = np.flatnonzero(kept & ~without[headers.rows])
        return Part(headers.rows[chosen], headers.names, headers.codes[chosen], values.take(chosen))

    def _exact_part(self, kept: Mask, is_exact: Mask) -> Part:
        headers = self._headers
        rows = np.flatnonzero(is_exact)
        chosen = np.flatnonzero(kept & is_exact[headers.rows])
        names = Pieces.of(pa.array(headers.names, pa.binary())).take(headers.codes[chosen].astype(np.int64))
        values = headers.values.take(pa.array(chosen))
        texts = encode_exact_column(
            self._keys.take(pa.array(rows)),
            np.searchsorted(rows, headers.rows[chosen]),
            names,
            Pieces.of(values),
            values.is_null().to_numpy(zero_copy_only=False),
        )
        return Part(rows, [KAFKA_RECORD.encode()], None, Pieces.of(texts))

    def _path_part(self) -> Part:
        known = Pieces.of(pa.array(path_texts(self._route, self._marks.paths), pa.binary()))
        return Part(None, [MIRROR_PATH.encode()], None, known.take(self._marks.path_of))

    def _measure(self, parts: list[Part], columns: tuple[pa.Array, ...]) -> None:
        """Bytes of the property string of each row, (n,)."""
        sizes = np.zeros(self._count, np.int64)
        for part in parts:
            lengths = np.array([len(name) for name in part.names] or [0], np.int64)
            mine = part.values.sizes + _SEPARATORS + (lengths[0] if part.codes is None else lengths[part.codes])
            if part.rows is None:
                sizes += mine
            elif len(part.rows):
                sizes += np.bincount(part.rows, mine, self._count).astype(np.int64)
        for name, column in zip((names.KEYS, names.TAGS, names.SHARDING_KEY), columns, strict=True):
            lengths = Pieces.of(column).sizes
            sizes += np.where(lengths > 0, lengths + len(name) + _SEPARATORS, 0)
        self._property_bytes = sizes


def _has_space(values: pa.StringArray) -> Mask:
    pieces = Pieces.of(values)
    found = np.zeros(len(values), np.bool_)
    spaces = np.flatnonzero(pieces.data == ord(" "))
    rows = np.searchsorted(pieces.starts, spaces, side="right") - 1
    found[rows[(rows >= 0) & (spaces < pieces.ends[rows])]] = True
    return found


def _flag_part(name: str, chosen: Mask) -> Part:
    rows = np.flatnonzero(chosen)
    return Part(rows, [name.encode()], None, Pieces.same(b"1", len(rows)))


def _text_part(name: str, chosen: Mask, numbers: npt.NDArray[np.int64]) -> Part:
    rows = np.flatnonzero(chosen)
    return Part(rows, [name.encode()], None, Pieces.of(pa.array(numbers[rows]).cast(pa.string())))
