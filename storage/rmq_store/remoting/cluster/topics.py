"""Topics at the brokers of a cluster: ends of queues, settings, creation, deletion.

`ends_at_brokers` is the one place that asks for the ends of a topic's queues:

    202 lists the queue       its range and the store time of its newest message
    202 leaves it out         31 and 30 are asked: brokers before 5.3 list only queues that may be written, so that a
                              topic that is being made smaller (readQueueNums > writeQueueNums) would lose its rest
    202 is refused            for want of rights, as unknown, or by a slave that does not have the topic yet: 31 and
                              30 are asked for each queue that may be read
    202 lists more            queues that may be written, not read: their messages wait until readQueueNums is raised

Source: AdminBrokerProcessor.java (getTopicStatsInfo, getMaxOffset, getMinOffset), PullMessageProcessor.java.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Final, NamedTuple

from rmq_store import kinds, real_time
from rmq_store.errors import TopicKindError
from rmq_store.format.text.names import LMQ_PREFIX
from rmq_store.kinds.table import STATIC_TOPICS, Kind
from rmq_store.kinds.topics import kind_by_attributes
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.protocol.bodies.topics import TopicConfig, TopicOffset
from rmq_store.protocol.errors import MQBrokerError, RemotingConnectError, RemotingError, ResponseCode
from rmq_store.protocol.messages import MessageQueue
from rmq_store.protocol.results import QueueRange
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.cluster.gather import At, Question, Told, gather
from rmq_store.remoting.cluster.offsets import gather_ranges, queue_ranges
from rmq_store.remoting.cluster.routes import MASTER_ID, POLL_EVERY_MS, TopicRoute
from rmq_store.remoting.questions import topics as questions
from rmq_store.remoting.questions.answer import is_not_told
from rmq_store.remoting.questions.topics import TopicStats

ROUTE_WAIT_MS: Final = 10_000
_LOOK_EVERY_S: Final = 0.1
_MADE_OR_UNKNOWN: Final = (ResponseCode.SUCCESS, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)


class TopicAt(NamedTuple):
    """A topic at one broker: the queues [0, read_queue_nums) may be read there."""

    topic: str
    broker_name: str
    read_queue_nums: int


@dataclass(frozen=True, slots=True)
class BrokerEnds:
    """The answer of one broker about one topic.

    `limits`: by queue id, ascending, each with 0 <= minOffset <= maxOffset; `last_update_timestamp` is 0 for a queue
    that 202 does not list. `broker_id`: of the process that has answered; with several, that of a slave.

    `error` is there instead of limits: MQBrokerError, the broker refuses (17: it does not have the topic);
    RemotingError, neither its master nor a slave answers.
    """

    asked: TopicAt
    limits: Mapping[int, TopicOffset]
    broker_id: int
    error: MQBrokerError | RemotingError | None = None
    topic_put_tps: float | None = None

    @property
    def of_master(self) -> bool:
        """Whether the process at id 0 has said all of it."""
        return self.broker_id == MASTER_ID

    @property
    def ranges(self) -> dict[MessageQueue, QueueRange]:
        """The ranges of the queues that may be read, and of those that may only be written."""
        topic, broker_name, _ = self.asked
        return {
            MessageQueue(topic, broker_name, queue_id): QueueRange(one.min_offset, one.max_offset)
            for queue_id, one in self.limits.items()
        }

    def required(self) -> BrokerEnds:
        """The answer itself. Raises its `error`."""
        if self.error is not None:
            raise self.error
        return self


def at_brokers(routes: Iterable[TopicRoute]) -> list[TopicAt]:
    """The topics at their brokers, as the routes have them; brokers are sorted within each topic."""
    return [
        TopicAt(route.topic, broker_name, queues.read_queue_nums)
        for route in routes
        for broker_name, queues in sorted(route.queues.items())
    ]


def ends_at_brokers(cluster: Cluster, asked: Sequence[TopicAt], *, of_masters: bool = False) -> list[BrokerEnds]:
    """The ends of topics at brokers, in the order of `asked`: one request for each (202), all at once; two more for
    each queue that this leaves out. A slave is asked for a master that does not answer, unless only answers
    `of_masters` are wanted; its ends may be smaller than those that the master has told before.

    Raises nothing for a broker: see `BrokerEnds.error`.
    """
    at = At.MASTERS if of_masters else At.READABLE
    asked_for = {
        place: Question(
            one.broker_name, questions.ask_topic_stats(cluster, one.topic, one.broker_name), questions.read_topic_stats
        )
        for place, one in enumerate(asked)
    }
    told = gather(cluster, asked_for, at).told
    return _with_left_out(cluster, [_listed(one, told[place]) for place, one in enumerate(asked)], at)


def _listed(one: TopicAt, told: Told[TopicStats]) -> BrokerEnds:
    """The answer to 202. A refusal for want of rights tells nothing, and is no error yet; nor is that of a slave that
    learns of topics up to a minute late (17), and may have their queues.
    """
    if told.error is None:
        limits, topic_put_tps = told.required()
        return BrokerEnds(one, limits, told.broker_id, topic_put_tps=topic_put_tps)
    if told.unknown_at is not None:
        return BrokerEnds(one, {}, told.unknown_at)
    is_asked_again = isinstance(told.error, MQBrokerError) and is_not_told(told.error)
    return BrokerEnds(one, {}, told.broker_id, error=None if is_asked_again else told.error)


def _with_left_out(cluster: Cluster, found: list[BrokerEnds], at: At) -> list[BrokerEnds]:
    """The answers with the queues that 202 leaves out."""
    left_out = [
        [
            MessageQueue(ends.asked.topic, ends.asked.broker_name, queue_id)
            for queue_id in (range(ends.asked.read_queue_nums) if ends.error is None else ())
            if queue_id not in ends.limits
        ]
        for ends in found
    ]
    queues = list(chain.from_iterable(left_out))
    if not queues:
        return found
    # A master that is silent is not waited for twice.
    processes = {ends.asked.broker_name: ends.broker_id for ends in found if ends.error is None}
    told = gather_ranges(cluster, queues, at, processes=processes).told
    return [
        _completed(ends, {queue: told[queue] for queue in missing}) if missing else ends
        for ends, missing in zip(found, left_out, strict=True)
    ]


def _completed(ends: BrokerEnds, told: Mapping[MessageQueue, Told[QueueRange]]) -> BrokerEnds:
    error = next((one.error for one in told.values() if one.error is not None), None)
    if error is not None:
        return replace(ends, limits={}, error=error)
    ranges = {queue.queue_id: one.required() for queue, one in told.items()}
    limits = {
        queue_id: TopicOffset(min_offset=one.min_offset, max_offset=one.max_offset) for queue_id, one in ranges.items()
    }
    broker_id = max(ends.broker_id, *(one.broker_id for one in told.values()))
    return replace(ends, limits=dict(sorted({**ends.limits, **limits}.items())), broker_id=broker_id)


def topic_stats(
    cluster: Cluster, topic: str, broker_names: Collection[str] | None = None, *, route: TopicRoute | None = None
) -> dict[MessageQueue, QueueRange]:
    """The ranges of all queues of a topic that may be read, see `ends_at_brokers`; of these brokers only, if some are
    given. `route`: in place of the one that the name servers tell. A broker that refuses 202, unless it does not have
    the topic (17), is asked for each queue (31, 30).

    While a master does not answer, its slave is asked: ends are those of the slave then, and may be smaller than ends
    that the master has told before.

    Raises:
        UnknownTopicError: no broker has the topic.
        MQBrokerError: a broker does not have the topic, or refuses these requests, too.
        RemotingError: neither master nor slave answers.
    """
    route = cluster.known_route(topic) if route is None else route
    wanted = [one for one in route.read_queues() if broker_names is None or one.broker_name in broker_names]
    names = {queue.broker_name for queue in wanted}
    ranges: dict[MessageQueue, QueueRange] = {}
    for ends in ends_at_brokers(cluster, [one for one in at_brokers([route]) if one.broker_name in names]):
        is_refused = isinstance(ends.error, MQBrokerError) and ends.error.response_code != ResponseCode.TOPIC_NOT_EXIST
        ranges |= {} if is_refused else ends.required().ranges
    missing = [queue for queue in wanted if queue not in ranges]
    if missing:
        ranges |= queue_ranges(cluster, missing)
    return {queue: ranges[queue] for queue in wanted}


class CheckedTopics:
    """The topics that one reader has found to be of a kind that can be read. A topic is asked about until all of its
    brokers have told its kind, every 30 s.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        # Topic -> when to ask again.
        self._due_ms: dict[str, float] = {}

    def refuse_to_read(self, topic: str) -> None:
        """See `refuse_to_read_topic`; a topic without a route is let pass, and looked at when it has one."""
        if self._cluster.timer() < self._due_ms.get(topic, -math.inf) or self._cluster.route(topic) is None:
            return
        is_known = refuse_to_read_topic(self._cluster, topic)
        self._due_ms[topic] = math.inf if is_known else self._cluster.timer() + POLL_EVERY_MS


