"""The table of queue ends at the last close. It shows lost queue files, and keeps queue offsets from being given out
twice.

    pyrmq/queue_ends.json    {"crc": c, "format": 1, "is_complete": true, "queues": [["<topic>", queue id, end], ...],
                              "firsts": [["<topic>", queue id, first], ...], "log_end": e}

`end` is the next queue offset. It is a lower bound: queues only grow, so an old table does no harm. `first` is the
first queue offset of the oldest file, for queues where that is not 0. Retention moves `first` before it unlinks a file,
so no file of [first, end) may be missing. Without its files a queue would begin at offset 0 again, and give out offsets
that other messages have; or it would begin later, and hide messages of the log. `log_end`: the log was on disk below
it.

`crc` is the CRC-32 of the JSON without it; a table with a wrong one is ignored. A table without `firsts` or `log_end`
is refused: development versions wrote it. Writers: `rmq_store.log.integrity.queue_ends_writer`; reader:
`rmq_store.log.recovery.starting_point`.
"""

from __future__ import annotations

import errno
import json
import os
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from rmq_store.errors import (
    REPAIR_MOVES_IT_AWAY,
    CorruptConfigError,
    NotAStoreError,
    UsageError,
    development_version,
)
from rmq_store.files import durable
from rmq_store.format.text.names import validate_topic
from rmq_store.format.views.consume_queue import ENTRY_BYTES, QUEUE_ID_MAX, QUEUE_OFFSET_MAX
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.log.core.commit_log import CommitLog
from rmq_store.log.views.views import QueueKey

_FORMAT = 1
_FILE_NAME = "queue_ends.json"
_SPARE_NAME = f"{_FILE_NAME}.bak"
_FILE_BYTES_MAX = 64 << 20
_OFFSET_MAX = (1 << 63) - 1  # of the log
_SIZE_FIELD = slice(8, 12)  # of an entry; 0: nobody has written there
PLACE = struct.Struct(">qi")
"""Of a queue entry: commit-log offset, size."""


def make_spare(own: Path) -> bool:
    """Make the file into which a closer writes the next table before the two change places; True if both are there.
    Done at the opening: at its close a store may be in the middle of its deletion, where a new name would make that
    fail. UsageError, StoreFullError, StoreFailedError.
    """
    if not (own / _FILE_NAME).exists():
        return False
    with durable.typed(own):
        os.close(durable.open_nofollow(own / _SPARE_NAME, os.O_WRONLY | os.O_CREAT))
    return True


