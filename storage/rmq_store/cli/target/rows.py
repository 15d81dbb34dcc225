"""The rows that commands find at a target. A queue of a cluster has the name of its broker; of a store None.

A broker that does not answer, or refuses, is not empty: a `Total` says which brokers a number lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from rmq_store.protocol.results import lag_of

if TYPE_CHECKING:
    from rmq_store.protocol.messages import MessageQueue
    from rmq_store.protocol.results import QueueRange


class Total(NamedTuple):
    """A number, or the sum of several. `known`: of the queues that are known; None: there is none. `away`: the brokers
    whose queues it lacks, by name.
    """

    known: int | None
    away: tuple[str, ...] = ()

    @property
    def exact(self) -> int | None:
        """The number, as JSON has it; None: a part of it is unknown, or there is none."""
        return None if self.away else self.known

    @property
    def cell(self) -> int | str:
        """As tables show it, see `text`."""
        return self.known if self.known is not None and not self.away else self.text(str)

    def text(self, show: Callable[[int], str]) -> str:
        """`12`; `12+?`: a part is unknown; `?`: all of it is; `-`: there is none."""
        known = "" if self.known is None else show(self.known)
        return (f"{known}+?" if known else "?") if self.away else known or "-"


def unknown_at(*away: str) -> Total:
    """A number that only brokers know which are away."""
    return Total(None, away)


def together(several: Iterable[Total]) -> Total:
    """The sum: 0 of nothing; without a number if none of them has one."""
    totals = list(several)
    known = [one.known for one in totals if one.known is not None]
    away = sorted({name for one in totals for name in one.away})
    return Total(sum(known) if known or not totals else None, tuple(away))


class QueueRow(NamedTuple):
    """A queue and its range [min_offset, max_offset)."""

    broker_name: str | None
    queue_id: int
    min_offset: Total
    max_offset: Total
    messages: Total


class TopicRow(NamedTuple):
    """A topic. `perm`: as `perm_text` makes it. `kind`: the form of its queues, if they are not read here; then there
    are no `queues`, and `messages` is None. `in_table`: whether it has settings.
    """

    topic: str
    read_queue_nums: int
    write_queue_nums: int
    perm: str
    messages: Total | None
    queues: tuple[QueueRow, ...]
    in_table: bool = True
    kind: str | None = None


class FilterRow(NamedTuple):
    """A filter that consumers of a group have registered (consumerFilter.json)."""

    topic: str
    expression_type: str
    expression: str


class GroupQueueRow(NamedTuple):
    """A group in a queue. `committed` without a number: it has no offset there."""

    topic: str
    broker_name: str | None
    queue_id: int
    committed: Total
    end: Total
    lag: Total


class GroupRow(NamedTuple):
    """A group, in messages. None: not known; `dead_left` are the dead letters that nobody has redriven."""

    group: str
    lag: Total
    retries: Total
    waiting: int | None
    dead: Total
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
        """See `lag_of`."""
        return lag_of(self.max_offset, self.committed)


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
    messages: Total
    end: Total


class GroupActivity(NamedTuple):
    """A group, in messages. `lag_ms`: the age of the oldest message that it has not consumed; None: none, or not known.
    """

    group: str
    lag: Total
    lag_ms: Total
    retries: Total
    dead: Total


class Activity(NamedTuple):
    """One look at the traffic of a target, for rates between two looks. `head`: what the target says of itself.
    `consumed`: group -> the sum of its offsets, of all groups of which all is known; `groups` has those with the
    largest lags.
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


def queue_row(broker_name: str | None, queue_id: int, present: QueueRange) -> QueueRow:
    """A queue that is known."""
    first, end = present
    return QueueRow(broker_name, queue_id, Total(first), Total(end), Total(end - first))


def topic_activity(
    topic: str, ranges: Collection[QueueRange], unknown: Collection[MessageQueue] = ()
) -> TopicActivity:
    """The messages of a topic with queues of these ranges, and others of which nothing is known."""
    missing = [unknown_at(queue.broker_name) for queue in unknown]
    return TopicActivity(
        topic,
        len(ranges) + len(missing),
        together([*(Total(one.max_offset - one.min_offset) for one in ranges), *missing]),
        together([*(Total(one.max_offset) for one in ranges), *missing]),
    )


def queue_name(broker_name: str | None, queue_id: int) -> str | int:
    """A queue as tables show it: its number, in a cluster `broker-a:0`."""
    return queue_id if broker_name is None else f"{broker_name}:{queue_id}"


def queue_json(broker_name: str | None, queue_id: int) -> dict[str, Any]:
    """The members of a JSON object that name a queue."""
    return {"queueId": queue_id} if broker_name is None else {"brokerName": broker_name, "queueId": queue_id}


def away_json(away: Collection[str]) -> dict[str, Any]:
    """The member of a JSON object that names the brokers of which it has null in place of numbers; none without them.
    """
    return {"away": list(away)} if away else {}
