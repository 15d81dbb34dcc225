"""Staged files that a commit uses up: what was copied into the log is given back to the kernel at once.

The pages that the log needs next are then those that the staged bytes had: a commit takes half of the memory, and
writes into memory that was used a moment ago, which is several times as fast as memory that the kernel, or the host of
a virtual machine, has to find first.
"""

from __future__ import annotations

import ctypes
import os
from types import TracebackType
from typing import Self

import numpy as np
import pyarrow as pa

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_KEEP_SIZE, _PUNCH_HOLE = 1, 2

_libc = ctypes.CDLL(None)
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


class UsedFiles:
    """Maps of files whose bytes nobody needs a second time. Use as a context manager."""

    def __init__(self) -> None:
        self._files: list[tuple[int, int, int]] = []

    def add(self, mapped: pa.Buffer, fd: int) -> None:
        """Name a file that is open for writing as `fd`, and mapped whole."""
        self._files.append((mapped.address, mapped.size, os.dup(fd)))

    def give_back(self, data: np.ndarray) -> None:
        """Punch a hole where these bytes are, uint8 of one of the files; whole pages only. Nothing happens on a file
        system that cannot do that.
        """
        address = data.ctypes.data
        for base, size, fd in self._files:
            if base <= address < base + size:
                first = -(-(address - base) // _PAGE_BYTES) * _PAGE_BYTES
                end = (address - base + len(data)) // _PAGE_BYTES * _PAGE_BYTES
                if first < end:
                    _libc.fallocate(fd, _PUNCH_HOLE | _KEEP_SIZE, first, end - first)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._files:
            os.close(self._files.pop()[2])
