"""The state machine of SimpleConsumer: the messages of a topic that a group has received, as values and changes.

    Ready         at or after the queue's `next_offset`
    Inflight      an InFlight whose visible time lies ahead
    WaitingRetry  an InFlight whose visible time has come, and that may be given out once more
    DLQ           an InFlight with all its attempts used up, then MovingToDlq, then Acknowledged
    Commit        Acknowledged

Every change is a record of the journal (`pop_journal`). Any prefix of the changes leads to a state that was valid once.
Sources: PopConsumerRecord.java, PopConsumerService.java (5.x).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Set
from dataclasses import replace

from rmq_store.lazy.dataclasses import dataclass

Key = tuple[int, int]  # queue id, queue offset


@dataclass(frozen=True, slots=True)
class InFlight:
    """A message was given out, or hidden anew. `attempt` counts deliveries from 1 on, including those under earlier
    records of the message; `version` counts the handles of this record. `attempt_key` names the receive in order that
    got it, so that its repetition gets it again (see `Pop.receive`); 0: none.
    """

    queue_id: int
    queue_offset: int
    attempt: int
    version: int
    commit_log_offset: int
    pop_time_ms: int
    invisible_ms: int
    attempt_key: int = 0

    @property
    def key(self) -> Key:
        """Queue and offset of the message in its topic."""
        return self.queue_id, self.queue_offset

    @property
    def visible_at_ms(self) -> int:
        """The time from which the message may be given out again, and its handle is void."""
        return self.pop_time_ms + self.invisible_ms

    def hidden(self, now_ms: int, invisible_ms: int) -> InFlight:
        """The message hidden for a time from `now_ms` on: a new handle, which no repeated receive voids."""
        return replace(self, version=self.version + 1, pop_time_ms=now_ms, invisible_ms=invisible_ms, attempt_key=0)


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A message is finished: the group has acknowledged it, it is a dead letter, or retention has removed it."""

    queue_id: int
    queue_offset: int


@dataclass(frozen=True, slots=True)
class MovingToDlq:
    """A message goes to the dead letters by the unit of this value."""

    queue_id: int
    queue_offset: int
    unit: int


@dataclass(frozen=True, slots=True)
class Position:
    """Messages below `next_offset` of a queue were given out or skipped.

    `commit_log_offset` and `store_timestamp_ms` are those of the last of them (-1: there was none). If another message
    is there, a power cut took the last one. The group's committed offset is `committed_before` or `committed` (-1:
    none); the two differ only during a commit. Any other committed offset was set by another program. `is_reset`: the
    change drops the queue's messages in flight.
    """

    queue_id: int
    next_offset: int
    commit_log_offset: int
    store_timestamp_ms: int
    committed_before: int
    committed: int
    is_reset: bool = False


Change = InFlight | Acknowledged | MovingToDlq | Position


class PopState:
    """The state that the changes applied so far have led to."""

    def __init__(self) -> None:
        self.positions: dict[int, Position] = {}
        self.moving_to_dlq: dict[Key, int] = {}
        self._in_flight: dict[Key, InFlight] = {}
        self._counts: dict[int, int] = {}
        # By visible time; entries of messages that were hidden anew or are gone are passed over.
        self._heap: list[tuple[int, int, int]] = []

    def __len__(self) -> int:
        """The number of changes that `snapshot` yields."""
        return len(self.positions) + len(self._in_flight) + len(self.moving_to_dlq)

    def apply(self, change: Change) -> None:
        """Apply one change to the state."""
        if isinstance(change, InFlight):
            if change.key not in self._in_flight:
                self._counts[change.queue_id] = self.count(change.queue_id) + 1
            self._in_flight[change.key] = change
            self.moving_to_dlq.pop(change.key, None)
            heapq.heappush(self._heap, (change.visible_at_ms, *change.key))
        elif isinstance(change, Acknowledged):
            self._forget((change.queue_id, change.queue_offset))
        elif isinstance(change, MovingToDlq):
            self.moving_to_dlq[change.queue_id, change.queue_offset] = change.unit
        else:
            if change.is_reset:
                for key in [key for key in self._in_flight if key[0] == change.queue_id]:
                    self._forget(key)
            self.positions[change.queue_id] = change

    def _forget(self, key: Key) -> None:
        if self._in_flight.pop(key, None) is not None:
            self._counts[key[0]] -= 1
        self.moving_to_dlq.pop(key, None)

    def snapshot(self) -> Iterator[Change]:
        """Changes that lead from the empty state to this state."""
        yield from self.positions.values()
        yield from self._in_flight.values()
        for (queue_id, queue_offset), unit in self.moving_to_dlq.items():
            yield MovingToDlq(queue_id, queue_offset, unit)

    def count(self, queue_id: int) -> int:
        """The number of messages of the queue that are in flight, wait for a retry, or move to the dead letters."""
        return self._counts.get(queue_id, 0)

    def get(self, key: Key) -> InFlight | None:
        """The newest InFlight of a message; None if the message was not given out, or is finished."""
        return self._in_flight.get(key)

    def visible(self, now_ms: int, limit: int, queue_ids: Set[int] | None = None) -> list[InFlight]:
        """Up to `limit` messages whose visible time has come, the earliest first; without those that move to the dead
        letters. `queue_ids`: only those of these queues.
        """
        found: list[InFlight] = []
        taken = []
        while self._heap and self._heap[0][0] <= now_ms and len(found) < limit:
            entry = heapq.heappop(self._heap)
            message = self._in_flight.get(entry[1:])
            if message is not None and message.visible_at_ms == entry[0]:
                taken.append(entry)
                # The same message hidden anew until the same moment has two entries.
                is_wanted = queue_ids is None or message.queue_id in queue_ids
                if is_wanted and message.key not in self.moving_to_dlq and not (found and message is found[-1]):
                    found.append(message)
        for entry in taken:
            heapq.heappush(self._heap, entry)
        return found

    def has_visible(self, now_ms: int) -> bool:
        """Whether some message may be visible: True also if that has just been acknowledged. Safe for threads."""
        first = self._heap[:1]
        return bool(first) and first[0][0] <= now_ms

    def by_queue(self) -> dict[int, list[InFlight]]:
        """The messages that were given out and are not finished, by queue. Safe for threads."""
        found: dict[int, list[InFlight]] = {}
        for message in list(self._in_flight.values()):  # one step of the interpreter
            found.setdefault(message.queue_id, []).append(message)
        return found

    def smallest_unfinished(self, queue_id: int) -> int:
        """The offset to commit: all messages of the queue before it are acknowledged, dead or passed."""
        mine = (offset for queue, offset in self._in_flight if queue == queue_id)
        return min(mine, default=self.positions[queue_id].next_offset)
