"""Binary search in a queue for a position before which no copy of another queue matters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from rmq_store.bridge.offsets.translate import Origins

Read = Callable[[int, int], Iterator[Origins]]
"""Records of a queue at [first, end), in their order."""


class Place(NamedTuple):
    """`position`: copies before it have source offsets that do not matter. `seen_before`: there is a copy before it."""

    position: int
    seen_before: bool


def seek(read: Read, start: int, end: int, source_offset: int) -> Place:
    """A position in [`start`, `end`] of a queue before which all copies have source offsets below `source_offset`.

    Copies ascend, so this is a binary search: a probe reads from the middle to the next copy. Rows that a probe has
    passed without a copy are not read again: at most the queue is read once in all, and little where copies are dense.
    """
    seen_before = False
    low, high = start, end
    while low < high:
        middle = (low + high) // 2
        found = _first_copy(read, middle, high)
        if found is None or found[1] >= source_offset:
            high = middle
        else:
            low, seen_before = found[0] + 1, True
    return Place(low, seen_before)


def _first_copy(read: Read, first: int, end: int) -> tuple[int, int] | None:
    """(position, source offset) of the first copy at [`first`, `end`)."""
    for chunk in read(first, end):
        copies = np.flatnonzero(chunk.source_offsets >= 0)
        if len(copies):
            return int(chunk.positions[copies[0]]), int(chunk.source_offsets[copies[0]])
    return None
