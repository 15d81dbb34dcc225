"""How far the queues went at the last close, written down beside them: files of a queue that get lost are missed.

    pyrmq/queue_ends.json    {"crc": c, "format": 1, "is_complete": true, "queues": [["<topic>", queue id, end], ...]}

`end` is the queue offset behind the newest message. It is a lower bound: queues only grow, so a table that is older
than the queues does no harm. Without its files a queue would begin at offset 0 again, and give out offsets that other
messages have; who opens the store first therefore looks whether the entry below each end is there, and makes all
queues again from the log if one is not. `crc` is the CRC-32 of the JSON without it; a table that does not pass is none.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rmq_store.errors import CorruptConfigError, CorruptionError, NotAStoreError, UsageError
from rmq_store.files import durable
from rmq_store.format.consume_queue import ENTRY_BYTES
from rmq_store.format.names import validate_topic
from rmq_store.log.commit_log import CommitLog
from rmq_store.log.views import QueueKey

_FORMAT = 1
_FILE_NAME = "queue_ends.json"
_FILE_BYTES_MAX = 64 << 20
_SIZE_FIELD = slice(8, 12)  # of an entry; 0: nobody has written there


@dataclass(frozen=True, slots=True)
class QueueEnds:
    """The table. `is_complete`: it has all queues but those of writers that were killed while others went on."""

    ends: Mapping[QueueKey, int]
    is_complete: bool

    @classmethod
    def load(cls, own: Path) -> QueueEnds | None:
        """The table in `own`; None if there is none that can be believed.

        Raises:
            NotAStoreError: no regular file.
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
            ends = {(topic, int(queue_id)): int(end) for topic, queue_id, end in data["queues"]}
            for topic in {topic for topic, _ in ends}:
                validate_topic(topic)
            return cls(ends, data["is_complete"] is True)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, UsageError):
            return None

    def save(self, own: Path) -> None:
        """Write it durably. StoreFullError, StoreFailedError."""
        queues = [[topic, queue_id, end] for (topic, queue_id), end in sorted(self.ends.items())]
        data: dict[str, Any] = {"format": _FORMAT, "is_complete": self.is_complete, "queues": queues}
        durable.write_atomically(own / _FILE_NAME, json.dumps({"crc": _crc(data), **data}).encode() + b"\n")

    def lost(self, log: CommitLog) -> list[QueueKey]:
        """The queues that are shorter than they were. StoreFailedError, UsageError: one cannot be read."""
        return [key for key, end in self.ends.items() if end > 0 and not _is_written(log, key, end - 1)]


def note_queue_ends(log: CommitLog, *, last: bool) -> None:
    """Write down how far the queues went that this process wrote to; the `last` writer completes the table. What they
    hold is on disk, and the caller holds the append lock. StoreFullError, StoreFailedError.
    """
    known = QueueEnds.load(log.own)
    is_complete = known is not None and known.is_complete
    keys = log.views.keys() if last and not is_complete else log.views.written_keys()
    ends = dict(known.ends) if known is not None else {}
    for key in keys:
        ends[key] = max(ends.get(key, 0), _end_of(log, key))
    noted = QueueEnds(ends, is_complete or last)
    if noted != known:
        noted.save(log.own)


def doubt_queue_ends(log: CommitLog, *, foreign: bool) -> None:
    """After a recovery: writers that died have told nothing, so the last of the next ones has to look at every queue. A
    broker may have deleted topics: what was known before it came is worth nothing. StoreFullError, StoreFailedError.
    """
    known = QueueEnds.load(log.own)
    if known is None:
        return
    doubted = QueueEnds({} if foreign else known.ends, is_complete=False)
    if doubted != known:
        doubted.save(log.own)


def _end_of(log: CommitLog, key: QueueKey) -> int:
    try:
        return log.queue_max(*key, log.writing_page.appended_end)
    except (CorruptionError, NotAStoreError):
        return 0  # whoever uses this queue is told; to close the store is no use of it


def _is_written(log: CommitLog, key: QueueKey, queue_offset: int) -> bool:
    """Whether the queue's files have an entry there. Looks without mapping anything: there may be many queues."""
    file_bytes = log.geometry.mapped_file_size_consume_queue
    position = queue_offset * ENTRY_BYTES
    base = position - position % file_bytes
    path = f"{log.views.directory}/{key[0]}/{key[1]}/{base:020d}"
    try:
        fd = durable.open_nofollow(path, os.O_RDONLY)
    except (FileNotFoundError, NotADirectoryError, NotAStoreError):
        return False
    try:
        return any(os.pread(fd, ENTRY_BYTES, position - base)[_SIZE_FIELD])
    finally:
        os.close(fd)


def _crc(data: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(data, sort_keys=True).encode())
