"""A cluster answers the questions of the commands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from rmq_store.cli.mqadmin_print.lines import perm_text
from rmq_store.cli.target.answers import Answers
from rmq_store.cli.target.rows import QueueRow, TopicRow

if TYPE_CHECKING:
    from rmq_store.cli.target.cluster_target import ClusterTarget
    from rmq_store.cli.target.view import Tell
    from rmq_store.kinds.table import Kind
    from rmq_store.protocol.messages import MessageQueue
    from rmq_store.protocol.results import QueueRange
    from rmq_store.remoting.cluster.cluster import Cluster
    from rmq_store.remoting.cluster.routes import TopicRoute

# So many topics are asked for together; each at each of its brokers.
_AT_ONCE: Final = 64


class ClusterView:
    """See `View`."""

    def __init__(self, cluster: Cluster, target: ClusterTarget, tell: Tell) -> None:
        self.failures = Answers(cluster)
        self._cluster = cluster
        self._target = target
        self._tell = tell

    def topics(self, *, show_all: bool) -> list[TopicRow]:
        """See `View`."""
        from rmq_store.cli.cluster.queues import topic_ends
        from rmq_store.format.text.names import LMQ_PREFIX, is_system_topic

        cluster, kinds, found = self._cluster, self._topic_kinds(), list[TopicRow]()
        names = [
            name for name in cluster.topics() if show_all or not (is_system_topic(name) or name.startswith(LMQ_PREFIX))
        ]
        for first in range(0, len(names), _AT_ONCE):
            part = names[first : first + _AT_ONCE]
            ends = topic_ends(cluster, self.failures, part)
            for route in filter(None, map(cluster.route, part)):
                kind = kinds.get(route.topic)
                if show_all or kind is None:
                    found.append(_topic(route, ends, kind))
        self.failures.require_any()
        return found

    def _topic_kinds(self) -> Mapping[str, Kind]:
        """The topics whose queues brokers keep in another way, by the settings of all topics (21). A broker that
        refuses the request, for want of rights, shows none.
        """
        from rmq_store.kinds.topics import kind_by_attributes
        from rmq_store.remoting.questions.topics import ask_topic_configs, read_topic_configs

        found: dict[str, Kind] = {}
        commands = [(name, ask_topic_configs()) for name in self._cluster.broker_names()]
        for configs in Answers(self._cluster).ask_together(commands, read_topic_configs):
            for name, config in (configs or {}).items():
                kind = kind_by_attributes(config.attributes or {})
                if kind is not None:
                    found[self._cluster.plain_name(name)] = kind
        return found


def _topic(route: TopicRoute, ends: Mapping[MessageQueue, QueueRange], kind: Kind | None) -> TopicRow:
    from rmq_store.kinds.table import STATIC_TOPICS

    kind = STATIC_TOPICS if route.is_static else kind
    queues = [QueueRow(one.broker_name, one.queue_id, *ends[one]) for one in route.read_queues() if one in ends]
    perm = 7
    for config in route.queues.values():
        perm &= config.perm
    return TopicRow(
        route.topic,
        sum(config.read_queue_nums for config in route.queues.values()),
        sum(config.write_queue_nums for config in route.queues.values()),
        perm_text(perm),
        sum(one.max_offset - one.min_offset for one in queues) if kind is None else None,
        tuple(queues) if kind is None else (),
        kind=None if kind is None else kind.name,
    )
