"""Records that a group would miss if it moved now: it has not consumed them, and in the target they are not after its
position.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from rmq_store.bridge.offsets.translate import OTHER, Origins


def count_missing(records: Iterable[Origins], copied_from: int, gone: range) -> int:
    """Count records of the source, from the group's position on, that the target does not have at or after the
    translated position.

    `copied_from`: the source offset of the first record there that the mirror copied. Records of the source before it
    are missing: dead letters, records before the mirror's start, records that the target's retention deleted. It is the
    end of the source if no mirror leads to the target. `gone`: positions of the target that its retention deleted and
    that the group has not consumed there; a copy of one, not consumed in the source, is missing. Reads no further than
    needed.
    """
    count = 0
    for chunk in records:
        before = (chunk.source_offsets == OTHER) & (chunk.positions < copied_from)
        taken = (chunk.source_offsets >= gone.start) & (chunk.source_offsets < gone.stop)
        count += int(np.count_nonzero(before | taken))
        if chunk.positions[-1] + 1 >= copied_from and (not gone or (chunk.source_offsets >= gone.stop).any()):
            break
    return count