def refuse_to_read_topic(cluster: Cluster, topic: str) -> bool:
    """Refuse a topic whose queues brokers keep in another way, so that offsets or frames are other ones. True: all of
    its brokers have answered.

    Raises:
        TopicKindError: batch queues, compaction, a static topic, or a queue of other topics' messages (LMQ).
        UnknownTopicError: no broker has the topic.
    """
    return _refuse(cluster, topic, kinds.refuse_to_read_topic)


def refuse_to_write_topic(cluster: Cluster, topic: str) -> None:
    """Refuse a topic to which nothing may be sent from here. Raises as `refuse_to_read_topic`."""
    _refuse(cluster, topic, kinds.refuse_to_write_topic)


def _refuse(cluster: Cluster, topic: str, refuse: Callable[[str, Kind | None], None]) -> bool:
    if topic.startswith(LMQ_PREFIX):
        raise TopicKindError(
            f"topic {topic!r} is a queue of other topics' messages (LMQ): read the topics that these were sent to"
        )
    route = cluster.known_route(topic)
    if route.is_static:
        raise TopicKindError(
            f"topic {topic!r}: {STATIC_TOPICS.what}. Over the network it is neither read nor written here"
        )
    asked = {
        name: Question(name, questions.ask_topic_config(cluster, topic), questions.read_topic_config)
        for name in sorted(route.queues)
    }
    told = gather(cluster, asked, At.READABLE).told
    for one in told.values():
        if one.error is None and one.value is not None:
            refuse(topic, kind_by_attributes(one.value.attributes or {}))
    return all(_has_told_kind(one) for one in told.values())


