"""The record of a rebuild of the queues. While it exists, the queues are incomplete.

    pyrmq/rebuild.json    {"crc": c, "format": 1, "queues": [["<topic>", queue id, end], ...],
                           "schedule": {"<queue id>/<20 digits>": "<path>", ...}}

The file is written before the first queue file is moved away or removed. It is removed when all entries exist again.
If the rebuilding process is killed or the disk is full, the next opener for writing scans the whole log and writes
every view again. Opening read-only is refused until then.

`end`: a lower bound of the next queue offset of each queue, from its entries and its groups' offsets before the
rebuild. It matters for a queue whose messages retention has all deleted, because the log does not show its end. Without
it the queue would begin at offset 0, and reuse offsets that groups have committed. `schedule`: the copies that a repair
made of the files of SCHEDULE_TOPIC_XXXX, which hold due times (`rmq_store.log.recovery.delivery_times`). Paths are
relative to the store's root, or absolute for copies elsewhere. `crc` is the CRC-32 of the JSON without it.
"""

from __future__ import annotations

import errno
import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from rmq_store.errors import CorruptConfigError, NotAStoreError, UsageError
from rmq_store.files import durable
from rmq_store.files.segments.open_files import data_ranges
from rmq_store.format.frames.frame_check import FRAME_BYTES_MIN
from rmq_store.format.text.names import parse_segment_name, validate_topic
from rmq_store.format.views.consume_queue import ENTRY, ENTRY_BYTES, PRE_BLANK_SIZE
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.log.core.commit_log import CommitLog
from rmq_store.log.integrity.placeholder_entries import end_without_messages
from rmq_store.log.integrity.queue_ends import QueueEnds
from rmq_store.log.views.views import QueueKey

REBUILD_FILE = "pyrmq/rebuild.json"

