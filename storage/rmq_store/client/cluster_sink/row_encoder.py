"""Rows of an Arrow batch as entries of batch bodies, target by target (data plane).

A row's queue is the one that it names (`useQueueId`), or that of its sharding key, or any of its topic. With a delay
level or a time of delivery it goes alone, and so do rows for retry and dead-letter topics: brokers refuse these in a
batch (MessageBatch.generateFromList; SendMessageProcessor.handleRetryAndDLQ).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_store.client.cluster_sink.chunks import Rows, RowsToMake, Shared, TargetQueue
from rmq_store.errors import UsageError
from rmq_store.format.batches.batch_bodies import KEY_BYTES, batch_entries
from rmq_store.format.batches.content_keys import (
    PLACE_BYTES,
    FoundKeys,
    KeyMaker,
    body_checks,
    content_digests,
)
from rmq_store.format.batches.encode_input import EncodeInput, EncodeOptions
from rmq_store.format.batches.frame_encoder import encode_batch
from rmq_store.format.batches.row_entries import Entries, RowEntries
from rmq_store.format.bytes.gather import take_slices, value_bytes
from rmq_store.format.properties.new_message import ADDED_ON_THE_WAY, IDENTITIES
from rmq_store.format.properties.property_encoder import refusal
from rmq_store.format.properties.property_string import DELAY_TIME_LEVEL, TIMER_DELIVER_MS
from rmq_store.format.text.hashing import java_hash, java_hashes
from rmq_store.format.text.host import Host
from rmq_store.format.text.ids import UniqueIdGenerator
from rmq_store.format.text.names import DLQ_PREFIX, RETRY_PREFIX, is_system_topic
from rmq_store.lazy.arrow_compute import pc
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.protocol.errors import ReplayConflictError
from rmq_store.protocol.messages import MessageQueue

Mask = npt.NDArray[np.bool_]
Int64 = npt.NDArray[np.int64]

WAIT: Final = b"WAIT\x01true\x02"

BODY_BYTES_MAX: Final = 4 << 20
"""maxMessageSize of a broker's default settings; a broker answers a larger message with 13."""

# Brokers add CLUSTER, MSG_REGION and TRACE_ON, and to delayed rows REAL_TOPIC, REAL_QID and properties of the timer.
_BROKER_PROPERTIES_BYTES_MAX: Final = 767
_PROPERTIES_BYTES_MAX: Final = 32_767 - _BROKER_PROPERTIES_BYTES_MAX

# An entry is shorter than a frame, by less than this.
_USUAL_ENTRY_BYTES_MAX: Final = BODY_BYTES_MAX - 1024
# With fewer rows in each group, one after the other costs more than all of them by way of frames.
_USUAL_GROUP_ROWS: Final = 64

_NOBODY = Host.parse("0.0.0.0:0")
_PLACE = np.dtype([("born_ms", ">i8"), ("broker", ">i4"), ("queue_id", ">i4")])
assert _PLACE.itemsize == PLACE_BYTES

_MICROSECONDS_PER_MS = 1000
_COMPRESSION_BITS = 0x701


@dataclass(frozen=True, slots=True)
class EncoderSettings:
    """The settings of all rows of a write. `default_topic` replaces the column topic. `compress_over_bytes`: as in
    `EncodeOptions`. `keep_unique_key`: rows have UNIQ_KEYs of their own, and get others only where these are missing.
    Otherwise they are new messages, without the properties that belong to others.
    """

    default_topic: str | None = None
    use_queue_id: bool = False
    keep_unique_key: bool = False
    compress_over_bytes: int | None = None
    drop_properties: frozenset[str] = frozenset()


class Targets(Protocol):
    """The topics of rows, for an encoder."""

    def prepare(self, topics: Sequence[str], delayed: bool) -> FoundKeys | None:
        """Make everything ready for sends to these topics, some of them `delayed`. Returns the keys that an earlier
        attempt has stored; None if there was none.
        """

    def queues(self, topic: str) -> Sequence[MessageQueue]:
        """The writable queues of a topic that is ready, in their order, at least one."""

    def refuse_timers(self, topics: Sequence[str]) -> None:
        """Rows of these topics have deliver times. TimerNotSupportedError: a broker of one has no timers."""


