"""Tells, for each queue and the store as it is now, whether a query can continue from its checkpoint.

The rules are those of the source when it starts (`pyspark_rmq.read.loss_detection`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark_rmq.checkpoint.reading import Standing
from pyspark_rmq.position.fingerprint import fingerprint_before

if TYPE_CHECKING:
    from pyspark_rmq.position.position import Queue
    from rmq_store import QueueRange, Store

IN_RANGE = "in range"
OVERTAKEN = "overtaken by retention"
AHEAD = "ahead of the log"
REPLACED = "other messages"
NO_TOPIC = "no such topic"
CLOSED = "closed queue"
OTHER_STORE = "other store"


@dataclass(frozen=True, slots=True)
class QueueState:
    """One queue of one source. `position`: the first message that was not read. `planned`: the end of the batch that
    will run again; None if there is none. `min_offset` and `max_offset` are None if the store has no such queue.
    """

    source: int
    topic: str
    queue_id: int
    min_offset: int | None
    max_offset: int | None
    position: int
    planned: int | None
    committed: int | None
    state: str

    @property
    def behind(self) -> int | None:
        """The number of existing messages that the query still has to read."""
        if self.min_offset is None or self.max_offset is None:
            return None
        return max(self.max_offset - max(self.position, self.min_offset), 0)

    @property
    def lost(self) -> int:
        """The number of messages that the query has not read and that are gone."""
        return 0 if self.min_offset is None else max(self.min_offset - self.position, 0)


def compare(store: Store, standings: Sequence[Standing], group: str | None = None) -> list[QueueState]:
    """The state of each queue of these sources. Sources of other stores are left out, unless all are of other stores.
    """
    here = [standing for standing in standings if is_of(store, standing)]
    committed = store.committed_offsets(group) if group is not None else {}
    return [state for standing in here or standings for state in _states(store, standing, committed)]


def is_of(store: Store, standing: Standing) -> bool:
    """True if the source reads this store. A store that a broker wrote has no identity: then its messages are compared.
    """
    wanted = standing.begin.store
    return not wanted or not store.identity or wanted == store.identity


def _states(store: Store, standing: Standing, committed: Mapping[tuple[str, int], int]) -> Iterator[QueueState]:
    known = is_of(store, standing)
    for queue, position in sorted(standing.begin.next.items()):
        limits = store.queue_range(*queue) if known and store.find_topic(queue.topic) else None
        yield QueueState(
            standing.source.number,
            *queue,
            None if limits is None else limits.min_offset,
            None if limits is None else limits.max_offset,
            position,
            None if standing.end is None else standing.end.next.get(queue),
            committed.get(queue),
            _state(store, standing, queue, limits) if known else OTHER_STORE,
        )


def _state(store: Store, standing: Standing, queue: Queue, limits: QueueRange | None) -> str:
    if limits is None:
        return NO_TOPIC
    position = standing.begin.next[queue]
    if position < limits.min_offset:
        return OVERTAKEN
    for known in (standing.begin, standing.end):
        if known is None or queue not in known.next:
            continue
        if known.next[queue] > limits.max_offset:
            return AHEAD
        found = fingerprint_before(store, queue, known.next[queue])
        if found is not None and not found.may_be(known.after.get(queue, found)):
            return REPLACED
    if queue.queue_id >= store.topic(queue.topic).read_queue_nums and position < limits.max_offset:
        return CLOSED
    return IN_RANGE