_FORMAT = 1
_FILE_BYTES_MAX = 64 << 20
_PAGE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Rebuild:
    """The content of the file: a lower bound of each queue's next offset, and the copies of queue files that hold the
    due times of delayed messages.
    """

    ends: Mapping[QueueKey, int] = field(default_factory=dict)
    schedule: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def load(cls, root: Path) -> Rebuild | None:
        """The unfinished rebuild of the store at `root`; None if there is none. A damaged file still means a rebuild,
        but without ends.

        Raises:
            NotAStoreError: no regular file, or one of a newer version.
            StoreFailedError, UsageError: it cannot be read.
        """
        path = root / REBUILD_FILE
        try:
            data: Any = json.loads(durable.read_limited(path, _FILE_BYTES_MAX))
            if isinstance(data["format"], int) and data["format"] > _FORMAT:
                raise NotAStoreError(str(path), f"written by a newer version (format {data['format']})")
            if data.pop("crc") != _crc(data):
                return cls()
            ends = {(topic, int(queue_id)): int(end) for topic, queue_id, end in data["queues"]}
            for topic in {topic for topic, _ in ends}:
                validate_topic(topic)
            return cls(ends, _schedule(data.get("schedule", {})))
        except FileNotFoundError:
            return None
        except (CorruptConfigError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return cls()

    def save(self, root: Path) -> None:
        """Write the file durably. StoreFullError, StoreFailedError."""
        queues = [[topic, queue_id, end] for (topic, queue_id), end in sorted(self.ends.items())]
        data: dict[str, Any] = {"format": _FORMAT, "queues": queues}
        if self.schedule:
            data["schedule"] = dict(self.schedule)
        durable.write_atomically(root / REBUILD_FILE, json.dumps({"crc": _crc(data), **data}).encode() + b"\n")


def is_begun(root: Path) -> bool:
    """True if a rebuild was begun and has not ended."""
    return os.path.lexists(root / REBUILD_FILE)


def begin_rebuild(
    root: Path,
    committed: Mapping[QueueKey, Iterable[int]] = MappingProxyType({}),
    schedule: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Record that the queues are built again, with the end of each queue. The end is the highest of three: its newest
    plausible entry, the groups' committed offsets, and an earlier record. Of several `schedule` the first is kept:
    later copies are of files that we built. The caller holds byte 0 of `lock` exclusively, and has not yet changed a
    queue.

    Raises:
        NotAStoreError: as `Rebuild.load`.
        StoreFullError, StoreFailedError, UsageError: as `durable.translate`; nothing was begun.
    """
    known = Rebuild.load(root)
    ends = dict(known.ends) if known is not None else {}
    with durable.typed(root / "consumequeue"):
        for key, end in _ends(root, committed):
            ends[key] = max(end, ends.get(key, 0))
    new = Rebuild(ends, known.schedule if known is not None and known.schedule else schedule)
    if new != known:
        new.save(root)


def end_rebuild(root: Path) -> None:
    """Remove the record, durably. The caller has made all views complete and durable. StoreFailedError."""
    path = root / REBUILD_FILE
    if is_begun(root):
        with durable.typed(path):
            durable.before("unlink", path)
            path.unlink()
            durable.fsync_directory(path.parent)


def go_on(log: CommitLog) -> None:
    """After all records were dispatched: let a queue without messages continue at its recorded end."""
    begun, noted = Rebuild.load(log.root), QueueEnds.load(log.own)
    for key, end in begun.ends.items() if begun is not None and log.start() > 0 else ():
        end = max(end, noted.ends.get(key, 0) if noted is not None else 0)
        if end > 0 and not log.views.queue(*key).run.bases():
            end_without_messages(log, key, end)


def _schedule(copies: Mapping[str, str]) -> dict[str, str]:
    """ValueError: a name that no queue file has."""
    for name in copies:
        queue_id, _, file = name.partition("/")
        if not (queue_id.isascii() and queue_id.isdigit() and parse_segment_name(file) is not None):
            raise ValueError(f"{name!r} is no queue's file")
    return {name: str(place) for name, place in copies.items()}


def _ends(root: Path, committed: Mapping[QueueKey, Iterable[int]]) -> Iterator[tuple[QueueKey, int]]:
    """Of every queue that has a directory. Nothing is mapped, and no size believed: files may be damaged."""
    log_end = max((base + size for base, size in _sizes(root / "commitlog")), default=0)
    possible = log_end // FRAME_BYTES_MIN  # more messages than ever were: somebody committed what never was
    for topic in _directories(root / "consumequeue"):
        try:
            validate_topic(topic.name)
        except UsageError:
            continue
        for queue in _directories(topic):
            if queue.name.isascii() and queue.name.isdigit():
                key = topic.name, int(queue.name)
                offsets = [offset for offset in committed.get(key, ()) if 0 < offset <= possible]
                yield key, max([_newest_end(queue, log_end), *offsets])


def _newest_end(queue: Path, log_end: int) -> int:
    """The queue offset behind the newest entry that can be one; 0 without any."""
    for base, _ in sorted(_sizes(queue), reverse=True):
        rows, entries = _entries(queue / f"{base:020d}")
        starts, sizes = entries["commit_log_offset"].astype(np.int64), entries["frame_size"].astype(np.int64)
        blank = (sizes == PRE_BLANK_SIZE) & (starts == 0)
        used = (sizes > 0) & (starts >= 0) & (starts <= log_end) & ((starts + sizes <= log_end) | blank)
        rows, ends, blank = rows[used], np.where(blank, 0, starts + sizes)[used], blank[used]
        # Entries ascend. One that does not may be the damaged one, or stand behind that: so the one before counts, too.
        ascends = np.ones(len(rows), np.bool_)
        ascends[1:] = (ends[1:] > ends[:-1]) | blank[1:]
        ascends[2:] |= ends[2:] > ends[:-2]
        if len(found := rows[ascends]):
            return base // ENTRY_BYTES + int(found[-1]) + 1
    return 0


def _entries(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Numbers (n,) and entries (n,) of one file, without those in holes; pages that cannot be read are zeros."""
    rows, entries = [], []
    fd = durable.open_nofollow(path, os.O_RDONLY)
    try:
        for low, high in data_ranges(fd, 0, os.fstat(fd).st_size):
            first = low // ENTRY_BYTES
            data = _read(fd, first * ENTRY_BYTES, high)
            part = np.frombuffer(data[: len(data) // ENTRY_BYTES * ENTRY_BYTES], ENTRY)
            rows.append(first + np.arange(len(part)))
            entries.append(part)
    finally:
        os.close(fd)
    if not rows:
        return np.empty(0, np.int64), np.empty(0, ENTRY)
    return np.concatenate(rows), np.concatenate(entries, dtype=ENTRY)


def _read(fd: int, start: int, end: int) -> bytes:
    try:
        return os.pread(fd, end - start, start)
    except OSError as error:
        if error.errno != errno.EIO or end - start <= 0:
            raise
    if end - start <= _PAGE_BYTES:
        return bytes(end - start)
    return b"".join(_read(fd, page, min(page + _PAGE_BYTES, end)) for page in range(start, end, _PAGE_BYTES))


def _sizes(directory: Path) -> Iterator[tuple[int, int]]:
    """(first byte, size) of the files of a run."""
    for entry in os.scandir(directory) if directory.is_dir() else ():
        base = parse_segment_name(entry.name)
        if base is not None and entry.is_file(follow_symlinks=False):
            yield base, entry.stat().st_size


def _directories(directory: Path) -> list[Path]:
    found = os.scandir(directory) if directory.is_dir() else ()
    return sorted(directory / entry.name for entry in found if entry.is_dir(follow_symlinks=False))


def _crc(data: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(data, sort_keys=True).encode())