class RowEncoder:
    """Encodes the batches of one task. Rows that are stored already are left out, and counted in `skipped`.

    `unique_ids` makes the keys of rows with `keep_unique_key`; all other rows get the keys of `keys`.
    """

    def __init__(
        self,
        settings: EncoderSettings,
        targets: Targets,
        keys: KeyMaker,
        unique_ids: UniqueIdGenerator,
    ) -> None:
        self._settings = settings
        self._targets = targets
        self._keys = keys
        self.skipped = 0
        kept = settings.keep_unique_key
        self._options = EncodeOptions(
            _NOBODY, _NOBODY, 1, crc_property=False, index_tags=False,
            unique_ids=unique_ids if kept else None,
            max_message_bytes=BODY_BYTES_MAX, compress_over_bytes=settings.compress_over_bytes,
            drop_properties=settings.drop_properties | (frozenset() if kept else IDENTITIES | ADDED_ON_THE_WAY),
        )  # fmt: skip

    def encode(self, batch: pa.RecordBatch, first_row: int, now_ms: int) -> Iterator[Rows | RowsToMake]:
        """Yield the rows of a batch that are to be sent; its rows count from `first_row` in the task.

        Usual rows are made when their chunk is: the brokers then store one chunk while the next one is made, and a body
        is copied once. All others are made before the first ones are yielded.

        Raises:
            UsageError: a column of another type, a body that is null, empty or too long, a topic that takes no
                messages, a queue that is not there, a delay level below 0; names row and column.
            ReplayConflictError: a row's key was found with another body.
            TimerNotSupportedError: as `Targets.refuse_timers`.
        """
        batch = self._with_properties(batch)
        given = EncodeInput(batch)
        topics = given.topics()
        names = topics.dictionary.to_pylist()
        options = replace(self._options, now_ms=now_ms)
        usual = self._usual(given, topics, options)
        frames = None if usual is not None else _frames(batch, options)
        _refuse_empty(batch.column("body"))
        codes = topics.indices.to_numpy()
        singles = _singles(batch, names, codes)
        used = _used_topics(names, codes)
        if TIMER_DELIVER_MS in batch.schema.names and batch.column(TIMER_DELIVER_MS).null_count < batch.num_rows:
            self._targets.refuse_timers(sorted(used.values()))
        found = self._targets.prepare(sorted(used.values()), bool(singles.any()))
        queues = _Queues(self._targets, names, codes, used)
        chosen = queues.chosen(batch, self._settings.use_queue_id)
        born_ms = _born_ms(batch)
        if usual is not None and not found and not singles.any():
            header = _Codes(queues.codes, chosen.queues, usual.sys_flags & _COMPRESSION_BITS, born_ms, singles)
            groups = list(header.groups(None))
            if len(groups) == 1 or len(groups) * _USUAL_GROUP_ROWS <= batch.num_rows:
                places = queues.places(chosen, born_ms)
                for rows in groups:
                    yield self._to_make(rows, queues, header, usual, places, first_row)
                return
        if frames is None:
            frames = _frames(batch, options)
        singles = singles | _too_long_for_a_batch(frames)
        keys, checks, kept = np.zeros(0, np.uint8), np.zeros(0, np.uint64), None
        if not self._settings.keep_unique_key:
            places = queues.places(chosen, born_ms)
            keys, checks = self._keys.keys(content_digests(frames, self._keys.seed, places)), body_checks(frames)
            kept = self._left_over(found, keys, checks, first_row)
        offsets, entries = batch_entries(frames, keys if len(keys) else None, WAIT)
        _refuse_long_properties(batch, frames, offsets)
        header = _Codes(queues.codes, chosen.queues, _sys_flags(frames), born_ms, singles)
        for rows in header.groups(kept):
            yield self._rows(rows, queues, header, offsets, entries, keys, checks, first_row)

    def _usual(self, given: EncodeInput, topics: pa.DictionaryArray, options: EncodeOptions) -> RowEntries | None:
        if self._settings.keep_unique_key:
            return None
        return RowEntries.measured(given, topics, options, WAIT, _USUAL_ENTRY_BYTES_MAX, _PROPERTIES_BYTES_MAX)

    def _to_make(
        self,
        rows: Int64,
        queues: _Queues,
        codes: _Codes,
        usual: RowEntries,
        places: npt.NDArray[np.uint8],
        first_row: int,
    ) -> RowsToMake:
        first = int(rows[0])

        def make(start: int, end: int) -> Entries:
            return usual.write(rows[start:end], self._keys, places)

        target, shared = queues.target(int(codes.topics[first]), int(codes.queues[first])), codes.shared(first)
        return RowsToMake(target, shared, usual.sizes[rows], make, first_row + first)

    def _with_properties(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """With columns that become the properties of a delay."""
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        if self._settings.default_topic is not None:
            codes = pa.array(np.zeros(batch.num_rows, np.int32))
            columns["topic"] = pa.DictionaryArray.from_arrays(codes, pa.array([self._settings.default_topic]))
        if "delayLevel" in columns:
            levels = columns.pop("delayLevel").cast(pa.int32())
            if len(bad := np.flatnonzero(levels.fill_null(0).to_numpy() < 0)):
                row = int(bad[0])
                raise refusal(row, "delayLevel", f"{levels[row]} is no delay level; 0 and null mean none")
            is_delayed = pc.greater(levels, 0).fill_null(False)
            columns[DELAY_TIME_LEVEL] = pc.if_else(is_delayed, levels.cast(pa.string()), pa.scalar(None, pa.string()))
        if "deliverTimestamp" in columns:
            times = columns.pop("deliverTimestamp").cast(pa.timestamp("us", "UTC")).view(pa.int64())
            texts = pc.divide(times, pa.scalar(_MICROSECONDS_PER_MS)).cast(pa.string())
            if DELAY_TIME_LEVEL in columns:  # the level wins, as in a store
                texts = pc.if_else(columns[DELAY_TIME_LEVEL].is_valid(), pa.scalar(None, pa.string()), texts)
            columns[TIMER_DELIVER_MS] = texts
        return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))

    def _left_over(
        self, found: FoundKeys | None, keys: npt.NDArray[np.uint8], checks: npt.NDArray[np.uint64], first_row: int
    ) -> Int64 | None:
        """The rows that are not stored yet; None: all of them."""
        if found is None or not len(found):
            return None
        is_found, of_found = found.find(keys)
        differ = np.flatnonzero(is_found & (of_found != checks))
        if len(differ):
            row = int(differ[0])
            key = keys[KEY_BYTES * row : KEY_BYTES * (row + 1)].tobytes().hex().upper()
            raise ReplayConflictError(first_row + row, key)
        self.skipped += int(np.count_nonzero(is_found))
        return np.flatnonzero(~is_found)

    def _rows(
        self,
        rows: Int64,
        queues: _Queues,
        codes: _Codes,
        offsets: Int64,
        entries: npt.NDArray[np.uint8],
        keys: npt.NDArray[np.uint8],
        checks: npt.NDArray[np.uint64],
        first_row: int,
    ) -> Rows:
        first, last = int(rows[0]), int(rows[-1])
        sizes = offsets[rows + 1] - offsets[rows]
        target, shared = queues.target(int(codes.topics[first]), int(codes.queues[first])), codes.shared(first)
        if last - first + 1 == len(rows):  # one behind another
            taken = entries[offsets[first] : offsets[last + 1]]
            picked = slice(first, last + 1)
        else:
            copied = take_slices(pa.py_buffer(entries), offsets[rows], offsets[rows + 1])
            taken_offsets, data = value_bytes(copied)
            taken = data[taken_offsets[0] : taken_offsets[-1]]
            picked = rows  # type: ignore[assignment]
        row_keys = keys.reshape(-1, KEY_BYTES)[picked].ravel() if len(keys) else keys
        row_checks = checks[picked] if len(checks) else checks
        return Rows(target, shared, sizes, taken, row_keys, row_checks, first_row + first)


