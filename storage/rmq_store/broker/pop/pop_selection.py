"""The messages that a group can receive now: those that one receive selects, their number, and those of a peek.

Messages whose time has come are selected first, then new ones.

    any order   the messages that are visible again, the earliest first; then new ones, queue by queue
    in order    queue by queue: its visible messages by their offsets, then new ones; a queue is locked, and passed
                over, while one of its messages is in flight. Messages that an earlier attempt of the same receive got
                lock nothing: they come again, their queues first

This module decides, and writes nothing: `receive_transaction` writes the changes. A damaged message is put off; it
locks no queue. A peek takes no lock, and hides nothing.
Sources: ConsumerOrderInfoManager.java, PopMessageProcessor.java, PeekMessageProcessor.java.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from typing import Final

from rmq_store.broker.metadata.offsets import OffsetTable
from rmq_store.broker.pop.pop_messages import Damaged, PropertyFilter, StoredRow, TopicReader
from rmq_store.broker.pop.pop_state import Acknowledged, Change, InFlight, Key, PopState, Position
from rmq_store.errors import OffsetOutOfRangeError
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.protocol.results import QueueRange

IN_FLIGHT_MAX: Final = 10_000
"""The most messages of one queue that may be in flight for a group (BrokerConfig.java popInflightMessageThreshold)."""

DEAD_MAX: Final = 256
"""The most messages that become dead letters in one receive."""


@dataclass(frozen=True, slots=True)
class ReceiveRequest:
    """A receive of up to `count` messages and `bytes_max` of bodies. Filters apply only to new messages, not to those
    that the group was given before. `attempts_max` None: without limit. `attempt_key` 0: it repeats no receive.
    """

    count: int
    invisible_ms: int
    attempts_max: int | None = None
    tags: str | None = None
    accepts: PropertyFilter | None = None
    bytes_max: int = 1 << 30
    in_order: bool = False
    attempt_key: int = 0


class ByteBudget:
    """The bound of one receive: `bytes_max` of bodies, and one message at least."""

    def __init__(self, bytes_max: int) -> None:
        self._left = bytes_max
        self._is_empty = True
        self.is_full = False

    def takes(self, row: StoredRow) -> bool:
        """Count a message; False if it does not fit, and then no other one does."""
        self._left -= row.body_bytes
        self.is_full = self.is_full or (self._left < 0 and not self._is_empty)
        self._is_empty = False
        return not self.is_full


class Selection:
    """The messages of one receive at `now_ms`. `put_off` hides a damaged message; `damaged` are those hidden before.

    `found` has the messages, each with its attempt and the version of its handle; `changes` are all other changes.
    """

    def __init__(
        self,
        state: PopState,
        reader: TopicReader,
        request: ReceiveRequest,
        now_ms: int,
        damaged: Set[Key],
        put_off: Callable[[InFlight, Damaged], InFlight],
    ) -> None:
        self._state = state
        self._reader = reader
        self._request = request
        self._now_ms = now_ms
        self._damaged = damaged
        self._put_off = put_off
        self._budget = ByteBudget(request.bytes_max)
        self.found: list[tuple[StoredRow, int, int]] = []
        self.changes: list[Change] = []

    def choose(self, ranges: Mapping[int, QueueRange], order: Sequence[int]) -> None:
        """Choose from the queues of `order`."""
        if self._request.in_order:
            self._choose_in_order(ranges, order)
            return
        queue_ids = None if len(order) == len(ranges) else frozenset(order)
        visible = self._state.visible(self._now_ms, self._request.count + DEAD_MAX, queue_ids)
        self._take_again(visible)
        for queue_id in order:
            self._take_new(queue_id, ranges[queue_id])

    def _choose_in_order(self, ranges: Mapping[int, QueueRange], order: Sequence[int]) -> None:
        by_queue = self._state.by_queue()
        of_attempt = {queue_id for queue_id, known in by_queue.items() if any(map(self._is_repeated, known))}
        for queue_id in sorted(order, key=lambda queue_id: queue_id not in of_attempt):
            known = by_queue.get(queue_id, [])
            if is_locked([one for one in known if not self._is_repeated(one)], self._now_ms, self._damaged):
                continue
            comes = [one for one in known if one.visible_at_ms <= self._now_ms or self._is_repeated(one)]
            comes = [one for one in comes if one.key not in self._state.moving_to_dlq]
            self._take_again(sorted(comes, key=lambda one: one.queue_offset))
            self._take_new(queue_id, ranges[queue_id])  # none, if one that comes before has found no room

    def _is_repeated(self, message: InFlight) -> bool:
        return is_repeated(message, self._request.attempt_key, self._now_ms)

    def _take_again(self, visible: Sequence[InFlight]) -> None:
        for message in visible:
            is_repeated = self._is_repeated(message)
            if not is_repeated and is_exhausted(message, self._request.attempts_max):
                continue
            if len(self.found) >= self._request.count:
                return
            row = self._reader.message(*message.key)
            if row is None:
                self.changes.append(Acknowledged(*message.key))
            elif isinstance(row, Damaged):
                self.changes.append(self._put_off(message, row))
            elif not self._budget.takes(row):
                return
            else:
                attempt = message.attempt if is_repeated else max(message.attempt, row.reconsume_times) + 1
                self.found.append((row, attempt, message.version + 1))

    def _take_new(self, queue_id: int, span: QueueRange) -> None:
        free = min(self._request.count - len(self.found), IN_FLIGHT_MAX - self._state.count(queue_id))
        if free <= 0 or self._budget.is_full:
            return
        rows, end = self._new(queue_id, span, free)
        for row in rows:
            if isinstance(row, Damaged):
                self.changes.append(self._put_off(self._visible(row, 0, 0), row))
                continue
            attempt = row.reconsume_times + 1
            if is_exhausted(self._visible(row, row.reconsume_times, 0), self._request.attempts_max):
                # Failed too often elsewhere: visible at once, and dead at the next receive.
                self.changes.append(self._visible(row, row.reconsume_times, 1))
            elif not self._budget.takes(row):
                end = row.queue_offset
                break
            else:
                self.found.append((row, attempt, 1))
        self.changes += self._moved(queue_id, end)

    def _new(self, queue_id: int, span: QueueRange, count: int) -> tuple[list[StoredRow | Damaged], int]:
        start = max(self._state.positions[queue_id].next_offset, span.min_offset)
        try:
            request = self._request
            return self._reader.scan(queue_id, start, span.max_offset, count, request.tags, request.accepts)
        except OffsetOutOfRangeError as error:  # retention was faster
            return [], error.minimum

    def _moved(self, queue_id: int, next_offset: int) -> Iterator[Position]:
        position = self._state.positions[queue_id]
        if next_offset != position.next_offset:
            log_offset, timestamp_ms = self._reader.fingerprint(queue_id, next_offset)
            yield replace(
                position,
                next_offset=next_offset,
                commit_log_offset=log_offset,
                store_timestamp_ms=timestamp_ms,
                is_reset=False,
            )

    def _visible(self, row: StoredRow | Damaged, attempt: int, version: int) -> InFlight:
        """Visible at once."""
        return InFlight(row.queue_id, row.queue_offset, attempt, version, row.commit_log_offset, self._now_ms, 0)


class PopAvailability:
    """The messages that one group could receive of one topic: counts and peeks. They take no lock, write nothing, and
    hide nothing.

    A queue in which the group has no offset begins at its first message. One whose committed offset another program
    moved begins there.
    """

    def __init__(self, offsets: OffsetTable, group: str, topic: str) -> None:
        self._offsets = offsets
        self._group = group
        self._topic = topic

    def rest(self, state: PopState, ranges: Mapping[int, QueueRange], now_ms: int) -> int:
        """How many messages of all queues could be received now: see `Pop.rest`. Safe for threads."""
        return sum(self._new(state, ranges).values()) + state.has_visible(now_ms)

    def rest_of_queues(
        self,
        state: PopState,
        ranges: Mapping[int, QueueRange],
        now_ms: int,
        damaged: Set[Key],
        *,
        in_order: bool,
        attempt_key: int = 0,
    ) -> int:
        """As `rest`, for some queues, with consumption in order and attempts as `ReceiveRequest` has them. It goes
        through all messages in flight.
        """
        by_queue, rest = state.by_queue(), 0
        for queue_id, count in self._new(state, ranges).items():
            known = by_queue.get(queue_id, [])
            rest += sum(is_repeated(one, attempt_key, now_ms) for one in known)
            if not (in_order and is_locked(known, now_ms, damaged)):
                rest += count + any(one.visible_at_ms <= now_ms for one in known)
        return rest

    def _new(self, state: PopState, ranges: Mapping[int, QueueRange]) -> dict[int, int]:
        starts = self._starts(state, ranges)
        return {queue_id: max(span.max_offset - starts[queue_id], 0) for queue_id, span in ranges.items()}

    def peek(
        self,
        state: PopState,
        reader: TopicReader,
        ranges: Mapping[int, QueueRange],
        request: ReceiveRequest,
        now_ms: int,
    ) -> list[tuple[StoredRow, int]]:
        """The messages of these queues that `request` would get, each with the number that its delivery would have.
        Changes `state`, which is the caller's own.
        """
        for queue_id, start in self._starts(state, ranges).items():
            state.apply(Position(queue_id, start, -1, -1, -1, -1))
        selection = Selection(state, reader, request, now_ms, frozenset(), _leave)
        selection.choose(ranges, list(ranges))
        return [(row, attempt) for row, attempt, _ in selection.found]

    def _starts(self, state: PopState, queue_ids: Mapping[int, QueueRange]) -> dict[int, int]:
        """The offset of the first message of each queue that the group was not given."""
        committed, positions = self._offsets.committed(self._group), dict(state.positions)
        starts = {}
        for queue_id, span in queue_ids.items():
            position, start = positions.get(queue_id), max(committed.get((self._topic, queue_id), -1), -1)
            if position is not None and start in (position.committed_before, position.committed):
                start = position.next_offset
            starts[queue_id] = max(start, span.min_offset)
        return starts


def is_repeated(message: InFlight, attempt_key: int, now_ms: int) -> bool:
    """Whether an earlier attempt of this receive got the message, and it is still in flight."""
    return attempt_key != 0 and message.attempt_key == attempt_key and message.visible_at_ms > now_ms


def is_exhausted(message: InFlight, attempts_max: int | None) -> bool:
    """True if a message may not be given out again."""
    return attempts_max is not None and message.attempt >= attempts_max


def is_locked(messages: Sequence[InFlight], now_ms: int, damaged: Set[Key]) -> bool:
    """True if one of a queue's messages is in flight, so that no other one comes in its order."""
    return any(one.visible_at_ms > now_ms and one.key not in damaged for one in messages)


def _leave(message: InFlight, damaged: Damaged) -> InFlight:
    return message
