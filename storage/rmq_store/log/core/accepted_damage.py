"""Accepted damage: bytes of the log that are no records, and that a user decided to skip.

    pyrmq/kept.json    {"crc": c, "format": 1,
                        "ranges": [{"file": "commitlog/<name>", "start": s, "end": e, "records_behind": n,
                                    "reason": "..."}, ...],
                        "queues": [["<topic>", queue id, next queue offset at least], ...]}

A range is [start, end) of the log, in one segment. Its bytes are never changed, and its offsets are never given out
again: the log goes on at its end. Queue entries of lost messages point into the range, so the queue keeps its length.
If the entry is lost as well, recovery writes a *placeholder*: an entry that points at the first byte of the range. The
rest of the engine needs no other rule: an entry below the end counts, and reading it fails.

`crc` is the CRC-32 of the JSON without it. A file without `crc` is refused: development versions wrote it.
docs/design.md section 8.5.
"""

from __future__ import annotations

import json
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rmq_store.errors import REPAIR_MOVES_IT_AWAY, CorruptConfigError, NotAStoreError, development_version
from rmq_store.files import durable
from rmq_store.format.views.consume_queue import QUEUE_ID_MAX, QUEUE_OFFSET_MAX
from rmq_store.lazy.dataclasses import dataclass

_FORMAT = 1
_FILE_BYTES_MAX = 64 << 20

QueueKey = tuple[str, int]


class BadRange(NamedTuple):
    """Bytes [start, end) of the log, in one segment (`file`, relative to the store), are no records.

    `records_behind`: the number of whole records after the range when it was found. A broker's truncation would remove
    them.
    """

    file: str
    start: int
    end: int
    records_behind: int
    reason: str


@dataclass(frozen=True, slots=True)
class AcceptedDamage:
    """The ranges, ascending and disjoint. `queues`: of each queue that lost messages, a lower bound of its next queue
    offset.
    """

    ranges: tuple[BadRange, ...] = ()
    queues: Mapping[QueueKey, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def covering(self, offset: int) -> BadRange | None:
        """Return the range that contains `offset`, or None."""
        at = bisect_right(self.ranges, offset, key=lambda bad: bad.start) - 1
        return self.ranges[at] if at >= 0 and offset < self.ranges[at].end else None

    def skip(self, offset: int) -> int:
        """Return the end of the range that begins at `offset`, or `offset` if none begins there."""
        while (bad := self.covering(offset)) is not None and bad.start == offset:
            offset = bad.end
        return offset

    def mask(self, offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """bool (n,): whether each of `offsets` (int64 (n,)) lies in a range."""
        if not self.ranges:
            return np.zeros(len(offsets), np.bool_)
        starts = np.array([bad.start for bad in self.ranges])
        ends = np.array([bad.end for bad in self.ranges])
        at = np.searchsorted(starts, offsets, side="right") - 1
        found: npt.NDArray[np.bool_] = (at >= 0) & (offsets < ends[at])
        return found

    def at_or_after(self, offset: int) -> BadRange:
        """The first range at or above `offset`; the last one if there is none."""
        return next((bad for bad in self.ranges if bad.start >= offset), self.ranges[-1])

    def plus(self, ranges: Iterable[BadRange], queues: Mapping[QueueKey, int] | None = None) -> AcceptedDamage:
        """Return the union with these ranges and queues; overlapping ranges become one."""
        merged: list[BadRange] = []
        for bad in sorted([*self.ranges, *ranges], key=lambda bad: bad.start):
            if merged and bad.start < merged[-1].end and bad.file == merged[-1].file:
                last = merged[-1]
                behind = bad.records_behind if bad.end >= last.end else last.records_behind
                merged[-1] = last._replace(end=max(last.end, bad.end), records_behind=behind)
            else:
                merged.append(bad)
        ends = dict(self.queues)
        for key, end in (queues or {}).items():
            ends[key] = max(end, ends.get(key, 0))
        return AcceptedDamage(tuple(merged), ends)

    def within(self, start: int, end: int) -> AcceptedDamage:
        """Return the part that overlaps a log of [start, end)."""
        ranges = tuple(bad for bad in self.ranges if bad.end > start and bad.start < end)
        return AcceptedDamage(ranges, self.queues if ranges else {})

    @classmethod
    def load(cls, own: Path) -> AcceptedDamage:
        """Read `kept.json` in `own`; empty if the file is missing.

        Raises:
            NotAStoreError: written by a newer version, or by a development version.
            CorruptConfigError: unreadable. It is not guessed: without the list, the damage would count as new.
        """
        path = own / "kept.json"
        try:
            raw = durable.read_limited(path, _FILE_BYTES_MAX)
        except FileNotFoundError:
            return cls()
        try:
            data: Any = json.loads(raw)
            crc = data.pop("crc", None)
            if crc is not None and crc != _crc(data):
                raise ValueError("it does not have its checksum")
            if isinstance(data["format"], int) and data["format"] > _FORMAT:
                raise NotAStoreError(str(path), f"written by a newer version (format {data['format']})")
            if crc is None and data.keys() != {"format", "ranges", "queues"}:  # its name is damaged
                raise ValueError("it has no checksum")
            ranges = [BadRange(*(row[name] for name in BadRange._fields)) for row in data["ranges"]]
            queues = {(topic, queue_id): end for topic, queue_id, end in data["queues"]}
            if data["format"] != _FORMAT or not _is_sane(ranges, queues):
                raise ValueError("its ranges or queues are not valid")
            if crc is None:
                raise development_version(path, "a list without `crc`", REPAIR_MOVES_IT_AWAY)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise CorruptConfigError(str(path), 0, f"no list of kept damage: {error}; see `rmq repair`") from error
        return cls(tuple(ranges), queues)

    def save(self, own: Path) -> None:
        """Write it durably. StoreFullError, StoreFailedError."""
        content: dict[str, Any] = {
            "format": _FORMAT,
            "ranges": [bad._asdict() for bad in self.ranges],
            "queues": [[topic, queue_id, end] for (topic, queue_id), end in sorted(self.queues.items())],
        }
        text = json.dumps({"crc": _crc(content), **content}, indent=1)
        durable.write_atomically(own / "kept.json", text.encode() + b"\n")


def _is_sane(ranges: list[BadRange], queues: dict[QueueKey, int]) -> bool:
    if queues and not ranges:
        return False
    end = 0
    for bad in ranges:
        if not (type(bad.start) is type(bad.end) is type(bad.records_behind) is int and end <= bad.start < bad.end):
            return False
        if not (isinstance(bad.file, str) and isinstance(bad.reason, str) and bad.end < 1 << 63):
            return False
        end = bad.end
    return all(
        isinstance(topic, str)
        and type(queue_id) is type(next_offset) is int
        and 0 <= queue_id <= QUEUE_ID_MAX
        and 0 <= next_offset <= QUEUE_OFFSET_MAX
        for (topic, queue_id), next_offset in queues.items()
    )


def _crc(data: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(data, sort_keys=True).encode())
