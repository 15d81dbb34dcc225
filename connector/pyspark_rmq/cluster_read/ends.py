"""Ends of all queues of topics, as `ends_at_brokers` finds them, and how sure they are. Control plane.

    master answers                the range is that of the broker
    a slave answers for it        the range may end before that of the master: it is unsure
    nobody answers, or it is busy what is known stays, as unsure; without anything known it is an error
    broker has left the route     the same: name servers drop a broker whose master is gone at once
    broker says that the topic is not there, or the broker is there and its route lacks the topic: the queues are gone

In a plan of a stream (`PlanEnds`) no more is concluded from routes, and nothing that is not told is an error:

    broker has left the route     it is asked all the same: only the broker says that its queues are gone (17)
    nobody answers, or it is busy what is known stays here for the next time; the plan leaves it out (`Look.away`)
    all brokers say 17            the topic is gone, as soon as no name server has a route of it

Source: AdminBrokerProcessor.java (getTopicStatsInfo), RouteInfoManager.java (onChannelDestroy).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pyspark_rmq.cluster_read.look import Look
from pyspark_rmq.position.planning import UnsureRange
from pyspark_rmq.position.position import Queue
from pyspark_rmq.position.queue_ids import BrokerQueueId
from rmq_store.cluster import (
    BrokerEnds,
    Cluster,
    MQBrokerError,
    QueueRange,
    ResponseCode,
    TopicAt,
    TopicRoute,
    at_brokers,
    ends_at_brokers,
    is_away,
)
from rmq_store.errors import UnknownTopicError

_log = logging.getLogger(__name__)

BrokerRange = QueueRange | UnsureRange


@dataclass(frozen=True, slots=True)
class TopicEnds:
    """The queues of one topic, sorted: those that may be read (`open`), and all that its brokers have (`all`).
    `stored_ms`: when the last message of each was stored, as far as its broker says so. `routed`: the brokers of the
    route with which they were asked for.
    """

    open: Mapping[BrokerQueueId, BrokerRange]
    all: Mapping[BrokerQueueId, BrokerRange]
    stored_ms: Mapping[BrokerQueueId, int] = field(default_factory=dict)
    routed: frozenset[str] = field(default=frozenset(), compare=False)


class AskedEnds:
    """Ends as the cluster tells them. `known`: those of an earlier call. Only `PlanEnds` goes on without an answer.

    Methods raise:
        MQBrokerError: a broker refuses.
        RemotingError: neither master nor slave of a broker answers, and nothing is known of it.
    """

    _level = logging.WARNING

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def of_topics(self, topics: Collection[str], known: Mapping[str, TopicEnds]) -> dict[str, TopicEnds]:
        """The ends of topics now. A topic without a route is left out."""
        routes = self._cluster.routes_of(topics, len(topics))
        return self.by_routes(routes, known, at_brokers(route for route in routes.values() if route is not None))

    def by_routes(
        self, routes: Mapping[str, TopicRoute | None], known: Mapping[str, TopicEnds], asked: Sequence[TopicAt]
    ) -> dict[str, TopicEnds]:
        """As `of_topics`; only `asked` are asked for now, and the others are as they are `known`."""
        lost = {
            topic: self._lost_brokers(known[topic], () if route is None else route.queues)
            for topic, route in routes.items()
            if topic in known
        }
        answers: dict[str, list[BrokerEnds]] = {topic: [] for topic in routes}
        for told in ends_at_brokers(self._cluster, [*asked, *self._asked_beside(lost, known)]):
            answers[told.asked.topic].append(told)
        ends: dict[str, TopicEnds] = {}
        for topic, route in routes.items():
            before = known.get(topic)
            if route is None and not lost.get(topic):
                continue
            found: dict[BrokerQueueId, BrokerRange] = {}
            for told in answers[topic]:
                found |= self._of_broker(told, before)
            if before is not None and route is not None:
                quiet = set(route.queues) - {told.asked.broker_name for told in answers[topic]}
                found |= {queue_id: limits for queue_id, limits in before.all.items() if queue_id.broker_name in quiet}
            if before is not None:
                found |= self._not_asked(before, lost[topic])
            self._heard(topic, answers[topic])
            open_queues = _open(route, before, found)
            ends[topic] = TopicEnds(
                dict(sorted(open_queues.items())),
                dict(sorted(found.items())),
                {**({} if before is None else before.stored_ms), **_stored_ms(answers[topic])},
                frozenset(() if route is None else route.queues),
            )
        return ends

    def at_brokers(self, queues: Collection[Queue]) -> dict[Queue, BrokerRange]:
        """The ranges of queues, as their brokers tell them whatever is in the routes: also of queues that they list
        neither for readers nor for writers. A queue is left out if its master does not have the topic; in a plan also
        while its broker is away.
        """
        counts: dict[tuple[str, str], int] = {}
        for topic, queue_id in queues:
            at = topic, queue_id.broker_name
            counts[at] = max(counts.get(at, 0), queue_id.queue_id + 1)
        ranges: dict[Queue, BrokerRange] = {}
        for told in ends_at_brokers(self._cluster, [TopicAt(*at, count) for at, count in counts.items()]):
            found = self._of_broker(told, None)
            ranges |= {Queue(told.asked.topic, queue_id): limits for queue_id, limits in found.items()}
        return {queue: ranges[queue] for queue in queues if queue in ranges}

    def _of_broker(self, told: BrokerEnds, before: TopicEnds | None) -> dict[BrokerQueueId, BrokerRange]:
        topic, broker_name, _ = told.asked
        error = told.error
        if error is not None and (is_away(error) or not told.of_master):
            # Nobody answers, or the broker is busy; or only a slave, which learns of a topic up to 60 s late.
            kept = {} if before is None else _kept(before, {broker_name})
            if kept or self._goes_on_without(error):
                _log.log(self._level, "the ends of %s at broker %s are not known now: %s", topic, broker_name, error)
                return kept
        if isinstance(error, MQBrokerError) and error.response_code == ResponseCode.TOPIC_NOT_EXIST:
            return {}
        kind = QueueRange if told.of_master and not self._is_acting(broker_name) else UnsureRange
        return {
            BrokerQueueId(broker_name, queue_id): kind(limits.min_offset, limits.max_offset)
            for queue_id, limits in told.required().limits.items()
        }

    def _is_acting(self, broker_name: str) -> bool:
        broker = self._cluster.routes.broker(broker_name)
        return broker is not None and broker.acting_enabled

    # -- where a plan of a stream differs ------------------------------------------------------------------------------

    def _lost_brokers(self, before: TopicEnds, routed: Iterable[str]) -> set[str]:
        """Brokers that had queues of the topic, and that no name server knows now. `routed`: those of its route."""
        return {name for name in _not_routed(before, routed) if self._cluster.routes.broker(name) is None}

    def _asked_beside(self, lost: Mapping[str, set[str]], known: Mapping[str, TopicEnds]) -> list[TopicAt]:
        """Questions to lost brokers."""
        return []

    def _not_asked(self, before: TopicEnds, lost: Collection[str]) -> dict[BrokerQueueId, BrokerRange]:
        """The ranges of brokers that are lost, and not asked."""
        return _kept(before, lost)

    def _goes_on_without(self, error: Exception) -> bool:
        """Whether an answer may be missing although nothing is known."""
        return False

    def _heard(self, topic: str, answers: Sequence[BrokerEnds]) -> None:
        """These are all answers for a topic."""


class PlanEnds(AskedEnds):
    """Ends as a plan sees them: it asks also brokers that have left the routes, and leaves out those that are away."""

    _level = logging.DEBUG  # its reader tells it once

    def __init__(self, look: Look) -> None:
        super().__init__(look)
        self._look = look

    def _lost_brokers(self, before: TopicEnds, routed: Iterable[str]) -> set[str]:
        return _not_routed(before, routed)

    def _asked_beside(self, lost: Mapping[str, set[str]], known: Mapping[str, TopicEnds]) -> list[TopicAt]:
        return [_at_lost(topic, name, known[topic]) for topic in lost for name in sorted(lost[topic])]

    def _not_asked(self, before: TopicEnds, lost: Collection[str]) -> dict[BrokerQueueId, BrokerRange]:
        return {}

    def _goes_on_without(self, error: Exception) -> bool:
        return is_away(error)

    def _heard(self, topic: str, answers: Sequence[BrokerEnds]) -> None:
        if answers and all(map(_says_unknown, answers)):
            self._look.forget_route(topic)


def _at_lost(topic: str, broker_name: str, known: TopicEnds) -> TopicAt:
    """The question to a broker that has left the route, for the queues that it had."""
    count = max(queue_id.queue_id + 1 for queue_id in known.all if queue_id.broker_name == broker_name)
    return TopicAt(topic, broker_name, count)


def _stored_ms(answers: Iterable[BrokerEnds]) -> dict[BrokerQueueId, int]:
    return {
        BrokerQueueId(told.asked.broker_name, queue_id): limits.last_update_timestamp
        for told in answers
        if told.error is None
        for queue_id, limits in told.limits.items()
    }


def _says_unknown(told: BrokerEnds) -> bool:
    """Whether the broker says that it does not have the topic. Its slave may only not know it yet."""
    error = told.error
    is_unknown = isinstance(error, MQBrokerError) and error.response_code == ResponseCode.TOPIC_NOT_EXIST
    return is_unknown and told.of_master


def _not_routed(before: TopicEnds, routed: Iterable[str]) -> set[str]:
    return {queue_id.broker_name for queue_id in before.all} - set(routed)


def _kept(before: TopicEnds, brokers: Collection[str]) -> dict[BrokerQueueId, BrokerRange]:
    return {
        queue_id: UnsureRange(limits.min_offset, limits.max_offset)
        for queue_id, limits in before.all.items()
        if queue_id.broker_name in brokers
    }


def _open(
    route: TopicRoute | None, before: TopicEnds | None, found: dict[BrokerQueueId, BrokerRange]
) -> dict[BrokerQueueId, BrokerRange]:
    """Of the queues `found`, those that may be read; a queue that its broker has not told of yet is empty."""
    read_queues = [] if route is None else route.read_queues()
    routed = [BrokerQueueId(queue.broker_name, queue.queue_id) for queue in read_queues]
    brokers = set() if route is None else set(route.queues)
    open_queues: dict[BrokerQueueId, BrokerRange] = {
        queue_id: found.get(queue_id, QueueRange(0, 0))
        for queue_id in routed
        if queue_id in found or any(other.broker_name == queue_id.broker_name for other in found)
    }
    kept = () if before is None else before.open
    return open_queues | {
        queue_id: found[queue_id] for queue_id in kept if queue_id in found and queue_id.broker_name not in brokers
    }


def unknown_topic(cluster: Cluster, topic: str) -> UnknownTopicError:
    """The error for a topic that no broker has."""
    servers = ";".join(cluster.settings.name_servers)
    hint = cluster.did_you_mean(topic)
    return UnknownTopicError(f"no broker has a topic {topic!r}, as the name servers {servers} say{hint}")
