"""Copies that the way back has brought into the source. They show which records of others, in the target, a group has
consumed there.

The way back is the mirror from target to source. Each copy in the source names its original record. So a record is
consumed if its copy is below the group's position. For copies that are gone, other rules apply:

* Retention deletes the oldest. Records before the first copy that is left were copied before it, and so below the
  group's position: [start of the way back, first copy left) is consumed. If none is left below the group's position,
  the first one after it says the same, or, if there is none either, the position of the way back.
* Compaction deletes any. All in [start of the way back, last copy below the group's position] was copied.

Dead letters of the way back were never in the source, and are not consumed, wherever they are.

`count_missing` looks up the copies of the other mirror in the target by the same rules, with both sides exchanged: it
counts the records that a group would miss if it moved now. It has not consumed them, and in the target they are not
after its position. `seek` finds where the copies that matter begin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rmq_store.bridge.offsets.translate import NO_OFFSETS, OTHER, Ascending, Offsets, Origins
from rmq_store.lazy.dataclasses import dataclass


class Lost(Enum):
    """The reason why copies may be gone from the source."""

    NONE = "none"
    OLDEST = "oldest"
    """Older ones than the first that is read."""
    ANY = "any"
    """The source is compacted."""


@dataclass(frozen=True, slots=True)
class WayBack:
    """The mirror from target to source, for this queue: it began at `start`, and has copied the records below `next`.
    """

    start: int
    next: int


class Copies:
    """Looks up records of others, in ascending order. Memory: copies of as many records as one call looks up."""

    def __init__(
        self,
        copies: Iterable[Origins],
        way_back: WayBack,
        lost: Lost,
        next_copy: Callable[[], int],
        letters: Offsets = NO_OFFSETS,
    ) -> None:
        """`copies`: records of the source below the group's position, in order, from the copy of the first record that
        will be asked for on, or an earlier one. `next_copy()`, asked at most once: everything of the target below it
        was copied below the group's position, as far as that can be seen behind the group's position; 0: it cannot.
        `letters`: positions in the target of dead letters of the way back, ascending.
        """
        self._copies: Iterator[Origins] = iter(copies)
        self._marks = Ascending(way_back.next)
        self._start = way_back.start
        self._lost = lost
        self._next_copy = next_copy
        self._letters = letters
        self._known = NO_OFFSETS  # not yet asked for
        self._first: int | None = None
        self._last = -1
        self._ended = False
        self._gone_below = 0

    def consumed(self, positions: Offsets) -> npt.NDArray[np.bool_]:
        """(n,) True for each record that is consumed; see `translate.Consumed`."""
        if not len(positions):
            return np.zeros(0, np.bool_)
        self._read(int(positions[-1]))
        copied = np.isin(positions, self._known, assume_unique=True)
        self._known = self._known[self._known > positions[-1]]
        gone = (positions >= self._start) & (positions < self._gone_below)
        return copied | (gone & ~np.isin(positions, self._letters))

    def none_from(self, position: int) -> bool:
        """True if no record at `position` or after it is consumed; see `translate.Consumed`."""
        self._read(position)
        return self._ended and self._last < position and self._gone_below <= position

    def _read(self, until: int) -> None:
        """Know all copies of records up to `until`, itself included."""
        while self._last < until and not self._ended:
            chunk = next(self._copies, None)
            if chunk is None:
                self._ended = True
                self._at_end()
                return
            marks = self._marks.believed(chunk.source_offsets)
            marks = marks[marks >= 0]
            if not len(marks):
                continue
            if self._first is None:
                self._first = int(marks[0])
                if self._lost is Lost.OLDEST:
                    self._gone_below = self._first
            self._last = int(marks[-1])
            if self._lost is Lost.ANY:
                self._gone_below = self._last + 1
            self._known = np.concatenate((self._known, marks))

    def _at_end(self) -> None:
        if self._lost is Lost.ANY or (self._lost is Lost.OLDEST and self._first is None):
            self._gone_below = max(self._gone_below, self._next_copy())


# -- where copies begin ------------------------------------------------------------------------------------------------

Read = Callable[[int, int], Iterator[Origins]]
"""Records of a queue at [first, end), in their order."""


class CopiesStart(NamedTuple):
    """`position`: copies before it have source offsets that do not matter. `seen_before`: there is a copy before it."""

    position: int
    seen_before: bool


def seek(read: Read, start: int, end: int, source_offset: int) -> CopiesStart:
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
    return CopiesStart(low, seen_before)


def _first_copy(read: Read, first: int, end: int) -> tuple[int, int] | None:
    """(position, source offset) of the first copy at [`first`, `end`)."""
    for chunk in read(first, end):
        copies = np.flatnonzero(chunk.source_offsets >= 0)
        if len(copies):
            return int(chunk.positions[copies[0]]), int(chunk.source_offsets[copies[0]])
    return None


# -- what is missing ---------------------------------------------------------------------------------------------------

Copied = Callable[[Offsets], npt.NDArray[np.bool_]]
"""(n,) True for each record of the source that the target has. Positions ascend, also from call to call."""


def nothing_copied(positions: Offsets) -> npt.NDArray[np.bool_]:
    """(n,) All False: no mirror leads to the target."""
    return np.zeros(len(positions), np.bool_)


def count_missing(records: Iterable[Origins], end: int, copied: Copied, gone: range) -> int:
    """Count records of the source, from the group's position on, that the target does not have at or after the
    translated position.

    Records of the source itself count if they are below `end` and not `copied`: dead letters of the mirror, records
    before its start, and copies that the target's retention deleted. `end` is the mirror's position, because later
    records are still to come; without a mirror, it is the end of the source. `gone`: positions of the target that its
    retention deleted and that the group has not consumed there; a copy of one, not consumed in the source, is missing.
    Reads no further than needed.
    """
    count = 0
    for chunk in records:
        own = chunk.positions[(chunk.source_offsets == OTHER) & (chunk.positions < end)]
        taken = (chunk.source_offsets >= gone.start) & (chunk.source_offsets < gone.stop)
        count += len(own) - int(np.count_nonzero(copied(own))) + int(np.count_nonzero(taken))
        if chunk.positions[-1] + 1 >= end and (not gone or (chunk.source_offsets >= gone.stop).any()):
            break
    return count