def _has_told_kind(told: Told[TopicConfig | None]) -> bool:
    """Whether the broker need not be asked again. An older one does not know the request, nor these kinds; one may
    refuse it for want of rights. One that is away tells it later, as a slave that does not have the topic yet.
    """
    if told.error is not None:
        return isinstance(told.error, MQBrokerError) and is_not_told(told.error)
    return told.value is not None or told.broker_id == MASTER_ID


def create_topic(
    cluster: Cluster,
    topic: str,
    queue_count: int = 4,
    *,
    perm: int = 6,
    order: bool = False,
    attributes: Mapping[str, str] | None = None,
    broker_names: Collection[str] | None = None,
) -> TopicRoute:
    """Create a topic, or change it, at the masters of all brokers or of some (17), and wait until it has its route.

    On return every one of these brokers has stored the topic.

    Raises:
        MQBrokerError: a broker refuses. RemotingError: a master does not answer; others may have the topic already.
        RemotingConnectError: the name servers show no broker.
    """
    names = sorted(cluster.broker_names() if broker_names is None else broker_names)
    if not names:
        raise RemotingConnectError(f"topic {topic!r} cannot be made: no broker is registered at the name servers now")
    config = TopicConfig(
        topic_name=topic, read_queue_nums=queue_count, write_queue_nums=queue_count, perm=perm, order=order
    )
    for name in names:
        command = questions.ask_create_topic(cluster, config, attributes or {})
        answer = cluster.call_broker(name, command, ok=_MADE_OR_UNKNOWN)
        if answer.code != ResponseCode.SUCCESS:
            reason = (
                f"topic {topic!r} cannot be made here: UPDATE_AND_CREATE_TOPIC (17) is not served, as by RocketMQ 5's "
                f"proxy; let an administrator make it at the brokers, with {queue_count} queues"
            )
            raise MQBrokerError(answer.code, reason, name, answer.came_from)
    until = real_time.monotonic() + ROUTE_WAIT_MS / 1000
    while True:
        route = cluster.refresh_route(topic)
        if route is not None and set(names) <= set(route.queues):
            return route
        if real_time.monotonic() >= until:
            raise MQBrokerError(
                ResponseCode.TOPIC_NOT_EXIST,
                f"the brokers {', '.join(names)} have the topic {topic!r}, but the name server shows no route to all "
                f"of them after {ROUTE_WAIT_MS // 1000} s",
            )
        time.sleep(_LOOK_EVERY_S)
