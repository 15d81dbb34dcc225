"""Translates group positions: a group has consumed a queue up to a position, and continues in the other cluster.

Pure: numbers in, numbers out. *Source* is the side where the group consumed, *target* the side where it will continue;
a queue is a partition or a queue. Records of the target are of three kinds, by their mark MIRROR_FROM:

    copied from the source     consumed if its source offset is below the group's position
    of others                  consumed if the *way back* (the mirror from target to source) has brought it into the
                               source below the group's position (`copies.Copies`); else not
    returned                   it came from the source over a third cluster: the direct copy counts, this one neither
                               holds the position up nor counts

The position is the first record of the target that is not consumed, or the end. Nothing below the group's present
position in the target matters: reading begins there, so it never goes back. If one mirror is the queue's only writer,
this is the first record whose source offset is not below the group's position.

A mark counts only if it is possible: below the mirror's position as it was read, and above the marks before it. A
mirror writes in the order of its source, so a smaller one is a copy that a job made. A record with another mark counts
as not consumed: either the mirror has copied it since, or the way back takes it for a loop and never copies it. In
doubt a record comes again.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from rmq_store.lazy.dataclasses import dataclass

Offsets = npt.NDArray[np.int64]

OTHER: Final = -1
"""A source offset: the record did not come from there."""

RETURNED: Final = -2
"""A source offset: the record came from there over a third cluster."""

DOUBTFUL: Final = -3
"""A source offset: the record says that it came from there, and cannot have."""

NO_OFFSETS: Final[Offsets] = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Origins:
    """Records of a queue in their order: `positions` (n,), ascending, perhaps with gaps, and the origin of each,
    `source_offsets` (n,): an offset of the other side's queue, OTHER or RETURNED.
    """

    positions: Offsets
    source_offsets: Offsets


class Stop(Enum):
    """The reason why a translated position is not further."""

    BEHIND = "behind"
    """The mirror has not come as far as the group: there is no position yet."""
    RECORD = "record"
    """A record that the mirror copied, and the group has not consumed."""
    OTHER = "other"
    """A record of others, or a doubtful one, that is not known to be consumed."""
    END = "end"
    """Everything in the target is consumed."""


@dataclass(frozen=True, slots=True)
class Translation:
    """A group's position in the target queue; None while the mirror has not copied enough.

    `redelivered` records after it were consumed and come again. `letters_passed` records below it were not consumed,
    because they are dead letters of the way back. `source_offset` is the source offset of the first record at or after
    the position that the mirror copied and the group has not consumed; the mirror's position if there is none.
    """

    position: int | None
    redelivered: int
    letters_passed: int
    stop: Stop
    source_offset: int


class Consumed(Protocol):
    """Tells which records of others are consumed: `offsets.copies.Copies`, or `NothingConsumed` without a way back."""

    def consumed(self, positions: Offsets) -> npt.NDArray[np.bool_]:
        """(n,) True for each consumed position. Positions ascend, and are beyond those of earlier calls."""

    def none_from(self, position: int) -> bool:
        """True if no record at `position` or after it is consumed."""


class NothingConsumed:
    """No mirror leads back: no record of others was ever in the source."""

    def consumed(self, positions: Offsets) -> npt.NDArray[np.bool_]:
        """(n,) All False."""
        return np.zeros(len(positions), np.bool_)

    def none_from(self, position: int) -> bool:
        """True."""
        return True


class Ascending:
    """Tells possible marks from others. One object per pass over a queue, from its beginning on."""

    def __init__(self, limit: int) -> None:
        """`limit`: the mirror's position: it has copied what is below."""
        self._limit = limit
        self._highest = -1

    def believed(self, source_offsets: Offsets) -> Offsets:
        """(n,) `source_offsets` of the next records, with DOUBTFUL for what is not possible."""
        below = np.where(source_offsets < self._limit, source_offsets, DOUBTFUL)
        highest = np.maximum.accumulate(np.concatenate(([self._highest], below)))
        self._highest = int(highest[-1])
        return np.where((below > highest[:-1]) | (below < 0), below, DOUBTFUL)


def translate(
    group_position: int,
    mirror_position: int | None,
    records: Iterable[Origins],
    end: int,
    others: Consumed,
    letters: Offsets = NO_OFFSETS,
) -> Translation:
    """The offset at which a group continues in a target queue if it has consumed the source below `group_position`.

    `mirror_position` is that of the mirror from source to target (None: there is none), read *before* `end`, the end of
    `records`. They begin at the group's present position in the target, or at the start of the target, and are read no
    further than needed. `letters`, ascending: positions of dead letters of the way back that may be passed.
    """
    if mirror_position is not None and mirror_position < group_position:
        return Translation(None, 0, 0, Stop.BEHIND, mirror_position)
    marks = Ascending(0 if mirror_position is None else mirror_position)
    position, stop = end, Stop.END
    source_offset = mirror_position or 0
    found, passed = False, mirror_position is None
    redelivered = letters_passed = 0
    for chunk in records:
        offsets = marks.believed(chunk.source_offsets)
        consumed = (offsets >= 0) & (offsets < group_position)
        is_other = offsets == OTHER
        consumed[is_other] = others.consumed(chunk.positions[is_other])
        is_letter = is_other & ~consumed & np.isin(chunk.positions, letters)
        neutral = is_letter if mirror_position is None else is_letter | (offsets == RETURNED)
        first = 0
        if not found:
            waiting = np.flatnonzero(~consumed & ~neutral)
            first = int(waiting[0]) if len(waiting) else len(consumed)
            letters_passed += int(np.count_nonzero(is_letter[:first]))
            if len(waiting):
                found = True
                position = int(chunk.positions[first])
                stop = Stop.RECORD if offsets[first] >= 0 else Stop.OTHER
        redelivered += int(np.count_nonzero(consumed[first:]))
        beyond = np.flatnonzero(offsets >= group_position)
        if len(beyond) and not passed:
            passed, source_offset = True, int(offsets[beyond[0]])
        if found and passed and others.none_from(int(chunk.positions[-1]) + 1):
            break
    return Translation(position, redelivered, letters_passed, stop, source_offset)
