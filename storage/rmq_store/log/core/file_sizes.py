"""The common size of the numbered files of a directory: segments, or the files of a queue.

Every file is checked whenever a store is opened, because nothing else shows that one was truncated: 320 files for 20
GB. The C extension does it with one call, but knows only the good case: regular files of one size. In every other case,
and without the extension, Python checks the files one by one, and names the problem. native/files.c has the same rule.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

import numpy as np

from rmq_store.errors import CorruptionError
from rmq_store.files.segments.open_files import OpenFiles
from rmq_store.files.segments.segments import SegmentRun
from rmq_store.format.bytes import native

_INT64_MAX = (1 << 63) - 1


def size_of_files(directory: Path) -> int | None:
    """The size that all numbered files of a directory have; None if there are none.

    Raises:
        CorruptionError: sizes differ (a newest file of 0 bytes, as a killed Java broker leaves it, is ignored).
    """
    run = SegmentRun(directory, 1, OpenFiles(1), writable=False, sparse=True, pin=False, keep_names=True)
    bases = run.bases()
    if native.LOADED and bases and bases[-1] <= _INT64_MAX:
        size = native.functions.common_size(str(directory), np.array(bases, np.int64))
        if size:
            return size
    return _common_size([run.name(base) for base in bases])


def _common_size(paths: list[str]) -> int | None:
    sizes = []
    for path in paths:
        try:
            status = os.lstat(path)
        except FileNotFoundError:
            continue  # taken by retention meanwhile
        if not stat.S_ISREG(status.st_mode):
            raise CorruptionError(path, 0, "expected a regular file, found something else")
        sizes.append((path, status.st_size))
    if sizes and sizes[-1][1] == 0:
        sizes.pop()
    if not sizes:
        return None
    expected = sizes[0][1]
    for path, size in sizes:
        if size != expected or size == 0:
            raise CorruptionError(path, size, f"the file has {size} bytes, its neighbours {expected}")
    return expected
