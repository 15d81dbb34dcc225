"""Frames of the commit log as Arrow columns, a whole batch at once (data plane).

Only the requested columns are made: the property string, hosts and bodies are not read otherwise.
Source: MessageDecoder.java (decode), MessageClientExt.java (getMsgId), MessageExt.java.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_store.errors import CorruptRecordError, UsageError
from rmq_store.format.batches.native_decoder import decode_ordinary
from rmq_store.format.bytes import native
from rmq_store.format.bytes.gather import SLICES_BYTES_MAX, all_are, repeated
from rmq_store.format.frames.compression import DecompressionError, inflate
from rmq_store.format.frames.frame_check import SysFlag
from rmq_store.format.frames.frame_crcs import damage_of
from rmq_store.format.frames.frame_dispatch import DispatchColumns, dispatch_columns
from rmq_store.format.frames.frame_fields import FrameHeaders, frame_columns
from rmq_store.format.properties import property_string as names
from rmq_store.format.properties.light_queues import are_dispatched, is_light
from rmq_store.format.properties.property_columns import LAST_WINS, PropertyPieces
from rmq_store.format.tables.schema import JAVA_MSG_ID, READABLE_SCHEMA, TIMESTAMP_TYPE, message_schema
from rmq_store.format.text.host_columns import host_message_ids, host_texts
from rmq_store.lazy.arrow_compute import pc
from rmq_store.memory import BatchMemory

__all__ = [
    "BatchTooLargeError",
    "DispatchColumns",
    "FrameHeaders",
    "NotOwnedError",
    "Owner",
    "decode_frames",
    "dispatch_columns",
    "frame_columns",
]

# Limit for the bodies of one batch: stored bytes say nothing about it, and a bomb is a thousand times its size.
DECOMPRESSED_BYTES_MAX = 256 << 20

# A datetime cannot show years outside 1..9999, and every Python user of the batch would fail on such a row.
_TIMESTAMP_MS_MIN = -62_135_596_800_000
_TIMESTAMP_MS_MAX = 253_402_300_799_999


class BatchTooLargeError(UsageError):
    """These frames do not fit into one batch. The caller may retry with half of them."""


class Owner(NamedTuple):
    """The queue that the frames must belong to, with their queue offsets (n,). Frames of a light queue (`light_queues`)
    have a topic, queue id and queue offset other than the light queue's.
    """

    topic: str
    queue_id: int
    queue_offsets: npt.NDArray[np.int64]


class NotOwnedError(Exception):
    """The frame of `row` has another topic, queue id or queue offset: `found`."""

    def __init__(self, row: int, found: tuple[str, int, int]) -> None:
        super().__init__(row, found)
        self.row = row
        self.found = found


def decode_frames(
    buffer: pa.Buffer,
    positions: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int32],
    *,
    base_offset: int | None,
    columns: Sequence[str],
    broker_name: str,
    raw_body: bool,
    body_limit_bytes: int,
    owner: Owner | None = None,
    memory: BatchMemory | None = None,
) -> pa.RecordBatch:
    """The messages at `positions` (n,) of a mapped segment, each of `sizes` (n,) bytes; any order, repeats allowed.

    `columns` are names of READABLE_SCHEMA and the columns of the result, in that order. `base_offset` is the commit-log
    offset of the buffer's first byte; None: the frames come from anywhere in a log, as in an answer to a pull, and
    errors name the position. Timestamps outside the years 1..9999 become the nearest inside. The batch owns its memory:
    the segment may be unmapped. The memory comes from `memory`, if given.

    Unless `raw_body`, compressed bodies are decompressed, and the COMPRESSED bit of their `sysFlag` is cleared as 5.x
    clients do. A body that `inflate` refuses, given `body_limit_bytes`, stays as it lies, with the bit set: it is what
    its producer sent, if its frame has the right CRC.

    Raises:
        CorruptRecordError: a frame is not what its entry says, is not at its physicalOffset, or its body cannot be
            inflated and its CRC is wrong; `.offset` is the frame's in the log, `.path` is empty.
        UsageError: an unknown column, or more than 2 GiB in one column: ask for fewer frames.
        NotOwnedError: a frame is not `owner`'s, if one is given.
        BatchTooLargeError: more than DECOMPRESSED_BYTES_MAX after decompression, from more than one frame.
    """
    unknown = [name for name in columns if name not in _MAKERS]
    if unknown:
        raise UsageError(f"no such message column: {unknown[0]!r}; there are {', '.join(_MAKERS)}")
    of_light = owner is not None and is_light(owner.topic)
    is_native = native.LOADED and buffer.size <= SLICES_BYTES_MAX
    if is_native and JAVA_MSG_ID not in columns and not of_light:
        ordinary = decode_ordinary(
            np.frombuffer(buffer, np.uint8), np.ascontiguousarray(positions, np.int64),
            np.ascontiguousarray(sizes, np.int64), base_offset=base_offset, columns=columns, broker_name=broker_name,
            raw_body=raw_body, owner=owner, memory=memory or BatchMemory(),
        )  # fmt: skip
        if ordinary is not None:
            return ordinary
    headers = frame_columns(buffer, positions, sizes, base_offset=base_offset)
    if owner is not None:
        _check_owner(headers, owner, of_light=of_light)
    decoding = _Decoding(headers, broker_name, None if raw_body else body_limit_bytes)
    return pa.RecordBatch.from_arrays(
        [_MAKERS[name](decoding) for name in columns],
        schema=message_schema(tuple(columns)),
    )


def _check_owner(headers: FrameHeaders, owner: Owner, *, of_light: bool) -> None:
    bad = (headers.queue_offset != owner.queue_offsets) | (headers.queue_id != owner.queue_id)
    topics = headers.topics()
    if not all_are(topics, owner.topic.encode()):
        bad |= pc.not_equal(topics, owner.topic).to_numpy(zero_copy_only=False)
    if of_light and owner.queue_id == 0 and bad.any():
        bad &= ~are_dispatched(headers.properties(), owner.topic, owner.queue_offsets)
    if bad.any():
        row = int(bad.argmax())
        found = topics[row].as_py(), int(headers.queue_id[row]), int(headers.queue_offset[row])
        raise NotOwnedError(row, found)


class _Decoding:
    """One call of `decode_frames`: the checked headers, and what more than one column needs."""

    def __init__(self, headers: FrameHeaders, broker_name: str, body_limit_bytes: int | None) -> None:
        self.headers = headers
        self.broker_name = broker_name
        self._body_limit_bytes = body_limit_bytes  # None: bodies stay as they are stored

    @cached_property
    def properties(self) -> PropertyPieces:
        return self.headers.properties()

    def sys_flags(self) -> pa.Array:
        flags = self.headers.sys_flag.copy()
        flags[self._inflated[0]] &= ~np.int32(SysFlag.COMPRESSED)
        return pa.array(flags)

    def bodies(self) -> pa.BinaryArray:
        stored = self.headers.bodies()
        rows, plain = self._inflated
        if len(rows) == 0:
            return stored
        choice = np.arange(len(stored))
        choice[rows] = len(stored) + np.arange(len(rows))
        return pa.concat_arrays([stored, pa.array(plain, pa.binary())]).take(pa.array(choice))

    @cached_property
    def _inflated(self) -> tuple[npt.NDArray[np.intp], list[bytes]]:
        """The rows whose bodies are decompressed, (n,) ascending, and these bodies."""
        headers, limit_bytes = self.headers, self._body_limit_bytes
        rows: list[int] = []
        plain: list[bytes] = []
        compressed = [] if limit_bytes is None else np.flatnonzero(headers.flagged(SysFlag.COMPRESSED)).tolist()
        total_bytes = int((headers.body_end - headers.body_start).sum())
        for row in compressed:
            body = headers.data[headers.body_start[row] : headers.body_end[row]].tobytes()
            try:
                plain.append(inflate(body, int(headers.sys_flag[row]), limit_bytes or 0))
            except DecompressionError:
                self._check_crc(row)
                continue
            rows.append(row)
            total_bytes += len(plain[-1])
            if total_bytes > DECOMPRESSED_BYTES_MAX and len(headers.positions) > 1:
                count = len(headers.positions)
                raise BatchTooLargeError(f"{count} rows do not fit one batch when decompressed: ask for fewer")
        return np.array(rows, np.intp), plain

    def _check_crc(self, row: int) -> None:
        """Raise CorruptRecordError if the frame of `row` is not the one that was stored."""
        damage = damage_of(self.headers, row, None)
        if damage:
            raise CorruptRecordError("", int(self.headers.physical_offset[row]), damage)

    def message_ids(self) -> pa.StringArray:
        return self._ids(self.properties.column(names.UNIQUE_KEY))

    def java_message_ids(self) -> pa.StringArray:
        pieces = self.headers.properties((names.UNIQUE_KEY,), first_wins=LAST_WINS)
        return self._ids(pieces.column(names.UNIQUE_KEY))

    def _ids(self, unique: pa.StringArray) -> pa.StringArray:
        if not unique.null_count:
            return unique
        rows = np.flatnonzero(unique.is_null().to_numpy(zero_copy_only=False))
        headers = self.headers
        made = host_message_ids(
            headers.data,
            headers.store_host_position[rows],
            headers.flagged(SysFlag.STORE_HOST_V6)[rows],
            headers.physical_offset[rows],
        )
        return pc.replace_with_mask(unique, unique.is_null(), made)


def _timestamps(times_ms: npt.NDArray[np.int64]) -> pa.Array:
    if len(times_ms) and (times_ms.min() < _TIMESTAMP_MS_MIN or times_ms.max() > _TIMESTAMP_MS_MAX):
        times_ms = np.clip(times_ms, _TIMESTAMP_MS_MIN, _TIMESTAMP_MS_MAX)
    return pa.array(times_ms * 1000).view(TIMESTAMP_TYPE)


def _born_hosts(headers: FrameHeaders) -> pa.StringArray:
    return host_texts(headers.data, headers.born_host_position, headers.flagged(SysFlag.BORN_HOST_V6))


def _store_hosts(headers: FrameHeaders) -> pa.StringArray:
    return host_texts(headers.data, headers.store_host_position, headers.flagged(SysFlag.STORE_HOST_V6))


_MAKERS: dict[str, Callable[[_Decoding], pa.Array]] = {
    "topic": lambda d: d.headers.topics(),
    "queueId": lambda d: pa.array(d.headers.queue_id),
    "queueOffset": lambda d: pa.array(d.headers.queue_offset),
    "msgId": _Decoding.message_ids,
    "body": _Decoding.bodies,
    "tags": lambda d: d.properties.column(names.TAGS),
    "keys": lambda d: d.properties.column(names.KEYS),
    "properties": lambda d: d.properties.to_map(),
    "reconsumeTimes": lambda d: pa.array(d.headers.reconsume_times),
    "flag": lambda d: pa.array(d.headers.flag),
    "sysFlag": _Decoding.sys_flags,
    "bornTimestamp": lambda d: _timestamps(d.headers.born_timestamp),
    "bornHost": lambda d: _born_hosts(d.headers),
    "storeTimestamp": lambda d: _timestamps(d.headers.store_timestamp),
    "storeHost": lambda d: _store_hosts(d.headers),
    "commitLogOffset": lambda d: pa.array(d.headers.physical_offset),
    "brokerName": lambda d: repeated(d.broker_name, len(d.headers.positions)),
    JAVA_MSG_ID: _Decoding.java_message_ids,
}
assert list(_MAKERS) == READABLE_SCHEMA.names
