"""Records in a topic of the cluster (`records`). Control plane.

The topic has one queue at every master. A record goes to two brokers, the first ones of an order that depends on the
write and the partition. Its tag is a hash of both, so a broker looks through its queue for it and answers little. A
search begins at the end of the queue and stops at a record of an earlier batch of the same task. A task without one
looks through all records that retention has left: a batch may be repeated after any time, so none is too old. A pull
looks at 32,768 records there, so that a million of them take some 40 pulls. No record may be missed, so a search may
leave out fewer queues than each record has copies:

    masters    copies that a record must have    queues that a search may leave out
    1, 2       1                                 none
    3 or more  2                                 1

A broker that does not answer is waited for only if the search needs it.

A broker shows a message in its queue a moment after its answer. A search may be too early for the record of a task that
has just died. So a task also reads what came between its search and its own record.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from rmq_store.client.cluster_sink.queue_reading import QueueReading
from rmq_store.client.cluster_sink.records import Offsets, Record, WritePart, earliest
from rmq_store.client.delivery.outcome import Outcome, verdict_of
from rmq_store.client.delivery.request import single_request, stored_offset
from rmq_store.errors import OffsetOutOfRangeError
from rmq_store.format.batches.batch_bodies import MessageParts
from rmq_store.format.frames.frame_check import BODY_POSITIONS
from rmq_store.format.frames.frame_walk import frames_of_answer
from rmq_store.protocol.errors import MQBrokerError, MQClientError, RemotingError, SendInDoubtError, SlaveBehindError
from rmq_store.protocol.messages import MessageQueue
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.cluster.names import TOOLS_CONSUMER
from rmq_store.remoting.cluster.offsets import queue_ranges, search_offset, store_timestamp_ms
from rmq_store.remoting.cluster.pull_request import PullFilter
from rmq_store.remoting.cluster.pulling import LOOKS_AT_MAX, read_range
from rmq_store.remoting.cluster.topics import create_topic

_log = logging.getLogger(__name__)

RECORD_TOPIC: Final = "PYRMQ_SINK_RECORDS"

_COPIES: Final = 2
_WINDOW: Final = 1024
# Each pull is work for a broker: few at a time.
_LANES: Final = 4
_CLOCK_SKEW_MS: Final = 10 * 60_000
_TRIES: Final = 4
_PAUSE_S: Final = 0.1
_DISPATCH_PAUSE_S: Final = 0.01
_READ_ERRORS: Final = (RemotingError, MQBrokerError, SlaveBehindError, OffsetOutOfRangeError)


class RecordTopic:
    """The records of all writes to a cluster."""

    def __init__(
        self,
        cluster: Cluster,
        reading: QueueReading,
        *,
        group: str,
        pull_group: str = "",
        topic: str = RECORD_TOPIC,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._cluster = cluster
        self._reading = reading
        self._group = group
        self._topic = topic
        self._pull_group = pull_group or TOOLS_CONSUMER
        self._sleep = sleep
        # What was read of each queue ends here.
        self._read_ends: dict[MessageQueue, int] = {}

    def find(self, part: WritePart) -> Offsets:
        """The earliest offsets that a part of a write has recorded; empty if there are none.

        Raises:
            SendInDoubtError: so many brokers cannot be read that a record may be missed.
        """
        queues = self._queues(part)
        ends = self._ends(queues)
        records: list[Record] = []
        not_before_ms: int | None = None
        unread = len(queues) - len(ends)
        for queue, end in ends.items():
            try:
                found, earlier_ms = self._search(queue, end, part, not_before_ms)
            except SendInDoubtError:
                unread += 1
                if unread >= _copies_needed(len(queues)):
                    raise
                continue
            records += found
            if earlier_ms is not None:
                not_before_ms = earlier_ms - _CLOCK_SKEW_MS
        return earliest(records, part)

    def add(self, record: Record) -> Offsets:
        """Make a record durable, as far as the brokers' flush and replication settings do that. Returns the earliest
        offsets of other tasks for this part that `find` was too early for; empty if there are none.

        Raises:
            MQClientError: too few brokers take it.
            SendInDoubtError: a broker that has taken it cannot be read.
        """
        queues = self._queues(record.part)
        stored: Offsets = {}
        reason = ""
        # Those that have just answered first.
        for queue in sorted(queues, key=lambda one: bool(self._read_ends) and one not in self._read_ends):
            offset, reason = self._store(queue, record)
            if offset is not None:
                stored[queue] = offset
            if len(stored) == _COPIES:
                break
        if len(stored) < _copies_needed(len(queues)):
            raise MQClientError(
                f"{len(stored)} of {len(queues)} brokers take the record of a batch into topic {self._topic!r}, and "
                f"{_copies_needed(len(queues))} must: {reason}"
            )
        try:
            return self._missed(record, stored)
        except _READ_ERRORS as error:
            raise _in_doubt(error) from error

    def _store(self, queue: MessageQueue, record: Record) -> tuple[int | None, str]:
        """The offset of the record in a queue; None if the broker does not take it, and why."""
        command = single_request(
            self._cluster, queue, record.to_json(),
            f"TAGS\x01{_tag_of(record.part)}\x02KEYS\x01{record.part.key.replace(' ', '_')}\x02WAIT\x01true\x02",
            group=self._group, born_ms=time.time_ns() // 1_000_000,
        )  # fmt: skip
        reason = ""
        for number in range(_TRIES):
            try:
                answer = self._cluster.submit_broker(queue.broker_name, command).result()
                verdict = verdict_of(answer)
                if verdict.outcome in (Outcome.STORED, Outcome.STORED_WEAKLY):
                    return stored_offset(answer.ext_fields), ""
            except RemotingError as error:
                verdict = verdict_of(error)
            reason = f"broker {queue.broker_name!r}: {verdict.reason}"
            if verdict.outcome is not Outcome.UNKNOWN and not verdict.is_busy:
                break
            if number + 1 < _TRIES:  # stored twice, a record is one record
                self._sleep(_PAUSE_S * 2**number)
        return None, reason

    def _missed(self, own: Record, stored: Offsets) -> Offsets:
        """What others have recorded for this part in front of the own record, behind what was read."""
        found: list[Record] = []
        for queue, offset in stored.items():
            begin = self._read_ends.get(queue)
            if begin is None:
                continue
            if begin < offset:
                self._await_dispatch(queue, offset)
                records = [record for record, _ in self._records(queue, begin, offset, own.part)]
                found += [record for record in records if record.attempt != own.attempt]
            self._read_ends[queue] = offset + 1
        return earliest(found, own.part)

    def _await_dispatch(self, queue: MessageQueue, offset: int) -> None:
        until_ms = self._cluster.timer() + self._reading.patience_ms
        while self._reading.ends([queue])[queue] < offset:
            if self._cluster.timer() >= until_ms:
                raise SendInDoubtError(
                    f"broker {queue.broker_name!r} has stored message {offset} of topic {queue.topic!r}, and does not "
                    "show those before it in its queue"
                )
            self._sleep(_DISPATCH_PAUSE_S)

    def _queues(self, part: WritePart) -> Sequence[MessageQueue]:
        """All queues of the topic, those that this part of a write prefers first."""
        route = self._cluster.route(self._topic)
        if route is None:
            self._reading.await_brokers()
            route = self._cluster.refresh_route(self._topic)
        if route is None:
            route = create_topic(self._cluster, self._topic, 1)
            _log.warning("made the topic %r at all masters: sinks keep there where queues ended", self._topic)

        def rank(queue: MessageQueue) -> bytes:
            return hashlib.blake2b(f"{part.write}/{part.partition}/{queue.broker_name}".encode()).digest()

        return sorted(set(route.publish_queues()) | set(route.read_queues()), key=rank)

    def _ends(self, queues: Sequence[MessageQueue]) -> dict[MessageQueue, int]:
        """The ends of so many queues that no record can be missed, in their order."""
        until_ms = self._cluster.timer() + self._reading.patience_ms
        known: dict[MessageQueue, int] = {}
        while True:
            ends, missing = self._reading.ends_now([queue for queue in queues if queue not in known])
            known |= ends
            if len(queues) - len(known) < _copies_needed(len(queues)):
                return {queue: known[queue] for queue in queues if queue in known}
            try:
                self._reading.await_again(missing, until_ms)
            except SendInDoubtError as error:
                raise _in_doubt(error) from error

    def _search(
        self, queue: MessageQueue, whole_end: int, part: WritePart, not_before_ms: int | None
    ) -> tuple[list[Record], int | None]:
        """The records of a part of a write in one queue, and when an earlier batch of it was recorded."""
        end = whole_end
        try:
            begin = queue_ranges(self._cluster, [queue])[queue].min_offset
            if not_before_ms is not None and begin < end:
                begin = max(begin, search_offset(self._cluster, queue, not_before_ms))
            found: list[Record] = []
            window = _WINDOW
            earlier_ms = None
            while begin < end:
                start = max(begin, end - window)
                for record, stored_ms in self._records(queue, start, end, part):
                    if (record.part.write, record.part.partition) != (part.write, part.partition):
                        continue
                    if record.part.batch < part.batch:
                        earlier_ms = stored_ms
                    elif record.part == part:
                        found.append(record)
                if earlier_ms is not None:
                    break
                end, window = start, 4 * window
            self._read_ends[queue] = whole_end
            return found, earlier_ms
        except _READ_ERRORS as error:
            raise _in_doubt(error) from error

    def _records(
        self, queue: MessageQueue, start: int, end: int, part: WritePart
    ) -> Iterator[tuple[Record, int]]:
        """The records with the tag of a part of a write, and when they were stored: its own, and some others."""
        wanted = PullFilter(group=self._pull_group, subscription=_tag_of(part))
        for frames in read_range(self._cluster, queue, start, end, wanted, lanes=_LANES, looks_at=LOOKS_AT_MAX):
            positions, sizes = frames_of_answer(frames)
            for position, size in zip(positions.tolist(), sizes.tolist(), strict=True):
                frame = frames[position : position + size]
                header_bytes = BODY_POSITIONS[int.from_bytes(frame[36:40], "big") >> 4 & 3]
                record = Record.from_json(MessageParts(frame, header_bytes).body)
                if record is not None:
                    yield record, store_timestamp_ms(frame)


def _tag_of(part: WritePart) -> str:
    """The tag of all records of a task, whatever the batch."""
    return hashlib.blake2b(f"{part.write}/{part.partition}".encode(), digest_size=8).hexdigest()


def _copies_needed(master_count: int) -> int:
    """How many copies a record must have, and at least how many queues a search must not leave out."""
    return 1 if master_count <= _COPIES else _COPIES


def _in_doubt(error: Exception) -> SendInDoubtError:
    return SendInDoubtError(
        f"whether rows of the batch are stored is unknown, because its records cannot be read: {error}. With option "
        "markerPath the records are in a directory"
    )
