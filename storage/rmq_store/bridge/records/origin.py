"""The marks of a mirrored record, as properties in RocketMQ and as headers in Kafka.

    MIRROR_FROM       "<cluster id> <topic> <partition or queue id> <offset>[ <topic id>]": its immediate source
    MIRROR_PATH       JSON [[cluster id, topic], ...]: everywhere it has been before, oldest first
    MIRROR_TO         the record that they were made for; in RocketMQ "<topic> <UNIQ_KEY> <born ms> <CRC-32 of body>",
                      in Kafka "<topic> <partition> <timestamp ms> <CRC-32 of key and value>"
    MIRROR_TIMESTAMP  its time, in ms, where the copy could not have it

They count only if each is there once and MIRROR_TO fits the record that carries them: a job may copy all headers or
properties to a record of its own, also within one topic, and Java's producer keeps the UNIQ_KEY that it is given. Where
the topic has LogAppendTime, "-" stands for the timestamp, as the broker gives it. One case is left: a record that is
sent again to the same topic and partition with the same body, time and marks is taken for the copy of a mirror.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_store.bridge.record_batches.schema import LOG_APPEND_TIME
from rmq_store.bridge.records.entries import Entries, Int64, Mask
from rmq_store.bridge.records.merge_columns import joined
from rmq_store.bridge.records.route import Route
from rmq_store.format.bytes.gather import value_bytes
from rmq_store.format.frames.crc import UInt32, slice_crcs
from rmq_store.format.properties import property_string as names
from rmq_store.format.properties.mirror_properties import MIRROR_FROM, MIRROR_PATH, MIRROR_TIMESTAMP, MIRROR_TO
from rmq_store.lazy.arrow_compute import pc
from rmq_store.lazy.dataclasses import dataclass

PATH_LENGTH_MAX: Final = 16
MARKS: Final = (MIRROR_FROM, MIRROR_PATH, MIRROR_TO, MIRROR_TIMESTAMP)
ANY_TIME: Final = "-"

# Properties that a mirror never sets, and that each later storing of the message sets.
_STORED_AGAIN = (names.RETRY_TOPIC, names.ORIGIN_MESSAGE_ID, names.RECONSUME_TIME, "PYRMQ_DEAD_LETTER", "PYRMQ_REPLAYS")

Path = tuple[tuple[str, str], ...]
Rows = TypeVar("Rows", pa.Array, pa.RecordBatch)

_FROM = r"^(?P<cluster>[!-~]+) (?P<topic>[^ ]+) (?P<partition>[0-9]{1,9}) (?P<offset>[0-9]{1,18})(?: (?P<id>[^ ]+))?$"
_TIME = re.compile(rb"-?[0-9]{1,19}")
_HEX = np.frombuffer("".join(f"{value:02x}" for value in range(256)).encode(), np.uint16)
_HEX_UPPER = np.frombuffer("".join(f"{value:02X}" for value in range(256)).encode(), np.uint16)


@dataclass(frozen=True, slots=True)
class Marks:
    """The valid marks of n rows.

    `fits` (n,): True for rows whose marks are valid. `paths`: the different paths, the first one is empty; `path_of`
    (n,): the index of each row's path. `times` (n,) int64: MIRROR_TIMESTAMP; `has_time` (n,): True for rows that have
    one.
    """

    fits: Mask
    paths: tuple[Path, ...]
    path_of: npt.NDArray[np.int64]
    times: Int64
    has_time: Mask

    def filter(self, kept: Mask) -> Marks:
        """The marks of some of the rows."""
        return Marks(self.fits[kept], self.paths, self.path_of[kept], self.times[kept], self.has_time[kept])

    def began_elsewhere(self) -> Mask:
        """(n,) True for rows whose first source is of the other kind: in a path, Kafka and RocketMQ alternate."""
        return np.array([len(path) % 2 == 1 for path in self.paths], np.bool_)[self.path_of]

    def loops(self, target: tuple[str, str]) -> Mask:
        """(n,) True for rows that have been at the target before."""
        return np.array([target in path for path in self.paths], np.bool_)[self.path_of]

    def are_too_deep(self) -> Mask:
        """(n,) True for rows whose path has no room for one more entry."""
        return np.array([len(path) >= PATH_LENGTH_MAX for path in self.paths], np.bool_)[self.path_of]


def record_marks(rows: pa.RecordBatch, headers: Entries, topic: str, partition: int) -> Marks:
    """The marks of records (RECORDS_SCHEMA) of a partition."""
    return _marks(headers, lambda chosen: _record_goals(_filtered(rows, chosen), topic, partition))


def message_marks(rows: pa.RecordBatch, properties: Entries) -> Marks:
    """The marks of messages: columns `topic`, `body` and `bornTimestamp` of MESSAGE_SCHEMA."""

    def goals(chosen: Mask) -> pa.StringArray:
        given = _filtered(rows.select(["topic", "body", "bornTimestamp"]), chosen)
        unique_keys = _filtered(properties.column(names.UNIQUE_KEY)[0], chosen).cast(pa.string())
        return message_goals(
            given.column("topic"), unique_keys, milliseconds(given.column("bornTimestamp")), given.column("body")
        )

    return _marks(properties, goals)


def _record_goals(rows: pa.RecordBatch, topic: str, partition: int) -> pa.StringArray:
    has_no_time = rows.column("timestampType").to_numpy() == LOG_APPEND_TIME
    times = rows.column("timestampMs").to_numpy()
    return record_goals(topic, partition, times, has_no_time, rows.column("key"), rows.column("value"))


def record_goals(
    topic: str, partition: int, times_ms: Int64, has_no_time: Mask, keys: pa.Array, values: pa.Array
) -> pa.StringArray:
    """MIRROR_TO of n records in Kafka."""
    times = pa.array(times_ms).cast(pa.string())
    if has_no_time.any():
        times = pc.if_else(pa.array(has_no_time), ANY_TIME, times)
    crcs = _crc_texts(values, _crcs(keys))
    return joined(len(values), f"{topic} {partition} ", times, " ", crcs)


def message_goals(topics: pa.Array | str, unique_keys: pa.Array, born_ms: Int64, bodies: pa.Array) -> pa.StringArray:
    """MIRROR_TO of n messages in RocketMQ."""
    born = pa.array(born_ms).cast(pa.string())
    return joined(len(bodies), topics, " ", unique_keys, " ", born, " ", _crc_texts(bodies))


def _marks(entries: Entries, goals_of: Callable[[Mask], pa.StringArray]) -> Marks:
    """`goals_of` says what MIRROR_TO must be, for some of the rows."""
    count = entries.row_count
    fits = np.zeros(count, np.bool_)
    path_of, times, has_time = np.zeros(count, np.int64), np.zeros(count, np.int64), np.zeros(count, np.bool_)
    paths: tuple[Path, ...] = ((),)
    needed = (MIRROR_TO, MIRROR_PATH, MIRROR_FROM)
    if any(entries.code(name) < 0 for name in needed):
        return Marks(fits, paths, path_of, times, has_time)
    (goals, goal_counts), (path_values, path_counts), (_, from_counts) = (entries.column(name) for name in needed)
    chosen = (goal_counts == 1) & (path_counts == 1) & (from_counts == 1)
    rows = np.flatnonzero(chosen)
    coded = _filtered(path_values, chosen).fill_null(b"").dictionary_encode()
    parsed = [_path(raw) for raw in coded.dictionary.to_pylist()]
    is_path = np.array([path is not None for path in parsed], np.bool_)[coded.indices.to_numpy()]
    is_same = pc.equal(_filtered(goals, chosen), goals_of(chosen).cast(pa.binary())).fill_null(False)
    good = is_same.to_numpy(zero_copy_only=False) & is_path
    fits[rows[good]] = True
    path_of[rows[good]] = coded.indices.to_numpy()[good] + 1
    paths += tuple(path or () for path in parsed)
    time_values, _ = entries.column(MIRROR_TIMESTAMP)
    timed = np.flatnonzero(fits & time_values.is_valid().to_numpy(zero_copy_only=False))
    for row, raw in zip(timed.tolist(), time_values.take(pa.array(timed)).to_pylist(), strict=True):
        if (time_ms := _time_ms(raw)) is not None:
            times[row], has_time[row] = time_ms, True
    return Marks(fits, paths, path_of, times, has_time)


def _filtered(rows: Rows, chosen: Mask) -> Rows:
    """Rows of which most often all are chosen: then nothing is copied."""
    return rows if chosen.all() else rows.filter(pa.array(chosen))


def _path(raw: bytes) -> Path | None:
    """The parsed MIRROR_PATH; None: no mirror has written it."""
    try:
        read = json.loads(raw)
        path = tuple((cluster, topic) for cluster, topic in read)
        "".join(text for pair in path for text in pair).encode()
    except (ValueError, TypeError, RecursionError):
        return None
    return path if isinstance(read, list) and path else None


def _time_ms(raw: bytes) -> int | None:
    if not _TIME.fullmatch(raw):
        return None
    time_ms = int(raw)
    return time_ms if -(1 << 63) <= time_ms < 1 << 63 else None


@dataclass(frozen=True, slots=True)
class Sources:
    """The sources of n mirrored rows: `is_mirrored` (n,). For rows that are mirrored: `clusters` and `topics` (n,)
    string, `partitions` and `offsets` (n,) int64; null and -1 for others. `topic_ids` (n,) string, "" without one.
    `is_first_copy` (n,): True for rows that the mirror itself has stored. Source offsets ascend only along these: a
    redrive, or a consumer that sends a message back, stores it once more.
    """

    is_mirrored: Mask
    clusters: pa.StringArray
    topics: pa.StringArray
    partitions: Int64
    offsets: Int64
    topic_ids: pa.StringArray
    is_first_copy: Mask


def sources_of_records(rows: pa.RecordBatch, topic: str, partition: int) -> Sources:
    """The sources of records (RECORDS_SCHEMA) of a partition."""
    headers = Entries.of_headers(rows.column("headers"))
    fits = record_marks(rows, headers, topic, partition).fits
    return _sources(headers, fits, np.zeros(len(fits), np.bool_))


def sources_of_messages(rows: pa.RecordBatch) -> Sources:
    """The sources of messages: `topic`, `body` (not compressed), `bornTimestamp`, `properties` of MESSAGE_SCHEMA."""
    properties = Entries.of_properties(rows.column("properties"))
    again = np.zeros(properties.row_count, np.bool_)
    again[properties.rows[properties.named(*_STORED_AGAIN)]] = True
    return _sources(properties, message_marks(rows, properties).fits, again)


def _sources(entries: Entries, fits: Mask, again: Mask) -> Sources:
    count = entries.row_count
    is_mirrored = fits.copy()
    partitions, offsets = np.full(count, -1, np.int64), np.full(count, -1, np.int64)
    rows = np.flatnonzero(fits)
    texts = entries.column(MIRROR_FROM)[0].take(pa.array(rows))
    texts = pa.array(
        [None if raw is None or not raw.isascii() else raw.decode() for raw in texts.to_pylist()], pa.string()
    )
    parsed = pc.extract_regex(texts, _FROM)
    good = parsed.is_valid().to_numpy(zero_copy_only=False)
    is_mirrored[rows[~good]] = False
    found = parsed.filter(pa.array(good))
    partitions[rows[good]] = found.field("partition").cast(pa.int64()).to_numpy()
    offsets[rows[good]] = found.field("offset").cast(pa.int64()).to_numpy()
    place = np.cumsum(is_mirrored) - 1
    places = pa.array(place, mask=~is_mirrored)
    clusters, topics, ids = (found.field(name).take(places) for name in ("cluster", "topic", "id"))
    return Sources(is_mirrored, clusters, topics, partitions, offsets, ids, is_mirrored & ~again)


def unique_keys(route: Route, offsets: Int64) -> pa.StringArray:
    """UNIQ_KEY of records by their positions, (n,): 16 hex digits for the partition, 16 for the offset."""
    keys = np.empty((len(offsets), 16), np.uint16)
    keys[:, :8] = np.frombuffer(route.source_hash.encode(), np.uint16)
    keys[:, 8:] = _HEX_UPPER[offsets.astype(">i8").view(np.uint8).reshape(-1, 8)]
    return _fixed(keys, 32)


def froms(route: Route, offsets: Int64) -> pa.StringArray:
    """MIRROR_FROM of records by their offsets, (n,)."""
    source = f"{route.source_cluster} {route.source_topic} {route.source_partition} "
    topic_id = f" {route.source_topic_id}" if route.source_topic_id else ""
    return joined(len(offsets), source, pa.array(offsets).cast(pa.string()), topic_id)


def path_texts(route: Route, paths: Sequence[Path]) -> list[bytes]:
    """MIRROR_PATH of rows that are mirrored along a route, for each of their earlier paths."""
    return [json.dumps([*path, route.source], ensure_ascii=False, separators=(",", ":")).encode() for path in paths]


def milliseconds(times: pa.Array) -> Int64:
    """A timestamp column in ms since 1970, (n,)."""
    numbers: Int64 = times.cast(pa.timestamp("us", times.type.tz)).view(pa.int64()).to_numpy()
    return numbers // 1000


def _crcs(values: pa.Array, seeds: UInt32 | None = None) -> UInt32:
    """CRC-32 of each, (n,), which continues its seed; a null counts as empty."""
    offsets, data = value_bytes(values.fill_null(b"") if values.null_count else values)
    return slice_crcs(data, offsets[:-1], offsets[1:], seeds)


def _crc_texts(values: pa.Array, seeds: UInt32 | None = None) -> pa.StringArray:
    """The same as 8 hex digits each."""
    return _fixed(_HEX[_crcs(values, seeds).astype(">u4").view(np.uint8).reshape(-1, 4)], 8)


def _fixed(texts: npt.NDArray[np.uint16], width: int) -> pa.StringArray:
    offsets = np.arange(0, (len(texts) + 1) * width, width, dtype=np.int32)
    return pa.StringArray.from_buffers(len(texts), pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(texts)))
