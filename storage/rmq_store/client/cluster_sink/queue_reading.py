"""Reads parts of queues for keys (data plane)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping

import numpy as np

from rmq_store.errors import OffsetOutOfRangeError
from rmq_store.format.batches.content_keys import FoundKeys, keys_in_frames
from rmq_store.format.frames.frame_walk import frames_of_answer
from rmq_store.protocol.errors import MQBrokerError, RemotingError, ResponseCode, SendInDoubtError, SlaveBehindError
from rmq_store.protocol.messages import MessageQueue
from rmq_store.protocol.wire.header_fields import request
from rmq_store.protocol.wire.headers import GetMaxOffsetRequestHeader, GetMaxOffsetResponseHeader
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.cluster.offsets import queue_ranges
from rmq_store.remoting.cluster.pull_request import EVERYTHING, PullFilter
from rmq_store.remoting.cluster.pulling import read_range

_log = logging.getLogger(__name__)

_PAUSE_S = 0.2


class QueueReading:
    """Reads of one task. `patience_ms`: how long it waits for a broker that does not answer."""

    def __init__(
        self, cluster: Cluster, patience_ms: int, pull_group: str = "", sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._cluster = cluster
        self.patience_ms = patience_ms
        self._sleep = sleep
        self._wanted = PullFilter(group=pull_group) if pull_group else EVERYTHING

    def ends(self, queues: Collection[MessageQueue], until_ms: float | None = None) -> dict[MessageQueue, int]:
        """The ends of queues as their masters know them. A topic that a broker does not have ends at 0.

        Raises:
            SendInDoubtError: a master does not answer, or is busy, until `until_ms` of the cluster's timer, or within
                the patience; or it refuses.
        """
        until_ms = self._cluster.timer() + self.patience_ms if until_ms is None else until_ms
        ends: dict[MessageQueue, int] = {}
        left = list(queues)
        while left:
            commands = [
                (
                    queue.broker_name,
                    request(
                        GetMaxOffsetRequestHeader(
                            topic=self._cluster.wire_topic(queue.topic),
                            queue_id=queue.queue_id,
                            bname=queue.broker_name,
                        )
                    ),
                )
                for queue in left
            ]
            again = []
            last: RemotingError | MQBrokerError | None = None
            for queue, answer in zip(left, self._cluster.call_all(commands), strict=True):
                if isinstance(answer, RemotingError):
                    again.append(queue)
                    last = answer
                elif answer.code == ResponseCode.TOPIC_NOT_EXIST:
                    ends[queue] = 0
                elif answer.code == ResponseCode.SUCCESS:
                    ends[queue] = max(GetMaxOffsetResponseHeader.from_ext(answer.ext_fields).offset, 0)
                else:
                    last = MQBrokerError(answer.code, answer.remark or "", queue.broker_name)
                    if not last.retryable:
                        raise SendInDoubtError(
                            f"whether rows are stored is unknown, because {queue.broker_name} does not tell the end of "
                            f"queue {queue.queue_id} of topic {queue.topic!r}: {last}"
                        ) from last
                    again.append(queue)
            if again and self._cluster.timer() >= until_ms:
                names = ", ".join(sorted({queue.broker_name for queue in again}))
                raise SendInDoubtError(
                    f"whether rows are stored is unknown until the queues of {names} are read, and its master does not "
                    f"tell their ends: {last}. Nothing is sent again before; the batch can be repeated"
                ) from last
            left = again
            if left:
                self._sleep(_PAUSE_S)
        return ends

    def keys(self, parts: Mapping[MessageQueue, tuple[int, int]], tag: bytes, into: FoundKeys) -> None:
        """Add the keys with this tag among the messages [start, end) of queues.

        Messages that retention has deleted are logged and left out.

        Raises:
            SendInDoubtError: a queue cannot be read; or it ends before `start`, so it is not what it was.
        """
        for queue, (start, end) in parts.items():
            if end < start:
                raise SendInDoubtError(
                    f"queue {queue.queue_id} of topic {queue.topic!r} at broker {queue.broker_name!r} ends at {end}, "
                    f"and ended at {start} before the batch began: the broker has lost messages, or the topic was made "
                    "again. Whether rows of the batch are stored is unknown. See docs/cluster.md"
                )
            if start < end:
                try:
                    self._keys_of(queue, start, end, tag, into)
                except (RemotingError, MQBrokerError, SlaveBehindError) as error:
                    raise SendInDoubtError(f"whether rows are stored is unknown: {error}") from error

    def _keys_of(self, queue: MessageQueue, start: int, end: int, tag: bytes, into: FoundKeys) -> None:
        try:
            for frames in read_range(
                self._cluster, queue, start, end, self._wanted, patience_ms=self.patience_ms, sleep=self._sleep
            ):
                positions, _ = frames_of_answer(frames)
                keys, checks, _ = keys_in_frames(np.frombuffer(frames, np.uint8), positions, tag)
                into.add(keys, checks)
        except OffsetOutOfRangeError:
            begin = queue_ranges(self._cluster, [queue])[queue].min_offset
            if begin <= start:
                raise
            _log.warning(
                "queue %d of topic %r at broker %r: messages [%d, %d) are deleted, so rows of a repeated batch among "
                "them are stored once more",
                queue.queue_id, queue.topic, queue.broker_name, start, min(begin, end),
            )  # fmt: skip
            if begin < end:
                self._keys_of(queue, begin, end, tag, into)
