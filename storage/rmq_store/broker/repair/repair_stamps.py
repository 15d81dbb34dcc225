"""Whether a store is unchanged since `rmq repair` examined it: a user may answer its question much later."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from rmq_store.errors import UsageError

Stamps = Mapping[str, tuple[int, int, int, int]]
"""{path relative to the store: device, inode, time of the last change in ns, size in bytes}"""

_DIRECTORIES = ("commitlog", "consumequeue", "index", "config")
_FILES = ("abort", "checkpoint")


def stamps_of(root: Path) -> Stamps:
    """Stamps of every examined file of the store. Lock files are left out: a process that examines a lock writes to its
    file. OSError as stat(2).
    """
    return {str(path.relative_to(root)): stamp for path, stamp in _stamped(root)}


def refuse_changes(root: Path, seen: Stamps) -> None:
    """Raise UsageError if any of the files changed, appeared or vanished since it was `seen`."""
    now = stamps_of(root)
    changed = sorted(name for name in now.keys() | seen.keys() if now.get(name) != seen.get(name))
    if changed:
        others = f" and {len(changed) - 1} more files" if len(changed) > 1 else ""
        raise UsageError(
            f"{root}: {changed[0]}{others} changed since the store was checked: nothing was done. Run it again"
        )


def _stamped(root: Path) -> Iterator[tuple[Path, tuple[int, int, int, int]]]:
    own = root / "pyrmq"
    listed = os.scandir(own) if own.is_dir() else ()
    files = [Path(entry.path) for entry in listed if not entry.is_dir(follow_symlinks=False)]
    files = [path for path in files if not path.name.endswith(".lock")]
    for directory in _DIRECTORIES:
        for above, folders, names in os.walk(root / directory):
            files += [Path(above, name) for name in (*folders, *names)]
    for path in (*files, *(root / name for name in _FILES)):
        try:
            status = path.lstat()
        except FileNotFoundError:
            continue
        yield path, (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)
