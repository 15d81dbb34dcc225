"""The ends of a topic's queues at its brokers: the one place that asks for them.

    202 lists the queue       its range and the store time of its newest message
    202 leaves it out         31 and 30 are asked: brokers before 5.3 list only queues that may be written, so that a
                              topic that is being made smaller (readQueueNums > writeQueueNums) would lose its rest
    202 is refused            for want of rights, or unknown: 31 and 30 are asked for each queue that may be read
    202 lists more            queues that may be written, not read: their messages wait until readQueueNums is raised

Source: AdminBrokerProcessor.java (getTopicStatsInfo, getMaxOffset, getMinOffset), PullMessageProcessor.java.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from types import MappingProxyType
from typing import NamedTuple

from rmq_store.late.dataclasses import dataclass
from rmq_store.protocol.bodies.topics import TopicOffset, TopicStatsTable
from rmq_store.protocol.errors import MQBrokerError, RemotingError, ResponseCode
from rmq_store.protocol.messages import MessageQueue
from rmq_store.protocol.results import QueueRange
from rmq_store.protocol.wire.admin_headers import GetTopicStatsInfoRequestHeader
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.header_fields import request
from rmq_store.remoting.cluster.cluster import Cluster, broker_error, lacks_rights
from rmq_store.remoting.cluster.offsets import end_requests, range_of
from rmq_store.remoting.cluster.routes import MASTER_ID, TopicRoute


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
    commands = [
        (
            one.broker_name,
            request(GetTopicStatsInfoRequestHeader(topic=cluster.wire_topic(one.topic), bname=one.broker_name)),
        )
        for one in asked
    ]
    answers = _answers(cluster, commands, of_masters)
    found = [_listed(one, *answer) for one, answer in zip(asked, answers, strict=True)]
    return _with_left_out(cluster, found, of_masters)


def _answers(
    cluster: Cluster,
    commands: Sequence[tuple[str, RemotingCommand]],
    of_masters: bool,
    broker_ids: Mapping[str, int] = MappingProxyType({}),
) -> list[tuple[RemotingCommand | RemotingError, int]]:
    if of_masters:
        return [(answer, MASTER_ID) for answer in cluster.call_all(commands)]
    return cluster.read_all_with_ids(commands, broker_ids=broker_ids)


def _listed(one: TopicAt, answer: RemotingCommand | RemotingError, broker_id: int) -> BrokerEnds:
    """What 202 tells. A refusal for want of rights tells nothing, and is no error yet."""
    if isinstance(answer, RemotingError):
        return BrokerEnds(one, {}, broker_id, error=answer)
    if lacks_rights(answer) or answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        return BrokerEnds(one, {}, broker_id)
    if answer.code != ResponseCode.SUCCESS:
        return BrokerEnds(one, {}, broker_id, error=broker_error(answer, one.broker_name))
    table = TopicStatsTable.decode(answer.body)
    told = sorted((queue.queue_id, limits) for queue, limits in table.offset_table.items())
    return BrokerEnds(
        one, {queue_id: _in_order(limits) for queue_id, limits in told}, broker_id, topic_put_tps=table.topic_put_tps
    )


def _in_order(limits: TopicOffset) -> TopicOffset:
    """0 <= minOffset <= maxOffset: a queue without files has -1 and 0 in an answer."""
    if 0 <= limits.min_offset <= limits.max_offset:
        return limits
    start = max(limits.min_offset, 0)
    return replace(limits, min_offset=start, max_offset=max(limits.max_offset, start))


def _with_left_out(cluster: Cluster, found: list[BrokerEnds], of_masters: bool) -> list[BrokerEnds]:
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
    broker_ids = {ends.asked.broker_name: ends.broker_id for ends in found}
    answers = iter(_answers(cluster, end_requests(cluster, queues), of_masters, broker_ids))
    return [
        _completed(ends, missing, list(islice(answers, 2 * len(missing)))) if missing else ends
        for ends, missing in zip(found, left_out, strict=True)
    ]


def _completed(
    ends: BrokerEnds, queues: list[MessageQueue], answers: list[tuple[RemotingCommand | RemotingError, int]]
) -> BrokerEnds:
    limits = dict(ends.limits)
    pairs = zip(answers[::2], answers[1::2], strict=True)
    try:
        for queue, ((least, _), (most, _)) in zip(queues, pairs, strict=True):
            start, end = range_of(least, most, queue.broker_name)
            limits[queue.queue_id] = TopicOffset(min_offset=start, max_offset=end)
    except (RemotingError, MQBrokerError) as error:
        return replace(ends, limits={}, error=error)
    broker_id = max(ends.broker_id, *(broker_id for _, broker_id in answers))
    return replace(ends, limits=dict(sorted(limits.items())), broker_id=broker_id)
