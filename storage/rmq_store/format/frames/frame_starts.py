"""Checks whether messages begin at given positions, many at once (data plane).

The positions come from an index, or from a caller. A message counts only if magic, physical offset and size agree.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rmq_store.format.bytes import native
from rmq_store.format.bytes.gather import gather_fields
from rmq_store.format.frames.frame_check import FRAME_BYTES_MIN, HEADER, MESSAGE_MAGIC_V1, MESSAGE_MAGIC_V2

Bytes = npt.NDArray[np.uint8]
Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]


def message_sizes(data: Bytes, positions: Int64, base_offset: int, stop: int) -> Int32:
    """Total sizes, (n,), of the messages that begin at `positions` (n,) and end before `stop`; 0 where there is none.

    `data` is a segment whose first byte has the commit-log offset `base_offset`.
    """
    sizes = np.zeros(len(positions), np.int32)
    if native.LOADED:
        native.functions.message_sizes(data, positions, base_offset, stop, sizes)
        return sizes
    stop = min(stop, len(data))
    rows = np.flatnonzero((positions >= 0) & (positions <= stop - FRAME_BYTES_MIN))
    positions = positions[rows]
    headers = gather_fields(data, positions, HEADER)
    found, magic = headers["total_size"].astype(np.int32), headers["magic"]
    good = (magic == MESSAGE_MAGIC_V1) | (magic == MESSAGE_MAGIC_V2)
    good &= headers["physical_offset"] == base_offset + positions
    good &= (found >= FRAME_BYTES_MIN) & (found <= stop - positions)
    sizes[rows[good]] = found[good]
    return sizes
