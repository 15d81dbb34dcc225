"""Walks over sound frames, each found by the size of the one before it (data plane of recovery).

Frames of a log, where each knows its own offset, and of an answer to a pull, whose frames come from anywhere in a log.
`check_frame` decides which frames are sound. The caller handles the others, and frames that are no messages. Source:
CommitLog.java (recoverNormally, recoverAbnormally; checkMessageAndReturnSize).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rmq_store.errors import CorruptRecordError
from rmq_store.format.bytes import native
from rmq_store.format.frames.frame_check import FRAME_BYTES_MIN, check_frame

FRAMES_MAX = 1 << 17
"""So many frames are found by one call at most."""

_NEVER = (1 << 63) - 1

Int64 = npt.NDArray[np.int64]


class WalkedFrames(NamedTuple):
    """Sound messages, their positions in `data`, and their sizes, (n,) int64 both. `queue_offsets` (n,) int64,
    ascending, if they have been compared with the frames'. `data` may have other bytes between and behind them.
    """

    data: bytes | memoryview
    positions: Int64
    sizes: Int64
    queue_offsets: Int64 | None = None

    @classmethod
    def of(cls, data: bytes) -> WalkedFrames:
        """Walk over `data`. Raises as `frames_of_answer`."""
        return cls(data, *frames_of_answer(data))


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


def frames_of_answer(body: bytes | memoryview) -> tuple[Int64, Int64]:
    """Positions and sizes, (n,) both, of the messages in an answer to a pull: one behind another, nothing else.

    Raises:
        CorruptRecordError: a frame is no sound message; `.offset` is its position in the answer, `.path` is empty.
    """
    positions, sizes = _walk(body)
    end = int(positions[-1] + sizes[-1]) if len(positions) else 0
    if end < len(body):
        check = check_frame(body, end, len(body), expect_offset=None, check_crc=True)
        reason = check.reason or "a frame that is no message"
        raise CorruptRecordError("", end, f"an answer to a pull has {reason}")
    return positions, sizes


def dense_frames(data: bytes, queue_id: int, start: int, end: int) -> WalkedFrames | None:
    """Walk over `data` if it is the messages [start, end) of a queue, one behind another, and nothing else. None: it is
    not, or the extension is not there to tell it in one pass.
    """
    return dense_pieces(data, np.array([[0, len(data)]]), queue_id, start, end)


def dense_pieces(
    data: bytes | memoryview, pieces: Int64, queue_id: int, start: int, end: int
) -> WalkedFrames | None:
    """As `dense_frames`, over `pieces` of `data`, (n, 2) beginnings and ends: one piece goes on behind the one before
    it, wherever it lies.
    """
    if not native.LOADED or not 0 <= start <= end:
        return None
    count = min(end - start, int((pieces[:, 1] - pieces[:, 0]).sum()) // FRAME_BYTES_MIN)
    found = np.empty((2, count), np.int64)
    bounds = np.ascontiguousarray(pieces, np.int64).ravel()
    walked = native.functions.walk_queue_frames(data, bounds, queue_id, start, found[0], found[1])
    if walked < end - start or int(found[1].sum()) != int((pieces[:, 1] - pieces[:, 0]).sum()):
        return None
    return WalkedFrames(data, found[0], found[1], np.arange(start, end))


def _walk(body: bytes | memoryview) -> tuple[Int64, Int64]:
    if native.LOADED:
        found = np.empty((2, len(body) // FRAME_BYTES_MIN), np.int64)
        data = np.frombuffer(body, np.uint8)
        count = native.functions.walk_frames(data, 0, len(body), None, _NEVER, found[0], found[1])
        return found[0, :count], found[1, :count]
    rows: list[tuple[int, int]] = []
    end = 0
    while end < len(body):
        check = check_frame(body, end, len(body), expect_offset=None, check_crc=True)
        if check.kind != "message":
            break
        rows.append((end, check.size))
        end += check.size
    positions, sizes = np.array(rows, np.int64).reshape(-1, 2).T.copy()
    return positions, sizes
