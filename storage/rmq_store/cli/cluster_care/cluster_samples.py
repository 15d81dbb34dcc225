"""The metrics of a cluster: those of a store whose figures brokers tell (`metric_table` explains each).

Requests of one reading, to each broker: its topics (21), groups (201) and figures (28), one 202 for each topic and one
208 for each group. Between readings only the names of the brokers are kept. Source: AdminBrokerProcessor.java.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

from rmq_store.broker.monitoring import metric_table as table
from rmq_store.format.text.names import DLQ_PREFIX, RETRY_PREFIX, is_system_group, is_system_topic
from rmq_store.format.text.openmetrics import Metric, MetricFamily
from rmq_store.protocol.answers import is_away
from rmq_store.protocol.bodies.groups import ConsumeStats, OffsetWrapper
from rmq_store.protocol.bodies.topics import TopicOffset
from rmq_store.protocol.errors import MQBrokerError, ResponseCode
from rmq_store.protocol.messages import MessageQueue
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.cluster.gather import At, Question, Told, gather
from rmq_store.remoting.cluster.names import is_in_namespace
from rmq_store.remoting.cluster.topics import BrokerEnds, TopicAt, ends_at_brokers
from rmq_store.remoting.questions.brokers import ask_runtime_info, read_runtime_info
from rmq_store.remoting.questions.groups import (
    ask_consume_stats,
    ask_group_configs,
    read_consume_stats,
    read_group_configs,
)
from rmq_store.remoting.questions.topics import ask_topic_configs, read_topic_configs

CLUSTER_METRICS: Final = (
    table.LAG_MESSAGES, table.SENT_TO_DLQ, table.GROUP_NUMBER, table.TOPIC_NUMBER, table.RESERVE_TIME,
    table.TOPIC_MESSAGES, table.TOPIC_PUT, table.DEAD_LETTERS, table.LOG_MIN_OFFSET, table.LOG_MAX_OFFSET,
    table.DISK_USAGE, table.UNREADABLE, table.BROKER_AWAY,
)  # fmt: skip
CLUSTER_QUEUE_METRICS: Final = (
    table.QUEUE_MIN_OFFSET, table.QUEUE_MAX_OFFSET, table.QUEUE_COMMITTED, table.QUEUE_LAG
)  # fmt: skip

_AT_ONCE: Final = 256


class _Sample(NamedTuple):
    metric: Metric
    labels: tuple[str, ...]
    number: float


class _GroupAt(NamedTuple):
    broker_name: str
    group: str


def cluster_metrics(
    cluster: Cluster, *, queues: bool = False, seen: MutableMapping[str, str] | None = None
) -> list[MetricFamily]:
    """The present metrics of all brokers: CLUSTER_METRICS (with `queues`: and CLUSTER_QUEUE_METRICS), in that order.
    The slave of a master that does not answer is asked. A broker, a group or a topic that cannot be asked about has the
    sample `rmq_unreadable` instead of others; a broker that is away has `rmq_broker_away` 1, too.

    `seen`: the brokers of earlier readings, each with its cluster; those of this one are added. A broker that stops
    leaves the name servers at once, and only this tells that it is away.

    Raises:
        RemotingError: no name server answers, or no broker. MQBrokerError: all brokers refuse.
    """
    info = cluster.cluster_info()
    present = {name: each for each, names in info.cluster_addr_table.items() for name in names}
    clusters = {} if seen is None else seen
    clusters.update({name: present.get(name, "") for name in info.broker_addr_table})
    gone = clusters.keys() - info.broker_addr_table.keys()
    found: dict[str, list[tuple[tuple[str, ...], float]]] = {}
    for broker_name, sample in chain(
        _samples(cluster, sorted(info.broker_addr_table)),
        ((name, _Sample(table.BROKER_AWAY, (), 1)) for name in sorted(gone)),
    ):
        node = clusters[broker_name], "broker", broker_name
        found.setdefault(sample.metric.name, []).append(((*node, *sample.labels), sample.number))
    metrics = (*CLUSTER_METRICS, *(CLUSTER_QUEUE_METRICS if queues else ()))
    return [MetricFamily(metric, found.get(metric.name, [])) for metric in metrics]


def _samples(cluster: Cluster, broker_names: Sequence[str]) -> Iterator[tuple[str, _Sample]]:
    topics_at: list[TopicAt] = []
    questions: list[_GroupAt] = []
    failure: Exception | None = None
    reached = False
    away: set[str] = set()
    asked: dict[tuple[str, str], Question[Any]] = {}
    for name in broker_names:
        asked[name, "topics"] = Question(name, ask_topic_configs(), read_topic_configs)
        asked[name, "groups"] = Question(name, ask_group_configs(), read_group_configs)
        asked[name, "figures"] = Question(name, ask_runtime_info(), read_runtime_info)
    told = gather(cluster, asked, At.READABLE).told
    for name in broker_names:
        of_topics, of_groups = told[name, "topics"], told[name, "groups"]
        if of_topics.error is not None or of_groups.error is not None:
            failure = of_topics.error or of_groups.error
            away.update({name} if of_topics.is_away or of_groups.is_away else ())
            yield name, _Sample(table.UNREADABLE, ("", ""), 1)
            continue
        reached = True
        topics, groups = of_topics.required(), of_groups.required()
        topic_names, group_names = _of_namespace(cluster, topics), _of_namespace(cluster, groups)
        yield name, _Sample(table.TOPIC_NUMBER, (), len(topic_names))
        yield name, _Sample(table.GROUP_NUMBER, (), len(group_names))
        # They need rights of their own; without them there are none.
        for sample in _figures(told[name, "figures"].value or {}):
            yield name, sample
        topics_at += (TopicAt(cluster.plain_name(one), name, topics[one].read_queue_nums) for one in topic_names)
        questions += (_GroupAt(name, group) for group in group_names)
    if failure is not None and not reached:
        raise failure
    for first in range(0, len(topics_at), _AT_ONCE):
        for ends in ends_at_brokers(cluster, topics_at[first : first + _AT_ONCE]):
            away.update({ends.asked.broker_name} if ends.error is not None and is_away(ends.error) else ())
            for sample in _topic_samples(ends):
                yield ends.asked.broker_name, sample
    for first in range(0, len(questions), _AT_ONCE):
        part = questions[first : first + _AT_ONCE]
        progress = {
            question: Question(question.broker_name, ask_consume_stats(cluster, question.group), read_consume_stats)
            for question in part
        }
        for question, one in gather(cluster, progress, At.READABLE).told.items():
            away.update({question.broker_name} if one.is_away else ())
            for sample in _group_samples(cluster, question, one):
                yield question.broker_name, sample
    for name in broker_names:
        yield name, _Sample(table.BROKER_AWAY, (), int(name in away))


def _of_namespace(cluster: Cluster, names: Any) -> list[str]:
    """Names on the wire, sorted."""
    return sorted(name for name in names if is_in_namespace(cluster.settings.namespace, name))


def _topic_samples(ends: BrokerEnds) -> Iterator[_Sample]:
    if ends.error is None:
        yield from _ends(ends.asked.topic, ends.limits)
    elif not _is_gone(ends.error):
        yield _Sample(table.UNREADABLE, ("", ends.asked.topic), 1)


def _group_samples(
    cluster: Cluster, question: _GroupAt, told: Told[ConsumeStats | None]
) -> Iterator[_Sample]:
    group, stats = cluster.plain_name(question.group), told.value
    if told.error is not None:
        if not _is_gone(told.error):
            yield _Sample(table.UNREADABLE, (group, ""), 1)
        return
    progress: dict[str, list[tuple[MessageQueue, OffsetWrapper]]] = {}
    for queue, one in stats.offset_table.items() if stats is not None else ():
        if queue.broker_name == question.broker_name:
            progress.setdefault(cluster.plain_name(queue.topic), []).append((queue, one))
    yield from _lag(group, progress)


def _is_gone(error: Exception) -> bool:
    """Whether a topic, or that of a group, is not at this broker any more."""
    return isinstance(error, MQBrokerError) and error.response_code == ResponseCode.TOPIC_NOT_EXIST


def _lag(group: str, progress: dict[str, list[tuple[MessageQueue, OffsetWrapper]]]) -> Iterator[_Sample]:
    for topic, queues in sorted(progress.items()):
        is_system = _flag(is_system_topic(topic) or is_system_group(group.upper()))
        diffs = []
        for queue, one in sorted(queues):
            place = group, topic, str(queue.queue_id)
            diffs.append(max(0, one.broker_offset - max(0, one.consumer_offset)))
            yield _Sample(table.QUEUE_COMMITTED, place, max(0, one.consumer_offset))
            yield _Sample(table.QUEUE_LAG, place, diffs[-1])
        yield _Sample(table.LAG_MESSAGES, (group, topic, _flag(topic.startswith(RETRY_PREFIX)), is_system), sum(diffs))


def _ends(topic: str, queues: Mapping[int, TopicOffset]) -> Iterator[_Sample]:
    here = ever = 0
    for queue_id, one in queues.items():
        least, end = one.min_offset, one.max_offset
        here, ever = here + end - least, ever + end
        if end:
            yield _Sample(table.QUEUE_MIN_OFFSET, (topic, str(queue_id)), least)
            yield _Sample(table.QUEUE_MAX_OFFSET, (topic, str(queue_id)), end)
    labels = topic, _flag(topic.startswith(RETRY_PREFIX)), _flag(is_system_topic(topic))
    yield _Sample(table.TOPIC_MESSAGES, labels, here)
    yield _Sample(table.TOPIC_PUT, labels, ever)
    if topic.startswith(DLQ_PREFIX):
        group = topic.removeprefix(DLQ_PREFIX)
        of_group = group, _flag(is_system_group(group.upper()))
        yield _Sample(table.DEAD_LETTERS, of_group, here)
        yield _Sample(table.SENT_TO_DLQ, of_group, ever)


def _figures(texts: Mapping[str, str]) -> Iterator[_Sample]:
    """Of the runtime info."""
    for metric, name in ((table.LOG_MIN_OFFSET, "commitLogMinOffset"), (table.LOG_MAX_OFFSET, "commitLogMaxOffset")):
        if texts.get(name, "").isdecimal():
            yield _Sample(metric, (), int(texts[name]))
    earliest = texts.get("earliestMessageTimeStamp", "")
    if earliest.isdecimal():
        age_ms = time.time_ns() // 1_000_000 - int(earliest)
        yield _Sample(table.RESERVE_TIME, ("local", "disk"), max(0, age_ms))
    ratio = disk_ratio(texts)
    if ratio is not None:
        yield _Sample(table.DISK_USAGE, (), ratio)


def disk_ratio(texts: Any) -> float | None:
    """How full the disk of the commit log is, 0 to 1, by a broker's runtime info; None: it does not say."""
    try:
        return float(texts["commitLogDiskRatio"])
    except (KeyError, ValueError):
        return None


def _flag(value: bool) -> str:
    return "true" if value else "false"
