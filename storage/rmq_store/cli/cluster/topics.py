"""`rmq topics` over a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import click

from rmq_store.cli.monitoring.topics import write_topics
from rmq_store.cli.mqadmin_print.lines import perm_text
from rmq_store.cli.shared.output import wide_option
from rmq_store.cli.target.cluster_target import ClusterCommand, ClusterTarget, cluster_options

if TYPE_CHECKING:
    from rmq_store.cli.target.answers import Answers
    from rmq_store.kinds.table import Kind
    from rmq_store.protocol.messages import MessageQueue
    from rmq_store.protocol.results import QueueRange
    from rmq_store.remoting.cluster.cluster import Cluster
    from rmq_store.remoting.cluster.routes import TopicRoute

# So many topics are asked for together; each at each of its brokers.
_AT_ONCE: Final = 64


@click.command(
    cls=ClusterCommand,
    short_help="Topics, their queues, and the number of messages in them.",
    epilog="\b\nExample:\n  rmq -n 'ns1:9876;ns2:9876' topics --queues",
)
@cluster_options()
@wide_option
@click.option("--queues", "per_queue", is_flag=True, help="One line per queue instead of sums per topic.")
@click.option("--all", "show_all", is_flag=True, help="Also system topics, and topics that cannot be read.")
def topics(target: ClusterTarget, as_json: bool, per_queue: bool, show_all: bool) -> None:
    """Topics, their queues, and the number of messages in them, over all brokers that have the topic.

    MIN is the first offset that can be read, MAX the offset of the next message. Without --queues they are sums over
    the queues, so that MESSAGES = MAX - MIN on every line. A queue is named by its broker and its number. PERM: R can
    be read, W can be written, X is inherited; of several brokers what all of them allow.

    The slave of a master that does not answer is asked, and its ends may lag behind. Exit code 1 if neither answers:
    then the queues of this broker are missing, and stderr says so.
    """
    from rmq_store.cli.target.answers import Answers

    with target.open() as cluster:
        answers = Answers(cluster)
        found = list(_topics(cluster, answers, _kinds(cluster), show_all=show_all))
    answers.require_any()
    write_topics(found, as_json=as_json, per_queue=per_queue)
    answers.tell()


def _topics(
    cluster: Cluster, answers: Answers, kinds: Mapping[str, Kind], *, show_all: bool
) -> Iterator[dict[str, Any]]:
    from rmq_store.cli.cluster.queues import topic_ends
    from rmq_store.format.text.names import LMQ_PREFIX, is_system_topic

    names = [
        name for name in cluster.topics() if show_all or not (is_system_topic(name) or name.startswith(LMQ_PREFIX))
    ]
    for first in range(0, len(names), _AT_ONCE):
        part = names[first : first + _AT_ONCE]
        ends = topic_ends(cluster, answers, part)
        for route in filter(None, map(cluster.route, part)):
            kind = kinds.get(route.topic)
            if show_all or kind is None:
                yield _topic(route, ends, kind)


def _kinds(cluster: Cluster) -> Mapping[str, Kind]:
    """The topics whose queues brokers keep in another way, by the settings of all topics (21). A broker that refuses
    the request, for want of rights, shows none.
    """
    from rmq_store.cli.target.answers import Answers
    from rmq_store.kinds.topics import kind_by_attributes
    from rmq_store.remoting.questions.topics import ask_topic_configs, read_topic_configs

    found: dict[str, Kind] = {}
    commands = [(name, ask_topic_configs()) for name in cluster.broker_names()]
    for configs in Answers(cluster).ask(commands, read_topic_configs):
        for name, config in (configs or {}).items():
            kind = kind_by_attributes(config.attributes or {})
            if kind is not None:
                found[cluster.plain_name(name)] = kind
    return found


def _topic(route: TopicRoute, ends: Mapping[MessageQueue, QueueRange], kind: Kind | None) -> dict[str, Any]:
    """A topic as `write_topics` shows it."""
    from rmq_store.kinds.table import STATIC_TOPICS

    kind = STATIC_TOPICS if route.is_static else kind
    queues: list[dict[str, Any]] = [
        {"brokerName": queue.broker_name, "queueId": queue.queue_id, "minOffset": ends[queue].min_offset,
         "maxOffset": ends[queue].max_offset}
        for queue in route.read_queues()
        if queue in ends
    ]  # fmt: skip
    perm = 7
    for config in route.queues.values():
        perm &= config.perm
    return {
        "topic": route.topic,
        "readQueues": sum(config.read_queue_nums for config in route.queues.values()),
        "writeQueues": sum(config.write_queue_nums for config in route.queues.values()),
        "perm": perm_text(perm),
        "messages": sum(queue["maxOffset"] - queue["minOffset"] for queue in queues) if kind is None else None,
        "queues": queues if kind is None else [],
        "inTable": True,
        **({"kind": kind.name} if kind is not None else {}),
    }
