"""The dead letters of one queue, read from their broker and judged. Data plane.

A part of the letters is held at a time: so many that their messages have about 32 MiB.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np

from rmq_store.broker.dlq.redrive_batch import ALREADY_REDRIVEN, GONE, REFUSED, Policy
from rmq_store.broker.dlq.redrive_ledger import OffsetRanges
from rmq_store.client.cluster_retry.dead_letters import Judgement, Letter, judged, letter_name
from rmq_store.errors import OffsetOutOfRangeError, UsageError
from rmq_store.format.frames.frame_walk import frames_of_answer
from rmq_store.format.frames.stored_message import StoredMessage, decode_frame
from rmq_store.protocol.messages import MessageQueue
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.cluster.offsets import queue_ranges
from rmq_store.remoting.cluster.pull_request import EVERYTHING, PullFilter
from rmq_store.remoting.cluster.pulling import read_range

PART_BYTES: Final = 32 << 20
_GAP_ROWS: Final = 32


class LetterReading:
    """Reads letters and decides what becomes of each."""

    def __init__(self, cluster: Cluster, pull_group: str = "", sleep: Callable[[float], None] = time.sleep) -> None:
        self._cluster = cluster
        self._wanted = PullFilter(group=pull_group) if pull_group else EVERYTHING
        self._sleep = sleep

    def judge(self, dlq: MessageQueue, letters: Sequence[Letter], moved: OffsetRanges, policy: Policy) -> int:
        """Give letters of one queue, in ascending order, their judgements, and those that may move their messages.
        Returns how many have got one: the first ones, up to PART_BYTES, and at least one.

        Raises:
            UsageError: the queue has no such message.
            RemotingError, MQBrokerError, SlaveBehindError: it cannot be read.
        """
        try:
            return self._judge(dlq, letters, moved, policy)
        except OffsetOutOfRangeError:  # retention was faster than the reading: what it took is gone now
            return self._judge(dlq, letters, moved, policy)

    def _judge(self, dlq: MessageQueue, letters: Sequence[Letter], moved: OffsetRanges, policy: Policy) -> int:
        limits = queue_ranges(self._cluster, [dlq])[dlq]
        offsets = [one.queue_offset for one in letters]
        for one in letters:
            if not 0 <= one.queue_offset < limits.max_offset:
                raise UsageError(
                    f"row {one.row}: {dlq.topic} queue {dlq.queue_id} of broker {dlq.broker_name!r} has no message "
                    f"{one.queue_offset}: it ends at {limits.max_offset}"
                )
        is_moved = moved.contains(np.array(offsets, np.int64))
        before: int | None = None
        open_letters = []
        for one, was_moved in zip(letters, is_moved.tolist(), strict=True):
            if one.queue_offset == before:
                one.judgement = Judgement(ALREADY_REDRIVEN, "named twice")
            elif was_moved:
                one.judgement = Judgement(ALREADY_REDRIVEN, "moved before")
            elif one.queue_offset < limits.min_offset:
                one.judgement = Judgement(GONE, "removed by retention")
            else:
                open_letters.append(one)
            before = one.queue_offset
        found, read_until = self._messages(dlq, [one.queue_offset for one in open_letters])
        count = len(letters) if read_until is None else bisect_left(offsets, read_until)
        for one in open_letters:
            if read_until is not None and one.queue_offset >= read_until:
                break
            one.message = found.get(one.queue_offset)
            if one.message is None:
                one.judgement = Judgement(REFUSED, "its queue entry points at no message")
            else:
                name = letter_name(dlq.topic, dlq.broker_name, dlq.queue_id, one.queue_offset)
                one.judgement = judged(one.message, name, one.msg_id, policy)
        for one in letters[count:]:
            one.judgement = None
        return count

    def _messages(self, dlq: MessageQueue, offsets: Sequence[int]) -> tuple[dict[int, StoredMessage], int | None]:
        """The messages at ascending offsets, and the offset before which they are all; None: all of them are."""
        found: dict[int, StoredMessage] = {}
        found_bytes = 0
        wanted = set(offsets)
        for first, last in _runs(offsets):
            for frames in read_range(self._cluster, dlq, first, last, self._wanted, sleep=self._sleep):
                view = memoryview(frames)
                positions, sizes = frames_of_answer(frames)
                for position, size in zip(positions.tolist(), sizes.tolist(), strict=True):
                    message = decode_frame(view, position, position + size)
                    if message.queue_offset in wanted:
                        found[message.queue_offset] = message
                        found_bytes += size
                    if found_bytes >= PART_BYTES:
                        return found, message.queue_offset + 1
        return found, None


def _runs(offsets: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Half-open ranges that have all of the ascending offsets, and not much between them."""
    array = np.array(offsets, np.int64)
    for part in np.split(array, np.flatnonzero(np.diff(array) > _GAP_ROWS) + 1):
        if len(part):
            yield int(part[0]), int(part[-1]) + 1
