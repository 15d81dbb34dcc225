"""Checks that an answer to a pull holds the messages that were asked for: of the queue, in order, without a gap.

All frames of an answer are looked at together.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rmq_store.format.bytes.gather import gather_fields
from rmq_store.format.frames.frame_check import HEADER
from rmq_store.format.frames.frame_walk import WalkedFrames, dense_frames, dense_pieces
from rmq_store.protocol.errors import QueueHoleError, RemotingCommandError
from rmq_store.protocol.messages import MessageQueue

Int64 = npt.NDArray[np.int64]


def check_dense(frames: bytes, queue: MessageQueue, start: int, end: int) -> WalkedFrames:
    """Check that `frames` are the messages [start, end) of the queue, and return where each of them is.

    Raises:
        QueueHoleError: some are missing.
        RemotingCommandError: they are in another order, twice, or of another queue.
        CorruptRecordError: a frame is no sound message.
    """
    dense = dense_frames(frames, queue.queue_id, start, end)
    if dense is not None:
        return dense
    walked = WalkedFrames.of(frames)
    offsets = _offsets(walked, queue)
    if len(offsets) == end - start and bool((offsets == np.arange(start, end)).all()):
        return walked._replace(queue_offsets=offsets)
    _check_order(offsets, queue, start, end)
    present = np.concatenate([offsets, [end]])
    first_missing = np.arange(start, start + len(present))
    row = int((present != first_missing).argmax())
    raise hole(queue, int(first_missing[row]), int(present[row]))


def check_dense_pieces(
    data: memoryview, pieces: Int64, queue: MessageQueue, start: int, end: int
) -> WalkedFrames:
    """As `check_dense`, over `pieces` of `data`, (n, 2) beginnings and ends; they are joined if something is wrong."""
    dense = dense_pieces(data, pieces, queue.queue_id, start, end)
    return dense or check_dense(joined(data, pieces), queue, start, end)


def joined(data: memoryview, pieces: Int64) -> bytes:
    """The bytes of `pieces`, (n, 2) beginnings and ends, one behind another."""
    return b"".join([data[first:last] for first, last in pieces.tolist()])


def cut_filtered(frames: bytes, queue: MessageQueue, start: int, end: int) -> bytes:
    """The messages of a filtered answer from before `end`; it may have others behind them. Raises as `check_dense`."""
    walked = WalkedFrames.of(frames)
    offsets = _offsets(walked, queue)
    kept = int(offsets.searchsorted(end))
    _check_order(offsets[:kept], queue, start, end)
    return frames if kept == len(offsets) else frames[: int(walked.positions[kept])]


def hole(queue: MessageQueue, start: int, end: int) -> QueueHoleError:
    """The error for messages that a queue lacks in its middle."""
    return QueueHoleError(
        f"queue {queue.queue_id} of topic {queue.topic} at broker {queue.broker_name} lacks the messages [{start}, "
        f"{end}), although it has messages behind them. Its consume queue or its log is damaged: look at the broker's "
        "log. Nothing was skipped",
        (queue.topic, queue.broker_name, queue.queue_id),
        start,
        end,
    )


def _offsets(frames: WalkedFrames, queue: MessageQueue) -> Int64:
    """The queue offsets of the frames, (n,)."""
    headers = gather_fields(np.frombuffer(frames.data, np.uint8), frames.positions, HEADER)
    ids = headers["queue_id"]
    if bool((ids != queue.queue_id).any()):
        found = int(ids[int((ids != queue.queue_id).argmax())])
        raise RemotingCommandError(
            f"broker {queue.broker_name} answered a pull of {queue} with messages of queue {found}"
        )
    return headers["queue_offset"].astype(np.int64)


def _check_order(offsets: Int64, queue: MessageQueue, start: int, end: int) -> None:
    steps = np.diff(offsets, prepend=start - 1)
    if bool((steps <= 0).any()) or (len(offsets) and int(offsets[-1]) >= end):
        shown = offsets[:5].tolist()
        raise RemotingCommandError(
            f"broker {queue.broker_name} answered a pull of {queue} for offsets [{start}, {end}) with others: "
            f"{len(offsets)} messages at {shown}..."
        )
