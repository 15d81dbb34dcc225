"""Memory that becomes some where it is touched, and is given back at once."""

from __future__ import annotations

import mmap

import numpy as np
import numpy.typing as npt


def reserve(size_bytes: int) -> npt.NDArray[np.uint8]:
    """Bytes, (size_bytes,) uint8, for more than will be used. From the heap they would lie on pages that were touched
    before, and what is then put here and there keeps all of them. MemoryError.
    """
    try:
        return np.frombuffer(mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), np.uint8)
    except OSError:  # a process has so many maps and not more (vm.max_map_count)
        return np.empty(size_bytes, np.uint8)
