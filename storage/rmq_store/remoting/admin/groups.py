"""Groups at single brokers: settings, and who reads a topic (AdminBrokerProcessor.java). All raise as `scope.ask`."""

from __future__ import annotations

from collections.abc import Iterable

from rmq_store.protocol.bodies.groups import SubscriptionGroupConfig
from rmq_store.remoting.admin.scope import BrokerProcess, ask
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.questions import groups as questions


def group_config(cluster: Cluster, process: BrokerProcess, group: str) -> SubscriptionGroupConfig | None:
    """A group's settings at one broker, from those of all groups (201); None: it has none."""
    configs = ask(cluster, process, questions.ask_group_configs(), questions.read_group_configs)
    return configs.get(cluster.wire_group(group))


def topic_groups(cluster: Cluster, brokers: Iterable[BrokerProcess], topic: str) -> list[str]:
    """The groups that consume a topic, or have offsets in it, at these brokers, sorted (300)."""
    found: set[str] = set()
    for process in brokers:
        found.update(ask(cluster, process, questions.ask_topic_groups(cluster, topic), questions.read_topic_groups))
    return sorted(cluster.plain_name(group) for group in found)
