"""Decides which dead letters may be redriven, and makes their copies (data plane).

One chunk is some rows of one queue of the dead-letter topic. Each row gets an outcome; rows that move get a copy.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_store.broker.dlq.redrive_ledger import OffsetRanges
from rmq_store.broker.read.queues import Queues
from rmq_store.broker.read.records import FrameRun, StoredFrames, stored_text
from rmq_store.broker.rules.failure import (
    DEAD_LETTER,
    KAFKA_LETTER,
    MIRROR_LETTER,
    ORIGIN_TOPIC,
    REPLAYS,
    with_reasons,
)
from rmq_store.broker.rules.send_back import properties_bytes_max
from rmq_store.broker.write.single_copy import property_string
from rmq_store.errors import CorruptQueueError, CorruptRecordError
from rmq_store.format.batches.frame_copy import CopyOptions, copy_frames
from rmq_store.format.properties import property_string as keys
from rmq_store.format.properties.property_changes import set_properties
from rmq_store.format.properties.property_string import CRC_PROPERTY_BYTES, parse_properties
from rmq_store.format.text.host import Host
from rmq_store.format.text.names import RETRY_PREFIX, RETRY_TOPIC_LENGTH_MAX
from rmq_store.lazy.arrow_compute import pc
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.log.core.commit_log import CommitLog
from rmq_store.log.core.layout import BLANK_BYTES

Int64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

REDRIVEN: Final = "REDRIVEN"
PARKED: Final = "PARKED"
ALREADY_REDRIVEN: Final = "ALREADY_REDRIVEN"
REFUSED: Final = "REFUSED"
GONE: Final = "GONE"

OF_KAFKA: Final = "a dead letter of Kafka: `rmq mirror redrive` produces it to its Kafka topic"
"""Reason of a refusal."""

CHUNK_BYTES: Final = 32 << 20

# A gap of so many entries is read over: 20 bytes each.
_GAP_ENTRIES = 512
_TRIES = 3

# Properties that a broker or a client set on the way to the dead letters.
_LEFT_BEHIND = (
    keys.DELAY_TIME_LEVEL, keys.REAL_TOPIC, keys.REAL_QUEUE_ID, keys.RECONSUME_TIME, keys.MAX_RECONSUME_TIMES,
    keys.CONSUME_START_TIME, keys.MIN_OFFSET, keys.MAX_OFFSET, keys.POP_CK, keys.FIRST_POP_TIME,
)  # fmt: skip

# Bytes that a copy may have more than its original, apart from properties: the topic's name with a longer length field,
# the CRC property, a host with an IPv6 address; and a blank must fit behind it.
_MORE_BYTES_MAX = RETRY_TOPIC_LENGTH_MAX + 1 + CRC_PROPERTY_BYTES + 12 + BLANK_BYTES

# Properties that only messages of a retry topic have.
_ONLY_FOR_RETRY = (keys.RETRY_TOPIC, keys.WAIT_STORE_MSG_OK)


@dataclass(frozen=True, slots=True)
class Policy:
    """Targets of dead letters. `max_replays`: a message that was replayed that often goes to `parking_topic`, or is
    refused.
    """

    target: str
    max_replays: int | None
    parking_topic: str | None


@dataclass
class Judged:
    """The outcomes of m rows, in their order: `outcomes` and `reasons` of object, `ids` of text or None, all (m,).

    `offsets` and `sizes` (m,): commit-log offset and size of each record; 0 bytes if there is none to copy.
    """

    outcomes: npt.NDArray[np.object_]
    reasons: npt.NDArray[np.object_]
    ids: npt.NDArray[np.object_]
    offsets: Int64
    sizes: npt.NDArray[np.int32]

    @classmethod
    def undecided(cls, count: int) -> Judged:
        """Rows without outcomes yet."""
        outcomes, reasons, ids = (np.full(count, None, object) for _ in range(3))
        return cls(outcomes, reasons, ids, np.zeros(count, np.int64), np.zeros(count, np.int32))

    def decide(self, rows: Mask | npt.NDArray[np.intp] | int, outcome: str, reason: str | None) -> None:
        """Give rows their outcome."""
        self.outcomes[rows] = outcome
        self.reasons[rows] = reason

    def open_rows(self) -> npt.NDArray[np.intp]:
        """Rows without an outcome."""
        return np.flatnonzero(self.outcomes == None)  # noqa: E711 - elementwise

    def moving(self) -> npt.NDArray[np.intp]:
        """Rows that move."""
        return np.flatnonzero((self.outcomes == REDRIVEN) | (self.outcomes == PARKED))


@dataclass(frozen=True)
class Copy:
    """Frames of one segment and the properties of their copies: `rows` (n,) of the chunk, `properties` (n,)."""

    run: FrameRun
    kept: npt.NDArray[np.intp]
    properties: pa.LargeBinaryArray
    sharding_keys: pa.StringArray

    @property
    def rows(self) -> npt.NDArray[np.intp]:
        """Their rows in the chunk."""
        return self.run.rows[self.kept]


class Redriver:
    """Judges and copies the dead letters of one topic."""

    def __init__(self, log: CommitLog, queues: Queues, store_host: Host, dlq: str) -> None:
        self._log = log
        self._queues = queues
        self._store_host = store_host
        self._dlq = dlq
        self._frames = StoredFrames(log)
        self._options = CopyOptions(crc_property=log.crc_property, index_tags=log.index_tags)
        self._bytes_max = properties_bytes_max(log.crc_property)

    def judge(
        self, queue_id: int, queue_offsets: Int64, msg_ids: pa.StringArray | None, moved: OffsetRanges, policy: Policy
    ) -> tuple[Judged, list[Copy]]:
        """The outcomes of rows in ascending order of `queue_offsets` (m,), none beyond the queue's end, and the copies
        of the rows that move. `msg_ids` (m,): the ids that the caller expects. The last rows get no outcome if
        CHUNK_BYTES have no room for them.
        """
        for tries_left in reversed(range(_TRIES)):
            judged = Judged.undecided(len(queue_offsets))
            try:
                self._find(judged, queue_id, queue_offsets, moved)
                copies = self._copies(judged, queue_id, queue_offsets, msg_ids, policy)
            except FileNotFoundError as error:  # retention was at work: look again
                if not tries_left:
                    raise CorruptQueueError(self._dlq, 0, f"files of queue {queue_id} are missing: {error}") from error
                continue
            return judged, copies
        raise AssertionError

    def encode(self, copy: Copy, topics: pa.DictionaryArray, queue_ids: npt.NDArray[np.int32]) -> pa.RecordBatch:
        """The records (ENCODED_SCHEMA) of copies that go to these queues; (n,) each."""
        run, kept = copy.run, copy.kept
        return copy_frames(
            run.headers.take(kept),
            topics=topics,
            queue_ids=queue_ids,
            properties=copy.properties,
            reconsume_times=np.zeros(len(kept), np.int32),
            sys_flags=None,
            store_host=self._store_host,
            delay_ms=None,
            options=self._options,
        )

    def _find(self, judged: Judged, queue_id: int, queue_offsets: Int64, moved: OffsetRanges) -> None:
        """Decide the rows that the queue alone decides, and find the records of the others."""
        first, _ = self._queues.range(self._dlq, queue_id)
        judged.decide(np.append(False, queue_offsets[1:] == queue_offsets[:-1]), ALREADY_REDRIVEN, "named twice")
        judged.decide(moved.contains(queue_offsets), ALREADY_REDRIVEN, "moved before")
        undecided = judged.outcomes == None  # noqa: E711 - elementwise
        judged.decide(undecided & (queue_offsets < first), GONE, "removed by retention")
        rows = judged.open_rows()
        if not len(rows):
            return
        wanted = queue_offsets[rows]
        queue = self._log.views.queue(self._dlq, queue_id)
        for stretch in np.split(rows, np.flatnonzero(np.diff(wanted) > _GAP_ENTRIES) + 1):
            start = int(queue_offsets[stretch[0]])
            entries = queue.entries(start, int(queue_offsets[stretch[-1]]) + 1)[queue_offsets[stretch] - start]
            judged.offsets[stretch] = entries["commit_log_offset"]
            judged.sizes[stretch] = entries["frame_size"]
        found = self._frames.sizes(judged.offsets[rows], self._queues.end())
        gone = judged.offsets[rows] < self._log.start()
        judged.decide(rows[gone], GONE, "removed by retention")
        judged.decide(rows[~gone & (found != judged.sizes[rows])], REFUSED, "its queue entry points at no message")
        rows = judged.open_rows()
        over = rows[np.cumsum(judged.sizes[rows], dtype=np.int64) > CHUNK_BYTES]
        judged.sizes[over if len(over) < len(rows) else over[1:]] = 0

    def _copies(
        self,
        judged: Judged,
        queue_id: int,
        queue_offsets: Int64,
        msg_ids: pa.StringArray | None,
        policy: Policy,
    ) -> list[Copy]:
        while True:
            rows = judged.open_rows()
            rows = rows[judged.sizes[rows] > 0]
            try:
                runs = [
                    replace(run, rows=rows[run.rows])
                    for run in self._frames.runs(judged.offsets[rows], judged.sizes[rows])
                ]
            except CorruptRecordError as error:
                damaged = rows[judged.offsets[rows] == error.offset]
                if not len(damaged):
                    raise
                judged.decide(damaged, REFUSED, f"damaged: {error.reason}")
                continue
            return [self._copy(judged, run, queue_id, queue_offsets, msg_ids, policy) for run in runs]

    def _copy(
        self,
        judged: Judged,
        run: FrameRun,
        queue_id: int,
        queue_offsets: Int64,
        msg_ids: pa.StringArray | None,
        policy: Policy,
    ) -> Copy:
        headers, rows = run.headers, run.rows
        ids = run.message_ids()
        judged.ids[rows] = ids.to_numpy(zero_copy_only=False)
        theirs = (headers.queue_id == queue_id) & (headers.queue_offset == queue_offsets[rows])
        theirs &= pc.equal(headers.topics(), self._dlq).to_numpy(zero_copy_only=False)
        judged.decide(rows[~theirs], REFUSED, "its queue entry points at another message")
        if msg_ids is not None:
            differs = pc.fill_null(pc.not_equal(ids, msg_ids.take(pa.array(rows))), False)
            other = theirs & differs.to_numpy(zero_copy_only=False)
            judged.decide(rows[other], REFUSED, "another message is there")
            theirs &= ~other
        # A consumer of RocketMQ never had it: it goes back to Kafka.
        of_kafka = pc.is_valid(pc.coalesce(run.pieces.column(KAFKA_LETTER), run.pieces.column(MIRROR_LETTER)))
        foreign = theirs & of_kafka.to_numpy(zero_copy_only=False)
        judged.decide(rows[foreign], REFUSED, OF_KAFKA)
        theirs &= ~foreign
        replays = _counts(run.pieces.column(REPLAYS))
        beyond = np.zeros(len(rows), np.bool_)
        if policy.max_replays is not None:
            beyond = theirs & (replays >= policy.max_replays)
        judged.decide(rows[theirs & ~beyond], REDRIVEN, None)
        if policy.parking_topic is not None:
            judged.decide(rows[beyond], PARKED, f"replayed {policy.max_replays} times")
        else:
            judged.decide(rows[beyond], REFUSED, f"replayed {policy.max_replays} times")
            theirs &= ~beyond
        changes = self._changes(run, queue_id, queue_offsets[rows], replays, beyond, policy)
        properties = set_properties(run.strings, changes)
        for place in np.flatnonzero(
            theirs & pc.greater(pc.binary_length(properties), self._bytes_max).to_numpy(zero_copy_only=False)
        ).tolist():
            fitted = self._fit(properties[place].as_py())
            if fitted is None:
                judged.decide(int(rows[place]), REFUSED, "its properties leave no room for those of a redrive")
                theirs[place] = False
                continue
            mask = np.arange(len(rows)) == place
            properties = pc.replace_with_mask(properties, pa.array(mask), pa.array([fitted], pa.large_binary()))
        grown = run.sizes + pc.binary_length(properties).to_numpy() - pc.binary_length(run.strings).to_numpy()
        too_large = theirs & (grown > self._log.segments.size_bytes - _MORE_BYTES_MAX)
        judged.decide(rows[too_large], REFUSED, "its copy does not fit a segment of the log")
        theirs &= ~too_large
        kept = np.flatnonzero(theirs)
        picked = pa.array(kept)
        return Copy(run, kept, properties.take(picked), run.pieces.column(keys.SHARDING_KEY).take(picked))

    def _changes(
        self,
        run: FrameRun,
        queue_id: int,
        queue_offsets: Int64,
        replays: Int64,
        beyond: Mask,
        policy: Policy,
    ) -> dict[str, pa.StringArray | str | None]:
        stored = run.pieces.column
        changes: dict[str, pa.StringArray | str | None] = dict.fromkeys(_LEFT_BEHIND)
        goes_back = np.full(len(beyond), policy.target.startswith(RETRY_PREFIX)) & ~beyond
        if not goes_back.all():
            back, nothing = pa.array(goes_back), pa.scalar(None, pa.string())
            for name in _ONLY_FOR_RETRY:
                changes[name] = pc.if_else(back, stored_text(stored(name)), nothing)
            changes[ORIGIN_TOPIC] = stored_text(pc.coalesce(stored(ORIGIN_TOPIC), stored(keys.RETRY_TOPIC)))
        counted = pa.array(replays + ~beyond).cast(pa.string())
        changes[REPLAYS] = pc.if_else(pa.array(replays + ~beyond > 0), counted, pa.scalar(None, pa.string()))
        offsets = pa.array(queue_offsets).cast(pa.string())
        changes[DEAD_LETTER] = pc.binary_join_element_wise(f"{queue_id}:", offsets, "")
        return changes

    def _fit(self, raw: bytes) -> bytes | None:
        """The property string without the reasons that do not fit; None if it is too long even so."""
        fitted = with_reasons(parse_properties(raw), {}, self._bytes_max)
        return None if fitted is None else property_string(fitted)


def _counts(values: pa.StringArray) -> Int64:
    """int64 (n,): the number in REPLAYS; 0 without it, or if it is not a number of ours."""
    is_number = pc.match_substring_regex(pc.fill_null(values, ""), "^[0-9]{1,9}$")
    counts: Int64 = pc.if_else(is_number, values, "0").cast(pa.int64()).to_numpy(zero_copy_only=False)
    return counts
