"""Maps a file without a descriptor of its own: the caller closes that of the file, and the map stays.

Python's `mmap` keeps a copy of the descriptor as long as the map lives, that is, until the next garbage collection
where something refers to it in a circle. A process that opens one store after the other would have many of them. From
3.13 on `trackfd=False` keeps none. Before, the file is mapped over an anonymous map of Python's.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from typing import Final

import numpy as np

_MAP_FIXED: Final = 0x10  # <bits/mman-map-flags-generic.h>: the same on all processors that Linux has wheels for
_FAILED: Final = ctypes.c_void_p(-1).value

_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.mmap.argtypes = (
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64,
)  # fmt: skip
_libc.mmap.restype = ctypes.c_void_p


def map_file(fd: int, size_bytes: int, *, writable: bool) -> mmap.mmap:
    """The first `size_bytes` of the file, which has so many, shared with all who map it. OSError: they cannot be."""
    protection = mmap.PROT_READ | mmap.PROT_WRITE if writable else mmap.PROT_READ
    if sys.version_info >= (3, 13):
        return mmap.mmap(fd, size_bytes, prot=protection, trackfd=False)
    mapped = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=protection)
    address = np.frombuffer(mapped, np.uint8).ctypes.data
    if _libc.mmap(address, size_bytes, protection, mmap.MAP_SHARED | _MAP_FIXED, fd, 0) == _FAILED:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return mapped
