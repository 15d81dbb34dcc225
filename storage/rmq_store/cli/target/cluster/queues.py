"""Queues of a cluster for the commands: their ends, their names, and their messages as rows."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from rmq_store.cli.shared.message_text import rows_of
from rmq_store.cli.target.answers import Answers
from rmq_store.cli.target.cluster_target import ClusterTarget
from rmq_store.errors import UnknownTopicError, UsageError
from rmq_store.format.batches.answer_batches import AnswerRequest, answer_batches
from rmq_store.protocol.errors import MQBrokerError, RemotingError
from rmq_store.protocol.messages import MessageQueue
from rmq_store.protocol.results import QueueRange
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.cluster.offsets import queue_ranges
from rmq_store.remoting.cluster.pulling import read_range
from rmq_store.remoting.cluster.routes import TopicRoute
from rmq_store.remoting.cluster.topics import BrokerEnds, at_brokers, ends_at_brokers, refuse_to_read_topic

# So many topics are asked for together; each at each of its brokers.
_TOPICS_AT_ONCE: Final = 64
# Rows of a queue that are decoded together.
_BATCH_ROWS: Final = 512


def require_topic(cluster: Cluster, topic: str) -> TopicRoute:
    """The route of a topic that can be read.

    Raises:
        UnknownTopicError: no broker has it; suggests the nearest.
        TopicKindError: brokers keep its queues in another way.
    """
    route = cluster.route(topic)
    if route is None:
        raise UnknownTopicError(f"no topic {topic[:255]!r} in the cluster{cluster.did_you_mean(topic)}")
    refuse_to_read_topic(cluster, topic)
    return route


def named_queues(route: TopicRoute, name: int | str | None) -> list[MessageQueue]:
    """The queues that a name means: `broker-a:0`, or a plain number if just one broker has this queue; None: all.

    Raises:
        UsageError: no queue, or several, have this name.
    """
    queues = route.read_queues()
    if name is None:
        return queues
    text = str(name)
    broker, _, number = text.rpartition(":")
    found = [queue for queue in queues if number == str(queue.queue_id) and (not broker or broker == queue.broker_name)]
    if len(found) > 1:
        names = ", ".join(shown(queue) for queue in found)
        raise UsageError(f"topic {route.topic} has several queues {text}: {names}; name one of them")
    if not found:
        raise UsageError(f"topic {route.topic} has no queue {text}; it has {', '.join(map(shown, queues[:32]))}")
    return found


def shown(queue: MessageQueue) -> str:
    """`broker-a:0`."""
    return f"{queue.broker_name}:{queue.queue_id}"


def topic_ends(cluster: Cluster, answers: Answers, topics: Collection[str]) -> dict[MessageQueue, QueueRange]:
    """The ranges of the queues of these topics that their route opens for readers (readQueueNums), whether the topic
    may be read or not; without topics that no broker has, and without brokers that do not answer, which `answers`
    remembers.
    """
    names = iter(sorted(topics))
    found: dict[MessageQueue, QueueRange] = {}
    while part := list(islice(names, _TOPICS_AT_ONCE)):
        routes = [route for route in map(cluster.route, part) if route is not None]
        for ends in ends_at_brokers(cluster, at_brokers(routes)):
            found |= _open_ranges(cluster, answers, ends)
    return found


def queues_away(
    cluster: Cluster, answers: Answers, topics: Collection[str], known: Collection[MessageQueue]
) -> list[MessageQueue]:
    """The queues of topics, as their routes have them, at brokers that have not answered; without those that are known,
    perhaps by another question.
    """
    if not answers.missing:
        return []
    routes = [route for route in map(cluster.route, sorted(topics)) if route is not None]
    queues = (queue for route in routes for queue in route.read_queues() if queue.broker_name in answers.missing)
    return [queue for queue in queues if queue not in known]


class SeenQueues:
    """Queues of groups or topics by name, of earlier polls too: a broker that stops is mostly gone from the routes."""

    def __init__(self) -> None:
        self._seen: dict[str, set[MessageQueue]] = {}

    @property
    def names(self) -> Collection[str]:
        """Those of which queues are known."""
        return self._seen.keys()

    def with_earlier(
        self, name: str, known: Collection[MessageQueue], away: Collection[MessageQueue], answers: Answers
    ) -> tuple[MessageQueue, ...]:
        """The queues that are `away`, and those of earlier polls at brokers that have not answered. All are kept."""
        seen = self._seen.setdefault(name, set())
        found = {*away, *(queue for queue in seen if queue.broker_name in answers.missing)}
        seen.update(known, found)
        return tuple(sorted(found.difference(known)))


def _open_ranges(cluster: Cluster, answers: Answers, ends: BrokerEnds) -> dict[MessageQueue, QueueRange]:
    topic, broker_name, read_queue_nums = ends.asked
    queues = [MessageQueue(topic, broker_name, queue_id) for queue_id in range(read_queue_nums)]
    try:
        if isinstance(ends.error, MQBrokerError):
            ranges = queue_ranges(cluster, queues)
        else:
            ranges = ends.required().ranges
    except (RemotingError, MQBrokerError) as error:
        answers.failed(broker_name, error)
        return {}
    answers.succeeded(broker_name)
    return {queue: ranges[queue] for queue in queues}


def rows_between(
    cluster: Cluster,
    target: ClusterTarget,
    queue: MessageQueue,
    start: int,
    end: int,
    columns: Sequence[str],
    *,
    tags: str | None = None,
    lanes: int = 2,
) -> Iterator[dict[str, Any]]:
    """The messages [start, end) of a queue, as `rows_of` gives them. Some MiB are in memory.

    Raises as `read_range`.
    """
    from rmq_store.broker.filter.tags import TagFilter

    wanted = TagFilter.parse(tags)
    asked = AnswerRequest(
        queue.broker_name,
        cluster.wire_topic(queue.topic),
        queue.queue_id,
        columns,
        shown_topic=queue.topic,
        keep_tags=wanted.matches if wanted is not None else None,
    )
    pulled = read_range(cluster, queue, start, end, target.filter(tags or "*"), lanes=lanes)
    for batch in answer_batches(pulled, asked, batch_rows=_BATCH_ROWS, batch_bytes=1 << 20):
        yield from rows_of(batch)


def by_topic(ranges: Mapping[MessageQueue, QueueRange]) -> dict[str, dict[MessageQueue, QueueRange]]:
    """The ranges of each topic."""
    found: dict[str, dict[MessageQueue, QueueRange]] = {}
    for queue, one in sorted(ranges.items()):
        found.setdefault(queue.topic, {})[queue] = one
    return found
