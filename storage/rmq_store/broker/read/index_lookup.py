"""Find messages of queues by keys or ids through the index, and the ranges that the index does not cover (data plane).

An index may begin later than its log (messageIndexEnable was switched on late) or end before it (a broker was killed).
A file in the middle may be missing: IndexService#load deletes a file that its checkpoint does not cover. So each
look-up reads the records of the first and last entry of each index file. Ranges between two files, after the last file,
or in accepted damage must be read from the queues.

A record counts only if the queue's own entry points at it, because a topic may have been deleted and made again. The
found rows and the matching rows of the uncovered ranges together are the matching rows of a read of whole queues.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_store.broker.read.key_search import KeySearch
from rmq_store.broker.read.queues import Queues
from rmq_store.broker.read.records import FrameRun, StoredFrames
from rmq_store.errors import CorruptIndexError, UsageError
from rmq_store.format.text.ids import parse_offset_message_id
from rmq_store.format.views.consume_queue import PRE_BLANK_SIZE
from rmq_store.lazy.arrow_compute import pc
from rmq_store.log.core.commit_log import CommitLog
from rmq_store.log.recovery.starting_point import log_is_ours

_LOG = logging.getLogger(__name__)

Int64 = npt.NDArray[np.int64]
Span = tuple[int, int]
By = Literal["key", "unique key", "id"]

_TRIES = 3


class FoundRows(NamedTuple):
    """By queue id: `found` queue offsets (n,), ascending; `uncovered` ranges [start, end) of queue offsets without
    index entries, ascending, disjoint from `found`. Queues without any are left out.
    """

    found: dict[int, Int64]
    uncovered: dict[int, list[Span]]


class KeyRows:
    """Looks up rows of one open store."""

    def __init__(self, log: CommitLog, queues: Queues, keys: KeySearch) -> None:
        self._log = log
        self._queues = queues
        self._keys = keys
        self._frames = StoredFrames(log)

    def find(self, topic: str, texts: Sequence[str], spans: Mapping[int, Span], by: By) -> FoundRows:
        """The rows of [start, end) of each queue (`spans`: queue id -> queue offsets) that have one of `texts`. `by`
        "key": as one of its KEYS. "unique key": as its UNIQ_KEY, for a message of a batch also the batch's. "id": as
        its UNIQ_KEY or offset id, as in MQAdmin.viewMessage.

        For a store without an index, or with an untrusted one, all rows are `uncovered`.

        Raises:
            OffsetOutOfRangeError: retention was faster.
            CorruptIndexError, CorruptRecordError: the index, or a message that it leads to, is damaged.
        """
        spans = {queue_id: span for queue_id, span in spans.items() if span[0] < span[1]}
        if not spans or not texts:
            return FoundRows({}, {})
        try:
            covered = self._keys.index().covered()
        except (UsageError, CorruptIndexError) as error:
            _LOG.warning("all messages of %s have to be looked at: %s", topic, error)
            return FoundRows({}, {queue_id: [span] for queue_id, span in spans.items()})
        gaps = self._gaps(covered)
        span_of_log = self._log_span(topic, spans)
        found = self._keys.find(topic, texts, span_of_log, unique=by != "key", of_batches=by != "key")
        rows = np.stack([found[name].to_numpy() for name in ("queue_id", "queue_offset", "commit_log_offset")])
        if by == "id":
            rows = np.concatenate([rows, self._with_offset_ids(texts)], axis=1)
        answer = FoundRows({}, {})
        for queue_id, span in spans.items():
            borders = self._lower_bounds(topic, queue_id, span, gaps.ravel()).reshape(-1, 2)
            uncovered = borders[borders[:, 0] < borders[:, 1]]
            offsets = self._confirmed(topic, queue_id, span, rows[1:, rows[0] == queue_id])
            offsets = offsets[~_inside(offsets, uncovered)]
            if len(offsets):
                answer.found[queue_id] = offsets
            if len(uncovered):
                answer.uncovered[queue_id] = [(start, end) for start, end in uncovered.tolist()]
        return answer

    def _gaps(self, covered: list[Span]) -> Int64:
        """Ranges [start, end) of the log that the index does not cover, (n, 2), ascending and disjoint. A gap includes
        the last record before it and the first one after it: their other entries may be in a lost file, or were never
        written.
        """
        if not log_is_ours(self._log) and (self._log.root / "abort").exists():
            # A broker that runs, or was killed, has not synced the file that it writes to; a copy of it may be torn.
            covered = covered[1:]
        start, end = self._log.start(), self._queues.end()
        gaps = [(bad.start, bad.end) for bad in self._log.accepted_damage.ranges]
        reached = start - 1
        for first, last in sorted(covered):
            if first > reached:
                gaps.append((reached, first + 1))
            reached = max(reached, last)
        return _joined([*gaps, (reached, end)])

    def _log_span(self, topic: str, spans: Mapping[int, Span]) -> Span:
        """The range of the log that holds all records of the rows."""
        ends = {queue_id: np.array([first, last - 1]) for queue_id, (first, last) in spans.items()}
        entries = [self._entries(topic, queue_id, rows) for queue_id, rows in ends.items()]
        log_offsets = np.stack([both["commit_log_offset"].astype(np.int64) for both in entries])
        return int(log_offsets[:, 0].min()), int(log_offsets[:, 1].max()) + 1

    def _lower_bounds(self, topic: str, queue_id: int, span: Span, log_offsets: Int64) -> Int64:
        """For each of `log_offsets` (n,), ascending, the first row of the span whose record is there or above, (n,)."""
        low = np.full(len(log_offsets), span[0], np.int64)
        high = np.full(len(log_offsets), span[1], np.int64)
        while len(going := np.flatnonzero(low < high)):
            middle = (low[going] + high[going]) // 2
            entries = self._entries(topic, queue_id, middle)
            below = (entries["commit_log_offset"] < log_offsets[going]) | (entries["frame_size"] == PRE_BLANK_SIZE)
            low[going[below]] = middle[below] + 1
            high[going[~below]] = middle[~below]
        return low

    def _confirmed(self, topic: str, queue_id: int, span: Span, rows: Int64) -> Int64:
        """The queue offsets of `rows` (queue offsets and commit-log offsets, (2, n)) that lie in the span and whose
        entry points at that commit-log offset; ascending, each once.
        """
        rows = rows[:, (rows[0] >= span[0]) & (rows[0] < span[1])]
        offsets, log_offsets = rows[:, np.argsort(rows[0], kind="stable")]
        entries = self._entries(topic, queue_id, offsets)
        return np.unique(offsets[entries["commit_log_offset"] == log_offsets])

    def _entries(self, topic: str, queue_id: int, rows: Int64) -> np.ndarray:
        return self._queues.entries_at(topic, queue_id, rows)

    def _with_offset_ids(self, texts: Sequence[str]) -> Int64:
        """Queue id, queue offset and commit-log offset of the records with these offset ids, whatever their topic: (3,
        n).
        """
        ids = dict(parsed for text in texts if (parsed := _offset_id(text)) is not None)
        offsets = np.array(sorted(ids.values()), np.int64)
        offsets = np.unique(offsets[~self._log.accepted_damage.mask(offsets)])
        for _ in range(_TRIES):
            end = self._queues.end()
            offsets = offsets[(offsets >= self._log.start()) & (offsets < end)]
            sizes = self._frames.sizes(offsets, end)
            offsets, sizes = offsets[sizes > 0], sizes[sizes > 0]
            try:
                found = [_with_ids(run, pa.array(list(ids))) for run in self._frames.runs(offsets, sizes)]
            except FileNotFoundError:
                continue  # retention was faster
            return np.concatenate([np.empty((3, 0), np.int64), *found], axis=1)
        raise self._log.missing_segment(int(offsets[0]))


def _with_ids(run: FrameRun, ids: pa.StringArray) -> Int64:
    headers = run.headers
    good = pc.is_in(run.offset_message_ids, ids).to_numpy(zero_copy_only=False)
    parts = (headers.queue_id, headers.queue_offset, headers.physical_offset)
    return np.stack([part[good].astype(np.int64) for part in parts])


def _offset_id(text: str) -> tuple[str, int] | None:
    """The id as this engine writes it, and its commit-log offset; None if the text is no offset id."""
    try:
        _, offset = parse_offset_message_id(text)
    except UsageError:
        return None
    return text.upper(), offset


def _joined(spans: Iterable[Span]) -> Int64:
    """The spans with overlapping ones merged, (n, 2), ascending."""
    joined: list[Span] = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return np.array(joined, np.int64).reshape(-1, 2)


def _inside(offsets: Int64, spans: Int64) -> npt.NDArray[np.bool_]:
    """True for `offsets` (n,) that lie in one of `spans` (m, 2), ascending and disjoint."""
    at = np.searchsorted(spans[:, 0], offsets, side="right") - 1
    ends = np.append(spans[:, 1], 0)  # at -1: before all of them
    inside: npt.NDArray[np.bool_] = offsets < ends[at]
    return inside
