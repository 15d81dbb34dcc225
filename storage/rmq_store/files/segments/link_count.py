"""Checks whether an open file still has a name. Each write of a message makes this check for each file that it writes
to.

fstat(2) would be slow, because it reads the times of the file. The kernel (from 6.13 on, ext4 and others) must then
give the next write a different time and update the whole inode. That takes longer than the write itself. statx(2)
reads only the number of names.
"""

from __future__ import annotations

import ctypes
import os

_AT_EMPTY_PATH = 0x1000  # the descriptor itself
_STATX_NLINK = 4
_STATX_BYTES = 256
_NLINK_WORD = 16 // 4  # stx_nlink, the 32 bits at byte 16 of struct statx

# Of the kind that keeps the interpreter's lock: the kernel has the answer in memory. None: a C library before 2.28.
_statx = getattr(ctypes.PyDLL(None), "statx", None)


class LinkCount:
    """Number of names of one descriptor's file; 0: it was unlinked. Thread-safe."""

    __slots__ = ("_arguments", "_fd", "_words")

    def __init__(self, fd: int) -> None:
        buffer = ctypes.create_string_buffer(_STATX_BYTES)
        self._fd = fd
        self._words = memoryview(buffer).cast("B").cast("I")
        self._arguments = (
            ctypes.c_int(fd), ctypes.c_char_p(b""), ctypes.c_int(_AT_EMPTY_PATH), ctypes.c_uint(_STATX_NLINK), buffer,
        )  # fmt: skip

    def get(self) -> int:
        """The number at this moment."""
        if _statx is None or _statx(*self._arguments) != 0:
            return os.fstat(self._fd).st_nlink
        return self._words[_NLINK_WORD]
