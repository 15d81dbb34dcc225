"""Release the pages of staged files while a commit copies them into the log.

The kernel reuses the released pages for the log. So a large commit needs half of the memory. Memory that was in use a
moment ago can also be several times as fast as memory that the kernel, or a virtual machine's host, must find first.
"""

from __future__ import annotations

import bisect
import os
from pathlib import Path

import numpy as np
import pyarrow as pa

from rmq_store.errors import StoreError
from rmq_store.files import durable
from rmq_store.files.segments import blocks

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class PageRelease:
    """Maps of files whose bytes are read only once."""

    def __init__(self) -> None:
        self._files: list[tuple[int, int, Path]] = []  # address, size, path; by address

    def add(self, mapped: pa.Buffer, path: Path) -> None:
        """Register a file that is mapped whole. Threads may call it concurrently."""
        bisect.insort(self._files, (mapped.address, mapped.size, path))

    def give_back(self, data: np.ndarray) -> None:
        """Punch a hole where these bytes (uint8, of one of the files) are, whole pages only. A failure, for example for
        want of a descriptor, is ignored: the release only saves memory.
        """
        address = data.ctypes.data
        number = bisect.bisect_right(self._files, address, key=lambda file: file[0]) - 1
        if number < 0:
            return
        base, size, path = self._files[number]
        first = -(-(address - base) // _PAGE_BYTES) * _PAGE_BYTES
        end = (address - base + len(data)) // _PAGE_BYTES * _PAGE_BYTES
        if address >= base + size or first >= end:
            return
        try:
            fd = durable.open_nofollow(path, os.O_RDWR)
        except (OSError, StoreError):
            return
        try:
            blocks.give_back(fd, first, end - first)
        finally:
            os.close(fd)
