"""The messages that one receive gives out: first those whose time has come, then new ones.

    any order   the messages that are visible again, the earliest first; then new ones, queue by queue
    in order    queue by queue: its visible messages by their offsets, then new ones; a queue is locked, and passed
                over, while one of its messages is in flight. Messages that an earlier attempt of the same receive got
                lock nothing: they come again, their queues first

It decides, and writes nothing: `pop_step` writes the changes. A damaged message is put off; it locks no queue.
Source: ConsumerOrderInfoManager.java, PopMessageProcessor.java.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from typing import Final

from rmq_store.broker.pop.pop_messages import Damaged, PropertyFilter, Room, StoredRow, TopicReader
from rmq_store.broker.pop.pop_state import Change, Given, Gone, Key, PopState, Position
from rmq_store.errors import OffsetOutOfRangeError
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.protocol.results import QueueRange

IN_FLIGHT_MAX: Final = 10_000
"""The most messages of one queue that may be in flight for a group (BrokerConfig.java popInflightMessageThreshold)."""

DEAD_MAX: Final = 256
"""Dead letters of one look."""


@dataclass(frozen=True, slots=True)
class Wish:
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


class Take:
    """The choice of one receive at `now_ms`. `put_off` hides a damaged message; `damaged` are those hidden before.

    `found` has the messages, each with its attempt and the version of its handle; `changes` are all other changes.
    """

    def __init__(
        self,
        state: PopState,
        reader: TopicReader,
        wish: Wish,
        now_ms: int,
        damaged: Set[Key],
        put_off: Callable[[Given, Damaged], Given],
    ) -> None:
        self._state = state
        self._reader = reader
        self._wish = wish
        self._now_ms = now_ms
        self._damaged = damaged
        self._put_off = put_off
        self._space = Room(wish.bytes_max)
        self.found: list[tuple[StoredRow, int, int]] = []
        self.changes: list[Change] = []

    def choose(self, ranges: Mapping[int, QueueRange], order: Sequence[int]) -> None:
        """Choose from the queues of `order`."""
        if self._wish.in_order:
            self._choose_in_order(ranges, order)
            return
        queue_ids = None if len(order) == len(ranges) else frozenset(order)
        visible = self._state.visible(self._now_ms, self._wish.count + DEAD_MAX, queue_ids)
        self._take_again(visible)
        for queue_id in order:
            self._take_new(queue_id, ranges[queue_id])

    def _choose_in_order(self, ranges: Mapping[int, QueueRange], order: Sequence[int]) -> None:
        given = self._state.by_queue()
        of_attempt = {queue_id for queue_id, known in given.items() if any(map(self._is_repeated, known))}
        for queue_id in sorted(order, key=lambda queue_id: queue_id not in of_attempt):
            known = given.get(queue_id, [])
            if is_locked([one for one in known if not self._is_repeated(one)], self._now_ms, self._damaged):
                continue
            comes = [one for one in known if one.visible_at_ms <= self._now_ms or self._is_repeated(one)]
            comes = [one for one in comes if one.key not in self._state.dying]
            self._take_again(sorted(comes, key=lambda one: one.queue_offset))
            self._take_new(queue_id, ranges[queue_id])  # none, if one that comes before has found no room

    def _is_repeated(self, given: Given) -> bool:
        return is_repeated(given, self._wish.attempt_key, self._now_ms)

    def _take_again(self, visible: Sequence[Given]) -> None:
        for given in visible:
            is_repeated = self._is_repeated(given)
            if not is_repeated and is_exhausted(given, self._wish.attempts_max):
                continue
            if len(self.found) >= self._wish.count:
                return
            row = self._reader.message(*given.key)
            if row is None:
                self.changes.append(Gone(*given.key))
            elif isinstance(row, Damaged):
                self.changes.append(self._put_off(given, row))
            elif not self._space.takes(row):
                return
            else:
                attempt = given.attempt if is_repeated else max(given.attempt, row.reconsume_times) + 1
                self.found.append((row, attempt, given.version + 1))

    def _take_new(self, queue_id: int, span: QueueRange) -> None:
        room = min(self._wish.count - len(self.found), IN_FLIGHT_MAX - self._state.count(queue_id))
        if room <= 0 or self._space.is_full:
            return
        rows, end = self._new(queue_id, span, room)
        for row in rows:
            if isinstance(row, Damaged):
                self.changes.append(self._put_off(self._given(row, 0, 0), row))
                continue
            attempt = row.reconsume_times + 1
            if is_exhausted(self._given(row, row.reconsume_times, 0), self._wish.attempts_max):
                # Failed too often elsewhere: visible at once, and dead at the next look.
                self.changes.append(self._given(row, row.reconsume_times, 1))
            elif not self._space.takes(row):
                end = row.queue_offset
                break
            else:
                self.found.append((row, attempt, 1))
        self.changes += self._moved(queue_id, end)

    def _new(self, queue_id: int, span: QueueRange, count: int) -> tuple[list[StoredRow | Damaged], int]:
        start = max(self._state.positions[queue_id].next_offset, span.min_offset)
        try:
            wish = self._wish
            return self._reader.scan(queue_id, start, span.max_offset, count, wish.tags, wish.accepts)
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

    def _given(self, row: StoredRow | Damaged, attempt: int, version: int) -> Given:
        """Visible at once."""
        return Given(row.queue_id, row.queue_offset, attempt, version, row.commit_log_offset, self._now_ms, 0)


def is_repeated(given: Given, attempt_key: int, now_ms: int) -> bool:
    """Whether an earlier attempt of this receive got the message, and it is still in flight."""
    return attempt_key != 0 and given.attempt_key == attempt_key and given.visible_at_ms > now_ms


def is_exhausted(given: Given, attempts_max: int | None) -> bool:
    """True if a message may not be given out again."""
    return attempts_max is not None and given.attempt >= attempts_max


def is_locked(given: Sequence[Given], now_ms: int, damaged: Set[Key]) -> bool:
    """True if one of a queue's messages is in flight, so that no other one comes in its order."""
    return any(one.visible_at_ms > now_ms and one.key not in damaged for one in given)
