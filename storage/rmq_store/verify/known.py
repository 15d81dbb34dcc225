"""Statements of a store about itself, which the verifier reads.

They are: where the log ends while writers are at work, and how much of it is on disk for certain; from where on records
have checksums; where the queues ended; which damage was accepted; whether a repair was completed.

Source of the layouts: docs/formats.md section 3, docs/design.md sections 8.1 and 8.5. The verifier decodes them itself,
without the engine's code.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from pathlib import Path
from typing import NamedTuple

from .files import read_start

PAGE = struct.Struct("<8s16sqqq")  # magic, boot id, device, inode, appended end
PAGE_MAGIC = b"pyrmqst1"
LOCK_TEXT = b"rmq\n"
# The progress record: magic, flushed end, newest index file, clean, crc_from, CRC-32 of all before it; the rest is not
# needed here.
PROGRESS = struct.Struct("<8s32xqq40xq8xqI")
INDEX_NOT_KEPT = -1
PROGRESS_MAGIC = b"pyrmqpr2"
DEVELOPMENT_PROGRESS_MAGIC = b"pyrmqpr1"
DEVELOPMENT = "written by a development version of pyspark-rmq"
FILE_BYTES_MAX = 64 << 20
REBUILD_FILE = "pyrmq/rebuild.json"


class Progress(NamedTuple):
    """The progress record of the last writers of this engine. The log was on disk below `flushed_end`. Every record
    from `crc_from` on has a CRC property, because this engine wrote it (None: not known). `has_index`: an index was
    kept.
    """

    flushed_end: int = 0
    crc_from: int | None = None
    has_index: bool = False


class QueueTable(NamedTuple):
    """The ends of the queues at the last close of a writer: {(topic, queue id): end}; the log was on disk below
    `log_end`. `why_none`: why a readable file is no table; "" otherwise.
    """

    ends: dict[tuple[bytes, int], int]
    log_end: int = 0
    why_none: str = ""


class BadRange(NamedTuple):
    """Bytes [start, end) of the log, all in the segment `path`, are no records."""

    path: str
    start: int
    end: int
    text: str


def log_end(root: Path) -> int | None:
    """The end of the log from the state page, which writers keep up to date; None if the page has none."""
    path = root / "pyrmq" / "state"
    try:
        magic, boot, device, inode, end = PAGE.unpack(read_start(path, PAGE.size))
        status = path.stat()
        boot_id = bytes.fromhex(Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", ""))
        ours = is_ours(root)
    except PermissionError:
        raise
    except (OSError, struct.error):
        return None
    counts = magic == PAGE_MAGIC and boot == boot_id and (device, inode) == (status.st_dev, status.st_ino)
    return end if counts and ours and end >= 0 else None


def progress_record(root: Path) -> Progress:
    """The progress record; nothing is known if there is none, or a broker has used the store since."""
    log_end = queue_table(root).log_end
    try:
        raw = read_start(root / "pyrmq" / "progress", PROGRESS.size)
        magic, flushed_end, index_file, clean, crc_from, crc = PROGRESS.unpack(raw)
    except PermissionError:
        raise
    except (OSError, struct.error):
        return Progress(log_end)
    if not is_ours(root):
        return Progress()
    if magic != PROGRESS_MAGIC or crc != zlib.crc32(raw[:-4]):
        return Progress(log_end)
    if clean != 1 or (root / "abort").exists():  # otherwise it was written after the table, by the last closer
        flushed_end = max(flushed_end, log_end)
    return Progress(flushed_end, crc_from if crc_from >= 0 else None, index_file != INDEX_NOT_KEPT)


def queue_table(root: Path) -> QueueTable:
    """The table of queue ends; nothing is known if there is none, or a broker has used the store since.
    PermissionError.
    """
    try:
        if not is_ours(root):
            return QueueTable({})
        data = json.loads(read_start(root / "pyrmq" / "queue_ends.json", FILE_BYTES_MAX))
        if data.pop("crc") != checksum(data):
            return QueueTable({}, why_none="it does not have its checksum")
        ends = {(topic.encode(), queue_id): end for topic, queue_id, end in data["queues"]}
        log_end = data.get("log_end", 0)
        if all(type(number) is int for row in ends.items() for number in (row[0][1], row[1], log_end)):
            return QueueTable(ends, log_end)
        return QueueTable({}, why_none="a row makes no sense")
    except PermissionError:
        raise
    except OSError:  # missing; or no regular file, or unreadable, which `check_tables` reports as damage
        return QueueTable({})
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return QueueTable({}, why_none=f"no table of queue ends: {error}")


def development_files(root: Path) -> dict[str, str]:
    """{file: which format it has} of the caches and records that only development versions wrote. PermissionError."""
    found = {}
    if _start(root / "pyrmq" / "progress", len(DEVELOPMENT_PROGRESS_MAGIC)) == DEVELOPMENT_PROGRESS_MAGIC:
        found["pyrmq/progress"] = "progress record pyrmqpr1"
    for name, what in (("queue_ends.json", "a table without `firsts`, `log_end`"), ("units.json", "format 1")):
        try:
            data = json.loads(_start(root / "pyrmq" / name, FILE_BYTES_MAX))
            # A table of queue ends that does not have its checksum is no table of any version.
            is_first = data["format"] == 1 and (name == "units.json" or data.pop("crc", None) == checksum(data))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            continue
        if is_first and (name == "units.json" or not {"firsts", "log_end"} <= data.keys()):
            found[f"pyrmq/{name}"] = what
    return {path: f"{DEVELOPMENT} ({what}): see `rmq repair`" for path, what in found.items()}


def _start(path: Path, size_bytes: int) -> bytes:
    """The first bytes of a file; b"" if it cannot be read. PermissionError."""
    try:
        return read_start(path, size_bytes)
    except PermissionError:
        raise
    except OSError:
        return b""


def deleted_topics(root: Path) -> dict[str, int]:
    """{topic: end of the log when this engine deleted it}; {} if the list cannot be read. PermissionError."""
    try:
        topics = json.loads(read_start(root / "pyrmq" / "deleted_topics.json", FILE_BYTES_MAX))["topics"]
        return {name: end for name, end in topics.items() if type(end) is int}
    except PermissionError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def is_in_repair(root: Path) -> bool:
    """Whether a repair, or the process that continued it, began to build the queues again and did not complete that."""
    return os.path.lexists(root / REBUILD_FILE)


def checksum(data: object) -> int:
    """The CRC-32 of a table of this engine: of its JSON without the checksum, keys sorted."""
    return zlib.crc32(json.dumps(data, sort_keys=True).encode())


def is_ours(root: Path) -> bool:
    """Whether this engine used the store last; a broker writes another text at every start."""
    try:
        return read_start(root / "lock", len(LOCK_TEXT)) == LOCK_TEXT
    except PermissionError:
        raise
    except OSError:
        return False


def accepted_damage_ranges(root: Path) -> list[BadRange] | str:
    """The accepted damage, ascending; or why it is not known, if its file is damaged. PermissionError."""
    try:
        data = json.loads(read_start(root / "pyrmq" / "kept.json", FILE_BYTES_MAX))
        if data.keys() == {"format", "ranges", "queues"} and data["format"] == 1:
            return f"{DEVELOPMENT} (a list without `crc`): see `rmq repair`"
        if data.pop("crc", None) != checksum(data):
            return "no list of kept damage: it does not have its checksum"
        rows = [BadRange(row["file"], row["start"], row["end"], row["reason"]) for row in data["ranges"]]
        if all(type(row.start) is type(row.end) is int and 0 <= row.start < row.end for row in rows):
            return sorted(rows, key=lambda row: row.start)
        return "a range makes no sense"
    except FileNotFoundError:
        return []
    except PermissionError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return f"no list of kept damage: {error}"