@dataclass(frozen=True, slots=True)
class _Chosen:
    """Of each row the place of its queue among those of its topic, -1 for any (n,); and which rows named theirs."""

    queues: Int64
    wished: Mask


class _Queues:
    """The queues of the topics of a batch."""

    def __init__(
        self, targets: Targets, names: list[str], codes: npt.NDArray[np.int32], used: Mapping[int, str]
    ) -> None:
        self.names = names
        self.codes = codes.astype(np.int64)
        self._queues = {code: targets.queues(name) for code, name in used.items()}

    def target(self, code: int, queue: int) -> TargetQueue:
        """The target of rows of a topic."""
        return TargetQueue(self.names[code], None if queue < 0 else self._queues[code][queue])

    def chosen(self, batch: pa.RecordBatch, use_queue_id: bool) -> _Chosen:
        """The queues that rows name, or that their sharding keys lead to."""
        count = batch.num_rows
        queues, wished = np.full(count, -1, np.int64), np.zeros(count, np.bool_)
        names = batch.schema.names
        if "shardingKey" in names:
            column = batch.column("shardingKey").cast(pa.string())
            keyed = pc.greater(pc.binary_length(column), 0).fill_null(False).to_numpy(zero_copy_only=False)
            hashes = np.abs(java_hashes(column.fill_null("")).astype(np.int64))
            assert java_hash("") == 0
            for code, of_topic in self._queues.items():
                rows = keyed & (self.codes == code)
                queues[rows] = hashes[rows] % len(of_topic)
        if use_queue_id and "queueId" in names:
            self._take_wishes(batch, queues, wished)
        return _Chosen(queues, wished)

    def _take_wishes(self, batch: pa.RecordBatch, queues: Int64, wished: Mask) -> None:
        ids = batch.column("queueId").cast(pa.int32())
        brokers = None
        if "brokerName" in batch.schema.names:
            brokers = batch.column("brokerName").cast(pa.string()).dictionary_encode()
        wished |= ids.is_valid().to_numpy(zero_copy_only=False)
        numbers = ids.fill_null(-1).to_numpy().astype(np.int64)
        broker_codes = np.full(len(ids), -1, np.int64)
        broker_names: list[str] = []
        if brokers is not None:
            broker_codes = brokers.indices.fill_null(-1).to_numpy().astype(np.int64)
            broker_names = brokers.dictionary.to_pylist()
        wishes = np.stack((self.codes, broker_codes, numbers), axis=1)[wished]
        different, of_row = np.unique(wishes, axis=0, return_inverse=True)
        rows = np.flatnonzero(wished)
        places = np.empty(len(different), np.int64)
        for number, (code, broker, queue_id) in enumerate(different.tolist()):
            broker_name = broker_names[broker] if broker >= 0 else None
            try:
                places[number] = _place_of(self._queues[code], self.names[code], broker_name, queue_id)
            except UsageError as error:
                row = int(rows[int((of_row.ravel() == number).argmax())])
                raise refusal(row, "queueId", str(error)) from error
        queues[rows] = places[of_row.ravel()]

    def places(self, chosen: _Chosen, born_ms: Int64) -> npt.NDArray[np.uint8]:
        """PLACE_BYTES for each row: what it asks for besides its content."""
        places = np.zeros(len(self.codes), _PLACE)
        places["born_ms"] = born_ms
        places["queue_id"] = -1
        if chosen.wished.any():
            for code, queues in self._queues.items():
                rows = chosen.wished & (self.codes == code)
                brokers = np.array([zlib.crc32(queue.broker_name.encode()) for queue in queues], np.uint32)
                places["broker"][rows] = brokers[chosen.queues[rows]].view(np.int32)
                places["queue_id"][rows] = np.array([queue.queue_id for queue in queues])[chosen.queues[rows]]
        return places.view(np.uint8)


