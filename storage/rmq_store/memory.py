"""A pool of memory for record batches: released areas are used again, with their pages already mapped.

Fresh heap memory would cost time, because the kernel clears each new page first. And a heap keeps several times the
memory that it handed out.
"""

from __future__ import annotations

import contextlib
import mmap
import weakref
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

Area = npt.NDArray[np.uint8]

# Two threads fill one each, while the reader has one, and one that was read is not let go yet.
_POOLED_AREAS = 4
_POOLED_BYTES_MAX = 32 << 20
# Smaller ones are left to the heap: somebody may have very many of them, and a process may have so many maps.
_AREA_BYTES_MIN = 1 << 20
_LINE_BYTES = 64


class BatchMemory:
    """Areas for batches, one each. Any thread may ask for an area, and any thread may be the last to hold its batch."""

    def __init__(self) -> None:
        self._free: list[mmap.mmap] = []

    def carve(self, sizes_bytes: Mapping[str, int]) -> dict[str, Area]:
        """A new area in pieces of these sizes, (size,) uint8 each, with undefined content. It may be handed out again
        when no array or buffer over any of its pieces is left. MemoryError.
        """
        return _in_pieces(self._area, sizes_bytes)

    def _area(self, size_bytes: int) -> Area:
        if size_bytes < _AREA_BYTES_MIN:
            return np.empty(size_bytes, np.uint8)
        room = self._take(size_bytes)
        if room is None:
            try:
                room = mmap.mmap(-1, -(-size_bytes // _AREA_BYTES_MIN) * _AREA_BYTES_MIN, flags=mmap.MAP_PRIVATE)
            except OSError:  # there are too many maps (vm.max_map_count)
                return np.empty(size_bytes, np.uint8)
        # All pieces are views of this array, which goes with the last of them.
        area = np.frombuffer(room, np.uint8)
        weakref.finalize(area, _give_back, self._free, room).atexit = False
        return area

    def _take(self, size_bytes: int) -> mmap.mmap | None:
        for room in sorted(self._free, key=len):
            if len(room) >= size_bytes:
                with contextlib.suppress(ValueError):  # another thread has it by now
                    self._free.remove(room)
                    return room
        return None


def from_heap(sizes_bytes: Mapping[str, int]) -> dict[str, Area]:
    """As `BatchMemory.carve`, but the memory returns to the heap at once when it is released."""
    return _in_pieces(lambda size_bytes: np.empty(size_bytes, np.uint8), sizes_bytes)


def _in_pieces(new: Callable[[int], Area], sizes_bytes: Mapping[str, int]) -> dict[str, Area]:
    starts, end = {}, 0
    for name, size_bytes in sizes_bytes.items():
        starts[name] = end
        end += -(-size_bytes // _LINE_BYTES) * _LINE_BYTES
    area = new(end)
    return {name: area[start : start + sizes_bytes[name]] for name, start in starts.items()}


def _give_back(free: list[mmap.mmap], room: mmap.mmap) -> None:
    """No lock: it may be called in the midst of anything, also of what it would be taken for."""
    if len(room) <= _POOLED_BYTES_MAX:
        free.append(room)
    if len(free) > _POOLED_AREAS:
        with contextlib.suppress(ValueError):
            free.remove(min(free, key=len))
