"""Queues of a cluster for the commands: their ends, their names, and their messages as rows."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import islice
from typing import Any, Final

from rmq_store.cli.shared.message_text import rows_of
from rmq_store.cli.target.answers import Answers
from rmq_store.cli.target.cluster_target import ClusterTarget
from rmq_store.errors import UnknownTopicError, UsageError
from rmq_store.format.batches.answer_batches import AnswerRequest, answer_batches
from rmq_store.protocol.bodies.topics import TopicStatsTable
from rmq_store.protocol.errors import MQBrokerError, RemotingError, ResponseCode
from rmq_store.protocol.messages import MessageQueue
from rmq_store.protocol.results import QueueRange
from rmq_store.protocol.wire.admin_headers import GetTopicStatsInfoRequestHeader
from rmq_store.protocol.wire.header_fields import request
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.cluster.offsets import queue_ranges
from rmq_store.remoting.cluster.pulling import read_range
from rmq_store.remoting.cluster.routes import TopicRoute
from rmq_store.remoting.cluster.topics import refuse_to_read_topic

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
        raise UnknownTopicError(f"no topic {topic[:255]!r} in the cluster{nearest(topic, cluster.topics())}")
    refuse_to_read_topic(cluster, topic)
    return route


def nearest(name: str, known: Collection[str]) -> str:
    """The known name that is most like `name`, as the end of an error."""
    lower = {one.lower(): one for one in sorted(known)}
    near = [lower[found] for found in get_close_matches(name.lower(), lower, 1)]
    return f"; did you mean {near[0]!r}?" if near else ""


def named_queues(route: TopicRoute, text: str | None) -> list[MessageQueue]:
    """The queues that a text names: `broker-a:0`, or a plain number if just one broker has this queue; None: all.

    Raises:
        UsageError: no queue, or several, have this name.
    """
    queues = route.read_queues()
    if text is None:
        return queues
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
    """The ranges of the queues of these topics that may be read; without topics that no broker has, and without brokers
    that do not answer, which `answers` remembers.
    """
    names = iter(sorted(topics))
    found: dict[MessageQueue, QueueRange] = {}
    while part := list(islice(names, _TOPICS_AT_ONCE)):
        routes = [route for route in map(cluster.route, part) if route is not None]
        found |= _ends_of(cluster, answers, routes)
    return found


def _ends_of(cluster: Cluster, answers: Answers, routes: Sequence[TopicRoute]) -> dict[MessageQueue, QueueRange]:
    """One request for each topic and broker (202); what it does not tell is asked for each queue (30, 31)."""
    asked = [(route.topic, broker) for route in routes for broker in sorted(route.queues)]
    commands = [
        (broker, request(GetTopicStatsInfoRequestHeader(topic=cluster.wire_topic(topic), bname=broker)))
        for topic, broker in asked
    ]
    found: dict[MessageQueue, QueueRange] = {}
    silent: set[str] = set()
    for (topic, broker), answer in zip(asked, cluster.read_all(commands), strict=True):
        if isinstance(answer, RemotingError):
            answers.miss(broker, answer)
            silent.add(broker)
        elif answer.code == ResponseCode.SUCCESS:
            answers.hear(broker)
            for queue, one in TopicStatsTable.decode(answer.body).offset_table.items():
                start = max(one.min_offset, 0)
                found[MessageQueue(topic, broker, queue.queue_id)] = QueueRange(start, max(one.max_offset, start))
    # Brokers of 4.9 leave out queues that may not be written; others refuse the request for want of rights.
    missing = [queue for route in routes for queue in route.read_queues() if queue not in found]
    for broker in sorted({queue.broker_name for queue in missing} - silent):
        try:
            found |= queue_ranges(cluster, [queue for queue in missing if queue.broker_name == broker])
            answers.hear(broker)
        except (RemotingError, MQBrokerError) as error:
            answers.miss(broker, error)
    return found


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