def _used_topics(names: list[str], codes: npt.NDArray[np.int32]) -> dict[int, str]:
    """The topics that rows have, by code."""
    used = {code: names[code] for code in np.flatnonzero(np.bincount(codes, minlength=len(names))).tolist()}
    for code, name in used.items():
        if is_system_topic(name):
            row = int((codes == code).argmax())
            raise refusal(row, "topic", f"{name!r} is a system topic: only brokers write to it")
    return used


def _place_of(queues: Sequence[MessageQueue], topic: str, broker_name: str | None, queue_id: int) -> int:
    found = [
        place
        for place, queue in enumerate(queues)
        if queue.queue_id == queue_id and broker_name in (None, queue.broker_name)
    ]
    if len(found) == 1:
        return found[0]
    if not found:
        at = f"broker {broker_name!r}" if broker_name is not None else "any broker"
        raise UsageError(f"topic {topic!r} has no writable queue {queue_id} at {at}")
    raise UsageError(
        f"{len(found)} brokers have a queue {queue_id} of topic {topic!r}: a column brokerName says which one is meant"
    )


class _Codes:
    """The values that decide which rows go together."""

    def __init__(self, topics: Int64, queues: Int64, sys_flags: Int64, born_ms: Int64, singles: Mask) -> None:
        self.topics = topics
        self.queues = queues
        self._sys_flags = sys_flags
        self._born_ms = born_ms
        self._singles = singles

    def shared(self, row: int) -> Shared:
        """The header that a row needs."""
        return Shared(int(self._sys_flags[row]), int(self._born_ms[row]), bool(self._singles[row]))

    def groups(self, kept: Int64 | None) -> Iterator[Int64]:
        """Yield the rows of each target, split where the header changes; rows keep their order within a target."""
        rows = np.arange(len(self.topics)) if kept is None else kept
        if not len(rows):
            return
        targets = [column for column in (self.topics, self.queues) if _varies(column)]
        if targets:
            rows = rows[np.lexsort([column[rows] for column in targets])]  # stable
        columns = [c for c in (*targets, self._sys_flags, self._born_ms, self._singles) if _varies(c)]
        changes = np.zeros(len(rows) - 1, np.bool_)
        for column in columns:
            changes |= column[rows[1:]] != column[rows[:-1]]
        yield from np.split(rows, np.flatnonzero(changes) + 1)