@dataclass(frozen=True, slots=True)
class QueueEnds:
    """The table. `is_complete`: the last closer of a store has looked at all queues since the last recovery. `firsts`
    has no queue that begins at 0. `log_end`: the log was on disk below it.
    """

    ends: Mapping[QueueKey, int]
    is_complete: bool
    firsts: Mapping[QueueKey, int] = field(default_factory=dict)
    log_end: int = 0

    @classmethod
    def load(cls, own: Path) -> QueueEnds | None:
        """The table in `own`; None if there is none that can be believed. Queues that no store can have are left out.

        Raises:
            NotAStoreError: no regular file, or a table that a development version wrote.
            StoreFailedError, UsageError: it cannot be read.
        """
        try:
            raw = durable.read_limited(own / _FILE_NAME, _FILE_BYTES_MAX)
        except (FileNotFoundError, CorruptConfigError):
            return None
        try:
            data: Any = json.loads(raw)
            crc = data.pop("crc")
            if data["format"] != _FORMAT or crc != _crc(data):
                return None
            if not {"firsts", "log_end"} <= data.keys():
                what = "a table without `firsts`, `log_end`"
                raise development_version(own / _FILE_NAME, what, REPAIR_MOVES_IT_AWAY)
            return cls(
                _queues(data["queues"]),
                data["is_complete"] is True,
                _queues(data["firsts"]),
                _number(data["log_end"], _OFFSET_MAX),
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None

    def save(self, own: Path, *, in_place: bool = False) -> None:
        """Write it durably; `in_place`: without a new name in the directory, see `make_spare`.

        Raises:
            StoreFullError, StoreFailedError: the table stays as it was. FileNotFoundError: `in_place`, and the table or
                its spare were deleted.
        """
        firsts = {key: first for key, first in self.firsts.items() if first and key in self.ends}
        data: dict[str, Any] = {
            "format": _FORMAT, "is_complete": self.is_complete, "queues": _rows(self.ends), "firsts": _rows(firsts),
            "log_end": self.log_end,
        }  # fmt: skip
        text = json.dumps({"crc": _crc(data), **data}).encode() + b"\n"
        if in_place:
            try:
                durable.exchange(own / _FILE_NAME, own / _SPARE_NAME, text)
                return
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
        durable.write_atomically(own / _FILE_NAME, text)

    def lost(self, log: CommitLog) -> list[QueueKey]:
        """The queues with a missing file of [first, end), or whose newest file gives a smaller end than `end`. Lists
        their directories, and reads a few entries of each.

        Raises:
            StoreFailedError, UsageError: one cannot be read.
        """
        bases = log.segments.bases()
        log_end = bases[-1] + log.geometry.mapped_file_size_commit_log if bases else _OFFSET_MAX
        with durable.typed(log.views.directory):
            return [key for key, end in self.ends.items() if end > 0 and not self._is_there(log, key, end, log_end)]

    def grown(self, log: CommitLog) -> list[QueueKey]:
        """The queues with an entry at their end, so that they have grown since. Errors as `lost`."""
        with durable.typed(log.views.directory):
            return [key for key, end in self.ends.items() if _is_written(log, key, end)]

    def _is_there(self, log: CommitLog, key: QueueKey, end: int, log_end: int) -> bool:
        if not reaches(log, key, end, log_end):
            return False
        file_bytes = log.geometry.mapped_file_size_consume_queue
        newest = (end - 1) * ENTRY_BYTES // file_bytes * file_bytes
        first = self.firsts.get(key, 0) * ENTRY_BYTES // file_bytes * file_bytes
        if first >= newest:
            return True
        # Thousands of queues: no Path object per name.
        names = set(os.listdir(f"{log.views.directory}/{key[0]}/{key[1]}"))  # noqa: PTH208
        return all(f"{base:020d}" in names for base in range(first, newest, file_bytes))


def is_possible(key: QueueKey) -> bool:
    """True if a store can have that queue. Other directories below `consumequeue/` are not the store's."""
    try:
        validate_topic(key[0])
    except UsageError:
        return False
    return 0 <= key[1] <= QUEUE_ID_MAX


def reaches(log: CommitLog, key: QueueKey, end: int, log_end: int) -> bool:
    """True if the queue's newest file shows an end of `end` or more. A sector of zeros or foreign bytes where the end
    is searched (ConsumeQueue.max_offset) would give a smaller end. No record lies at or above `log_end`.
    """
    per_file = log.geometry.mapped_file_size_consume_queue // ENTRY_BYTES
    first = (end - 1) // per_file * per_file
    fd = open_file(log, key, end - 1)
    if fd is None:
        return False
    try:
        for entry in (first, end - 1, *_probes(first, first + per_file, end)):
            raw = os.pread(fd, PLACE.size, (entry - first) * ENTRY_BYTES)
            offset, size = PLACE.unpack(raw) if len(raw) == PLACE.size else (0, 0)
            if size <= 0 or not 0 <= offset < log_end:
                return False
        return True
    finally:
        os.close(fd)


def _probes(low: int, high: int, end: int) -> Iterator[int]:
    """The entries below `end` that a bisection of [low, high) reads before it finds `end`, or a later end."""
    while low < high:
        middle = (low + high) // 2
        if middle < end:
            yield middle
            low = middle + 1
        else:
            high = middle


def _is_written(log: CommitLog, key: QueueKey, queue_offset: int) -> bool:
    """Whether the queue's files have an entry there."""
    fd = open_file(log, key, queue_offset)
    if fd is None:
        return False
    try:
        position = queue_offset * ENTRY_BYTES % log.geometry.mapped_file_size_consume_queue
        return any(os.pread(fd, ENTRY_BYTES, position)[_SIZE_FIELD])
    finally:
        os.close(fd)


def open_file(log: CommitLog, key: QueueKey, queue_offset: int) -> int | None:
    """A descriptor of the file with this entry of the queue, for the caller to close; None if the file is missing. Many
    queues are checked this way, so nothing is mapped, and no Path object made.
    """
    position = queue_offset * ENTRY_BYTES
    base = position - position % log.geometry.mapped_file_size_consume_queue
    try:
        return durable.open_nofollow(f"{log.views.directory}/{key[0]}/{key[1]}/{base:020d}", os.O_RDONLY)
    except (FileNotFoundError, NotADirectoryError, NotAStoreError):
        return None


def _rows(queues: Mapping[QueueKey, int]) -> list[list[Any]]:
    return [[topic, queue_id, offset] for (topic, queue_id), offset in sorted(queues.items())]


def _queues(rows: Iterable[Sequence[Any]]) -> dict[QueueKey, int]:
    """ValueError, TypeError: what is no table of queue offsets. A strange topic may be that of a directory that
    somebody has made: other rows are as good as without it.
    """
    numbered = {(topic, _number(queue_id, QUEUE_ID_MAX)): _number(offset, QUEUE_OFFSET_MAX)
                for topic, queue_id, offset in rows}  # fmt: skip
    strange = {topic for topic in {topic for topic, _ in numbered} if not is_possible((topic, 0))}
    return {key: offset for key, offset in numbered.items() if key[0] not in strange}


def _number(value: object, limit: int) -> int:
    if type(value) is not int or not 0 <= value <= limit:
        raise ValueError(f"{value!r} is no number up to {limit}")
    return value


def _crc(data: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(data, sort_keys=True).encode())
