"""Records that a group would miss if it moved now: it has not consumed them, and in the target they are not after its
position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt

from rmq_store.bridge.offsets.translate import OTHER, Offsets, Origins

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
