"""Fields of encoded frames that depend on the offsets, which only the append knows. The append fills them in under the
append lock, so they are few.

Source: CommitLog.java (DefaultAppendMessageCallback.doAppend; the CRC property).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rmq_store.format.bytes import native
from rmq_store.format.bytes.gather import Bytes
from rmq_store.format.frames.crc import crc_digits, patch_crcs
from rmq_store.format.frames.frame_check import HEADER, SysFlag
from rmq_store.format.properties.property_string import CRC_PROPERTY_BYTES
from rmq_store.format.text.host import IPV4_HOST_BYTES, IPV6_HOST_BYTES

Int64 = npt.NDArray[np.int64]

_QUEUE_OFFSET_POSITION = 20
_SYS_FLAG_LAST_BYTE = 36 + 3
_BORN_HOST_POSITION = HEADER.itemsize
_OFFSETS = np.dtype([("queue_offset", ">i8"), ("physical_offset", ">i8")])
# The digits are followed by x02, the last byte of the frame.
_DIGITS_BEFORE_END = 10 + 1


def patch_frames(
    frames: Bytes,
    starts: Int64,
    sizes: Int64,
    queue_offsets: Int64,
    physical_offsets: Int64,
    store_timestamp_ms: int,
    crc0: npt.NDArray[np.uint32] | None,
) -> None:
    """Fill in, in place, the fields that `encode_batch` left zero.

    `frames` is writable and contiguous; frame i is `frames[starts[i]:starts[i] + sizes[i]]`. All other arrays are (n,).
    `crc0` is the `crc` column of the encoded batch if its frames end with a CRC property, else None.
    """
    if len(starts) == 0:
        return
    assert len(starts) == len(sizes) == len(queue_offsets) == len(physical_offsets)
    if native.LOADED:
        native.functions.patch_frames(
            frames,
            np.ascontiguousarray(starts),
            np.ascontiguousarray(sizes),
            np.ascontiguousarray(queue_offsets),
            np.ascontiguousarray(physical_offsets),
            store_timestamp_ms,
            None if crc0 is None else np.ascontiguousarray(crc0),
        )
        return
    offsets = np.empty(len(starts), _OFFSETS)
    offsets["queue_offset"] = queue_offsets
    offsets["physical_offset"] = physical_offsets
    _scatter(frames, starts + _QUEUE_OFFSET_POSITION, offsets)

    is_born_ipv6 = frames[starts + _SYS_FLAG_LAST_BYTE] & np.uint8(SysFlag.BORN_HOST_V6) != 0
    born_host_bytes = np.where(is_born_ipv6, np.int64(IPV6_HOST_BYTES), np.int64(IPV4_HOST_BYTES))
    store_timestamps = np.full(len(starts), store_timestamp_ms, np.int64)
    _scatter(frames, starts + _BORN_HOST_POSITION + born_host_bytes, store_timestamps.astype(">i8"))

    if crc0 is not None:
        covered_bytes = sizes - CRC_PROPERTY_BYTES
        crcs = patch_crcs(crc0, covered_bytes, born_host_bytes, queue_offsets, physical_offsets, store_timestamps)
        digits = np.ascontiguousarray(crc_digits(crcs))
        _scatter(frames, starts + sizes - _DIGITS_BEFORE_END, digits.view(np.dtype((np.void, digits.shape[1]))).ravel())


def _scatter(frames: Bytes, positions: Int64, values: npt.NDArray[np.generic]) -> None:
    """Write one value at each byte position; the counterpart of `gather_fields`."""
    moved = np.dtype((np.void, values.dtype.itemsize))
    windows = np.ndarray((len(frames) - moved.itemsize + 1,), moved, frames, strides=(1,))
    windows[positions] = values.view(moved)
