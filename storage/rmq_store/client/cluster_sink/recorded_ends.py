"""Where queues ended before a task's first message to them: recorded before it, and found by a repetition (`records`).

    no record of a topic         the ends of its queues are recorded; nothing of this task is in them
    a record of it is there      this part of a write was tried before: all recorded queues are to be read, and those
                                 that were added since from their start
    a topic of `per_broker`      as above for each broker by itself: one that has no record got nothing
    a broker is away             it is waited for, as its queues may have rows, or may get some. Of a topic whose rows
                                 may all go elsewhere its queues are left out, if no attempt has sent there: then the
                                 record says so, and this task sends nothing there
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import Final, Protocol, TypeVar

from rmq_store.client.cluster_sink.records import LEFT_OUT, Offsets, Plan, Record, WritePart, lower, plan
from rmq_store.client.delivery.queue_reading import QueueReading
from rmq_store.protocol.messages import MessageQueue

SCHEDULE_QUEUES: Final = 24
"""Of SCHEDULE_TOPIC_XXXX: 18 levels by default; a broker may have more (messageDelayLevel)."""

T = TypeVar("T")


class Records(Protocol):
    """A place that keeps records."""

    def find(self, part: WritePart) -> Offsets:
        """The earliest offsets that a part of a write has recorded."""

    def add(self, record: Record) -> Offsets:
        """Make a record durable. Returns the earliest offsets of other tasks for this part that `find` missed."""


class RecordedEnds:
    """The ends that one task has recorded, and those of earlier attempts."""

    def __init__(self, reading: QueueReading, records: Records, part: WritePart) -> None:
        self._reading = reading
        self._records = records
        self._part = part
        self._attempt = uuid.uuid4().hex
        # None until they were looked for.
        self._earlier: Offsets | None = None
        self._own: Offsets = {}
        self.left_out: set[MessageQueue] = set()
        """The queues to which this task sends nothing, because their brokers were away."""

    def prepare(
        self,
        queues_of: Mapping[str, Sequence[MessageQueue]],
        per_broker: Collection[str],
        broker_names: Collection[str] | None = None,
        elsewhere: Collection[str] = (),
    ) -> Offsets:
        """Record the ends of the queues of topics that messages can go to now, as far as they are not recorded.
        `broker_names`: of the topics in `per_broker`, no other brokers count. `elsewhere`: topics whose rows may go to
        any broker, so that those that are away are left out (`left_out`).

        Returns the queues that an earlier attempt may have stored something in, and from where.

        Raises:
            SendInDoubtError: a broker does not tell the ends of its queues within the patience of the reading.
            Others as `Records.find` and `Records.add`.
        """
        if self._earlier is None:
            self._earlier = self._records.find(self._part)
        queues = [queue for of_topic in queues_of.values() for queue in of_topic]
        found = self._reading.ranges(queues, self._may_leave_out(queues, elsewhere))
        ranges = {queue: (limits.min_offset, limits.max_offset) for queue, limits in found.items()}
        left = set(queues).difference(found)
        self.left_out |= left
        steps = self._plan(ranges, queues_of, per_broker, broker_names)
        if steps.record:
            offsets = dict.fromkeys(left.difference(self._known_before()), LEFT_OUT) | steps.record
            missed = self._records.add(Record(self._part, offsets, self._attempt))
            self._own |= steps.record
            if missed:
                self._earlier = lower(self._known_before(), missed)
                if rows := sorted(left.difference(self._may_leave_out(left, elsewhere))):
                    # Another attempt has sent there.
                    ranges |= {
                        queue: (limits.min_offset, limits.max_offset)
                        for queue, limits in self._reading.ranges(rows).items()
                    }
                steps = self._plan(ranges, queues_of, per_broker, broker_names)
        return steps.read

    def _may_leave_out(self, queues: Collection[MessageQueue], elsewhere: Collection[str]) -> set[MessageQueue]:
        """Those of the queues that have no rows of this part, and need not get any."""
        known = self._known_before()
        recorded = {queue.topic for queue in known}
        return {
            queue
            for queue in queues
            if queue.topic in elsewhere and (queue.topic not in recorded or known.get(queue) == LEFT_OUT)
        }

    def starts(self) -> Offsets:
        """The offsets of queues behind which all messages of this part lie, whichever attempt has sent them."""
        return lower(self._known_before(), self._own)

    def _known_before(self) -> Offsets:
        assert self._earlier is not None  # `prepare` has looked for them
        return self._earlier

    def _plan(
        self,
        ranges: Mapping[MessageQueue, tuple[int, int]],
        topics: Collection[str],
        per_broker: Collection[str],
        broker_names: Collection[str] | None,
    ) -> Plan:
        read: Offsets = {}
        record: Offsets = {}
        for topic in topics:
            earlier = {queue: offset for queue, offset in self._known_before().items() if queue.topic == topic}
            reachable = {queue: found for queue, found in ranges.items() if queue.topic == topic}
            names: Collection[str | None] = (None,)
            if topic in per_broker:
                known = {queue.broker_name for queue in (*earlier, *reachable)}
                names = known if broker_names is None else known.intersection(broker_names)
            for name in names:
                steps = plan(_of_broker(earlier, name), topic, _of_broker(reachable, name))
                read |= steps.read
                record |= steps.record
        return Plan(read, record)


def _of_broker(values: Mapping[MessageQueue, T], broker_name: str | None) -> dict[MessageQueue, T]:
    """The values of the queues of a broker; None: of all brokers."""
    return {queue: value for queue, value in values.items() if broker_name in (None, queue.broker_name)}
