"""The fields of frames that consume queues and the index need, a whole batch at once (data plane).

Source: CommitLog.java (checkMessageAndReturnSize: tagsCode), IndexService.java (buildIndex),
ScheduleMessageService.java (computeDeliverTimestamp).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_store.format.bytes import native
from rmq_store.format.frames.frame_check import SysFlag
from rmq_store.format.frames.frame_fields import FrameHeaders, frame_columns
from rmq_store.format.properties import property_string as names
from rmq_store.format.properties.property_columns import LAST_WINS, PropertyPieces
from rmq_store.format.text.hashing import java_hashes
from rmq_store.format.text.names import PYRMQ_TIMER_TOPIC, SCHEDULE_TOPIC
from rmq_store.format.views.index_keys import index_key_hashes, topic_hashes
from rmq_store.lazy.arrow_compute import pc
from rmq_store.lazy.dataclasses import dataclass

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]

_JAVA_INT = re.compile(r"[+-]?[0-9]{1,10}", re.ASCII)
_INT32_MAX = (1 << 31) - 1

_HAVE_TIMES = {SCHEDULE_TOPIC, PYRMQ_TIMER_TOPIC}
"""Topics whose messages have their times of delivery as tags codes."""

_TOPICS_MAX = 256  # as TOPICS_MAX of native/dispatch.c
_KEYS_EXPECTED = 4


@dataclass(frozen=True)
class DispatchColumns:
    """Dispatch fields of n frames: `topic` dictionary<int32, string>; the other arrays (n,), except `key_hashes` (sum
    of key_counts,).

    `dispatchable` says which frames get a queue entry; `tags_code` is that entry's. `key_hashes` are the index hashes
    of all frames one after another, in the order of their index entries.
    """

    topic: pa.DictionaryArray
    queue_id: Int32
    queue_offset: Int64
    tags_code: Int64
    store_timestamp: Int64
    dispatchable: npt.NDArray[np.bool_]
    key_counts: Int32
    key_hashes: Int32

    def parts(self, cuts: Sequence[int]) -> Iterator[DispatchColumns]:
        """The columns of the frames from each of `cuts` (row numbers, ascending) to the next one; nothing is copied."""
        hashes = np.concatenate([[0], np.cumsum(self.key_counts)])[list(cuts)].tolist()
        for (low, high), (first, behind) in zip(pairwise(cuts), pairwise(hashes), strict=True):
            yield DispatchColumns(
                topic=self.topic.slice(low, high - low),
                queue_id=self.queue_id[low:high],
                queue_offset=self.queue_offset[low:high],
                tags_code=self.tags_code[low:high],
                store_timestamp=self.store_timestamp[low:high],
                dispatchable=self.dispatchable[low:high],
                key_counts=self.key_counts[low:high],
                key_hashes=self.key_hashes[first:behind],
            )


def dispatch_columns(
    buffer: pa.Buffer,
    positions: Int64,
    sizes: Int32,
    base_offset: int,
    delay_level_ms: Sequence[int],
    *,
    index_tags: bool = True,
) -> DispatchColumns:
    """Read the fields that queues and index need from the frames at `positions` (n,), `sizes` (n,) of a mapped segment.

    `base_offset` is the commit-log offset of the buffer's first byte. `delay_level_ms[k]` is the delay of level k + 1:
    a message in SCHEDULE_TOPIC_XXXX with a level above 0 has its due time as tags code. `index_tags`: tags get index
    entries, as in brokers from 5.4.0 on.

    Raises:
        CorruptRecordError: a frame is not what its entry says; `.offset` is the frame's in the log, `.path` is empty.
    """
    if native.LOADED:
        found = _natively(buffer, positions, sizes, base_offset, index_tags=index_tags)
        if found is not None and not _HAVE_TIMES & set(found.topic.dictionary.to_pylist()):
            return found
    headers = frame_columns(buffer, positions, sizes, base_offset=base_offset)
    # Of a batch of a 5.x client every message has the batch's id as a second UNIQ_KEY: Java indexes that one.
    pieces = headers.properties(first_wins=LAST_WINS)
    topics = headers.topics().dictionary_encode()
    tags_code = java_hashes(pieces.column(names.TAGS).dictionary_encode()).astype(np.int64)
    _set_deliver_times(tags_code, headers, topics, pieces, delay_level_ms)
    _set_due_times(tags_code, topics, pieces)
    # ROLLBACK is not indexed, PREPARED is.
    indexed = headers.transaction_type != int(SysFlag.TRANSACTION_ROLLBACK)
    key_counts, key_hashes = index_key_hashes(
        topic_hashes(topics),
        pieces.column(names.UNIQUE_KEY),
        pieces.column(names.KEYS),
        indexed,
        pieces.column(names.TAGS) if index_tags else None,
    )
    return DispatchColumns(
        topic=topics,
        queue_id=headers.queue_id,
        queue_offset=headers.queue_offset,
        tags_code=tags_code,
        store_timestamp=headers.store_timestamp,
        dispatchable=headers.dispatchable,
        key_counts=key_counts,
        key_hashes=key_hashes,
    )


def _natively(
    buffer: pa.Buffer, positions: Int64, sizes: Int32, base_offset: int, *, index_tags: bool
) -> DispatchColumns | None:
    """As `dispatch_columns`, but for times of delivery; None: a frame is not usual."""
    data = np.frombuffer(buffer, np.uint8)
    count = len(positions)
    codes, queue_id, key_counts = np.empty((3, count), np.int32)
    queue_offset, tags_code, store_timestamp = np.empty((3, count), np.int64)
    dispatchable, topic_places = np.empty(count, np.bool_), np.empty((2, _TOPICS_MAX), np.int64)
    wanted, room = _KEYS_EXPECTED * count, -1
    while wanted > room:
        room = wanted
        key_hashes = np.empty(room, np.int32)
        done = native.functions.dispatch_frames(
            data, np.ascontiguousarray(positions, np.int64), np.ascontiguousarray(sizes, np.int64), base_offset,
            index_tags, codes, queue_id, queue_offset, tags_code, store_timestamp, dispatchable, key_counts, key_hashes,
            *topic_places,
        )  # fmt: skip
        if done is None:
            return None
        topic_count, wanted = done
    places = topic_places[:, :topic_count].T.tolist()
    topics = pa.array([data[start : start + size].tobytes().decode() for start, size in places], pa.string())
    return DispatchColumns(
        topic=pa.DictionaryArray.from_arrays(codes, topics),
        queue_id=queue_id,
        queue_offset=queue_offset,
        tags_code=tags_code,
        store_timestamp=store_timestamp,
        dispatchable=dispatchable,
        key_counts=key_counts,
        key_hashes=key_hashes[:wanted],
    )


def _set_deliver_times(
    tags_code: Int64,
    headers: FrameHeaders,
    topics: pa.DictionaryArray,
    pieces: PropertyPieces,
    delay_level_ms: Sequence[int],
) -> None:
    """Replace the tags codes of scheduled messages by their deliver time, in place."""
    schedule_code = topics.dictionary.index(SCHEDULE_TOPIC).as_py()
    if schedule_code < 0 or not delay_level_ms:
        return
    levels = pieces.column(names.DELAY_TIME_LEVEL).dictionary_encode()
    # Level 0 in the last place, for messages without the property; a level above the table's counts as its last.
    delays_ms = np.array([_delay_ms(text, delay_level_ms) for text in levels.dictionary.to_pylist()] + [0], np.int64)
    row_delays = delays_ms[levels.indices.fill_null(len(levels.dictionary)).to_numpy()]
    scheduled = (topics.indices.to_numpy() == schedule_code) & (row_delays > 0)
    tags_code[scheduled] = headers.store_timestamp[scheduled] + row_delays[scheduled]


def due_times(pieces: PropertyPieces) -> pa.Int64Array:
    """(n,): TIMER_OUT_MS, when a message of PYRMQ_TIMER_TOPIC is due; null where there is no such number."""
    texts = pieces.column(names.TIMER_OUT_MS)
    return pc.if_else(pc.match_substring_regex(texts, "^[0-9]{1,18}$"), texts, None).cast(pa.int64())


def _set_due_times(tags_code: Int64, topics: pa.DictionaryArray, pieces: PropertyPieces) -> None:
    """Replace the tags codes of messages that wait for an absolute time by that time, in place."""
    timer_code = topics.dictionary.index(PYRMQ_TIMER_TOPIC).as_py()
    if timer_code >= 0:
        due = due_times(pieces)
        timed = (topics.indices.to_numpy() == timer_code) & due.is_valid().to_numpy(zero_copy_only=False)
        tags_code[timed] = due.fill_null(0).to_numpy()[timed]


def _delay_ms(text: str, delay_level_ms: Sequence[int]) -> int:
    """Delay of the level that `text` names, at most the last one; 0 for none, and for what Java's parseInt refuses."""
    level = int(text) if _JAVA_INT.fullmatch(text) else 0
    return delay_level_ms[min(level, len(delay_level_ms)) - 1] if 0 < level <= _INT32_MAX else 0
