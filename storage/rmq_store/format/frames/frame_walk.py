"""Walks over sound frames, each found by the size of the one before it (data plane of recovery).

`check_frame` decides which frames are sound. The caller handles the others, and frames that are no messages. Source:
CommitLog.java (recoverNormally, recoverAbnormally; checkMessageAndReturnSize).
"""

from __future__ import annotations

import numpy as np

from rmq_store.format.bytes import native
from rmq_store.format.frames.frame_check import check_frame

FRAMES_MAX = 1 << 17
"""So many frames are found by one call at most."""

_NEVER = (1 << 63) - 1


def sound_frames(
    view: memoryview, start: int, stop: int, base_offset: int, crc_from: int | None
) -> tuple[np.ndarray, np.ndarray]:
    """Positions and sizes, (n,) int64 both, of the messages from `start` up to `stop`; at most FRAMES_MAX. The walk
    ends earlier at the first frame that is no sound message. The last message may end after `stop`.

    `view` is a segment whose first byte has the commit-log offset `base_offset`. Every frame must hold its own offset.
    From the offset `crc_from` on it must have a CRC property; None: none must.
    """
    crc_position = _NEVER if crc_from is None else crc_from - base_offset
    if native.LOADED:
        found = np.empty((2, FRAMES_MAX), np.int64)
        data = np.frombuffer(view, np.uint8)
        count = native.functions.walk_frames(data, start, stop, base_offset, crc_position, found[0], found[1])
        positions, sizes = found[:, :count].copy()
        return positions, sizes
    rows: list[tuple[int, int]] = []
    while start < stop and len(rows) < FRAMES_MAX:
        check = check_frame(
            view, start, len(view), expect_offset=base_offset + start, check_crc=True,
            force_prop_crc=crc_position <= start,
        )  # fmt: skip
        if check.kind != "message":
            break
        rows.append((start, check.size))
        start += check.size
    positions, sizes = np.array(rows, np.int64).reshape(-1, 2).T.copy()
    return positions, sizes
