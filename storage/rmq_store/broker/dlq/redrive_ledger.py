"""The redrive ledger names the dead letters that were redriven. So a redrive can resume, and a repetition is harmless.

Each unit of a redrive ends with a record of the system topic REDRIVEN_TOPIC, queue 0, that names the moved dead
letters:

    {"group": g, "moved": {"<queue id of the dead-letter topic>": [[start, end], ...]}}          half-open, JSON

It is the unit's last record but one. If it is in the log, all copies before it are too, even if a broker has kept half
a unit. The table is read from the log on first use, later only the new records. One record stands for thousands of dead
letters, so no cache on disk is needed, which could be ahead of the log after a power cut.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_store.broker.read.queue_reader import QueueReader
from rmq_store.broker.read.read_request import ReadRequest
from rmq_store.broker.write.system_records import system_records
from rmq_store.errors import CorruptRecordError, OffsetOutOfRangeError
from rmq_store.files.locks.guard import Guard
from rmq_store.format.text.host import Host
from rmq_store.format.text.names import SYSTEM_PREFIX
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.log.core.commit_log import CommitLog

Int64 = npt.NDArray[np.int64]

REDRIVEN_TOPIC = f"{SYSTEM_PREFIX}pyrmq_redriven"
_QUEUE = 0

_BODY_BYTES_MAX = 4 << 20
_OFFSET_MAX = (1 << 63) - 1


@dataclass(frozen=True)
class OffsetRanges:
    """Disjoint half-open ranges [starts[i], ends[i]), ascending, not touching each other; int64 (n,)."""

    starts: Int64
    ends: Int64

    @classmethod
    def none(cls) -> OffsetRanges:
        """No range."""
        return cls(np.empty(0, np.int64), np.empty(0, np.int64))

    @classmethod
    def of(cls, offsets: Int64) -> OffsetRanges:
        """The ranges that `offsets`, ascending, lie in."""
        gaps = np.flatnonzero(np.diff(offsets) > 1)
        starts = offsets[np.concatenate(([0], gaps + 1))] if len(offsets) else offsets
        ends = offsets[np.concatenate((gaps, [len(offsets) - 1]))] + 1 if len(offsets) else offsets
        return cls(starts, ends)

    @classmethod
    def union(cls, several: Sequence[OffsetRanges]) -> OffsetRanges:
        """All of them; they may overlap."""
        starts = np.concatenate([ranges.starts for ranges in several])
        ends = np.concatenate([ranges.ends for ranges in several])
        if not len(starts):
            return cls.none()
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], np.maximum.accumulate(ends[order])
        begins = np.append(True, starts[1:] > ends[:-1])
        return cls(starts[begins], ends[np.append(np.flatnonzero(begins)[1:] - 1, len(ends) - 1)])

    def contains(self, offsets: Int64) -> npt.NDArray[np.bool_]:
        """Those of `offsets` (n,) that lie in a range; bool."""
        if not len(self.starts):
            return np.zeros(len(offsets), np.bool_)
        before = np.searchsorted(self.starts, offsets, side="right") - 1
        contained: npt.NDArray[np.bool_] = (before >= 0) & (offsets < self.ends[before])
        return contained

    def count_in(self, first: int, last: int) -> int:
        """How many offsets of [first, last) lie in a range."""
        lengths = np.minimum(self.ends, last) - np.maximum(self.starts, first)
        return int(lengths[lengths > 0].sum())

    def pairs(self) -> list[tuple[int, int]]:
        """The ranges as plain values."""
        return list(zip(self.starts.tolist(), self.ends.tolist(), strict=True))


class RedriveLedger:
    """Looks up moved dead letters, up to an `end` of the log that each look-up loads. By default this is the appended
    end, not the flushed one, because no dead letter may be moved twice. Safe for threads and processes.

    `topic`: another system topic with records of the same kind.
    """

    def __init__(self, log: CommitLog, end: Callable[[], int] | None = None, *, topic: str = REDRIVEN_TOPIC) -> None:
        self._log = log
        self._end = end or (lambda: log.writing_page.appended_end)
        self._topic = topic
        self._reader = QueueReader(log, "", body_limit_bytes=_BODY_BYTES_MAX)
        self._guard = Guard()
        self._next = 0
        self._moved: dict[str, dict[int, list[OffsetRanges]]] = {}

    def moved(self, group: str) -> Mapping[int, OffsetRanges]:
        """For each queue of the group's dead-letter topic, the offsets that any process has moved until now.

        Raises:
            CorruptionError: a record of the table is damaged. A redrive could then move dead letters twice.
        """
        with self._guard.entered():
            self._catch_up()
            merged = {queue_id: OffsetRanges.union(several) for queue_id, several in self._moved.get(group, {}).items()}
            if merged:
                self._moved[group] = {queue_id: [ranges] for queue_id, ranges in merged.items()}
            return merged

    def read_on(self) -> None:
        """Read the records that any process has added until now. Raises as `moved`."""
        with self._guard.entered():
            self._catch_up()

    def record(self, group: str, moved: Mapping[int, OffsetRanges], host: Host) -> pa.RecordBatch:
        """The record (one row of ENCODED_SCHEMA) that names the moved dead letters of a unit."""
        pairs = {str(queue_id): ranges.pairs() for queue_id, ranges in moved.items()}
        return self._encode({"group": group, "moved": pairs}, host)

    def _encode(self, content: Mapping[str, Any], host: Host) -> pa.RecordBatch:
        return system_records(self._log, host, self._topic, _QUEUE, content["group"], [json.dumps(content).encode()])

    def _catch_up(self) -> None:
        try:
            self._read_on()
        except OffsetOutOfRangeError:  # retention was faster: what is left begins later
            self._read_on()

    def _read_on(self) -> None:
        queue = self._log.views.queue(self._topic, _QUEUE)
        last = self._log.queue_max(self._topic, _QUEUE, self._end())
        # Records that retention took were about even older dead letters.
        first = max(self._next, self._log.queue_min(self._topic, _QUEUE, self._log.segments.span(), last))
        if first >= last:
            return
        self._next = first
        request = ReadRequest(self._topic, _QUEUE, first, last, ["body", "commitLogOffset"], raw_body=True)
        for batch in self._reader.read(request, queue.entries(first, last)):
            for body, offset in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                try:
                    self._add(json.loads(body))
                except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
                    path = self._log.segments.path(self._log.segments.base_of(offset))
                    raise CorruptRecordError(str(path), offset, f"no record of moved dead letters: {error}") from error
                self._next += 1

    def _add(self, content: Mapping[str, Any]) -> None:
        """Add the content of a record to the table. ValueError, KeyError, TypeError or similar: the record is not one
        of ours.
        """
        group, moved = content["group"], content["moved"]
        if not isinstance(group, str):
            raise TypeError("the group is no text")
        for queue_id, pairs in moved.items():
            ranges = np.array(pairs, np.int64).reshape(-1, 2)
            found = OffsetRanges(ranges[:, 0], ranges[:, 1])
            self._moved.setdefault(group, {}).setdefault(int(queue_id), []).append(found)
