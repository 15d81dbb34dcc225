"""How large the files of a directory are that are named by numbers: segments, or those of a queue.

Each one is looked at whenever a store is opened, since nothing else tells whether one was cut: 320 of them for 20 GB.
The extension does it with one call, and knows the good case only: regular files of one size. Where anything else is
found, or there is no extension, Python looks at them one by one, and says what is wrong. There is the same in
native/files.c.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

import numpy as np

from rmq_store.errors import CorruptionError
from rmq_store.files.segments.segments import OpenFiles, SegmentRun
from rmq_store.format.bytes import native

_INT64_MAX = (1 << 63) - 1


def size_of_files(directory: Path) -> int | None:
    """The one size that all numbered files of a directory have; None if there is none.

    Raises:
        CorruptionError: they differ (a zero-length newest file, as a dying Java broker leaves it, is passed over).
    """
    run = SegmentRun(directory, 1, OpenFiles(1), writable=False, sparse=True, pin=False, keep_names=True)
    bases = run.bases()
    if native.LOADED and bases and bases[-1] <= _INT64_MAX:
        size = native.functions.common_size(str(directory), np.array(bases, np.int64))
        if size:
            return size
    return _looked_at([run.name(base) for base in bases])


def _looked_at(paths: list[str]) -> int | None:
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
