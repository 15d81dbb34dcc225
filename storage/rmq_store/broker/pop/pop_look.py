"""Looks at the messages that a group could receive. They take no lock, write nothing, and hide nothing.

A queue in which the group has no offset begins at its first message. One whose committed offset another program moved
begins there. Source: PeekMessageProcessor.java.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from rmq_store.broker.metadata.offsets import OffsetTable
from rmq_store.broker.pop.pop_messages import Damaged, StoredRow, TopicReader
from rmq_store.broker.pop.pop_state import Given, Key, PopState, Position
from rmq_store.broker.pop.pop_take import Take, Wish, is_locked, is_repeated
from rmq_store.protocol.results import QueueRange


class PopLook:
    """Looks of one group at one topic."""

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
        """The same of some queues, or of those that are not locked, and what an earlier attempt got, as `Wish` has it.
        It goes through all messages in flight.
        """
        given, rest = state.by_queue(), 0
        for queue_id, count in self._new(state, ranges).items():
            known = given.get(queue_id, [])
            rest += sum(is_repeated(one, attempt_key, now_ms) for one in known)
            if not (in_order and is_locked(known, now_ms, damaged)):
                rest += count + any(one.visible_at_ms <= now_ms for one in known)
        return rest

    def _new(self, state: PopState, ranges: Mapping[int, QueueRange]) -> dict[int, int]:
        starts = self._starts(state, ranges)
        return {queue_id: max(span.max_offset - starts[queue_id], 0) for queue_id, span in ranges.items()}

    def peek(
        self, state: PopState, reader: TopicReader, ranges: Mapping[int, QueueRange], wish: Wish, now_ms: int
    ) -> list[tuple[StoredRow, int]]:
        """The messages of these queues that `wish` would get, each with the number that its delivery would have.
        Changes `state`, which is the caller's own.
        """
        for queue_id, start in self._starts(state, ranges).items():
            state.apply(Position(queue_id, start, -1, -1, -1, -1))
        take = Take(state, reader, wish, now_ms, frozenset(), _leave)
        take.choose(ranges, list(ranges))
        return [(row, attempt) for row, attempt, _ in take.found]

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


def _leave(given: Given, damaged: Damaged) -> Given:
    return given
