"""The replay check of send-backs (`cluster_sink.records`): what is recorded before the first one to a broker, and what
is looked for.

    a broker's first row, no record of it     the ends of all queues that a copy can be in are recorded
    a record of it is there                   an earlier attempt was here: after the settle time these queues are read
    a request has an unknown outcome          they are read behind it, after the settle time

A send-back by number (36) answers no offsets, and neither request says whether it made a dead letter. So all queues
that a copy can be in are read, from where they ended before.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence

from rmq_store.client.cluster_retry.stored_copies import CopyKey, CopyKeys, CopyReading, keys_of_copy
from rmq_store.client.cluster_sink.recorded_ends import SCHEDULE_QUEUES, RecordedEnds, Records
from rmq_store.client.cluster_sink.records import Offsets, WritePart
from rmq_store.client.delivery.queue_reading import QueueReading
from rmq_store.format.text.names import SCHEDULE_TOPIC, TIMER_TOPIC, dlq_topic, retry_topic
from rmq_store.protocol.messages import MessageQueue
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.cluster.offsets import queue_ranges

_log = logging.getLogger(__name__)

class SendBackCheck:
    """The check of one task that sends messages of a group back."""

    def __init__(
        self,
        cluster: Cluster,
        group: str,
        reading: QueueReading,
        records: Records,
        part: WritePart,
        settle_ms: int,
        *,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._cluster = cluster
        self._retry_topic, self._dlq_topic = retry_topic(group), dlq_topic(group)
        self._reading = reading
        self._recorded = RecordedEnds(records, part)
        self._part = part
        self._settle_ms = settle_ms
        self._sleep = sleep
        wire_topics = frozenset(map(cluster.wire_topic, (self._retry_topic, self._dlq_topic)))
        self._copies = CopyReading(reading, wire_topics)
        self._brokers: set[str] = set()
        self._found = CopyKeys()
        self.is_repetition = False

    def prepare(self, broker_names: Collection[str]) -> None:
        """Before the first send-back to brokers: what earlier attempts have sent there is known to `were_sent` then.

        Raises:
            SendInDoubtError: a recorded queue cannot be read. MQClientError: the record cannot be stored.
            RemotingError: a broker does not answer. MQBrokerError: it refuses.
        """
        new = sorted(set(broker_names) - self._brokers)
        if not new:
            return
        self._recorded.find()
        queues = [queue for name in new for queue in self._queues_of(name)]
        ranges = {queue: (one.min_offset, one.max_offset) for queue, one in queue_ranges(self._cluster, queues).items()}
        read = self._recorded.add(ranges, self._topics(), self._topics(), new)
        if read:
            self._read(read)
        self._brokers.update(new)

    def _topics(self) -> tuple[str, ...]:
        return SCHEDULE_TOPIC, TIMER_TOPIC, self._retry_topic, self._dlq_topic

    def _queues_of(self, broker_name: str) -> list[MessageQueue]:
        """All queues of a broker that a copy can be in, whether or not they are there by now. A broker puts copies
        into as many queues as the group's retryQueueNums says, also where the retry topic has fewer to write by now.
        """
        route = self._cluster.route(self._retry_topic)
        known = None if route is None else route.queues.get(broker_name)
        retry_queues = max(1, known.read_queue_nums, known.write_queue_nums) if known is not None else 1
        counts = (SCHEDULE_QUEUES, 1, retry_queues, 1)
        return [
            MessageQueue(topic, broker_name, number)
            for topic, count in zip(self._topics(), counts, strict=True)
            for number in range(count)
        ]

    def _read(self, starts: Offsets) -> None:
        if not self.is_repetition:
            _log.info("%s was tried before: the queues of its send-backs are read", self._part.key)
            self._sleep(self._settle_ms / 1000)
        self.is_repetition = True
        for keys in self._keys(starts, self._reading.ends(list(starts))):
            self._found.add(keys)

    def were_sent(self, keys: Sequence[CopyKey]) -> list[bool]:
        """Those of `keys` that earlier attempts have sent to brokers which were prepared."""
        return self._found.contain(keys) if self.is_repetition else [False] * len(keys)

    def _keys(self, starts: Offsets, ends: Offsets) -> Iterator[tuple[CopyKey, CopyKey]]:
        """The keys of all copies there, of which the group may have millions: those of one at a time."""
        parts = {queue: (start, ends[queue]) for queue, start in starts.items()}
        return map(keys_of_copy, self._copies.messages(parts))

    def stored(self, broker_name: str, keys: Collection[Hashable], reason: str) -> set[Hashable]:
        """As `Verifier.stored`."""
        starts = {queue: start for queue, start in self._recorded.starts().items() if queue.broker_name == broker_name}
        wanted, is_stored = set(keys), set[Hashable]()
        for found in self._keys(starts, self._reading.settled_ends(list(starts), self._settle_ms)):
            is_stored |= wanted.intersection(found)
        _log.warning(
            "broker %r: its retry queues were read after send-backs of unknown outcome (%s): %d of %d are stored",
            broker_name, reason, len(is_stored), len(keys),
        )  # fmt: skip
        return is_stored
