"""The rows that commands find at a target. A queue of a cluster has the name of its broker; of a store None."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from rmq_store.protocol.results import QueueRange


class QueueRow(NamedTuple):
    """A queue and its range [min_offset, max_offset)."""

    broker_name: str | None
    queue_id: int
    min_offset: int
    max_offset: int


class TopicRow(NamedTuple):
    """A topic. `perm`: as `perm_text` makes it. `kind`: the form of its queues, if they are not read here; then there
    are no `queues`, and `messages` is None. `in_table`: whether it has settings.
    """

    topic: str
    read_queue_nums: int
    write_queue_nums: int
    perm: str
    messages: int | None
    queues: tuple[QueueRow, ...]
    in_table: bool = True
    kind: str | None = None


class FilterRow(NamedTuple):
    """A filter that consumers of a group have registered (consumerFilter.json)."""

    topic: str
    expression_type: str
    expression: str


class GroupQueueRow(NamedTuple):
    """A group in a queue. `committed` None: it has no offset there."""

    topic: str
    broker_name: str | None
    queue_id: int
    committed: int | None
    end: int
    lag: int


class GroupRow(NamedTuple):
    """A group, in messages. None: not known; `dead_left` are the dead letters that nobody has redriven."""

    group: str
    lag: int
    retries: int
    waiting: int | None
    dead: int
    dead_left: int | None
    queues: tuple[GroupQueueRow, ...]
    filters: tuple[FilterRow, ...] = ()


class PlaceRow(NamedTuple):
    """A queue [min_offset, max_offset), and where a group stands in it. `committed` None: it has no offset there."""

    topic: str
    broker_name: str | None
    queue_id: int
    min_offset: int
    max_offset: int
    committed: int | None

    @property
    def lag(self) -> int:
        """Messages to consume, as mqadmin counts them: without an offset from 0 on."""
        return self.max_offset - (self.committed or 0)


class ChangeRow(NamedTuple):
    """The queue `place` gets the offset `then`, the one nearest to `wanted` that it has."""

    place: PlaceRow
    wanted: int
    then: int

    @property
    def lag(self) -> int:
        """Messages to consume then."""
        return self.place.max_offset - self.then


class TopicActivity(NamedTuple):
    """The messages of a topic. `end`: the sum of its queues' ends."""

    topic: str
    queue_count: int
    messages: int
    end: int


class GroupActivity(NamedTuple):
    """A group, in messages. `lag_ms`: the age of the oldest message that it has not consumed; None: none, or not known.
    """

    group: str
    lag: int
    lag_ms: int | None
    retries: int
    dead: int


class Activity(NamedTuple):
    """One look at the traffic of a target, for rates between two looks. `head`: what the target says of itself.
    `consumed`: group -> the sum of its offsets, of all groups; `groups` has those with the largest lags.
    """

    now_ms: int
    head: dict[str, Any]
    topics: tuple[TopicActivity, ...]
    consumed: dict[str, int]
    groups: tuple[GroupActivity, ...]


class SentRow(NamedTuple):
    """A message that was sent. `status`: a name of SendStatus."""

    topic: str
    broker_name: str | None
    queue_id: int
    queue_offset: int
    msg_id: str
    offset_msg_id: str
    status: str


def topic_activity(topic: str, ranges: Collection[QueueRange]) -> TopicActivity:
    """The messages of a topic with these queues."""
    end, start = sum(one.max_offset for one in ranges), sum(one.min_offset for one in ranges)
    return TopicActivity(topic, len(ranges), end - start, end)


def queue_name(broker_name: str | None, queue_id: int) -> str | int:
    """A queue as tables show it: its number, in a cluster `broker-a:0`."""
    return queue_id if broker_name is None else f"{broker_name}:{queue_id}"


def queue_json(broker_name: str | None, queue_id: int) -> dict[str, Any]:
    """The members of a JSON object that name a queue."""
    return {"queueId": queue_id} if broker_name is None else {"brokerName": broker_name, "queueId": queue_id}
