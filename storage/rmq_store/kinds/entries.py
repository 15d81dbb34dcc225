"""Entries of a directory by name, and small files. It imports nothing of the engine, so that the verifier can use it,
too.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

_READ_MAX_BYTES = 64 << 20
_READ_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_SEGMENT = re.compile(r"[0-9]{20}", re.ASCII)
_INDEX_FILE = re.compile(r"[0-9]{17}", re.ASCII)
_OFFSET_MAX = (1 << 63) - 1

Entry = tuple[str, bool]
"""(name, whether it is a directory)."""


def entries(directory: Path) -> list[Entry]:
    """The entries of a directory; [] without one. OSError as scandir(3)."""
    try:
        with os.scandir(directory) as found:
            return [(entry.name, entry.is_dir()) for entry in found]
    except (FileNotFoundError, NotADirectoryError):
        return []


def is_segment(name: str) -> bool:
    """Whether a segment of the log can have this name."""
    return _SEGMENT.fullmatch(name) is not None and int(name) <= _OFFSET_MAX


def is_index_file(name: str) -> bool:
    """Whether an index file can have this name."""
    return _INDEX_FILE.fullmatch(name) is not None


def read_small(path: Path) -> bytes:
    """The content of a table; b"" if the file is missing or cannot be a table. OSError as open(2), read(2)."""
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            return b""
        fd = os.open(path, _READ_FLAGS)
    except (FileNotFoundError, NotADirectoryError):
        return b""
    with open(fd, "rb") as file:  # noqa: PTH123 - a descriptor
        content = file.read(_READ_MAX_BYTES + 1)
    return content if len(content) <= _READ_MAX_BYTES else b""