def _frames(batch: pa.RecordBatch, options: EncodeOptions) -> pa.LargeBinaryArray:
    return encode_batch(batch, queue_ids=np.zeros(batch.num_rows, np.int32), options=options).column("frame")


def _varies(column: npt.NDArray[np.generic]) -> bool:
    return bool((column != column[0]).any())


def _singles(batch: pa.RecordBatch, names: list[str], codes: npt.NDArray[np.int32]) -> Mask:
    """Flags of the rows that go one by one."""
    by_code = np.array([name.startswith((RETRY_PREFIX, DLQ_PREFIX)) for name in names], np.bool_)
    singles: Mask = by_code[codes]
    for name in (DELAY_TIME_LEVEL, TIMER_DELIVER_MS):
        if name in batch.schema.names:
            singles = singles | batch.column(name).is_valid().to_numpy(zero_copy_only=False)
    return singles


def _too_long_for_a_batch(frames: pa.LargeBinaryArray) -> Mask:
    """A broker limits the body of a request: of a batch these are whole entries, of a single message its body alone."""
    lengths: Int64 = pc.binary_length(frames).to_numpy(zero_copy_only=False)
    return lengths > BODY_BYTES_MAX


def _sys_flags(frames: pa.LargeBinaryArray) -> Int64:
    """The bits that say how a body is compressed."""
    offsets, data = value_bytes(frames)
    starts = offsets[:-1]
    flags = data[starts + 38].astype(np.int64) << 8 | data[starts + 39]
    return flags & _COMPRESSION_BITS


def _born_ms(batch: pa.RecordBatch) -> Int64:
    """Of rows that have a born time of their own, 0 for the others."""
    if "bornTimestamp" not in batch.schema.names:
        return np.zeros(batch.num_rows, np.int64)
    times = batch.column("bornTimestamp").cast(pa.timestamp("us", "UTC")).view(pa.int64())
    born_ms: Int64 = times.fill_null(0).to_numpy() // _MICROSECONDS_PER_MS
    return born_ms


def _refuse_empty(bodies: pa.Array) -> None:
    lengths = pc.binary_length(bodies).to_numpy(zero_copy_only=False)
    if len(empty := np.flatnonzero(lengths == 0)):
        raise refusal(int(empty[0]), "body", "it is empty: brokers take no message without a body (Validators.java)")


def _refuse_long_properties(batch: pa.RecordBatch, frames: pa.LargeBinaryArray, offsets: Int64) -> None:
    """Brokers add properties of their own, and answer with 13 if all are too long, or lose what is behind."""
    lengths = np.diff(offsets) - pc.binary_length(batch.column("body")).to_numpy(zero_copy_only=False)
    limit = _PROPERTIES_BYTES_MAX
    if len(candidates := np.flatnonzero(lengths > limit)):
        row = int(candidates[0])
        reason = f"about {lengths[row]} bytes of properties: brokers add some, {limit} are possible"
        raise refusal(row, "properties", reason)
