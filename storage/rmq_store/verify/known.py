"""What a store says about itself: where its log ends while writers are at work, and which damage was kept.

Source of the layouts: docs/design.md sections 3 and 8.5; read here by hand, as everything else in this package.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import NamedTuple

PAGE = struct.Struct("<8s16sqqq")  # magic, boot id, device, inode, appended end
PAGE_MAGIC = b"pyrmqst1"
LOCK_TEXT = b"rmq\n"
FILE_BYTES_MAX = 64 << 20


class BadRange(NamedTuple):
    """Bytes [start, end) of the log, all in the segment `path`, are no records."""

    path: str
    start: int
    end: int
    text: str


def log_end(root: Path) -> int | None:
    """The end of the log as the state page tells, which writers keep true; None if it tells nothing."""
    path = root / "pyrmq" / "state"
    try:
        with path.open("rb") as file:
            magic, boot, device, inode, end = PAGE.unpack(file.read(PAGE.size))
        status = path.stat()
        boot_id = bytes.fromhex(Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", ""))
        with (root / "lock").open("rb") as lock:
            is_ours = lock.read(4) == LOCK_TEXT
    except (OSError, struct.error):
        return None
    counts = magic == PAGE_MAGIC and boot == boot_id and (device, inode) == (status.st_dev, status.st_ino)
    return end if counts and is_ours and end >= 0 else None


def kept_ranges(root: Path) -> list[BadRange] | str:
    """The damage that was kept, ascending; why it cannot be told, if the file is there and unreadable."""
    try:
        with (root / "pyrmq" / "kept.json").open("rb") as file:
            data = json.loads(file.read(FILE_BYTES_MAX))
        rows = [BadRange(row["file"], row["start"], row["end"], row["reason"]) for row in data["ranges"]]
        if all(type(row.start) is type(row.end) is int and 0 <= row.start < row.end for row in rows):
            return sorted(rows, key=lambda row: row.start)
        return "a range makes no sense"
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        return f"no list of kept damage: {error}"
