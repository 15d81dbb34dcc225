"""Caches the numbered file names of a directory, and reads them again only after it has changed. A store lists its
files for every message and poll, and a large store has thousands.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence

from rmq_store import real_time
from rmq_store.files.rooted import Root

# A directory may change twice within one tick of its file system's clock (2 s on FAT): until so much later its time
# says nothing.
_SETTLED_NS = 3_000_000_000


class Listing:
    """The listing of one directory. `parse` turns the file names into the numbers that `get` returns."""

    def __init__(self, directory: str, parse: Callable[[list[str]], Sequence[int]]) -> None:
        self._directory = directory
        self._parse = parse
        self._known: tuple[tuple[int, ...], Sequence[int]] | None = None

    def get(self, root: Root | None = None) -> Sequence[int]:
        """The parsed names that exist now. If `root` is given, the directory is reached through it. OSError as
        listdir(3).
        """
        directory = self._directory if root is None else root.reach(self._directory)
        # First: changes after this have a later time than the one that is compared.
        now_ns = real_time.file_time_ns()
        status = os.stat(directory)  # noqa: PTH116 - polled: no Path object each time
        # Two times: the second one nobody can set, as those do who put a directory back as it was (rsync, tar).
        stamp = status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns
        known = self._known
        if known is not None and known[0] == stamp:
            return known[1]
        found = self._parse(os.listdir(directory))  # noqa: PTH208
        self._known = (stamp, found) if now_ns - status.st_mtime_ns > _SETTLED_NS else None
        return found


@functools.lru_cache(maxsize=16)
def shared_listing(directory: str, parse: Callable[[list[str]], Sequence[int]]) -> Listing:
    """The listing of this directory that the whole process shares. An opening store lists its segments several times,
    before and after their size is known, and Spark tasks open one store after another.
    """
    return Listing(directory, parse)
