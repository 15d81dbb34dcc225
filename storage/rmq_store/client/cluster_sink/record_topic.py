"""Records in a topic of the cluster (`records`). Control plane.

The topic has one queue at every master. A record goes to two brokers, the first ones of an order that depends on the
write and the partition, so that one broker may be away when it is looked for. A search begins at the end of the queue
and stops at a record of an earlier batch of the same task.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Iterator, Sequence
from typing import Final

from rmq_store.client.cluster_sink.outcomes import Outcome, verdict_of
from rmq_store.client.cluster_sink.queue_reading import QueueReading
from rmq_store.client.cluster_sink.records import Offsets, Record, WritePart, earliest
from rmq_store.format.batches.batch_bodies import MessageParts
from rmq_store.format.frames.frame_check import BODY_POSITIONS
from rmq_store.format.frames.frame_walk import frames_of_answer
from rmq_store.protocol.errors import MQBrokerError, MQClientError, RemotingError, SendInDoubtError, SlaveBehindError
from rmq_store.protocol.messages import MessageQueue
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.cluster.offsets import queue_ranges, search_offset, store_timestamp_ms
from rmq_store.remoting.cluster.pull_request import EVERYTHING, PullFilter
from rmq_store.remoting.cluster.pulling import read_range
from rmq_store.remoting.cluster.sending import single_request
from rmq_store.remoting.cluster.topics import create_topic

_log = logging.getLogger(__name__)

RECORD_TOPIC: Final = "PYRMQ_SINK_RECORDS"

_COPIES: Final = 2
_WINDOW: Final = 64
_CLOCK_SKEW_MS: Final = 10 * 60_000
_TRIES: Final = 3


class RecordTopic:
    """The records of all writes to a cluster."""

    def __init__(
        self, cluster: Cluster, reading: QueueReading, *, group: str, pull_group: str = "", topic: str = RECORD_TOPIC
    ) -> None:
        self._cluster = cluster
        self._reading = reading
        self._group = group
        self._topic = topic
        self._wanted = PullFilter(group=pull_group) if pull_group else EVERYTHING

    def find(self, part: WritePart) -> Offsets:
        """The earliest offsets that a part of a write has recorded; empty if there are none.

        Raises:
            SendInDoubtError: two brokers or the only one cannot be read.
        """
        queues = self._queues(part)
        records: list[Record] = []
        not_before_ms: int | None = None
        unread: list[SendInDoubtError] = []
        for queue in queues:
            try:
                found, earlier_ms = self._search(queue, part, not_before_ms)
            except SendInDoubtError as error:
                unread.append(error)
                if len(unread) >= min(_COPIES, len(queues)):
                    raise
                continue
            records += found
            if earlier_ms is not None:
                not_before_ms = earlier_ms - _CLOCK_SKEW_MS
        return earliest(records, part)

    def add(self, record: Record) -> None:
        """Make a record durable, as far as the brokers' flush and replication settings do that.

        Raises:
            MQClientError: no broker takes it.
        """
        stored, reason = 0, ""
        for queue in self._queues(record.part):
            for _ in range(_TRIES):
                outcome, reason = self._send(queue, record)
                if outcome is not Outcome.UNKNOWN:  # the same record twice is one record
                    break
            stored += outcome in (Outcome.STORED, Outcome.STORED_WEAKLY)
            if stored == _COPIES:
                return
        if not stored:
            raise MQClientError(f"no broker takes the record of a batch into topic {self._topic!r}: {reason}")

    def forget_before(self, write: str, batch: int) -> None:
        """Nothing to do: brokers delete old messages."""

    def _send(self, queue: MessageQueue, record: Record) -> tuple[Outcome, str]:
        command = single_request(
            MessageQueue(self._cluster.wire_topic(queue.topic), queue.broker_name, queue.queue_id), record.to_json(),
            f"KEYS\x01{record.part.key.replace(' ', '_')}\x02WAIT\x01true\x02", group=self._group,
            born_ms=time.time_ns() // 1_000_000,
        )  # fmt: skip
        try:
            verdict = verdict_of(self._cluster.submit_broker(queue.broker_name, command).result())
        except RemotingError as error:
            verdict = verdict_of(error)
        return verdict.outcome, f"broker {queue.broker_name!r}: {verdict.reason}"

    def _queues(self, part: WritePart) -> Sequence[MessageQueue]:
        """All queues of the topic, those that this part of a write prefers first."""
        route = self._cluster.route(self._topic)
        if route is None:
            _log.warning("made the topic %r at all masters: sinks keep there where queues ended", self._topic)
            route = create_topic(self._cluster, self._topic, 1)

        def rank(queue: MessageQueue) -> bytes:
            return hashlib.blake2b(f"{part.write}/{part.partition}/{queue.broker_name}".encode()).digest()

        return sorted(set(route.publish_queues()) | set(route.read_queues()), key=rank)

    def _search(
        self, queue: MessageQueue, part: WritePart, not_before_ms: int | None
    ) -> tuple[list[Record], int | None]:
        """The records of a part of a write in one queue, and when an earlier batch of it was recorded."""
        end = self._reading.ends([queue])[queue]
        try:
            begin = queue_ranges(self._cluster, [queue])[queue].min_offset
            if not_before_ms is not None and begin < end:
                begin = max(begin, search_offset(self._cluster, queue, not_before_ms))
            found: list[Record] = []
            window = _WINDOW
            while begin < end:
                start = max(begin, end - window)
                earlier_ms = None
                for record, stored_ms in self._records(queue, start, end):
                    if (record.part.write, record.part.partition) != (part.write, part.partition):
                        continue
                    if record.part.batch < part.batch:
                        earlier_ms = stored_ms
                    elif record.part == part:
                        found.append(record)
                if earlier_ms is not None:
                    return found, earlier_ms
                end, window = start, 4 * window
            return found, None
        except (RemotingError, MQBrokerError, SlaveBehindError) as error:
            raise SendInDoubtError(f"the records of a batch cannot be read: {error}") from error

    def _records(self, queue: MessageQueue, start: int, end: int) -> Iterator[tuple[Record, int]]:
        for frames in read_range(self._cluster, queue, start, end, self._wanted):
            positions, sizes = frames_of_answer(frames)
            for position, size in zip(positions.tolist(), sizes.tolist(), strict=True):
                frame = frames[position : position + size]
                header_bytes = BODY_POSITIONS[int.from_bytes(frame[36:40], "big") >> 4 & 3]
                record = Record.from_json(MessageParts(frame, header_bytes).body)
                if record is not None:
                    yield record, store_timestamp_ms(frame)
